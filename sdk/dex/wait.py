"""Waits: what must happen before a Step's execute runs.

A condition is one thing to wait for: a Timer, messages of a Channel, the end of a SubFlow. A Wait combines
  conditions. Both are plain
values without a state. Whether a Wait can be committed (`wait_problem`) is judged when the handler has returned it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta
from enum import Enum
from typing import TYPE_CHECKING, Any

from dex.durations import whole_seconds

if TYPE_CHECKING:
    from dex.channel import Channel, ChannelMap
    from dex.flow import Flow
    from dex.subflow import SubFlowOptions


class WaitKind(Enum):
    SKIP_IMMEDIATELY = "skip_immediately"
    ALL_OF = "all_of"
    ANY_OF = "any_of"
    ANY_COMBINATION_OF = "any_combination_of"


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Condition:
    """One thing to wait for. Made by `Timer`, `Channel`, `ChannelMap` and `SubFlow`; `condition_id` names it within
    its Wait.
    """

    condition_id: str | None = None


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class TimerCondition(Condition):
    duration: timedelta


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class ChannelCondition(Condition):
    """At least `at_least` messages, taking at most `at_most` of them; None takes all that are there."""

    channel: Channel[Any] | ChannelMap[Any]
    instance: str | None
    at_least: int
    at_most: int | None


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class SubFlowCondition(Condition):
    flow: Flow[Any]
    input: Any
    options: SubFlowOptions | None


class Timer:
    """Durable timers. They are kept with the Flow: a restart of anything does not move them."""

    @staticmethod
    def by_duration(duration: timedelta, *, condition_id: str | None = None) -> Condition:
        """Fires `duration` after the wait was committed: whole seconds, 0 fires at once.

        Raises ValueError or TypeError for a duration that is negative, not whole seconds or above 2^31 − 1 s.
        """
        if duration is None:
            raise TypeError("Timer.by_duration(duration) needs a timedelta, got None")
        whole_seconds("Timer.by_duration(duration)", duration)
        return TimerCondition(duration=duration, condition_id=condition_id)


@dataclass(frozen=True, slots=True, eq=False)
class ConditionCombination:
    """A group of `Wait.any_combination_of`: met when all its conditions are."""

    conditions: tuple[Condition, ...]

    @staticmethod
    def of(*conditions: Condition) -> ConditionCombination:
        """A group of conditions, at least one; each has a condition_id. Raises ValueError without one."""
        return ConditionCombination(_checked("ConditionCombination.of", conditions))


@dataclass(frozen=True, slots=True, eq=False)
class Wait:
    """What wait_for returns.

        return Wait.any_of(approval.for_one(), Timer.by_duration(timedelta(hours=1)))

    Of several conditions that are ready at once in any_of, the first wins: Timers, then Channels, then SubFlows, each
    in the order of declaration. Messages are taken by the winning conditions only.
    """

    kind: WaitKind
    conditions: tuple[Condition, ...] = ()
    combinations: tuple[ConditionCombination, ...] = ()

    @staticmethod
    def skip_immediately() -> Wait:
        """Waits for nothing: execute follows at once."""
        return Wait(WaitKind.SKIP_IMMEDIATELY)

    @staticmethod
    def until(condition: Condition) -> Wait:
        """Waits for one condition."""
        return Wait(WaitKind.ALL_OF, _checked("Wait.until", (condition,)))

    @staticmethod
    def all_of(*conditions: Condition) -> Wait:
        """Waits for all conditions."""
        return Wait(WaitKind.ALL_OF, _checked("Wait.all_of", conditions))

    @staticmethod
    def any_of(*conditions: Condition) -> Wait:
        """Waits for any one condition."""
        return Wait(WaitKind.ANY_OF, _checked("Wait.any_of", conditions))

    @staticmethod
    def any_combination_of(*combinations: ConditionCombination) -> Wait:
        """Waits until all conditions of any one group are met. Each condition needs a condition_id of its own.

        A condition object may stand in several groups. Its id is then its own still. Raises ValueError without a group.
        """
        for combination in combinations:
            if not isinstance(combination, ConditionCombination):
                raise TypeError(
                    f"Wait.any_combination_of takes ConditionCombination.of(...), got {type(combination).__name__}"
                )
        if not combinations:
            raise ValueError("Wait.any_combination_of needs at least one ConditionCombination")
        shared: dict[int, Condition] = {}
        for combination in combinations:
            shared.update((id(condition), condition) for condition in combination.conditions)
        return Wait(WaitKind.ANY_COMBINATION_OF, tuple(shared.values()), combinations)


def wait_problem(wait: Wait) -> str | None:
    """Why this Wait can't be committed, None when it can: the rules of condition ids."""
    seen: set[str] = set()
    needs_ids = wait.kind is WaitKind.ANY_COMBINATION_OF
    for index, condition in enumerate(wait.conditions):
        name: object = condition.condition_id
        if name is None:
            if needs_ids:
                return (
                    f"condition {index} of any_combination_of has no condition_id: "
                    "give each condition one of its own (condition_id=…)"
                )
            continue
        if not isinstance(name, str):
            return f"condition_id must be a str, got {type(name).__name__}: {name!r}"
        if not name:
            return f"condition {index} has an empty condition_id: leave it out, or give it a text"
        if name in seen:
            return f"condition_id {name!r} stands for two conditions: ids are unique in a Wait"
        seen.add(name)
    return None


def _checked(what: str, conditions: Iterable[Condition]) -> tuple[Condition, ...]:
    checked = tuple(conditions)
    if not checked:
        raise ValueError(f"{what} needs at least one condition; Wait.skip_immediately() waits for none")
    for condition in checked:
        if not isinstance(condition, Condition):
            raise TypeError(
                f"{what} takes conditions such as channel.for_one() or Timer.by_duration(...), "
                f"got {type(condition).__name__}: {condition!r}"
            )
    return checked
