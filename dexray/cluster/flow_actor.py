"""A FlowActor: one FlowHost in a Ray actor.

The actor is detached and named, and its name is its name as an owner in the database. Its process starts at once; it
touches the database when the Directory says that the database is ours. When its process dies, Ray starts it again under
the same name; it begins the next life of its owner, which fences the old process wherever that may still be, and
resumes its runs. For that no other process has to tell it anything: all it needs to know it was made with, or reads
from the database. An old process that wakes up is told by the database that its life is over, and ends itself. So does
one that Ray still believes in (the former one was frozen while it began, and began late): Ray starts it again, and
that is the newest life. It begins none while another cluster's engine has the database: two would end each other in
turns.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
import warnings
from collections.abc import Sequence
from functools import partial
from typing import Any

import msgspec
import ray
from msgspec.structs import replace

from dex.wire.service import ServiceError, ServiceFailure, decode_request, encode
from dex.wire.specs import DeploymentSpec
from dexray.attempts.ids import message_id
from dexray.cluster import lease as leases
from dexray.cluster.code_store import CodeStore
from dexray.cluster.protocol import ActorLoad, Elsewhere, EngineConfig, Failed, Ok, flow_actor_name
from dexray.cluster.protocol import encode as encode_reply
from dexray.cluster.ray_attempts import RayAttempts
from dexray.cluster.router import OwnerRouter
from dexray.engine import FlowHost, HostSettings, LoopClock, NotMine
from dexray.engine.clock import BlockingThread
from dexray.journal import open_journal
from dexray.journal.interface import Journal, JournalUnavailable
from dexray.protocol.attempts import AttemptKey, AttemptResult, Heartbeat
from dexray.protocol.streams import StreamWrite

logger = logging.getLogger("dexray.cluster.flow_actor")

SWEEP_SECONDS = 60.0


class Ids:
    """Ids of this process: unique, and their text sorts by time."""

    def __init__(self) -> None:
        self._count = 0

    def __call__(self) -> str:
        self._count += 1
        return message_id(time.time(), self._count)


class FlowActor:
    """Every public method waits until the host is up. The engine's state is in the host; this class only carries calls
    to it.
    """

    def __init__(self, config: EngineConfig, name: str) -> None:
        self._config = config
        self._name = name
        self._host: FlowHost | None = None
        self._attempts: RayAttempts | None = None
        self._journal: Journal | None = None
        self._starting: asyncio.Task[None] | None = None
        self._adopting: asyncio.Task[None] | None = None
        self._given = False  # Flows that the look under way may have missed
        self._may_begin = asyncio.Event()
        self._has_ended = False
        context = ray.get_runtime_context()
        self._node = str(context.get_node_id())
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # it is Ray that calls what Ray deprecates
            has_begun_before = context.was_current_actor_reconstructed
        if has_begun_before:
            # The engine began in a former life of this actor, and nobody calls: it goes on with its Flows by itself.
            # Ray may refuse a call to an actor that is still coming up; then the Directory's next look begins.
            self._may_begin.set()
            context.current_actor.begin.remote()

    # Life -------------------------------------------------------------------------------------------------------------

    async def begin(self, config: EngineConfig | None = None) -> bool:
        """The database is ours: starts the host; returns when it takes calls. The Flows of a former life are resumed in
        the background.

        False, and nothing is done, when this actor can't: it was made with another configuration than the Directory's,
        by a client that wanted to begin the engine and came second; or it was ended by a Directory that died before it
        could remove it.
        """
        if self._has_ended or (config is not None and config != self._config):
            return False
        self._may_begin.set()
        await self._up()
        return True

    async def _up(self) -> FlowHost:
        if self._host is None:
            await self._may_begin.wait()
            if self._starting is None or (self._starting.done() and self._starting.exception() is not None):
                self._starting = asyncio.get_running_loop().create_task(self._start())
            await asyncio.shield(self._starting)
        assert self._host is not None
        return self._host

    async def _start(self) -> None:
        blocking = BlockingThread("dexray-journal")
        self._journal = journal = await self._open_journal(blocking)
        await self._wait_for_database(blocking, journal)
        sink = _Sink()
        self._attempts = RayAttempts(
            sink=sink,
            owner=ray.get_runtime_context().current_actor,
            code=CodeStore(self._read_code),
            loop=asyncio.get_running_loop(),
            namespace=self._config.namespace,
        )
        host = FlowHost(
            owner=self._name,
            journal=journal,
            attempts=self._attempts,
            clock=LoopClock(),
            blocking=blocking,
            new_id=Ids(),
            settings=HostSettings(
                idle_flows=self._config.idle_flows,
                active_flows=self._config.flows_per_actor,
                hold=self._config.hold,
                sweep_seconds=SWEEP_SECONDS,
                max_value_bytes=self._config.max_value_bytes,
                retention=self._config.retention,
                removes_runs=self._name == flow_actor_name(0),  # which every engine has
                attribute_stores=self._config.attribute_stores,
                default_attribute_stores=self._config.default_attribute_stores,
            ),
            store_thread=lambda store: BlockingThread(f"dexray-store-{store}", waits=False),
            router=OwnerRouter(self._name, self.call, self._config.namespace),
            open_journal=self._make_journal,
            outlived=self._end_process,
        )
        sink.host = host
        newest = await host.read(journal.newest_deployments)
        for deployment_id in set(newest.values()):
            stored = await host.read(partial(journal.get_deployment, deployment_id))
            if stored is not None:
                spec = msgspec.msgpack.decode(stored.spec, type=DeploymentSpec)
                mine = {name: flow for name, flow in spec.flows.items() if newest.get(name) == deployment_id}
                host.deploy(replace(spec, flows=mine))
        await self._attempts.start()
        self._host = host
        host.start()

    def _make_journal(self) -> Journal:
        return open_journal(self._config.database_url, blob_store=self._config.blob_store)

    async def _open_journal(self, blocking: BlockingThread) -> Journal:
        """Waits for a database that is away: nobody may call this actor again, and its Flows are to go on."""
        while True:
            try:
                return await blocking(self._make_journal)
            except JournalUnavailable as error:
                logger.warning("the database is away: %s", error)
                await asyncio.sleep(1.0)

    async def _wait_for_database(self, blocking: BlockingThread, journal: Journal) -> None:
        """Until no other engine has it. Ours has lost it when that is so, and will be ended by its Directory."""
        cluster = self._config.cluster_id
        while True:
            try:
                other = await blocking(lambda: leases.held_by_another(journal, cluster, time.time()))
                if other is None:
                    return
                logger.warning("%s does not begin: the database is in use by %s", self._name, leases.describe(other))
            except JournalUnavailable as error:
                logger.warning("the database is away: %s", error)
            await asyncio.sleep(1.0)

    def _end_process(self) -> None:
        logger.error("%s ends this process: a later life of it works elsewhere", self._name)
        asyncio.get_running_loop().call_later(0.5, os._exit, 1)  # answers go out first

    async def _read_code(self, deployment_id: str) -> bytes:
        host, journal = await self._up(), self._journal
        assert journal is not None
        stored = await host.read(lambda: journal.get_deployment(deployment_id))
        if stored is None:
            raise LookupError(f"deployment {deployment_id} is not in the database")
        return stored.code

    async def shutdown(self, drain: float) -> int:
        """Ends in order: attempts that run may finish within `drain` seconds, what was decided is written. The number
        of attempts that did not finish."""
        self._has_ended = True
        left = await self._host.stop(drain) if self._host is not None else 0
        if self._attempts is not None:
            await self._attempts.close()
        return left

    # Clients ----------------------------------------------------------------------------------------------------------

    async def call(self, data: bytes) -> bytes:
        """One request of `dex.wire.service`, answered with a `Reply`."""
        try:
            host = await self._up()
            return encode_reply(Ok(encode(await host.call(decode_request(data)))))
        except ServiceError as error:
            return encode_reply(Failed(error.failure))
        except NotMine as elsewhere:
            return encode_reply(Elsewhere(elsewhere.owner))
        except msgspec.MsgspecError as error:
            return _failed("UNIMPLEMENTED", f"this engine does not know the request: {error}")
        except Exception as error:
            logger.exception("a request failed inside the engine")
            return _failed("INTERNAL", f"{type(error).__name__}: {error}")

    # The Directory ----------------------------------------------------------------------------------------------------

    async def deploy(self, spec: bytes) -> None:
        (await self._up()).deploy(msgspec.msgpack.decode(spec, type=DeploymentSpec))

    async def adopt(self) -> None:
        """Goes on, in the background, with Flows that were given to this owner just now. However often it is told, one
        look at the database is under way and at most one more follows: that sees what was given meanwhile."""
        await self._up()
        self._given = True
        if self._adopting is None or self._adopting.done():
            self._adopting = asyncio.get_running_loop().create_task(self._adopt())

    async def _adopt(self) -> None:
        host = await self._up()
        while self._given:
            self._given = False
            await host.recover()

    async def ping(self) -> bool:
        """Answers at once, whatever the database does: a process that doesn't is frozen."""
        return True

    async def load(self) -> bytes:
        report = (await self._up()).load_report()
        return encode_reply(
            ActorLoad(
                self._name,
                report.active,
                report.lasting,
                report.queued,
                report.in_memory,
                report.attempts,
                os.getpid(),
                self._node,
            )
        )

    # Workers ----------------------------------------------------------------------------------------------------------

    async def report(self, data: bytes, shared: Sequence[Any] = (), content: Sequence[Any] = ()) -> None:
        if self._attempts is not None:
            self._attempts.on_report(data, shared, content)

    async def canceled(self, data: bytes) -> bytes:
        await self._up()
        assert self._attempts is not None
        return await self._attempts.canceled_keys(data)


class _Sink:
    """Stands in for the host until it is made: host and attempts need each other."""

    host: FlowHost

    def attempt_running(self, key: AttemptKey) -> None:
        self.host.attempt_running(key)

    def attempt_heartbeat(self, key: AttemptKey, heartbeat: Heartbeat | None) -> None:
        self.host.attempt_heartbeat(key, heartbeat)

    def stream_written(self, message: StreamWrite) -> None:
        self.host.stream_written(message)

    def attempt_finished(self, key: AttemptKey, result: AttemptResult) -> None:
        self.host.attempt_finished(key, result)

    async def is_wanted(self, key: AttemptKey) -> bool:
        return await self.host.is_wanted(key)

    def slots_changed(self) -> None:
        self.host.slots_changed()


def _failed(code: str, detail: str) -> bytes:
    return encode_reply(Failed(ServiceFailure(code=code, detail=detail)))
