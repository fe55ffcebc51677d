"""The test of the tester: bugs put in on purpose, each of which must be found.

Every line of the table says what is broken, where, and which checks may catch it. A bug is put in by a patch for the
time of its schedules, in the engine, the machine, the journal, or in the auditor's own eyes. It counts as caught when a
schedule fails in one of the named checks; that a broken engine trips some other check first is the normal case, so the
table names them all, and "liveness" and "engine error" only where they are what the bug comes to.
"""

from __future__ import annotations

import asyncio
import dataclasses
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

from msgspec.structs import replace

from dexray.engine import committer, hand_outs, host, live, requests, residents, rpc, starting, subflows
from dexray.journal.interface import Outcome
from dexray.machine import closing, conditions, evolve, retries, rpcs, state, steps, tasks, timers, waits
from tests.simulation import auditor, books, memory
from tests.simulation.campaign import BURY_EVERY
from tests.simulation.kernel import bury, undisturbed
from tests.simulation.schedule import run_seed

Patch = tuple[Any, str, Any]


@dataclass(frozen=True, slots=True)
class Mutant:
    what: str
    where: str  # machine, host, journal or auditor
    checks: tuple[str, ...]
    patches: Callable[[], list[Patch]]

    @contextmanager
    def applied(self) -> Iterator[None]:
        with ExitStack() as stack:
            for target, name, value in self.patches():
                stack.enter_context(patch.object(target, name, value))
            yield


MUTANTS: list[Mutant] = []


def mutant(where: str, what: str, *checks: str) -> Callable[[Callable[[], list[Patch]]], Callable[[], list[Patch]]]:
    def add(patches: Callable[[], list[Patch]]) -> Callable[[], list[Patch]]:
        MUTANTS.append(Mutant(what, where, checks, patches))
        return patches

    return add


def caught_by(one: Mutant, *, first: int = 0, limit: int = 3000, seconds: float = 60.0) -> tuple[int, str, str] | None:
    """The first seed that finds it, with the check and the evidence; None when none does, in so many seconds of this
    process's own time."""
    began = time.process_time()
    with undisturbed(), one.applied():
        for seed in range(first, first + limit):
            result = run_seed(seed)
            for check, evidence in result.findings:
                if check in one.checks:
                    return seed, check, evidence
            if seed % BURY_EVERY == 0:
                bury()
            if time.process_time() - began > seconds:
                break
    return None


def hunt() -> int:
    """All of them; prints the table. 1 when one got away."""
    escaped = 0
    for one in MUTANTS:
        found = caught_by(one)
        escaped += found is None
        told = f"{found[1]} (seed {found[0]})" if found is not None else "NOT CAUGHT"
        print(f"{one.where:8} {one.what:92} {told}", flush=True)
        bury()
    print(f"{len(MUTANTS)} seeded bugs, {len(MUTANTS) - escaped} caught, {escaped} not")
    return 1 if escaped else 0


# Machine --------------------------------------------------------------------------------------------------------------


@mutant("machine", "any_of prefers Channels to Timers", "conditions", "missed wait")
def _() -> list[Patch]:
    return [(waits, "_CANONICAL", ("channel", "timer", "subflow"))]


@mutant("machine", "a Channel condition takes one message more than its maximum", "conditions", "books")
def _() -> list[Patch]:
    whole = waits._feasible

    def greedy(candidate: Any, specs: Any, ready: Any, size_of: Any) -> Any:
        takes = whole(candidate, specs, ready, size_of)
        if takes is None:
            return None
        return tuple(
            (index, min(count + 1, size_of(specs[index].channel))) if len(takes) == 1 else (index, count)
            for index, count in takes
        )

    return [(waits, "_feasible", greedy)]


@mutant("machine", "every ready Channel of an any_of is consumed", "conditions")
def _() -> list[Patch]:
    real = waits.select

    def select(wait: Any, *, ready: Any, size_of: Any) -> Any:
        found = real(wait, ready=ready, size_of=size_of)
        if found is None or wait.kind != "any_of":
            return found
        others = [
            (index, condition.at_least)
            for index, condition in enumerate(wait.conditions)
            if condition.kind == "channel"
            and index not in found.winners
            and 0 < condition.at_least <= size_of(condition.channel)
            and all(condition.channel != wait.conditions[taken].channel for taken, _ in found.takes)
        ]
        return waits.Selection(found.winners, tuple(sorted([*found.takes, *others[:1]])))

    return [(waits, "select", select)]


@mutant("machine", "a publication wakes no waiter", "missed wait", "liveness")
def _() -> list[Patch]:
    return [(conditions, "evaluate_waiters", lambda turn: turn.dirty.clear())]


@mutant("machine", "Timers fire a second early", "early timer")
def _() -> list[Patch]:
    real = conditions.evaluate

    def early(turn: Any, step: Any) -> None:
        turn.now += 1.0
        try:
            real(turn, step)
        finally:
            turn.now -= 1.0

    return [(conditions, "evaluate", early)]


@mutant("machine", "a Timer counts from the first attempt of wait_for, not from its commit", "timer")
def _() -> list[Patch]:
    real = conditions.begin

    def begin(turn: Any, step: Any, wait: Any, locals_: Any) -> None:
        now, turn.now = turn.now, step.first_started_at
        try:
            real(turn, step, wait, locals_)
        finally:
            turn.now = now

    return [(conditions, "begin", begin)]


@mutant("machine", "a late result of an older attempt is taken", "stale attempt", "attempt", "books", "engine error")
def _() -> list[Patch]:
    def running(turn: Any, key: Any) -> Any:
        step = turn.state.steps.get(key.step_execution_id)
        return step if step is not None and step.phase == "running" and step.method == key.method else None

    return [(steps, "running", running)]


@mutant(
    "machine", "a result is taken though the Step is not running", "attempt", "stale attempt", "engine error", "books"
)
def _() -> list[Patch]:
    def running(turn: Any, key: Any) -> Any:
        step = turn.state.steps.get(key.step_execution_id)
        return step if step is not None and step.method == key.method else None

    return [(steps, "running", running)]


@mutant("machine", "a retry comes before its time", "early retry")
def _() -> list[Patch]:
    real = evolve._back_off

    def back_off(flow: Any, step: Any, until: float, at: float) -> None:
        real(flow, step, until - 0.5, at)

    return [(evolve, "_back_off", back_off)]


@mutant("machine", "back-off does not grow", "retry")
def _() -> list[Patch]:
    return [(retries, "backoff", lambda policy, attempt: policy.initial), (steps, "backoff", lambda p, a: p.initial)]


@mutant("machine", "one attempt too many", "retry")
def _() -> list[Patch]:
    real = retries.next_attempt_at

    def next_attempt_at(policy: Any, *, attempt: int, **more: Any) -> Any:
        return real(policy, attempt=attempt - 1, **more)

    return [(steps, "next_attempt_at", next_attempt_at)]


@mutant("machine", "PROCEED is ignored", "failure policy")
def _() -> list[Patch]:
    real = steps._exhausted

    def exhausted(turn: Any, step: Any, spec: Any, failure: Any) -> None:
        real(turn, step, replace(spec, proceed_on_wait_failure=False) if spec is not None else None, failure)

    return [(steps, "_exhausted", exhausted)]


@mutant("machine", "the failure route is not taken", "failure policy", "route")
def _() -> list[Patch]:
    real = steps._exhausted

    def exhausted(turn: Any, step: Any, spec: Any, failure: Any) -> None:
        real(turn, step, replace(spec, failure_route=None) if spec is not None else None, failure)

    return [(steps, "_exhausted", exhausted)]


@mutant("machine", "of a fan-out the last Step is forgotten", "movements")
def _() -> list[Patch]:
    real = steps.move

    def move(turn: Any, movements: Any, *, from_step: str) -> None:
        real(turn, movements[:-1] if len(movements) > 1 else movements, from_step=from_step)

    return [(steps, "move", move)]


@mutant("machine", "siblings are cancelled by type over the whole Flow", "cancellation")
def _() -> list[Patch]:
    real = steps.cancel_selected

    def cancel(turn: Any, types: Any, *, by: str, siblings: Any = (), siblings_of: str = "") -> None:
        real(turn, (*types, *siblings), by=by)

    return [(steps, "cancel_selected", cancel)]


@mutant(
    "machine", "a cancelled Step keeps the messages that it consumed", "returned messages", "conditional completion"
)
def _() -> list[Patch]:
    def cancel(turn: Any, step_id: str, *, by: str) -> None:
        turn.emit(steps.StepCancelled(step_id, by, {}))

    return [(steps, "cancel", cancel)]


@mutant("machine", "graceful completion does not wait for the other branches", "completion")
def _() -> list[Patch]:
    def complete(turn: Any) -> None:
        if turn.state.completing and not turn.flow.is_closed:
            turn.emit(closing.FlowClosed("COMPLETED"))

    return [(closing, "complete_if_done", complete)]


@mutant("machine", "a dead end after a graceful completion leaves the Flow open", "completion", "engine error")
def _() -> list[Patch]:
    return [(closing, "complete_if_done", lambda turn: None)]


@mutant("machine", "locks are not looked at", "locks")
def _() -> list[Patch]:
    return [(steps, "is_free", lambda flow, names: True)]


@mutant("machine", "a lock is kept when its attempt fails", "locks", "liveness", "engine error")
def _() -> list[Patch]:
    real = evolve.release_locks

    def release(flow: Any, step: Any) -> None:
        if step.phase != "running" or step.last_failure is None:
            real(flow, step)

    return [(evolve, "release_locks", release)]


@mutant("machine", "retries see the Attributes as they are now", "snapshot")
def _() -> list[Patch]:
    real = tasks.attempt_task

    def attempt_task(flow_state: Any, step: Any, spec: Any) -> Any:
        step.snapshot = state.take_snapshot(flow_state, step.snapshot.load)
        return real(flow_state, step, spec)

    return [(hand_outs, "attempt_task", attempt_task)]


@mutant("machine", "execute is not told the locals of wait_for", "locals")
def _() -> list[Patch]:
    real = tasks.attempt_task
    return [(hand_outs, "attempt_task", lambda *given: replace(real(*given), locals={}))]


@mutant("machine", "the Flow's timeout comes a second early", "Flow timeout")
def _() -> list[Patch]:
    real = evolve._flow_started

    def started(flow: Any, event: Any, at: float) -> None:
        real(flow, replace(event, timeout_at=event.timeout_at and event.timeout_at - 1.0), at)

    return [(evolve, "_APPLY", {**evolve._APPLY, evolve.e.FlowStarted: started})]


@mutant("machine", "a skipped Timer of the Flow fires for nobody", "liveness", "missed wait")
def _() -> list[Patch]:
    def skip(turn: Any, step_id: str, index: int | None) -> None:
        step = turn.state.steps.get(step_id)
        if index is not None and step is not None and step.phase == "waiting" and index not in step.fired:
            turn.emit(timers.TimerFired(step.id, index, skipped=True))

    return [(timers, "skip", skip)]


@mutant("machine", "an isolated RPC is applied though the data has changed", "isolation")
def _() -> list[Patch]:
    real = rpcs.refusal

    def refusal(flow_state: Any, spec: Any, result: Any, *, isolated: bool, data_version: int) -> Any:
        return real(flow_state, spec, result, isolated=False, data_version=data_version)

    return [(rpcs, "refusal", refusal)]


# Host -----------------------------------------------------------------------------------------------------------------


@mutant("host", "answers leave before they are durable", "told too early", "lost")
def _() -> list[Patch]:
    async def at_once(of: Any, future: Any) -> None:
        await asyncio.sleep(0)

    return [(requests, "patiently", at_once)]


@mutant("host", "attempts run before their start is durable", "handed out too early")
def _() -> list[Patch]:
    def run_ahead(self: Any, flow: Any, pending: Any) -> None:
        ahead, pending.tasks = pending.tasks, []
        for task, _ in ahead:
            self._hand_outs.run(flow, task)

    real = host.FlowHost._submit

    def submit(self: Any, flow: Any) -> None:
        flow.pending.sync = flow.pending.sync and not flow.pending.tasks
        real(self, flow)

    return [(host.FlowHost, "_run_ahead", run_ahead), (host.FlowHost, "_submit", submit)]


@mutant("host", "a refused record is taken for durable", "told too early", "lost", "sequence", "fencing", "liveness")
def _() -> list[Patch]:
    real = host.FlowHost._appended

    def appended(self: Any, flow: Any, seq: int, pending: Any, outcome: Any) -> None:
        real(self, flow, seq, pending, Outcome.DURABLE if outcome is Outcome.FENCED else outcome)

    return [(host.FlowHost, "_appended", appended)]


@mutant("host", "repeats of a request are done again", "two answers", "published twice", "RPC twice", "started twice")
def _() -> list[Patch]:
    async def unknown(*given: Any) -> None:
        return None

    real = memory.Database.verdict

    def verdict(self: Any, record: Any) -> Outcome:
        return real(self, unasked(record))

    return [
        (requests, "known_answer", unknown),
        (starting, "_answer_key", lambda request: f"start:{request.call_id}:{time.perf_counter_ns()}"),
        (memory.Database, "verdict", verdict),
    ]


def unasked(record: Any) -> Any:
    """The record, as if nobody had asked for it."""
    return dataclasses.replace(record, requests=())


@mutant("host", "a new owner does not interrupt what was handed out", "liveness", "stale attempt", "interrupt")
def _() -> list[Patch]:
    return [(steps, "interrupt", lambda turn, *more, **named: None)]


@mutant("host", "a new owner does not claim", "fencing", "liveness", "engine error")
def _() -> list[Patch]:
    return [(residents.Residents, "_epoch_of", lambda self, row: row.epoch)]


@mutant("host", "Flows are not resumed when their owner begins", "liveness")
def _() -> list[Patch]:
    async def nothing(self: Any) -> None:
        return None

    return [(residents.Residents, "recover", nothing), (residents.Residents, "sweep", nothing)]


@mutant("host", "an alarm is set for one Flow at a time", "liveness")
def _() -> list[Patch]:
    from dexray.engine.alarm import Alarm

    real = Alarm.set

    def once(self: Any, when: float, flow_id: str) -> None:
        self._times.clear()
        self._set_for = residents.NEVER
        real(self, when, flow_id)

    return [(Alarm, "set", once)]


@mutant(
    "host", "after an unknown outcome the batch is taken for written", "lost", "told too early", "sequence", "liveness"
)
def _() -> list[Patch]:
    async def optimistic(self: Any, batch: Any, error: Any) -> Any:
        return [Outcome.DURABLE for _ in batch]

    return [(committer.GroupCommitter, "_append_until_known", optimistic)]


@mutant("host", "after an unknown outcome the batch is written again without a look", "written again")
def _() -> list[Patch]:
    return [(memory.MemoryJournal, "read_back", lambda self, batch: [None for _ in batch])]


@mutant("host", "a slot is not given back when its record was refused", "slots", "liveness")
def _() -> list[Patch]:
    def give_up(self: Any, pending: Any, reason: Exception) -> None:
        for when in pending.whens:
            when(reason)

    return [(host.FlowHost, "_give_up", give_up)]


@mutant("host", "next_wake is stored as never", "next wake")
def _() -> list[Patch]:
    return [(live.LiveFlow, "next_wake", lambda self: residents.NEVER)]


@mutant("host", "a Flow with requests under way leaves memory", "liveness", "engine error", "told too early", "slots")
def _() -> list[Patch]:
    def is_idle(self: Any) -> bool:
        return not self.problem and not self.children

    return [(live.LiveFlow, "is_idle", property(is_idle))]


@mutant("host", "Attributes are told from memory", "told too early")
def _() -> list[Patch]:
    async def get_attribute(of: Any, request: Any) -> Any:
        flow = await requests.find(of, request.flow_id)
        value = flow.flow.state.attributes.get(request.name)
        return requests.s.AttributeValue(found=value is not None, value=value or b"")

    return [(requests, "_ANSWER", {**requests._ANSWER, requests.s.GetAttribute: get_attribute})]


@mutant("host", "the answer of an RPC leaves before its effect is durable", "told too early", "lost")
def _() -> list[Patch]:
    real = rpc.RpcDesk._conclude

    async def conclude(self: Any, call: Any, ran: Any) -> Any:
        self._host.spawn(_quietly(real(self, call, ran)))
        await asyncio.sleep(0)
        return requests.s.RpcAnswer(output=ran.result.output)

    return [(rpc.RpcDesk, "_conclude", conclude)]


async def _quietly(work: Any) -> None:
    try:
        await work
    except Exception:
        return


@mutant(
    "host",
    "a SubFlow is started under a new request id each time",
    "started twice",
    "SubFlow",
    "liveness",
    "two answers",
)
def _() -> list[Patch]:
    counter = iter(range(10**9))

    def unstable(run_id: str, step: str, number: int) -> str:
        return f"subflow:{run_id}/{step}/{number}/{next(counter)}"

    return [
        (subflows, "start_request_id", unstable),
        (starting, "_SUBFLOWS", dict.fromkeys(starting._SUBFLOWS, ("terminate", "start", "start"))),
    ]


@mutant("host", "a Flow that has closed is started anew whatever the policy says", "reuse policy")
def _() -> list[Patch]:
    real = starting.verdict
    return [(starting, "verdict", lambda policy, status: real(policy, status) if status == "RUNNING" else "start")]


@mutant("host", "a detached attempt is interrupted with its owner", "detached")
def _() -> list[Patch]:
    return [(hand_outs.HandOuts, "adopt", lambda self, flow: frozenset())]


@mutant("host", "a detached attempt is let go before its outcome is durable", "settled too early", "detached")
def _() -> list[Patch]:
    real = host.FlowHost.attempt_finished

    def finished(self: Any, key: Any, result: Any) -> None:
        real(self, key, result)
        self._hand_outs.settled([key])

    return [(host.FlowHost, "attempt_finished", finished)]


@mutant("host", "a detached attempt that came too late is let go at once", "settled too early", "detached")
def _() -> list[Patch]:
    return [(host.FlowHost, "_let_go", lambda self, flow, key: self._hand_outs.settled([key]))]


@mutant("host", "a detached attempt runs ahead of its record", "handed out too early", "two at once")
def _() -> list[Patch]:
    real = host.FlowHost._run_ahead

    def run_ahead(self: Any, flow: Any, pending: Any) -> None:
        detached = [entry for entry in pending.tasks if entry[0].detached and entry[1] == "ASYNC"]
        pending.tasks = [entry for entry in pending.tasks if all(entry is not one for one in detached)]
        for task, _ in detached:
            self._hand_outs.run(flow, task)
        real(self, flow, pending)

    return [(host.FlowHost, "_run_ahead", run_ahead)]


@mutant("host", "no detached attempt is wanted", "settled too early", "detached")
def _() -> list[Patch]:
    async def is_wanted(self: Any, key: Any) -> bool:
        return False

    return [(host.FlowHost, "is_wanted", is_wanted)]


# Journal --------------------------------------------------------------------------------------------------------------


@mutant("journal", "epochs are not compared", "fencing", "sequence")
def _() -> list[Patch]:
    def verdict(self: Any, record: Any) -> Outcome:
        run = self.runs.get(record.run_id)
        if record.new_run is not None:
            return memory.DURABLE if run is None else memory.FENCED
        return memory.DURABLE if run is not None and record.seq == len(run.records) + 1 else memory.FENCED

    return [(memory.Database, "verdict", verdict)]


@mutant("journal", "a life that was given up may write", "outlived")
def _() -> list[Patch]:
    return [(memory.MemoryJournal, "_is_outlived", lambda self: False)]


@mutant("journal", "two current runs of a Flow ID are allowed", "one run")
def _() -> list[Patch]:
    real = memory.Database.verdict

    def verdict(self: Any, record: Any) -> Outcome:
        found = real(self, record)
        return memory.DURABLE if found is memory.CONFLICT else found

    return [(memory.Database, "verdict", verdict)]


@mutant(
    "journal",
    "a request may be answered twice",
    "two answers",
    "published twice",
    "RPC twice",
    "started twice",
    "written twice",
)
def _() -> list[Patch]:
    real = memory.Database.verdict
    return [(memory.Database, "verdict", lambda self, record: real(self, unasked(record)))]


@mutant(
    "journal",
    "a record is lost now and then, though it was called durable",
    "sequence",
    "told too early",
    "lost",
    "liveness",
)
def _() -> list[Patch]:
    real = memory.Database.write
    counter = [0]

    def write(self: Any, who: str, record: Any) -> None:
        counter[0] += 1
        if counter[0] % 11 or record.new_run is not None:
            real(self, who, record)

    return [(memory.Database, "write", write)]


@mutant("journal", "a claim does not raise the epoch", "fencing")
def _() -> list[Patch]:
    real = memory.MemoryJournal.claim

    def claim(self: Any, run_ids: Any, owner: str) -> dict[str, int]:
        found = real(self, run_ids, owner)
        for run_id in found:
            self.database.runs[run_id].epoch -= 1
            found[run_id] -= 1
        return found

    return [(memory.MemoryJournal, "claim", claim)]


@mutant("journal", "a load misses the newest record", "liveness", "engine error", "books", "fencing")
def _() -> list[Patch]:
    real = memory.MemoryJournal.load

    def load(self: Any, run_id: str) -> Any:
        found = real(self, run_id)
        if found is None or not found.tail:
            return found
        return dataclasses.replace(found, tail=found.tail[:-1])

    return [(memory.MemoryJournal, "load", load)]


@mutant(
    "journal",
    "answers of requests are not kept",
    "two answers",
    "published twice",
    "RPC twice",
    "started twice",
    "liveness",
)
def _() -> list[Patch]:
    real = memory.Database.verdict
    return [
        (memory.MemoryJournal, "recorded_answer", lambda self, flow_id, request_id: None),
        (memory.Database, "verdict", lambda self, record: real(self, unasked(record))),
    ]


# The auditor's own eyes -----------------------------------------------------------------------------------------------


@mutant("auditor", "the books try Channels before Timers", "conditions")
def _() -> list[Patch]:
    real = books.groups

    def groups(wait: Any) -> Any:
        found = list(real(wait))
        return reversed(found) if wait["kind"] == "any_of" else found

    return [(books, "groups", groups)]


@mutant(
    "auditor",
    "the books forget an Attribute that was deleted and written again",
    "snapshot",
    "told too early",
    "isolation",
)
def _() -> list[Patch]:
    def written(run: Any, event: Any, at: float) -> None:
        run.attributes = {name: value for name, value in event[1].items() if value is not None}

    return [(auditor, "APPLY", _with("AttributesWritten/1", written))]


def _with(kind: str, apply: Any) -> dict[str, Any]:
    return {**books.APPLY, kind: apply}


if __name__ == "__main__":
    sys.exit(hunt())
