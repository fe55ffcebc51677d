"""Every error that `dex` raises, and how a service's failure becomes one of them.

Two families matter to a user. A `FlowDefinitionError` is a mistake in code: it is raised when a Registry is made, or
when a handler returns something that its Flow does not allow. A `DexServiceError` is an answer of the service: its
`code` and `sub_status` say what happened, and the usual cases have classes of their own, so that `except
FlowAlreadyStartedError` works.

All of them can be pickled and copied: they cross process borders.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from dex.wire.service import ServiceFailure


class StatusCode(Enum):
    """What kind of answer a service gave; names and numbers are the usual ones."""

    OK = 0
    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    ABORTED = 10
    OUT_OF_RANGE = 11
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    DATA_LOSS = 15
    UNAUTHENTICATED = 16


class ErrorSubStatus(Enum):
    """What a service's failure was about, more exactly than its code."""

    UNCATEGORIZED = "UNCATEGORIZED"
    FLOW_ALREADY_STARTED = "FLOW_ALREADY_STARTED"
    FLOW_NOT_EXISTS = "FLOW_NOT_EXISTS"
    WORKER_API_ERROR = "WORKER_API_ERROR"
    LONG_POLL_TIMEOUT = "LONG_POLL_TIMEOUT"
    CHANNEL_MESSAGE_NOT_FOUND = "CHANNEL_MESSAGE_NOT_FOUND"
    REQUEST_TIMEOUT = "REQUEST_TIMEOUT"
    FLOW_CLOSING = "FLOW_CLOSING"


# Retrying ------------------------------------------------------------------------------------------------------------


class RetryAfterError(Exception):
    """Fails the attempt and sets the delay before the next one. Made by `retry_after`.

    The cause is what is reported as the failure. The retry still counts as an attempt.
    """

    def __init__(self, after_seconds: int, cause: BaseException) -> None:
        if type(after_seconds) is not int:
            raise TypeError(
                f"retry_after(after_seconds, cause) takes whole seconds as an int, got {after_seconds!r} "
                f"({type(after_seconds).__name__})"
            )
        if after_seconds <= 0:
            raise ValueError(f"retry_after(after_seconds, cause): the delay must be > 0 s, got {after_seconds}")
        if not isinstance(cause, BaseException):
            raise TypeError(
                f"retry_after(after_seconds, cause): the cause must be an exception, got {type(cause).__name__}"
            )
        super().__init__(f"retry after {after_seconds} s: {type(cause).__name__}")
        self.after_seconds = after_seconds
        self.cause = cause
        self.__cause__ = cause

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.after_seconds, self.cause)


def retry_after(after_seconds: int, cause: BaseException) -> RetryAfterError:
    """The error to raise from a handler to have the next attempt after `after_seconds` seconds (int > 0).

    It overrides the schedule of the RetryPolicy, not its limits: attempts and total duration still end the retries.

        raise retry_after(7, RuntimeError("not ready yet"))

    Raises TypeError or ValueError for a delay that is not a positive int.
    """
    return RetryAfterError(after_seconds, cause)


# Mistakes in code ----------------------------------------------------------------------------------------------------


class FlowDefinitionError(RuntimeError):
    """A Flow, a Step, an RPC or a use of them is wrong. The text names it, the value and the way out."""


class InvalidStepResultError(FlowDefinitionError):
    """A handler returned something that can't be applied. `method` is wait_for, execute or rpc."""

    def __init__(self, flow_type: str, step_type: str | None, method: str, detail: str) -> None:
        where = f"Flow {flow_type!r}" if step_type is None else f"Flow {flow_type!r}, Step {step_type!r}"
        super().__init__(f"{where}: invalid result of {method}: {detail}")
        self.flow_type = flow_type
        self.step_type = step_type
        self.method = method
        self.detail = detail

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.flow_type, self.step_type, self.method, self.detail)


class ValueMappingError(RuntimeError):
    """A value could not be encoded or decoded. `operation` says where, `detail` why.

    too_large: the value is above the size limit; to try again can't help.
    """

    def __init__(self, operation: str, detail: str, *, too_large: bool = False) -> None:
        super().__init__(f"{operation}: {detail}")
        self.operation = operation
        self.detail = detail
        self.too_large = too_large

    def __reduce__(self) -> tuple[Any, ...]:
        return _value_mapping_error, (type(self), self.operation, self.detail, self.too_large)


def _value_mapping_error(
    kind: type[ValueMappingError], operation: str, detail: str, too_large: bool
) -> ValueMappingError:
    return kind(operation, detail, too_large=too_large)


class AttributeMapNotLoadedError(RuntimeError):
    """An AttributeMap's value was read that the method did not select to be loaded."""


class ChannelMessagesNotLoadedError(RuntimeError):
    """A Channel's pending messages were read that the method did not select to be loaded."""


# Answers of the service ----------------------------------------------------------------------------------------------


class DexServiceError(RuntimeError):
    """A request failed. Attributes: `code`, `detail`, `sub_status`, `operation` (the client's method), `flow_id`."""

    def __init__(
        self,
        code: StatusCode,
        detail: str,
        sub_status: ErrorSubStatus = ErrorSubStatus.UNCATEGORIZED,
        operation: str = "",
        flow_id: str = "",
    ) -> None:
        about = f" of Flow {flow_id!r}" if flow_id else ""
        super().__init__(f"{operation}{about}: {code.name}: {detail}" if operation else f"{code.name}: {detail}")
        self.code = code
        self.detail = detail
        self.sub_status = sub_status
        self.operation = operation
        self.flow_id = flow_id

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.code, self.detail, self.sub_status, self.operation, self.flow_id)


class FlowAlreadyStartedError(DexServiceError):
    """The id reuse policy forbids to start this Flow ID again."""


class FlowNotFoundError(DexServiceError):
    """No Flow has this ID, or no run this run ID."""


class FlowNotActiveOrNotFoundError(DexServiceError):
    """No running Flow has this ID: it is unknown or closed."""


class FlowClosingError(DexServiceError):
    """The Flow is being closed and takes no more writes."""


class RpcLockConflictError(DexServiceError):
    """An Attribute lock of the RPC is held by someone else. Nothing was done: call again."""


class LongPollTimeoutError(DexServiceError):
    """What was waited for did not happen in time. It may still happen: wait again."""


class RequestTimeoutError(DexServiceError):
    """The service gave up on the request within its own time limit."""


class ChannelMessageNotFoundError(DexServiceError):
    """A transactional RPC deleted a message that is not there; nothing was applied."""


class WorkerInvocationError(DexServiceError):
    """The RPC's handler raised. `worker_error_type` and `worker_error_detail` name the exception."""

    def __init__(
        self,
        code: StatusCode,
        detail: str,
        sub_status: ErrorSubStatus = ErrorSubStatus.WORKER_API_ERROR,
        operation: str = "",
        flow_id: str = "",
        worker_code: StatusCode = StatusCode.UNKNOWN,
        worker_error_type: str = "",
        worker_error_detail: str = "",
    ) -> None:
        super().__init__(code, detail, sub_status, operation, flow_id)
        self.worker_code = worker_code
        self.worker_error_type = worker_error_type
        self.worker_error_detail = worker_error_detail

    def __reduce__(self) -> tuple[Any, ...]:
        kind, fields = super().__reduce__()
        return kind, (*fields, self.worker_code, self.worker_error_type, self.worker_error_detail)


_BY_SUB_STATUS: Final[dict[ErrorSubStatus, type[DexServiceError]]] = {
    ErrorSubStatus.FLOW_ALREADY_STARTED: FlowAlreadyStartedError,
    ErrorSubStatus.LONG_POLL_TIMEOUT: LongPollTimeoutError,
    ErrorSubStatus.CHANNEL_MESSAGE_NOT_FOUND: ChannelMessageNotFoundError,
    ErrorSubStatus.REQUEST_TIMEOUT: RequestTimeoutError,
    ErrorSubStatus.FLOW_CLOSING: FlowClosingError,
}

_WORKS_ON_CLOSED_FLOWS: Final = frozenset(
    {"describe_flow", "describe", "explain", "wait_for_flow", "time_travel", "history", "get_attribute", "delete_flow"}
)
"""Operations that a closed Flow answers too: when they find none, there is none."""


def error_from_failure(failure: ServiceFailure, operation: str, flow_id: str) -> DexServiceError:
    """The exception that a service's failure stands for.

    A code or a sub-status that this version does not know gives a plain DexServiceError, never a wrong class.
    """
    code = _status_code(failure.code)
    try:
        sub_status = ErrorSubStatus(failure.sub_status)
    except ValueError:
        detail = f"{failure.detail} (sub-status {failure.sub_status})"
        return DexServiceError(code, detail, operation=operation, flow_id=flow_id)
    if sub_status is ErrorSubStatus.WORKER_API_ERROR:
        worker_code = _status_code(failure.worker_code or failure.code)
        if worker_code is StatusCode.ABORTED:
            return RpcLockConflictError(code, failure.detail, sub_status, operation, flow_id)
        return WorkerInvocationError(
            code,
            failure.detail,
            sub_status,
            operation,
            flow_id,
            worker_code if failure.worker_code else StatusCode.UNKNOWN,
            failure.worker_error_type,
            failure.worker_error_detail,
        )
    kind: type[DexServiceError]
    if sub_status is ErrorSubStatus.FLOW_NOT_EXISTS:
        kind = FlowNotFoundError if operation in _WORKS_ON_CLOSED_FLOWS else FlowNotActiveOrNotFoundError
    else:
        kind = _BY_SUB_STATUS.get(sub_status, DexServiceError)
    return kind(code, failure.detail, sub_status, operation, flow_id)


def _status_code(name: str) -> StatusCode:
    return StatusCode.__members__.get(name, StatusCode.UNKNOWN)
