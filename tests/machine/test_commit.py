"""A method's writes are committed with its result, or not at all."""

from __future__ import annotations

import pytest

from dexray.machine.events import EventRecorded
from tests.machine.build import SKIP, Bench, dead_end, go_to, one, step, until

WRITES = {
    "publish": [("box", b"1")],
    "attributes": {"x": b"1"},
    "events": [("note", b"n")],
}


@pytest.mark.statement("B75")
def test_writes_of_execute_come_with_its_decision() -> None:
    bench = Bench(step("A"), step("B")).start()
    bench.hand_out("A-1")
    assert bench.queue("box") == []
    bench.succeed("A-1", go_to("B"), **WRITES)
    assert bench.queue("box") == [b"1"]
    assert bench.flow.state.attributes == {"x": b"1"}
    assert [(event.step, event.name, event.value) for event in bench.of(EventRecorded)] == [("A-1", "note", b"n")]


@pytest.mark.statement("B74", "B75")
def test_writes_of_wait_for_come_with_its_wait_and_before_execute() -> None:
    bench = Bench(step("A", wait_for=True)).start()
    bench.wait("A-1", until(one("other")), **WRITES)
    assert bench.phase("A-1") == "wait_for waiting"
    assert bench.queue("box") == [b"1"]
    assert bench.flow.state.attributes == {"x": b"1"}


@pytest.mark.statement("B74")
def test_what_wait_for_wrote_stays_when_execute_fails() -> None:
    bench = Bench(step("A", wait_for=True)).start()
    bench.wait("A-1", SKIP, attributes={"x": b"1"})
    bench.fail("A-1")
    assert bench.flow.state.attributes == {"x": b"1"}


@pytest.mark.statement("B76")
def test_one_commit_is_one_record() -> None:
    bench = Bench(step("A"), step("B")).start()
    bench.hand_out("A-1")
    before = len(bench.records)
    bench.succeed("A-1", go_to("B"), **WRITES)
    assert len(bench.records) == before + 1


@pytest.mark.statement("B76")
def test_a_failed_attempt_changes_nothing_but_the_step_itself() -> None:
    bench = Bench(step("A")).start(attributes={"x": b"0"})
    bench.publish("box", b"0")
    bench.fail("A-1")
    assert bench.flow.state.attributes == {"x": b"0"}
    assert bench.queue("box") == [b"0"]


def test_attributes_are_set_replaced_and_deleted() -> None:
    bench = Bench(step("A")).start(attributes={"x": b"0", "y": b"0", "z": b"0"})
    bench.succeed("A-1", dead_end(), attributes={"x": b"1", "y": None, "none": None, "new": b"2"})
    assert bench.flow.state.attributes == {"x": b"1", "z": b"0", "new": b"2"}
    bench.set("z", None)
    bench.set("w", b"3")
    assert bench.flow.state.attributes == {"x": b"1", "new": b"2", "w": b"3"}


@pytest.mark.statement("B192")
def test_a_message_is_deleted_in_the_commit_and_its_neighbours_stay_in_order() -> None:
    bench = Bench(step("A")).start()
    bench.publish("box", b"1", b"2", b"3")
    bench.succeed("A-1", dead_end(), delete=[("box", "m2"), ("box", "m2"), ("box", "gone"), ("nowhere", "m1")])
    assert bench.queue("box") == [b"1", b"3"]


@pytest.mark.statement("B192")
def test_a_message_that_a_wait_took_meanwhile_is_not_deleted_from_it() -> None:
    bench = Bench(step("S"), step("A"), step("K", wait_for=True)).start()
    bench.succeed("S-1", go_to("A", "K"))
    bench.publish("box", b"1")
    bench.hand_out("A-1")
    bench.wait("K-1", until(one("box")))
    bench.succeed("A-1", dead_end(), delete=[("box", "m1")])
    assert bench.results("K-1") == [(True, (b"1",))]


def test_deletions_come_before_publications() -> None:
    bench = Bench(step("S"), step("A"), step("K", wait_for=True)).start()
    bench.succeed("S-1", go_to("A", "K"))
    bench.wait("K-1", until(one("other")))
    bench.publish("box", b"1")
    bench.succeed("A-1", dead_end(), delete=[("box", "m1")], publish=[("box", b"2"), ("box", b"3")])
    assert bench.queue("box") == [b"2", b"3"]


def test_publications_wake_who_waits_when_the_whole_commit_is_applied() -> None:
    bench = Bench(step("S"), step("A"), step("K", wait_for=True)).start()
    bench.succeed("S-1", go_to("A", "K"))
    bench.wait("K-1", until(one("box")))
    bench.succeed("A-1", dead_end(), publish=[("box", b"1"), ("box", b"2")])
    assert bench.results("K-1") == [(True, (b"1",))]
    assert bench.queue("box") == [b"2"]
