"""Waits in the life of a Step: from the Wait that wait_for returned to the conditions that let execute begin."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from dexray.machine import waits
from dexray.machine.events import ConditionsMet, TimerFired, WaitStarted
from dexray.machine.state import WAITING, StepState
from dexray.machine.turn import Turn
from dexray.protocol.attempts import WaitSpec

FEW = 16


def begin(turn: Turn, step: StepState, wait: WaitSpec, locals_: dict[str, bytes]) -> None:
    """Timers run from the commit of the wait, which is now; SubFlows are started when it is durable."""
    due = tuple(turn.now + condition.duration if condition.kind == "timer" else 0.0 for condition in wait.conditions)
    turn.emit(WaitStarted(step.id, wait, due, locals_))
    if step.id in turn.flow.index.parents:
        turn.parents.append(step.id)


def evaluate(turn: Turn, step: StepState) -> None:
    """Ends the wait if a candidate is feasible now. Timers that are due count as fired, whichever event comes first."""
    wait = step.wait
    if step.phase != WAITING or wait is None:
        return
    for index, condition in enumerate(wait.conditions):
        if condition.kind == "timer" and index not in step.fired and step.due[index] <= turn.now:
            turn.emit(TimerFired(step.id, index))
    channels = turn.state.channels
    ready = step.fired | step.ended.keys() if step.ended else step.fired
    selection = waits.select(wait, ready=ready, size_of=lambda name: len(channels.get(name, ())))
    if selection is None:
        return
    consumed: list[tuple[int, tuple[str, ...]]] = []
    offset: dict[str, int] = {}
    for index, count in selection.takes:
        channel = wait.conditions[index].channel
        start = offset.get(channel, 0)
        queue = channels.get(channel, [])
        consumed.append((index, tuple(message.id for message in queue[start : start + count])))
        offset[channel] = start + count
    spec = turn.known_spec(step)
    durability = turn.durability(spec.execute if spec is not None else None)
    turn.emit(ConditionsMet(step.id, selection.winners, tuple(consumed), durability))


def evaluate_waiters(turn: Turn) -> None:
    """Looks at the Steps that wait on Channels that got messages, oldest first, until a Channel has nothing more to
    give."""
    while turn.dirty:
        channel = next(iter(turn.dirty))
        del turn.dirty[channel]
        for step_id in _oldest_first(turn.flow.index.waiters.get(channel, {})):
            if channel not in turn.state.channels:
                break
            step = turn.state.steps.get(step_id)
            if step is not None:
                evaluate(turn, step)


def _oldest_first(waiting: dict[str, None]) -> Iterator[str]:
    """Those that wait now; they may leave while they are looked at. A Channel is mostly empty after the first few: of
    ten thousand that wait for one message each, not all are listed for each message."""
    first = tuple(islice(waiting, FEW))
    yield from first
    looked_at = set(first)
    yield from [step_id for step_id in waiting if step_id not in looked_at]
