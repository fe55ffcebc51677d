"""A node that is removed in order: the engine leaves it before it is gone, and no Flow pays with an attempt."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
import ray

import dexray
from dex import Client, Registry
from dexray.cluster.protocol import DIRECTORY, flow_actor_name
from tests.cluster.kill_flows import STEPS, Job, KillFlow, token
from tests.cluster.nodes import Nodes, engine_actors, load_of, node_of, until

NAMESPACE = "drain-tests"
FLOWS = 30
FLOW_ACTORS = 2

pytestmark = [pytest.mark.ray, pytest.mark.kill, pytest.mark.timeout(240)]


@pytest.fixture
def nodes() -> Iterator[Nodes]:
    with Nodes(workers=2) as nodes:
        yield nodes


@pytest.fixture
def flow() -> KillFlow:
    return KillFlow()


@pytest.fixture
def client(nodes: Nodes, flow: KillFlow, tmp_path: Path) -> Iterator[Client]:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    with dexray.connect(
        Registry([flow]),
        database=tmp_path / "flows.db",
        address=nodes.address,
        namespace=NAMESPACE,
        flow_actors=FLOW_ACTORS,
        max_flow_actors=FLOW_ACTORS,
        drain_seconds=20,
    ) as client:
        yield client


def send_to(name: str, node: str) -> None:
    """Has Ray start an actor until it comes to a node: Ray takes any for it."""

    def is_there() -> bool:
        here = node_of(NAMESPACE, name)
        if here and here != node:
            ray.kill(ray.get_actor(name, namespace=NAMESPACE), no_restart=False)
            time.sleep(0.5)  # it may come to the same node again: there is no telling by that
        return here == node

    until(is_there, f"{name} does not come to {node}")


@pytest.mark.statement("B157", "B202")
def test_the_engine_leaves_a_node_that_is_removed_and_no_attempt_is_lost(
    nodes: Nodes, client: Client, flow: KillFlow, tmp_path: Path
) -> None:
    going = nodes.workers[0]
    for name in (flow_actor_name(0), DIRECTORY):
        send_to(name, going.node_id)
    until(lambda: load_of(NAMESPACE, flow_actor_name(0)).node == going.node_id, "it does not work there")
    effects = tmp_path / "effects"
    effects.mkdir()
    flow_ids = [f"flow-{number}" for number in range(FLOWS)]
    for flow_id in flow_ids:
        client.start_flow(flow, flow_id, Job(str(effects), 1, 0.1))
    until(lambda: len(list(effects.iterdir())) > 3, "no Flow is under way")
    nodes.drain(going, seconds=60)
    for flow_id in flow_ids:
        client.publish(flow_id, token, f"for-{flow_id}")

    # Ray takes a node away by itself when nothing is left on it.
    began = time.monotonic()
    until(lambda: going.node_id not in nodes.alive(), "something stays on the node")
    assert time.monotonic() - began < 60, "it was not left, but taken away"
    for flow_id in flow_ids:
        result = client.wait_for_flow(flow_id, timeout=timedelta(seconds=120))
        assert result.single_output(list) == [f"for-{flow_id}"]
        assert "AttemptFailed" not in [event.kind for event in client.history(flow_id)]
        lines = [line.split()[:2] for line in (effects / flow_id).read_text().splitlines()]
        assert sorted(lines) == [[f"Work-{number}", "1"] for number in range(1, STEPS + 1)]
    assert all(node_of(NAMESPACE, name) not in ("", going.node_id) for name in engine_actors(FLOW_ACTORS))
