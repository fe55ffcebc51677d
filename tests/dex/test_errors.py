"""Errors: what they say, what a service's failure becomes, and that they cross process borders."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest

import dex
from dex import (
    ChannelMessageNotFoundError,
    DexServiceError,
    ErrorSubStatus,
    FlowAlreadyStartedError,
    FlowClosingError,
    FlowDefinitionError,
    FlowNotActiveOrNotFoundError,
    FlowNotFoundError,
    InvalidStepResultError,
    LongPollTimeoutError,
    RequestTimeoutError,
    RetryAfterError,
    RpcLockConflictError,
    StatusCode,
    ValueMappingError,
    WorkerInvocationError,
    retry_after,
)
from dex.errors import error_from_failure
from dex.wire.service import ServiceFailure


@pytest.mark.parametrize(
    ("sub_status", "operation", "expected"),
    [
        ("FLOW_ALREADY_STARTED", "start_flow", FlowAlreadyStartedError),
        ("FLOW_NOT_EXISTS", "describe_flow", FlowNotFoundError),
        ("FLOW_NOT_EXISTS", "wait_for_flow", FlowNotFoundError),
        ("FLOW_NOT_EXISTS", "time_travel", FlowNotFoundError),
        ("FLOW_NOT_EXISTS", "history", FlowNotFoundError),
        ("FLOW_NOT_EXISTS", "invoke_rpc", FlowNotActiveOrNotFoundError),
        ("FLOW_NOT_EXISTS", "stop_flow", FlowNotActiveOrNotFoundError),
        ("FLOW_NOT_EXISTS", "publish", FlowNotActiveOrNotFoundError),
        ("FLOW_NOT_EXISTS", "skip_timer", FlowNotActiveOrNotFoundError),
        ("FLOW_NOT_EXISTS", "wait_for_step_completion", FlowNotActiveOrNotFoundError),
        ("FLOW_NOT_EXISTS", "wait_for_attribute_match", FlowNotActiveOrNotFoundError),
        ("FLOW_NOT_EXISTS", "update_flow_config", FlowNotActiveOrNotFoundError),
        ("FLOW_NOT_EXISTS", "trigger_continue_as_new", FlowNotActiveOrNotFoundError),
        ("LONG_POLL_TIMEOUT", "wait_for_flow", LongPollTimeoutError),
        ("REQUEST_TIMEOUT", "invoke_rpc", RequestTimeoutError),
        ("CHANNEL_MESSAGE_NOT_FOUND", "invoke_rpc", ChannelMessageNotFoundError),
        ("FLOW_CLOSING", "invoke_rpc", FlowClosingError),
        ("WORKER_API_ERROR", "invoke_rpc", WorkerInvocationError),
        ("UNCATEGORIZED", "publish", DexServiceError),
        ("SOMETHING_NEW", "publish", DexServiceError),
    ],
)
def test_a_failure_becomes_the_error_of_its_kind(
    sub_status: str, operation: str, expected: type[DexServiceError]
) -> None:
    failure = ServiceFailure(code="NOT_FOUND", detail="why", sub_status=sub_status)
    error = error_from_failure(failure, operation, "order-17")
    assert type(error) is expected
    assert (error.code, error.operation, error.flow_id) == (StatusCode.NOT_FOUND, operation, "order-17")
    for words in (operation, "'order-17'", "NOT_FOUND", "why"):
        assert words in str(error)


def test_an_unknown_code_is_unknown() -> None:
    assert error_from_failure(ServiceFailure(code="NEW", detail=""), "publish", "f").code is StatusCode.UNKNOWN


@pytest.mark.statement("B10", "B11")
def test_invalid_argument_is_told_by_its_code() -> None:
    failure = ServiceFailure(code="INVALID_ARGUMENT", detail="start_delay is not supported")
    error = error_from_failure(failure, "start_flow", "f")
    assert type(error) is DexServiceError
    assert error.code is StatusCode.INVALID_ARGUMENT


def test_a_lock_conflict_is_a_worker_error_with_code_aborted() -> None:
    for failure in (
        ServiceFailure(code="ABORTED", detail="held", sub_status="WORKER_API_ERROR"),
        ServiceFailure(code="FAILED_PRECONDITION", detail="held", sub_status="WORKER_API_ERROR", worker_code="ABORTED"),
    ):
        assert type(error_from_failure(failure, "invoke_rpc", "f")) is RpcLockConflictError


def test_a_worker_error_tells_the_exception() -> None:
    failure = ServiceFailure(
        code="FAILED_PRECONDITION",
        detail="the RPC failed",
        sub_status="WORKER_API_ERROR",
        worker_code="UNKNOWN",
        worker_error_type="builtins.ValueError",
        worker_error_detail="no",
    )
    error = error_from_failure(failure, "invoke_rpc", "f")
    assert isinstance(error, WorkerInvocationError)
    assert error.code is StatusCode.FAILED_PRECONDITION
    assert (error.worker_code, error.worker_error_type, error.worker_error_detail) == (
        StatusCode.UNKNOWN,
        "builtins.ValueError",
        "no",
    )


def _all_errors() -> list[Exception]:
    made: dict[type, tuple[Any, ...]] = {
        RetryAfterError: (5, ValueError("x")),
        InvalidStepResultError: ("Shop", "Pack", "execute", "why"),
        ValueMappingError: ("encode", "why"),
        WorkerInvocationError: (
            StatusCode.ABORTED,
            "why",
            ErrorSubStatus.WORKER_API_ERROR,
            "op",
            "f",
            StatusCode.UNKNOWN,
            "T",
            "d",
        ),
    }
    errors = [getattr(dex, name) for name in dex.__all__ if name.endswith("Error")]
    return [
        kind(*made.get(kind, (StatusCode.ABORTED, "why") if issubclass(kind, DexServiceError) else ("why",)))
        for kind in errors
    ]


@pytest.mark.parametrize("error", _all_errors(), ids=lambda error: type(error).__name__)
def test_every_error_can_be_pickled_and_copied(error: Exception) -> None:
    for again in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert type(again) is type(error)
        assert str(again) == str(error)
        assert {k: str(v) for k, v in vars(again).items()} == {k: str(v) for k, v in vars(error).items()}


def test_too_large_survives_pickling() -> None:
    assert pickle.loads(pickle.dumps(ValueMappingError("encode", "big", too_large=True))).too_large


@pytest.mark.statement("B146")
def test_retry_after_takes_whole_positive_seconds_and_a_cause() -> None:
    cause = RuntimeError("not ready")
    error = retry_after(7, cause)
    assert (error.after_seconds, error.cause, error.__cause__) == (7, cause, cause)
    for seconds in (0, -1):
        with pytest.raises(ValueError, match="must be > 0 s"):
            retry_after(seconds, cause)
    for wrong in (1.5, True, "7"):
        with pytest.raises(TypeError, match="whole seconds as an int"):
            retry_after(wrong, cause)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="the cause must be an exception"):
        retry_after(1, "why")  # type: ignore[arg-type]


def test_an_invalid_result_is_a_mistake_of_the_definition() -> None:
    error = InvalidStepResultError("Shop", "Pack", "execute", "requires a movement")
    assert isinstance(error, FlowDefinitionError)
    assert str(error) == "Flow 'Shop', Step 'Pack': invalid result of execute: requires a movement"
    assert str(InvalidStepResultError("Shop", None, "rpc", "x")).startswith("Flow 'Shop': invalid result of rpc")


@pytest.mark.statement("D4")
def test_attempt_progress_has_three_values() -> None:
    assert [progress.name for progress in dex.AttemptProgress] == ["UNSPECIFIED", "NOT_STARTED", "NOT_COMPLETED"]
    info = dex.RecoveryErrorInfo("detail", "type")
    assert info.attempt_progress is dex.AttemptProgress.UNSPECIFIED


def test_everything_exported_is_there_and_sorted() -> None:
    assert len(set(dex.__all__)) == len(dex.__all__)
    assert all(hasattr(dex, name) for name in dex.__all__)
