"""Timers that are skipped, and a FlowConfig that changes while the Flow runs."""

from __future__ import annotations

import pytest

from dex.wire.service import FlowConfigSpec
from dex.wire.specs import TimeoutHandlerSpec
from dexray.machine import commands, timers
from dexray.machine.events import FlowConfigUpdated, FlowTimedOut, TimerFired
from tests.machine.build import HANDLER, Bench, all_of, any_of, go_to, method, one, step, timer, until

WAITS = step("A", wait_for=True)


def waiting(*conditions: object) -> Bench:
    bench = Bench(WAITS, step("B")).start()
    bench.wait("A-1", any_of(*conditions))  # type: ignore[arg-type]
    return bench


def skip(bench: Bench, step_id: str = "A-1", *, name: str = "", position: int = 0) -> None:
    index = timers.find(bench.flow.state, step_id, name, position)
    bench.do(commands.SkipTimer(step=step_id, index=index))


@pytest.mark.statement("C50", "C4")
def test_a_skipped_timer_counts_as_fired_at_once() -> None:
    bench = waiting(timer(3600))
    skip(bench)
    assert bench.phase("A-1") == "execute ready"
    assert bench.results("A-1") == [(True, ())]
    assert bench.of(TimerFired) == [TimerFired("A-1", 0, skipped=True)]


@pytest.mark.statement("C50")
def test_the_index_counts_timers_alone() -> None:
    bench = waiting(one("box"), timer(3600), one("bag"), timer(7200))
    skip(bench, position=1)
    assert [fired for fired, _ in bench.results("A-1")] == [False, False, False, True]


@pytest.mark.statement("C50")
def test_the_id_names_a_timer_wherever_it_stands() -> None:
    bench = waiting(one("box", "late"), timer(3600), timer(7200, "later"))
    skip(bench, name="later")
    assert [fired for fired, _ in bench.results("A-1")] == [False, False, True]


@pytest.mark.statement("C50")
def test_a_wait_for_all_goes_on_until_the_others_are_there() -> None:
    bench = Bench(WAITS).start()
    bench.wait("A-1", all_of(timer(10), timer(20)))
    skip(bench, position=1)
    assert bench.phase("A-1") == "wait_for waiting"
    skip(bench, position=1)
    assert len(bench.of(TimerFired)) == 1, "one that has fired is left as it is"
    bench.advance(10)
    assert bench.phase("A-1") == "execute ready"


@pytest.mark.parametrize(
    ("step_id", "name", "position", "why"),
    [
        ("B-1", "", 0, "no open Step execution B-1"),
        ("A-1", "", 1, "has 1 Timers, and none at index 1"),
        ("A-1", "box", 0, "none with the condition_id 'box'"),
        (HANDLER, "", 0, "the Flow has no timeout"),
    ],
)
def test_a_timer_that_is_not_there_is_named(step_id: str, name: str, position: int, why: str) -> None:
    bench = waiting(one("box", "box"), timer(3600, "tick"))
    with pytest.raises(timers.NoSuchTimer, match=why):
        timers.find(bench.flow.state, step_id, name, position)


def test_a_step_that_does_not_wait_has_no_timers() -> None:
    bench = Bench(WAITS).start()
    with pytest.raises(timers.NoSuchTimer, match="does not wait: it is ready in wait_for"):
        timers.find(bench.flow.state, "A-1", "", 0)


@pytest.mark.statement("C50")
@pytest.mark.parametrize(("policy", "status"), [("FAIL", "FAILED"), ("CANCEL", "CANCELED"), ("HANDLER", "RUNNING")])
def test_the_timeout_of_the_flow_can_be_skipped_whatever_its_policy(policy: str, status: str) -> None:
    bench = Bench(WAITS).start(timeout=60.0, timeout_policy=policy, timeout_handler=TimeoutHandlerSpec())
    skip(bench, HANDLER)
    assert bench.status == status
    assert bench.of(FlowTimedOut) == [FlowTimedOut(policy, skipped=True)]
    if policy == "HANDLER":
        skip(bench, HANDLER)
        bench.advance(60)
        assert len(bench.of(FlowTimedOut)) == 1, "it comes once"
        assert HANDLER in bench.open


# FlowConfig -----------------------------------------------------------------------------------------------------------

ASYNC = FlowConfigSpec(step_durability="ASYNC")


@pytest.mark.statement("B64", "B72", "C51")
def test_an_update_merges_the_fields_that_are_given() -> None:
    bench = Bench(WAITS).start(config=FlowConfigSpec(step_durability="SYNC", attribute_store_names=("main",)))
    bench.do(commands.UpdateConfig(config=FlowConfigSpec(step_durability="ASYNC", continue_as_new_threshold=5)))
    assert bench.flow.state.config == FlowConfigSpec(
        step_durability="ASYNC", attribute_store_names=("main",), continue_as_new_threshold=5
    )


def test_an_update_that_changes_nothing_leaves_no_event() -> None:
    bench = Bench(WAITS).start(config=ASYNC)
    bench.do(commands.UpdateConfig(config=ASYNC))
    bench.do(commands.UpdateConfig(config=FlowConfigSpec()))
    assert bench.of(FlowConfigUpdated) == []


@pytest.mark.statement("B69", "B70", "C51")
def test_durability_is_that_of_the_moment_when_a_method_call_became_pending() -> None:
    bench = Bench(step("A", wait_for=True), step("B"), step("C", method(durability="SYNC"))).start()
    bench.do(commands.UpdateConfig(config=ASYNC))
    assert bench.step("A-1").durability == "SYNC", "pending before"
    bench.fail("A-1")
    bench.advance(10)
    assert bench.step("A-1").durability == "SYNC", "a retry is of the same call"
    bench.wait("A-1", until(timer(0)))
    assert bench.step("A-1").durability == "ASYNC", "execute became pending afterwards"
    bench.succeed("A-1", go_to("B", "C"))
    assert (bench.step("B-1").durability, bench.step("C-1").durability) == ("ASYNC", "SYNC")
