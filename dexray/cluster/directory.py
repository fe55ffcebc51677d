"""The Directory: which FlowActors there are, and who owns what nobody else claims.

A detached, named actor. It keeps the lease on the database, makes the FlowActors, grows their pool, stores deployments,
moves Flows whose owner is not in the pool any more, and moves FlowActors off nodes that are being removed. It keeps
nothing that the database and the living actors can't give back: when its process dies, Ray starts it again and it
begins anew. Clients ask it for a `ClusterView` and find their way by that: a FlowActor that does not own a Flow says
who does.

How an engine begins: the FlowActors' processes start at once, beside our own, the lease, and the check of the code that
a client brought along; when the lease is ours they are told to begin. A FlowActor that Ray starts again later needs no
word.

How it ends: `shutdown`, for an engine that is to end in order; or by itself, when the database belongs to another
engine. Then nothing of it stays behind in Ray, and the next connect makes a new one.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, TypeVar

import msgspec
import ray
from msgspec.structs import replace
from ray.exceptions import ActorDiedError, RayActorError

from dex.wire.service import ServiceFailure
from dex.wire.specs import DeploymentSpec
from dexray.cluster import lease as leases
from dexray.cluster.code_check import why_not_loadable
from dexray.cluster.draining import Leaving
from dexray.cluster.flow_actor import FlowActor
from dexray.cluster.protocol import (
    DIRECTORY,
    ActorLoad,
    BadCode,
    ClusterView,
    EngineConfig,
    Failed,
    Ok,
    encode,
    flow_actor_name,
)
from dexray.engine.clock import BlockingThread
from dexray.journal import open_journal
from dexray.journal.interface import Journal, JournalRefused, JournalUnavailable, Lease, StoredDeployment
from dexray.settings import masked

logger = logging.getLogger("dexray.cluster.directory")

T = TypeVar("T")

LOOK_EVERY = 1.0  # seconds between looks at the actors' loads
NODES_EVERY = 1.9  # seconds, at least, between looks for nodes that are being removed: every second look at the loads
GROW_AFTER = 5  # looks in a row that have to find long-lived Flows sharing
DYING = 4.0  # seconds that the holder of the lease may go on when its cluster was killed
SHARE = 0.001  # of the resource that marks the nodes of the engine: one unit is room for all its actors
PING_SECONDS = 5.0
ACTOR_PATIENCE = 30.0  # seconds for a FlowActor that is being started again to take a call


class Refused(Exception):
    """The engine can't work here as it is; the text says why and what to do."""


class Directory:
    def __init__(self, config: EngineConfig) -> None:
        self._config = config
        self._journal: Journal | None = None
        self._blocking = BlockingThread("dexray-directory-journal")
        self._holder = leases.this_process(config.cluster_id, address=config.address, namespace=config.namespace)
        self._has_lease = False
        self._actors: dict[str, Any] = {}
        self._loads: dict[str, ActorLoad] = {}
        self._starting: asyncio.Task[None] | None = None
        self._watching: asyncio.Task[None] | None = None
        self._heard: dict[str, float] = {}  # when each FlowActor last answered a ping, on the monotonic clock
        self._sharing = 0
        self._growing = asyncio.Lock()
        self._deploying = asyncio.Lock()
        self._checked: set[str] = set()
        self._ended = ""
        self._leaving = Leaving(
            here=str(ray.get_runtime_context().get_node_id()),
            drain_seconds=config.drain_seconds,
            actor=self._actors.__getitem__,
            moved=self._forget_place,
            leave=self._leave,
        )
        for index in range(config.flow_actors):
            self._make_actor(index)
        # After a restart nobody calls: the actor calls itself, so that the lease goes on.
        ray.get_runtime_context().current_actor.ready.remote(msgspec.msgpack.encode(config))

    # Beginning --------------------------------------------------------------------------------------------------------

    async def open(self, config: bytes, spec: bytes = b"", code: bytes = b"", check: bool = True) -> bytes:
        """`ready`, and deploys what a client brought along. `BadCode` when a worker can't load it: then the deployment
        that was in force still is.
        """
        checking = asyncio.ensure_future(self._why_not_loadable(spec, code)) if spec and check else None
        try:
            answer = await self.ready(config)
            if spec and isinstance(msgspec.msgpack.decode(answer, type=Ok | Failed), Ok):
                reason = await checking if checking is not None else ""
                if reason:
                    return encode(BadCode(reason))
                await self._deploy(spec, code)
            return answer
        finally:
            if checking is not None:
                checking.cancel()

    async def ready(self, config: bytes) -> bytes:
        """Waits until the engine works. Answers `Ok(ClusterView)`, or `Failed` with the reason why it can't."""
        wanted = msgspec.msgpack.decode(config, type=EngineConfig)
        if wanted.database_url != self._config.database_url:
            return _failed(
                f"the engine in namespace {self._config.namespace!r} works on the database "
                f"{masked(self._config.database_url)}, not on {masked(wanted.database_url)}: "
                "connect to its database, or give another namespace"
            )
        if self._ended:
            return _failed(self._ended)
        if self._starting is None or (self._starting.done() and self._starting.exception() is not None):
            self._starting = asyncio.get_running_loop().create_task(self._start())
        try:
            await asyncio.shield(self._starting)
        except (Refused, JournalRefused) as refused:
            self._end(str(refused))
            return _failed(str(refused))
        except Exception as error:
            logger.exception("the engine can't start")
            return _failed(f"the engine can't start: {type(error).__name__}: {masked(error)}", "UNAVAILABLE")
        return self._view(other_settings=self._config.differences(wanted))

    async def _start(self) -> None:
        if self._journal is None:
            self._journal = await self._patiently(self._open_journal)
        await self._patiently(self._journal.migrate)
        await self._take_lease(self._journal)
        self._find_actors()
        await asyncio.gather(*(self._begin(name) for name in self._actors))
        await self._adopt(self._journal)
        self._watching = asyncio.get_running_loop().create_task(self._watch(self._journal))

    def _open_journal(self) -> Journal:
        """With the blob store, which is only used by others: one that can't be used is refused before they begin."""
        return open_journal(self._config.database_url, blob_store=self._config.blob_store)

    async def _take_lease(self, journal: Journal) -> None:
        began = time.monotonic()
        while True:
            found = await self._acquire(journal)
            if found.holder == self._holder:
                self._has_lease = True
                return
            # A process that was killed with its cluster may be seen for a moment longer.
            patience = min(DYING, self._config.lease_seconds) if leases.is_alive(found) else self._config.lease_seconds
            if time.monotonic() - began > patience + 0.5:
                raise Refused(leases.refusal(self._config.database_url, found))
            await asyncio.sleep(0.5)

    async def _acquire(self, journal: Journal) -> Lease:
        seconds = self._config.lease_seconds
        return await self._patiently(lambda: leases.acquire(journal, self._holder, seconds=seconds, now=time.time()))

    def _make_actor(self, index: int) -> str:
        """Makes a FlowActor, or takes it over when it lives. Making is asynchronous: calls to it wait."""
        name = flow_actor_name(index)
        if name not in self._actors:
            self._actors[name] = make_flow_actor(self._config, name)
            self._loads.setdefault(name, ActorLoad(name))
        return name

    async def _begin(self, name: str) -> None:
        """Tells a FlowActor to begin; one that can't (see there) is replaced."""
        deadline = time.monotonic() + ACTOR_PATIENCE
        while not await self._tell(name, "begin", self._config):
            if time.monotonic() > deadline:
                raise Refused(f"{name} of a former engine does not end")
            ray.kill(self._actors[name], no_restart=True)
            await asyncio.sleep(0.2)
            self._actors[name] = make_flow_actor(self._config, name)

    def _find_actors(self) -> None:
        """After a restart: actors beyond the first ones that a former life of ours has made."""
        for index in range(self._config.flow_actors, self._config.max_flow_actors):
            try:
                actor = ray.get_actor(flow_actor_name(index), namespace=self._config.namespace)
            except ValueError:
                return
            self._actors[flow_actor_name(index)] = actor
            self._loads.setdefault(flow_actor_name(index), ActorLoad(flow_actor_name(index)))

    async def _adopt(self, journal: Journal) -> None:
        """Open Flows whose owner is not in the pool get one that is, spread evenly."""
        owners = await self._patiently(journal.owners_of_open_runs)
        has = {name: owners.pop(name, 0) for name in self._actors}
        adopting: set[str] = set()
        for owner, count in owners.items():
            share = min(200, -(-count // len(has)))
            while True:
                to = min(has, key=has.__getitem__)
                moved = await self._patiently(partial(journal.reassign, owner, to, share))
                if not moved:
                    break
                has[to] += len(moved)
                adopting.add(to)
                logger.info("%d Flows of %s now belong to %s", len(moved), owner, to)
        await asyncio.gather(*(self._tell(name, "adopt") for name in adopting))

    # Work -------------------------------------------------------------------------------------------------------------

    async def heir_of(self, flow_id: str) -> str:
        """The owner of a Flow. One that is not in the pool is replaced by one that is."""
        if self._starting is not None:
            await asyncio.shield(self._starting)
        journal = self._journal
        assert journal is not None
        least = min(self._loads.values(), key=lambda load: load.active).name
        while True:
            run = await self._patiently(lambda: journal.current_run(flow_id))
            if run is None or run.owner in self._actors:
                return run.owner if run is not None else least
            if await self._patiently(partial(journal.move, run.run_id, run.owner, least)):
                logger.info("Flow %r of %s now belongs to %s", flow_id, run.owner, least)
                if run.closed_at is None:  # a closed one has nothing to go on with
                    await self._tell(least, "adopt")

    async def view(self) -> bytes:
        return self._view()

    async def place(self) -> bytes:
        """For Flows that must not share: a view that names the FlowActor with the most room, after the pool has grown
        by one if there was none and it may. The room is taken: the next call gets other room.
        """
        async with self._growing:
            if all(load.active + load.queued >= 1 for load in self._loads.values()):
                await self._grow()
            placed = min(self._loads.values(), key=lambda load: load.active + load.queued)
            self._loads[placed.name] = replace(placed, active=placed.active + 1)
        return self._view(placed=placed.name)

    async def _why_not_loadable(self, spec: bytes, code: bytes) -> str:
        deployment_id = msgspec.msgpack.decode(spec, type=DeploymentSpec).deployment_id
        if deployment_id in self._checked:
            return ""
        reason = await why_not_loadable(code, deployment_id)
        if not reason:
            self._checked.add(deployment_id)
        return reason

    async def _deploy(self, spec: bytes, code: bytes) -> None:
        """Stores a deployment, and makes it the newest of its Flow types on every FlowActor, in one order for all."""
        deployment = msgspec.msgpack.decode(spec, type=DeploymentSpec)
        stored = StoredDeployment(deployment.deployment_id, time.time(), spec, code)
        journal = self._journal
        assert journal is not None
        async with self._deploying:
            await self._patiently(lambda: journal.put_deployment(stored, list(deployment.flows)))
            await asyncio.gather(*(self._tell(name, "deploy", spec) for name in self._actors))

    async def _tell(self, name: str, method: str, *arguments: Any) -> Any:
        """Calls a FlowActor; again when its process ended meanwhile. What is told must bear to be told twice."""
        deadline = time.monotonic() + ACTOR_PATIENCE
        while True:
            try:
                return await getattr(self._actors[name], method).remote(*arguments)
            except RayActorError as error:
                if time.monotonic() > deadline:
                    raise
                if isinstance(error, ActorDiedError):  # for good: it was replaced a moment ago, or can't start
                    self._actors[name] = make_flow_actor(self._config, name)
                await asyncio.sleep(0.2)

    async def pid(self) -> int:
        return os.getpid()

    # Ending -----------------------------------------------------------------------------------------------------------

    async def shutdown(self, drain: float | None = None) -> int:
        """Ends the engine in order: attempts that run may finish within `drain` seconds (`drain_seconds` if not given),
        FlowActors write what they decided, then go, then the lease. The number of attempts that did not finish.
        """
        left = 0
        drain = self._config.drain_seconds if drain is None else drain
        self._ended = "the engine is ending: connect again"
        for task in (self._starting, self._watching):
            if task is not None:
                task.cancel()
        self._leaving.close()
        # One that has not begun yet has nothing to write, and may not even be there.
        begun = self._starting is not None and self._starting.done() and not self._starting.cancelled()
        if begun:
            ending = [actor.shutdown.remote(drain) for actor in self._actors.values()]
            ended = await asyncio.gather(*ending, return_exceptions=True)
            left = sum(count for count in ended if isinstance(count, int))
        for actor in self._actors.values():
            ray.kill(actor, no_restart=True)
        journal = self._journal
        if journal is not None and self._has_lease:
            try:
                await self._blocking(lambda: journal.release_lease(leases.LEASE, self._holder))
            except JournalUnavailable as error:
                logger.warning("the lease is left to expire: %s", error)
        return left

    def _end(self, reason: str) -> None:
        """This engine can't work, or not any more: it leaves nothing behind, so that another can take its name."""
        if self._ended:
            return
        self._ended = reason
        self._leaving.close()
        for actor in self._actors.values():
            ray.kill(actor, no_restart=True)
        me = ray.get_runtime_context().current_actor
        asyncio.get_running_loop().call_later(0.5, lambda: ray.kill(me, no_restart=True))  # answers go out first

    async def _leave(self) -> None:
        """Ends, to be started by Ray on another node. Who calls us meanwhile calls again."""
        async with self._deploying, self._growing:
            ray.kill(ray.get_runtime_context().current_actor, no_restart=False)

    # Watching ---------------------------------------------------------------------------------------------------------

    async def _watch(self, journal: Journal) -> None:
        renewed = looked_at_nodes = time.monotonic()
        while True:
            await asyncio.sleep(LOOK_EVERY)
            try:
                if time.monotonic() - renewed > self._config.lease_seconds / 4:
                    found = await self._acquire(journal)
                    renewed = time.monotonic()
                    if found.holder != self._holder:
                        logger.error("the database was taken over by %s: this engine ends", leases.describe(found))
                        self._end(f"the database was taken over by {leases.describe(found)}")
                        return
                await asyncio.gather(self._look(), self._look_for_frozen())
                if time.monotonic() - looked_at_nodes > NODES_EVERY:
                    looked_at_nodes = time.monotonic()
                    await self._leaving.look({name: load.node for name, load in self._loads.items()})
            except Exception:
                logger.exception("a look at the FlowActors failed")

    async def _look_for_frozen(self) -> None:
        """A process that is stopped, or stuck where Ray does not look, holds its Flows and says nothing. Ray starts it
        again, which fences what wakes up.
        """
        names = list(self._actors)
        patience = min(PING_SECONDS, self._config.frozen_seconds / 2)
        pings = [asyncio.wait_for(_awaitable(self._actors[name].ping.remote()), patience) for name in names]
        replies = await asyncio.gather(*pings, return_exceptions=True)
        now = time.monotonic()
        for name, reply in zip(names, replies, strict=True):
            if reply is True:
                self._heard[name] = now
            elif not isinstance(reply, TimeoutError):
                self._heard.pop(name, None)  # it is gone, which Ray sees to
            elif now - self._heard.get(name, now) > self._config.frozen_seconds:
                logger.error("%s has not answered for %g s and is started again", name, now - self._heard.pop(name))
                ray.kill(self._actors[name], no_restart=False)

    async def _look(self) -> None:
        names = list(self._actors)
        replies = await asyncio.gather(
            *(asyncio.wait_for(_awaitable(self._actors[name].load.remote()), 5.0) for name in names),
            return_exceptions=True,
        )
        for name, reply in zip(names, replies, strict=True):
            if isinstance(reply, bytes):
                self._loads[name] = msgspec.msgpack.decode(reply, type=ActorLoad)
            else:
                self._forget_place(name)
        lasting = sum(load.lasting for load in self._loads.values())
        queued = sum(load.queued for load in self._loads.values())
        crowded = queued > 0 or lasting > 2 * len(self._actors)
        self._sharing = self._sharing + 1 if crowded else 0
        if self._sharing >= GROW_AFTER:
            self._sharing = 0
            async with self._growing:
                await self._grow()

    def _forget_place(self, name: str) -> None:
        """Where a FlowActor is that does not answer is not known: it may be on its way."""
        self._loads[name] = replace(self._loads[name], node="")

    async def _grow(self) -> None:
        if len(self._actors) >= self._config.max_flow_actors:
            return
        name = self._make_actor(len(self._actors))
        await self._begin(name)

    # Pieces -----------------------------------------------------------------------------------------------------------

    def _view(self, placed: str = "", other_settings: tuple[str, ...] = ()) -> bytes:
        view = ClusterView(
            tuple(self._loads[name] for name in self._actors),
            self._config.flows_per_actor,
            masked(self._config.database_url),
            placed,
            other_settings,
        )
        return encode(Ok(encode(view)))

    async def _patiently(self, call: Callable[[], T]) -> T:
        """A blocking call of the journal, repeated while the database is away."""
        deadline = time.monotonic() + 30.0
        while True:
            try:
                return await self._blocking(call)
            except JournalUnavailable as error:
                if time.monotonic() > deadline:
                    raise
                logger.warning("the database is away: %s", error)
                await asyncio.sleep(0.5)


async def _awaitable(reference: Awaitable[T]) -> T:
    return await reference


def _failed(detail: str, code: str = "FAILED_PRECONDITION") -> bytes:
    return encode(Failed(ServiceFailure(code=code, detail=detail)))


_ACTOR = {
    "lifetime": "detached",
    "get_if_exists": True,
    "max_restarts": -1,
    "max_task_retries": 0,
    "num_cpus": 0,
}


def make_flow_actor(config: EngineConfig, name: str) -> Any:
    return ray.remote(FlowActor).options(**_options(config, name, 10_000)).remote(config, name)


def _options(config: EngineConfig, name: str, concurrency: int) -> dict[str, Any]:
    options = {**_ACTOR, "name": name, "namespace": config.namespace, "max_concurrency": concurrency}
    if config.engine_resource:
        options["resources"] = {config.engine_resource: SHARE}
    return options


def find_or_make_directory(config: EngineConfig) -> Any:
    """The engine of a namespace, made when it is not there yet. Its FlowActors' processes start beside its own."""
    try:
        return ray.get_actor(DIRECTORY, namespace=config.namespace)
    except ValueError:
        directory = ray.remote(Directory).options(**_options(config, DIRECTORY, 1_000)).remote(config)
        for index in range(config.flow_actors):
            make_flow_actor(config, flow_actor_name(index))
        return directory
