"""What follows a Step: movements, options of movements, and the order of one commit."""

from __future__ import annotations

import pytest

from dex.wire.specs import FailureRoute
from dexray.machine.events import (
    AttributesWritten,
    EventRecorded,
    MessageDeleted,
    MessagePublished,
    StepCancelled,
    StepCompleted,
    StepScheduled,
)
from tests.machine.build import (
    Bench,
    complete_if_empty,
    dead_end,
    flow,
    go_to,
    graceful_complete,
    method,
    movement,
    one,
    step,
    until,
)


@pytest.mark.statement("B104")
def test_go_to_starts_one_next_step_with_its_input() -> None:
    bench = Bench(step("A"), step("B")).start()
    bench.succeed("A-1", go_to(movement("B", b"payload")))
    assert bench.open == ["B-1"]
    assert bench.hand_out("B-1").input == b"payload"
    assert bench.task("B-1").from_step_execution_id == "A-1"


@pytest.mark.statement("B104", "B105")
def test_go_to_many_starts_several_each_with_its_own_input_and_number() -> None:
    bench = Bench(step("A"), step("B")).start()
    bench.succeed("A-1", go_to(movement("B", b"1"), movement("B", b"2"), movement("A", b"3")))
    assert [(step_id, bench.step(step_id).input) for step_id in bench.open] == [
        ("B-1", b"1"),
        ("B-2", b"2"),
        ("A-2", b"3"),
    ]


@pytest.mark.statement("B104", "B131")
def test_options_of_a_movement_apply_to_that_one_step_execution() -> None:
    bench = Bench(step("A"), step("B", method(attempts=5))).start()
    bench.succeed("A-1", go_to(movement("B", b"", step("B", method(attempts=1), route="A")), movement("B", b"")))
    bench.fail("B-2")
    assert bench.phase("B-2") == "execute backoff"
    bench.fail("B-1")
    assert bench.open == ["B-2", "A-2"]


@pytest.mark.statement("B131")
def test_options_of_a_movement_can_take_a_steps_wait_for_policy_and_survive_a_checkpoint() -> None:
    bench = Bench(step("A"), step("B", wait_for=True)).start()
    override = step("B", wait_for=method(attempts=1), proceed=True)
    bench.succeed("A-1", go_to(movement("B", b"", override)))
    bench.checkpoint()
    bench.fail("B-1")
    assert bench.phase("B-1") == "execute ready"


@pytest.mark.statement("B130")
def test_options_of_a_step_apply_to_all_its_executions() -> None:
    bench = Bench(step("A"), step("B", method(attempts=1), route="A")).start()
    bench.succeed("A-1", go_to("B", "B"))
    bench.fail("B-1")
    bench.fail("B-2")
    assert bench.open == ["A-2", "A-3"]


def test_options_of_a_failure_route_apply_to_the_step_that_takes_over() -> None:
    route = FailureRoute(step_type="R", override=step("R", method(attempts=1)))
    bench = Bench(step("A", method(attempts=1), route=route), step("R", method(attempts=9))).start()
    bench.fail("A-1")
    bench.fail("R-1")
    assert bench.status == "FAILED"


# C24, C25
def test_a_movement_to_a_step_that_is_not_deployed_fails_the_attempt_and_commits_nothing() -> None:
    bench = Bench(step("A", method(attempts=2))).start()
    bench.succeed("A-1", go_to("Gone"), attributes={"x": b"1"}, publish=[("box", b"1")])
    assert bench.phase("A-1") == "execute backoff"
    failure = bench.step("A-1").last_failure
    assert failure is not None
    assert failure.kind == "INVALID_RESULT"
    assert "no Step 'Gone'" in failure.detail
    assert bench.flow.state.attributes == {}
    assert bench.queue("box") == []
    bench.advance(1)
    bench.succeed("A-1", go_to("Gone"))
    assert (bench.status, bench.flow.state.error_type) == ("FAILED", "WORKER_API_FAILED")


def test_a_fallback_that_is_not_deployed_fails_the_attempt_even_when_the_channels_are_empty() -> None:
    bench = Bench(step("A", method(attempts=1))).start()
    bench.succeed("A-1", complete_if_empty("box", fallback="Gone"))
    assert bench.status == "FAILED"


# C11: Attribute writes, deletions, publications, cancellations, next Steps.
@pytest.mark.statement("B75", "B123")
def test_one_commit_has_a_fixed_order() -> None:
    bench = Bench(step("S"), step("A"), step("B")).start()
    bench.publish("box", b"old")
    bench.succeed("S-1", go_to("A", "B"))
    bench.succeed(
        "A-1",
        go_to("A", canceling=["B"]),
        attributes={"x": b"1"},
        delete=[("box", "m1")],
        publish=[("box", b"new")],
        events=[("note", b"n")],
    )
    assert [type(event) for event in bench.last.events] == [
        StepCompleted,
        AttributesWritten,
        MessageDeleted,
        MessagePublished,
        EventRecorded,
        StepCancelled,
        StepScheduled,
    ]


@pytest.mark.statement("B107", "B112")
def test_dead_end_stops_its_branch_alone_and_never_the_flow() -> None:
    bench = Bench(step("A"), step("B")).start()
    bench.succeed("A-1", go_to("A", "B"))
    bench.succeed("A-2", dead_end())
    assert bench.open == ["B-1"]
    bench.succeed("B-1", dead_end())
    assert bench.open == []
    assert bench.status == "RUNNING"


def test_a_flow_without_open_steps_still_takes_messages_and_attributes() -> None:
    bench = Bench(step("A")).start()
    bench.succeed("A-1", dead_end())
    bench.publish("box", b"1")
    bench.set("x", b"1")
    assert bench.queue("box") == [b"1"]
    assert bench.flow.state.attributes == {"x": b"1"}


def test_a_step_starts_others_that_meet_its_own_messages() -> None:
    bench = Bench(step("A"), step("B", wait_for=True)).start()
    bench.succeed("A-1", go_to("B"), publish=[("box", b"1")])
    bench.wait("B-1", until(one("box")))
    assert bench.results("B-1") == [(True, (b"1",))]


def test_code_deployed_later_decides_where_a_step_may_go() -> None:
    bench = Bench(step("A")).start()
    bench.spec = flow(step("A"), step("New"))
    bench.succeed("A-1", go_to("New"))
    assert bench.open == ["New-1"]


@pytest.mark.statement("B123")
def test_go_to_with_cancellation_starts_the_new_and_cancels_the_selected() -> None:
    bench = Bench(step("S"), step("A"), step("B"), step("C")).start()
    bench.succeed("S-1", go_to("A", "B", "B"))
    bench.succeed("A-1", go_to("C", canceling=["B"]))
    assert bench.open == ["C-1"]


def test_a_branch_that_completes_can_cancel_the_others_and_so_end_the_flow() -> None:
    bench = Bench(step("S"), step("A"), step("B")).start()
    bench.succeed("S-1", go_to("A", "B"))
    bench.succeed("A-1", graceful_complete(b"won", canceling=["B"]))
    assert bench.status == "COMPLETED"
    assert bench.outputs == [("A", "A-1", b"won")]
