"""The children of a Step execution: which ones its wait asked for, and what becomes of them.

    the wait          the child
    ---------------   ------------------------------------------------------------------------------------------------
    is open           is to be started, and its end to be told (`EndSubFlow`): the owner sees to both, and tries again
    was met by it     its result is with the Step, for execute to read
    was met without   is to be started all the same, since the wait was committed; execute reads a RUNNING snapshot, and
                      its end is of no interest any more
    is gone           is its own: neither the end of the Step nor that of the parent stops it

The numbers of the children count the SubFlow conditions of the wait, in order of declaration.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from dexray.machine.commands import EndSubFlow
from dexray.machine.conditions import evaluate
from dexray.machine.events import SubFlowEnded
from dexray.machine.state import WAITING, StepState
from dexray.machine.turn import Turn
from dexray.protocol.attempts import WaitSpec
from dexray.protocol.subflows import SubFlowSpec, subflow_id


@dataclass(frozen=True, slots=True)
class Wanted:
    """A child that is to be there: the `number`-th SubFlow of the wait. `index` is the place of its condition where its
    end is waited for, else None."""

    number: int
    spec: SubFlowSpec
    index: int | None


def in_wait(wait: WaitSpec) -> Iterator[tuple[int, int, SubFlowSpec]]:
    """Of each SubFlow condition: its index among all conditions, its number, and what it asks for."""
    number = 0
    for index, condition in enumerate(wait.conditions):
        if condition.kind == "subflow":
            if condition.subflow is not None:
                yield index, number, condition.subflow
            number += 1


def wanted(step: StepState) -> list[Wanted]:
    """The children that an owner of this Step has to see to."""
    if step.phase == WAITING and step.wait is not None:
        return [Wanted(number, spec, index) for index, number, spec in in_wait(step.wait) if index not in step.ended]
    return [Wanted(number, spec, None) for number, spec in step.overtaken.items()]


def end(turn: Turn, command: EndSubFlow) -> None:
    step = turn.state.steps.get(command.step)
    if step is None or step.phase != WAITING or step.wait is None or command.index in step.ended:
        return
    if step.wait.conditions[command.index].kind != "subflow":
        return
    result = command.result
    turn.emit(
        SubFlowEnded(
            step.id,
            command.index,
            subflow_id(turn.state.flow_id, step.id, command.number),
            result.status,
            result.completions,
            result.error_type,
            result.error_message,
            result.run_id,
        )
    )
    # A wait for very many is not looked at in full each time that one of them ends.
    if step.wait.kind != "all_of" or not turn.flow.index.parents[step.id]:
        evaluate(turn, step)
