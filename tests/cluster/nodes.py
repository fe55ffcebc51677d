"""A Ray cluster of several nodes on this machine, to be drained and killed.

Each node has a raylet and workers of its own. The head node has the GCS too, and the driver is connected to it. What is
killed here is killed by SIGKILL, all processes of a node at once.

Health checks are quicker than Ray's default, by the settings that docs/operations.md names. A killed raylet refuses the
next checks at once, so few seconds are enough; a slow one on a busy machine still has long enough to answer each.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Self
from unittest import mock

import msgspec
import psutil
import ray
from ray.cluster_utils import Cluster
from ray.exceptions import RayError

from dexray.cluster.protocol import DIRECTORY, ActorLoad, flow_actor_name

HEALTH = {
    "health_check_initial_delay_ms": 0,
    "health_check_period_ms": 500,
    "health_check_timeout_ms": 5_000,
    "health_check_failure_threshold": 4,
}


ENGINE = "engine"
"""The resource of the nodes that an engine may be on: with `engine_resource=ENGINE` all its actors are there."""


class Nodes:
    """A cluster: a head, some workers, and one for the engine. Ends with everything of it when it is left."""

    def __init__(self, workers: int = 1) -> None:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        with _unnoted():
            self._cluster = Cluster(
                initialize_head=True,
                head_node_args={
                    "num_cpus": 1,
                    "include_dashboard": False,
                    "include_log_monitor": False,
                    "_system_config": HEALTH,
                },
            )
        self.workers = [self.add() for _ in range(workers)]
        self.engine = self.add(engine=True)

    @property
    def address(self) -> str:
        return str(self._cluster.address)

    @property
    def environ(self) -> dict[str, str]:
        """For a process that is to join: Ray asks for a token when this process has had an embedded Ray before."""
        return {name: value for name, value in os.environ.items() if name == "RAY_AUTH_MODE"}

    def add(self, engine: bool = False) -> Any:
        with _unnoted():
            return self._cluster.add_node(num_cpus=1, resources={ENGINE: 1} if engine else {})

    def next_engine(self) -> Any:
        """Adds a node for the engine to go to; the one that it is on."""
        former, self.engine = self.engine, self.add(engine=True)
        return former

    def drain(self, node: Any, seconds: float) -> None:
        """As `ray drain-node` and whatever takes spot machines back: it will be gone so many seconds from now."""
        from ray.core.generated import autoscaler_pb2

        reason = autoscaler_pb2.DrainNodeReason.Value("DRAIN_NODE_REASON_PREEMPTION")
        untyped: Any = ray
        gcs = untyped._private.worker.global_worker.gcs_client
        accepted, why = gcs.drain_node(node.node_id, reason, "a test", int((time.time() + seconds) * 1000))
        assert accepted, why

    def kill_raylet(self, node: Any) -> None:
        """The workers of the node are left to find out by themselves."""
        psutil.Process(raylet_of(node)).kill()

    def kill_nodes(self, nodes: Sequence[Any]) -> None:
        """As machines that lose their power, in one moment."""
        kill_all([process for node in nodes for process in processes_of(node)])

    def kill(self) -> None:
        """The head and all others at once."""
        self.kill_nodes(self._cluster.list_all_nodes())

    def alive(self) -> set[str]:
        untyped: Any = ray
        return {node["NodeID"] for node in untyped.nodes() if node["Alive"]}

    def close(self) -> None:
        ray.shutdown()
        self.kill()
        for node in self._cluster.list_all_nodes():
            node.kill_all_processes(check_alive=False, allow_graceful=False, wait=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


@contextmanager
def _unnoted() -> Iterator[None]:
    """Not noted as the cluster of this machine: whoever looks for one is to find his own."""
    with mock.patch("ray._private.utils.write_ray_address"):
        yield


def raylet_of(node: Any) -> int:
    return int(node.all_processes["raylet"][0].process.pid)


def processes_of(node: Any) -> list[psutil.Process]:
    """All processes of a node: those that it was started with, and the workers of its raylet."""
    found = []
    for infos in node.all_processes.values():
        for info in infos:
            try:
                root = psutil.Process(info.process.pid)
                found += [root, *root.children(recursive=True)]
            except psutil.NoSuchProcess:
                continue
    return found


def kill_all(processes: list[psutil.Process]) -> None:
    """At once: nobody sees another one go."""
    for how in ("suspend", "kill"):
        for process in processes:
            try:
                getattr(process, how)()
            except psutil.NoSuchProcess:
                continue
    psutil.wait_procs(processes, timeout=10)


# The engine's actors --------------------------------------------------------------------------------------------------


def load_of(namespace: str, name: str) -> ActorLoad:
    """Waits for one that is being started."""
    found: list[ActorLoad] = []

    def answers() -> bool:
        try:
            actor = ray.get_actor(name, namespace=namespace)
            found.append(msgspec.msgpack.decode(ray.get(actor.load.remote(), timeout=10), type=ActorLoad))
        except (RayError, ValueError):
            return False
        return True

    until(answers, f"{name} does not answer")
    return found[-1]


def node_of(namespace: str, name: str) -> str:
    """The id of the node that an actor is on, by Ray's own book."""
    try:
        actor_id = ray.get_actor(name, namespace=namespace)._actor_id.hex()
    except ValueError:
        return ""
    untyped: Any = ray
    entry = untyped._private.state.actors(actor_id=actor_id)
    return str(entry["Address"]["NodeID"]) if entry and entry["State"] == "ALIVE" else ""


def engine_actors(count: int) -> list[str]:
    return [DIRECTORY, *(flow_actor_name(index) for index in range(count))]


def until(is_so: Callable[[], bool], what: str, timeout: float = 90.0) -> None:
    deadline = time.monotonic() + timeout
    while not is_so():
        assert time.monotonic() < deadline, what
        time.sleep(0.1)
