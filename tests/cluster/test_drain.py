"""A node that is removed in order: the engine leaves it before it is gone, and no Flow pays with an attempt."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

import dexray
from dex import Client, Registry
from tests.cluster.kill_flows import STEPS, Job, KillFlow, token
from tests.cluster.nodes import ENGINE, Nodes, engine_actors, node_of, until

NAMESPACE = "drain-tests"
FLOWS = 30
FLOW_ACTORS = 2

pytestmark = [pytest.mark.ray, pytest.mark.kill, pytest.mark.timeout(240)]


@pytest.fixture
def nodes() -> Iterator[Nodes]:
    with Nodes(workers=0) as nodes:
        yield nodes


@pytest.fixture
def flow() -> KillFlow:
    return KillFlow()


@pytest.fixture
def client(nodes: Nodes, flow: KillFlow, tmp_path: Path) -> Iterator[Client]:
    with dexray.connect(
        Registry([flow]),
        database=tmp_path / "flows.db",
        address=nodes.address,
        namespace=NAMESPACE,
        flow_actors=FLOW_ACTORS,
        max_flow_actors=FLOW_ACTORS,
        drain_seconds=20,
        engine_resource=ENGINE,
    ) as client:
        yield client


@pytest.mark.statement("B157", "B202")
def test_the_engine_leaves_a_node_that_is_removed_and_no_attempt_is_lost(
    nodes: Nodes, client: Client, flow: KillFlow, tmp_path: Path
) -> None:
    going = nodes.next_engine()
    assert {node_of(NAMESPACE, name) for name in engine_actors(FLOW_ACTORS)} == {going.node_id}
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
    assert all(node_of(NAMESPACE, name) == nodes.engine.node_id for name in engine_actors(FLOW_ACTORS))
