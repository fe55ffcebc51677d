"""Which conditions end a wait, what they consume, and what execute is told of them."""

from __future__ import annotations

import pytest

from dexray.machine import conditions
from dexray.machine.events import ConditionsMet
from dexray.protocol.attempts import WaitSpec
from tests.machine.build import (
    SKIP,
    Bench,
    all_of,
    any_combination_of,
    any_of,
    at_least,
    at_most,
    between,
    dead_end,
    exactly,
    go_to,
    one,
    step,
    timer,
    until,
)


def waiting(wait: WaitSpec, *queued: tuple[str, bytes]) -> Bench:
    """A Flow whose only Step has returned this wait, after these messages were published."""
    bench = Bench(step("A", wait_for=True)).start()
    for channel, value in queued:
        bench.publish(channel, value)
    bench.wait("A-1", wait)
    return bench


def has_ended(bench: Bench) -> bool:
    return bench.phase("A-1") == "execute ready"


def numbers(count: int) -> list[tuple[str, bytes]]:
    return [("box", str(number).encode()) for number in range(1, count + 1)]


@pytest.mark.statement("B85", "B86")
def test_skip_immediately_lets_execute_follow_at_once() -> None:
    bench = waiting(SKIP)
    assert has_ended(bench)
    assert bench.results("A-1") == []


@pytest.mark.statement("B83")
def test_until_waits_for_its_one_condition() -> None:
    bench = waiting(until(one("box")))
    assert not has_ended(bench)
    bench.publish("other", b"0")
    assert not has_ended(bench)
    bench.publish("box", b"1")
    assert has_ended(bench)
    assert bench.results("A-1") == [(True, (b"1",))]


# C6, C8
@pytest.mark.statement("B81")
def test_messages_that_were_there_before_satisfy_a_wait_at_its_commit() -> None:
    bench = waiting(until(one("box")), ("box", b"1"), ("box", b"2"))
    assert has_ended(bench)
    assert bench.queue("box") == [b"2"]


@pytest.mark.statement("B83", "B84", "B96")
def test_all_of_waits_for_all_and_reports_all() -> None:
    bench = waiting(all_of(one("a"), timer(5), one("b")))
    bench.publish("a", b"1")
    bench.publish("b", b"2")
    assert not has_ended(bench)
    assert bench.queue("a") == [b"1"]
    bench.advance(5)
    assert has_ended(bench)
    assert bench.results("A-1") == [(True, (b"1",)), (True, ()), (True, (b"2",))]


@pytest.mark.statement("B83")
def test_any_of_ends_with_the_first_condition_that_is_met() -> None:
    bench = waiting(any_of(one("a"), one("b"), timer(5)))
    bench.publish("b", b"2")
    assert bench.results("A-1") == [(False, ()), (True, (b"2",)), (False, ())]


@pytest.mark.statement("B88", "B89")
def test_of_several_ready_channels_the_first_declared_wins_and_the_others_keep_their_messages() -> None:
    bench = waiting(any_of(one("a"), one("b")), ("b", b"2"), ("a", b"1"))
    assert bench.results("A-1") == [(True, (b"1",)), (False, ())]
    assert bench.queue("b") == [b"2"]
    assert bench.queue("a") == []


@pytest.mark.statement("B89", "B90")
def test_a_timer_declared_last_beats_a_ready_channel_declared_first() -> None:
    bench = waiting(any_of(one("a"), timer(0)), ("a", b"1"))
    assert bench.results("A-1") == [(False, ()), (True, ())]
    assert bench.queue("a") == [b"1"]


@pytest.mark.statement("B89")
def test_a_timer_that_is_due_counts_as_fired_although_a_message_came_first() -> None:
    bench = waiting(any_of(one("a"), timer(5)))
    bench.now += 5
    bench.publish("a", b"1")
    assert bench.results("A-1") == [(False, ()), (True, ())]
    assert bench.queue("a") == [b"1"]


# C5
@pytest.mark.statement("B89", "B93")
def test_of_two_timers_that_are_due_the_first_declared_wins_and_both_report_fired() -> None:
    bench = waiting(any_of(timer(5), timer(3)))
    bench.advance(6)
    met = bench.of(ConditionsMet)[0]
    assert met.winners == (0,)
    assert bench.results("A-1") == [(True, ()), (True, ())]


@pytest.mark.statement("B93", "B94")
def test_a_channel_that_lost_to_a_timer_has_no_messages_and_the_timer_has_fired() -> None:
    bench = waiting(any_of(one("a"), timer(5)))
    bench.advance(5)
    assert bench.results("A-1") == [(False, ()), (True, ())]


@pytest.mark.statement("B93", "B94")
def test_a_channel_that_won_has_its_message_and_the_timer_has_not_fired() -> None:
    bench = waiting(any_of(one("a"), timer(5)))
    bench.publish("a", b"1")
    assert bench.results("A-1") == [(True, (b"1",)), (False, ())]
    bench.advance(100)
    assert has_ended(bench)


@pytest.mark.statement("B91", "B92")
def test_an_earlier_condition_that_is_not_ready_does_not_block_a_later_one() -> None:
    bench = waiting(any_of(one("high"), one("low")), ("low", b"1"))
    assert bench.results("A-1") == [(False, ()), (True, (b"1",))]
    strict = waiting(until(one("high")), ("low", b"1"))
    assert not has_ended(strict)


def test_a_timer_runs_from_the_commit_of_its_wait() -> None:
    bench = Bench(step("A", wait_for=True)).start()
    bench.hand_out("A-1")
    bench.now += 100
    bench.wait("A-1", until(timer(10)))
    assert bench.flow.next_due() == bench.now + 10
    bench.advance(9)
    assert not has_ended(bench)
    bench.advance(1)
    assert has_ended(bench)


def test_a_timer_that_fired_stays_fired_while_the_rest_is_waited_for_also_over_a_crash() -> None:
    bench = waiting(all_of(timer(5), one("a")))
    bench.advance(5)
    assert not has_ended(bench)
    bench.now -= 4  # the clock of the owner is set back
    bench.crash()
    bench.checkpoint()
    bench.publish("a", b"1")
    assert has_ended(bench)


# C3, C9
@pytest.mark.parametrize(
    ("condition", "queued", "taken"),
    [
        (one("box"), 3, 1),
        (exactly("box", 2), 3, 2),
        (exactly("box", 2), 2, 2),
        (at_least("box", 2), 2, 2),
        (at_least("box", 2), 5, 5),
        (at_least("box", 0), 0, 0),
        (between("box", 1, 3), 2, 2),
        (between("box", 1, 3), 5, 3),
        (at_most("box", 3), 2, 2),
        (at_most("box", 3), 0, 0),
    ],
)
def test_a_condition_takes_from_its_minimum_to_its_maximum_the_oldest_first(condition, queued, taken) -> None:  # type: ignore[no-untyped-def]
    bench = waiting(until(condition), *numbers(queued))
    values = [value for _, value in numbers(queued)]
    assert bench.results("A-1") == [(True, tuple(values[:taken]))]
    assert bench.queue("box") == values[taken:]


@pytest.mark.statement("D1")
def test_at_most_is_ready_at_once_and_takes_the_oldest() -> None:
    bench = waiting(until(at_most("box", 3)), *numbers(5))
    assert bench.results("A-1") == [(True, (b"1", b"2", b"3"))]
    assert bench.queue("box") == [b"4", b"5"]
    assert waiting(until(at_most("box", 3))).results("A-1") == [(True, ())]


@pytest.mark.statement("D1")
def test_at_most_zero_is_ready_and_takes_none() -> None:
    bench = waiting(until(at_most("box", 0)), *numbers(2))
    assert bench.results("A-1") == [(True, ())]
    assert bench.queue("box") == [b"1", b"2"]


@pytest.mark.parametrize(("condition", "short"), [(exactly("box", 3), 2), (at_least("box", 2), 1), (one("box"), 0)])
def test_a_minimum_that_is_not_there_takes_nothing(condition, short) -> None:  # type: ignore[no-untyped-def]
    bench = waiting(until(condition), *numbers(short))
    assert not has_ended(bench)
    assert len(bench.queue("box")) == short


# C2
def test_conditions_on_one_channel_compete_for_its_messages() -> None:
    bench = waiting(all_of(one("box"), one("box")), ("box", b"1"))
    assert not has_ended(bench)
    bench.publish("box", b"2")
    assert bench.results("A-1") == [(True, (b"1",)), (True, (b"2",))]


# C2
def test_minima_are_reserved_before_anything_is_extended_and_extended_in_the_order_of_declaration() -> None:
    bench = waiting(all_of(between("box", 1, 3), at_least("box", 2), between("box", 0, 2)), *numbers(6))
    assert bench.results("A-1") == [(True, (b"1", b"2", b"3")), (True, (b"4", b"5", b"6")), (True, ())]


@pytest.mark.statement("B97", "B98")
def test_a_combination_consumes_for_itself_alone() -> None:
    wait = any_combination_of((one("a"), one("b"), one("c")), (0, 1), (2,))
    bench = waiting(wait, ("a", b"1"))
    assert not has_ended(bench)
    bench.publish("c", b"3")
    assert bench.results("A-1") == [(False, ()), (False, ()), (True, (b"3",))]
    assert bench.queue("a") == [b"1"]


@pytest.mark.statement("B97", "B98")
def test_of_two_ready_combinations_the_first_declared_wins() -> None:
    wait = any_combination_of((one("a"), one("b"), one("c")), (0, 1), (2,))
    bench = waiting(wait, ("c", b"3"), ("b", b"2"), ("a", b"1"))
    assert bench.results("A-1") == [(True, (b"1",)), (True, (b"2",)), (False, ())]
    assert bench.queue("c") == [b"3"]


@pytest.mark.statement("B97")
def test_a_combination_needs_its_timer_too() -> None:
    bench = waiting(any_combination_of((one("a"), timer(5)), (0, 1)), ("a", b"1"))
    assert not has_ended(bench)
    bench.advance(5)
    assert bench.results("A-1") == [(True, (b"1",)), (True, ())]


@pytest.mark.statement("B87")
def test_the_task_of_execute_carries_the_results_in_the_order_of_declaration() -> None:
    bench = waiting(any_of(one("a", "first"), timer(5, "late")), ("a", b"1"))
    results = bench.hand_out("A-1").conditions
    assert [(result.kind, result.condition_id, result.channel) for result in results] == [
        ("channel", "first", "a"),
        ("timer", "late", ""),
    ]
    assert results[0].messages == (b"1",)


# C9
def test_every_attempt_of_execute_sees_the_same_results() -> None:
    bench = waiting(until(one("box")), ("box", b"1"))
    first = bench.hand_out("A-1").conditions
    bench.fail("A-1")
    bench.publish("box", b"2")
    bench.crash()
    bench.checkpoint()
    bench.advance(1)
    assert bench.hand_out("A-1").conditions == first


# C7
@pytest.mark.statement("B231")
def test_one_message_satisfies_one_of_several_waiting_steps() -> None:
    bench = Bench(step("S"), step("A", wait_for=True)).start()
    bench.succeed("S-1", go_to("A", "A", "A"))
    for step_id in tuple(bench.open):
        bench.wait(step_id, until(one("box")))
    bench.publish("box", b"1")
    assert sorted(bench.phase(step_id) for step_id in bench.open) == [
        "execute ready",
        "wait_for waiting",
        "wait_for waiting",
    ]
    bench.publish("box", b"2", b"3")
    assert {bench.phase(step_id) for step_id in bench.open} == {"execute ready"}


def test_a_waiting_step_that_needs_more_does_not_stand_in_the_way_of_one_that_needs_less() -> None:
    bench = Bench(step("S"), step("A", wait_for=True)).start()
    bench.succeed("S-1", go_to("A", "A"))
    bench.wait("A-1", until(exactly("box", 5)))
    bench.wait("A-2", until(one("box")))
    bench.publish("box", b"1")
    assert bench.phase("A-2") == "execute ready"


def test_of_very_many_that_wait_the_oldest_that_can_take_first() -> None:
    """More than are looked at in one go, with some in between that need more than there is."""
    many = 3 * conditions.FEW
    bench = Bench(step("S"), step("A", wait_for=True)).start()
    bench.succeed("S-1", go_to(*["A"] * many))
    needs = {f"A-{number}": 5 if number % 3 == 0 else 1 for number in range(1, many + 1)}
    for step_id, count in needs.items():
        bench.wait(step_id, until(exactly("box", count)))
    left, there = dict(needs), 0
    for size in (1, 3, 60, 1, 4, 7, 1, 20):
        bench.publish("box", *[b"m"] * size)
        there += size
        for step_id, count in tuple(left.items()):
            if count <= there:
                there -= count
                del left[step_id]
        assert [step_id for step_id in needs if bench.phase(step_id) == "wait_for waiting"] == list(left)
        assert len(bench.queue("box")) == there


def test_messages_published_together_are_taken_together() -> None:
    bench = waiting(until(at_least("box", 1)))
    bench.publish("box", b"1", b"2", b"3")
    assert bench.results("A-1") == [(True, (b"1", b"2", b"3"))]


def test_what_a_wait_for_publishes_itself_can_end_its_own_wait() -> None:
    bench = Bench(step("A", wait_for=True)).start()
    bench.wait("A-1", until(one("box")), publish=[("box", b"mine")])
    assert bench.results("A-1") == [(True, (b"mine",))]


def test_who_waited_before_takes_first_what_a_later_wait_for_publishes() -> None:
    bench = Bench(step("S"), step("A", wait_for=True)).start()
    bench.succeed("S-1", go_to("A", "A"))
    bench.wait("A-1", until(one("box")))
    bench.wait("A-2", until(one("box")), publish=[("box", b"1")])
    assert bench.phase("A-1") == "execute ready"
    assert bench.phase("A-2") == "wait_for waiting"


# A wait whose Timer fires takes nothing from a Channel whose condition did not win, and another Step gets the message.
@pytest.mark.statement("B88")
def test_a_message_left_by_a_loser_goes_to_the_next_who_waits() -> None:
    bench = Bench(step("S"), step("A", wait_for=True)).start()
    bench.succeed("S-1", go_to("A", "A"))
    bench.wait("A-1", any_of(one("box"), timer(5)))
    bench.wait("A-2", until(one("box")))
    bench.now += 5
    bench.publish("box", b"1")
    assert bench.results("A-1") == [(False, ()), (True, ())]
    assert bench.results("A-2") == [(True, (b"1",))]


def test_a_wait_on_two_channels_is_no_longer_known_to_either_when_it_has_ended() -> None:
    bench = waiting(any_of(one("a"), one("b")), ("a", b"1"))
    assert bench.flow.index.waiters == {}
    bench.succeed("A-1", dead_end())
    bench.publish("b", b"2")
    assert bench.queue("b") == [b"2"]


def test_a_waiting_step_keeps_no_snapshot_of_its_wait_for() -> None:
    bench = waiting(until(one("box")))
    assert bench.step("A-1").snapshot is None
