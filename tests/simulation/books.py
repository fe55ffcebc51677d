"""The books of a run, kept by a naive reader of its journal: what the events of its records add up to.

Nothing is indexed, nothing is clever, and nothing is shared with the engine. Events are lists as msgpack has them, the
kind first.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

Event = list[Any]
Selection = tuple[tuple[int, ...], dict[int, list[str]]]


class Step:
    """One open Step execution."""

    def __init__(self, event: Event) -> None:
        self.id, self.type, _, self.came_from, self.input, method, durability, self.override, self.recovery = event[
            1:10
        ]
        self.wait: dict[str, Any] = {}
        self.due: list[float] = []
        self.fired: set[int] = set()
        self.ended: set[int] = set()
        self.consumed: list[tuple[str, Event]] = []  # Channel, [id, value, ordinal]
        self.seen: list[tuple[str, bool, list[bytes]]] = []  # of each condition: kind, fired, values
        self.locals: dict[str, bytes] = {}
        self.begin(method, durability)

    def begin(self, method: str, durability: str = "") -> None:
        """A method call is pending, as if it never had been before."""
        self.method, self.durability, self.phase = method, durability or self.durability, "ready"
        self.attempt, self.first_at, self.retry_at, self.returned = 1, 0.0, 0.0, False
        self.snapshot: tuple[dict[str, bytes], dict[str, int]] | None = None
        self.locks: list[str] = []
        self.detached = False  # the attempt that is out survives its owner
        self.hand_out: Any = None  # the owner that handed it out


class Run:
    def __init__(self, run_id: str) -> None:
        self.run_id = run_id
        self.flow_id = self.type = self.status = self.request_id = ""
        self.records: list[tuple[float, list[Event]]] = []
        self.steps: dict[str, Step] = {}
        self.over: set[str] = set()
        self.counters: Counter[str] = Counter()
        self.queues: dict[str, list[Event]] = {}
        self.ordinal = 0
        self.attributes: dict[str, bytes] = {}
        self.history: list[
            tuple[int, dict[str, bytes]]
        ] = []  # all that the Attributes were, by the version of the books
        self.published: Counter[bytes] = Counter()
        self.ids: set[str] = set()
        self.order: list[bytes] = []
        self.written: Counter[bytes] = Counter()  # Attributes, by clients
        self.rpcs: Counter[str] = Counter()
        self.completions: list[Any] = []
        self.completing = self.timed_out = False
        self.timeout = self.timeout_at = 0.0
        self.handler: dict[str, Any] = {}
        self.parent: tuple[str, int, int] | None = None  # run, record and event that it was forked behind


def completion(told: dict[str, Any]) -> Event:
    return [told["step_type"], told["step_execution_id"], told.get("output")]


# Waits ----------------------------------------------------------------------------------------------------------------


def groups(wait: dict[str, Any]) -> Iterator[tuple[int, ...]]:
    """Who may win, in the order in which they are tried."""
    conditions = wait.get("conditions", ())
    if wait["kind"] == "any_of":
        for kind in ("timer", "channel", "subflow"):
            yield from ((n,) for n, condition in enumerate(conditions) if condition["kind"] == kind)
    elif wait["kind"] == "any_combination_of":
        yield from map(tuple, wait["combinations"])
    else:
        yield tuple(range(len(conditions)))


def winning(step: Step, queues: dict[str, list[Event]]) -> Selection | None:
    """The group that wins now, and the ids of the messages that each of its Channel conditions takes."""
    conditions = step.wait.get("conditions", ())
    for group in groups(step.wait):
        if any(conditions[n]["kind"] != "channel" and n not in step.fired and n not in step.ended for n in group):
            continue
        channels = [n for n in sorted(group) if conditions[n]["kind"] == "channel"]
        spare = {conditions[n]["channel"]: len(queues.get(conditions[n]["channel"], ())) for n in channels}
        for n in channels:
            spare[conditions[n]["channel"]] -= conditions[n].get("at_least", 0)
        if any(left < 0 for left in spare.values()):
            continue
        taken: dict[int, list[str]] = {}
        begins: Counter[str] = Counter()
        for n in channels:
            channel, low, high = (
                conditions[n]["channel"],
                conditions[n].get("at_least", 0),
                conditions[n].get("at_most"),
            )
            more = spare[channel] if high is None else min(spare[channel], high - low)
            spare[channel] -= more
            queue = queues.get(channel, [])
            taken[n] = [message[0] for message in queue[begins[channel] : begins[channel] + low + more]]
            begins[channel] += low + more
        return group, taken
    return None


# Events ---------------------------------------------------------------------------------------------------------------


def flow_started(run: Run, event: Event, at: float) -> None:
    run.flow_id, _, run.type, run.request_id, _, attributes, _, run.timeout, _, run.timeout_at = event[1:11]
    run.handler = event[11] or {}
    run.attributes = dict(attributes)


def step_scheduled(run: Run, event: Event, at: float) -> None:
    run.counters[event[2]] = event[3]
    run.steps[event[1]] = Step(event)


def attempt_started(run: Run, event: Event, at: float) -> None:
    step = run.steps[event[1]]
    if step.snapshot is None:
        step.snapshot = (run.attributes, {name: len(queue) for name, queue in run.queues.items() if queue})
    if not step.first_at or (step.attempt == 1 and step.returned):
        step.first_at = at
    step.phase, step.returned, step.locks = "running", False, list(event[5])
    step.detached = len(event) > 7 and event[7]


def attempt_failed(run: Run, event: Event, at: float) -> None:
    step = run.steps[event[1]]
    step.locks = []
    if event[4] is not None:
        step.phase, step.retry_at = "backoff", event[4]
        step.attempt += 1


def attempt_returned(run: Run, event: Event, at: float) -> None:
    step = run.steps[event[1]]
    step.phase, step.retry_at, step.returned = "backoff", event[5], True


def attributes_written(run: Run, event: Event, at: float) -> None:
    both = run.attributes | event[1]
    run.attributes = {name: value for name, value in both.items() if value is not None}
    if not event[2]:
        run.written.update(value for value in event[1].values() if value is not None)


def message_published(run: Run, event: Event, at: float) -> None:
    run.ordinal += 1
    run.ids.add(event[2])
    run.published[event[3]] += 1
    run.order.append(event[3])
    run.queues.setdefault(event[1], []).append([event[2], event[3], run.ordinal])


def message_deleted(run: Run, event: Event, at: float) -> None:
    queue = run.queues[event[1]]
    queue.remove(next(message for message in queue if message[0] == event[2]))


def wait_started(run: Run, event: Event, at: float) -> None:
    step = run.steps[event[1]]
    step.wait, step.due, step.locals, step.locks, step.phase = event[2], event[3], event[4], [], "waiting"


def timer_fired(run: Run, event: Event, at: float) -> None:
    run.steps[event[1]].fired.add(event[2])


def subflow_ended(run: Run, event: Event, at: float) -> None:
    run.steps[event[1]].ended.add(event[2])


def conditions_met(run: Run, event: Event, at: float) -> None:
    step, consumed = run.steps[event[1]], dict(event[3])
    for n, condition in enumerate(step.wait.get("conditions", ())):
        queue = run.queues.get(condition.get("channel", ""), [])
        taken = [message for message in queue if message[0] in consumed.get(n, ())]
        for message in taken:
            queue.remove(message)
            step.consumed.append((condition["channel"], message))
        fired = n in step.fired or n in step.ended or (condition["kind"] == "channel" and n in event[2])
        step.seen.append((condition["kind"], fired, [message[1] for message in taken]))
    step.begin("execute", event[4])


def wait_for_abandoned(run: Run, event: Event, at: float) -> None:
    step = run.steps[event[1]]
    step.recovery = event[2]
    step.begin("execute", event[3])


def step_completed(run: Run, event: Event, at: float) -> None:
    step = run.steps.pop(event[1])
    run.over.add(step.id)
    if event[2] in ("graceful_complete", "force_complete"):
        run.completing = True
        if event[3] is not None:
            run.completions.append([step.type, step.id, event[3]])


def step_failed(run: Run, event: Event, at: float) -> None:
    del run.steps[event[1]]
    run.over.add(event[1])


def step_cancelled(run: Run, event: Event, at: float) -> None:
    step = run.steps.pop(event[1])
    run.over.add(step.id)
    for channel, message in step.consumed:
        run.queues.setdefault(channel, []).append(message)
        run.queues[channel].sort(key=lambda one: one[2])


def flow_timed_out(run: Run, event: Event, at: float) -> None:
    run.timed_out = True


def flow_closed(run: Run, event: Event, at: float) -> None:
    run.status = event[1]
    run.steps = {}
    if event[1] != "COMPLETED":
        run.completions = []
    elif event[4] is not None:
        run.completions.append(completion(event[4]))


def rpc_applied(run: Run, event: Event, at: float) -> None:
    run.rpcs[event[2]] += 1


def nothing(run: Run, event: Event, at: float) -> None:
    """Of no interest to the books."""


APPLY: dict[str, Callable[[Run, Event, float], None]] = {
    "FlowStarted/1": flow_started,
    "StepScheduled/1": step_scheduled,
    "AttemptStarted/1": attempt_started,
    "HeartbeatStored/1": nothing,
    "AttemptFailed/1": attempt_failed,
    "AttemptReturned/1": attempt_returned,
    "AttributesWritten/1": attributes_written,
    "MessageDeleted/1": message_deleted,
    "MessagePublished/1": message_published,
    "EventRecorded/1": nothing,
    "WaitStarted/1": wait_started,
    "TimerFired/1": timer_fired,
    "SubFlowEnded/1": subflow_ended,
    "ConditionsMet/1": conditions_met,
    "WaitForAbandoned/1": wait_for_abandoned,
    "StepCompleted/1": step_completed,
    "StepFailed/1": step_failed,
    "StepCancelled/1": step_cancelled,
    "FlowTimedOut/1": flow_timed_out,
    "FlowClosed/1": flow_closed,
    "RpcApplied/1": rpc_applied,
    "FlowConfigUpdated/1": nothing,
}


# Time travel ----------------------------------------------------------------------------------------------------------


def past(runs: dict[str, Run], run_id: str) -> list[tuple[str, int, int, float, Event]]:
    """All that led to where a run is: (run, record, event, at, what), its own and what it was forked behind."""
    run = runs[run_id]
    line = []
    if run.parent is not None:
        of, seq, index = run.parent
        line = [one for one in past(runs, of) if one[0] != of or (one[1], one[2]) < (seq, index)]
    own = [(run_id, seq, n, at, e) for seq, (at, events) in enumerate(run.records, 1) for n, e in enumerate(events)]
    return line + [one for one in own if one[4][0] != "FlowForked/1"]


def forked(runs: dict[str, Run], run: Run, event: Event, at: float) -> None:
    """The run begins as the other one was then; what was under way begins anew."""
    run.parent = (event[7], event[8], event[9])
    for of, seq, index, when, what in past(runs, event[7]):
        if of != event[7] or (seq, index) < (event[8], event[9]):
            APPLY[what[0]](run, what, when)
    run.flow_id, run.type, run.over = event[1], event[3], set()
    if run.timeout and not run.timed_out:
        run.timeout_at = at + run.timeout
    for step in run.steps.values():
        if step.phase != "waiting":
            step.begin(step.method)


def outside(events: Iterator[Event]) -> list[Event]:
    """What was written from outside: messages and Attributes of clients, and RPCs, in their order."""
    kinds = {"MessagePublished/1": 4, "AttributesWritten/1": 2}
    return [e[:3] for e in events if e[0] == "RpcApplied/1" or (e[0] in kinds and not e[kinds[e[0]]])]
