"""How a Flow ends.

    what                                      status      error type            when
    ----------------------------------------  ----------  --------------------  --------------------------------------
    graceful_complete                         COMPLETED                         when no Step is open any more
    force_complete                            COMPLETED                         at once
    force_complete_if_channels_empty, empty   COMPLETED                         at once; else the fallback starts
    force_fail                                FAILED      STEP_DECISION_FAILED  at once
    a Step fails for good without a route     FAILED      WORKER_API_FAILED     at once
    Flow timeout, FAIL                        FAILED      FLOW_TIMEOUT          when it is due
    Flow timeout, CANCEL                      CANCELED                          when it is due
    stop with CANCEL                          CANCELED                          at once
    stop with TERMINATE, or replaced          TERMINATED                        at once
    stop with FAIL                            FAILED      CLIENT_API_FAILED     at once
    dead_end                                                                    never by itself

Closing ends every branch: running attempts are asked to stop, late results are refused, messages left in Channels are
dropped.
"""

from __future__ import annotations

from dex.wire.service import Completion
from dexray.machine import steps
from dexray.machine.events import Failure, FlowClosed, FlowTimedOut
from dexray.machine.turn import Turn
from dexray.protocol.attempts import DecisionSpec


def apply(turn: Turn, decision: DecisionSpec, step_type: str, source: str) -> None:
    if decision.kind == "force_complete":
        turn.emit(FlowClosed("COMPLETED"))
    elif decision.kind == "force_fail":
        turn.emit(FlowClosed("FAILED", "STEP_DECISION_FAILED", decision.reason))
    elif decision.kind == "force_complete_if_channels_empty":
        if all(is_empty(turn, channel) for channel in decision.channels):
            output = decision.output
            completion = Completion(step_type, source, output) if output is not None else None
            turn.emit(FlowClosed("COMPLETED", completion=completion))
        else:
            assert decision.fallback is not None
            steps.move(turn, (decision.fallback,), from_step=source)


def is_empty(turn: Turn, channel: str) -> bool:
    """A Channel is empty when no message is queued, nor consumed by a Step that has not finished its execute."""
    if channel in turn.state.channels:
        return False
    return not any(name == channel for step in turn.state.steps.values() for name, _ in step.consumed)


def complete_if_done(turn: Turn) -> None:
    """Graceful completion: asked for by one branch, granted when all have stopped."""
    if turn.state.completing and not turn.state.steps and not turn.flow.is_closed:
        turn.emit(FlowClosed("COMPLETED"))


def fail_for_step(turn: Turn, step_id: str, failure: Failure) -> None:
    turn.emit(FlowClosed("FAILED", "WORKER_API_FAILED", f"{step_id}: {failure.error_type}: {failure.detail}"))


def stop(turn: Turn, stop_type: str, reason: str) -> None:
    status = {"CANCEL": "CANCELED", "TERMINATE": "TERMINATED", "FAIL": "FAILED"}[stop_type]
    turn.emit(FlowClosed(status, "CLIENT_API_FAILED" if stop_type == "FAIL" else "", reason))


def time_out(turn: Turn, *, skipped: bool = False) -> None:
    policy = turn.state.timeout_policy
    turn.emit(FlowTimedOut(policy, skipped))
    if policy == "CANCEL":
        turn.emit(FlowClosed("CANCELED"))
    elif policy == "HANDLER":
        steps.schedule_timeout_handler(turn)
    else:
        turn.emit(FlowClosed("FAILED", "FLOW_TIMEOUT", f"Flow timed out after {turn.state.timeout:g} seconds"))
