"""A Flow in words: which Steps are open, what each of them waits for and since when."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from dex.wire.service import FailureDescription, FlowDescription, StepDescription
from dexray.machine import subflows
from dexray.machine.state import BACKOFF, READY, RUNNING, Flow, Message, StepState
from dexray.protocol.attempts import ConditionSpec, WaitSpec
from dexray.protocol.subflows import subflow_id

MANY = 20
"""Conditions of one wait that are named one by one."""


def describe(flow: Flow, *, owner: str, problem: str, readable: Callable[[bytes], Any]) -> FlowDescription:
    state = flow.state
    return FlowDescription(
        flow_id=state.flow_id,
        run_id=state.run_id,
        flow_type=state.flow_type,
        status=state.status,
        started_at=state.started_at,
        closed_at=state.closed_at or None,
        error_type=state.error_type,
        error_message=state.error_message,
        steps=tuple(_step(flow, step, readable) for step in state.steps.values()),
        channels={name: len(queue) for name, queue in state.channels.items()},
        attributes={name: readable(value) for name, value in state.attributes.items()},
        owner=owner,
        problem=problem,
    )


def _step(flow: Flow, step: StepState, readable: Callable[[bytes], Any]) -> StepDescription:
    failure = step.last_failure
    return StepDescription(
        step_type=step.step_type,
        step_execution_id=step.id,
        from_step_execution_id=step.from_step,
        method=step.method,
        phase=step.phase,
        attempt=step.attempt,
        since=step.since,
        waits_for=waits_for(flow, step),
        retry_at=step.retry_at if step.phase == BACKOFF else None,
        last_failure=None
        if failure is None
        else FailureDescription(
            failure.error_type,
            failure.detail,
            failure.kind,
            failure.trace,
            failure.worker,
            failure.attempt,
            failure.at,
        ),
        has_heartbeat=step.has_heartbeat,
        heartbeat=readable(step.heartbeat) if step.heartbeat is not None else None,
    )


def waits_for(flow: Flow, step: StepState) -> str:
    """What has to happen next for this Step, in one phrase."""
    if step.phase == RUNNING:
        return f"attempt {step.attempt} of {step.method} to finish"
    if step.id in flow.index.blocked:
        return "a lock that an RPC holds" if flow.index.rpc_locks else "a lock that another Step holds"
    if step.phase == BACKOFF and step.id not in flow.index.ready:
        why = step.returned_because or "backoff"
        return f"attempt {step.attempt} of {step.method} at {_time(step.retry_at)} ({why})"
    if step.phase in (READY, BACKOFF):
        why = f" ({step.returned_because})" if step.returned_because else ""
        return f"a worker for {step.method}{why}"
    assert step.wait is not None
    return describe_wait(flow.state.flow_id, step.wait, step, flow.state.channels)


def describe_wait(flow_id: str, wait: WaitSpec, step: StepState, channels: Mapping[str, Sequence[Message]]) -> str:
    parts = [
        _condition(condition, step.due[index], index in step.fired, len(channels.get(condition.channel, ())))
        for index, condition in enumerate(wait.conditions)
    ]
    for index, number, spec in subflows.in_wait(wait):
        ended = " (ended)" if index in step.ended else ""
        parts[index] = f"SubFlow {subflow_id(flow_id, step.id, number)} of type {spec.flow_type}{ended}"
    if len(parts) > MANY and wait.kind != "any_combination_of":
        parts = [*parts[:MANY], f"{len(parts) - MANY} more ({len(step.ended)} SubFlows have ended)"]
    if wait.kind == "any_combination_of":
        return " or ".join("(" + " and ".join(parts[index] for index in group) + ")" for group in wait.combinations)
    return (" or " if wait.kind == "any_of" else " and ").join(parts)


def _condition(condition: ConditionSpec, due: float, fired: bool, there: int) -> str:
    if condition.kind == "timer":
        return f"Timer {'fired' if fired else 'until ' + _time(due)}"
    if condition.kind == "channel":
        low, high = condition.at_least, condition.at_most
        if low == high:
            count = f"{low}"
        elif high is None:
            count = f"at least {low}"
        else:
            count = f"{low} to {high}" if low else f"at most {high}"
        return f"{count} message{'' if count == '1' else 's'} on {condition.channel} (has {there})"
    return "a SubFlow"


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")
