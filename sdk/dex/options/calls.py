"""Options of client calls: stopping, time travel, waiting for a Step or an Attribute, invoking an RPC."""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import Enum
from typing import TYPE_CHECKING, Any

from dex.names import RESERVED_IN_STEP_TYPES, TIMEOUT_HANDLER, check_type_name
from dex.step import Step, step_type_of

if TYPE_CHECKING:
    from dex.attribute import AttributeLock, AttributeMapLoad
    from dex.channel import ChannelMapLoad


class StopType(Enum):
    """CANCEL: cooperative, ends CANCELED. TERMINATE: at once, ends TERMINATED. FAIL: ends FAILED with the reason."""

    CANCEL = "CANCEL"
    TERMINATE = "TERMINATE"
    FAIL = "FAIL"


@dataclass(frozen=True, slots=True)
class StopFlowOptions:
    """How a Flow is stopped. type: cooperatively by default. reason: kept with the run; with FAIL it is the error
    message.
    """

    type: StopType = StopType.CANCEL
    reason: str | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.type, StopType):
            raise TypeError(f"StopFlowOptions(type=…) takes a StopType, got {self.type!r}")
        if self.reason is not None and not isinstance(self.reason, str):
            raise TypeError(f"StopFlowOptions(reason=…) takes a str, got {self.reason!r}")


class TimeTravelType(Enum):
    """From where a new run goes on. BEGINNING: the start. HISTORY_EVENT_TIME: the first event at or after a time.
    STEP_TYPE: the first execution of a Step. STEP_EXECUTION_ID: one method of one Step execution.
    """

    BEGINNING = "BEGINNING"
    HISTORY_EVENT_TIME = "HISTORY_EVENT_TIME"
    STEP_TYPE = "STEP_TYPE"
    STEP_EXECUTION_ID = "STEP_EXECUTION_ID"


class TimeTravelStepMethod(Enum):
    """Which method of the Step execution is the first to run again. WAIT_FOR: its wait begins anew. EXECUTE: the wait
    is over as it was, with the messages that it took.
    """

    WAIT_FOR = "WAIT_FOR"
    EXECUTE = "EXECUTE"


@dataclass(frozen=True, slots=True, init=False)
class StepExecutionId:
    """Names one execution of a Step: the `number`-th of its type in the run, from 1. Its text is `Type-1`.

    The Step may be given by its type, an instance or a class; `step_type` holds its type. "sys:timeout_handler" is the
    type of a Flow's timeout handler.
    """

    step_type: str
    number: int

    def __init__(self, step_type: str | type[Step[Any]] | Step[Any], number: int = 1) -> None:
        name = step_type_of(step_type)
        if name != TIMEOUT_HANDLER:
            check_type_name("Step", name, RESERVED_IN_STEP_TYPES)
        if type(number) is not int or number < 1:
            raise ValueError(f"StepExecutionId({name!r}, number) counts from 1, got {number!r}")
        object.__setattr__(self, "step_type", name)
        object.__setattr__(self, "number", number)

    def __str__(self) -> str:
        return f"{self.step_type}-{self.number}"


@dataclass(frozen=True, slots=True)
class TimeTravelOptions:
    """Where a new run of a Flow begins anew.

    type: what kind of point it is. history_event_time (aware), step_type, step_execution_id, step_method: what the type
    needs, and no more: HISTORY_EVENT_TIME the first, STEP_TYPE the second, STEP_EXECUTION_ID the last two.
    skip_writes_reapply: leave out what came from outside after that point. reason: kept with the new run.
    Raises ValueError when what the type needs is missing, or something else is given.
    """

    type: TimeTravelType
    history_event_time: datetime | None = None
    step_type: str | None = None
    step_execution_id: StepExecutionId | str | None = None
    step_method: TimeTravelStepMethod | None = None
    reason: str | None = None
    skip_writes_reapply: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.type, TimeTravelType):
            raise TypeError(f"TimeTravelOptions(type=…) takes a TimeTravelType, got {self.type!r}")
        needed = _TIME_TRAVEL_NEEDS[self.type]
        for name in ("history_event_time", "step_type", "step_execution_id", "step_method"):
            is_given = getattr(self, name) is not None
            if is_given != (name in needed):
                word = "does not take" if is_given else "needs"
                raise ValueError(f"TimeTravelOptions: {self.type.name} {word} {name}")
        if self.history_event_time is not None and self.history_event_time.tzinfo is None:
            raise ValueError(
                f"TimeTravelOptions: history_event_time needs a time zone, got {self.history_event_time!r}"
            )


_TIME_TRAVEL_NEEDS: dict[TimeTravelType, tuple[str, ...]] = {
    TimeTravelType.BEGINNING: (),
    TimeTravelType.HISTORY_EVENT_TIME: ("history_event_time",),
    TimeTravelType.STEP_TYPE: ("step_type",),
    TimeTravelType.STEP_EXECUTION_ID: ("step_execution_id", "step_method"),
}


@dataclass(frozen=True, slots=True)
class TimerId:
    """Names a Timer of a waiting Step: by its condition_id, or by its position among the Timers of the wait."""

    condition_id: str | None = None
    condition_index: int | None = None

    def __post_init__(self) -> None:
        if (self.condition_id is None) == (self.condition_index is None):
            raise ValueError("TimerId needs exactly one selector: by_condition_id(id) or by_condition_index(i)")
        if self.condition_id == "":
            raise ValueError("TimerId.by_condition_id(id): the id must not be empty")
        index = self.condition_index
        if index is not None and (type(index) is not int or index < 0):
            raise ValueError(f"TimerId.by_condition_index(i) counts from 0, got {index!r}")

    @staticmethod
    def by_condition_id(condition_id: str) -> TimerId:
        """The Timer with this condition_id. Raises ValueError for an empty one."""
        return TimerId(condition_id=condition_id)

    @staticmethod
    def by_condition_index(condition_index: int) -> TimerId:
        """The Timer at this place among the Timers of the wait, from 0. Raises ValueError for a negative one."""
        return TimerId(condition_index=condition_index)


class MatchOperator(Enum):
    EQUAL_TO = "=="
    NOT_EQUAL_TO = "!="
    GREATER_THAN = ">"
    GREATER_THAN_OR_EQUAL = ">="
    LESS_THAN = "<"
    LESS_THAN_OR_EQUAL = "<="


@dataclass(frozen=True, slots=True)
class AttributeMatch:
    """What an Attribute's value must satisfy; a missing one satisfies nothing.

    Texts and bools are compared for equality only; ints and finite floats by all six. Raises ValueError for anything
    else.
    """

    operator: MatchOperator
    operand: str | bool | int | float

    def __post_init__(self) -> None:
        kind = type(self.operand)
        if kind not in (str, bool, int, float):
            raise ValueError(
                f"AttributeMatch compares with a str, bool, int or float, got {kind.__name__}: {self.operand!r}"
            )
        if isinstance(self.operand, float) and not math.isfinite(self.operand):
            raise ValueError(f"AttributeMatch compares with finite numbers, got {self.operand!r}")
        only_equality = self.operator in (MatchOperator.EQUAL_TO, MatchOperator.NOT_EQUAL_TO)
        if kind in (str, bool) and not only_equality:
            raise ValueError(
                f"AttributeMatch: a {kind.__name__} has no order: "
                f"use equal_to or not_equal_to, not {self.operator.name}"
            )

    def __str__(self) -> str:
        return f"{self.operator.value}{self.operand!r}"

    @staticmethod
    def equal_to(operand: str | bool | int | float) -> AttributeMatch:
        """The value is equal to the operand."""
        return AttributeMatch(MatchOperator.EQUAL_TO, operand)

    @staticmethod
    def not_equal_to(operand: str | bool | int | float) -> AttributeMatch:
        """The value is there and not equal to the operand."""
        return AttributeMatch(MatchOperator.NOT_EQUAL_TO, operand)

    @staticmethod
    def greater_than(operand: int | float) -> AttributeMatch:
        """The value is greater."""
        return AttributeMatch(MatchOperator.GREATER_THAN, operand)

    @staticmethod
    def greater_than_or_equal(operand: int | float) -> AttributeMatch:
        """The value is greater or equal."""
        return AttributeMatch(MatchOperator.GREATER_THAN_OR_EQUAL, operand)

    @staticmethod
    def less_than(operand: int | float) -> AttributeMatch:
        """The value is less."""
        return AttributeMatch(MatchOperator.LESS_THAN, operand)

    @staticmethod
    def less_than_or_equal(operand: int | float) -> AttributeMatch:
        """The value is less or equal."""
        return AttributeMatch(MatchOperator.LESS_THAN_OR_EQUAL, operand)


@dataclass(frozen=True, slots=True)
class WaitForStepCompletionOptions:
    """How a client waits for a Step execution.

    request_id: calls under the same one are one wait; "" is derived from what is waited for.

    request_timeout: of the call; zero has no limit. internal_handler_timeout: of the wait itself, counted from the
    first call under its request_id; zero has no limit.
    """

    request_id: str = ""
    request_timeout: timedelta = timedelta(0)
    internal_handler_timeout: timedelta = timedelta(0)


@dataclass(frozen=True, slots=True)
class WaitForAttributeOptions:
    """How a client waits for an Attribute.

    request_id: calls under the same one are one wait; "" is derived from what is waited for.

    request_timeout: of the call; zero has no limit. internal_handler_timeout: of the wait itself, counted from the
    first call under its request_id; zero has no limit.
    """

    request_id: str = ""
    request_timeout: timedelta = timedelta(0)
    internal_handler_timeout: timedelta = timedelta(0)


@dataclass(frozen=True, slots=True)
class RPCInvokeOptions:
    """Map instances known only to the caller, in addition to what the RPC's decorator selects.

    lock_attribute_map_instances: locks that are held too. load_attribute_map_instances, load_channel_map_instances:
    what the handler may read besides.
    """

    lock_attribute_map_instances: tuple[AttributeLock, ...] = ()
    load_attribute_map_instances: tuple[AttributeMapLoad, ...] = ()
    load_channel_map_instances: tuple[ChannelMapLoad, ...] = ()
