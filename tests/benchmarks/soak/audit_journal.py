"""The rows of one run, judged by themselves: one owner at a time, one history, no commit of an attempt that is over."""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Callable
from typing import Any

import msgpack

from tests.benchmarks.soak.evidence import Event, Row, Run

Add = Callable[[str, str], None]

EARLY = 0.99  # a Timer may be so much shorter, while the engine goes to meet a wall clock that was set
OF_STEP = {"StepCompleted/1", "StepFailed/1", "StepCancelled/1"}
NOT_AFTER_THE_END = {
    *OF_STEP,
    "StepScheduled/1",
    "AttemptStarted/1",
    "MessagePublished/1",
    "RpcApplied/1",
    "ConditionsMet/1",
    "FlowClosed/1",
}


def audit_run(run: Run, rows: list[Row], effects: Counter[tuple[str, str, int]], add: Add) -> None:
    if [row.seq for row in rows] != list(range(1, len(rows) + 1)):
        add("a gap", f"the records of run {run.run_id} are {[row.seq for row in rows][:20]}…")
    _audit_epochs(run, rows, add)
    reader = _Reader(run, effects, add)
    for row in rows:
        reader.read(row)
    reader.at_end()


def _audit_epochs(run: Run, rows: list[Row], add: Add) -> None:
    for earlier, later in itertools.pairwise(rows):
        if later.epoch < earlier.epoch:
            add("a stale owner committed", f"record {later.seq} has epoch {later.epoch} after {earlier.epoch}")
    if rows and rows[-1].epoch > run.epoch:
        add("a stale owner committed", f"epoch {rows[-1].epoch} in a run whose epoch is {run.epoch}")


class _Reader:
    """Follows one run event by event."""

    def __init__(self, run: Run, effects: Counter[tuple[str, str, int]], add: Add) -> None:
        self._run = run
        self._effects = effects
        self._add = add
        self._closed_by = ""
        self._ended: Counter[str] = Counter()
        self._scheduled: set[str] = set()
        self._started: dict[tuple[str, str], int] = {}
        self._over: dict[tuple[str, str], str] = {}  # how the newest attempt ended: failed, returned
        self._waits: dict[str, tuple[float, list[float]]] = {}
        self._queues: dict[str, list[str]] = defaultdict(list)
        self._taken: dict[str, list[tuple[str, str]]] = defaultdict(list)
        self._messages: Counter[str] = Counter()
        self._rpcs: Counter[str] = Counter()

    def read(self, row: Row) -> None:
        attempts = {
            event[1]: msgpack.unpackb(event[3])
            for event in row.events
            if event[0] == "EventRecorded/1" and event[2] == "attempt"
        }
        for event in row.events:
            if self._closed_by and event[0] in NOT_AFTER_THE_END:
                self._add("after the end", f"record {row.seq} has {event[0]} after FlowClosed")
            if event[0] in OF_STEP:
                self._ended[event[1]] += 1
            if event[0] == "StepCompleted/1":
                self._completed(row, event[1], attempts.get(event[1]))
            self._event(row, event)

    def at_end(self) -> None:
        for step, count in self._ended.items():
            if count > 1:
                self._add("a Step ended twice", f"{step} ended {count} times")
        for what, counted in (("message", self._messages), ("request", self._rpcs)):
            for name, count in counted.items():
                if count > 1:
                    self._add("doubled", f"{what} {name} is there {count} times")
        if self._run.is_closed and self._closed_by != self._run.status:
            self._add("the end", f"the run is {self._run.status}, its history ends {self._closed_by or 'open'}")
        if self._closed_by and not self._run.is_closed:
            self._add("the end", "the history has closed, the run has not")

    def _event(self, row: Row, event: Event) -> None:
        match event:
            case ["StepScheduled/1", step, *_]:
                if step in self._scheduled:
                    self._add("doubled", f"{step} was scheduled twice")
                self._scheduled.add(step)
            case ["AttemptStarted/1", step, method, attempt, *_]:
                self._attempt_started(row, step, method, attempt)
            case ["AttemptFailed/1", step, method, failure, *_]:
                self._attempt_over(row, step, method, failure[3], "failed")
            case ["AttemptReturned/1", step, method, attempt, *_]:
                self._attempt_over(row, step, method, attempt, "returned")
            case ["WaitStarted/1", step, _, due, *_]:
                self._waits[step] = (row.at, due)
            case ["TimerFired/1", step, index, *more]:
                self._timer_fired(row, step, index, skipped=bool(more and more[0]))
            case ["MessagePublished/1", channel, message_id, *_]:
                self._messages[message_id] += 1
                self._queues[channel].append(message_id)
            case ["MessageDeleted/1", channel, message_id, *_]:
                self._queues[channel].remove(message_id)
            case ["ConditionsMet/1", step, _, consumed, *_]:
                for _, ids in consumed:
                    self._take(step, list(ids))
            case ["StepCancelled/1", step, _, returned, *_]:
                for channel, count in returned.items():
                    own = [message for where, message in self._taken[step] if where == channel]
                    self._queues[channel][:0] = own[len(own) - count :]
            case ["RpcApplied/1", _, request_id, *_]:
                self._rpcs[request_id] += 1
            case ["FlowClosed/1", status, *_]:
                self._closed_by = status
            case _:
                pass

    def _attempt_started(self, row: Row, step: str, method: str, attempt: int) -> None:
        last = self._started.get((step, method), 0)
        over = self._over.pop((step, method), "")
        allowed = {"": 1, "failed": last + 1, "returned": last}[over] if last else 1
        if attempt != allowed or (last and not over):
            why = over or "nothing ended"
            self._add("a wrong attempt", f"record {row.seq}: attempt {attempt} of {step} {method} after {last} ({why})")
        if self._ended[step]:
            self._add("a wrong attempt", f"record {row.seq}: attempt {attempt} of {step}, which has ended")
        self._started[step, method] = attempt

    def _attempt_over(self, row: Row, step: str, method: str, attempt: int, how: str) -> None:
        last = self._started.get((step, method))
        if last is not None and attempt != last:
            self._add("a stale attempt", f"record {row.seq}: attempt {attempt} of {step} {how}, {last} is the newest")
        self._over[step, method] = how

    def _completed(self, row: Row, step: str, attempt: int | None) -> None:
        last = self._started.get((step, "execute"))
        if attempt is None or last is None:
            return  # no handler of ours, or one that leaves no traces
        if attempt != last or (step, "execute") in self._over:
            self._add(
                "a stale attempt", f"record {row.seq}: {step} completed by attempt {attempt}, {last} is the newest"
            )
        if not self._effects[self._run.run_id, step, attempt] and not self._effects[self._run.flow_id, step, attempt]:
            self._add("nobody ran", f"record {row.seq}: {step} completed by attempt {attempt}, which left no line")

    def _timer_fired(self, row: Row, step: str, index: int, *, skipped: bool) -> None:
        began, due = self._waits.get(step, (0.0, []))
        if skipped or index >= len(due):
            return
        if row.at < began + (due[index] - began) * EARLY:
            self._add("an early timer", f"record {row.seq}: due at {due[index]}, fired at {row.at}")

    def _take(self, step: str, ids: list[str]) -> None:
        for channel, queue in self._queues.items():
            if ids and ids[0] in queue:
                if queue[: len(ids)] != ids:
                    self._add(
                        "out of order", f"{step} took {ids} of Channel {channel}, the oldest are {queue[: len(ids)]}"
                    )
                self._taken[step] += [(channel, message) for message in ids]
                self._queues[channel] = [message for message in queue if message not in ids]
                return
        if ids:
            self._add("doubled", f"{step} took {ids}, which no Channel has (any more)")


def values_of(rows: list[Row], channel: str) -> list[Any]:
    """The messages that a run ever got on a Channel, in order."""
    return [
        msgpack.unpackb(event[3])
        for row in rows
        for event in row.events
        if event[0] == "MessagePublished/1" and event[1] == channel
    ]
