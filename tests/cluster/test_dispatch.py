"""The policy of dispatch: a table of situations, without Ray and without a clock."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dexray.cluster.dispatch import DEFAULT, Bundle, Dispatch, DispatchSettings, Ready, needs_of

KIND = ("Flow", "Step")
OTHER = ("Flow", "Other")
GPU: dict[str, Any] = {"num_gpus": 1}


class Policy:
    """A Dispatch on a cluster of so many CPUs, with the moves that the tests make."""

    def __init__(self, cpus: float = 2, settings: DispatchSettings | None = None, **more: float) -> None:
        self.dispatch: Dispatch[int] = Dispatch(settings)
        self.dispatch.set_resources({"CPU": cpus, **more})
        self.ready: dict[int, Ready[int]] = {}

    def learn(self, seconds: float, kind: tuple[str, str] = KIND) -> None:
        for _ in range(20):
            self.dispatch.ran(kind, seconds)

    def reserve_all(self, kind: tuple[str, str] = KIND, is_async: bool = False, now: float = 0.0) -> int:
        count = 0
        while count < 100_000 and self.dispatch.reserve(kind, is_async, now):
            count += 1
        return count

    def hand_out(
        self,
        *items: int,
        kind: tuple[str, str] = KIND,
        is_async: bool = False,
        options: dict[str, Any] | None = None,
        group: str = "code",
        size: int = 100,
    ) -> None:
        for item in items:
            assert self.dispatch.reserve(kind, is_async, 0.0)
            signature = repr(options).encode() if options else DEFAULT
            self.ready[item] = self.dispatch.enqueue(item, kind, is_async, signature, options or {}, group, size)

    def lots(self) -> list[Bundle[int]]:
        return list(self.dispatch.plan())

    def sizes(self) -> list[int]:
        return [len(lot.items) for lot in self.lots()]


# Slots ----------------------------------------------------------------------------------------------------------------


def test_an_unknown_type_gets_two_slots_a_cpu() -> None:
    assert Policy(cpus=4).reserve_all() == 8


def test_a_type_is_unknown_until_it_was_seen_twice() -> None:
    policy = Policy(cpus=4)
    policy.dispatch.ran(KIND, 0.001)
    assert policy.reserve_all() == 8
    policy.dispatch.ran(KIND, 0.001)
    assert policy.reserve_all() > 8


def test_a_long_one_that_is_known_to_run_makes_room_for_the_next() -> None:
    policy = Policy(cpus=1)
    policy.hand_out(1, 2)
    assert not policy.dispatch.reserve(KIND, False, 0.0)
    policy.dispatch.begun(policy.ready[1].slot)
    assert policy.reserve_all() == 1


def test_a_short_type_gets_slots_for_full_packs_at_every_place() -> None:
    policy = Policy(cpus=2)
    policy.learn(0.0001)
    assert policy.reserve_all() == 2 * 2 * 64


def test_slots_of_a_less_short_type_are_bounded_by_the_work_they_mean() -> None:
    policy = Policy(cpus=2)
    policy.learn(0.01)
    assert policy.reserve_all() == pytest.approx(4 * 0.03 / 0.01, abs=1)


def test_async_attempts_get_hundreds_of_slots() -> None:
    assert Policy(cpus=1).reserve_all(is_async=True) == 500


def test_a_reservation_given_back_is_free_again() -> None:
    policy = Policy(cpus=1)
    assert policy.reserve_all() == 2
    policy.dispatch.release(KIND, False)
    assert policy.reserve_all() == 1


def test_a_full_bucket_does_not_stop_attempts_with_other_resources() -> None:
    policy = Policy(cpus=4, GPU=1)
    policy.hand_out(1, 2, kind=OTHER, options=GPU)
    assert policy.reserve_all(kind=OTHER) == 0, "two GPU attempts wait for one GPU"
    assert policy.reserve_all() == 8


def test_what_no_node_offers_gets_few_slots_and_keeps_asking() -> None:
    policy = Policy(cpus=64)
    policy.hand_out(1, kind=OTHER, options=GPU)
    assert policy.reserve_all(kind=OTHER) == 1


def test_attempts_that_need_nothing_scarce_are_bounded_while_they_run_too() -> None:
    policy = Policy(cpus=1)
    policy.hand_out(1, options={"num_cpus": 0})
    policy.hand_out(2, options={"num_cpus": 0})
    policy.dispatch.begun(policy.ready[1].slot)
    policy.dispatch.begun(policy.ready[2].slot)
    assert policy.reserve_all() == 0


def test_only_a_refusal_calls_for_a_notice() -> None:
    policy = Policy(cpus=1)
    policy.dispatch.reserve(KIND, False, 0.0)
    assert not policy.dispatch.take_refused()
    policy.reserve_all()
    assert policy.dispatch.take_refused()
    assert not policy.dispatch.take_refused()


# Packs ----------------------------------------------------------------------------------------------------------------


def test_an_idle_cluster_gets_one_attempt_a_task() -> None:
    policy = Policy(cpus=4)
    policy.learn(0.001)
    policy.hand_out(1, 2, 3)
    assert policy.sizes() == [1, 1, 1]


def test_unknown_and_long_types_go_alone_at_once() -> None:
    policy = Policy(cpus=2)
    policy.hand_out(1, 2, 3, 4)
    lots = policy.lots()
    assert [lot.items for lot in lots] == [(1,), (2,), (3,), (4,)]
    assert not any(lot.short or (lot.place and lot.place.counts) for lot in lots)


def test_a_backlog_of_short_attempts_goes_in_packs_at_a_few_places() -> None:
    policy = Policy(cpus=2)
    policy.learn(0.0002)
    policy.hand_out(*range(200))
    assert policy.sizes() == [50, 50, 50, 50]


def test_attempts_wait_while_all_places_are_taken_and_then_go_together() -> None:
    policy = Policy(cpus=1)
    policy.learn(0.0002)
    policy.hand_out(*range(100))
    first, second = policy.lots()
    policy.hand_out(100, 101, 102)
    assert policy.lots() == []
    policy.dispatch.leave_place(first)
    (third,) = policy.lots()
    assert third.items == (100, 101, 102)
    policy.dispatch.leave_place(second)
    policy.dispatch.leave_place(second)
    assert policy.lots() == []


def test_a_pack_holds_no_more_work_than_a_pack_should() -> None:
    policy = Policy(cpus=1)
    policy.learn(0.01)
    policy.hand_out(*range(6))
    assert policy.sizes() == [3, 3]


def test_on_a_large_idle_cluster_a_burst_of_tiny_attempts_is_packed_as_far_as_that_saves_more_than_it_costs() -> None:
    policy = Policy(cpus=1000)
    policy.learn(0.0005)
    policy.hand_out(*range(500))
    assert policy.sizes() == [10] * 50


def test_attempts_of_two_deployments_never_share_a_pack() -> None:
    policy = Policy(cpus=2)
    policy.learn(0.0002)
    policy.hand_out(1, 2, 3, 4, 5, 6, group="old")
    policy.hand_out(7, 8, 9, 10, 11, 12, group="new")
    assert [lot.items for lot in policy.lots()] == [(1, 2, 3, 4, 5, 6), (7, 8, 9, 10, 11, 12)]


def test_big_tasks_do_not_fill_a_pack() -> None:
    policy = Policy(cpus=1)
    policy.learn(0.0002)
    policy.hand_out(*range(6), size=200_000)
    assert policy.sizes() == [1, 1]


def test_dropped_attempts_are_not_sent() -> None:
    policy = Policy(cpus=1)
    policy.hand_out(1, 2)
    policy.ready[1].dropped = True
    assert [lot.items for lot in policy.lots()] == [(2,)]


def test_async_attempts_of_one_turn_go_in_one_call() -> None:
    policy = Policy(cpus=1)
    policy.hand_out(*range(300), is_async=True)
    assert policy.sizes() == [300]


# Learning -------------------------------------------------------------------------------------------------------------


def test_one_outlier_is_soon_forgotten() -> None:
    policy = Policy()
    policy.learn(0.001)
    policy.dispatch.ran(KIND, 3600.0)
    assert policy.dispatch.durations.expected(KIND) > 0.02  # type: ignore[operator]
    for _ in range(5):
        policy.dispatch.ran(KIND, 0.001)
    assert policy.dispatch.durations.expected(KIND) < 0.02  # type: ignore[operator]


def test_an_attempt_that_comes_back_unstarted_goes_first_and_as_what_its_type_is_by_now() -> None:
    policy = Policy(cpus=1)
    policy.learn(0.001)
    policy.hand_out(1, 2)
    (lot, _) = policy.lots()
    policy.dispatch.leave_place(lot)
    policy.learn(1.0)
    policy.dispatch.enqueue_again(policy.ready[1], 0.0)
    (again,) = policy.lots()
    assert again.items == (1,)
    assert not again.short
    policy.dispatch.free(policy.ready[1].slot)
    policy.dispatch.free(policy.ready[2].slot)
    assert policy.dispatch.handed_out == 0


def test_a_type_that_crashed_a_process_goes_alone_for_a_while() -> None:
    policy = Policy(cpus=2)
    policy.learn(0.0002)
    policy.dispatch.crashed(KIND, now=0.0)
    assert policy.reserve_all(now=59.0) == 4
    assert policy.reserve_all(now=61.0) > 4


def test_a_declined_type_is_tried_again_once_after_a_pause_that_doubles() -> None:
    policy = Policy(cpus=4)
    assert policy.dispatch.declined(KIND, now=0.0) == pytest.approx(1.0)
    assert policy.reserve_all(now=0.9) == 0
    assert policy.reserve_all(now=1.0) == 1, "one try"
    assert policy.dispatch.declined(KIND, now=1.1) == pytest.approx(1.9)
    assert policy.reserve_all(now=2.9) == 0
    assert policy.reserve_all(now=3.0) == 1
    policy.dispatch.ran(KIND, 0.5)
    assert policy.reserve_all(now=3.1) == 6, "all but the two tries"
    assert policy.reserve_all(kind=OTHER, now=0.0) == 0


def test_other_types_are_not_held_back_by_a_declined_one() -> None:
    policy = Policy(cpus=4)
    policy.dispatch.declined(KIND, now=0.0)
    assert policy.reserve_all(kind=OTHER) == 8


@pytest.mark.parametrize(
    ("options", "is_async", "needs"),
    [
        ({}, False, {"CPU": 1.0}),
        ({}, True, {}),
        ({"num_cpus": 0}, False, {}),
        ({"num_cpus": 0.5, "num_gpus": 2}, False, {"CPU": 0.5, "GPU": 2.0}),
        ({"memory": 1e9, "resources": {"TPU": 4}}, True, {"memory": 1e9, "TPU": 4.0}),
        ({"scheduling_strategy": "SPREAD"}, False, {"CPU": 1.0}),
    ],
)
def test_what_a_task_takes(options: dict[str, Any], is_async: bool, needs: dict[str, float]) -> None:
    assert needs_of(options, is_async) == needs


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["reserve", "release", "enqueue", "plan", "begun", "free", "again", "ran", "crash"]),
            st.sampled_from([KIND, OTHER]),
            st.integers(0, 50),
        ),
        max_size=150,
    )
)
def test_whatever_happens_every_slot_is_counted_once(moves: list[tuple[str, tuple[str, str], int]]) -> None:
    policy = Policy(cpus=2)
    dispatch = policy.dispatch
    reserved: dict[tuple[str, str], int] = {KIND: 0, OTHER: 0}
    queued: dict[int, Ready[int]] = {}
    sent: dict[int, tuple[Ready[int], Bundle[int]]] = {}
    for number, (move, kind, choice) in enumerate(moves):
        match move:
            case "reserve":
                reserved[kind] += dispatch.reserve(kind, False, float(number))
            case "release" if reserved[kind]:
                dispatch.release(kind, False)
                reserved[kind] -= 1
            case "enqueue" if reserved[kind]:
                queued[number] = dispatch.enqueue(number, kind, False, DEFAULT, {}, "code", 10)
                reserved[kind] -= 1
            case "plan":
                for lot in dispatch.plan():
                    for item in lot.items:
                        sent[item] = (queued.pop(item), lot)
            case "begun" if sent:
                dispatch.begun(list(sent.values())[choice % len(sent)][0].slot)
            case "free" if sent:
                ready, lot = sent.pop(list(sent)[choice % len(sent)])
                dispatch.free(ready.slot)
                dispatch.leave_place(lot)
            case "again" if sent:
                item = list(sent)[choice % len(sent)]
                queued[item], lot = sent.pop(item)
                dispatch.leave_place(lot)
                dispatch.enqueue_again(queued[item], float(number))
            case "ran":
                dispatch.ran(kind, choice / 1000)
            case "crash":
                dispatch.crashed(kind, float(number))
            case _:
                continue
        assert dispatch.handed_out == sum(reserved.values()) + len(queued) + len(sent)
    for ready in [*queued.values(), *(ready for ready, _ in sent.values())]:
        dispatch.free(ready.slot)
    for kind, count in reserved.items():
        for _ in range(count + 1):
            dispatch.release(kind, False)
    assert dispatch.handed_out == 0
