"""Connecting: find or start Ray, find or start the engine, deploy the code, hand out a Client.

Which Ray is used, and when an embedded one ends, is said in `dexray.cluster.ray_session`. Flows are not lost with it:
the next connect to the same database goes on with them.

    connect(registry)                                    Directory.open
      pack the code (definition errors start nothing)      make the FlowActors' processes
      find or start Ray                                    take the lease on the database
      find or make the Directory  ------------------>      try the code on a worker, beside both
      Client  <--------------------------------------      tell the FlowActors to begin, deploy
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from types import TracebackType
from typing import Any, Self

import msgspec
import ray
from ray.exceptions import GetTimeoutError, RayActorError, RayError

from dex import AsyncClient, Client, ClientOptions, DexServiceError, FlowDefinitionError, Registry, StatusCode
from dex.wire.service import AnswerT, FlowService, Request
from dexray.attempts import pack_registry
from dexray.cluster.protocol import BadCode, ClusterView, EngineConfig, Failed, Ok, decode_reply, decode_view
from dexray.cluster.ray_session import Stay, session
from dexray.cluster.service import ClusterService
from dexray.settings import Settings, Sourced, resolve

logger = logging.getLogger("dexray")

ENDING_TIMEOUT = 15.0  # seconds for an engine to write what it decided, and end
READY_TIMEOUT = 90.0  # seconds for an engine to come up: a cold machine starts processes slowly


def connect(
    registry: Registry,
    *,
    database: str | os.PathLike[str] | None = None,
    address: str | None = None,
    namespace: str | None = None,
    **settings: Any,
) -> Client:
    """Deploys the registry's Flows and returns a Client; use it as a context manager.

    Args:
        registry: the Flows to deploy. Their newest code runs from now on, for Flows that are under way too.
        database: URL or path of the database. Default: SQLite under `$DEXRAY_HOME` (`~/.dexray`).
        address: address of a Ray cluster, or "local" for an embedded one. Default: the Ray that this process is
            connected to, else the one whose engine works on the database, else the one that was started on this
            machine with `ray start`, else an embedded one.
        namespace: Ray namespace of the engine, default "dexray". One namespace is one engine on one database.
        settings: any other setting of `dexray.settings.Settings`. Those of an engine count when it is started; who
            joins one later works with the settings that it has.

    Raises:
        SettingsError: a setting is unknown or can't be used.
        FlowDefinitionError: the code can't be packed, or does not load on a worker. Nothing is deployed then.
        DexServiceError: the engine can't work: FAILED_PRECONDITION says why (another engine uses the database, ...).

    An embedded Ray ends when the last client of this process is closed, or with the process.

    Example:
        >>> with dexray.connect(Registry([OrderFlow()])) as client:          # doctest: +SKIP
        ...     client.start_flow(order_flow, "order-7", Order(...))
    """
    engine = Engine.open(_arguments(database, address, namespace, settings), registry)
    return Client(registry, _Service(engine), _client_options(engine.settings))


async def connect_async(
    registry: Registry,
    *,
    database: str | os.PathLike[str] | None = None,
    address: str | None = None,
    namespace: str | None = None,
    **settings: Any,
) -> AsyncClient:
    """As `connect`, for asynchronous code: `async with await dexray.connect_async(registry) as client:`."""
    arguments = _arguments(database, address, namespace, settings)
    opening = _Opening(lambda: Engine.open(arguments, registry))
    try:
        engine = await asyncio.to_thread(opening.run)
    except asyncio.CancelledError:
        opening.give_up()
        raise
    return AsyncClient(registry, _Service(engine), _client_options(engine.settings))


def open_service(
    *,
    database: str | os.PathLike[str] | None = None,
    address: str | None = None,
    namespace: str | None = None,
    **settings: Any,
) -> Engine:
    """The engine without a Registry, for tools: a FlowService and a context manager. Flows that are under way go on:
    the database has their code.
    """
    return Engine.open(_arguments(database, address, namespace, settings))


def keep_ray(*, address: str | None = None, **settings: Any) -> Stay:
    """Finds or starts Ray as `connect` does, and keeps it until `.leave()` is called on the answer: an embedded Ray
    goes on between one engine and the next.
    """
    found, _ = resolve({"address": address, **settings})
    return session.enter(found, meanwhile=_load_engine)


def default_service() -> FlowService:
    """What a Client works with when it was given no service: the engine that the settings name, without deploying
    anything.
    """
    return _Service(Engine.open({}))


def _arguments(
    database: str | os.PathLike[str] | None, address: str | None, namespace: str | None, settings: dict[str, Any]
) -> dict[str, Any]:
    return {"database": database, "address": address, "namespace": namespace, **settings}


def _client_options(settings: Settings) -> ClientOptions:
    return ClientOptions(
        request_timeout=timedelta(seconds=settings.request_timeout),
        max_value_bytes=settings.max_value_bytes,
        owns_service=True,
    )


@dataclass(eq=False)
class Engine:
    """A connection to the engine of a namespace: a FlowService."""

    settings: Settings
    service: ClusterService
    stay: Stay
    closed: bool = False

    @classmethod
    def open(cls, arguments: dict[str, Any], registry: Registry | None = None) -> Engine:
        """Finds or starts the engine, and deploys a Registry."""
        settings, sourced = resolve(arguments)
        code, deployment_id, spec = (b"", "", None) if registry is None else pack_registry(registry)
        stay = session.enter(settings, meanwhile=_load_engine)
        try:
            config = engine_config(settings, hold=settings.hold and stay.embedded)
            deployment = (msgspec.msgpack.encode(spec), code, settings.code_check) if spec is not None else ()
            directory, view = _open_directory(config, deployment, deployment_id, stay)
            _warn_of_other_settings(view, sourced)
            return cls(settings, ClusterService(directory, settings.namespace, view), stay)
        except BaseException:
            stay.leave()
            raise

    @property
    def embedded(self) -> bool:
        """Ray itself ends with the last engine of this process."""
        return self.stay.embedded

    async def call(self, request: Request[AnswerT]) -> AnswerT:
        return await self.service.call(request)

    async def aclose(self) -> None:
        await self.service.close()
        await asyncio.to_thread(self.close)

    def close(self) -> None:
        """Leaves the engine. An embedded one ends in order with its last client in this process; its Flows go on at the
        next connect to the same database.
        """
        if not self.closed:
            self.closed = True
            self.stay.leave()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _load_engine() -> None:
    """Takes a second of imports, and is done while Ray starts."""
    import dexray.cluster.directory  # noqa: F401


def engine_config(settings: Settings, *, hold: bool = False) -> EngineConfig:
    """hold: only for an embedded engine, which ends with its client; one that stays has to work."""
    untyped: Any = ray
    cpus = int(untyped.cluster_resources().get("CPU", 1))
    most = settings.max_flow_actors or min(16, max(2, cpus))
    address = str(ray.get_runtime_context().gcs_address)
    return EngineConfig(
        database_url=settings.database_url,
        namespace=settings.namespace,
        flow_actors=settings.flow_actors,
        max_flow_actors=max(most, settings.flow_actors),
        flows_per_actor=settings.flows_per_actor,
        lease_seconds=settings.lease_seconds,
        frozen_seconds=settings.frozen_seconds,
        idle_flows=settings.idle_flows,
        drain_seconds=settings.drain_seconds,
        hold=hold,
        retention=settings.retention * 86400,
        blob_store=settings.blob_store_url,
        max_value_bytes=settings.max_value_bytes,
        cluster_id=f"{address}/{settings.namespace}/{_session_name()}",
        address=address,
        attribute_stores=settings.attribute_stores,
        default_attribute_stores=settings.default_attribute_stores,
        engine_resource=settings.engine_resource,
    )


def _session_name() -> str:
    node = ray._private.worker.global_worker.node
    return str(node.session_name) if node is not None else str(uuid.uuid4())


def _open_directory(
    config: EngineConfig, deployment: tuple[Any, ...], deployment_id: str, stay: Stay
) -> tuple[Any, ClusterView]:
    """The Directory, when the engine works. One that is ending while we come is waited for, and made anew."""
    from dexray.cluster.directory import find_or_make_directory

    deadline = time.monotonic() + READY_TIMEOUT
    while True:
        try:
            directory = find_or_make_directory(config)
            stay.before_end = _ending(directory, config.drain_seconds)
            answer = ray.get(
                directory.open.remote(msgspec.msgpack.encode(config), *deployment),
                timeout=max(1.0, deadline - time.monotonic()),
            )
        except RayActorError as error:
            if time.monotonic() > deadline or "creation task" in str(error):
                raise _unavailable(error) from error
            time.sleep(0.2)
            continue
        except (RayError, ValueError) as error:
            raise _unavailable(error) from error
        match decode_reply(answer):
            case Ok(answer=view):
                return directory, decode_view(view)
            case BadCode(reason=reason):
                raise FlowDefinitionError(f"the code does not load on a worker, so it was not deployed: {reason}")
            case Failed(failure=failure):
                raise DexServiceError(StatusCode[failure.code], failure.detail, operation="connect")
            case other:
                raise DexServiceError(StatusCode.INTERNAL, f"the Directory answered {other}", operation="connect")


def _ending(directory: Any, drain_seconds: float) -> Callable[[bool], None]:
    def end(in_a_hurry: bool) -> None:
        drain = 0.0 if in_a_hurry else drain_seconds
        try:
            ray.get(directory.shutdown.remote(drain), timeout=drain + ENDING_TIMEOUT)
            ray.kill(directory)
        except RayError as error:
            logger.warning("the engine did not end in order, which harms no Flow: %s", error)

    return end


def _unavailable(error: Exception) -> DexServiceError:
    if isinstance(error, GetTimeoutError):
        detail = (
            f"the engine did not come up within {READY_TIMEOUT:g} s: the cluster may lack room for its processes, or "
            "a node with the resource that engine_resource names"
        )
    else:
        detail = f"the engine does not answer: {error}"
    return DexServiceError(StatusCode.UNAVAILABLE, detail, operation="connect")


def _warn_of_other_settings(view: ClusterView, sourced: list[Sourced]) -> None:
    asked_for = {setting.name for setting in sourced if setting.source != "default"}
    ignored = [name for name in view.other_settings if name in asked_for]
    if ignored:
        logger.warning(
            "the engine was started with another %s, which stays in force until it is started again",
            " and ".join(ignored),
        )


class _Opening:
    """Opens an engine in a thread, for a caller who may have been cancelled when it is open."""

    def __init__(self, open: Callable[[], Engine]) -> None:
        self._open = open
        self._lock = threading.Lock()
        self._engine: Engine | None = None
        self._given_up = False

    def run(self) -> Engine:
        engine = self._open()
        with self._lock:
            self._engine = engine
            given_up = self._given_up
        if given_up:
            engine.close()
        return engine

    def give_up(self) -> None:
        with self._lock:
            self._given_up = True
            engine = self._engine
        if engine is not None:
            threading.Thread(target=engine.close, name="dexray-close").start()


class _Service:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def call(self, request: Request[AnswerT]) -> AnswerT:
        return await self._engine.call(request)

    async def close(self) -> None:
        await self._engine.aclose()
