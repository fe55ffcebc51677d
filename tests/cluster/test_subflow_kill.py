"""Real SIGKILLs between parents and children: two FlowActors, each of which owns some of both.

Checked from the outside: all parents come to the right sum; each child has one run, and each of its attempts ran
once; a second attempt is there only because the first one was interrupted.
"""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
import ray

import dexray
from dex import Client, Registry
from dexray.cluster.protocol import ActorLoad, flow_actor_name
from tests.cluster.kill_flows import Job
from tests.cluster.subflow_flows import EXPECTED, GATHERING, LABORING, ROUNDS, WIDTH, Plan

PARENTS = 25
NAMESPACE = "subflow-kill-tests"

pytestmark = [pytest.mark.ray, pytest.mark.kill, pytest.mark.timeout(280)]


@pytest.fixture
def client(tmp_path: Path) -> Iterator[Client]:
    with dexray.connect(
        Registry([GATHERING, LABORING]),
        database=tmp_path / "flows.db",
        address="local",
        namespace=NAMESPACE,
        num_cpus=4,
        flow_actors=2,
        max_flow_actors=2,
        flows_per_actor=1_000,  # with a bound, children are spread like any Flow
    ) as client:
        yield client


def kill_flow_actor(index: int) -> None:
    actor: Any = ray.get_actor(flow_actor_name(index), namespace=NAMESPACE)
    reply: Any = ray.get(actor.load.remote(), timeout=60)
    load = msgspec.msgpack.decode(reply, type=ActorLoad)
    os.kill(load.pid, signal.SIGKILL)


def until_lines(folder: Path, wanted: int) -> None:
    deadline = time.monotonic() + 120
    while len(list(folder.iterdir())) < wanted:
        assert time.monotonic() < deadline, f"only {len(list(folder.iterdir()))} of {wanted} children ran"
        time.sleep(0.01)


@pytest.mark.statement("B157", "B202")
def test_parents_and_children_survive_the_end_of_either_owner(client: Client, tmp_path: Path) -> None:
    folder = tmp_path / "effects"
    folder.mkdir()
    parents = [f"parent-{number}" for number in range(PARENTS)]
    for flow_id in parents:
        client.start_flow(GATHERING, flow_id, Plan(Job(str(folder), 1, 0.05)))
    for index, wanted in ((0, PARENTS // 2), (1, PARENTS * 2)):
        until_lines(folder, wanted)
        kill_flow_actor(index)
    for flow_id in parents:
        result = client.wait_for_flow(flow_id, timeout=timedelta(seconds=180))
        assert result.single_output(int) == EXPECTED, flow_id
    apart = 0
    for flow_id in parents:
        owner = client.describe(flow_id).owner
        ended = [event.data for event in client.history(flow_id) if event.kind == "SubFlowEnded"]
        assert len(ended) == len({data["flow_id"] for data in ended}) == ROUNDS * WIDTH
        for data in ended:
            child = client.describe(data["flow_id"])
            assert child.run_id == data["run_id"]
            apart += child.owner != owner
            check_attempts(client, folder, data["flow_id"])
    assert apart > PARENTS // 2, "hardly any child had another owner than its parent"
    assert len(list(folder.iterdir())) == PARENTS * ROUNDS * WIDTH


def check_attempts(client: Client, folder: Path, flow_id: str) -> None:
    ran = Counter(line.split()[1] for line in (folder / flow_id).read_text().splitlines())
    assert set(ran.values()) == {1}, f"{flow_id}: an attempt ran twice: {ran}"
    if len(ran) > 1:
        failed = [event.data["failure"]["kind"] for event in client.history(flow_id) if event.kind == "AttemptFailed"]
        assert failed == ["STARTED_ATTEMPT_INTERRUPTED"] * (len(failed))
        assert len(failed) >= len(ran) - 1
