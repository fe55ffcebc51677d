"""Whatever user code raises becomes a record of bounded size."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from dex.errors import (
    DexServiceError,
    FlowDefinitionError,
    InvalidStepResultError,
    StatusCode,
    ValueMappingError,
    retry_after,
)
from dexray.attempts.failures import (
    DETAIL_LIMIT,
    TRACE_LIMIT,
    TYPE_LIMIT,
    canceled_failure,
    cut,
    cut_middle,
    failure_of,
    log_failure,
)
from dexray.protocol.attempts import HANDLER_ERROR, INVALID_RESULT, AttemptFailed
from tests.attempts.build import task_for

pytestmark = pytest.mark.statement("D15")


class OddConstructor(Exception):
    def __init__(self, one: int, two: int, *, three: int) -> None:
        super().__init__(f"{one}-{two}-{three}")


class Unprintable(Exception):
    def __str__(self) -> str:
        raise SystemExit("no message")

    __repr__ = __str__


class TextOfAnotherKind(Exception):
    def __str__(self) -> str:
        return 5  # type: ignore[return-value]


class Hostile(type):
    def __getattribute__(cls, name: str) -> object:
        if name in ("__qualname__", "__module__", "__name__"):
            raise KeyboardInterrupt
        return super().__getattribute__(name)


class WithHostileClass(Exception, metaclass=Hostile):
    pass


def raised(error: BaseException) -> BaseException:
    """The error with a traceback, as user code leaves it."""
    try:
        raise error
    except BaseException as caught:
        return caught


def chained() -> BaseException:
    try:
        try:
            raise KeyError("first")
        except KeyError as first:
            raise RuntimeError("second") from first
    except RuntimeError as second:
        return second


def endless() -> None:
    endless()


def too_deep() -> BaseException:
    try:
        endless()
    except RecursionError as error:
        return error
    raise AssertionError("unreachable")


ANYTHING: list[BaseException] = [
    ValueError("plain"),
    ValueError(),
    OddConstructor(1, 2, three=3),
    Unprintable(),
    TextOfAnotherKind(),
    WithHostileClass("x"),
    SystemExit(3),
    KeyboardInterrupt(),
    GeneratorExit(),
    StopIteration(7),
    asyncio.CancelledError(),
    ExceptionGroup("several", [ValueError("a"), ExceptionGroup("inner", [TypeError("b")])]),
    BaseExceptionGroup("several", [SystemExit(1)]),
    ValueError("x" * 5_000_000),
    ValueError("ü" * 5_000),
    ValueError("lone surrogate \ud800"),
    ValueError("nul \x00"),
    type("N" * 3000, (Exception,), {})("long name"),
]


@pytest.mark.parametrize("error", ANYTHING, ids=range(len(ANYTHING)))
def test_anything_raised_becomes_a_record_within_its_limits(error: BaseException) -> None:
    failure = failure_of(raised(error))
    assert 0 < len(failure.error_type.encode()) <= TYPE_LIMIT
    assert len(failure.detail.encode()) <= DETAIL_LIMIT
    assert 0 < len(failure.trace.encode()) <= TRACE_LIMIT
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(failure), type=AttemptFailed) == failure


def test_a_failure_names_the_class_with_its_module_and_keeps_the_message() -> None:
    failure = failure_of(raised(OddConstructor(1, 2, three=3)))
    assert failure.error_type == f"{__name__}.OddConstructor"
    assert failure.detail == "1-2-3"
    assert failure.kind == HANDLER_ERROR
    assert failure.retryable


def test_a_builtin_class_is_named_with_builtins() -> None:
    assert failure_of(ValueError("x")).error_type == "builtins.ValueError"


def test_a_message_that_cannot_be_read_says_so() -> None:
    assert "SystemExit" in failure_of(raised(Unprintable())).detail


def test_an_exception_that_was_never_raised_becomes_a_record_too() -> None:
    assert failure_of(ValueError("x")).detail == "x"


def test_a_trace_ends_with_the_error_and_holds_its_cause() -> None:
    trace = failure_of(chained()).trace
    assert trace.rstrip().endswith("RuntimeError: second")
    assert "KeyError: 'first'" in trace
    assert "in chained" in trace


def test_a_recursion_error_becomes_a_record() -> None:
    failure = failure_of(too_deep())
    assert failure.error_type == "builtins.RecursionError"
    assert "endless" in failure.trace
    assert len(failure.trace.encode()) <= TRACE_LIMIT


def test_a_trace_too_long_keeps_its_end_and_a_little_of_its_beginning() -> None:
    text = "BEGIN" + "".join(f"line {number}\n" for number in range(5000)) + "END"
    kept = cut_middle(text, TRACE_LIMIT)
    assert kept.startswith("BEGIN")
    assert kept.endswith("line 4999\nEND")
    assert len(kept.encode()) <= TRACE_LIMIT


@pytest.mark.parametrize("text", ["", "short", "ü" * 100, "\ud800" * 100, "a" * 99 + "ü", "🙂" * 40])
@pytest.mark.parametrize("limit", [40, 100, 101])
def test_a_cut_text_is_clean_utf8_within_its_limit(text: str, limit: int) -> None:
    for shortened in (cut(text, limit), cut_middle(text, limit)):
        assert len(shortened.encode()) <= limit
    if len(text.encode("utf-8", "backslashreplace")) <= limit:
        assert cut(text, limit) == cut_middle(text, limit) == text.encode("utf-8", "backslashreplace").decode()


@pytest.mark.statement("B145", "B146")
def test_retry_after_gives_the_delay_and_reports_its_cause() -> None:
    failure = failure_of(raised(retry_after(7, LookupError("not ready"))))
    assert failure.retry_after == 7
    assert failure.error_type == "builtins.LookupError"
    assert failure.detail == "not ready"
    assert failure.retryable
    assert "in raised" in failure.trace  # where it was raised, though the cause itself never was


def test_a_damaged_retry_after_is_still_a_record() -> None:
    error = retry_after(7, LookupError("not ready"))
    error.after_seconds = "soon"  # type: ignore[assignment]
    assert failure_of(raised(error)).retry_after is None


@pytest.mark.statement("D12")
def test_a_feature_that_this_version_lacks_is_not_retried() -> None:
    assert not failure_of(DexServiceError(StatusCode.UNIMPLEMENTED, "Streams are not available")).retryable
    assert failure_of(DexServiceError(StatusCode.UNAVAILABLE, "call again")).retryable
    assert failure_of(NotImplementedError()).retryable, "a user's own error is always tried again"


def test_a_value_that_is_too_large_is_not_retried() -> None:
    assert failure_of(ValueMappingError("encode", "wrong type")).retryable
    too_large = ValueMappingError("encode", "70 MiB")
    too_large.too_large = True
    assert not failure_of(too_large).retryable


def test_mistakes_of_the_flow_have_a_kind_of_their_own() -> None:
    assert failure_of(FlowDefinitionError("x")).kind == INVALID_RESULT
    assert failure_of(InvalidStepResultError("F", "S", "execute", "x")).kind == INVALID_RESULT


def test_a_failed_attempt_is_logged_with_all_that_names_it_and_its_trace(caplog: pytest.LogCaptureFixture) -> None:
    log_failure(task_for("Order", "Ships", attempt=3), failure_of(raised(LookupError("no parcel, 100 %s"))))
    (record,) = caplog.records
    first, *trace = record.getMessage().splitlines()
    assert (record.name, record.levelname) == ("dexray.attempts", "WARNING")
    assert first == (
        "Flow 'flow' (Order): execute of Ships-1 (attempt 3) failed with builtins.LookupError: no parcel, 100 %s"
    )
    assert (trace[0], trace[-1]) == ("Traceback (most recent call last):", "LookupError: no parcel, 100 %s")


def test_an_attempt_that_was_asked_to_stop_and_an_rpc_are_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    log_failure(task_for("Order", "Ships", attempt=3), canceled_failure(task_for("Order", "Ships", attempt=3)))
    log_failure(task_for("Order", "__rpc/ask", method="rpc"), failure_of(raised(LookupError("its caller is told"))))
    assert caplog.records == []
