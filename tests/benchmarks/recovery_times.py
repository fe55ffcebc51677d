"""How long it takes until a loss is seen, and until all Flows go on.

    python -m tests.benchmarks.recovery_times [--runs 2] [--ray-defaults] [KIND ...]

For each kind of loss, in a Ray cluster of a head, a worker and a node for the engine on this machine, the seconds from
the loss
- until it is seen: a worker's by the engine (it records the failure of an attempt), a process's or node's by Ray's own
  book;
- until the lost part of the engine answers again;
- until all Flows go on: each of eight, half of them with synchronous Steps of 0.2 s, half with asynchronous ones, has
  completed a Step after the loss; after the loss of a cluster, in the next one. Backoffs of retries (a second) are in
  that.
Median and maximum of the runs. Ray's health checks are those of `tests.cluster.nodes`, unless --ray-defaults is given;
a frozen FlowActor is given up after FROZEN seconds, a lost engine keeps the database for LEASE.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgpack
import ray
from ray.exceptions import RayError

import dexray
from dex import (
    AsyncContext,
    Client,
    Context,
    DexServiceError,
    Flow,
    Registry,
    Step,
    StepDecision,
    StepList,
    StopFlowOptions,
    StopType,
    go_to,
)
from dexray.cluster.protocol import DIRECTORY, flow_actor_name
from tests.benchmarks.soak.nodes import MARK
from tests.benchmarks.soak.processes import Nodes as Processes
from tests.cluster import nodes as kit
from tests.cluster.kill_flows import Job, leave_line
from tests.cluster.nodes import ENGINE, Nodes, load_of, node_of
from tests.cluster.notebook import Program

NAMESPACE = "recovery"
OWNER = flow_actor_name(0)
FLOWS = 8
FROZEN, LEASE = 10.0, 10.0
PATIENCE = 300.0


class Walk(Step[Job]):
    def execute(self, context: Context, input: Job) -> StepDecision:
        leave_line(context, input)
        time.sleep(input.seconds)
        return go_to(Walk, input)


class AsyncWalk(Step[Job]):
    async def execute(self, context: AsyncContext, input: Job) -> StepDecision:
        leave_line(context, input)  # type: ignore[arg-type]
        await asyncio.sleep(input.seconds)
        return go_to(AsyncWalk, input)


class WalkFlow(Flow[Job]):
    def get_steps(self) -> StepList[Job]:
        return StepList.start_step(Walk())


class AsyncWalkFlow(Flow[Job]):
    def get_steps(self) -> StepList[Job]:
        return StepList.start_step(AsyncWalk())


WALKS: tuple[Flow[Job], ...] = (WalkFlow(), AsyncWalkFlow())
REGISTRY = Registry(list(WALKS), allow_async_handlers=True)


@dataclass(frozen=True, slots=True)
class Loss:
    """Seconds after the loss; None for what there is not."""

    seen: float | None
    again: float | None
    going_on: float | None


@dataclass(slots=True)
class Scene:
    """A cluster with an engine, and Flows that walk."""

    nodes: Nodes
    client: Client
    folder: Path
    number: int = 0
    flow_ids: tuple[str, ...] = ()

    def begin(self) -> None:
        self.number += 1
        self.flow_ids = start_walks(self.client, self.folder, f"walk-{self.number}")

    def end(self) -> None:
        for flow_id in self.flow_ids:
            self.client.stop_flow(flow_id, StopFlowOptions(StopType.TERMINATE, "measured"))

    def last_worker(self, flow_id: str) -> int:
        """The process that ran its last Step."""
        return int((self.folder / flow_id).read_text().splitlines()[-1].split()[2])


def start_walks(client: Client, folder: Path, prefix: str) -> tuple[str, ...]:
    flow_ids = tuple(f"{prefix}-{number}" for number in range(FLOWS))
    for number, flow_id in enumerate(flow_ids):
        client.start_flow(WALKS[number % 2], flow_id, Job(str(folder), 1, 0.2))
    wait_for(lambda: all((folder / flow_id).exists() for flow_id in flow_ids))
    wait_for(lambda: all(len((folder / flow_id).read_text().splitlines()) > 2 for flow_id in flow_ids))
    return flow_ids


# What is seen from outside: Ray's book, and the rows of the database --------------------------------------------------


def wait_for(is_so: Callable[[], bool]) -> float:
    """The seconds until it is so."""
    began = time.monotonic()
    while not is_so():
        if time.monotonic() - began > PATIENCE:
            raise TimeoutError(f"nothing happened in {PATIENCE:g} s")
        time.sleep(0.05)
    return time.monotonic() - began


def events_after(folder: Path, began: float, flow_ids: tuple[str, ...]) -> Iterator[tuple[str, float, list[Any]]]:
    """(Flow ID, when it was decided, event)."""
    with sqlite3.connect(f"file:{folder}/flows.db?mode=ro", uri=True, timeout=30) as connection:
        rows = connection.execute(
            "SELECT flow_id, at, body FROM events JOIN runs USING (run_id) WHERE at > ? ORDER BY at", (began,)
        ).fetchall()
    for flow_id, at, body in rows:
        if flow_id in flow_ids:
            for event in msgpack.unpackb(body, strict_map_key=False):
                yield flow_id, at, event


def going_on(folder: Path, began: float, flow_ids: tuple[str, ...]) -> float:
    """Waits until each Flow has completed a Step after the loss; how long after it that was for the last of them."""
    first: dict[str, float] = {}

    def all_have() -> bool:
        for flow_id, at, event in events_after(folder, began, flow_ids):
            if event[0] == "StepCompleted/1":
                first.setdefault(flow_id, at)
        return len(first) == len(flow_ids)

    wait_for(all_have)
    return max(first.values()) - began


def holder(folder: Path) -> str:
    with sqlite3.connect(f"file:{folder}/flows.db?mode=ro", uri=True, timeout=30) as connection:
        rows = connection.execute("SELECT holder FROM leases").fetchall()
    return str(rows[0][0]) if rows else ""


def directory_pid() -> int:
    with suppress(RayError, ValueError):
        return int(ray.get(ray.get_actor(DIRECTORY, namespace=NAMESPACE).pid.remote(), timeout=10))
    return 0


# Losses in a cluster that goes on -------------------------------------------------------------------------------------


def lose(
    scene: Scene, strike: Callable[[], Any], seen: Callable[[float], bool], again: Callable[[], bool] | None
) -> Loss:
    began, clock = time.monotonic(), time.time()
    strike()
    wait_for(lambda: seen(clock))
    seen_after = time.monotonic() - began
    again_after = None
    if again is not None:
        wait_for(again)
        again_after = time.monotonic() - began
    return Loss(seen_after, again_after, going_on(scene.folder, clock, scene.flow_ids))


def _worker(scene: Scene, flow_id: str) -> Loss:
    def failed(clock: float) -> bool:
        return any(event[0] == "AttemptFailed/1" for _, _, event in events_after(scene.folder, clock, scene.flow_ids))

    return lose(scene, lambda: os.kill(scene.last_worker(flow_id), signal.SIGKILL), failed, None)


def task_worker(scene: Scene) -> Loss:
    return _worker(scene, scene.flow_ids[0])


def async_worker(scene: Scene) -> Loss:
    return _worker(scene, scene.flow_ids[1])


def _owner(scene: Scene, strike: Callable[[Any], Any], *, moves: bool) -> Loss:
    """Until Ray says that it is not where it was, and until another process answers in its name."""
    victim = scene.nodes.next_engine() if moves else scene.nodes.engine
    pid = load_of(NAMESPACE, OWNER).pid
    return lose(
        scene,
        lambda: strike(victim),
        lambda _: node_of(NAMESPACE, OWNER) != victim.node_id,
        lambda: load_of(NAMESPACE, OWNER).pid != pid,
    )


def flow_actor(scene: Scene) -> Loss:
    return _owner(scene, lambda _: os.kill(load_of(NAMESPACE, OWNER).pid, signal.SIGKILL), moves=False)


def frozen_flow_actor(scene: Scene) -> Loss:
    return _owner(scene, lambda _: os.kill(load_of(NAMESPACE, OWNER).pid, signal.SIGSTOP), moves=False)


def raylet(scene: Scene) -> Loss:
    return _owner(scene, scene.nodes.kill_raylet, moves=True)


def node(scene: Scene) -> Loss:
    return _owner(scene, lambda victim: scene.nodes.kill_nodes([victim]), moves=True)


def frozen_node(scene: Scene) -> Loss:
    frozen: list[Any] = []

    def freeze(victim: Any) -> None:
        frozen.append(victim)
        for process in kit.processes_of(victim):
            process.suspend()

    try:
        return _owner(scene, freeze, moves=True)
    finally:
        scene.nodes.kill_nodes(frozen)


def drain(scene: Scene) -> Loss:
    return _owner(scene, lambda victim: scene.nodes.drain(victim, seconds=60), moves=True)


def directory(scene: Scene) -> Loss:
    pid = directory_pid()
    return lose(
        scene,
        lambda: os.kill(pid, signal.SIGKILL),
        lambda _: node_of(NAMESPACE, DIRECTORY) == "" or directory_pid() not in (0, pid),
        lambda: directory_pid() not in (0, pid),
    )


def driver(scene: Scene) -> Loss:
    """Of Flows that another program has started."""
    scene.end()
    with started_elsewhere(
        scene.folder, scene.nodes.address, f"of-driver-{scene.number}", scene.nodes.environ
    ) as other:
        program, scene.flow_ids = other
        return lose(scene, program.kill, lambda _: True, None)


# Losses of the cluster itself: the measuring process is no part of it -------------------------------------------------


@contextmanager
def started_elsewhere(
    folder: Path, address: str, prefix: str, environ: dict[str, str] | None = None
) -> Iterator[tuple[Program, tuple[str, ...]]]:
    """A program that has started Flows, and waits for its end."""
    arguments = ["-m", "tests.benchmarks.recovery_times", "--start", str(folder), address, prefix]
    with Program(arguments, folder, environ) as program:
        while not (line := program.line(120.0)).startswith(MARK):
            pass
        yield program, tuple(line.removeprefix(MARK).split())


def start_and_wait(folder: Path, address: str, prefix: str) -> None:
    with connect(folder, address) as client:
        print(MARK + " ".join(start_walks(client, folder, prefix)), flush=True)
        sys.stdin.read()


def connect(folder: Path, address: str, **settings: Any) -> Client:
    return dexray.connect(
        REGISTRY,
        database=folder / "flows.db",
        address=address,
        namespace=NAMESPACE,
        request_timeout=180,
        max_flow_actors=1,
        lease_seconds=LEASE,
        frozen_seconds=FROZEN,
        **settings,
    )


def lost_cluster(strike: Callable[[Processes], None]) -> Loss:
    """With the program that used it. A next cluster begins at once; `dexray flow list` is repeated until it works."""
    with tempfile.TemporaryDirectory(prefix="rt-", dir="/tmp") as name:
        folder = Path(name)
        (folder / "effects").touch()
        (folder / "ray").mkdir()
        cluster = Processes(folder)
        try:
            with started_elsewhere(folder, cluster.address, "walk", {"RAY_TMPDIR": name}) as (program, flow_ids):
                former = holder(folder)
                began = time.monotonic()
                program.kill()
                strike(cluster)
                print(f"    the next cluster is there after {time.monotonic() - began:.1f} s", flush=True)
                command = [sys.executable, "-m", "dexray", "flow", "list", "--database", str(folder / "flows.db")]
                command += ["--address", cluster.address, "--namespace", NAMESPACE]
                environ = {**os.environ, "RAY_TMPDIR": name}
                wait_for(lambda: subprocess.run(command, capture_output=True, env=environ).returncode == 0)
                again = time.monotonic() - began
                assert holder(folder) != former
                # From here on it is the next engine: the former one may have gone on for a while without a head.
                return Loss(None, again, again + going_on(folder, time.time(), flow_ids))
        finally:
            cluster.close()


def head() -> Loss:
    return lost_cluster(lambda cluster: cluster.lose_head())


def cluster() -> Loss:
    return lost_cluster(lambda cluster: cluster.lose())


IN_A_CLUSTER: dict[str, Callable[[Scene], Loss]] = {
    kind.__name__: kind
    for kind in (
        task_worker,
        async_worker,
        flow_actor,
        frozen_flow_actor,
        directory,
        driver,
        raylet,
        node,
        frozen_node,
        drain,
    )
}
OF_A_CLUSTER: dict[str, Callable[[], Loss]] = {"head": head, "cluster": cluster}


def show(kind: str, losses: list[Loss]) -> None:
    shown = []
    for name in ("seen", "again", "going_on"):
        figures = [figure for loss in losses if (figure := getattr(loss, name)) is not None]
        shown.append(f"{statistics.median(figures):.1f} ({max(figures):.1f})" if figures else "")
    print(f"| {kind} | {' | '.join(shown)} |", flush=True)


def measure_in_a_cluster(kinds: list[str], runs: int) -> None:
    with (
        tempfile.TemporaryDirectory(prefix="dexray-bench-") as name,
        Nodes() as nodes,
        connect(Path(name), nodes.address, engine_resource=ENGINE) as client,
    ):
        scene = Scene(nodes, client, Path(name))
        for kind in kinds:
            losses = []
            for _ in range(runs):
                scene.begin()
                losses.append(IN_A_CLUSTER[kind](scene))
                with suppress(DexServiceError):
                    scene.end()
            show(kind, losses)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.recovery_times")
    parser.add_argument("kinds", nargs="*", default=[*IN_A_CLUSTER, *OF_A_CLUSTER])
    parser.add_argument("--runs", type=int, default=2)
    parser.add_argument("--ray-defaults", action="store_true", help="Ray's own health checks")
    parser.add_argument("--start", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.start:
        start_and_wait(Path(options.start[0]), *options.start[1:])
        return
    if options.ray_defaults:
        kit.HEALTH.clear()
    print("| lost | seen | answers again | all Flows go on |\n|---|---|---|---|", flush=True)
    inside = [kind for kind in options.kinds if kind in IN_A_CLUSTER]
    if inside:
        measure_in_a_cluster(inside, options.runs)
    for kind in options.kinds:
        if kind in OF_A_CLUSTER:
            show(kind, [OF_A_CLUSTER[kind]() for _ in range(options.runs)])


if __name__ == "__main__":
    main()
