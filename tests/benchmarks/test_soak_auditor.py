"""The auditor of the soak finds what must not be. Each test tells a true story, sees that nothing is said against it,
and then falsifies one witness.

The stories are written by hand, as the journal's format says; one is played by the real engine, in process, to see that
it writes what the auditor reads.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgpack
import psycopg
import pytest

from dex import AsyncClient
from dexray.engine import HostSettings
from dexray.journal import Journal, open_journal
from dexray.journal.interface import Append
from dexray.testing import InProcessEngine, VirtualClock, VirtualLoop
from tests.benchmarks.soak.audit import audit
from tests.benchmarks.soak.evidence import Effect, Evidence, Row, Run, read_all, write_evidence
from tests.benchmarks.soak.flows import EFFECTS, LETTERS, PARENT, REGISTRY, Letters, letter
from tests.benchmarks.soak.plan import KINDS, plan_of
from tests.benchmarks.soak.producer import Producer
from tests.benchmarks.soak.records import Records, read_records
from tests.postgres import postgres_server

FLOW = "p0-0-letters"
RUN = "run-1"


def said(what: str, **data: Any) -> dict[str, Any]:
    return {"at": 0.0, "by": "p0", "what": what, "flow": FLOW, **data}


def acked(key: str, answer: Any, **data: Any) -> list[dict[str, Any]]:
    call = {"request": f"{FLOW}/{key}", "key": key, **data}
    return [said("asked", **call), said("acked", answer=answer, **call)]


def published(message_id: str, value: str) -> list[Any]:
    return ["MessagePublished/1", "letter", message_id, msgpack.packb(value), ""]


def failed(attempt: int) -> list[Any]:
    return ["AttemptFailed/1", "Collect-1", "execute", ["RuntimeError", "", "CRASH", attempt, 3.0], 4.0]


def completed(step: str, attempt: int) -> list[list[Any]]:
    recorded = ["EventRecorded/1", step, "attempt", msgpack.packb(attempt)]
    return [["StepCompleted/1", step, "graceful_complete", None], recorded]


def a_story() -> Evidence:
    """Two letters of one writer; the first attempt failed, and another owner came."""
    plan = {"writers": {"ann": 2}}
    records = [
        said("begun", number=0, kind="letters", plan=plan),
        *acked("start", RUN),
        *acked("ann-0", ["m1"], values=["ann:0"]),
        *acked("ann-1", ["m2"], values=["ann:1"]),
        said("ended", status="COMPLETED", outputs=[["ann:0", "ann:1"]], error=""),
    ]
    rows = [
        Row(1, 1, 1.0, [["FlowStarted/1", FLOW, RUN], ["StepScheduled/1", "Collect-1"]]),
        Row(2, 1, 2.0, [["AttemptStarted/1", "Collect-1", "wait_for", 1]]),
        Row(3, 1, 2.0, [["WaitStarted/1", "Collect-1", [], [0.0, 10.0], {}]]),
        Row(4, 1, 2.0, [published("m1", "ann:0")]),
        Row(5, 1, 2.0, [published("m2", "ann:1")]),
        Row(6, 1, 12.0, [["TimerFired/1", "Collect-1", 1, False]]),
        Row(7, 1, 12.0, [["ConditionsMet/1", "Collect-1", [0], [[0, ["m1", "m2"]]], "SYNC"]]),
        Row(8, 1, 12.0, [["AttemptStarted/1", "Collect-1", "execute", 1]]),
        Row(9, 2, 13.0, [failed(1)]),
        Row(10, 2, 14.0, [["AttemptStarted/1", "Collect-1", "execute", 2]]),
        Row(11, 2, 15.0, [*completed("Collect-1", 2), ["FlowClosed/1", "COMPLETED"]]),
    ]
    effects = [Effect(FLOW, "Collect-1", 1, 12.0), Effect(FLOW, "Collect-1", 2, 14.0)]
    run = Run(RUN, FLOW, "LetterFlow", "COMPLETED", 2, True, None)
    return Evidence({"p0": records}, effects, [run], {RUN: rows})


def found_in(evidence: Evidence, least: int = 1) -> set[str]:
    """The kinds of the violations."""
    return {violation.partition(":")[0] for violation in audit(evidence, least=least).violations}


def test_a_true_story_has_no_violation() -> None:
    found = audit(a_story(), least=1)
    assert found.violations == []
    assert (found.figures["flows"], found.figures["steps"], found.figures["messages"]) == (1, 1, 2)
    assert found.figures["owners_changed"] == 1


# What can be false ----------------------------------------------------------------------------------------------------


def record_of(evidence: Evidence, what: str, key: str = "") -> dict[str, Any]:
    return next(one for one in evidence.records["p0"] if one["what"] == what and one.get("key", "") == key)


def row(evidence: Evidence, seq: int) -> Row:
    return evidence.rows[RUN][seq - 1]


def change(evidence: Evidence, seq: int, **fields: Any) -> None:
    evidence.rows[RUN][seq - 1] = replace(row(evidence, seq), **fields)


def lose_the_run(evidence: Evidence) -> None:
    evidence.runs.clear()
    evidence.rows.clear()


def double_the_run(evidence: Evidence) -> None:
    evidence.runs.append(replace(evidence.runs[0], run_id="run-2"))


def never_acknowledge_the_start(evidence: Evidence) -> None:
    evidence.records["p0"].remove(record_of(evidence, "acked", "start"))


def invent_a_flow(evidence: Evidence) -> None:
    evidence.runs.append(replace(evidence.runs[0], run_id="run-2", flow_id="p0-9-fan"))


def lose_a_message(evidence: Evidence) -> None:
    record_of(evidence, "ended")["outputs"] = [["ann:0"]]


def lose_a_message_in_the_journal(evidence: Evidence) -> None:
    change(evidence, 5, events=[])


def double_a_message(evidence: Evidence) -> None:
    record_of(evidence, "ended")["outputs"] = [["ann:0", "ann:0", "ann:1"]]


def swap_messages(evidence: Evidence) -> None:
    record_of(evidence, "ended")["outputs"] = [["ann:1", "ann:0"]]


def take_the_newer_message_first(evidence: Evidence) -> None:
    row(evidence, 7).events[0][3] = [[0, ["m2"]]]


def take_a_message_again(evidence: Evidence) -> None:
    row(evidence, 9).events.append(["ConditionsMet/1", "Collect-2", [0], [[0, ["m1"]]], "SYNC"])


def publish_a_message_again(evidence: Evidence) -> None:
    row(evidence, 6).events.append(published("m1", "ann:0"))


def end_twice(evidence: Evidence) -> None:
    evidence.records["p0"].append(said("ended", status="FAILED", outputs=[], error=""))


def tell_another_end(evidence: Evidence) -> None:
    evidence.runs[0] = replace(evidence.runs[0], status="FAILED")


def fail_the_flow(evidence: Evidence) -> None:
    tell_another_end(evidence)
    record_of(evidence, "ended").update(status="FAILED", outputs=[])
    row(evidence, 11).events[-1][1] = "FAILED"


def leave_it_open(evidence: Evidence) -> None:
    evidence.runs[0] = replace(evidence.runs[0], status="RUNNING", is_closed=False)


def fire_early(evidence: Evidence) -> None:
    change(evidence, 6, at=9.0)


def commit_with_an_old_epoch(evidence: Evidence) -> None:
    change(evidence, 10, epoch=1)


def commit_with_an_epoch_of_nobody(evidence: Evidence) -> None:
    change(evidence, 11, epoch=3)


def lose_a_record(evidence: Evidence) -> None:
    del evidence.rows[RUN][5]


def complete_by_the_first_attempt(evidence: Evidence) -> None:
    change(evidence, 11, events=[*completed("Collect-1", 1), ["FlowClosed/1", "COMPLETED"]])


def complete_without_running(evidence: Evidence) -> None:
    del evidence.effects[1]


def run_an_attempt_twice(evidence: Evidence) -> None:
    evidence.effects.append(evidence.effects[0])


def start_the_second_attempt_beside_the_first(evidence: Evidence) -> None:
    change(evidence, 9, events=[])


def complete_twice(evidence: Evidence) -> None:
    row(evidence, 11).events[0:0] = completed("Collect-1", 2)


def fail_an_attempt_that_is_over(evidence: Evidence) -> None:
    row(evidence, 11).events.append(failed(1))


def start_an_attempt_of_a_step_that_has_ended(evidence: Evidence) -> None:
    row(evidence, 11).events[2:2] = [failed(2), ["AttemptStarted/1", "Collect-1", "execute", 3]]


def schedule_twice(evidence: Evidence) -> None:
    row(evidence, 2).events.append(["StepScheduled/1", "Collect-1"])


def acknowledge_another_run(evidence: Evidence) -> None:
    record_of(evidence, "acked", "start")["answer"] = "run-0"


def tell_nobody_the_end(evidence: Evidence) -> None:
    evidence.records["p0"].pop()


def close_the_run_alone(evidence: Evidence) -> None:
    row(evidence, 11).events.pop()


def publish_after_the_end(evidence: Evidence) -> None:
    evidence.rows[RUN].append(Row(12, 2, 16.0, [published("m3", "ann:2")]))


def answer_with_an_error_of_no_reason(evidence: Evidence) -> None:
    refused = said("refused", request="", operation="publish", code="INTERNAL", is_closed=False, detail="?")
    evidence.records["p0"].insert(2, refused)


@pytest.mark.parametrize(
    ("falsify", "kind"),
    [
        (lose_the_run, "a lost start"),
        (double_the_run, "a doubled start"),
        (never_acknowledge_the_start, "unsettled"),
        (invent_a_flow, "out of nowhere"),
        (lose_a_message, "a lost message"),
        (lose_a_message_in_the_journal, "a lost message"),
        (double_a_message, "a doubled message"),
        (swap_messages, "out of order"),
        (take_the_newer_message_first, "out of order"),
        (take_a_message_again, "doubled"),
        (publish_a_message_again, "doubled"),
        (end_twice, "two ends"),
        (tell_another_end, "two ends"),
        (fail_the_flow, "a wrong end"),
        (leave_it_open, "unsettled"),
        (fire_early, "an early timer"),
        (commit_with_an_old_epoch, "a stale owner committed"),
        (commit_with_an_epoch_of_nobody, "a stale owner committed"),
        (lose_a_record, "a gap"),
        (complete_by_the_first_attempt, "a stale attempt"),
        (complete_without_running, "nobody ran"),
        (run_an_attempt_twice, "an attempt ran twice"),
        (start_the_second_attempt_beside_the_first, "a wrong attempt"),
        (complete_twice, "a Step ended twice"),
        (fail_an_attempt_that_is_over, "a stale attempt"),
        (start_an_attempt_of_a_step_that_has_ended, "a wrong attempt"),
        (schedule_twice, "doubled"),
        (acknowledge_another_run, "a lost start"),
        (tell_nobody_the_end, "unsettled"),
        (tell_nobody_the_end, "too few"),
        (leave_it_open, "the end"),
        (close_the_run_alone, "the end"),
        (publish_after_the_end, "after the end"),
        (answer_with_an_error_of_no_reason, "an error"),
    ],
)
def test_what_is_false_is_found(falsify: Callable[[Evidence], None], kind: str) -> None:
    evidence = a_story()
    falsify(evidence)
    assert kind in found_in(evidence)


def test_what_was_found_is_kept_with_the_history_of_the_flow(tmp_path: Path) -> None:
    evidence = a_story()
    commit_with_an_old_epoch(evidence)
    logs = tmp_path / "ray" / "session_2026" / "logs"
    logs.mkdir(parents=True)
    (logs / "raylet.out").write_text("it was me")
    write_evidence(tmp_path, evidence, found := audit(evidence, least=1))
    assert (tmp_path / "violations").read_text().splitlines() == found.violations
    kept = (tmp_path / "journal.jsonl").read_text()
    assert FLOW in kept
    assert '["StepCompleted/1", "Collect-1"' in kept
    assert (tmp_path / "logs" / "session_2026" / "raylet.out").read_text() == "it was me"


def test_a_soak_that_does_too_little_does_not_pass() -> None:
    assert found_in(a_story(), least=2) == {"too few"}


# The counter: what callers of RPCs were told --------------------------------------------------------------------------


def a_count(answers: dict[str, int], output: list[int], reads: tuple[tuple[str, int], ...] = ()) -> set[str]:
    """Adds of 2 and 3; `answers` by call."""
    records = [said("begun", number=0, kind="counter", plan={"adds": [[2], [3]]}), *acked("start", RUN)]
    for key, amount in (("add-0-0", 2), ("add-1-0", 3)):
        records += acked(key, answers[key], amount=amount)
    for number in (1, 2, 3):
        records += acked(f"mark-{number}", None, value=number)
    for name, value in reads:
        records += [said("reading", name=name), said("read", name=name, value=value)]
    records.append(said("ended", status="COMPLETED", outputs=[output], error=""))
    run = Run(RUN, FLOW, "CounterFlow", "COMPLETED", 1, True, None)
    rows = [Row(1, 1, 1.0, [["FlowStarted/1", FLOW, RUN], ["FlowClosed/1", "COMPLETED"]])]
    return found_in(Evidence({"p0": records}, [], [run], {RUN: rows}))


def test_increments_are_there_once_in_some_order() -> None:
    assert a_count({"add-0-0": 2, "add-1-0": 5}, [5, 3]) == set()
    assert a_count({"add-0-0": 5, "add-1-0": 3}, [5, 3]) == set()
    assert a_count({"add-0-0": 2, "add-1-0": 3}, [5, 3]) == {"a lost or doubled RPC"}  # one did not see the other
    assert a_count({"add-0-0": 2, "add-1-0": 5}, [7, 3]) == {"a lost or doubled RPC"}
    assert a_count({"add-0-0": 2, "add-1-0": 5}, [5, 2]) == {"a lost or doubled RPC"}


def test_a_read_shows_what_was_acknowledged() -> None:
    answers = {"add-0-0": 2, "add-1-0": 5}
    assert a_count(answers, [5, 3], (("total-0", 5), ("mark", 3))) == set()
    assert a_count(answers, [5, 3], (("total-0", 2),)) == {"a stale read"}
    assert a_count(answers, [5, 3], (("mark", 2),)) == {"a stale read"}


# Other kinds ----------------------------------------------------------------------------------------------------------


def of_kind(
    kind: str,
    plan: dict[str, Any],
    outputs: list[Any],
    *,
    status: str = "COMPLETED",
    more: tuple[dict[str, Any], ...] = (),
    children: int = 0,
) -> set[str]:
    """What is found in a story that says no more than how it ended, and `more` records before that."""
    records = [
        said("begun", number=0, kind=kind, plan=plan),
        *acked("start", RUN),
        *more,
        said("ended", status=status, outputs=outputs, error=""),
    ]
    runs = [Run(RUN, FLOW, kind, status, 1, True, None)]
    runs += [Run(f"child-{number}", f"c-{number}", "Leaf", "COMPLETED", 1, True, FLOW) for number in range(children)]
    rows = {run.run_id: [Row(1, 1, 1.0, [["FlowStarted/1"], ["FlowClosed/1", run.status]])] for run in runs}
    return found_in(Evidence({"p0": records}, [], runs, rows), least=0)


def test_a_nap_is_never_shorter_than_asked() -> None:
    plan = {"seconds": [3], "wake_after": None}
    assert of_kind("naps", plan, [[[3, 3.01, "timer"]]]) == set()
    assert of_kind("naps", plan, [[[3, 2.9, "timer"]]]) == {"an early timer"}
    assert of_kind("naps", plan, [[[3, 2.0, "message"]]]) == {"a doubled message"}  # nobody sent one
    assert of_kind("naps", plan, [[[3, 2.0, "message"]]], more=tuple(acked("wake", ["m1"]))) == set()


def test_a_wake_may_come_too_late_and_no_other_message() -> None:
    late = said("refused", operation="publish", code="FAILED_PRECONDITION", is_closed=True, detail="")
    assert of_kind("naps", {"seconds": [3], "wake_after": 1.0}, [[[3, 3.0, "timer"]]], more=(late,)) == set()
    assert of_kind("fan", {"width": 1}, [[0]], more=(late,)) == {"an error"}


def test_a_branch_joins_once() -> None:
    assert of_kind("fan", {"width": 3}, [[0, 1, 2]]) == set()
    assert of_kind("fan", {"width": 3}, [[0, 1]]) == {"a wrong output"}
    assert of_kind("fan", {"width": 3}, [[0, 1, 1, 2]]) == {"a wrong output"}


def test_a_child_is_started_once() -> None:
    plan = {"children": [1, -1]}
    assert of_kind("parent", plan, [[10, -1]], children=2) == set()
    assert of_kind("parent", plan, [[10, -1]], children=3) == {"a doubled start"}
    assert of_kind("parent", plan, [[10, 10]], children=2) == {"a wrong output"}


@pytest.mark.parametrize(
    ("kind", "plan", "status"),
    [
        ("naps", {"seconds": [3], "wake_after": None}, "COMPLETED"),
        ("flaky", {"fails": 1}, "COMPLETED"),
        ("train", {"seconds": 1}, "COMPLETED"),
        ("stream", {"messages": 2, "own": 0}, "COMPLETED"),
        ("stay", {"how": "CANCEL"}, "CANCELED"),
    ],
)
def test_an_output_is_the_one_that_was_planned(kind: str, plan: dict[str, Any], status: str) -> None:
    assert of_kind(kind, plan, [[[7, 9.0, "timer"]]], status=status) == {"a wrong output"}


def a_trip(answer: str, *stops: int, runs: int = 2) -> set[str]:
    """Back after the first of two stops."""
    records = [
        said("begun", number=0, kind="trip", plan={"stops": 2, "back_after": 1}),
        *acked("start", "run-1"),
        *acked("stop-0", ["m1"], values=[0]),
        *acked("back", answer, is_travel=True),
        *acked("stop-1", ["m2"], values=[1]),
        said("ended", status="COMPLETED", outputs=[list(stops)], error=""),
    ]
    ends = ["TERMINATED", *["COMPLETED"] * (runs - 1)]
    found = [Run(f"run-{number}", FLOW, "TripFlow", end, 1, True, None) for number, end in enumerate(ends, 1)]
    rows = {run.run_id: [Row(1, 1, 1.0, [["FlowStarted/1"], ["FlowClosed/1", run.status]])] for run in found}
    return found_in(Evidence({"p0": records}, [], found, rows), least=0)


def test_a_time_travel_is_there_once_with_what_came_from_outside() -> None:
    assert a_trip("run-2", 0, 1) == set()
    assert a_trip("run-2", 1) == {"a lost or doubled message"}
    assert a_trip("run-2", 0, 0, 1) == {"a lost or doubled message"}
    assert a_trip("run-1", 0, 1) == {"a lost time travel"}
    assert a_trip("run-2", 0, 1, runs=3) == {"a doubled start"}
    assert "a lost start" in a_trip("run-2", 0, 1, runs=1)


def test_a_search_finds_what_was_acknowledged() -> None:
    assert a_count({"add-0-0": 2, "add-1-0": 5}, [5, 3], (("found", 1),)) == set()
    assert a_count({"add-0-0": 2, "add-1-0": 5}, [5, 3], (("found", 0),)) == {"a stale search"}


def removal(
    *, closed: float, missed: float | None, deleted: str = "", gone: bool = True, now: float = 500.0
) -> set[str]:
    """A Flow that closed, and was missed or not; `retention` is 200 s. deleted: "asked" or "acked" by a client."""
    records = [
        said("begun", number=0, kind="brief", plan={"steps": 0}),
        *acked("start", RUN),
        said("ended", status="COMPLETED", outputs=[0], error=""),
        *({"": [], "asked": acked("delete", None)[:1], "acked": acked("delete", None)}[deleted]),
        *([said("read", name="gone", value=gone)] if deleted == "acked" else []),
    ]
    run = Run(RUN, FLOW, "BriefFlow", "COMPLETED", 1, True, None)
    rows = {RUN: [Row(1, 1, closed, [["FlowStarted/1"], ["FlowClosed/1", "COMPLETED"]])]}
    evidence = Evidence({"p0": records}, [], [run], rows, {} if missed is None else {RUN: missed}, now)
    return {violation.partition(":")[0] for violation in audit(evidence, least=0, retention=200.0).violations}


def test_a_run_goes_when_its_time_is_over_and_not_before() -> None:
    assert removal(closed=100.0, missed=301.0) == set()
    assert removal(closed=100.0, missed=250.0) == {"removed too early"}
    assert removal(closed=250.0, missed=None) == set()
    assert removal(closed=100.0, missed=None) == {"not removed"}


def test_a_flow_that_was_deleted_is_gone_and_stays_so() -> None:
    assert removal(closed=100.0, missed=101.0, deleted="acked") == set()
    assert removal(closed=100.0, missed=101.0, deleted="asked") == set()
    assert removal(closed=400.0, missed=None, deleted="asked") == set()
    assert removal(closed=400.0, missed=None, deleted="acked") == {"not removed"}
    assert removal(closed=100.0, missed=101.0, deleted="acked", gone=False) == {"a stale read"}


def test_a_flow_ends_as_it_was_stopped() -> None:
    assert of_kind("stay", {"how": "CANCEL"}, [], status="CANCELED") == set()
    assert of_kind("stay", {"how": "CANCEL"}, [], status="TERMINATED") == {"a wrong end"}
    assert of_kind("flaky", {"fails": 0}, [], status="FAILED") == set()
    assert of_kind("flaky", {"fails": 1}, ["recovered"]) == set()
    assert of_kind("flaky", {"fails": 1}, [], status="FAILED") == {"a wrong end"}


def test_a_stream_repeats_nothing_within_an_attempt_and_has_what_clients_wrote() -> None:
    def stream(*messages: list[str]) -> set[str]:
        more = (*acked("news-0", None), said("read", name="news", value=list(messages)))
        return of_kind("stream", {"messages": 2, "own": 1}, [2], more=more)

    own = ["client-0", "client-0"]
    assert stream(["#Tell-1", "1:0"], own, ["#Tell-1", "1:1"]) == set()
    assert stream(["#Tell-1", "1:0"], ["#Tell-1", "2:0"], own) == set()  # another attempt begins again
    assert stream(own, ["#Tell-1", "1:1"]) == set()  # best effort
    assert stream(own, ["#Tell-1", "1:0"], ["#Tell-1", "1:0"]) == {"out of order"}
    assert stream(["#Tell-1", "1:0"], ["#Tell-1", "1:1"]) == {"a lost message"}


# Records --------------------------------------------------------------------------------------------------------------


def test_a_line_cut_off_by_a_kill_spoils_no_other(tmp_path: Path) -> None:
    path = tmp_path / "records"
    Records(path, "p0").write("begun", "a")
    with path.open("a") as cut:
        cut.write('{"what": "ack')
    Records(path, "p0").write("acked", "a")
    assert [record["what"] for record in read_records(path)] == ["begun", "acked"]


def test_a_plan_is_the_same_in_each_life() -> None:
    assert [plan_of(3, "p1", number) for number in range(50)] == [plan_of(3, "p1", number) for number in range(50)]
    assert {plan_of(3, "p1", number).kind for number in range(len(KINDS))} == set(KINDS)


# What the engine writes -----------------------------------------------------------------------------------------------


async def play(folder: Path, url: str, numbers: dict[str, int]) -> None:
    """The producer's Flows of some kinds, in process; the engine ends once in the middle, as by a kill."""

    def engine() -> InProcessEngine:
        journal = open_journal(url)
        journal.migrate()
        return InProcessEngine(REGISTRY, journal, clock, settings=HostSettings())

    clock = VirtualClock()
    first, second = engine(), engine()
    await first.start()
    (folder / "stop").touch()
    for kind, number in numbers.items():
        client = AsyncClient(REGISTRY, first)
        records = Records(folder / "records-p0.jsonl", "p0")
        plan = plan_of(5, "p0", number)
        assert plan.kind == kind
        records.write("begun", plan.flow, number=number, kind=plan.kind, plan=plan.what)
        if kind == "parent":  # the last: another owner goes on with what is begun
            await client.start_flow(PARENT, plan.flow, plan.what["children"], request_id=f"{plan.flow}/start")
            await first.crash()
            await second.start()
            client = AsyncClient(REGISTRY, second)
        await Producer(folder, "p0", 5, client).run()
    await second.close()


def test_what_the_engine_writes_is_what_the_auditor_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(EFFECTS, str(tmp_path / "effects"))
    server = postgres_server()
    url = server.new_database()
    # Without naps, which measure the wall's time, and without detached attempts and Streams, which need a cluster.
    kinds = ("letters", "fan", "counter", "flaky", "stay", "trip", "parent")
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(play(tmp_path, url, {kind: KINDS.index(kind) for kind in kinds}))
    evidence = read_all(tmp_path, url.replace("postgresql+psycopg:", "postgresql:"))
    found = audit(evidence, least=5)
    assert found.violations == []
    assert found.figures["owners_changed"] >= 1
    assert found.figures["attempts_failed"] >= 1
    server.drop_database(url)


class Unfenced:
    """A journal that takes what any owner brings: the epoch of a run is that of whoever writes."""

    def __init__(self, inner: Journal, url: str) -> None:
        self._inner = inner
        self._url = url.replace("postgresql+psycopg:", "postgresql:")

    def append(self, batch: Sequence[Append]) -> Any:
        return self._inner.append([self._let_in(record) for record in batch])

    def _let_in(self, record: Append) -> Append:
        with psycopg.connect(self._url, autocommit=True) as connection:
            ((last,),) = connection.execute("SELECT max(seq) FROM events WHERE run_id = %s", (record.run_id,))
            connection.execute("UPDATE runs SET epoch = %s WHERE run_id = %s", (record.epoch, record.run_id))
        return record if last is None else replace(record, seq=last + 1)

    def begin_life(self, owner: str) -> None:
        pass

    def __getattr__(self, operation: str) -> Any:
        return getattr(self._inner, operation)


async def two_owners(url: str, records: Records) -> None:
    """The first one freezes; when it thaws, another has the Flow and has written to it."""
    clock = VirtualClock()
    journal: Any = Unfenced(open_journal(url), url)
    journal.migrate()
    stale = InProcessEngine(REGISTRY, journal, clock)
    await stale.start()
    plan = {"writers": {"ann": 2}}
    records.write("begun", FLOW, number=0, kind="letters", plan=plan)
    run_id = await AsyncClient(REGISTRY, stale).start_flow(LETTERS, FLOW, Letters(2))
    await asyncio.sleep(1)
    owner = InProcessEngine(REGISTRY, open_journal(url), clock)
    await owner.start()
    clients = [AsyncClient(REGISTRY, engine) for engine in (owner, stale)]
    for number, client in enumerate(clients):
        await client.publish(FLOW, letter, f"ann:{number}")
        await asyncio.sleep(1)
    records.write("acked", FLOW, request="start", key="start", answer=run_id)
    await stale.crash()
    await owner.crash()


def test_an_engine_without_fencing_is_found_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(EFFECTS, str(tmp_path / "effects"))
    (tmp_path / "effects").touch()
    server = postgres_server()
    url = server.new_database()
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(two_owners(url, Records(tmp_path / "records-p0.jsonl", "p0")))
    assert "a stale owner committed" in found_in(read_all(tmp_path, url.replace("postgresql+psycopg:", "postgresql:")))
    server.drop_database(url)
