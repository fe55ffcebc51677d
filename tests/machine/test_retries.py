"""Failed attempts: the next one, or the failure policy."""

from __future__ import annotations

import pytest

from dex.wire.specs import RetrySpec
from dexray.machine import commands
from dexray.machine.events import AttemptFailed, StepFailed
from dexray.protocol.attempts import STARTED_ATTEMPT_INTERRUPTED, AttemptKey, ExecuteSucceeded, Heartbeat
from dexray.protocol.attempts import AttemptFailed as Failed
from tests.machine.build import Bench, dead_end, flow, go_to, method, movement, one, step, until


def one_step(**retry: float) -> Bench:
    return Bench(step("A", method(retry=RetrySpec(**retry)))).start()  # type: ignore[arg-type]


@pytest.mark.statement("B132", "B134")
def test_the_attempt_number_is_one_at_first_and_grows_by_one_per_retry() -> None:
    bench = one_step()
    seen = []
    for _ in range(4):
        seen.append(bench.hand_out("A-1").key.attempt)
        bench.fail("A-1")
        bench.advance(100)
    assert seen == [1, 2, 3, 4]


@pytest.mark.statement("B135")
def test_there_are_at_most_as_many_attempts_as_the_policy_allows() -> None:
    bench = one_step(attempts=3)
    attempts = 0
    while not bench.closed:
        bench.hand_out("A-1")
        attempts += 1
        bench.fail("A-1")
        bench.advance(100)
    assert attempts == 3


@pytest.mark.statement("B136")
def test_the_delay_grows_by_the_coefficient_up_to_the_maximum() -> None:
    bench = one_step(initial=2.0, coefficient=3.0, maximum=20.0)
    delays = []
    for _ in range(5):
        bench.fail("A-1")
        delays.append(bench.step("A-1").retry_at - bench.now)
        bench.advance(delays[-1])
    assert delays == [2, 6, 18, 20, 20]


def test_a_retry_is_not_handed_out_before_its_time() -> None:
    bench = one_step(initial=10.0)
    bench.fail("A-1")
    assert bench.flow.next_due() == bench.now + 10
    bench.advance(9.9)
    assert list(bench.flow.index.ready) == []
    assert not bench.try_hand_out("A-1")
    bench.advance(0.1)
    assert list(bench.flow.index.ready) == ["A-1"]
    assert bench.try_hand_out("A-1")


def test_a_retry_that_came_due_is_not_lost_when_the_clock_is_set_back() -> None:
    bench = one_step(initial=10.0)
    bench.fail("A-1")
    bench.advance(10)
    bench.now -= 5
    bench.try_hand_out("A-1")
    bench.advance(5)
    assert list(bench.flow.index.ready) == ["A-1"] or bench.phase("A-1") == "execute running"


@pytest.mark.statement("B145", "B147")
def test_retry_after_sets_the_delay_and_consumes_an_attempt() -> None:
    bench = one_step(initial=100.0, attempts=2)
    bench.fail("A-1", retry_after=7.0)
    assert bench.step("A-1").retry_at == bench.now + 7
    bench.advance(7)
    assert bench.hand_out("A-1").key.attempt == 2
    bench.fail("A-1", retry_after=7.0)
    assert bench.status == "FAILED"


def test_retry_after_nothing_is_at_once() -> None:
    bench = one_step(initial=100.0)
    bench.fail("A-1", retry_after=0.0)
    bench.advance(0)
    assert bench.try_hand_out("A-1")


def test_a_failure_that_says_so_is_not_retried() -> None:
    bench = one_step(attempts=9)
    bench.fail("A-1", retryable=False)
    assert bench.status == "FAILED"


# Total duration -------------------------------------------------------------------------------------------------------


@pytest.mark.statement("B161", "B162", "B165")
def test_a_failed_attempt_is_retried_only_while_the_total_duration_has_time_left() -> None:
    bench = one_step(total=60.0)
    bench.advance(1000)  # queueing before attempt 1 does not count
    bench.hand_out("A-1")
    bench.now += 59
    bench.fail("A-1")
    assert bench.phase("A-1") == "execute backoff"
    bench.advance(1)
    bench.fail("A-1")
    assert bench.status == "FAILED"


@pytest.mark.statement("B162", "B170")
def test_a_running_attempt_is_never_stopped_for_the_total_duration() -> None:
    bench = one_step(total=60.0)
    bench.hand_out("A-1")
    turn = bench.advance(1000)
    assert turn.cancels == []
    bench.succeed("A-1", dead_end())
    assert bench.open == []


@pytest.mark.statement("B163", "B167", "B168", "B170")
def test_a_retry_that_waited_in_the_queue_past_the_total_duration_still_runs_but_is_the_last() -> None:
    bench = one_step(total=60.0)
    bench.fail("A-1")
    bench.advance(1000)
    assert bench.hand_out("A-1").key.attempt == 2
    bench.fail("A-1")
    assert bench.status == "FAILED"


@pytest.mark.statement("B166")
def test_the_clock_starts_anew_when_attempt_one_came_back_unrun() -> None:
    bench = one_step(total=60.0)
    began = bench.now
    bench.give_back("A-1")
    assert bench.step("A-1").first_started_at == began
    bench.now += 1000
    assert bench.hand_out("A-1").first_attempt_at == began + 1000
    bench.now += 59
    bench.fail("A-1")
    assert bench.phase("A-1") == "execute backoff"


@pytest.mark.statement("B166")
def test_the_clock_does_not_start_anew_when_a_later_attempt_came_back() -> None:
    bench = one_step(total=60.0)
    began = bench.now
    bench.fail("A-1")
    bench.advance(10)
    bench.give_back("A-1")
    bench.advance(10)
    assert bench.hand_out("A-1").first_attempt_at == began


@pytest.mark.statement("B166", "B204")
def test_an_attempt_that_came_back_without_a_reason_resets_the_clock_too() -> None:
    bench = Bench(step("A", method(locks=["x"]))).start()
    bench.give_back("A-1", reason="")
    bench.now += 1000
    assert bench.hand_out("A-1").first_attempt_at == bench.now


@pytest.mark.statement("B164", "B227")
def test_the_deadline_of_an_attempt_is_not_shortened_by_the_retry_budget() -> None:
    bench = Bench(step("A", method(timeout=500.0, retry=RetrySpec(total=60.0)))).start()
    bench.fail("A-1")
    bench.advance(50)
    assert bench.hand_out("A-1").timeout == 500.0


@pytest.mark.statement("B171")
def test_wait_for_and_execute_have_clocks_of_their_own() -> None:
    short = method(retry=RetrySpec(total=60.0))
    bench = Bench(step("A", short, wait_for=short)).start()
    bench.wait("A-1", until(one("box")))
    bench.now += 1000
    bench.publish("box", b"1")
    assert bench.hand_out("A-1").first_attempt_at == bench.now
    bench.fail("A-1")
    assert bench.phase("A-1") == "execute backoff"


@pytest.mark.statement("B161", "B172")
def test_a_timed_out_attempt_is_retried_and_then_fails_the_flow() -> None:
    bench = one_step(attempts=2)
    bench.fail("A-1", "dex.MethodTimeout", "too long", kind="METHOD_TIMEOUT")
    bench.advance(1)
    bench.fail("A-1", "dex.MethodTimeout", "too long", kind="METHOD_TIMEOUT")
    assert bench.status == "FAILED"
    assert bench.flow.state.error_message == "A-1: dex.MethodTimeout: too long"


# Failure policies -----------------------------------------------------------------------------------------------------


# C23
@pytest.mark.statement("B133", "B142")
def test_an_exhausted_execute_without_a_route_fails_the_flow_with_its_last_error() -> None:
    bench = one_step(attempts=2)
    bench.fail("A-1", "KeyError", "first")
    bench.advance(1)
    bench.fail("A-1", "ValueError", "second", trace="Traceback", worker="node 7")
    state = bench.flow.state
    assert (state.status, state.error_type, state.error_message) == (
        "FAILED",
        "WORKER_API_FAILED",
        "A-1: ValueError: second",
    )
    failed = bench.of(StepFailed)[0]
    assert (failed.method, failed.route, failed.failure.attempt, failed.failure.trace, failed.failure.worker) == (
        "execute",
        "",
        2,
        "Traceback",
        "node 7",
    )


@pytest.mark.statement("B137", "B142")
def test_an_exhausted_wait_for_fails_the_flow_even_when_execute_has_a_route() -> None:
    bench = Bench(step("A", wait_for=method(attempts=1), route="R"), step("R")).start()
    bench.fail("A-1")
    assert bench.status == "FAILED"
    assert bench.of(StepFailed)[0].method == "wait_for"


@pytest.mark.statement("B138", "B139")
def test_an_exhausted_wait_for_that_proceeds_runs_execute_with_the_same_input_and_the_error() -> None:
    bench = Bench(step("A", wait_for=method(attempts=2), proceed=True)).start(b"mine")
    bench.fail("A-1", "KeyError", "first")
    assert not bench.step("A-1").wait_for_failed
    bench.advance(1)
    bench.fail("A-1", "ValueError", "second")
    task = bench.hand_out("A-1")
    assert (task.key.method, task.key.attempt, task.input, task.wait_for_failed) == ("execute", 1, b"mine", True)
    assert task.recovery_error is not None
    assert (task.recovery_error.error_type, task.recovery_error.detail) == ("ValueError", "second")
    assert task.conditions == ()


def test_a_wait_for_that_succeeds_leaves_no_error() -> None:
    bench = Bench(step("A", wait_for=method(attempts=2), proceed=True)).start()
    bench.fail("A-1")
    bench.advance(1)
    bench.publish("box", b"1")
    bench.wait("A-1", until(one("box")))
    task = bench.hand_out("A-1")
    assert (task.wait_for_failed, task.recovery_error, task.key.attempt) == (False, None, 1)


@pytest.mark.statement("B140", "B141", "B215", "B217")
def test_an_exhausted_execute_with_a_route_goes_on_there_with_its_input_and_its_error() -> None:
    bench = Bench(step("S"), step("A", method(attempts=2), route="R"), step("R")).start()
    bench.succeed("S-1", go_to(movement("A", b"mine")))
    bench.fail("A-1", "KeyError", "first")
    bench.advance(1)
    bench.fail("A-1", "ValueError", "second")
    assert bench.open == ["R-1"]
    task = bench.hand_out("R-1")
    assert task.input == b"mine"
    assert task.from_step_execution_id == "A-1"
    assert task.recovery_error is not None
    assert task.recovery_error.error_type == "ValueError"
    assert task.recovery_error.detail == "second"
    assert task.recovery_error.attempt_progress == "NOT_COMPLETED"
    assert bench.of(StepFailed)[0].route == "R"


def test_a_recovery_step_keeps_its_error_through_wait_for_retries_and_checkpoints() -> None:
    bench = Bench(step("A", method(attempts=1), route="R"), step("R", wait_for=True)).start()
    bench.fail("A-1", "KeyError", "why")
    bench.fail("R-1")
    bench.checkpoint()
    bench.advance(1)
    bench.wait("R-1", until(one("box")))
    bench.publish("box", b"1")
    error = bench.hand_out("R-1").recovery_error
    assert error is not None
    assert error.error_type == "KeyError"


def test_a_recovery_step_that_fails_goes_by_its_own_policy() -> None:
    bench = Bench(step("A", method(attempts=1), route="R"), step("R", method(attempts=1))).start()
    bench.fail("A-1")
    bench.fail("R-1", "OSError", "again")
    assert bench.flow.state.error_message == "R-1: OSError: again"


@pytest.mark.statement("B129")
def test_wait_for_and_execute_have_policies_of_their_own() -> None:
    bench = Bench(step("A", method(attempts=1), wait_for=method(attempts=3))).start()
    bench.fail("A-1")
    bench.advance(1)
    bench.wait("A-1", until(one("box")))
    bench.publish("box", b"1")
    assert bench.step("A-1").attempt == 1
    bench.fail("A-1")
    assert bench.status == "FAILED"


# Interruptions and returns --------------------------------------------------------------------------------------------


@pytest.mark.statement("B202", "B228")
def test_a_new_owner_fails_what_was_handed_out_and_consumes_a_retry() -> None:
    bench = Bench(step("S"), step("A"), step("B"), step("C", wait_for=True)).start()
    bench.succeed("S-1", go_to("A", "B", "C"))
    bench.wait("C-1", until(one("box")))
    bench.hand_out("A-1")
    bench.crash()
    assert bench.phase("A-1") == "execute backoff"
    failure = bench.step("A-1").last_failure
    assert failure is not None
    assert failure.kind == STARTED_ATTEMPT_INTERRUPTED
    assert bench.step("A-1").attempt == 2
    assert bench.phase("B-1") == "execute ready"
    assert bench.phase("C-1") == "wait_for waiting"
    assert len(bench.of(AttemptFailed)) == 1


@pytest.mark.statement("B202")
def test_a_step_of_one_attempt_does_not_run_again_after_an_interruption() -> None:
    bench = Bench(step("A", method(attempts=1), route="R"), step("R")).start()
    bench.hand_out("A-1")
    bench.crash()
    assert bench.open == ["R-1"]
    error = bench.step("R-1").recovery
    assert error is not None
    assert error.attempt_progress == "NOT_COMPLETED"


@pytest.mark.statement("B202")
def test_an_interruption_that_closes_the_flow_leaves_the_other_attempts_alone() -> None:
    bench = Bench(step("S"), step("A", method(attempts=1)), step("B")).start()
    bench.succeed("S-1", go_to("A", "B"))
    bench.hand_out("A-1")
    bench.hand_out("B-1")
    bench.crash()
    assert bench.status == "FAILED"


@pytest.mark.statement("B203")
def test_an_interruption_is_the_same_for_both_durabilities() -> None:
    bench = Bench(step("S"), step("A", method(durability="ASYNC")), step("B")).start()
    bench.succeed("S-1", go_to("A", "B"))
    bench.hand_out("A-1")
    bench.hand_out("B-1")
    bench.crash()
    assert bench.phase("A-1") == bench.phase("B-1") == "execute backoff"
    assert bench.step("A-1").attempt == bench.step("B-1").attempt == 2


@pytest.mark.statement("B199", "B211", "D9")
def test_the_result_of_an_interrupted_attempt_comes_too_late() -> None:
    bench = one_step()
    bench.hand_out("A-1")
    key = bench.key("A-1")
    bench.crash()
    late = ExecuteSucceeded(decision=dead_end())
    assert bench.do(commands.FinishAttempt(key=key, result=late)).events == []
    bench.advance(1)
    bench.hand_out("A-1")
    assert bench.do(commands.FinishAttempt(key=key, result=late)).events == []
    assert bench.phase("A-1") == "execute running"


@pytest.mark.statement("D9")
@pytest.mark.parametrize(
    "change",
    [
        {"run_id": "other"},
        {"method": "wait_for"},
        {"attempt": 2},
        {"attempt": 0},
        {"step_execution_id": "A-2"},
    ],
)
def test_a_result_or_heartbeat_with_another_key_is_refused(change: dict[str, object]) -> None:
    bench = one_step()
    bench.hand_out("A-1")
    key = bench.key("A-1")
    fields = {name: getattr(key, name) for name in AttemptKey.__struct_fields__}
    other = AttemptKey(**(fields | change))
    assert bench.do(commands.FinishAttempt(key=other, result=ExecuteSucceeded(decision=dead_end()))).events == []
    assert bench.do(commands.FinishAttempt(key=other, result=Failed(error_type="E", detail=""))).events == []
    assert bench.do(commands.StoreHeartbeat(key=other, heartbeat=Heartbeat(True, b"1"))).events == []
    assert bench.phase("A-1") == "execute running"


@pytest.mark.statement("D9")
def test_the_same_result_twice_counts_once() -> None:
    bench = Bench(step("A"), step("B")).start()
    bench.hand_out("A-1")
    command = commands.FinishAttempt(
        key=bench.key("A-1"),
        result=ExecuteSucceeded(decision=go_to("B"), writes=bench.writes(publish=[("box", b"1")])),
    )
    bench.do(command)
    assert bench.do(command).events == []
    assert bench.open == ["B-1"]
    assert bench.queue("box") == [b"1"]


@pytest.mark.statement("B204", "B213")
def test_an_attempt_that_certainly_did_not_run_comes_again_with_the_same_number() -> None:
    bench = one_step(attempts=1)
    for _ in range(5):
        assert bench.hand_out("A-1").key.attempt == 1
        bench.give_back("A-1", after=3.0)
        assert not bench.try_hand_out("A-1")
        bench.advance(3)
    assert bench.step("A-1").last_failure is None
    bench.fail("A-1")
    assert bench.status == "FAILED"


@pytest.mark.statement("B204", "D9")
def test_an_attempt_that_came_back_is_not_heard_until_it_is_out_again() -> None:
    bench = one_step()
    bench.hand_out("A-1")
    key = bench.key("A-1")
    done = commands.FinishAttempt(key=key, result=ExecuteSucceeded(decision=dead_end()))
    bench.give_back("A-1")
    assert bench.do(done).events == []
    bench.hand_out("A-1")
    assert bench.key("A-1") == key
    bench.do(done)
    assert bench.open == []


@pytest.mark.statement("B204")
def test_a_returned_attempt_stays_returned_over_a_crash() -> None:
    bench = one_step(attempts=1)
    bench.give_back("A-1", after=3.0)
    bench.crash()
    bench.checkpoint()
    assert bench.phase("A-1") == "execute backoff"
    bench.advance(3)
    assert bench.hand_out("A-1").key.attempt == 1


@pytest.mark.statement("D16")
def test_a_step_whose_code_is_gone_does_not_fail_but_waits() -> None:
    bench = one_step(attempts=3)
    bench.hand_out("A-1")
    bench.spec = flow(step("Other"))
    bench.crash()
    assert bench.status == "RUNNING"
    assert bench.phase("A-1") == "execute backoff"


@pytest.mark.statement("B135", "B226")
def test_a_step_of_one_attempt_does_not_run_twice_because_its_code_was_gone_for_a_while() -> None:
    bench = Bench(step("A", method(attempts=1), route="R"), step("R")).start()
    bench.hand_out("A-1")
    deployed, bench.spec = bench.spec, flow(step("R"))
    bench.crash()
    assert bench.status == "RUNNING"
    bench.spec = deployed
    bench.advance(100)
    assert not bench.try_hand_out("A-1")
    assert bench.open == ["R-1"]


# Heartbeats -----------------------------------------------------------------------------------------------------------


@pytest.mark.statement("B181")
def test_the_first_attempt_has_no_heartbeat_value() -> None:
    task = one_step().hand_out("A-1")
    assert (task.has_heartbeat, task.heartbeat) == (False, None)


@pytest.mark.statement("B175", "B179")
def test_the_next_attempt_receives_the_latest_checkpoint() -> None:
    bench = one_step()
    bench.hand_out("A-1")
    bench.heartbeat("A-1", b"1")
    bench.heartbeat("A-1", b"2")
    bench.fail("A-1")
    bench.advance(1)
    task = bench.hand_out("A-1")
    assert (task.has_heartbeat, task.heartbeat) == (True, b"2")


@pytest.mark.statement("B176", "B177")
def test_a_heartbeat_without_a_value_clears_the_checkpoint() -> None:
    bench = one_step()
    bench.hand_out("A-1")
    bench.heartbeat("A-1", b"1")
    bench.heartbeat("A-1", None)
    bench.fail("A-1")
    bench.advance(1)
    task = bench.hand_out("A-1")
    assert (task.has_heartbeat, task.heartbeat) == (False, None)


@pytest.mark.statement("B177", "B180")
def test_an_attempt_without_heartbeats_keeps_the_checkpoint_of_an_earlier_one() -> None:
    bench = one_step()
    bench.hand_out("A-1")
    bench.heartbeat("A-1", b"1")
    bench.crash()
    bench.advance(1)
    bench.fail("A-1")
    bench.checkpoint()
    bench.advance(2)
    assert bench.hand_out("A-1").heartbeat == b"1"


def test_a_heartbeat_flushed_with_the_failure_counts() -> None:
    bench = one_step()
    bench.fail("A-1", heartbeat=Heartbeat(True, b"last"))
    bench.advance(1)
    assert bench.hand_out("A-1").heartbeat == b"last"


def test_the_same_checkpoint_again_is_no_event() -> None:
    bench = one_step()
    bench.hand_out("A-1")
    bench.heartbeat("A-1", b"1")
    assert bench.heartbeat("A-1", b"1").events == []


def test_execute_does_not_get_the_checkpoint_of_wait_for() -> None:
    bench = Bench(step("A", wait_for=True)).start()
    bench.hand_out("A-1")
    bench.heartbeat("A-1", b"1")
    bench.wait("A-1", until(one("box")))
    bench.publish("box", b"1")
    assert not bench.hand_out("A-1").has_heartbeat
