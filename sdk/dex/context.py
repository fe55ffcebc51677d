"""What a handler may know of its attempt, and do with it beyond its Channels and Attributes."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from typing import Any, Final, Protocol, TypeVar

T = TypeVar("T")


class Unset(Enum):
    """The absence of a value where None is one."""

    UNSET = "<no value>"


UNSET: Final = Unset.UNSET


class AttemptProgress(Enum):
    """How far the attempts of a failed method call came, at the furthest."""

    UNSPECIFIED = "UNSPECIFIED"
    """Not reported: treat it like NOT_COMPLETED."""
    NOT_STARTED = "NOT_STARTED"
    """No attempt can have run: the handler certainly did nothing."""
    NOT_COMPLETED = "NOT_COMPLETED"
    """An attempt may have run, none completed: look at the outside world before repeating an effect."""


@dataclass(frozen=True, slots=True)
class RecoveryErrorInfo:
    """The failure that led here, for a recovery Step or an execute after a failed wait_for.

    detail: the text of the last attempt's error. error_type: its qualified class name.
    """

    detail: str
    error_type: str
    attempt_progress: AttemptProgress = AttemptProgress.UNSPECIFIED


class Context(Protocol):
    """Given to every synchronous handler, good until it returns. Keep nothing of it."""

    @property
    def flow_id(self) -> str:
        """The ID that the Flow was started under."""
        ...

    @property
    def run_id(self) -> str:
        """The run; another one after a time travel or a new start under the same Flow ID."""
        ...

    @property
    def step_execution_id(self) -> str:
        """`<StepType>-<n>`. With the Flow ID it is the same in all attempts: an idempotency key for outside effects."""
        ...

    @property
    def from_step_execution_id(self) -> str:
        """The Step execution whose decision led here; a marker for the first Step and after an RPC."""
        ...

    @property
    def attempt(self) -> int:
        """1 for the first attempt, growing by one per retry."""
        ...

    @property
    def first_attempt_at(self) -> datetime:
        """When attempt 1 of this method was handed out (UTC, whole seconds); the same in all attempts."""
        ...

    @property
    def recovery_error(self) -> RecoveryErrorInfo | None:
        """The failure that led here; None when none did."""
        ...

    def has_last_heartbeat_value(self) -> bool:
        """Whether an earlier attempt left a checkpoint; None can be its value."""
        ...

    def get_last_heartbeat_value(self, value_type: type[T], /) -> T | None:
        """The last stored checkpoint of an earlier attempt, None without one. ValueMappingError when it has another
        type.
        """
        ...

    def has_timer_fired(self, index: int | None = None) -> bool:
        """Whether the Timer at `index` (counting the wait's Timers from 0) has fired; None: any. In execute only."""
        ...

    def wait_for_method_failed(self) -> bool:
        """Whether this execute runs because wait_for failed for good and its policy is PROCEED."""
        ...

    def is_cancellation_requested(self) -> bool:
        """Whether the handler should stop: its Step was cancelled, or its deadline has passed. Cheap, ask often."""
        ...

    def set_step_execution_local(self, key: str, value: Any) -> None:
        """Keeps a value for the execute of this same Step execution; committed with the method's result."""
        ...

    def get_step_execution_local(self, key: str, value_type: type[T], /) -> T | None:
        """What wait_for kept under `key`, None when nothing."""
        ...

    def record_event(self, name: str, value: Any) -> None:
        """Writes a value to the Flow's history with the method's result. ValueError for the same name twice."""
        ...


class AsyncContext(Context, Protocol):
    """Given to every asynchronous handler."""

    async def heartbeat(self, value: Any = UNSET) -> None:
        """Tells that the attempt is alive and keeps `value` as its checkpoint; without a value it clears the stored
        one.

        Returns once it is sent, which proves no storage: the next attempt gets the last one that arrived.
        """
        ...
