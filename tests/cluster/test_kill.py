"""Real SIGKILLs: whatever process ends, every acknowledged start and message comes to its one result.

The invariants, checked from the outside: all Flows complete; each got exactly the message that was published for it;
in the journal each Step execution completes once; a line of effect stands for each attempt at most once, and there is
a line of attempt n + 1 only where the history says why attempt n failed.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import msgspec
import psutil
import pytest
import ray

import dexray
from dex import Client, Registry
from dexray.cluster.protocol import DIRECTORY, ActorLoad, flow_actor_name
from tests.cluster.kill_flows import STEPS, Job, KillFlow, token
from tests.cluster.nodes import until

FLOWS = 200
NAMESPACE = "kill-tests"
VICTIM = "victim"
ALLOWED = {"STARTED_ATTEMPT_INTERRUPTED", "WORKER_CRASHED"}

pytestmark = [pytest.mark.ray, pytest.mark.kill, pytest.mark.timeout(280)]


@pytest.fixture
def effects(tmp_path: Path) -> Path:
    folder = tmp_path / "effects"
    folder.mkdir()
    return folder


@pytest.fixture
def flow() -> KillFlow:
    return KillFlow()


@pytest.fixture
def client(flow: KillFlow, tmp_path: Path) -> Iterator[Client]:
    database = tmp_path / "flows.db"
    with dexray.connect(
        Registry([flow]), database=database, address="local", namespace=NAMESPACE, num_cpus=4
    ) as client:
        yield client


def start_all(client: Client, flow: KillFlow, effects: Path, prefix: str) -> list[str]:
    flow_ids = [f"{prefix}-{number}" for number in range(FLOWS)]
    for flow_id in flow_ids:
        client.start_flow(flow, flow_id, Job(str(effects), 1, 0.01))
    return flow_ids


def publish_all(client: Client, flow_ids: list[str]) -> None:
    for flow_id in flow_ids:
        client.publish(flow_id, token, f"for-{flow_id}")


def wait_until_under_way(effects: Path, lines: int) -> None:
    """Until Steps have left so many lines: some Flows are far, some have hardly begun."""
    deadline = time.monotonic() + 60
    while count_lines(effects) < lines:
        assert time.monotonic() < deadline, f"only {count_lines(effects)} of {lines} Steps ran"
        time.sleep(0.01)


def count_lines(effects: Path, flow_id: str = "*") -> int:
    return sum(path.read_text().count("\n") for path in effects.glob(flow_id))


def check_all(client: Client, flow_ids: list[str], effects: Path) -> Counter[str]:
    """The invariants of all Flows; returns how many attempts failed, by kind."""
    failures: Counter[str] = Counter()
    for flow_id in flow_ids:
        failures.update(check_flow(client, flow_id, effects, got=f"for-{flow_id}"))
    return failures


def check_flow(client: Client, flow_id: str, effects: Path, *, got: str) -> list[str]:
    """The invariants of one Flow, whose one message was `got`; returns the kinds of its failed attempts."""
    result = client.wait_for_flow(flow_id, timeout=timedelta(seconds=120))
    assert result.single_output(list) == [got]
    failed: dict[tuple[str, int], str] = {}
    completed: Counter[str] = Counter()
    for event in client.history(flow_id):
        if event.kind == "StepCompleted":
            completed[event.step_execution_id] += 1
        elif event.kind == "AttemptFailed":
            failure = event.data["failure"]
            failed[event.step_execution_id, failure["attempt"]] = failure["kind"]
    assert completed == {f"Work-{number}": 1 for number in range(1, STEPS + 1)}
    assert set(failed.values()) <= ALLOWED
    lines = Counter(tuple(line.split()[:2]) for line in (effects / flow_id).read_text().splitlines())
    for (step, attempt), count in lines.items():
        assert count == 1, f"{flow_id}: attempt {attempt} of {step} ran {count} times"
        assert int(attempt) == 1 or (step, int(attempt) - 1) in failed, (flow_id, step, attempt)
    assert {step for step, _ in lines} == {f"Work-{number}" for number in range(1, STEPS + 1)}
    return list(failed.values())


def actor_pid(name: str) -> int:
    actor = ray.get_actor(name, namespace=NAMESPACE)
    if name == DIRECTORY:
        return int(ray.get(actor.pid.remote(), timeout=30))
    return msgspec.msgpack.decode(ray.get(actor.load.remote(), timeout=30), type=ActorLoad).pid


def kill_flow_actor(effects: Path) -> None:
    os.kill(actor_pid(flow_actor_name(0)), signal.SIGKILL)


def kill_directory(effects: Path) -> None:
    os.kill(actor_pid(DIRECTORY), signal.SIGKILL)


def kill_worker(effects: Path) -> None:
    """The process that the victim is in."""
    os.kill(int((effects / VICTIM).read_text().split()[2]), signal.SIGKILL)


@pytest.mark.statement("B157", "B199", "B200", "B202", "B213")
@pytest.mark.parametrize("kill", [kill_flow_actor, kill_directory, kill_worker], ids=lambda kill: kill.__name__[5:])
def test_flows_survive_the_end_of_one_process(
    kill: Callable[[Path], None], client: Client, flow: KillFlow, effects: Path
) -> None:
    flow_ids = start_all(client, flow, effects, "flow")
    publish_all(client, flow_ids[: FLOWS // 2])
    interrupts = kill is not kill_directory
    if interrupts:
        client.start_flow(flow, VICTIM, Job(str(effects), 1, 0.01, hangs=200.0))
        flow_ids.append(VICTIM)
    wait_until_under_way(effects, FLOWS)
    if interrupts:
        until(lambda: count_lines(effects, VICTIM) == 1, "the victim does not run")
    kill(effects)
    publish_all(client, flow_ids[FLOWS // 2 :])
    failures = check_all(client, flow_ids, effects)
    if kill is kill_worker:
        assert failures["WORKER_CRASHED"] >= 1
    if kill is kill_flow_actor:
        assert failures["STARTED_ATTEMPT_INTERRUPTED"] >= 1


@pytest.mark.statement("B202", "D8", "D16")
def test_flows_survive_the_end_of_the_whole_session_and_its_driver(
    flow: KillFlow, effects: Path, tmp_path: Path
) -> None:
    """The driver and every process of its Ray are killed at once. A new cluster goes on; it is not told what was
    started."""
    database = str(tmp_path / "flows.db")
    driver = subprocess.Popen(
        [sys.executable, "-m", "tests.cluster.kill_driver", database, str(effects), str(FLOWS)],
        stdout=subprocess.PIPE,
        stdin=subprocess.PIPE,
        text=True,
    )
    assert driver.stdout is not None
    try:
        acknowledged = [driver.stdout.readline() for _ in range(FLOWS)]
        until(lambda: count_lines(effects) > FLOWS // 4, "the Steps do not run")
    finally:
        kill_tree(driver.pid)
        driver.wait()
    acknowledged += driver.stdout.readlines()
    started = [line.split()[1] for line in acknowledged if line.startswith("started")]
    published = {line.split()[1] for line in acknowledged if line.startswith("published")}
    assert len(started) > FLOWS // 4
    with dexray.connect(Registry([flow]), database=database, address="local", namespace=NAMESPACE) as client:
        found = {entry.flow_id for entry in client.list_flows(page_size=1000).flows}
        assert set(started) <= found
        for flow_id in found - published:
            # Whether the last message was published is not known: its request was cut off. The history tells.
            if not any(event.kind == "MessagePublished" for event in client.history(flow_id)):
                client.publish(flow_id, token, f"for-{flow_id.split('-')[1]}")
        for flow_id in found:
            check_flow(client, flow_id, effects, got=f"for-{flow_id.split('-')[1]}")


def kill_tree(pid: int) -> None:
    """SIGKILL to a process and all that came of it, at once."""
    root = psutil.Process(pid)
    family = [*root.children(recursive=True), root]
    for process in family:
        process.suspend()
    for process in family:
        process.kill()
    psutil.wait_procs(family, timeout=10)
