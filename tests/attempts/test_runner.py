"""One attempt of a synchronous or a generator handler, from its task to its result."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from typing import Any, ClassVar

import pytest

from dex.context import AsyncContext, Context
from dex.decision import StepDecision, dead_end, graceful_complete
from dex.errors import ValueMappingError, retry_after
from dex.flow import Flow, StepList
from dex.registry import Registry
from dex.step import Step, StepOutput, heartbeat
from dex.wait import Wait
from dexray.protocol.attempts import (
    HANDLER_ERROR,
    INVALID_RESULT,
    METHOD_TIMEOUT,
    AttemptReturned,
    ExecuteSucceeded,
    Heartbeat,
)
from tests.attempts import shop
from tests.attempts.build import (
    RecordingReporter,
    executed,
    failed,
    payload,
    run,
    task_for,
    value_of,
    waited,
)
from tests.attempts.shop import REGISTRY


class Count(Step[int]):
    """Sends a checkpoint for each number; 10 s pass between two."""

    clock: ClassVar[RecordingReporter]
    log: ClassVar[list[str]] = []

    def execute(self, context: Context, input: int) -> Generator[StepOutput, None, StepDecision]:
        try:
            for number in range(input):
                yield heartbeat(number)
                self.clock.time += 10
            yield heartbeat()
            return graceful_complete(input)
        finally:
            self.log.append("cleaned up")


class Odd(Step[str]):
    """A generator that yields or does what it is told."""

    def execute(self, context: Context, input: str) -> Generator[StepOutput, None, StepDecision]:
        match input:
            case "text":
                yield "text"  # type: ignore[misc]
            case "object":
                yield heartbeat(object())
            case "object, caught":
                try:
                    yield heartbeat(object())
                except ValueMappingError:
                    yield heartbeat("caught")
            case "raise":
                yield heartbeat(1)
                raise LookupError("after a frame")
            case "no decision":
                yield heartbeat(1)
                return None  # type: ignore[return-value]
            case "canceled":
                while not context.is_cancellation_requested():
                    yield heartbeat("more")
        return dead_end()


class Wander(Step[str]):
    async def execute(self, context: AsyncContext, input: str) -> StepDecision:
        await asyncio.sleep(0)
        return graceful_complete(input)


class Walk(Flow[int]):
    def get_steps(self) -> StepList[int]:
        return StepList.start_step(Count()).other_steps(Odd(), Wander())


WALK = Registry([Walk()], allow_async_handlers=True)


@pytest.fixture(autouse=True)
def reporter() -> RecordingReporter:
    Count.clock = RecordingReporter()
    Count.log.clear()
    return Count.clock


# Resolving ------------------------------------------------------------------------------------------------------------


@pytest.mark.statement("B204", "B205", "D16")
@pytest.mark.parametrize(
    ("flow_type", "step_type", "method", "missing"),
    [
        ("Gone", "Act", "execute", "Flow 'Gone'"),
        ("Shop", "Gone", "execute", "Step 'Gone' in Flow 'Shop'"),
        ("Shop", "Ship", "wait_for", "wait_for in Step 'Ship' of Flow 'Shop'"),
        ("Walk", "sys:timeout_handler", "timeout", "handle_timeout in Flow 'Walk'"),
    ],
)
def test_code_that_lacks_the_step_gives_the_attempt_back_unrun(
    flow_type: str, step_type: str, method: str, missing: str
) -> None:
    registry = WALK if flow_type == "Walk" else REGISTRY
    result = run(registry, task_for(flow_type, step_type, "x", method=method))
    assert isinstance(result, AttemptReturned)
    assert missing in result.reason


@pytest.mark.statement("B222")
def test_an_input_that_cannot_be_decoded_is_a_normal_failure() -> None:
    called: list[object] = []
    shop.Script.execute = staticmethod(lambda context, value: called.append(value) or dead_end())
    failure = failed(REGISTRY, task_for("Shop", "Act", 7))
    assert failure.error_type == "dex.errors.ValueMappingError"
    assert "input of Step 'Act'" in failure.detail
    assert failure.kind == HANDLER_ERROR
    assert failed(REGISTRY, task_for("Shop", "Act", raw_input=b"\xc1")).error_type == "dex.errors.ValueMappingError"
    assert called == []


@pytest.mark.statement("B221")
def test_an_input_whose_blob_is_missing_is_a_normal_failure() -> None:
    shop.Script.execute = staticmethod(lambda context, value: graceful_complete("x" * 20_000))
    reference = executed(REGISTRY, task_for("Shop", "Act", "x")).decision.output
    failure = failed(REGISTRY, task_for("Shop", "Act", raw_input=reference))
    assert failure.error_type == "dex.errors.ValueMappingError"


@pytest.mark.statement("B33", "B34")
def test_the_timeout_handler_decides_with_its_writes() -> None:
    def handle(context: Any, _: object) -> StepDecision:
        shop.note.set(context, "late")
        with pytest.raises(ValueError, match="in execute only"):
            shop.paid.results(context)
        return graceful_complete("late")

    shop.Script.execute = staticmethod(handle)
    result = executed(REGISTRY, task_for("Shop", "sys:timeout_handler", method="timeout", raw_input=b"\xc0"))
    assert value_of(result.decision.output) == "late"
    assert result.writes.attributes == {"note": payload("late")}


# Failing --------------------------------------------------------------------------------------------------------------


@pytest.mark.statement("D15")
@pytest.mark.parametrize(
    "error",
    [
        ValueError("no"),
        SystemExit(2),
        KeyboardInterrupt(),
        GeneratorExit(),
        StopIteration(1),
        asyncio.CancelledError(),
        ExceptionGroup("two", [ValueError("a"), TypeError("b")]),
    ],
)
def test_whatever_a_handler_raises_is_the_attempts_failure(error: BaseException) -> None:
    def raising(context: Any, value: object) -> Any:
        raise error

    shop.Script.execute = shop.Script.wait_for = staticmethod(raising)
    for method in ("wait_for", "execute"):
        failure = failed(REGISTRY, task_for("Shop", "Act", "x", method=method))
        assert failure.error_type == f"{type(error).__module__}.{type(error).__qualname__}"
        assert failure.kind == HANDLER_ERROR
        assert "raising" in failure.trace
        assert "dexray" not in failure.trace.split("Traceback", 1)[-1].split(", in raising")[0]


@pytest.mark.statement("D15")
def test_an_endless_recursion_is_the_attempts_failure() -> None:
    def endless(context: Any, value: object) -> Any:
        return endless(context, value)

    shop.Script.execute = staticmethod(endless)
    assert failed(REGISTRY, task_for("Shop", "Act", "x")).error_type == "builtins.RecursionError"


@pytest.mark.statement("B145", "B146")
def test_a_handler_sets_the_delay_of_its_retry() -> None:
    def execute(context: Any, _: object) -> Any:
        raise retry_after(7, RuntimeError("not ready"))

    shop.Script.execute = staticmethod(execute)
    failure = failed(REGISTRY, task_for("Shop", "Act", "x"))
    assert (failure.retry_after, failure.error_type) == (7.0, "builtins.RuntimeError")


def test_a_handler_that_swallows_everything_succeeds() -> None:
    def execute(context: Any, _: object) -> Any:
        try:
            raise SystemExit
        except BaseException:
            return dead_end()

    shop.Script.execute = staticmethod(execute)
    assert executed(REGISTRY, task_for("Shop", "Act", "x")).decision.kind == "dead_end"


@pytest.mark.statement("D12")
def test_a_value_over_the_limit_is_not_retried() -> None:
    shop.Script.execute = staticmethod(lambda context, _: graceful_complete(b"x" * (64 * 1024 * 1024 + 1)))
    failure = failed(REGISTRY, task_for("Shop", "Act", "x"))
    assert not failure.retryable
    assert "output of Step 'Act'" in failure.detail


@pytest.mark.statement("B119", "B164")
def test_a_handler_that_returns_after_its_deadline_has_timed_out(reporter: RecordingReporter) -> None:
    def late(context: Any, _: object) -> Any:
        reporter.time += 60
        return dead_end()

    shop.Script.execute = staticmethod(late)
    failure = failed(REGISTRY, task_for("Shop", "Act", "x", timeout=60.0), reporter)
    assert failure.kind == METHOD_TIMEOUT
    assert "method timeout of 60 s" in failure.detail
    assert isinstance(run(REGISTRY, task_for("Shop", "Act", "x", timeout=61.0), reporter), ExecuteSucceeded)


@pytest.mark.statement("B119")
def test_a_handler_that_raises_after_its_deadline_has_timed_out_and_the_error_is_told(
    reporter: RecordingReporter,
) -> None:
    def late(context: Any, _: object) -> Any:
        reporter.time += 60
        raise ValueError("too late")

    shop.Script.execute = staticmethod(late)
    failure = failed(REGISTRY, task_for("Shop", "Act", "x", timeout=60.0), reporter)
    assert failure.kind == METHOD_TIMEOUT
    assert "ValueError: too late" in failure.detail


@pytest.mark.statement("B121")
def test_a_canceled_handler_that_finishes_has_its_result_reported(reporter: RecordingReporter) -> None:
    reporter.canceled = True
    assert executed(REGISTRY, task_for("Shop", "Act", "x"), reporter).decision.kind == "dead_end"


# Generators -----------------------------------------------------------------------------------------------------------


@pytest.mark.statement("B78", "B175", "B176", "B178")
def test_frames_of_a_generator_go_out_as_heartbeats_and_its_return_is_the_decision(
    reporter: RecordingReporter,
) -> None:
    result = executed(WALK, task_for("Walk", "Count", 2), reporter)
    assert value_of(result.decision.output) == 2
    assert reporter.heartbeats == [
        Heartbeat(True, payload(0)),
        Heartbeat(True, payload(1)),
        Heartbeat(False, None),
    ]
    assert Count.log == ["cleaned up"]


@pytest.mark.statement("B119")
def test_a_generator_past_its_deadline_is_closed_at_its_next_frame(reporter: RecordingReporter) -> None:
    failure = failed(WALK, task_for("Walk", "Count", 100, timeout=25.0), reporter)
    assert failure.kind == METHOD_TIMEOUT
    assert len(reporter.heartbeats) == 4
    assert failure.heartbeat == Heartbeat(True, payload(3))
    assert Count.log == ["cleaned up"]


@pytest.mark.statement("B121")
def test_a_canceled_generator_goes_on_until_it_looks(reporter: RecordingReporter) -> None:
    reporter.canceled = True
    assert executed(WALK, task_for("Walk", "Count", 2), reporter).decision.kind == "graceful_complete"
    assert executed(WALK, task_for("Walk", "Odd", "canceled"), reporter).decision.kind == "dead_end"


def test_a_failure_brings_the_last_checkpoint(reporter: RecordingReporter) -> None:
    failure = failed(WALK, task_for("Walk", "Odd", "raise"), reporter)
    assert (failure.error_type, failure.detail) == ("builtins.LookupError", "after a frame")
    assert failure.heartbeat == Heartbeat(True, payload(1))


def test_a_generator_that_yields_something_else_has_an_invalid_result(reporter: RecordingReporter) -> None:
    failure = failed(WALK, task_for("Walk", "Odd", "text"), reporter)
    assert failure.kind == INVALID_RESULT
    assert "yielded str" in failure.detail
    assert reporter.heartbeats == []


def test_a_generator_without_a_decision_has_an_invalid_result(reporter: RecordingReporter) -> None:
    assert "is a return missing?" in failed(WALK, task_for("Walk", "Odd", "no decision"), reporter).detail


@pytest.mark.statement("D11")
def test_a_checkpoint_that_cannot_be_stored_is_refused_where_it_is_yielded(reporter: RecordingReporter) -> None:
    assert failed(WALK, task_for("Walk", "Odd", "object"), reporter).error_type == "dex.errors.ValueMappingError"
    executed(WALK, task_for("Walk", "Odd", "object, caught"), reporter)
    assert reporter.heartbeats == [Heartbeat(True, payload("caught"))]


# Mixed ----------------------------------------------------------------------------------------------------------------


def test_a_step_that_became_asynchronous_runs_all_the_same(reporter: RecordingReporter) -> None:
    assert value_of(executed(WALK, task_for("Walk", "Wander", "x"), reporter).decision.output) == "x"


def test_a_handler_that_returns_something_to_await_by_mistake_is_told() -> None:
    async def forgotten() -> Wait:
        return Wait.skip_immediately()

    class Awaitable:
        def __await__(self) -> Generator[Any, None, None]:
            yield None

    shop.Script.wait_for = staticmethod(lambda context, _: Awaitable())
    failure = failed(REGISTRY, task_for("Shop", "Act", "x", method="wait_for"))
    assert "expected a Wait, got Awaitable" in failure.detail
    shop.Script.wait_for = staticmethod(lambda context, _: forgotten())
    assert waited(REGISTRY, task_for("Shop", "Act", "x", method="wait_for")).wait.kind == "skip_immediately"
