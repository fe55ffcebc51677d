"""The Directory: which FlowActors there are, and who owns what nobody else claims.

A detached, named actor. It keeps the lease on the database, makes the FlowActors, grows their pool, stores deployments, and moves Flows whose owner is
not in the pool any more. It keeps nothing that the database and the living actors can't give back: when its process dies, Ray starts it
again and it begins anew. Clients ask it for a `ClusterView` and find their way by that: a FlowActor that does not own a Flow says who does.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import msgspec
import ray
from dex.wire.service import ServiceFailure
from dex.wire.specs import DeploymentSpec

from dexray.cluster import lease as leases
from dexray.cluster.flow_actor import FlowActor
from dexray.cluster.protocol import ActorLoad, ClusterView, EngineConfig, Failed, Ok, encode, flow_actor_name
from dexray.engine.clock import BlockingThread
from dexray.journal import open_journal
from dexray.journal.interface import JournalUnavailable, Lease, StoredDeployment

logger = logging.getLogger("dexray.cluster.directory")

T = TypeVar("T")

LOOK_EVERY = 1.0  # seconds between looks at the actors' loads
GROW_AFTER = 5  # looks in a row that have to find long-lived Flows sharing


class Refused(Exception):
    """The engine can't work here as it is; the text says why and what to do."""


class Directory:
    def __init__(self, config: EngineConfig) -> None:
        self._config = config
        self._journal = open_journal(config.database_url)
        self._blocking = BlockingThread("dexray-directory-journal")
        self._holder = leases.this_process(config.cluster_id)
        self._actors: dict[str, Any] = {}
        self._loads: dict[str, ActorLoad] = {}
        self._starting: asyncio.Task[None] | None = None
        self._watching: asyncio.Task[None] | None = None
        self._sharing = 0
        self._growing = asyncio.Lock()
        # After a restart nobody calls: the actor calls itself, so that the lease goes on.
        ray.get_runtime_context().current_actor.ready.remote(msgspec.msgpack.encode(config))

    # Beginning ----------------------------------------------------------------------------------------------------------

    async def ready(self, config: bytes) -> bytes:
        """Waits until the engine works. Answers `Ok(ClusterView)`, or `Failed` with the reason why it can't."""
        wanted = msgspec.msgpack.decode(config, type=EngineConfig)
        if wanted.database_url != self._config.database_url:
            return _failed(
                f"the engine in namespace {self._config.namespace!r} works on another database "
                f"({_masked(self._config.database_url)}); connect with that one, or give another namespace"
            )
        if self._starting is None or (self._starting.done() and self._starting.exception() is not None):
            self._starting = asyncio.get_running_loop().create_task(self._start())
        try:
            await asyncio.shield(self._starting)
        except Refused as refused:
            return _failed(str(refused))
        except Exception as error:
            logger.exception("the engine can't start")
            return _failed(f"the engine can't start: {type(error).__name__}: {error}")
        return self._view()

    async def _start(self) -> None:
        await self._journal_call(self._journal.migrate)
        await self._take_lease()
        for index in range(self._config.flow_actors):
            self._make_actor(index)
        self._find_actors()
        await asyncio.gather(*(actor.begin.remote() for actor in self._actors.values()))
        await self._adopt()
        self._watching = asyncio.get_running_loop().create_task(self._watch())

    async def _take_lease(self) -> None:
        deadline = time.monotonic() + self._config.lease_seconds + 1.0
        while True:
            found = await self._journal_call(self._acquire)
            if found.holder == self._holder:
                return
            if time.monotonic() > deadline:
                raise Refused(
                    f"the database {_masked(self._config.database_url)} is in use by {leases.describe(found)}: join its Ray "
                    "cluster with address=..., or give another database"
                )
            await asyncio.sleep(0.5)

    def _acquire(self) -> Lease:
        return leases.acquire(self._journal, self._holder, seconds=self._config.lease_seconds, now=time.time())

    def _make_actor(self, index: int) -> str:
        """Makes a FlowActor, or takes it over when it lives. Making is asynchronous: calls to it wait."""
        name = flow_actor_name(index)
        if name not in self._actors:
            self._actors[name] = make_flow_actor(self._config, name)
            self._loads.setdefault(name, ActorLoad(name))
        return name

    def _find_actors(self) -> None:
        """After a restart: actors beyond the first ones that a former life of ours has made."""
        for index in range(self._config.flow_actors, self._config.max_flow_actors):
            try:
                actor = ray.get_actor(flow_actor_name(index), namespace=self._config.namespace)
            except ValueError:
                return
            self._actors[flow_actor_name(index)] = actor
            self._loads.setdefault(flow_actor_name(index), ActorLoad(flow_actor_name(index)))

    async def _adopt(self) -> None:
        """Open Flows whose owner is not in the pool get one that is, spread evenly."""
        owners = await self._journal_call(self._journal.owners_of_open_runs)
        pool = list(self._actors)
        turn = 0
        for owner in owners:
            if owner in self._actors:
                continue
            while True:
                to = pool[turn % len(pool)]
                turn += 1
                moved = await self._journal_call(partial(self._journal.reassign, owner, to, 200))
                if not moved:
                    break
                self._actors[to].resume.remote(moved)
                logger.info("%d Flows of %s now belong to %s", len(moved), owner, to)

    # Work ---------------------------------------------------------------------------------------------------------------

    async def view(self) -> bytes:
        return self._view()

    async def place(self) -> bytes:
        """For Flows that must not share: a view after the pool has grown by one, if it may."""
        async with self._growing:
            if all(load.active >= 1 for load in self._loads.values()):
                await self._grow()
        return self._view()

    async def deploy(self, spec: bytes, code: bytes) -> bytes:
        """Stores a deployment, and makes it the newest of its Flow types on every FlowActor."""
        deployment = msgspec.msgpack.decode(spec, type=DeploymentSpec)
        stored = StoredDeployment(deployment.deployment_id, time.time(), spec, code)
        await self._journal_call(lambda: self._journal.put_deployment(stored, list(deployment.flows)))
        await asyncio.gather(*(actor.deploy.remote(spec) for actor in self._actors.values()))
        return encode(Ok(b""))

    async def check_code(self, deployment_id: str) -> str:
        """Loads a deployment on a worker; "" or why that fails."""
        actor = next(iter(self._actors.values()))
        return str(await actor.check_code.remote(deployment_id))

    async def shutdown(self) -> None:
        """Ends the engine in order: FlowActors write what they decided, then go, then the lease."""
        if self._watching is not None:
            self._watching.cancel()
        await asyncio.gather(*(actor.shutdown.remote() for actor in self._actors.values()), return_exceptions=True)
        for actor in self._actors.values():
            ray.kill(actor, no_restart=True)
        try:
            await self._blocking(lambda: self._journal.release_lease(leases.LEASE, self._holder))
        except JournalUnavailable as error:
            logger.warning("the lease is left to expire: %s", error)

    async def pid(self) -> int:
        return os.getpid()

    # Watching -------------------------------------------------------------------------------------------------------------

    async def _watch(self) -> None:
        renewed = time.monotonic()
        while True:
            await asyncio.sleep(LOOK_EVERY)
            try:
                if time.monotonic() - renewed > self._config.lease_seconds / 4:
                    found = await self._journal_call(self._acquire)
                    renewed = time.monotonic()
                    if found.holder != self._holder:
                        logger.error("the database was taken over by %s: this engine stops", leases.describe(found))
                        await self.shutdown()
                        return
                await self._look()
            except Exception:
                logger.exception("a look at the FlowActors failed")

    async def _look(self) -> None:
        names = list(self._actors)
        replies = await asyncio.gather(
            *(_soon(self._actors[name].load.remote()) for name in names), return_exceptions=True
        )
        for name, reply in zip(names, replies, strict=True):
            if isinstance(reply, bytes):
                self._loads[name] = msgspec.msgpack.decode(reply, type=ActorLoad)
        lasting = sum(load.lasting for load in self._loads.values())
        queued = sum(load.queued for load in self._loads.values())
        crowded = queued > 0 or lasting > 2 * len(self._actors)
        self._sharing = self._sharing + 1 if crowded else 0
        if self._sharing >= GROW_AFTER:
            self._sharing = 0
            async with self._growing:
                await self._grow()

    async def _grow(self) -> None:
        if len(self._actors) >= self._config.max_flow_actors:
            return
        name = self._make_actor(len(self._actors))
        await self._actors[name].begin.remote()

    # Pieces ---------------------------------------------------------------------------------------------------------------

    def _view(self) -> bytes:
        view = ClusterView(
            tuple(self._loads[name] for name in self._actors),
            self._config.flows_per_actor,
            _masked(self._config.database_url),
        )
        return encode(Ok(encode(view)))

    async def _journal_call(self, call: Callable[[], T]) -> T:
        deadline = time.monotonic() + 30.0
        while True:
            try:
                return await self._blocking(call)
            except JournalUnavailable as error:
                if time.monotonic() > deadline:
                    raise
                logger.warning("the database is away: %s", error)
                await asyncio.sleep(0.5)


async def _soon(reference: Any) -> Any:
    return await asyncio.wait_for(_awaitable(reference), 5.0)


async def _awaitable(reference: Any) -> Any:
    return await reference


def _failed(detail: str) -> bytes:
    return encode(Failed(ServiceFailure(code="FAILED_PRECONDITION", detail=detail)))


def _masked(url: str) -> str:
    from dexray.settings import masked

    return masked(url)


def make_flow_actor(config: EngineConfig, name: str) -> Any:
    return (
        ray.remote(FlowActor)
        .options(
            name=name,
            namespace=config.namespace,
            lifetime="detached",
            get_if_exists=True,
            max_restarts=-1,
            max_task_retries=0,
            num_cpus=0,
            max_concurrency=10_000,
        )
        .remote(config, name)
    )


def find_or_make_directory(config: EngineConfig) -> Any:
    """The engine of a namespace, made when it is not there yet."""
    from dexray.cluster.protocol import DIRECTORY

    return (
        ray.remote(Directory)
        .options(
            name=DIRECTORY,
            namespace=config.namespace,
            lifetime="detached",
            get_if_exists=True,
            max_restarts=-1,
            max_task_retries=0,
            num_cpus=0,
            max_concurrency=1_000,
        )
        .remote(config)
    )
