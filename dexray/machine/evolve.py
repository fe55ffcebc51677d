"""Applies an event to the state. Dumb on purpose: nothing here decides, so that an old journal means the same to new
code.

One function for each kind of event. What an event says has happened; if the state contradicts it, the journal is
damaged or the machine is wrong, and a KeyError or AssertionError stops the Flow rather than guess.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from dex.wire.service import Completion
from dex.wire.specs import EXECUTE
from dexray.machine import events as e
from dexray.machine.state import (
    BACKOFF,
    READY,
    RUNNING,
    TIMEOUT,
    WAITING,
    Flow,
    FlowState,
    Message,
    StepState,
    decode_checkpoint,
    forget_wait,
    index_wait,
    take_snapshot,
)
from dexray.protocol.attempts import ConditionResult
from dexray.protocol.subflows import RUNNING as RUNNING_SUBFLOW
from dexray.protocol.subflows import SubFlowResult, subflow_id


def evolve(flow: Flow, event: e.AnyEvent, at: float) -> None:
    """Applies one event that was recorded at time `at`."""
    _APPLY[type(event)](flow, event, at)
    flow.state.version += 1


def _flow_started(flow: Flow, event: e.FlowStarted, at: float) -> None:
    state = flow.state
    state.flow_id = event.flow_id
    state.run_id = event.run_id
    state.flow_type = event.flow_type
    state.request_id = event.request_id
    state.parent = event.parent
    state.started_at = at
    state.config = event.config
    state.attributes = dict(event.attributes)
    state.timeout = event.timeout
    state.timeout_policy = event.timeout_policy
    state.timeout_at = event.timeout_at
    state.timeout_handler = event.timeout_handler
    if event.timeout_at:
        heapq.heappush(flow.index.due, (event.timeout_at, "", TIMEOUT, 0))


def _step_scheduled(flow: Flow, event: e.StepScheduled, at: float) -> None:
    state = flow.state
    state.counters[event.step_type] = event.number
    state.steps[event.step] = StepState(
        id=event.step,
        step_type=event.step_type,
        number=event.number,
        from_step=event.from_step,
        input=event.input,
        override=event.override,
        recovery=event.recovery,
        method=event.method,
        phase=READY,
        since=at,
        durability=event.durability,
    )
    flow.make_ready(event.step)


def _attempt_started(flow: Flow, event: e.AttemptStarted, at: float) -> None:
    step = flow.state.steps[event.step]
    assert step.method == event.method
    assert step.attempt == event.attempt
    if step.snapshot is None:
        step.snapshot = take_snapshot(flow.state, event.load)
    if step.first_started_at == 0.0 or (event.attempt == 1 and step.returned_because):
        step.first_started_at = at
    step.phase = RUNNING
    step.since = at
    step.returned_because = ""
    step.deployment = event.deployment
    step.detached = event.detached
    if event.locks:
        step.locks = event.locks
        for lock in event.locks:
            flow.index.locks[lock] = step.id
    flow.index.ready.pop(step.id, None)
    flow.index.blocked.pop(step.id, None)


def _heartbeat_stored(flow: Flow, event: e.HeartbeatStored, at: float) -> None:
    step = flow.state.steps[event.step]
    step.has_heartbeat = event.has_value
    step.heartbeat = event.value


def _attempt_failed(flow: Flow, event: e.AttemptFailed, at: float) -> None:
    step = flow.state.steps[event.step]
    step.last_failure = event.failure
    step.may_have_run = step.may_have_run or event.failure.may_have_run
    release_locks(flow, step)
    if event.retry_at is not None:
        step.attempt += 1
        _back_off(flow, step, event.retry_at, at)


def _attempt_returned(flow: Flow, event: e.AttemptReturned, at: float) -> None:
    step = flow.state.steps[event.step]
    step.returned_because = event.reason
    _back_off(flow, step, event.again_at, at)


def _back_off(flow: Flow, step: StepState, until: float, at: float) -> None:
    step.phase = BACKOFF
    step.since = at
    step.retry_at = until
    heapq.heappush(flow.index.due, (until, step.id, "retry", step.attempt))


def release_locks(flow: Flow, step: StepState) -> None:
    """Steps that found a lock taken may try again, in the order in which they came."""
    if not step.locks:
        return
    for lock in step.locks:
        flow.index.locks.pop(lock, None)
    step.locks = ()
    flow.unblock()


def _attributes_written(flow: Flow, event: e.AttributesWritten, at: float) -> None:
    attributes = dict(flow.state.attributes)
    for name, value in event.attributes.items():
        if value is None:
            attributes.pop(name, None)
        else:
            attributes[name] = value
    flow.state.attributes = attributes
    flow.state.data_version += 1


def _message_published(flow: Flow, event: e.MessagePublished, at: float) -> None:
    flow.state.published += 1
    flow.state.data_version += 1
    message = Message(event.message_id, event.value, flow.state.published)
    flow.state.channels.setdefault(event.channel, []).append(message)


def _message_deleted(flow: Flow, event: e.MessageDeleted, at: float) -> None:
    _take(flow.state, event.channel, (event.message_id,))


def _take(state: FlowState, channel: str, message_ids: tuple[str, ...]) -> list[Message]:
    queue = state.channels[channel]
    count = len(message_ids)
    taken = queue[:count]
    if all(message.id == wanted for message, wanted in zip(taken, message_ids, strict=False)):
        rest = queue
        del rest[:count]  # in place: a queue of a hundred thousand is not copied for each message that is taken
    else:
        wanted_ids = set(message_ids)
        taken = [message for message in queue if message.id in wanted_ids]
        rest = [message for message in queue if message.id not in wanted_ids]
    assert len(taken) == count, f"{channel}: messages {message_ids} are not all there"
    state.data_version += 1
    if rest:
        state.channels[channel] = rest
    else:
        del state.channels[channel]
    return taken


def _event_recorded(flow: Flow, event: e.EventRecorded, at: float) -> None:
    """Of interest to the history alone."""


def _wait_started(flow: Flow, event: e.WaitStarted, at: float) -> None:
    step = flow.state.steps[event.step]
    step.wait = event.wait
    step.due = event.due
    step.locals = dict(event.locals)
    step.snapshot = None  # a wait may be long, and what wait_for saw is of no use to it
    step.phase = WAITING
    step.since = at
    release_locks(flow, step)
    index_wait(flow.index, step)


def _timer_fired(flow: Flow, event: e.TimerFired, at: float) -> None:
    flow.state.steps[event.step].fired.add(event.index)


def _subflow_ended(flow: Flow, event: e.SubFlowEnded, at: float) -> None:
    flow.state.steps[event.step].ended[event.index] = SubFlowResult(
        event.status, event.run_id, event.completions, event.error_type, event.error_message
    )
    flow.index.parents[event.step] -= 1


def _conditions_met(flow: Flow, event: e.ConditionsMet, at: float) -> None:
    step = flow.state.steps[event.step]
    assert step.wait is not None
    consumed = dict(event.consumed)
    results: list[ConditionResult] = []
    children = 0
    for index, condition in enumerate(step.wait.conditions):
        if condition.kind == "channel":
            messages: list[Message] = []
            if consumed.get(index):
                messages = _take(flow.state, condition.channel, consumed[index])
                step.consumed.extend((condition.channel, message) for message in messages)
            results.append(
                ConditionResult(
                    "channel",
                    condition.condition_id,
                    fired=index in event.winners,
                    channel=condition.channel,
                    messages=tuple(message.value for message in messages),
                )
            )
        elif condition.kind == "subflow":
            child = subflow_id(flow.state.flow_id, step.id, children)
            results.append(_subflow_result(condition.condition_id, child, step.ended.get(index)))
            if index not in step.ended and condition.subflow is not None:
                step.overtaken[children] = condition.subflow
            children += 1
        else:
            results.append(ConditionResult(condition.kind, condition.condition_id, fired=index in step.fired))
    step.conditions = tuple(results)
    forget_wait(flow.index, step)
    step.wait = None
    step.due = ()
    step.fired = set()
    step.ended = {}
    _begin_execute(flow, step, event.durability, at)


def _subflow_result(condition_id: str, child: str, result: SubFlowResult | None) -> ConditionResult:
    """What execute is told of a SubFlow; one that is not known to have ended gives a RUNNING snapshot."""
    if result is None:
        return ConditionResult("subflow", condition_id, subflow_id=child, subflow_status=RUNNING_SUBFLOW)
    return ConditionResult(
        "subflow",
        condition_id,
        fired=True,
        subflow_id=child,
        subflow_status=result.status,
        subflow_completions=tuple((done.step_type, done.step_execution_id, done.output) for done in result.completions),
        subflow_error_type=result.error_type,
        subflow_error_message=result.error_message,
    )


def _wait_for_abandoned(flow: Flow, event: e.WaitForAbandoned, at: float) -> None:
    step = flow.state.steps[event.step]
    step.recovery = event.recovery
    step.wait_for_failed = True
    _begin_execute(flow, step, event.durability, at)


def _begin_execute(flow: Flow, step: StepState, durability: str, at: float) -> None:
    step.method = EXECUTE
    step.phase = READY
    step.since = at
    step.attempt = 1
    step.durability = durability
    step.first_started_at = 0.0
    step.retry_at = 0.0
    step.returned_because = ""
    step.has_heartbeat = False
    step.heartbeat = None
    step.last_failure = None
    step.may_have_run = False
    step.snapshot = None
    flow.make_ready(step.id)


def _step_completed(flow: Flow, event: e.StepCompleted, at: float) -> None:
    step = flow.state.steps[event.step]
    if event.decision in ("graceful_complete", "force_complete"):
        flow.state.completing = True
        if event.output is not None:
            flow.state.completions.append(Completion(step.step_type, step.id, event.output))
    _remove(flow, step)


def _step_failed(flow: Flow, event: e.StepFailed, at: float) -> None:
    _remove(flow, flow.state.steps[event.step])


def _step_cancelled(flow: Flow, event: e.StepCancelled, at: float) -> None:
    step = flow.state.steps[event.step]
    for channel in event.returned:
        back = [message for name, message in step.consumed if name == channel]
        queue = back + flow.state.channels.get(channel, [])
        flow.state.channels[channel] = sorted(queue, key=lambda message: message.ordinal)
        flow.state.data_version += 1
    _remove(flow, step)


def _remove(flow: Flow, step: StepState) -> None:
    forget_wait(flow.index, step)
    release_locks(flow, step)
    flow.index.ready.pop(step.id, None)
    flow.index.blocked.pop(step.id, None)
    del flow.state.steps[step.id]


def _rpc_applied(flow: Flow, event: e.RpcApplied, at: float) -> None:
    """Of interest to the history alone: what the RPC did is in the events that follow."""


def _flow_timed_out(flow: Flow, event: e.FlowTimedOut, at: float) -> None:
    flow.state.timed_out = True


def _flow_closed(flow: Flow, event: e.FlowClosed, at: float) -> None:
    state = flow.state
    state.status = event.status
    state.error_type = event.error_type
    state.error_message = event.error_message
    state.closed_at = at
    if event.status != "COMPLETED":
        state.completions = []
    elif event.completion is not None:
        state.completions.append(event.completion)
    state.steps.clear()
    state.channels.clear()
    flow.fresh.clear()
    index = flow.index
    index.ready.clear()
    index.blocked.clear()
    index.locks.clear()
    index.waiters.clear()
    index.parents.clear()
    index.due.clear()


def _flow_config_updated(flow: Flow, event: e.FlowConfigUpdated, at: float) -> None:
    fields = {name: getattr(event.config, name) for name in event.config.__struct_fields__}
    given = {name: value for name, value in fields.items() if value is not None}
    flow.state.config = replace(flow.state.config, **given)


def _flow_forked(flow: Flow, event: e.FlowForked, at: float) -> None:
    past = decode_checkpoint(event.checkpoint)
    flow.state, flow.index, flow.fresh = past.state, past.index, past.fresh


_APPLY: dict[type, Callable[[Flow, Any, float], None]] = {
    e.FlowStarted: _flow_started,
    e.StepScheduled: _step_scheduled,
    e.AttemptStarted: _attempt_started,
    e.HeartbeatStored: _heartbeat_stored,
    e.AttemptFailed: _attempt_failed,
    e.AttemptReturned: _attempt_returned,
    e.AttributesWritten: _attributes_written,
    e.MessageDeleted: _message_deleted,
    e.MessagePublished: _message_published,
    e.EventRecorded: _event_recorded,
    e.WaitStarted: _wait_started,
    e.TimerFired: _timer_fired,
    e.SubFlowEnded: _subflow_ended,
    e.ConditionsMet: _conditions_met,
    e.WaitForAbandoned: _wait_for_abandoned,
    e.StepCompleted: _step_completed,
    e.StepFailed: _step_failed,
    e.StepCancelled: _step_cancelled,
    e.FlowTimedOut: _flow_timed_out,
    e.FlowClosed: _flow_closed,
    e.RpcApplied: _rpc_applied,
    e.FlowConfigUpdated: _flow_config_updated,
    e.FlowForked: _flow_forked,
}
