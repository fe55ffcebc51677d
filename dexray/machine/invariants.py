"""What is always true of a Flow. Checked after every command, in production too; the costly half only in tests.

A violated invariant is a fault of dexray, never of a user: the owner parks the Flow with this evidence and lets the
others go on.
"""

from __future__ import annotations

from dexray.machine.state import BACKOFF, METHODS, READY, RUNNING, RUNNING_FLOW, WAITING, Flow

_PHASES = (READY, RUNNING, BACKOFF, WAITING)


class InvariantViolated(Exception):
    """Names the invariant, the Flow and what was found."""


def _require(holds: bool, flow: Flow, what: str) -> None:
    if not holds:
        raise InvariantViolated(f"Flow {flow.state.flow_id!r} run {flow.state.run_id}: {what}")


def check(flow: Flow) -> None:
    """The cheap ones: constant time, or linear in what has no cost to look at."""
    state = flow.state
    closed = state.status != RUNNING_FLOW
    _require(not (closed and state.steps), flow, "a closed Flow has open Steps")
    _require(not (closed and state.channels), flow, "a closed Flow has messages")
    _require(
        closed or not state.completing or bool(state.steps),
        flow,
        "completion was asked for and no Step is open",
    )
    _require(state.status == "COMPLETED" or not closed or not state.completions, flow, "failed with completions")


def check_all(flow: Flow) -> None:
    """Every invariant, Step by Step and Channel by Channel."""
    check(flow)
    state, index = flow.state, flow.index
    for name, queue in state.channels.items():
        _require(bool(queue), flow, f"Channel {name} is kept although empty")
        ordinals = [message.ordinal for message in queue]
        _require(ordinals == sorted(set(ordinals)), flow, f"Channel {name} is out of order: {ordinals}")
    held: dict[str, str] = {}
    for step_id, step in state.steps.items():
        _require(
            step_id == step.id == f"{step.step_type}-{step.number}",
            flow,
            f"{step_id} has the identity {step.id}",
        )
        _require(step.number <= state.counters.get(step.step_type, 0), flow, f"{step_id} was never counted")
        _require(step.phase in _PHASES and step.method in METHODS, flow, f"{step_id}: {step.method} {step.phase}")
        _require(
            (step.phase == WAITING) == (step.wait is not None),
            flow,
            f"{step_id}: {step.phase} and its wait disagree",
        )
        _require(
            (step.phase == WAITING) == (step_id in index.waiting),
            flow,
            f"{step_id} is {step.phase}, and {'among' if step_id in index.waiting else 'not among'} those in a wait",
        )
        _require(not step.ended or step.phase == WAITING, flow, f"{step_id}: {step.phase}, with SubFlows that ended")
        _require(step.attempt >= 1, flow, f"{step_id} has attempt {step.attempt}")
        _require(
            (step.phase == READY) == (step.id in index.ready or step.id in index.blocked)
            or (step.phase == BACKOFF and (step.id in index.ready or step.id in index.blocked)),
            flow,
            f"{step_id} is {step.phase}, and {'among' if step.id in index.ready else 'not among'} those to hand out",
        )
        _require(
            not step.locks or step.phase == RUNNING or bool(step.returned_because),
            flow,
            f"{step_id} holds locks while {step.phase}",
        )
        _require(
            not step.consumed or step.method == "execute",
            flow,
            f"{step_id} consumed messages in {step.method}",
        )
        for lock in step.locks:
            _require(lock not in held, flow, f"{lock} is locked by {held.get(lock)} and {step_id}")
            held[lock] = step_id
        if step.phase == WAITING and step.wait is not None:
            children = sum(condition.kind == "subflow" for condition in step.wait.conditions)
            _require(
                index.parents.get(step_id) == (children - len(step.ended) if children else None),
                flow,
                f"{step_id} waits for SubFlows: {children}, ended {len(step.ended)}, known {index.parents}",
            )
            _require(
                all(step.wait.conditions[ended].kind == "subflow" for ended in step.ended),
                flow,
                f"{step_id}: conditions {sorted(step.ended)} are SubFlows that have ended",
            )
            for condition in step.wait.conditions:
                if condition.kind == "channel":
                    _require(
                        step_id in index.waiters.get(condition.channel, ()),
                        flow,
                        f"{step_id} is not among the waiters",
                    )
    for step_id in index.parents:
        known = state.steps.get(step_id)
        _require(known is not None and known.phase == WAITING, flow, f"{step_id} no longer waits for SubFlows")
    _require(held == index.locks, flow, f"locks held {held}, locks known {index.locks}")
    for name, waiting in index.waiters.items():
        for step_id in waiting:
            known = state.steps.get(step_id)
            _require(known is not None and known.phase == WAITING, flow, f"{step_id} no longer waits on {name}")
    seen = [message.ordinal for queue in state.channels.values() for message in queue]
    seen += [message.ordinal for step in state.steps.values() for _, message in step.consumed]
    _require(len(seen) == len(set(seen)), flow, "a message is in two places")
