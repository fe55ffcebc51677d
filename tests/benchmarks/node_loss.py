"""How long it takes until an engine works again after a loss.

    python -m tests.benchmarks.node_loss [--runs 3] [--ray-defaults] [KIND ...]

For each kind of loss, in a Ray cluster of a head, a worker and a node for the engine on this machine, the seconds from
the kill until Ray's book says that the FlowActor is not there any more (seen), until it answers again (again), and
until ten Flows that were under way have ended, each with some seconds of work left (flows done). Median and maximum of
the runs.
"""

from __future__ import annotations

import argparse
import os
import signal
import statistics
import tempfile
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import dexray
from dex import Client, Registry
from dexray.cluster.protocol import flow_actor_name
from tests.cluster import nodes as kit
from tests.cluster.kill_flows import Job, KillFlow, token
from tests.cluster.nodes import ENGINE, Nodes, load_of, node_of, until

NAMESPACE = "node-loss"
OWNER = flow_actor_name(0)


def flow_actor(nodes: Nodes, victim: Any) -> None:
    os.kill(load_of(NAMESPACE, OWNER).pid, signal.SIGKILL)


def raylet(nodes: Nodes, victim: Any) -> None:
    nodes.kill_raylet(victim)


def node(nodes: Nodes, victim: Any) -> None:
    nodes.kill_nodes([victim])


def frozen_node(nodes: Nodes, victim: Any) -> None:
    for process in kit.processes_of(victim):
        process.suspend()


def drain(nodes: Nodes, victim: Any) -> None:
    nodes.drain(victim, seconds=60)


KINDS: dict[str, Callable[[Nodes, Any], None]] = {
    "flow_actor": flow_actor,
    "raylet": raylet,
    "node": node,
    "frozen_node": frozen_node,
    "drain": drain,
}


def measure(kind: str, nodes: Nodes, client: Client, flow: KillFlow, folder: Path, number: int) -> tuple[float, ...]:
    victim = nodes.engine if kind == "flow_actor" else nodes.next_engine()
    load_of(NAMESPACE, OWNER)
    flow_ids = [f"{kind}-{number}-{index}" for index in range(10)]
    for flow_id in flow_ids:
        client.start_flow(flow, flow_id, Job(str(folder), 1, 0.5))
        client.publish(flow_id, token, "go")
    until(lambda: any((folder / flow_id).exists() for flow_id in flow_ids), "nothing runs")
    pid = load_of(NAMESPACE, OWNER).pid
    began = time.monotonic()
    KINDS[kind](nodes, victim)
    until(lambda: node_of(NAMESPACE, OWNER) != victim.node_id, "it is not seen")
    seen = time.monotonic() - began
    until(lambda: load_of(NAMESPACE, OWNER).pid != pid, "not again")
    again = time.monotonic() - began
    for flow_id in flow_ids:
        client.wait_for_flow(flow_id, timeout=timedelta(seconds=180))
    done = time.monotonic() - began
    if kind == "frozen_node":
        nodes.kill_nodes([victim])
    return seen, again, done


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("kinds", nargs="*", default=list(KINDS))
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--ray-defaults", action="store_true", help="Ray's own health checks")
    options = parser.parse_args()
    if options.ray_defaults:
        kit.HEALTH.clear()
    flow = KillFlow()
    with (
        tempfile.TemporaryDirectory(prefix="dexray-bench-") as folder,
        Nodes() as nodes,
        dexray.connect(
            Registry([flow]),
            database=f"{folder}/flows.db",
            address=nodes.address,
            namespace=NAMESPACE,
            request_timeout=180,
            max_flow_actors=1,
            engine_resource=ENGINE,
        ) as client,
    ):
        for kind in options.kinds:
            figures = []
            for number in range(options.runs):
                figures.append(measure(kind, nodes, client, flow, Path(folder), number))
                print(f"  {kind}: " + " ".join(f"{figure:.1f}" for figure in figures[-1]), flush=True)
            shown = [f"{statistics.median(column):.1f}/{max(column):.1f}" for column in zip(*figures, strict=True)]
            print(f"{kind}: seen {shown[0]}  again {shown[1]}  flows done {shown[2]}  (p50/max s)", flush=True)


if __name__ == "__main__":
    main()
