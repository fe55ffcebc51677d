"""Which conditions of a wait win, and what each of them takes.

A wait has candidates, tried in order; the first feasible one wins, and only its Channel conditions consume anything.
- all_of (and until): one candidate, all the conditions.
- any_of: one candidate a condition; Timers first, then Channels, then SubFlows, each kind in the order of
  declaration.
- any_combination_of: the combinations, in the order of declaration.

A candidate is feasible when its Timers have fired, its SubFlows have ended, and its Channel conditions can all have
their minimum at the same time: conditions on one Channel compete, so a group can be infeasible although each of its
conditions alone is ready. When the minima are reserved, each condition is extended towards its maximum, in the order
of declaration.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Set
from dataclasses import dataclass

from dexray.protocol.attempts import ConditionSpec, WaitSpec

_CANONICAL = ("timer", "channel", "subflow")


@dataclass(frozen=True, slots=True)
class Selection:
    """The winning conditions, and how many messages each of the winning Channel conditions takes."""

    winners: tuple[int, ...]
    takes: tuple[tuple[int, int], ...]


def candidates(wait: WaitSpec) -> Iterator[tuple[int, ...]]:
    if wait.kind == "any_of":
        for kind in _CANONICAL:
            for index, condition in enumerate(wait.conditions):
                if condition.kind == kind:
                    yield (index,)
    elif wait.kind == "any_combination_of":
        yield from wait.combinations
    else:
        yield tuple(range(len(wait.conditions)))


def select(wait: WaitSpec, *, ready: Set[int], size_of: Callable[[str], int]) -> Selection | None:
    """The winning candidate, or None while there is none. `ready`: Timers that fired, SubFlows that ended."""
    for candidate in candidates(wait):
        takes = _feasible(candidate, wait.conditions, ready, size_of)
        if takes is not None:
            return Selection(candidate, takes)
    return None


def _feasible(
    candidate: tuple[int, ...],
    conditions: tuple[ConditionSpec, ...],
    ready: Set[int],
    size_of: Callable[[str], int],
) -> tuple[tuple[int, int], ...] | None:
    left: dict[str, int] = {}
    takes: dict[int, int] = {}
    for index in candidate:
        condition = conditions[index]
        if condition.kind != "channel":
            if index not in ready:
                return None
            continue
        available = left.get(condition.channel)
        if available is None:
            available = size_of(condition.channel)
        if available < condition.at_least:
            return None
        left[condition.channel] = available - condition.at_least
        takes[index] = condition.at_least
    for index in sorted(takes):
        condition = conditions[index]
        room = left[condition.channel]
        extra = room if condition.at_most is None else min(room, condition.at_most - condition.at_least)
        left[condition.channel] = room - extra
        takes[index] += extra
    return tuple(sorted(takes.items()))
