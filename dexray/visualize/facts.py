"""What was found in the source of one handler."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from dexray.visualize.source import Where
from dexray.visualize.values import Values, same


class Doing(StrEnum):
    """What is done with a definition; equal to its text."""

    READ_VALUE = "get"
    READ_MESSAGES = "pending_messages"
    READ_RESULTS = "results"
    WAIT = "wait"
    PUBLISH = "publish"
    WRITE = "write"
    OTHER = "other"


@dataclass(frozen=True, slots=True, eq=False)
class Use:
    """A definition is used. `instance`: of a map, the key. text: the call. caught: the classes of exceptions that
    stand around it. is_sure: the very definition and the Context of the handler, on a way that can be taken.
    """

    doing: Doing
    definition: Any
    instance: Values | None
    text: str
    expression: str
    where: Where
    is_sure: bool
    caught: tuple[type, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class ResultRead:
    """What a wait gave is read, otherwise than by a Channel: of a Timer or a SubFlow."""

    text: str
    where: Where
    is_sure: bool
    caught: tuple[type, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Movement:
    """A movement to a Step. options: what it may give, None for none, UNKNOWN when that can't be told."""

    step: Any
    options: Values | None
    text: str
    where: Where
    is_sure: bool


@dataclass(frozen=True, slots=True, eq=False)
class Cancel:
    """A decision cancels executions of a Step."""

    step: Any
    text: str
    where: Where
    is_sure: bool


@dataclass(frozen=True, slots=True)
class Condition:
    """One thing that is waited for: messages (`operation` as it is written), a Timer, or a SubFlow."""

    channel: str = ""
    operation: str = ""
    seconds: float | None = None
    subflow: str | None = None
    kind: str = "channel"


@dataclass(slots=True)
class Facts:
    """All of one handler, helpers included.

    unseen_targets: it moves to Steps that can't be told, without options. unseen_movements: it may make movements of
    which nothing is known, options included.
    """

    where: Where
    uses: list[Use] = field(default_factory=list)
    result_reads: list[ResultRead] = field(default_factory=list)
    movements: list[Movement] = field(default_factory=list)
    cancels: list[Cancel] = field(default_factory=list)
    waits: dict[str, None] = field(default_factory=dict)
    conditions: dict[Condition, None] = field(default_factory=dict)
    decisions: dict[str, None] = field(default_factory=dict)
    unseen_targets: bool = False
    unseen_movements: bool = False
    is_readable: bool = True

    def add_use(self, use: Use) -> None:
        if not any(_same_use(use, known) for known in self.uses):
            self.uses.append(use)

    def add_result_read(self, read: ResultRead) -> None:
        if not any((known.where, known.is_sure) == (read.where, read.is_sure) for known in self.result_reads):
            self.result_reads.append(read)

    def add_movement(self, movement: Movement) -> None:
        if not any(_same_movement(movement, known) for known in self.movements):
            self.movements.append(movement)

    def add_cancel(self, cancel: Cancel) -> None:
        if not any(known.step is cancel.step and known.where == cancel.where for known in self.cancels):
            self.cancels.append(cancel)


def _same_use(one: Use, other: Use) -> bool:
    return (
        (one.doing, one.where, one.is_sure, one.caught) == (other.doing, other.where, other.is_sure, other.caught)
        and one.definition is other.definition
        and _same_values(one.instance, other.instance)
    )


def _same_movement(one: Movement, other: Movement) -> bool:
    return (
        (one.where, one.is_sure) == (other.where, other.is_sure)
        and one.step is other.step
        and _same_values(one.options, other.options)
    )


def _same_values(one: Values | None, other: Values | None) -> bool:
    if one is None or other is None:
        return one is other
    return (
        one.is_open == other.is_open
        and len(one.known) == len(other.known)
        and all(same(a, b) for a, b in zip(one.known, other.known, strict=True))
    )
