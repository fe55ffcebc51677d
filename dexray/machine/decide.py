"""A command meets a Flow at a time: what comes of it.

`decide` is the only door. It applies what it emits, settles what follows (waits that new messages satisfy, completion
when the last branch has stopped), checks the invariants, and returns the turn.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Any

from dex.wire.specs import WAIT_FOR, FlowSpec
from dexray.machine import closing, commands, conditions, invariants, rpcs, steps, subflows, timers, timetravel
from dexray.machine.events import AttributesWritten, FlowConfigUpdated, FlowStarted, MessagePublished
from dexray.machine.state import BACKOFF, START, TIMEOUT, WAITING, Flow
from dexray.machine.turn import Turn
from dexray.protocol.attempts import AttemptFailed, AttemptReturned, ExecuteSucceeded, WaitForSucceeded


def decide(flow: Flow, command: commands.Command, spec: FlowSpec | None, now: float) -> Turn:
    """Decides and applies one command. After an exception the Flow is unusable: load it anew.

    Raises UnknownStep when the deployed code lacks a Step that must be scheduled, InvariantViolated when the machine
    is at fault.
    """
    turn = Turn(flow, spec, now)
    if flow.is_closed:
        return turn
    _DECIDE[type(command)](turn, command)
    settle(turn)
    if turn.events:
        invariants.check(flow)
    return turn


def settle(turn: Turn) -> None:
    if turn.flow.is_closed:
        return
    if turn.dirty:
        conditions.evaluate_waiters(turn)
    closing.complete_if_done(turn)


def _start(turn: Turn, command: commands.Start) -> None:
    turn.emit(
        FlowStarted(
            command.flow_id,
            command.run_id,
            command.flow_type,
            command.request_id,
            command.input,
            command.attributes,
            command.config,
            command.timeout,
            command.timeout_policy,
            turn.now + command.timeout if command.timeout else 0.0,
            command.timeout_handler,
            command.replaces,
            command.parent,
        )
    )
    if turn.spec is not None and turn.spec.start_step is not None:
        steps.schedule(turn, turn.spec.start_step, command.input, from_step=START)


def _publish(turn: Turn, command: commands.Publish) -> None:
    for message_id, value in command.messages:
        turn.emit(MessagePublished(command.channel, message_id, value, ""))
    turn.dirty[command.channel] = None


def _set_attribute(turn: Turn, command: commands.SetAttribute) -> None:
    turn.emit(AttributesWritten({command.name: command.value}, ""))


def _stop(turn: Turn, command: commands.Stop) -> None:
    closing.stop(turn, command.stop_type, command.reason)


def _end_subflow(turn: Turn, command: commands.EndSubFlow) -> None:
    subflows.end(turn, command)


def _apply_rpc(turn: Turn, command: commands.ApplyRpc) -> None:
    rpcs.apply(turn, command)


def _skip_timer(turn: Turn, command: commands.SkipTimer) -> None:
    timers.skip(turn, command.step, command.index)


def _update_config(turn: Turn, command: commands.UpdateConfig) -> None:
    if any(
        (value := getattr(command.config, name)) is not None and value != getattr(turn.state.config, name)
        for name in command.config.__struct_fields__
    ):
        turn.emit(FlowConfigUpdated(command.config))


def _fork(turn: Turn, command: commands.Fork) -> None:
    """What was written from outside comes one by one, as it did: the waits that each of them satisfies take theirs."""
    timetravel.begin(turn, command)
    for write in command.writes or ():
        if not turn.flow.is_closed:
            _DECIDE[type(write)](turn, write)
            settle(turn)


def _hand_out(turn: Turn, command: commands.HandOut) -> None:
    steps.hand_out(turn, command.step, command.deployment)


def _store_heartbeat(turn: Turn, command: commands.StoreHeartbeat) -> None:
    steps.store_heartbeat(turn, command.key, command.heartbeat)


def _finish_attempt(turn: Turn, command: commands.FinishAttempt) -> None:
    step = steps.running(turn, command.key)
    if step is None:
        return
    match command.result:
        case WaitForSucceeded() if step.method == WAIT_FOR:
            steps.wait_for_succeeded(turn, step, command.result)
        case ExecuteSucceeded() if step.method != WAIT_FOR:
            steps.execute_succeeded(turn, step, command.result)
        case WaitForSucceeded() | ExecuteSucceeded():
            steps.attempt_failed(turn, step, steps.misplaced(step, command.result))
        case AttemptFailed():
            steps.attempt_failed(turn, step, command.result)
        case AttemptReturned():
            steps.attempt_returned(turn, step, command.result, command.again_at)


def _due(turn: Turn, command: commands.Due) -> None:
    index = turn.flow.index
    while index.due and index.due[0][0] <= turn.now and not turn.flow.is_closed:
        _, step_id, kind, number = heapq.heappop(index.due)
        if kind == TIMEOUT:
            if not turn.state.timed_out:
                closing.time_out(turn)
            continue
        step = turn.state.steps.get(step_id)
        if step is None:
            continue
        if kind == "timer" and step.phase == WAITING and number not in step.fired:
            conditions.evaluate(turn, step)
        elif kind == "retry" and step.phase == BACKOFF and step.attempt == number and step.retry_at <= turn.now:
            turn.flow.make_ready(step_id)


def _interrupt(turn: Turn, command: commands.Interrupt) -> None:
    steps.interrupt(turn, command.but)


_DECIDE: dict[type, Callable[[Turn, Any], None]] = {
    commands.Start: _start,
    commands.Publish: _publish,
    commands.SetAttribute: _set_attribute,
    commands.Stop: _stop,
    commands.EndSubFlow: _end_subflow,
    commands.ApplyRpc: _apply_rpc,
    commands.SkipTimer: _skip_timer,
    commands.UpdateConfig: _update_config,
    commands.Fork: _fork,
    commands.HandOut: _hand_out,
    commands.StoreHeartbeat: _store_heartbeat,
    commands.FinishAttempt: _finish_attempt,
    commands.Due: _due,
    commands.Interrupt: _interrupt,
}
