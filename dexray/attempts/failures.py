"""Whatever user code raises becomes data: `AttemptFailed`, of bounded size, readable by one who lacks the class.

A handler may raise anything: an exception whose `__str__` raises, a class with an odd constructor, an
ExceptionGroup, SystemExit, a message of a hundred megabytes. Nothing of it may leave the attempt as an object.
So no exception is pickled here and none is rebuilt: it is looked at once, with every look guarded, and three
texts are kept: type name, message, trace.

Each text is cut to its limit in UTF-8 bytes. A trace is cut in the middle, because its end names the error and
its first lines name the exception that started a chain.
"""

from __future__ import annotations

import logging
import traceback
from types import TracebackType

from dex.errors import DexServiceError, FlowDefinitionError, RetryAfterError, StatusCode, ValueMappingError
from dex.wire.specs import RPC
from dexray.attempts.rpcs import rpc_name
from dexray.protocol.attempts import (
    HANDLER_ERROR,
    INVALID_RESULT,
    METHOD_TIMEOUT,
    AttemptFailed,
    AttemptTask,
)

logger = logging.getLogger("dexray.attempts")

TYPE_LIMIT = 256
DETAIL_LIMIT = 1024
TRACE_LIMIT = 4096
"""Bytes of UTF-8 kept of each text."""

CANCELED = "Canceled"
"""The error type of an attempt that ended because it was asked to stop."""

_CUT = "…"
_GAP = "\n  … (cut) …\n"
_HEAD_SHARE = 8  # one eighth of a cut trace is its beginning


def failure_of(error: BaseException) -> AttemptFailed:
    """The failure that `error`, raised by a handler or by our own checks of its result, stands for. Never raises."""
    retry_after: float | None = None
    raised_at = error.__traceback__
    if isinstance(error, RetryAfterError):
        retry_after, error = _retry_after_of(error)
    return AttemptFailed(
        error_type=type_name_of(error),
        detail=detail_of(error),
        trace=trace_of(error, error.__traceback__ or raised_at),  # a cause may never have been raised itself
        kind=INVALID_RESULT if isinstance(error, FlowDefinitionError) else HANDLER_ERROR,
        retry_after=retry_after,
        retryable=not _is_permanent(error),
    )


def _is_permanent(error: BaseException) -> bool:
    """Errors of ours that another attempt of the same code can't mend; users' own are always tried again."""
    if isinstance(error, ValueMappingError):
        return getattr(error, "too_large", False) is True
    return isinstance(error, DexServiceError) and getattr(error, "code", None) is StatusCode.UNIMPLEMENTED


def timeout_failure(task: AttemptTask, late: str = "") -> AttemptFailed:
    """The failure of an attempt that ran past its deadline; `late` tells what the handler did after it."""
    detail = f"{_name(task)} ran past its method timeout of {task.timeout:g} s"
    return AttemptFailed(
        error_type=METHOD_TIMEOUT,
        detail=cut(f"{detail}; {late}" if late else detail, DETAIL_LIMIT),
        kind=METHOD_TIMEOUT,
    )


def canceled_failure(task: AttemptTask) -> AttemptFailed:
    """The failure of an attempt whose handler stopped because it was asked to."""
    return AttemptFailed(error_type=CANCELED, detail=f"{_name(task)} was canceled")


def log_failure(task: AttemptTask, failure: AttemptFailed) -> None:
    """A warning of the logger "dexray.attempts", with the trace. Nothing of an attempt that was asked to stop, and
    nothing of an RPC: its caller has the error.
    """
    if failure.error_type == CANCELED or task.key.method == RPC:
        return
    where = f"Flow {task.key.flow_id!r} ({task.flow_type}): {_name(task)}"
    trace = f"\n{failure.trace.rstrip()}" if failure.trace else ""
    logger.warning("%s failed with %s: %s%s", where, failure.error_type, failure.detail, trace)


def _name(task: AttemptTask) -> str:
    if task.key.method == RPC:
        return f"RPC {rpc_name(task)!r}"
    return f"{task.key.method} of {task.key.step_execution_id} (attempt {task.key.attempt})"


def _retry_after_of(error: RetryAfterError) -> tuple[float | None, BaseException]:
    """The delay and the error to report. A RetryAfterError's own fields may have been tampered with by a subclass."""
    try:
        seconds = float(error.after_seconds)
    except Exception:
        return None, error
    cause = error.cause
    return seconds, cause if isinstance(cause, BaseException) else error


# Texts ----------------------------------------------------------------------------------------------------------------


def cut(text: str, limit: int) -> str:
    """`text` as clean UTF-8 of at most `limit` bytes, the beginning kept."""
    clean = _clean(text[: limit + 1])
    if len(text) <= limit and len(clean) <= limit:
        return clean.decode()
    return clean[: limit - len(_CUT.encode())].decode("utf-8", "ignore") + _CUT


def cut_middle(text: str, limit: int) -> str:
    """`text` as clean UTF-8 of at most `limit` bytes: a little of the beginning, and as much as fits of the end."""
    if len(text) <= limit:
        data = _clean(text)
        if len(data) <= limit:
            return data.decode()
    room = limit - len(_GAP.encode())
    head = room // _HEAD_SHARE
    beginning = _clean(text[:head])[:head].decode("utf-8", "ignore")
    end = _clean(text[-room:])[-(room - head) :].decode("utf-8", "ignore")
    return beginning + _GAP + end


def _clean(text: str) -> bytes:
    return text.encode("utf-8", "backslashreplace")  # lone surrogates have no UTF-8


def type_name_of(error: BaseException) -> str:
    """The module-qualified class name, such as `builtins.ValueError`."""
    cls = type(error)
    try:
        return cut(f"{cls.__module__}.{cls.__qualname__}", TYPE_LIMIT)
    except BaseException:  # a metaclass of the user's may raise anything
        return "builtins.BaseException"


def detail_of(error: BaseException) -> str:
    try:
        return cut(str(error), DETAIL_LIMIT)
    except BaseException as broken:  # __str__ is user code: it may raise SystemExit, too
        return f"<the message can't be read: its __str__ raised {type_name_of(broken)}>"


def trace_of(error: BaseException, frames: TracebackType | None) -> str:
    """The formatted traceback of an error raised at `frames`, without the frames of this package."""
    try:
        shown = traceback.TracebackException(type(error), error, _first_user_frame(frames))
        return cut_middle("".join(shown.format()), TRACE_LIMIT)
    except BaseException:
        return _bare_trace(error, frames)


def _first_user_frame(trace: TracebackType | None) -> TracebackType | None:
    first = trace
    while first is not None and first.tb_frame.f_globals.get("__package__") == __package__:
        first = first.tb_next
    return first if first is not None else trace


def _bare_trace(error: BaseException, trace: TracebackType | None) -> str:
    """Only files and lines: for an exception that can't be formatted."""
    try:
        frames = traceback.extract_tb(trace, limit=-20)
        lines = [f"  {frame.filename}:{frame.lineno} in {frame.name}" for frame in frames]
        return cut_middle("\n".join([*lines, type_name_of(error)]), TRACE_LIMIT)
    except BaseException:
        return ""
