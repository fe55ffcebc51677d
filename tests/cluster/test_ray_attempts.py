from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from dex.values import CodecRegistry
from dexray.attempts.code import pack_registry
from dexray.cluster.ray_attempts import AttemptSettings
from dexray.protocol.attempts import (
    WORKER_CRASHED,
    AttemptFailed,
    AttemptKey,
    AttemptReturned,
    AttemptTask,
    ExecuteSucceeded,
)
from tests.cluster.handlers import make_registry
from tests.cluster.owner import Owner

pytestmark = pytest.mark.ray

CODECS = CodecRegistry()
_numbers = itertools.count(1)


class OwnerHandle:
    """The test's end of an Owner actor."""

    def __init__(self, ray: Any, deployment_id: str, actor: Any) -> None:
        self.ray = ray
        self.deployment_id = deployment_id
        self.actor = actor

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method = getattr(self.actor, name)
        return lambda *arguments: self.ray.get(method.remote(*arguments), timeout=60)

    def task(self, step_type: str, value: Any, **fields: Any) -> AttemptTask:
        fields = {"deployment_id": self.deployment_id, "is_async": step_type.startswith("Async"), **fields}
        return AttemptTask(
            key=AttemptKey(f"flow-{next(_numbers)}", "run", f"{step_type}-1", "execute", 1),
            flow_type="Handlers",
            step_type=step_type,
            from_step_execution_id="",
            input=CODECS.encode_dynamic(value, where="test"),
            timeout=fields.pop("timeout", 60.0),
            heartbeat_timeout=60.0,
            first_attempt_at=time.time(),
            **fields,
        )

    def begin(self, *tasks: AttemptTask) -> list[AttemptKey]:
        self.submit(list(tasks))
        return [task.key for task in tasks]

    def outcome(self, *tasks: AttemptTask) -> list[Any]:
        return list(self.wait_results(self.begin(*tasks)))

    def teach(self, step_type: str, value: Any) -> None:
        """Lets the owner see that this Step type is short."""
        for _ in range(5):
            self.outcome(self.task(step_type, value))


@pytest.fixture(scope="module")
def deployment() -> tuple[bytes, str]:
    code, deployment_id, _ = pack_registry(make_registry())
    return code, deployment_id


@pytest.fixture(scope="module")
def make_owner(ray_cluster: Any, deployment: tuple[bytes, str]) -> Iterator[Callable[..., OwnerHandle]]:
    made: list[OwnerHandle] = []
    code, deployment_id = deployment
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


@pytest.fixture(scope="module")
def owner(make_owner: Callable[..., OwnerHandle]) -> OwnerHandle:
    return make_owner()


def output(result: Any) -> Any:
    assert isinstance(result, ExecuteSucceeded), result
    assert result.decision.output is not None
    return CODECS.decode(result.decision.output, object, where="test")


# Results --------------------------------------------------------------------------------------------------------------


def test_a_plain_handler_runs_in_a_worker_and_its_result_comes_back(owner: OwnerHandle) -> None:
    (result,) = owner.outcome(owner.task("Quick", 41))
    assert output(result) == 42


def test_a_generator_handler_sends_its_heartbeats(owner: OwnerHandle) -> None:
    task = owner.task("Beats", 10)
    (result,) = owner.outcome(task)
    beats = [beat for key, beat in owner.state()["heartbeats"] if key == task.key]
    assert output(result) == 10
    assert beats, "the first heartbeat is sent at once"
    assert len(beats) < 10, "the others are coalesced"


def test_the_last_heartbeat_comes_with_the_failure(owner: OwnerHandle) -> None:
    (result,) = owner.outcome(owner.task("Beats", -10))
    assert isinstance(result, AttemptFailed)
    assert result.heartbeat is not None
    assert result.heartbeat.value == CODECS.encode_dynamic(9, where="test")
    assert result.worker


def test_many_async_handlers_run_at_once_in_one_process(owner: OwnerHandle) -> None:
    results = owner.outcome(*(owner.task("AsyncEcho", 0.5) for _ in range(200)))
    assert len({output(result) for result in results}) == 1


def test_an_async_handler_with_resources_runs_as_a_task_of_its_own(owner: OwnerHandle) -> None:
    together, alone = owner.outcome(
        owner.task("AsyncEcho", 0.0), owner.task("AsyncEcho", 0.0, resources={"num_cpus": 1})
    )
    assert output(together) != output(alone)


def test_async_heartbeats_reach_the_owner(owner: OwnerHandle) -> None:
    task = owner.task("AsyncBeats", 10)
    (result,) = owner.outcome(task)
    assert output(result) == 10
    assert any(key == task.key and beat is not None for key, beat in owner.state()["heartbeats"])


def test_a_result_too_big_for_a_message_comes_back_too(owner: OwnerHandle) -> None:
    (result,) = owner.outcome(owner.task("Big", 3_000_000))
    assert isinstance(result, ExecuteSucceeded)
    assert sum(map(len, result.blobs.values())) > 3_000_000


def test_handlers_do_not_see_the_signal_that_cancels_tasks(owner: OwnerHandle) -> None:
    (result,) = owner.outcome(owner.task("Interrupted", ""))
    assert output(result) is True


def test_an_attempt_that_lasts_is_reported_as_running(owner: OwnerHandle) -> None:
    keys = owner.begin(owner.task("Sleeps", 0.4), owner.task("AsyncEcho", 0.4))
    owner.wait_running(keys)
    owner.wait_results(keys)


@pytest.mark.statement("B163")
def test_a_handler_that_never_lets_go_of_the_gil_is_known_to_run(owner: OwnerHandle) -> None:
    keys = owner.begin(owner.task("HoldsTheGil", 40_000_000))
    owner.wait_running(keys)
    assert output(owner.wait_results(keys)[0]) == sum(range(40_000_000))


# Deaths ---------------------------------------------------------------------------------------------------------------


@pytest.mark.statement("B200")
@pytest.mark.parametrize("way", ["os._exit", "kill"])
def test_an_attempt_whose_process_ends_fails_as_crashed(owner: OwnerHandle, way: str) -> None:
    (result,) = owner.outcome(owner.task("Dies", way))
    assert isinstance(result, AttemptFailed)
    assert result.kind == WORKER_CRASHED
    assert "the worker process ended" in result.detail


def test_sys_exit_in_a_handler_is_an_error_of_the_handler_and_spares_the_process(owner: OwnerHandle) -> None:
    (result,) = owner.outcome(owner.task("Dies", "sys.exit"))
    assert isinstance(result, AttemptFailed)
    assert result.error_type == "builtins.SystemExit"
    (result,) = owner.outcome(owner.task("AsyncDies", "sys.exit"))
    assert isinstance(result, AttemptFailed)
    assert result.error_type == "builtins.SystemExit"


def test_when_the_async_process_ends_its_attempts_fail_and_the_next_gets_a_new_one(owner: OwnerHandle) -> None:
    (before,) = owner.outcome(owner.task("AsyncEcho", 0.0))
    keys = owner.begin(*(owner.task("AsyncEcho", 30.0) for _ in range(5)))
    owner.wait_running(keys)
    results = owner.outcome(owner.task("AsyncDies", "os._exit")) + owner.wait_results(keys)
    assert all(isinstance(result, AttemptFailed) and result.kind == WORKER_CRASHED for result in results)
    (after,) = owner.outcome(owner.task("AsyncEcho", 0.0))
    assert output(after) != output(before)


def test_after_a_crash_in_a_pack_the_type_goes_alone(make_owner: Callable[..., OwnerHandle]) -> None:
    owner = make_owner()
    owner.teach("Dies", "no")
    results = owner.outcome(*(owner.task("Dies", "os._exit" if number == 20 else "no") for number in range(40)))
    crashed = [result for result in results if isinstance(result, AttemptFailed)]
    assert 1 <= len(crashed) < 40
    results = owner.outcome(*(owner.task("Dies", "os._exit" if number == 4 else "no") for number in range(9)))
    assert sum(isinstance(result, AttemptFailed) for result in results) == 1
    owner.wait_no_slots()


# Cancellation ---------------------------------------------------------------------------------------------------------


@pytest.mark.statement("B117", "B120", "B121")
@pytest.mark.parametrize("step_type", ["Listens", "AsyncListens"])
def test_a_running_handler_sees_its_cancellation_within_a_tenth_of_a_second(owner: OwnerHandle, step_type: str) -> None:
    keys = owner.begin(owner.task(step_type, 20.0))
    owner.wait_running(keys)
    canceled_at = owner.cancel(keys)
    seen_at = output(owner.wait_results(keys)[0])
    assert 0 <= seen_at - canceled_at < 0.1


def test_an_async_handler_in_a_task_of_its_own_sees_its_cancellation(owner: OwnerHandle) -> None:
    keys = owner.begin(owner.task("AsyncListens", 20.0, resources={"num_cpus": 1}))
    owner.wait_running(keys)
    canceled_at = owner.cancel(keys)
    assert 0 <= output(owner.wait_results(keys)[0]) - canceled_at < 0.1


def test_cancellation_in_a_pack_concerns_one_attempt_and_loses_no_result(
    make_owner: Callable[..., OwnerHandle],
) -> None:
    owner = make_owner()
    owner.teach("Listens", 0.0)
    keys = owner.begin(*(owner.task("Listens", 20.0 if number == 10 else 0.0) for number in range(40)))
    owner.wait_running([keys[10]])
    others = owner.wait_results(keys[:10] + keys[11:])
    assert all(output(result) == 0.0 for result in others)
    canceled_at = owner.cancel([keys[10]])
    assert 0 < output(owner.wait_results([keys[10]])[0]) - canceled_at < 0.1
    owner.wait_no_slots()


def test_queued_attempts_that_are_canceled_never_run_and_free_their_slots(
    make_owner: Callable[..., OwnerHandle],
) -> None:
    owner = make_owner()
    busy = owner.begin(*(owner.task("Listens", 20.0) for _ in range(2)))
    owner.wait_running(busy)
    queued = owner.begin(*(owner.task("Sleeps", 0.0) for _ in range(4)))
    waiting = owner.begin(*(owner.task("Sleeps", 0.0) for _ in range(4)))
    owner.cancel(queued)
    owner.cancel(busy)
    owner.wait_results(waiting)
    owner.wait_no_slots()
    assert not any(owner.results_of(queued))


def test_the_slot_of_a_handler_that_ignores_cancellation_comes_back(make_owner: Callable[..., OwnerHandle]) -> None:
    owner = make_owner(AttemptSettings(cancel_grace=0.2))
    keys = owner.begin(owner.task("IgnoresCancel", 1.5))
    owner.wait_running(keys)
    owner.cancel(keys)
    owner.wait_no_slots(1.0)
    owner.outcome(*(owner.task("Quick", number) for number in range(8)))
    assert not any(owner.results_of(keys))


# Packs ----------------------------------------------------------------------------------------------------------------


def test_a_backlog_of_a_thousand_short_attempts_travels_in_packs(make_owner: Callable[..., OwnerHandle]) -> None:
    owner = make_owner()
    owner.teach("Quick", 0)
    before = owner.state()["lots"]
    results = owner.outcome(*(owner.task("Quick", number) for number in range(1000)))
    assert [output(result) for result in results] == list(range(1, 1001))
    state = owner.state()
    assert state["lots"] - before < 250
    assert state["twice"] == []
    assert state["slots"] == 0


@pytest.mark.statement("B204", "B209")
def test_one_that_turns_out_long_gives_the_rest_of_its_pack_to_other_workers(
    make_owner: Callable[..., OwnerHandle],
) -> None:
    owner = make_owner()
    owner.teach("SleepsIfLong", 0.0)
    keys = owner.begin(*(owner.task("SleepsIfLong", 3.0 if number == 5 else 0.0) for number in range(60)))
    rest = [key for number, key in enumerate(keys) if number != 5]
    results = owner.wait_results(rest, 2.5)
    assert all(isinstance(result, ExecuteSucceeded) for result in results)
    owner.wait_results(keys)
    state = owner.state()
    assert keys[5] in state["running"]
    assert state["twice"] == []


# Code -----------------------------------------------------------------------------------------------------------------


@pytest.mark.statement("B204", "B205", "B213")
def test_code_that_does_not_load_returns_the_attempt_with_the_reason(owner: OwnerHandle) -> None:
    owner.add_code("broken", b"this is no code")
    (result,) = owner.outcome(owner.task("Quick", 1, deployment_id="broken"))
    assert isinstance(result, AttemptReturned)
    assert "can't be loaded" in result.reason


def test_code_that_is_nowhere_returns_the_attempt(make_owner: Callable[..., OwnerHandle]) -> None:
    owner = make_owner()
    results = owner.outcome(
        owner.task("Quick", 1, deployment_id="missing"), owner.task("AsyncEcho", 0.0, deployment_id="missing")
    )
    assert all(isinstance(result, AttemptReturned) and "missing" in result.reason for result in results)
    owner.wait_no_slots()


@pytest.mark.statement("B206")
def test_resources_that_ray_refuses_return_the_attempt(owner: OwnerHandle) -> None:
    (result,) = owner.outcome(owner.task("Sleeps", 0.0, resources={"num_wings": 2}))
    assert isinstance(result, AttemptReturned)
    assert "num_wings" in result.reason


# Accounting -----------------------------------------------------------------------------------------------------------


def test_slots_do_not_leak_over_failures_cancellations_and_deaths(make_owner: Callable[..., OwnerHandle]) -> None:
    owner = make_owner(AttemptSettings(cancel_grace=1.0))
    tasks: list[AttemptTask] = []
    for number in range(500):
        match number % 100:
            case 10 | 60:
                tasks.append(owner.task("Dies", "raise"))
            case 11:
                tasks.append(owner.task("Dies", "kill"))
            case 12:
                tasks.append(owner.task("AsyncDies", "os._exit"))
            case 13 | 63:
                tasks.append(owner.task("Listens", 20.0))
            case 14 | 64:
                tasks.append(owner.task("AsyncListens", 20.0))
            case 15:
                tasks.append(owner.task("Quick", 1, deployment_id="missing"))
            case remainder if remainder % 2:
                tasks.append(owner.task("AsyncEcho", 0.0))
            case _:
                tasks.append(owner.task("Quick", number))
    keys = owner.begin(*tasks)
    listening = [task.key for task in tasks if "Listens" in task.step_type]
    owner.cancel_when_running(listening)
    owner.wait_results([key for key in keys if key not in set(listening)])
    owner.wait_no_slots()
    assert owner.state()["twice"] == []
