"""The auditor: what the database holds must follow from itself and from the workers' log; it shares no code with the
engine.

It is told of every record at the moment it becomes durable, opens the bytes by hand, and enters them in its books
(`tests.simulation.books`), event by event. Before an event is entered it is judged: it must follow from the books, and
from what the workers' log says of the attempt that it came of. What clients are told is the matter of `witness`.

Findings are (check, evidence). A finding does not stop the run; the first one is the one to read.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, Protocol

import msgpack
import msgspec

from dex.wire.specs import FlowSpec, MethodSpec, StepSpec, TimeoutHandlerSpec
from dexray.journal.interface import Append
from dexray.protocol.attempts import (
    AttemptFailed,
    AttemptKey,
    AttemptTask,
    ExecuteSucceeded,
    RpcSucceeded,
    WaitForSucceeded,
    Writes,
)
from tests.simulation.books import APPLY, Event, Run, Step, completion, forked, outside, past, winning
from tests.simulation.workers import Attempt, Log

Owner = tuple[str, int]  # the life of an owner, and its epoch
SLACK = 1e-6
EPOCH = 1_700_000_000.0  # when true time begins
ENDS = ("COMPLETED", "FAILED", "CANCELED", "TERMINATED")
ANEW = {  # how the last run of a Flow ID may have ended, for a new one to begin
    "ALLOW_IF_PREVIOUS_FAILED": ("FAILED",),
    "ALLOW_IF_NOT_RUNNING": ENDS,
    "ALLOW_TERMINATE_IF_RUNNING": ENDS,
}


class Time(Protocol):
    now: float  # true time


class Auditor:
    """`clocks_agree`: all clocks go as true time does. `lenient`: code was missing for a while."""

    def __init__(self, types: dict[str, FlowSpec], features: Counter[str], world: Time, *, clocks_agree: bool) -> None:
        self.types = types
        self.world = world
        self.features = features
        self.clocks_agree = clocks_agree
        self.lenient = False
        self.log = Log(self.handed_out)
        self.version = 0
        self.calls_committed = 0
        self.findings: list[tuple[str, str]] = []
        self.runs: dict[str, Run] = {}
        self.of_flow: dict[str, list[Run]] = {}
        self.holders: dict[str, Owner] = {}
        self.owner_of: dict[str, str] = {}  # the name that a life bears
        self.newest: dict[str, str] = {}  # of each name, the life that began last
        self.started: set[tuple[str, str, str, str, int]] = set()  # by whom, and the attempt
        self.stoppable: set[str] = set()  # Flows that somebody asked to end
        self.policies: dict[tuple[str, str], set[str]] = {}  # of starts, by Flow ID and request id

    def require(self, holds: bool, check: str, *evidence: object) -> None:
        if not holds and len(self.findings) < 20:
            self.findings.append((check, " ".join(map(str, evidence))))

    # The database tells -----------------------------------------------------------------------------------------------

    def owned(self, who: str, run_id: str, epoch: int) -> None:
        before = self.holders.get(run_id, ("", 0))
        self.require(epoch > before[1], "fencing", run_id, "has epoch", epoch, "after", before)
        self.holders[run_id] = (who, epoch)

    def lives(self, who: str, owner: str) -> None:
        self.owner_of[who] = owner
        self.newest[owner] = who

    def refused(self, who: str, record: Append, there: Append | None) -> None:
        """`there`: what the journal has in its place. An owner in doubt looks before it writes again."""
        again = there is not None and (there.epoch, there.body) == (record.epoch, record.body)
        self.require(not again, "written again", record.run_id, record.seq, who)

    def durable(self, who: str, record: Append) -> None:
        self.version += 1
        by = (who, record.epoch)
        holder = self.holders.get(record.run_id)
        self.require(holder == by, "fencing", record.run_id, record.seq, "is written by", by, "held by", holder)
        newest = self.newest.get(self.owner_of.get(who, ""), who)
        self.require(newest == who, "outlived", record.run_id, record.seq, "is written by", who, "before", newest)
        events: list[Event] = msgpack.unpackb(record.body, strict_map_key=False)
        run = self.runs.get(record.run_id)
        if run is None:
            run = self.runs[record.run_id] = Run(record.run_id)
            self.begun(run, record, events)
        run.records.append((record.at, events))
        self.require(record.seq == len(run.records), "sequence", run.run_id, record.seq, len(run.records))
        true = EPOCH + self.world.now
        self.require(not self.clocks_agree or record.at <= true + SLACK, "from the future", run.run_id, record.at, true)
        before = run.attributes
        try:
            for place, event in enumerate(events):
                self.features[event[0]] += 1
                self.require(not run.status, "after the end", run.run_id, event)
                self.judge(run, record.at, event, events, place, by)
                if event[0] == "FlowForked/1":
                    forked(self.runs, run, event, record.at)
                    self.judge_fork(run, event, events)
                else:
                    APPLY[event[0]](run, event, record.at)
                if event[0] == "AttemptStarted/1":
                    run.steps[event[1]].hand_out = by
                    self.started.add((who, run.run_id, *event[1:4]))
                if run.attributes is not before:
                    before = run.attributes
                    run.history.append((self.version, before))
            self.settled(run, record, events)
        except (KeyError, IndexError, ValueError, TypeError, StopIteration) as error:
            self.require(False, "books", run.run_id, record.seq, type(error).__name__, error, events)

    def begun(self, run: Run, record: Append, events: list[Event]) -> None:
        assert record.new_run is not None
        line = self.of_flow.setdefault(record.new_run.flow_id, [])
        self.require(not line or bool(line[-1].status), "one run", record.run_id, "follows an open run")
        self.require(record.new_run.replaces == (line[-1].run_id if line else ""), "one run", record.run_id)
        run.request_id = record.new_run.request_id
        policies = self.policies.get((record.new_run.flow_id, run.request_id))
        if line and policies and events[0][0] == "FlowStarted/1":
            allowed = any(line[-1].status in ANEW.get(policy, ()) for policy in policies)
            self.require(allowed, "reuse policy", record.run_id, "follows one that is", line[-1].status, policies)
        line.append(run)
        self.require(events[0][0] in ("FlowStarted/1", "FlowForked/1"), "beginning", record.run_id, events)

    def settled(self, run: Run, record: Append, events: list[Event]) -> None:
        """After a record nothing is left that should have followed at once."""
        told = record.change.status if record.change is not None else None
        closed = bool(events) and events[-1][0] == "FlowClosed/1"
        self.require((told or "") == (run.status if closed else ""), "status", run.run_id, told, run.status)
        if run.status:
            return
        self.require(bool(run.steps) or not run.completing, "completion", run.run_id, "all have stopped, it goes on")
        for step in run.steps.values():
            if step.phase == "waiting":
                winner = winning(step, run.queues)
                self.require(winner is None, "missed wait", run.run_id, step.id, winner, record.seq)
        self.judge_wake(run, record)

    def judge_wake(self, run: Run, record: Append) -> None:
        """The next owner knows from the run's row when it has to look at it."""
        if record.change is None or record.change.next_wake is None:
            return
        wake = record.change.next_wake
        due = [run.timeout_at] if run.timeout_at and not run.timed_out else []
        for step in run.steps.values():
            if step.phase != "waiting":
                due.append(0.0)
            for n, condition in enumerate(step.wait.get("conditions", ()) if step.phase == "waiting" else ()):
                if condition["kind"] == "timer" and n not in step.fired:
                    due.append(step.due[n])
                elif condition["kind"] == "subflow" and n not in step.ended:
                    due.append(0.0)
        self.require(not due or wake <= min(due) + SLACK, "next wake", run.run_id, record.seq, wake, due)

    # Attempts ---------------------------------------------------------------------------------------------------------

    def handed_out(self, attempt: Attempt) -> None:
        """Nothing is let out before it is durable, but an attempt of an ASYNC method."""
        task, run = attempt.task, self.runs.get(attempt.task.key.run_id)
        key = task.key
        if key.method == "rpc":
            seen = {name: value for name, value in task.attributes.items() if "/" not in name}
            known = [] if run is None else [*run.history, (0, run.attributes)]
            told = any(seen == {n: v for n, v in values.items() if "/" not in n} for _, values in reversed(known))
            self.require(told or not seen, "told too early", key, seen)
            return
        if (attempt.who, key.run_id, key.step_execution_id, key.method, key.attempt) in self.started:
            return
        step = run.steps.get(key.step_execution_id) if run is not None else None
        self.features["attempt ran ahead"] += 1
        if step is not None and step.method == key.method:
            early = step.durability == "ASYNC" and not task.detached
            self.require(early, "handed out too early", key)

    def current(self, run: Run, step: Step, mark: Attempt | None, by: Owner, *what: object) -> bool:
        """The attempt that this came of is the one that was out, of this very owner."""
        self.require(step.phase == "running", "attempt", *what, "while", step.phase)
        ours = step.hand_out == by or (step.detached and (by[0], self.key(run, step)) in self.log.adopters)
        self.require(ours, "stale attempt", *what, "was handed out by", step.hand_out, "not", by)
        if mark is None:
            return False
        key = mark.task.key
        named = (key.run_id, key.step_execution_id, key.method, key.attempt)
        self.require(named == (run.run_id, step.id, step.method, step.attempt), "stale attempt", *what, named)
        self.require(self.log.newest.get((by[0], key)) is mark, "stale attempt", *what, "came of", mark.token, mark.who)
        return True

    def key(self, run: Run, step: Step) -> AttemptKey:
        return AttemptKey(run.flow_id, run.run_id, step.id, step.method, step.attempt)

    def settled_attempt(self, key: AttemptKey) -> None:
        """A detached attempt is let go: then its outcome is durable, or it is not wanted."""
        run = self.runs[key.run_id]
        step = run.steps.get(key.step_execution_id)
        out = step is not None and step.phase == "running" and self.key(run, step) == key
        self.require(not out, "settled too early", key)

    def succeeded(
        self, run: Run, event: Event, rest: list[Event], by: Owner, kind: type
    ) -> WaitForSucceeded | ExecuteSucceeded | None:
        """The one result that this event came of; None when there is none, or when it could be either of two."""
        step, what = run.steps[event[1]], (run.run_id, event)
        self.calls_committed += 1
        mark = next((e for e in rest if e[0] == "EventRecorded/1" and e[1] == step.id and e[2] == "#"), None)
        attempt = self.log.attempts.get(msgpack.unpackb(mark[3])) if mark is not None else None
        if not self.current(run, step, attempt, by, *what) or attempt is None:
            self.require(False, "invented result", *what)
            return None
        self.judge_task(run, step, attempt.task, *what)
        results = [one for one in attempt.results if isinstance(one, kind)]
        self.require(bool(results), "invented result", *what, attempt.results)
        if len(attempt.results) != 1 or not results:
            return None
        result: Any = results[0]
        self.judge_writes(run, step.id, result.writes, rest, *what)
        return result  # type: ignore[no-any-return]

    def judge_task(self, run: Run, step: Step, task: AttemptTask, *what: object) -> None:
        """The handler saw what was there when the first attempt of its method call was handed out."""
        assert step.snapshot is not None
        attributes, sizes = step.snapshot
        plain = {name: value for name, value in attributes.items() if "/" not in name}
        seen = {name: value for name, value in task.attributes.items() if "/" not in name}
        self.require((seen, task.channel_sizes) == (plain, sizes), "snapshot", *what, seen, plain, sizes)
        self.require(all(attributes.get(name) == value for name, value in task.attributes.items()), "snapshot", *what)
        self.require((task.input, task.from_step_execution_id) == (step.input, step.came_from), "input", *what)
        if step.method == "execute":
            told = [(c.kind, c.fired, list(c.messages)) for c in task.conditions]
            self.require(told == step.seen, "condition results", *what, told, step.seen)
            self.require(task.locals == step.locals, "locals", *what, task.locals, step.locals)
            self.require((task.recovery_error is None) == (step.recovery is None), "recovery", *what)

    def judge_writes(self, run: Run, by: str, writes: Writes, rest: list[Event], *what: object) -> None:
        expected: list[Event] = [["AttributesWritten/1", writes.attributes, by]] if writes.attributes else []
        expected += [["MessageDeleted/1", channel, one, by] for channel, one in self.present(run, writes)]
        expected += [["MessagePublished/1", *publication, by] for publication in writes.publications]
        expected += [["EventRecorded/1", by, name, value] for name, value in writes.events]
        self.require(rest[: len(expected)] == expected, "writes", *what, expected)

    def present(self, run: Run, writes: Writes) -> list[tuple[str, str]]:
        """The messages among those to be deleted that are there."""
        return [one for one in writes.deletions if any(one[1] == there[0] for there in run.queues.get(one[0], ()))]

    def behind(self, run: Run, writes: Writes, rest: list[Event]) -> list[Event]:
        """What follows the writes."""
        count = len(self.present(run, writes)) + len(writes.publications) + len(writes.events)
        return rest[count + bool(writes.attributes) :]

    # Events -----------------------------------------------------------------------------------------------------------

    def judge(self, run: Run, at: float, event: Event, events: list[Event], place: int, by: Owner) -> None:
        require, what, rest = self.require, (run.run_id, event), events[place + 1 :]
        match event[0]:
            case "StepScheduled/1":
                number = run.counters[event[2]] + 1
                require((event[1], event[3]) == (f"{event[2]}-{number}", number), "numbering", *what)
            case "AttemptStarted/1":
                step = run.steps[event[1]]
                require((step.method, step.attempt) == (event[2], event[3]), "attempt", *what)
                require(step.phase in ("ready", "backoff"), "attempt", *what, "while", step.phase)
                require(step.phase != "backoff" or at >= step.retry_at - SLACK, "early retry", *what, at, step.retry_at)
                held = {lock for other in run.steps.values() if other is not step for lock in other.locks}
                require(not held.intersection(event[5]), "locks", *what, "held are", held)
                wanted = self.method(run, step)
                require(step.returned or wanted is None or tuple(event[5]) == wanted.locks, "locks", *what)
            case "AttemptReturned/1":
                require(run.steps[event[1]].phase == "running", "attempt", *what)
            case "MessagePublished/1":
                require(event[2] not in run.ids, "published twice", *what)
            case "WaitStarted/1":
                result = self.succeeded(run, event, rest, by, WaitForSucceeded)
                self.judge_wait(at, event, result, what)
            case "TimerFired/1":
                step = run.steps[event[1]]
                require(step.phase == "waiting" and event[2] not in step.fired, "timer", *what)
                require(event[3] or at >= step.due[event[2]] - SLACK, "early timer", *what, at, step.due)
            case "ConditionsMet/1":
                step = run.steps[event[1]]
                winner = winning(step, run.queues) if step.phase == "waiting" else None
                require(winner == (tuple(event[2]), dict(event[3])), "conditions", *what, winner)
            case "SubFlowEnded/1":
                child = self.runs.get(event[8])
                require(child is not None and child.status == event[4], "SubFlow", *what)
                require(child is None or child.completions == [completion(one) for one in event[5]], "SubFlow", *what)
            case "AttemptFailed/1":
                self.judge_failure(run, at, event, rest, by)
            case "StepFailed/1":
                follows = rest[0] if rest else [""]
                require(follows[0] == ("StepScheduled/1" if event[4] else "FlowClosed/1"), "route", *what)
                require(not event[4] or (follows[2], follows[4]) == (event[4], event[1]), "route", *what, follows)
            case "StepCompleted/1":
                self.judge_completion(run, event, rest, by)
            case "StepCancelled/1":
                counts = Counter(channel for channel, _ in run.steps[event[1]].consumed)
                self.features["messages returned"] += bool(counts)
                require(counts == event[3], "returned messages", *what, counts)
            case "FlowTimedOut/1":
                early = not event[2] and at < run.timeout_at - SLACK
                require(bool(run.timeout_at) and not early and not run.timed_out, "Flow timeout", *what, at)
            case "FlowClosed/1":
                self.judge_close(run, event, events[:place])
            case "RpcApplied/1":
                self.judge_rpc(run, event, rest, by)

    def judge_wait(self, at: float, event: Event, result: object, what: tuple[object, ...]) -> None:
        conditions = event[2].get("conditions", ())
        self.features[f"wait {event[2]['kind']}"] += 1
        for condition, due in zip(conditions, event[3], strict=True):
            self.features[f"condition {condition['kind']}"] += 1
            expected = at + condition.get("duration", 0.0) if condition["kind"] == "timer" else 0.0
            self.require(abs(due - expected) < SLACK, "timer", *what, at)
        if isinstance(result, WaitForSucceeded):
            asked = msgspec.to_builtins(result.wait, builtin_types=(bytes,))
            same = [dict(one) for one in conditions] == [dict(one) for one in asked.get("conditions", ())]
            self.require(same and event[4] == result.writes.locals, "wait", *what)

    def judge_failure(self, run: Run, at: float, event: Event, rest: list[Event], by: Owner) -> None:
        _, step_id, method, failure, retry_at = event
        step, what = run.steps[step_id], (run.run_id, event)
        self.calls_committed += 1
        self.features[f"failure {failure[2]}"] += 1
        retryable, retry_after = True, None
        if failure[2] == "STARTED_ATTEMPT_INTERRUPTED":
            self.require(step.phase == "running" and step.hand_out != by, "interrupt", *what, by)
            goes_on = step.detached and method != "timeout" and self.key(run, step) not in self.log.lost
            self.require(not goes_on, "detached", *what, "goes on")
        else:
            attempt = self.log.attempts[int(failure[1][1:])] if failure[1].startswith("#") else None
            self.current(run, step, attempt, by, *what)
            failures = [one for one in (attempt.results if attempt else ()) if isinstance(one, AttemptFailed)]
            if failures and failure[2] == "HANDLER_ERROR":
                retryable, retry_after = failures[0].retryable, failures[0].retry_after
        self.require(step.attempt == failure[3], "attempt", *what)
        wanted, spec = self.method(run, step), self.step_spec(run, step)
        if self.lenient or wanted is None:
            return
        policy, number = wanted.retry, step.attempt
        if not retryable or (policy.attempts and number >= policy.attempts) or at - step.first_at >= policy.total:
            self.require(retry_at is None, "retry", *what, "no attempt was left")
            route = spec.failure_route if spec is not None and method == "execute" else None
            if method == "timeout":
                route = msgspec.convert(run.handler, TimeoutHandlerSpec).failure_route
            proceeds = method == "wait_for" and spec is not None and spec.proceed_on_wait_failure
            expected = ["WaitForAbandoned/1"] if proceeds else ["StepFailed/1", route.step_type if route else ""]
            follows = [rest[0][0], *rest[0][4:]] if rest and rest[0][0] == "StepFailed/1" else [e[0] for e in rest[:1]]
            self.features["failure policy: " + ("PROCEED" if proceeds else "route" if route else "fail")] += 1
            self.require(follows == expected, "failure policy", *what, follows, expected)
        else:
            delay = min(policy.maximum, policy.initial * policy.coefficient ** (number - 1))
            due = at + (delay if retry_after is None else retry_after)
            self.require(retry_at is not None and abs(retry_at - due) < SLACK, "retry", *what, due)

    def judge_completion(self, run: Run, event: Event, rest: list[Event], by: Owner) -> None:
        step, what = run.steps[event[1]], (run.run_id, event)
        result = self.succeeded(run, event, rest, by, ExecuteSucceeded)
        if not isinstance(result, ExecuteSucceeded):
            return
        decision, writes = result.decision, result.writes
        self.features[f"decision {decision.kind}"] += 1
        self.require((event[2], event[3]) == (decision.kind, decision.output), "decision", *what)
        rest = self.behind(run, writes, rest)
        chosen = [
            other.id
            for other in run.steps.values()
            if other is not step
            and (
                other.type in decision.canceling
                or (other.type in decision.canceling_siblings and other.came_from == step.came_from)
            )
        ]
        rest = self.judge_cancels(step.id, chosen, rest, what)
        follows = rest[0][0] if rest else ""
        if decision.kind == "next":
            self.judge_moves(step.id, decision.movements, rest, what)
        elif decision.kind in ("force_complete", "force_fail"):
            self.require(follows == "FlowClosed/1", "decision", *what, rest[:1])
        elif decision.kind == "force_complete_if_channels_empty":
            counts = Counter({channel: len(queue) for channel, queue in run.queues.items()})
            counts.update(channel for other in run.steps.values() if other is not step for channel, _ in other.consumed)
            counts.update(channel for channel, _, _ in writes.publications)
            counts.subtract(channel for channel, _ in self.present(run, writes))
            empty = not any(counts[channel] for channel in decision.channels)
            self.features["conditional completion: " + ("empty" if empty else "fallback")] += 1
            self.require((follows == "FlowClosed/1") == empty, "conditional completion", *what, counts, rest[:1])
            if not empty and decision.fallback is not None:
                self.judge_moves(step.id, (decision.fallback,), rest, what)

    def judge_cancels(self, by: str, chosen: list[str], rest: list[Event], what: tuple[object, ...]) -> list[Event]:
        found = [event[1] for event in rest if event[0] == "StepCancelled/1" and event[2] == by]
        self.features["cancelled by a decision or an RPC"] += bool(chosen)
        self.require(found == chosen, "cancellation", *what, "cancelled are", found, "not", chosen)
        return rest[len(chosen) :]

    def judge_moves(self, by: str, movements: tuple[Any, ...], rest: list[Event], what: tuple[object, ...]) -> None:
        expected = [(movement.step_type, by, movement.input) for movement in movements]
        found = [(e[2], e[4], e[5]) for e in rest[: len(expected)] if e[0] == "StepScheduled/1"]
        self.features["fan-out"] += len(expected) > 1
        self.require(found == expected, "movements", *what, found, expected)

    def judge_rpc(self, run: Run, event: Event, rest: list[Event], by: Owner) -> None:
        if run.parent is not None and len(run.records) == 1:
            return  # it was written before, and is applied again
        what = (run.run_id, event)
        attempt = self.log.attempts.get(msgpack.unpackb(event[4]))
        self.require(not run.rpcs[event[2]], "RPC twice", *what)
        if attempt is None or attempt.who != by[0] or attempt.task.key.run_id != run.run_id:
            self.require(False, "stale attempt", *what, by)
            return
        self.features[f"RPC {event[1]}"] += 1
        result, source, spec = attempt.results[0], f"__rpc/{event[1]}", self.types[run.type].rpcs[event[1]]
        if len(attempt.results) == 1 and isinstance(result, RpcSucceeded):
            self.judge_writes(run, source, result.writes, rest, *what)
            chosen = [step.id for step in run.steps.values() if step.type in result.canceling]
            rest = self.behind(run, result.writes, rest)
            self.judge_moves(source, result.movements, self.judge_cancels(source, chosen, rest, what), what)
        if spec.locks or spec.transactional:
            plain = {name: value for name, value in run.attributes.items() if "/" not in name}
            sizes = {name: len(queue) for name, queue in run.queues.items() if queue}
            seen = {name: value for name, value in attempt.task.attributes.items() if "/" not in name}
            self.require((seen, attempt.task.channel_sizes) == (plain, sizes), "isolation", *what)

    def judge_close(self, run: Run, event: Event, before: list[Event]) -> None:
        status, error, what = event[1], event[2], (run.run_id, event)
        self.features[f"closed {status} {error}".strip()] += 1
        last = before[-1] if before else ["", "", "", "", ""]
        decided = next((e[2] for e in reversed(before) if e[0] == "StepCompleted/1"), "")
        asked = run.flow_id in self.stoppable or (run.flow_id.startswith("SubFlow:") and status == "TERMINATED")
        if status == "COMPLETED":
            forced = decided in ("force_complete", "force_complete_if_channels_empty")
            self.require(forced or (run.completing and not run.steps), "completion", *what)
        elif error == "STEP_DECISION_FAILED":
            self.require(decided == "force_fail", "failed for nothing", *what)
        elif error == "WORKER_API_FAILED":
            self.require(last[0] == "StepFailed/1" and not last[4], "failed for nothing", *what)
        else:
            timed_out = last[0] == "FlowTimedOut/1" and (status == "CANCELED" or error == "FLOW_TIMEOUT")
            self.require(timed_out or asked, "stopped by nobody", *what)

    def judge_fork(self, run: Run, event: Event, events: list[Event]) -> None:
        """What was written from outside behind the point is there again, in its order, unless it was to be left out."""
        line = past(self.runs, event[4])
        cut = (event[8], event[9])
        own = next((n for n, one in enumerate(line) if one[0] == event[7] and (one[1], one[2]) >= cut), None)
        if own is None:  # nothing of that run is behind the point; what was forked from it may be
            own = 1 + max((n for n, one in enumerate(line) if one[0] == event[7]), default=-1)
        expected = [] if event[10] else outside(iter([one[4] for one in line[own:]]))
        found = outside(iter(events[1:]))
        if events[-1][0] == "FlowClosed/1":
            expected = expected[: len(found)]
        # What a client wrote to the new run in the same turn may be in its first record, too.
        new = found[len(expected) :]
        again = {one[4][2] for one in line if one[4][0] == "MessagePublished/1"} & {
            one[2] for one in new if len(one) > 2
        }
        self.require(found[: len(expected)] == expected and not again, "time travel", run.run_id, found, expected)

    # Specs ------------------------------------------------------------------------------------------------------------

    def step_spec(self, run: Run, step: Step) -> StepSpec | None:
        if step.override is not None:
            return msgspec.convert(step.override, StepSpec)
        return self.types[run.type].steps.get(step.type)

    def method(self, run: Run, step: Step) -> MethodSpec | None:
        if step.method == "timeout":
            return msgspec.convert(run.handler, TimeoutHandlerSpec).method
        spec = self.step_spec(run, step)
        return None if spec is None else spec.wait_for if step.method == "wait_for" else spec.execute
