"""Lanes with real worker processes: what they save, what they give back, and what survives their deaths."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from dexray.attempts.code import pack_registry
from dexray.cluster.dispatch import DispatchSettings
from dexray.cluster.ray_attempts import AttemptSettings
from dexray.protocol.attempts import WORKER_CRASHED, AttemptFailed, AttemptTask, ExecuteSucceeded
from tests.cluster.handlers import make_registry
from tests.cluster.owner import Owner
from tests.cluster.test_ray_attempts import OwnerHandle, output

pytestmark = pytest.mark.ray

STAYS = AttemptSettings(linger=20.0, dispatch=DispatchSettings(lane_hold=600.0))
"""A Ray task waits as long as a test may need it."""


@pytest.fixture
def make_owner(ray_cluster: Any) -> Iterator[Callable[..., OwnerHandle]]:
    made: list[OwnerHandle] = []
    code, deployment_id, _ = pack_registry(make_registry())
    actor_class = ray_cluster.remote(Owner).options(num_cpus=0, max_concurrency=1000)

    def make(settings: AttemptSettings | None = None) -> OwnerHandle:
        owner = OwnerHandle(ray_cluster, deployment_id, actor_class.remote({deployment_id: code}, settings))
        ray_cluster.get(owner.actor.begin.remote(), timeout=60)
        made.append(owner)
        return owner

    yield make
    for owner in made:
        owner.ray.get(owner.actor.end.remote(), timeout=60)
        ray_cluster.kill(owner.actor)


@pytest.fixture
def all_cpus(ray_cluster: Any) -> Callable[[], float]:
    """Takes all CPUs for a moment with a Ray task of somebody else; when that was."""

    @ray_cluster.remote(num_cpus=2, max_retries=0)
    def now() -> float:
        return time.time()

    ray_cluster.get(now.remote(), timeout=60)  # it has a process from now on
    return lambda: float(ray_cluster.get(now.remote(), timeout=60))


def process_of(owner: OwnerHandle) -> int:
    return int(output(owner.outcome(owner.task("SleepsIfLong", 0.0))[0]))


def test_one_process_runs_a_sequence_of_attempts_without_going_back_to_ray(
    make_owner: Callable[..., OwnerHandle],
) -> None:
    owner = make_owner(STAYS)
    assert len({process_of(owner) for _ in range(20)}) == 1


def test_without_lanes_all_is_as_before(make_owner: Callable[..., OwnerHandle]) -> None:
    owner = make_owner(AttemptSettings(lanes=False))
    owner.teach("Quick", 0)
    results = owner.outcome(*(owner.task("Quick", number) for number in range(300)))
    assert [output(result) for result in results] == list(range(1, 301))
    owner.wait_no_slots()
    assert owner.state()["twice"] == []


def test_the_cpu_of_an_idle_lane_is_soon_free_for_others(
    make_owner: Callable[..., OwnerHandle], all_cpus: Callable[[], float]
) -> None:
    owner = make_owner()
    owner.teach("Quick", 0)
    waits = []
    for number in range(5):
        task = owner.task("Quick", number)
        owner.outcome(task)
        ended = owner.times([task.key])[0][1]
        waits.append(all_cpus() - ended)
    assert min(waits) < 0.05
    assert max(waits) < 1.0


def test_a_closed_owner_sets_its_lanes_free(
    make_owner: Callable[..., OwnerHandle], all_cpus: Callable[[], float]
) -> None:
    owner = make_owner(STAYS)
    process_of(owner)
    owner.end()
    began = time.time()
    assert all_cpus() - began < 10.0


def test_a_lingering_process_that_is_killed_costs_no_attempt(make_owner: Callable[..., OwnerHandle]) -> None:
    owner = make_owner(STAYS)
    killed = process_of(owner)
    os.kill(killed, signal.SIGKILL)
    owner.wait_lanes(0)
    assert process_of(owner) != killed
    owner.wait_no_slots()


def test_a_process_that_is_killed_while_it_runs_a_lot_of_its_lane_fails_that_lot(
    make_owner: Callable[..., OwnerHandle],
) -> None:
    owner = make_owner(STAYS)
    killed = process_of(owner)
    keys = owner.begin(owner.task("Listens", 20.0))
    owner.wait_running(keys)
    os.kill(killed, signal.SIGKILL)
    (result,) = owner.wait_results(keys)
    assert isinstance(result, AttemptFailed)
    assert result.kind == WORKER_CRASHED
    owner.wait_no_slots()


@pytest.mark.statement("B163")
def test_a_handler_on_a_lane_that_never_lets_go_of_the_gil_is_known_to_run(
    make_owner: Callable[..., OwnerHandle],
) -> None:
    owner = make_owner(STAYS)
    process_of(owner)
    keys = owner.begin(owner.task("HoldsTheGil", 40_000_000))
    owner.wait_running(keys)
    assert output(owner.wait_results(keys)[0]) == sum(range(40_000_000))


@pytest.mark.statement("B117", "B120", "B121")
def test_a_handler_on_a_lane_sees_its_cancellation_within_a_tenth_of_a_second(
    make_owner: Callable[..., OwnerHandle],
) -> None:
    """The median of five: one of them may meet a moment in which the machine does something else."""
    owner = make_owner(STAYS)
    process_of(owner)
    delays = []
    for _ in range(5):
        keys = owner.begin(owner.task("Listens", 20.0))
        owner.wait_running(keys)
        canceled_at = owner.cancel(keys)
        delays.append(output(owner.wait_results(keys)[0]) - canceled_at)
    assert min(delays) >= 0
    assert sorted(delays)[2] < 0.1, delays


def test_no_slot_leaks_and_no_result_comes_twice_when_processes_are_killed_at_random(
    make_owner: Callable[..., OwnerHandle],
) -> None:
    owner = make_owner()
    chance = random.Random(7)
    owner.teach("SleepsIfLong", 0.0)
    ended: list[Any] = []
    while len(ended) < 500:
        tasks: list[AttemptTask] = [owner.task("SleepsIfLong", 0.0) for _ in range(chance.choice((1, 1, 5, 30)))]
        victims = {output(result) for result in ended[-5:] if isinstance(result, ExecuteSucceeded)}
        keys = owner.begin(*tasks)
        if victims and chance.random() < 0.3:
            kill(chance.choice(sorted(victims)))
        ended += owner.wait_results(keys)
    for result in ended:
        assert isinstance(result, ExecuteSucceeded) or result.kind == WORKER_CRASHED, result
    owner.wait_no_slots()
    assert owner.state()["twice"] == []


def kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def test_a_second_owner_gets_its_turn_while_the_first_is_never_idle(make_owner: Callable[..., OwnerHandle]) -> None:
    first, second = make_owner(), make_owner()
    for owner in (first, second):
        owner.teach("Quick", 0)
    keys = first.begin(*(first.task("Sleeps", 0.002) for _ in range(3000)))
    waits = []
    for number in range(5):
        began = time.time()
        second.outcome(second.task("Quick", number))
        waits.append(time.time() - began)
    assert len(first.results_of(keys)) < len(keys), "the first owner was busy all the time"
    assert sorted(waits)[2] < 0.5
    first.wait_results(keys)
