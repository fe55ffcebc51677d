"""The start of a Flow, the life of a Step execution, and the Flow's timeout."""

from __future__ import annotations

import pytest

from dex.wire.service import FlowConfigSpec
from dex.wire.specs import FailureRoute, LoadSpec, RetrySpec, TimeoutHandlerSpec
from dexray.machine.events import FlowTimedOut, StepScheduled
from dexray.machine.turn import UnknownStep
from tests.machine.build import (
    HANDLER,
    SKIP,
    Bench,
    any_of,
    dead_end,
    flow,
    force_fail,
    go_to,
    graceful_complete,
    method,
    movement,
    one,
    step,
    timer,
    until,
)


def test_a_started_flow_has_its_start_step_ready_and_its_attributes_set() -> None:
    bench = Bench(step("A"), step("B")).start(b"hello", attributes={"color": b"red"})
    assert bench.open == ["A-1"]
    assert bench.phase("A-1") == "execute ready"
    assert bench.step("A-1").input == b"hello"
    assert bench.step("A-1").from_step == "__start__"
    assert bench.flow.state.attributes == {"color": b"red"}
    assert bench.status == "RUNNING"


@pytest.mark.statement("B4", "B112")
def test_a_flow_without_a_start_step_runs_and_does_nothing() -> None:
    bench = Bench(step("A"), spec=flow(step("A"), start=None)).start()
    assert bench.open == []
    assert bench.status == "RUNNING"
    bench.publish("box", b"1")
    assert bench.queue("box") == [b"1"]


def test_a_step_with_wait_for_begins_with_it_and_one_without_begins_with_execute() -> None:
    bench = Bench(step("A"), step("W", wait_for=True)).start()
    bench.succeed("A-1", go_to("W", "A"))
    assert bench.phase("W-1") == "wait_for ready"
    assert bench.phase("A-2") == "execute ready"


@pytest.mark.statement("B74", "B81")
def test_a_step_goes_through_all_its_phases() -> None:
    bench = Bench(step("A", wait_for=True)).start()
    bench.hand_out("A-1")
    assert bench.phase("A-1") == "wait_for running"
    bench.wait("A-1", until(one("box")))
    assert bench.phase("A-1") == "wait_for waiting"
    bench.publish("box", b"x")
    assert bench.phase("A-1") == "execute ready"
    bench.hand_out("A-1")
    assert bench.phase("A-1") == "execute running"
    bench.fail("A-1")
    assert bench.phase("A-1") == "execute backoff"
    bench.advance(1)
    bench.succeed("A-1", dead_end())
    assert bench.open == []


@pytest.mark.statement("B103")
def test_both_methods_are_given_the_input_of_the_step() -> None:
    bench = Bench(step("A", wait_for=True)).start(b"mine")
    assert bench.hand_out("A-1").input == b"mine"
    bench.wait("A-1", SKIP)
    assert bench.hand_out("A-1").input == b"mine"


@pytest.mark.statement("B100", "B102")
def test_a_local_set_in_wait_for_is_there_in_execute_and_only_what_was_set() -> None:
    bench = Bench(step("A", wait_for=True)).start()
    bench.wait("A-1", SKIP, locals={"note": b"n"})
    assert bench.hand_out("A-1").locals == {"note": b"n"}


@pytest.mark.statement("B101")
def test_a_local_belongs_to_one_step_execution() -> None:
    bench = Bench(step("S"), step("A", wait_for=True)).start()
    bench.succeed("S-1", go_to("A", "A"))
    bench.wait("A-1", SKIP, locals={"note": b"first"})
    bench.wait("A-2", SKIP, locals={"note": b"second"})
    assert bench.hand_out("A-1").locals == {"note": b"first"}
    assert bench.hand_out("A-2").locals == {"note": b"second"}


def test_locals_of_a_failed_wait_for_are_not_kept() -> None:
    bench = Bench(step("A", wait_for=method(attempts=1), proceed=True)).start()
    bench.fail("A-1")
    assert bench.hand_out("A-1").locals == {}


# C18: ids count per Step type, in scheduling order, from 1.
@pytest.mark.statement("B105")
def test_step_executions_count_per_type_in_the_order_of_scheduling() -> None:
    bench = Bench(step("S"), step("A"), step("B")).start()
    bench.succeed("S-1", go_to("A", "B", "A"))
    assert bench.open == ["A-1", "B-1", "A-2"]
    bench.succeed("A-2", go_to("A"))
    assert bench.open == ["A-1", "B-1", "A-3"]


def test_a_step_that_is_ready_is_handed_out_once() -> None:
    bench = Bench(step("A")).start()
    bench.hand_out("A-1")
    assert not bench.try_hand_out("A-1")
    assert not bench.try_hand_out("A-7")


def test_a_start_step_that_is_not_deployed_is_refused_by_name() -> None:
    bench = Bench(spec=flow(start=None))
    bench.spec = None
    bench.start()
    assert bench.open == []
    other = Bench(step("A"))
    other.start()
    other.spec = flow(step("B"))
    with pytest.raises(UnknownStep, match="Demo as deployed has no Step 'A'"):
        other.try_hand_out("A-1")


# Durability -----------------------------------------------------------------------------------------------------------


@pytest.mark.statement("B69", "B155")
def test_durability_is_the_methods_own_then_the_configs_then_sync() -> None:
    steps = (
        step("S"),
        step("Own", method(durability="ASYNC")),
        step("Config"),
        step("Sync", method(durability="SYNC"), wait_for=True),
    )
    bench = Bench(*steps).start()
    bench.succeed("S-1", go_to("Own", "Config", "Sync"))
    assert [bench.step(f"{name}-1").durability for name in ("Own", "Config", "Sync")] == ["ASYNC", "SYNC", "SYNC"]
    bench = Bench(*steps).start(config=FlowConfigSpec(step_durability="ASYNC"))
    bench.succeed("S-1", go_to("Own", "Config", "Sync"))
    assert [bench.step(f"{name}-1").durability for name in ("Own", "Config", "Sync")] == ["ASYNC"] * 3
    bench.wait("Sync-1", SKIP)
    assert bench.step("Sync-1").durability == "SYNC"


@pytest.mark.statement("B70")
def test_durability_is_pinned_when_the_method_call_becomes_pending() -> None:
    bench = Bench(step("A", wait_for=True), step("B")).start()
    bench.spec = flow(step("A", method(durability="ASYNC"), wait_for=method(durability="ASYNC")))
    bench.hand_out("A-1")
    assert bench.step("A-1").durability == "SYNC"
    bench.wait("A-1", SKIP)
    assert bench.step("A-1").durability == "ASYNC"
    bench.spec = flow(step("A", method(durability="SYNC"), wait_for=True))
    bench.hand_out("A-1")
    bench.fail("A-1")
    assert bench.step("A-1").durability == "ASYNC"


# Flow timeout ---------------------------------------------------------------------------------------------------------


@pytest.mark.statement("B16", "B18", "B24")
def test_a_flow_with_the_policy_fail_fails_when_its_time_is_over_even_while_it_waits_for_a_worker() -> None:
    bench = Bench(step("A")).start(timeout=10.0, timeout_policy="FAIL")
    bench.advance(9.5)
    assert bench.status == "RUNNING"
    bench.advance(0.5)
    # C22
    assert (bench.status, bench.flow.state.error_type) == ("FAILED", "FLOW_TIMEOUT")
    assert bench.flow.state.error_message == "Flow timed out after 10 seconds"
    assert bench.flow.state.closed_at == bench.now


@pytest.mark.statement("B21")
def test_a_flow_with_a_timeout_and_no_policy_fails() -> None:
    bench = Bench(step("A")).start(timeout=10.0)
    bench.advance(10)
    assert bench.flow.state.error_type == "FLOW_TIMEOUT"


@pytest.mark.statement("B19", "B24", "B243")
def test_a_flow_with_the_policy_cancel_is_cancelled_and_its_running_attempts_are_asked_to_stop() -> None:
    bench = Bench(step("S"), step("A"), step("B")).start(timeout=10.0, timeout_policy="CANCEL")
    bench.succeed("S-1", go_to("A", "B"))
    bench.hand_out("A-1")
    key = bench.key("A-1")
    turn = bench.advance(10)
    assert (bench.status, bench.flow.state.error_type) == ("CANCELED", "")
    assert turn.cancels == [key]


@pytest.mark.statement("B9", "B23")
def test_a_flow_without_a_timeout_waits_for_a_worker_for_ever() -> None:
    bench = Bench(step("A")).start()
    assert bench.flow.next_due() is None
    bench.advance(1e9)
    assert bench.phase("A-1") == "execute ready"


@pytest.mark.statement("B16")
def test_the_flow_timeout_is_known_as_the_next_due_time_and_survives_a_crash() -> None:
    bench = Bench(step("A")).start(timeout=10.0, timeout_policy="FAIL")
    assert bench.flow.next_due() == bench.now + 10
    bench.crash()
    assert bench.flow.next_due() == bench.now + 10
    bench.checkpoint()
    assert bench.flow.next_due() == bench.now + 10
    bench.advance(10)
    assert bench.closed


def with_handler(**handler: object) -> Bench:
    bench = Bench(step("A"), step("Late"), step("W", wait_for=True))
    return bench.start(
        timeout=10.0,
        timeout_policy="HANDLER",
        timeout_handler=TimeoutHandlerSpec(**handler),  # type: ignore[arg-type]
    )


@pytest.mark.statement("B15", "B20")
def test_the_timeout_handler_runs_once_beside_the_steps_that_are_open() -> None:
    bench = with_handler()
    bench.hand_out("A-1")
    bench.advance(10)
    assert bench.open == ["A-1", HANDLER]
    assert bench.phase(HANDLER) == "timeout ready"
    assert bench.last.cancels == []
    bench.advance(1000)
    bench.crash()
    bench.checkpoint()
    bench.advance(1000)
    assert len(bench.of(FlowTimedOut)) == 1
    bench.succeed(HANDLER, dead_end())
    bench.advance(1000)
    assert HANDLER not in bench.open
    assert len(bench.of(FlowTimedOut)) == 1


@pytest.mark.statement("B33", "B34")
def test_the_handler_writes_and_decides_like_an_execute() -> None:
    bench = with_handler()
    bench.publish("box", b"1", b"2")
    bench.advance(10)
    bench.succeed(HANDLER, force_fail("deadline reached"), attributes={"status": b"late"})
    assert (bench.status, bench.flow.state.error_message) == ("FAILED", "deadline reached")
    assert bench.flow.state.attributes == {"status": b"late"}


@pytest.mark.statement("B33")
def test_the_handler_deletes_and_publishes_messages() -> None:
    bench = with_handler()
    bench.publish("box", b"1", b"2")
    bench.advance(10)
    bench.succeed(HANDLER, go_to("Late"), delete=[("box", "m1")], publish=[("box", b"3")])
    assert bench.queue("box") == [b"2", b"3"]
    assert bench.step("Late-1").from_step == HANDLER


@pytest.mark.statement("B26", "B31")
def test_the_handler_is_retried_past_the_deadline_by_its_own_policy() -> None:
    bench = with_handler(method=method(retry=RetrySpec(attempts=2, initial=100.0)))
    bench.advance(10)
    bench.fail(HANDLER)
    assert bench.phase(HANDLER) == "timeout backoff"
    bench.advance(100)
    assert bench.hand_out(HANDLER).key.attempt == 2
    bench.succeed(HANDLER, graceful_complete(b"late"))
    bench.succeed("A-1", dead_end())
    assert bench.status == "COMPLETED"


@pytest.mark.statement("B28")
def test_an_exhausted_handler_without_a_route_fails_the_flow() -> None:
    bench = with_handler(method=method(attempts=1))
    bench.advance(10)
    bench.fail(HANDLER, "KeyError", "gone")
    assert (bench.status, bench.flow.state.error_type) == ("FAILED", "WORKER_API_FAILED")
    assert bench.flow.state.error_message == f"{HANDLER}: KeyError: gone"


@pytest.mark.statement("B27")
def test_an_exhausted_handler_goes_on_at_its_route_with_no_input_and_the_error() -> None:
    bench = with_handler(method=method(attempts=1), failure_route=FailureRoute(step_type="Late"))
    bench.advance(10)
    bench.fail(HANDLER, "KeyError", "gone")
    assert bench.status == "RUNNING"
    task = bench.hand_out("Late-1")
    assert task.input == b"\xc0"  # None
    assert task.recovery_error is not None
    assert (task.recovery_error.error_type, task.recovery_error.detail) == ("KeyError", "gone")


@pytest.mark.statement("B32")
def test_the_handler_sees_attributes_and_sizes_and_the_messages_it_selects() -> None:
    bench = with_handler(method=method(load=LoadSpec(channels=("box",))))
    bench.set("status", b"ok")
    bench.set("map/1", b"hidden")
    bench.publish("box", b"1")
    bench.publish("other", b"2")
    bench.advance(10)
    task = bench.hand_out(HANDLER)
    assert task.attributes == {"status": b"ok"}
    assert task.channel_sizes == {"box": 1, "other": 1}
    assert task.loaded_channels == {"box": (("m1", b"1"),)}


@pytest.mark.statement("B30")
def test_the_handlers_total_duration_starts_at_its_first_hand_out() -> None:
    bench = with_handler(method=method(retry=RetrySpec(total=50.0)))
    bench.advance(1000)
    bench.hand_out(HANDLER)
    bench.now += 49
    bench.fail(HANDLER)
    assert bench.phase(HANDLER) == "timeout backoff"
    bench.advance(1)
    bench.fail(HANDLER)
    assert bench.status == "FAILED"


def test_an_interrupted_handler_is_retried() -> None:
    bench = with_handler()
    bench.advance(10)
    bench.hand_out(HANDLER)
    bench.crash()
    assert bench.phase(HANDLER) == "timeout backoff"
    bench.checkpoint()
    bench.advance(1)
    assert bench.hand_out(HANDLER).key.attempt == 2


@pytest.mark.statement("B15")
def test_a_timeout_that_has_fired_is_due_no_more_also_over_a_checkpoint() -> None:
    bench = with_handler()
    bench.advance(10)
    assert bench.flow.next_due() is None
    bench.checkpoint()
    assert bench.flow.next_due() is None


def test_a_flow_timeout_ends_a_wait_too() -> None:
    bench = Bench(step("A", wait_for=True)).start(timeout=10.0, timeout_policy="FAIL")
    bench.wait("A-1", any_of(one("box"), timer(20)))
    bench.advance(10)
    assert bench.closed
    assert bench.flow.next_due() is None


def test_a_scheduled_step_says_where_it_comes_from() -> None:
    bench = Bench(step("A"), step("B")).start()
    bench.succeed("A-1", go_to(movement("B", b"x")))
    scheduled = bench.of(StepScheduled)[-1]
    assert (scheduled.step, scheduled.from_step, scheduled.input) == ("B-1", "A-1", b"x")
