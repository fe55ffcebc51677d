"""Engines of their own for tests, in the Ray that all tests of a pytest process share."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import msgspec
import ray

import dexray
from dex import Client, Registry
from dexray.cluster.connect import engine_config
from dexray.cluster.protocol import (
    DIRECTORY,
    ActorLoad,
    ClusterView,
    EngineConfig,
    Ok,
    decode_reply,
    decode_view,
    flow_actor_name,
)
from dexray.settings import resolve
from tests.world import ray_database

_numbers = itertools.count(1)


class Engines:
    """Clients of one database. An engine is a namespace: `next_cluster` ends one as a cluster's death would, and the
    next client begins another that has never heard of it.
    """

    def __init__(self, folder: Path) -> None:
        ray_database()  # starts Ray
        self.database: Path | str = folder / "flows.db"
        self.namespace = f"engines-{next(_numbers)}"
        self._clients: list[Client] = []

    def connect(self, registry: Registry, **settings: Any) -> Client:
        client = dexray.connect(registry, database=self.database, namespace=self.namespace, **settings)
        self._clients.append(client)
        return client

    def config(self, **settings: Any) -> EngineConfig:
        """What an engine of ours is made with."""
        resolved, _ = resolve({"database": self.database, "namespace": self.namespace, **settings})
        return engine_config(resolved)

    def directory(self) -> Any:
        return ray.get_actor(DIRECTORY, namespace=self.namespace)

    def view(self) -> ClusterView:
        reply = decode_reply(ray.get(self.directory().view.remote(), timeout=30))
        assert isinstance(reply, Ok)
        return decode_view(reply.answer)

    def flow_actors(self) -> list[str]:
        return [load.name for load in self.view().actors]

    def load(self, name: str = flow_actor_name(0)) -> ActorLoad:
        actor = ray.get_actor(name, namespace=self.namespace)
        return msgspec.msgpack.decode(ray.get(actor.load.remote(), timeout=30), type=ActorLoad)

    def next_cluster(self) -> None:
        """All actors of the engine are killed, and nobody is told."""
        self._leave()
        for name in [DIRECTORY, *self.flow_actors_of_ray()]:
            ray.kill(ray.get_actor(name, namespace=self.namespace), no_restart=True)
        self.namespace = f"engines-{next(_numbers)}"

    def flow_actors_of_ray(self) -> list[str]:
        named: Any = ray.util.list_named_actors(all_namespaces=True)
        return [
            entry["name"]
            for entry in named
            if entry["namespace"] == self.namespace and entry["name"].startswith("flow-actor-")
        ]

    def stop_engine(self) -> None:
        """The engine ends in order, as at `dexray stop`; the next client begins it anew, in the same namespace."""
        self.close()

    def close(self) -> None:
        self._leave()
        try:
            directory = self.directory()
        except ValueError:
            return
        ray.get(directory.shutdown.remote(0.0), timeout=30)
        ray.kill(directory, no_restart=True)

    def _leave(self) -> None:
        for client in self._clients:
            client.close()
        self._clients.clear()
