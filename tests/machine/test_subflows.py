"""What a wait for SubFlows makes of their ends, and what execute is told of those that have not ended."""

from __future__ import annotations

import pytest

from dex.wire.service import Completion
from dexray.machine import commands, conditions, subflows
from dexray.machine.describe import describe_wait
from dexray.machine.events import ConditionsMet, SubFlowEnded
from dexray.machine.state import StepState
from dexray.machine.subflows import wanted
from dexray.machine.turn import Turn
from dexray.protocol.attempts import ConditionSpec, WaitSpec
from dexray.protocol.subflows import SubFlowResult, SubFlowSpec
from tests.machine.build import (
    Bench,
    all_of,
    any_combination_of,
    any_of,
    dead_end,
    force_complete,
    go_to,
    one,
    picture,
    step,
    timer,
    until,
)


def child(flow_type: str = "Child", name: str = "") -> ConditionSpec:
    return ConditionSpec("subflow", name, subflow=SubFlowSpec(flow_type=flow_type, input=b"in", reuse_policy="ATTACH"))


def ended(status: str = "COMPLETED", output: bytes | None = b"out") -> SubFlowResult:
    return SubFlowResult(status, "child-run", (Completion("Last", "Last-1", output),))


def waiting(wait: WaitSpec) -> Bench:
    bench = Bench(step("A", wait_for=True), step("B")).start()
    bench.wait("A-1", wait)
    return bench


def end(bench: Bench, index: int, result: SubFlowResult | None = None, step_id: str = "A-1") -> Turn:
    """The SubFlow of this condition has ended."""
    known = bench.flow.state.steps.get(step_id)
    conditions = known.wait.conditions if known is not None and known.wait is not None else ()
    number = sum(condition.kind == "subflow" for condition in conditions[:index])
    return bench.do(commands.EndSubFlow(step=step_id, number=number, index=index, result=result or ended()))


def has_ended(bench: Bench) -> bool:
    return bench.phase("A-1") == "execute ready"


def told(bench: Bench) -> list[tuple[str, str]]:
    """What execute is told of each SubFlow: its Flow ID and its status."""
    return [(one.subflow_id, one.subflow_status) for one in bench.step("A-1").conditions if one.kind == "subflow"]


@pytest.mark.statement("B82", "B83")
def test_a_wait_for_a_subflow_ends_with_the_subflow() -> None:
    bench = waiting(until(child()))
    assert not has_ended(bench)
    assert bench.last.parents == ["A-1"]
    end(bench, 0)
    assert has_ended(bench)
    assert told(bench) == [("SubFlow:flow-A-1-0", "COMPLETED")]
    assert bench.step("A-1").conditions[0].subflow_completions == (("Last", "Last-1", b"out"),)


@pytest.mark.statement("B87")
def test_execute_is_told_how_a_failed_subflow_failed() -> None:
    bench = waiting(until(child()))
    end(bench, 0, SubFlowResult("FAILED", "r", (), "STEP_DECISION_FAILED", "no stock"))
    (result,) = bench.step("A-1").conditions
    assert result.fired
    assert (result.subflow_status, result.subflow_error_type, result.subflow_error_message) == (
        "FAILED",
        "STEP_DECISION_FAILED",
        "no stock",
    )


@pytest.mark.statement("B96")
def test_all_of_waits_for_every_subflow_whatever_the_order_of_their_ends() -> None:
    bench = waiting(all_of(child(), one("box"), child(), child()))
    end(bench, 3)
    end(bench, 0)
    bench.publish("box", b"1")
    assert not has_ended(bench)
    assert [at.index for at in wanted(bench.step("A-1"))] == [2]
    end(bench, 2, ended("CANCELED"))
    assert has_ended(bench)
    assert told(bench) == [
        ("SubFlow:flow-A-1-0", "COMPLETED"),
        ("SubFlow:flow-A-1-1", "CANCELED"),
        ("SubFlow:flow-A-1-2", "COMPLETED"),
    ]


@pytest.mark.statement("B89", "B90")
def test_of_an_ended_subflow_and_a_message_that_are_there_together_the_message_wins() -> None:
    bench = waiting(any_combination_of([child(name="c"), one("a", "a"), one("box", "b")], (0, 1), (2,)))
    end(bench, 0)
    assert not has_ended(bench)
    race = waiting(any_of(child(), one("box")))
    race.publish("box", b"1")
    assert told(race) == [("SubFlow:flow-A-1-0", "RUNNING")]


# C5
@pytest.mark.statement("B88", "B89")
def test_a_subflow_that_lost_gives_a_running_snapshot_and_is_still_to_be_started() -> None:
    bench = waiting(any_of(child("First"), child("Second"), timer(5)))
    bench.advance(5)
    assert told(bench) == [("SubFlow:flow-A-1-0", "RUNNING"), ("SubFlow:flow-A-1-1", "RUNNING")]
    assert not any(result.fired for result in bench.step("A-1").conditions[:2])
    assert [(at.number, at.spec.flow_type, at.index) for at in wanted(bench.step("A-1"))] == [
        (0, "First", None),
        (1, "Second", None),
    ]
    bench.crash()
    assert len(wanted(bench.step("A-1"))) == 2
    bench.succeed("A-1", dead_end())
    assert bench.open == []


def test_a_wait_that_is_met_at_its_commit_starts_its_subflows_all_the_same() -> None:
    bench = waiting(any_of(child(), timer(0)))
    assert has_ended(bench)
    assert bench.last.parents == ["A-1"]
    assert [at.number for at in wanted(bench.step("A-1"))] == [0]


@pytest.mark.statement("B97")
def test_a_group_is_met_by_its_own_subflows_and_others_that_ended_are_told_as_they_are() -> None:
    groups = [child(name="a"), child(name="b"), child(name="c"), one("go", "go")]
    bench = waiting(any_combination_of(groups, (0, 1), (2, 3)))
    end(bench, 0)
    end(bench, 2)
    assert not has_ended(bench)
    bench.publish("go", b"1")
    met = bench.of(ConditionsMet)[0]
    assert met.winners == (2, 3)
    assert [status for _, status in told(bench)] == ["COMPLETED", "RUNNING", "COMPLETED"]


@pytest.mark.parametrize("index", [1, 2])
def test_the_end_of_what_is_no_subflow_of_the_wait_is_refused(index: int) -> None:
    bench = waiting(all_of(child(), one("box"), timer(9)))
    assert end(bench, index).events == []


def test_an_end_counts_once_and_only_while_its_wait_is_open() -> None:
    bench = waiting(all_of(child(), child()))
    end(bench, 0)
    assert end(bench, 0, ended("FAILED")).events == []
    assert end(bench, 1, step_id="A-2").events == []
    end(bench, 1)
    assert has_ended(bench)
    assert end(bench, 1).events == []
    assert told(bench)[0][1] == "COMPLETED"
    assert len(bench.of(SubFlowEnded)) == 2


# C14
def test_the_subflows_of_a_cancelled_step_are_forgotten() -> None:
    bench = Bench(step("S"), step("A", wait_for=True), step("B")).start()
    bench.succeed("S-1", go_to("A", "B"))
    bench.wait("A-1", all_of(child(), child()))
    end(bench, 0)
    bench.succeed("B-1", dead_end(canceling=["A"]))
    assert bench.open == []
    assert end(bench, 1).events == []


def test_a_closed_parent_hears_of_no_subflow_any_more() -> None:
    bench = Bench(step("S"), step("A", wait_for=True), step("B")).start()
    bench.succeed("S-1", go_to("A", "B"))
    bench.wait("A-1", until(child()))
    bench.succeed("B-1", force_complete())
    assert bench.closed
    assert end(bench, 0).events == []


def test_each_step_execution_has_children_of_its_own() -> None:
    bench = Bench(step("A", wait_for=True)).start()
    bench.wait("A-1", until(child()))
    end(bench, 0)
    bench.succeed("A-1", go_to("A"))
    bench.wait("A-2", all_of(timer(0), child()))
    end(bench, 1, step_id="A-2")
    assert [event.flow_id for event in bench.of(SubFlowEnded)] == ["SubFlow:flow-A-1-0", "SubFlow:flow-A-2-0"]


def test_what_has_ended_and_what_is_still_wanted_survive_a_checkpoint() -> None:
    bench = waiting(all_of(child(), child()))
    end(bench, 1)
    bench.checkpoint()
    bench.crash()
    assert [at.index for at in wanted(bench.step("A-1"))] == [0]
    end(bench, 0, ended("TERMINATED"))
    assert [status for _, status in told(bench)] == ["TERMINATED", "COMPLETED"]
    bench.checkpoint()
    assert picture(bench.flow) == picture(bench.shadow)


def test_a_wait_for_subflows_is_told_in_words() -> None:
    bench = waiting(all_of(child("Ship"), timer(5), child("Bill")))
    end(bench, 2)
    step_state = bench.step("A-1")
    assert step_state.wait is not None
    words = describe_wait("flow", step_state.wait, step_state, {})
    assert "SubFlow SubFlow:flow-A-1-0 of type Ship and Timer until" in words
    assert "SubFlow SubFlow:flow-A-1-1 of type Bill (ended)" in words


def test_a_wait_for_very_many_subflows_is_told_in_few_words() -> None:
    bench = waiting(all_of(*(child() for _ in range(50))))
    end(bench, 49)
    step_state = bench.step("A-1")
    assert step_state.wait is not None
    words = describe_wait("flow", step_state.wait, step_state, {})
    assert words.endswith(" and 30 more (1 SubFlows have ended)")


def test_a_wait_for_very_many_is_not_looked_at_in_full_for_each_end(monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[str] = []

    def evaluate(turn: Turn, step_state: StepState) -> None:
        looks.append(step_state.id)
        conditions.evaluate(turn, step_state)

    monkeypatch.setattr(subflows, "evaluate", evaluate)
    bench = waiting(all_of(*(child() for _ in range(20))))
    for index in reversed(range(20)):
        end(bench, index)
    assert has_ended(bench)
    assert looks == ["A-1"]
