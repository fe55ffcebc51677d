"""No primitive and no fault goes unexercised: what the generator is for, counted by what became durable or was told."""

from __future__ import annotations

from collections import Counter

from tests.simulation.campaign import in_order

EVENTS = [
    "FlowStarted",
    "StepScheduled",
    "AttemptStarted",
    "HeartbeatStored",
    "AttemptFailed",
    "AttemptReturned",
    "AttributesWritten",
    "MessageDeleted",
    "MessagePublished",
    "EventRecorded",
    "WaitStarted",
    "TimerFired",
    "SubFlowEnded",
    "ConditionsMet",
    "WaitForAbandoned",
    "StepCompleted",
    "StepFailed",
    "StepCancelled",
    "FlowTimedOut",
    "FlowClosed",
    "RpcApplied",
    "FlowConfigUpdated",
    "FlowForked",
]
FEATURES = [
    *(f"{event}/1" for event in EVENTS),
    *(f"wait {kind}" for kind in ("skip_immediately", "all_of", "any_of", "any_combination_of")),
    *(f"condition {kind}" for kind in ("timer", "channel", "subflow")),
    *(
        f"decision {kind}"
        for kind in (
            "next",
            "graceful_complete",
            "force_complete",
            "force_complete_if_channels_empty",
            "force_fail",
            "dead_end",
        )
    ),
    "fan-out",
    "cancelled by a decision or an RPC",
    "conditional completion: empty",
    "conditional completion: fallback",
    *(f"failure policy: {policy}" for policy in ("PROCEED", "route", "fail")),
    *(
        f"failure {kind}"
        for kind in ("HANDLER_ERROR", "WORKER_CRASHED", "HEARTBEAT_TIMEOUT", "STARTED_ATTEMPT_INTERRUPTED")
    ),
    "attempt ran ahead",
    *(f"RPC {name}" for name in ("write", "change", "lock")),
    "closed COMPLETED",
    "closed CANCELED",
    "closed TERMINATED",
    *(
        f"closed FAILED {error}"
        for error in ("STEP_DECISION_FAILED", "WORKER_API_FAILED", "CLIENT_API_FAILED", "FLOW_TIMEOUT")
    ),
    *[
        "StartFlow",
        "Publish",
        "SetAttribute",
        "StopFlow",
        "SkipTimer",
        "UpdateFlowConfig",
        "TimeTravel",
        "InvokeRpc",
        "GetAttribute",
        "WaitForFlow",
        "WaitForStep",
        "WaitForAttribute",
        "DescribeFlow",
        "GetHistory",
        "WriteStream",
        "ReadStream",
    ],
    "ALREADY_EXISTS FLOW_ALREADY_STARTED",
    "FAILED_PRECONDITION FLOW_NOT_EXISTS",
    "ABORTED WORKER_API_ERROR",
    "UNAVAILABLE UNCATEGORIZED",
]
FAULTS = [
    "kill",
    "reassign",
    "pause",
    "two owners",
    "orderly stop",
    "outage",
    "partition",
    "cut before",
    "cut after",
    "stale read",
    "stepped down",
    "request lost",
    "request late",
    "reply lost",
    "worker crashed",
    "attempt hung",
    "attempt returned",
    "attempt cancelled",
    "late result",
    "result repeated",
    "clock step",
    "deployed anew",
    "detached",
    "detached: adopted",
    "detached: gone",
    "detached: not wanted",
]


def test_every_primitive_and_every_fault_is_met_by_the_fixed_schedules() -> None:
    tally = in_order(iter(range(10_000, 10_400)), seconds=600.0)
    assert not tally.failed
    features: Counter[str] = tally.features
    assert not [name for name in FEATURES if not features[name]]
    assert not [name for name in FAULTS if not tally.faults[name]]
