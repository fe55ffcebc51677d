"""Detached attempts: they go on without the owner that handed them out, and end when nobody wants them.

First between two owners alone, where each moment can be chosen; then with a whole engine and SIGKILL.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from dex import (
    Attribute,
    Client,
    Context,
    Flow,
    FlowDefinitionError,
    PersistenceSchema,
    Registry,
    RPCResult,
    Step,
    StepDecision,
    StepList,
    StepOptions,
    graceful_complete,
    rpc,
)
from dex.step import StepOutput, heartbeat
from dexray.attempts.code import pack_registry
from dexray.cluster.detached_worker import name_of
from dexray.cluster.protocol import flow_actor_name
from dexray.protocol.attempts import (
    STARTED_ATTEMPT_INTERRUPTED,
    AttemptFailed,
    AttemptKey,
    AttemptReturned,
    AttemptTask,
)
from tests.cluster.engines import Engines
from tests.cluster.handlers import make_registry
from tests.cluster.owner import Owner
from tests.cluster.test_ray_attempts import CODECS, OwnerHandle, output

pytestmark = [pytest.mark.ray, pytest.mark.kill, pytest.mark.timeout(240)]

NAMESPACE = "dexray-tests"


# Between owners -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def make_owner(ray_cluster: Any) -> Iterator[Callable[[], OwnerHandle]]:
    made: list[OwnerHandle] = []
    code, deployment_id, _ = pack_registry(make_registry())
    actor_class = ray_cluster.remote(Owner).options(num_cpus=0, max_concurrency=1000)

    def make() -> OwnerHandle:
        owner = OwnerHandle(ray_cluster, deployment_id, actor_class.remote({deployment_id: code}))
        ray_cluster.get(owner.actor.begin.remote(), timeout=60)
        made.append(owner)
        return owner

    yield make
    for owner in made:
        ray_cluster.kill(owner.actor)


def is_there(ray: Any, key: AttemptKey) -> bool:
    try:
        ray.get_actor(name_of(key), namespace=NAMESPACE)
    except ValueError:
        return False
    return True


def until(is_so: Callable[[], bool], what: str, timeout: float = 60.0) -> None:
    deadline = time.monotonic() + timeout
    while not is_so():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


def lose(owner: OwnerHandle) -> None:
    owner.ray.kill(owner.actor)


def begin_detached(owner: OwnerHandle, step_type: str, value: Any, **fields: Any) -> AttemptTask:
    task = replace_key(owner.task(step_type, value, detached=True, **fields))
    owner.begin(task)
    owner.wait_running([task.key], 60.0)
    return task


def replace_key(task: AttemptTask) -> AttemptTask:
    """Run ids are unique in the world, and the names of the actors count on it."""
    import msgspec

    return msgspec.structs.replace(task, key=msgspec.structs.replace(task.key, run_id=task.key.flow_id))


def test_a_detached_attempt_goes_back_to_its_owner_and_its_process_goes_when_the_outcome_is_durable(
    make_owner: Callable[[], OwnerHandle],
) -> None:
    owner = make_owner()
    task = begin_detached(owner, "Sleeps", 0.3)
    (result,) = owner.wait_results([task.key])
    assert output(result) != os.getpid()
    assert is_there(owner.ray, task.key), "its result is not durable yet"
    owner.settled(task.key)
    until(lambda: not is_there(owner.ray, task.key), "the process stays")
    owner.wait_no_slots()


def test_the_next_owner_hears_of_the_heartbeats_and_the_result_of_what_was_running(
    make_owner: Callable[[], OwnerHandle],
) -> None:
    first, second = make_owner(), make_owner()
    task = begin_detached(first, "Beats", 100)
    lose(first)
    second.adopt(task)
    second.wait_running([task.key], 60.0)
    (result,) = second.wait_results([task.key])
    assert output(result) == 100
    beats = [beat.value for key, beat in second.state()["heartbeats"] if key == task.key]
    assert CODECS.decode(beats[-1], int, where="test") > 50
    assert second.state()["twice"] == []
    second.settled(task.key)
    until(lambda: not is_there(second.ray, task.key), "the process stays")
    second.wait_no_slots()


def test_a_result_that_no_owner_has_made_durable_waits_for_the_next_one(
    make_owner: Callable[[], OwnerHandle],
) -> None:
    first, second, third = make_owner(), make_owner(), make_owner()
    task = begin_detached(first, "Sleeps", 0.3)
    (result,) = first.wait_results([task.key])
    lose(first)
    second.adopt(task)
    assert second.wait_results([task.key]) == [result]
    lose(second)
    third.adopt(task)
    assert third.wait_results([task.key]) == [result]
    third.settled(task.key)
    until(lambda: not is_there(third.ray, task.key), "the process stays")


def test_a_stale_owner_and_the_new_one_may_both_hear_of_the_result(make_owner: Callable[[], OwnerHandle]) -> None:
    """The journal takes it from one of them."""
    stale, owner = make_owner(), make_owner()
    task = begin_detached(stale, "Sleeps", 1.0)
    owner.adopt(task)
    (result,) = owner.wait_results([task.key])
    assert output(result) > 0
    owner.settled(task.key)
    assert owner.state()["twice"] == stale.state()["twice"] == []


def test_what_the_next_owner_cancels_stops(make_owner: Callable[[], OwnerHandle]) -> None:
    first, second = make_owner(), make_owner()
    task = begin_detached(first, "Listens", 60.0)
    lose(first)
    second.adopt(task)
    second.wait_running([task.key], 60.0)
    canceled_at = second.cancel([task.key])
    (result,) = second.wait_results([task.key])
    assert output(result) >= canceled_at - 0.1, "it has seen it"
    until(lambda: not is_there(second.ray, task.key), "the process stays")


def test_one_that_is_canceled_before_its_resources_exist_leaves_nothing(
    make_owner: Callable[[], OwnerHandle],
) -> None:
    owner = make_owner()
    task = replace_key(owner.task("Quick", 1, detached=True, resources={"resources": {"unobtainium": 1.0}}))
    owner.begin(task)
    until(lambda: is_there(owner.ray, task.key), "it was not asked for")
    owner.cancel([task.key])
    until(lambda: not is_there(owner.ray, task.key), "it is still asked for")
    owner.wait_no_slots()


def test_one_whose_process_is_gone_was_interrupted(make_owner: Callable[[], OwnerHandle]) -> None:
    first, second = make_owner(), make_owner()
    task = begin_detached(first, "Listens", 60.0)
    first.ray.kill(first.ray.get_actor(name_of(task.key), namespace=NAMESPACE))
    lose(first)
    second.adopt(task)
    (result,) = second.wait_results([task.key])
    assert isinstance(result, AttemptFailed)
    assert result.kind == STARTED_ATTEMPT_INTERRUPTED
    second.wait_no_slots()


def test_one_whose_code_does_not_load_goes_back_without_having_run(make_owner: Callable[[], OwnerHandle]) -> None:
    owner = make_owner()
    owner.add_code("broken", b"no code at all")
    for number in range(3):  # an actor that ends too early answers by its death, now and then
        task = replace_key(owner.task("Quick", number, detached=True, deployment_id="broken"))
        (result,) = owner.outcome(task)
        assert isinstance(result, AttemptReturned), result
        assert "can't be loaded" in result.reason
        owner.settled(task.key)
        until(lambda task=task: not is_there(owner.ray, task.key), "the process stays")


def test_one_that_dies_by_itself_has_crashed(make_owner: Callable[[], OwnerHandle]) -> None:
    owner = make_owner()
    task = replace_key(owner.task("Dies", "kill", detached=True))
    (result,) = owner.outcome(task)
    assert isinstance(result, AttemptFailed)
    assert result.kind == "WORKER_CRASHED"


def test_one_that_nobody_wants_any_more_stops_and_its_process_ends(
    make_owner: Callable[[], OwnerHandle], tmp_path: Path
) -> None:
    """The Flow was closed, and then its owner died before it could say so: the actor asks whoever comes after it."""
    ray = make_owner().ray
    code, deployment_id, _ = pack_registry(make_registry())
    actor_class = ray.remote(Owner).options(num_cpus=0, max_concurrency=1000, max_restarts=1)
    owner = OwnerHandle(ray, deployment_id, actor_class.remote({deployment_id: code}))
    owner.actor.begin.remote()
    task = begin_detached(owner, "Listens", 60.0)
    ray.kill(owner.actor, no_restart=False)

    def begins() -> bool:
        try:
            ray.get(owner.actor.disown.remote([task.key]), timeout=10)
            ray.get(owner.actor.begin.remote(), timeout=10)
        except ray.exceptions.RayError:
            return False
        return True

    until(begins, "the owner does not come back")
    until(lambda: not is_there(ray, task.key), "the attempt goes on for nobody")
    ray.kill(owner.actor)


# With an engine -------------------------------------------------------------------------------------------------------

progress = Attribute("progress", int)


@dataclass(frozen=True)
class Training:
    folder: str
    epochs: int
    seconds: float = 0.1


class Train(Step[Training]):
    """Each epoch leaves a line, with the attempt and the process."""

    def get_step_options(self) -> StepOptions:
        return StepOptions(detached=True, execute_method_timeout=timedelta(hours=12))

    def execute(self, context: Context, input: Training) -> Generator[StepOutput, None, StepDecision]:
        done = context.get_last_heartbeat_value(int) or 0
        for epoch in range(done, input.epochs):
            with (Path(input.folder) / context.flow_id).open("a") as log:
                log.write(f"{context.attempt} {os.getpid()} {epoch}\n")
            time.sleep(input.seconds)
            yield heartbeat(epoch + 1)
            if context.is_cancellation_requested():
                break
        progress.set(context, input.epochs)
        return graceful_complete(context.attempt)


class TrainFlow(Flow[Training]):
    def get_steps(self) -> StepList[Training]:
        return StepList.start_step(Train())

    def get_persistence_schema(self) -> PersistenceSchema:
        return PersistenceSchema.of(progress)

    @rpc
    def look(self, context: Context) -> RPCResult[int]:
        return RPCResult(progress.get(context))


FLOW = TrainFlow()
REGISTRY = Registry([FLOW])


def lines(folder: Path, flow_id: str) -> list[tuple[int, int, int]]:
    path = folder / flow_id
    if not path.exists():
        return []
    return [
        (int(attempt), int(pid), int(epoch))
        for attempt, pid, epoch in (line.split() for line in path.read_text().splitlines())
    ]


def kill_owner(engines: Engines) -> None:
    from ray.exceptions import RayError

    deadline = time.monotonic() + 60
    while True:
        try:
            os.kill(engines.load(flow_actor_name(0)).pid, signal.SIGKILL)
            return
        except RayError:  # it is just coming back
            assert time.monotonic() < deadline
            time.sleep(0.2)


def train(engines: Engines, folder: Path, epochs: int) -> Client:
    client = engines.connect(REGISTRY, flow_actors=1, max_flow_actors=1)
    client.start_flow(FLOW, "training", Training(str(folder), epochs))
    until(lambda: len(lines(folder, "training")) >= 3, "the training does not begin")
    return client


@pytest.mark.statement("B157")
def test_a_training_goes_on_while_the_process_that_owns_its_flow_is_killed_twice(
    engines: Engines, tmp_path: Path
) -> None:
    client = train(engines, tmp_path, 80)
    for _ in range(2):
        seen = len(lines(tmp_path, "training"))
        kill_owner(engines)
        until(lambda seen=seen: len(lines(tmp_path, "training")) > seen + 5, "the training has stopped")
    assert client.wait_for_flow("training", timeout=timedelta(seconds=90)).single_output(int) == 1
    log = lines(tmp_path, "training")
    assert [epoch for _, _, epoch in log] == list(range(80)), "an epoch ran twice, or not at all"
    assert len({(attempt, pid) for attempt, pid, _ in log}) == 1
    assert client.invoke_rpc(FLOW.look, "training") == 80
    kinds = [event.kind for event in client.history("training")]
    assert "AttemptFailed" not in kinds
    until(lambda: not attempt_actors(engines), "the process of the attempt stays")


def test_when_its_own_process_is_killed_with_its_owner_the_next_attempt_resumes_at_the_checkpoint(
    engines: Engines, tmp_path: Path
) -> None:
    client = train(engines, tmp_path, 40)
    os.kill(lines(tmp_path, "training")[0][1], signal.SIGKILL)
    kill_owner(engines)
    assert client.wait_for_flow("training", timeout=timedelta(seconds=90)).single_output(int) == 2
    second = [epoch for attempt, _, epoch in lines(tmp_path, "training") if attempt == 2]
    assert second[0] > 0, "the checkpoint was lost"
    assert second[-1] == 39


def test_stopping_the_flow_after_a_change_of_owner_stops_the_training(engines: Engines, tmp_path: Path) -> None:
    client = train(engines, tmp_path, 5_000)
    kill_owner(engines)
    client.stop_flow("training")
    until(lambda: not attempt_actors(engines), "the process of the attempt stays")
    assert len(lines(tmp_path, "training")) < 2_000


def test_an_engine_that_begins_anew_adopts_what_goes_on(engines: Engines, tmp_path: Path) -> None:
    """The engine was stopped in order, and its cluster lives: the attempt is interrupted for nobody."""
    client = train(engines, tmp_path, 100)
    namespace = engines.namespace
    engines.stop_engine()
    client = engines.connect(REGISTRY, flow_actors=1, max_flow_actors=1)
    assert engines.namespace == namespace
    assert client.wait_for_flow("training", timeout=timedelta(seconds=90)).single_output(int) == 1
    assert [epoch for _, _, epoch in lines(tmp_path, "training")] == list(range(100))


def attempt_actors(engines: Engines) -> list[str]:
    import ray

    named: Any = ray.util.list_named_actors(all_namespaces=True)
    return [
        entry["name"]
        for entry in named
        if entry["namespace"] == engines.namespace and entry["name"].startswith("attempt:")
    ]


def test_detached_is_a_yes_or_a_no() -> None:
    class Wrong(Step[None]):
        def get_step_options(self) -> StepOptions:
            return replace(StepOptions(), detached="yes")  # type: ignore[arg-type]

        def execute(self, context: Context, input: None) -> StepDecision:
            return graceful_complete()

    class WrongFlow(Flow[None]):
        def get_steps(self) -> StepList[None]:
            return StepList.start_step(Wrong())

    with pytest.raises(FlowDefinitionError, match="detached is True or False, got 'yes'"):
        Registry([WrongFlow()])
