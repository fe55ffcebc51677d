"""Attribute locks: taken together at the hand-out, or not at all."""

from __future__ import annotations

import pytest

from tests.machine.build import Bench, dead_end, flow, go_to, method, one, step, until


def two(a: tuple[str, ...], b: tuple[str, ...]) -> Bench:
    bench = Bench(step("S"), step("A", method(locks=a)), step("B", method(locks=b))).start()
    bench.succeed("S-1", go_to("A", "B"))
    return bench


@pytest.mark.statement("B194")
def test_one_step_at_a_time_holds_a_lock() -> None:
    bench = two(("x",), ("x",))
    assert bench.try_hand_out("A-1")
    assert not bench.try_hand_out("B-1")
    bench.succeed("A-1", dead_end())
    assert list(bench.flow.index.ready) == ["B-1"]
    assert bench.try_hand_out("B-1")


# C28
@pytest.mark.statement("B194")
def test_other_locks_and_no_locks_do_not_stand_in_the_way() -> None:
    bench = two(("x",), ("y",))
    bench.hand_out("A-1")
    assert bench.try_hand_out("B-1")
    bench = two(("x",), ())
    bench.hand_out("A-1")
    assert bench.try_hand_out("B-1")


# C26
def test_all_locks_are_taken_together_or_none() -> None:
    bench = two(("x",), ("y", "x"))
    bench.hand_out("A-1")
    assert not bench.try_hand_out("B-1")
    assert bench.flow.index.locks == {"x": "A-1"}
    assert bench.step("B-1").locks == ()


@pytest.mark.statement("B163", "B196")
def test_waiting_for_a_lock_is_no_attempt_and_counts_toward_no_timeout() -> None:
    bench = two(("x",), ("x",))
    bench.hand_out("A-1")
    bench.try_hand_out("B-1")
    assert bench.last.events == []
    bench.now += 1000
    bench.succeed("A-1", dead_end())
    assert bench.hand_out("B-1").first_attempt_at == bench.now
    assert bench.step("B-1").attempt == 1


@pytest.mark.parametrize("how", ["fail", "cancel", "exhaust", "interrupt"])
def test_a_lock_is_free_again_however_its_attempt_ends(how: str) -> None:
    attempts = 1 if how == "exhaust" else 5
    bench = Bench(
        step("S"),
        step("A", method(locks=["x"], attempts=attempts), route="S"),
        step("B", method(locks=["x"])),
        step("X"),
    ).start()
    bench.succeed("S-1", go_to("A", "B", "X"))
    bench.hand_out("A-1")
    assert not bench.try_hand_out("B-1")
    if how == "cancel":
        bench.succeed("X-1", dead_end(canceling=["A"]))
    elif how == "interrupt":
        bench.crash()
    else:
        bench.fail("A-1")
    assert bench.flow.index.locks == {}
    assert bench.try_hand_out("B-1")


# C31
@pytest.mark.statement("B204")
def test_a_returned_attempt_keeps_its_locks_and_a_failed_one_takes_them_again() -> None:
    bench = two(("x",), ("x",))
    bench.give_back("A-1", after=5)
    assert bench.flow.index.locks == {"x": "A-1"}
    assert not bench.try_hand_out("B-1")
    bench.advance(5)
    bench.fail("A-1")
    assert bench.flow.index.locks == {}
    bench.hand_out("B-1")
    bench.advance(10)
    assert not bench.try_hand_out("A-1")
    bench.succeed("B-1", dead_end())
    assert bench.try_hand_out("A-1")


@pytest.mark.statement("B204")
def test_a_returned_attempt_without_a_reason_keeps_its_locks() -> None:
    bench = two(("x",), ("x",))
    bench.give_back("A-1", reason="")
    assert bench.flow.index.locks == {"x": "A-1"}


# C26
@pytest.mark.statement("B195", "B230")
def test_wait_for_and_execute_have_locks_of_their_own_and_a_wait_holds_none() -> None:
    bench = Bench(step("S"), step("A", method(locks=["y"]), wait_for=method(locks=["x"]))).start()
    bench.succeed("S-1", go_to("A"))
    bench.hand_out("A-1")
    assert bench.flow.index.locks == {"x": "A-1"}
    bench.wait("A-1", until(one("box")))
    assert bench.flow.index.locks == {}
    bench.publish("box", b"1")
    bench.hand_out("A-1")
    assert bench.flow.index.locks == {"y": "A-1"}


def test_locks_survive_a_crash_and_a_checkpoint_of_a_returned_attempt() -> None:
    bench = two(("x",), ("x",))
    bench.give_back("A-1", after=5)
    bench.crash()
    bench.checkpoint()
    assert bench.flow.index.locks == {"x": "A-1"}
    assert not bench.try_hand_out("B-1")


def test_locks_that_code_deployed_meanwhile_asks_for_do_not_change_those_of_a_returned_attempt() -> None:
    bench = two(("x",), ("y",))
    bench.give_back("A-1")
    bench.hand_out("B-1")
    bench.spec = flow(step("S"), step("A", method(locks=["y"])), step("B", method(locks=["y"])))
    assert bench.try_hand_out("A-1")
    assert bench.flow.index.locks == {"x": "A-1", "y": "B-1"}
    bench.succeed("A-1", dead_end())
    assert bench.flow.index.locks == {"y": "B-1"}


# C30
@pytest.mark.statement("B186")
def test_a_lock_loads_no_value_of_a_map() -> None:
    bench = two(("map/1",), ())
    bench.set("map/1", b"v")
    assert bench.hand_out("A-1").attributes == {}


def test_steps_that_wait_for_a_lock_try_in_the_order_in_which_they_came() -> None:
    bench = Bench(step("S"), step("A", method(locks=["x"]))).start()
    bench.succeed("S-1", go_to("A", "A", "A", "A"))
    bench.hand_out("A-1")
    for step_id in ("A-3", "A-2", "A-4"):
        assert not bench.try_hand_out(step_id)
    bench.succeed("A-1", dead_end())
    assert list(bench.flow.index.ready) == ["A-3", "A-2", "A-4"]


def test_a_retry_that_found_its_lock_taken_tries_again_when_it_is_free() -> None:
    bench = two(("x",), ("x",))
    bench.fail("A-1")
    bench.hand_out("B-1")
    bench.advance(1)
    assert not bench.try_hand_out("A-1")
    bench.succeed("B-1", dead_end())
    assert list(bench.flow.index.ready) == ["A-1"]
    assert bench.hand_out("A-1").key.attempt == 2
