"""A Flow in words."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from dex.wire.service import FlowDescription, StepDescription
from dexray.machine.describe import describe
from dexray.protocol.attempts import WaitSpec
from tests.machine.build import (
    NOON,
    Bench,
    all_of,
    any_combination_of,
    any_of,
    at_least,
    at_most,
    between,
    exactly,
    force_fail,
    go_to,
    method,
    one,
    step,
    timer,
    until,
)


def words(bench: Bench) -> FlowDescription:
    return describe(bench.flow, owner="owner-1", problem="", readable=lambda payload: payload.decode())


def only(bench: Bench) -> StepDescription:
    (described,) = words(bench).steps
    return described


def moment(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="seconds")


def test_a_running_flow_is_described() -> None:
    bench = Bench(step("A")).start(attributes={"x": b"red"})
    bench.publish("box", b"1", b"2")
    told = words(bench)
    assert (told.flow_id, told.run_id, told.flow_type, told.status) == ("flow", "run", "Demo", "RUNNING")
    assert (told.started_at, told.closed_at, told.owner, told.problem) == (NOON, None, "owner-1", "")
    assert told.channels == {"box": 2}
    assert told.attributes == {"x": "red"}


def test_a_failed_flow_is_described_with_its_error() -> None:
    bench = Bench(step("A")).start()
    bench.now += 5
    bench.succeed("A-1", force_fail("no"))
    told = words(bench)
    assert (told.status, told.error_type, told.error_message) == ("FAILED", "STEP_DECISION_FAILED", "no")
    assert told.closed_at == NOON + 5
    assert told.steps == ()


def test_a_ready_step_waits_for_a_worker_and_a_running_one_for_its_end() -> None:
    bench = Bench(step("A", wait_for=True)).start()
    assert only(bench).waits_for == "a worker for wait_for"
    bench.now += 3
    bench.hand_out("A-1")
    told = only(bench)
    assert told.waits_for == "attempt 1 of wait_for to finish"
    assert (told.step_execution_id, told.method, told.phase, told.since) == ("A-1", "wait_for", "running", NOON + 3)


@pytest.mark.statement("B143")
def test_during_retries_the_last_failure_is_told_with_the_time_of_the_next_attempt() -> None:
    bench = Bench(step("A")).start()
    bench.fail("A-1", "KeyError", "gone", worker="node 7", trace="Traceback")
    told = only(bench)
    assert told.waits_for == f"attempt 2 of execute at {moment(NOON + 1)} (backoff)"
    assert (told.attempt, told.phase, told.retry_at) == (2, "backoff", NOON + 1)
    failure = told.last_failure
    assert failure is not None
    assert (failure.error_type, failure.detail, failure.worker, failure.trace) == (
        "KeyError",
        "gone",
        "node 7",
        "Traceback",
    )
    assert (failure.attempt, failure.at) == (1, NOON)
    bench.advance(1)
    assert only(bench).waits_for == "a worker for execute"
    bench.hand_out("A-1")
    told = only(bench)
    assert told.retry_at is None
    assert told.last_failure == failure


@pytest.mark.statement("D7")
def test_a_returned_attempt_says_why() -> None:
    bench = Bench(step("A")).start()
    bench.give_back("A-1", reason="Step A is not deployed", after=5)
    assert only(bench).waits_for == f"attempt 1 of execute at {moment(NOON + 5)} (Step A is not deployed)"
    bench.advance(5)
    assert only(bench).waits_for == "a worker for execute (Step A is not deployed)"


def test_a_step_that_found_a_lock_taken_says_so_also_on_a_retry() -> None:
    bench = Bench(step("S"), step("A", method(locks=["x"])), step("B", method(locks=["x"]))).start()
    bench.succeed("S-1", go_to("A", "B"))
    bench.hand_out("A-1")
    bench.try_hand_out("B-1")
    assert words(bench).steps[1].waits_for == "a lock that another Step holds"
    bench.fail("A-1")
    bench.hand_out("B-1")
    bench.advance(1)
    bench.try_hand_out("A-1")
    assert words(bench).steps[0].waits_for == "a lock that another Step holds"


@pytest.mark.parametrize(
    ("wait", "told"),
    [
        (until(one("box")), "1 message on box (has 0)"),
        (until(exactly("box", 3)), "3 messages on box (has 0)"),
        (until(at_least("box", 2)), "at least 2 messages on box (has 0)"),
        (until(between("box", 2, 4)), "2 to 4 messages on box (has 0)"),
        (any_of(one("a"), timer(60)), f"1 message on a (has 0) or Timer until {moment(NOON + 60)}"),
        (all_of(one("a"), at_most("b", 2)), "1 message on a (has 0) and at most 2 messages on b (has 0)"),
        (
            any_combination_of((one("a"), one("b"), timer(60)), (0, 1), (2,)),
            f"(1 message on a (has 0) and 1 message on b (has 0)) or (Timer until {moment(NOON + 60)})",
        ),
    ],
)
def test_a_wait_is_told_in_words(wait: WaitSpec, told: str) -> None:
    bench = Bench(step("A", wait_for=True)).start()
    bench.wait("A-1", wait)
    assert only(bench).waits_for == told


def test_a_timer_that_fired_is_told_as_fired() -> None:
    bench = Bench(step("A", wait_for=True)).start()
    bench.wait("A-1", all_of(timer(5), one("a")))
    bench.advance(5)
    assert only(bench).waits_for == "Timer fired and 1 message on a (has 0)"


def test_the_checkpoint_of_a_heartbeat_is_told() -> None:
    bench = Bench(step("A")).start()
    bench.hand_out("A-1")
    assert not only(bench).has_heartbeat
    bench.heartbeat("A-1", b"half")
    told = only(bench)
    assert (told.has_heartbeat, told.heartbeat) == (True, "half")
