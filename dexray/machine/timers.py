"""Timers that a client has come before their time: a skipped Timer counts as fired.

A Timer is named by its condition id, or by its place among the Timers of its Step's wait. The timer of the Flow's
timeout is named by the Step execution that its handler would be; it can be skipped whatever the timeout's policy is.
"""

from __future__ import annotations

from dexray.machine import closing, conditions
from dexray.machine.events import TimerFired
from dexray.machine.state import TIMEOUT_HANDLER, WAITING, FlowState
from dexray.machine.turn import Turn

FLOW_TIMEOUT = f"{TIMEOUT_HANDLER}-1"


class NoSuchTimer(Exception):
    """Says what the Flow, the Step or its wait lacks."""


def find(state: FlowState, step_id: str, condition_id: str, position: int) -> int | None:
    """The place of a Timer among all conditions of the wait, None for that of the Flow's timeout.

    `condition_id` names it; with "" it is the one at `position` among the Timers. Raises NoSuchTimer.
    """
    if step_id == FLOW_TIMEOUT:
        if not state.timeout_at:
            raise NoSuchTimer("the Flow has no timeout")
        return None
    step = state.steps.get(step_id)
    if step is None:
        raise NoSuchTimer(f"there is no open Step execution {step_id}")
    if step.phase != WAITING or step.wait is None:
        raise NoSuchTimer(f"Step execution {step_id} does not wait: it is {step.phase} in {step.method}")
    timers = [(index, condition) for index, condition in enumerate(step.wait.conditions) if condition.kind == "timer"]
    for place, (index, condition) in enumerate(timers):
        if condition.condition_id == condition_id if condition_id else place == position:
            return index
    wanted = f"with the condition_id {condition_id!r}" if condition_id else f"at index {position}"
    raise NoSuchTimer(f"the wait of {step_id} has {len(timers)} Timers, and none {wanted}")


def skip(turn: Turn, step_id: str, index: int | None) -> None:
    """One that has fired already is left as it is."""
    if index is None:
        if turn.state.timeout_at and not turn.state.timed_out:
            closing.time_out(turn, skipped=True)
        return
    step = turn.state.steps.get(step_id)
    if step is not None and step.phase == WAITING and index not in step.fired:
        turn.emit(TimerFired(step.id, index, skipped=True))
        conditions.evaluate(turn, step)
