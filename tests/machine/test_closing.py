"""How a Flow ends, and that nothing happens afterwards."""

from __future__ import annotations

import pytest
from msgspec import structs

from dexray.machine import commands
from dexray.machine.events import StepScheduled
from dexray.protocol.attempts import ExecuteSucceeded, Heartbeat
from tests.machine.build import (
    Bench,
    complete_if_empty,
    dead_end,
    exactly,
    force_complete,
    force_fail,
    go_to,
    graceful_complete,
    method,
    one,
    step,
    until,
)


def branches() -> Bench:
    """A-1 and B-1 are open."""
    bench = Bench(step("S"), step("A", method(attempts=1)), step("B"), step("K", wait_for=True)).start()
    bench.succeed("S-1", go_to("A", "B"))
    return bench


# C19
@pytest.mark.statement("B106", "B113")
def test_a_graceful_completion_waits_for_the_other_branches() -> None:
    bench = branches()
    bench.succeed("A-1", graceful_complete(b"a"))
    assert bench.status == "RUNNING"
    bench.succeed("B-1", go_to("A"))
    assert bench.status == "RUNNING"
    bench.succeed("A-2", graceful_complete(b"b"))
    assert bench.status == "COMPLETED"
    assert bench.flow.state.closed_at == bench.now


@pytest.mark.statement("B110", "B111")
def test_all_outputs_are_listed_with_their_steps_in_the_order_of_completion() -> None:
    bench = branches()
    bench.succeed("B-1", graceful_complete(b"b"))
    bench.succeed("A-1", graceful_complete(b"a"))
    assert bench.outputs == [("B", "B-1", b"b"), ("A", "A-1", b"a")]


@pytest.mark.statement("B110")
def test_a_completion_without_an_output_lists_none_and_an_output_of_none_is_one() -> None:
    bench = branches()
    bench.succeed("B-1", graceful_complete())
    bench.succeed("A-1", graceful_complete(b"\xc0"))
    assert bench.outputs == [("A", "A-1", b"\xc0")]


@pytest.mark.statement("B114")
def test_a_later_dead_end_of_the_last_branch_completes_the_flow() -> None:
    bench = branches()
    bench.succeed("A-1", graceful_complete(b"a"))
    bench.crash()
    bench.checkpoint()
    bench.succeed("B-1", dead_end())
    assert bench.status == "COMPLETED"


@pytest.mark.statement("B107", "B112")
def test_dead_ends_alone_never_complete_a_flow() -> None:
    bench = branches()
    bench.succeed("A-1", dead_end())
    bench.succeed("B-1", dead_end())
    bench.advance(1e6)
    assert bench.status == "RUNNING"


def test_the_only_branch_completes_the_flow_at_once() -> None:
    bench = Bench(step("A")).start()
    bench.succeed("A-1", graceful_complete(b"x"))
    assert bench.status == "COMPLETED"


def test_a_waiting_step_holds_up_a_graceful_completion() -> None:
    bench = Bench(step("S"), step("A"), step("K", wait_for=True)).start()
    bench.succeed("S-1", go_to("A", "K"))
    bench.wait("K-1", until(one("box")))
    bench.succeed("A-1", graceful_complete())
    assert bench.status == "RUNNING"
    bench.publish("box", b"1")
    bench.succeed("K-1", dead_end())
    assert bench.status == "COMPLETED"


def test_a_step_that_fails_after_a_graceful_completion_fails_the_flow_and_its_outputs_are_gone() -> None:
    bench = branches()
    bench.succeed("B-1", graceful_complete(b"b"))
    bench.fail("A-1")
    assert bench.status == "FAILED"
    assert bench.outputs == []


# C20
@pytest.mark.statement("B108", "B110", "B243")
def test_force_complete_ends_the_flow_at_once_with_its_output() -> None:
    bench = branches()
    bench.hand_out("B-1")
    key = bench.key("B-1")
    turn = bench.succeed("A-1", force_complete(b"now"), publish=[("box", b"1")], attributes={"x": b"1"})
    assert bench.status == "COMPLETED"
    assert bench.outputs == [("A", "A-1", b"now")]
    assert turn.cancels == [key]
    assert bench.open == []
    assert bench.flow.state.attributes == {"x": b"1"}
    assert bench.queue("box") == []


def test_force_complete_keeps_the_outputs_of_branches_that_completed_before() -> None:
    bench = branches()
    bench.succeed("B-1", graceful_complete(b"b"))
    bench.succeed("A-1", force_complete(b"a"))
    assert bench.outputs == [("B", "B-1", b"b"), ("A", "A-1", b"a")]


# C21
@pytest.mark.statement("B109", "B243")
def test_force_fail_fails_the_flow_at_once_with_the_reason_and_no_outputs() -> None:
    bench = branches()
    bench.succeed("B-1", graceful_complete(b"b"))
    bench.succeed("A-1", force_fail("not today"), attributes={"x": b"1"})
    state = bench.flow.state
    assert (state.status, state.error_type, state.error_message) == ("FAILED", "STEP_DECISION_FAILED", "not today")
    assert bench.outputs == []
    assert state.attributes == {"x": b"1"}


# C48
@pytest.mark.statement("B243")
@pytest.mark.parametrize(
    ("stop_type", "status", "error_type"),
    [("CANCEL", "CANCELED", ""), ("TERMINATE", "TERMINATED", ""), ("FAIL", "FAILED", "CLIENT_API_FAILED")],
)
def test_stopping_a_flow_ends_it_in_the_status_that_was_asked_for(stop_type: str, status: str, error_type: str) -> None:
    bench = branches()
    bench.succeed("B-1", graceful_complete(b"b"))
    bench.hand_out("A-1")
    key = bench.key("A-1")
    turn = bench.stop(stop_type, "because")
    state = bench.flow.state
    assert (state.status, state.error_type, state.error_message) == (status, error_type, "because")
    assert turn.cancels == [key]
    assert bench.outputs == []


def test_nothing_happens_to_a_closed_flow() -> None:
    bench = branches()
    bench.hand_out("A-1")
    bench.hand_out("B-1")
    key = bench.key("B-1")
    bench.succeed("A-1", force_complete())
    for command in (
        commands.Publish(channel="box", messages=(("m", b"1"),)),
        commands.SetAttribute(name="x", value=b"1"),
        commands.Stop(stop_type="FAIL"),
        commands.HandOut(step="B-1", deployment="d"),
        commands.StoreHeartbeat(key=key, heartbeat=Heartbeat(True, b"1")),
        commands.FinishAttempt(key=key, result=ExecuteSucceeded(decision=force_fail())),
        commands.Due(),
        commands.Interrupt(),
    ):
        turn = bench.do(command)
        assert turn.events == []
        assert turn.cancels == []
    assert bench.status == "COMPLETED"


def test_a_closed_flow_has_nothing_due() -> None:
    bench = Bench(step("S"), step("A"), step("K", wait_for=True)).start(timeout=1000.0, timeout_policy="FAIL")
    bench.succeed("S-1", go_to("A", "A"))
    bench.fail("A-1")
    bench.succeed("A-2", force_complete())
    assert bench.flow.next_due() is None
    bench.checkpoint()
    assert bench.flow.next_due() is None
    bench.advance(1e6)
    assert bench.status == "COMPLETED"


# force_complete_if_channels_empty -------------------------------------------------------------------------------------


def draining(*consumed: bytes) -> Bench:
    """D-1 is about to decide; K-1 has consumed these messages of box."""
    bench = Bench(step("S"), step("D"), step("K", wait_for=True), step("Again")).start()
    bench.succeed("S-1", go_to("D", "K"))
    if consumed:
        bench.publish("box", *consumed)
        bench.wait("K-1", until(exactly("box", len(consumed))))
    return bench


DRAINED = complete_if_empty("box", "other", fallback="Again", output=b"drained")


@pytest.mark.statement("B125")
def test_the_flow_completes_with_the_output_when_all_channels_are_empty() -> None:
    bench = draining()
    bench.publish("unnamed", b"1")
    bench.succeed("D-1", DRAINED)
    assert bench.status == "COMPLETED"
    assert bench.outputs == [("D", "D-1", b"drained")]


@pytest.mark.statement("B125")
def test_outputs_of_earlier_branches_come_first_and_no_output_is_none() -> None:
    bench = draining()
    bench.wait("K-1", until(exactly("box", 0)))
    bench.succeed("K-1", graceful_complete(b"k"))
    bench.succeed("D-1", complete_if_empty("box", fallback="Again"))
    assert bench.outputs == [("K", "K-1", b"k")]


@pytest.mark.statement("B125", "B126")
@pytest.mark.parametrize("channel", ["box", "other"])
def test_a_queued_message_in_any_of_them_starts_the_fallback(channel: str) -> None:
    bench = draining()
    bench.publish(channel, b"1")
    bench.succeed("D-1", DRAINED)
    assert bench.status == "RUNNING"
    assert bench.step("Again-1").from_step == "D-1"
    assert bench.outputs == []
    assert bench.queue(channel) == [b"1"]


@pytest.mark.statement("B127")
@pytest.mark.parametrize("phase", ["ready", "running", "backoff"])
def test_a_consumed_message_keeps_the_channel_non_empty_until_execute_is_done(phase: str) -> None:
    bench = draining(b"1")
    if phase == "running":
        bench.hand_out("K-1")
    elif phase == "backoff":
        bench.fail("K-1")
    bench.succeed("D-1", DRAINED)
    assert bench.open == ["K-1", "Again-1"]
    bench.advance(1)
    bench.succeed("K-1", dead_end())
    bench.succeed("Again-1", DRAINED)
    assert bench.status == "COMPLETED"


@pytest.mark.statement("B127")
def test_what_the_deciding_step_itself_consumed_is_done() -> None:
    bench = draining(b"1")
    bench.succeed("K-1", DRAINED)
    assert bench.status == "COMPLETED"
    assert bench.outputs == [("K", "K-1", b"drained")]


@pytest.mark.statement("B124", "B128")
def test_the_check_sees_what_the_same_commit_publishes_and_deletes() -> None:
    bench = draining()
    bench.succeed("D-1", DRAINED, publish=[("box", b"1")])
    assert bench.open == ["K-1", "Again-1"]
    bench.succeed("Again-1", DRAINED, delete=[("box", bench.flow.state.channels["box"][0].id)])
    assert bench.status == "COMPLETED"


@pytest.mark.statement("B124", "D6")
def test_the_check_sees_the_messages_that_come_back_from_steps_it_cancels() -> None:
    bench = draining(b"1")
    bench.succeed("D-1", structs.replace(DRAINED, canceling=("K",)))
    assert bench.open == ["Again-1"]
    assert bench.queue("box") == [b"1"]


@pytest.mark.statement("B128")
def test_a_message_after_the_completion_is_refused() -> None:
    bench = draining()
    bench.succeed("D-1", DRAINED)
    assert bench.publish("box", b"late").events == []


def test_closing_schedules_nothing() -> None:
    bench = draining()
    before = len(bench.of(StepScheduled))
    bench.succeed("D-1", DRAINED)
    assert len(bench.of(StepScheduled)) == before
