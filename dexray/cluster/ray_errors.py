"""What an error of Ray means for the attempts of a lot. The one place that knows Ray's exceptions.

An attempt must end as one of three things, and the difference is a promise to the user:

- **not run**: its handler certainly never began. It is handed out again under the same number and uses up no
  retry.
- **crashed**: it may have run, in part or whole. It fails, and the retry policy decides.
- **canceled**: we asked for it and Ray took it out of its queue.

In doubt an attempt has run.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any

from ray import exceptions as ray_exceptions

_TRACE_LIMIT = 4096
_DETAIL_LIMIT = 1024


class Meaning(Enum):
    NOT_RUN = "not run"
    CRASHED = "crashed"
    CANCELED = "canceled"


@dataclass(frozen=True, slots=True)
class RayFailure:
    meaning: Meaning
    error_type: str
    detail: str
    trace: str = ""
    broke_process: bool = False  # a process ended: whatever else was in it is lost, too


def _known(*names: str) -> tuple[type[BaseException], ...]:
    """Ray's exceptions by name: not every version has all."""
    found = (getattr(ray_exceptions, name, None) for name in names)
    return tuple(kind for kind in found if isinstance(kind, type))


_CANCELED = _known("TaskCancelledError")
_NOT_RUN = _known(
    "RuntimeEnvSetupError",
    "TaskUnschedulableError",
    "ActorUnschedulableError",
    "TaskPlacementGroupRemoved",
    "ActorPlacementGroupRemoved",
    "PendingCallsLimitExceeded",
)
_OUT_OF_MEMORY = _known("OutOfMemoryError")
_NODE_DIED = _known("NodeDiedError", "LocalRayletDiedError")
_PROCESS_DIED = _known("WorkerCrashedError")
_ACTOR_DIED = _known("RayActorError")
_LOST = _known("ObjectLostError", "OwnerDiedError", "ObjectFetchTimedOutError", "ReferenceCountingAssertionError")


def failure_of(error: object) -> RayFailure:
    """What `error`, the outcome of a Ray task or of a call to an actor, means. Never raises."""
    cause = getattr(error, "cause", None)
    if isinstance(error, _CANCELED) or isinstance(cause, _CANCELED):
        return RayFailure(Meaning.CANCELED, "Canceled", "the Ray task was canceled before it began")
    if isinstance(error, _NOT_RUN):
        return RayFailure(Meaning.NOT_RUN, _name(error), _text(error))
    if isinstance(error, _OUT_OF_MEMORY):
        return _crash(
            error,
            "the worker process was ended because its node ran out of memory: ask for more with "
            "StepResources(memory=...), or run fewer at once",
        )
    if isinstance(error, _NODE_DIED):
        return _crash(error, "the node of the worker process died")
    if isinstance(error, _PROCESS_DIED):
        return _crash(
            error, "the worker process ended: exit, os._exit, SIGKILL, a crash in native code or out of memory"
        )
    if isinstance(error, _ACTOR_DIED):
        return _crash(
            error,
            "the async worker process ended or can't be reached: exit, os._exit, SIGKILL, "
            "a crash in native code, out of memory or a lost node",
        )
    if isinstance(error, _LOST):
        return _crash(error, "the result was lost with the node that held it")
    return RayFailure(
        Meaning.CRASHED,
        _name(cause if isinstance(cause, BaseException) else error),
        f"the attempt ended outside of its handler: {_text(cause if isinstance(cause, BaseException) else error)}",
        _text(getattr(error, "traceback_str", error), _TRACE_LIMIT),
    )


def _crash(error: object, detail: str) -> RayFailure:
    return RayFailure(Meaning.CRASHED, _name(error), detail, _text(error, _TRACE_LIMIT), broke_process=True)


def _name(error: object) -> str:
    return f"{type(error).__module__}.{type(error).__qualname__}"


def _text(error: Any, limit: int = _DETAIL_LIMIT) -> str:
    try:
        text = str(error)
    except Exception as broken:
        text = f"{_name(error)}, whose message can't be read ({_name(broken)})"
    return text if len(text) <= limit else "…" + text[1 - limit :]
