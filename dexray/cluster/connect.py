"""Connecting: find or start Ray, find or start the engine, deploy the code, hand out a Client.

With no address this joins a running Ray if there is one, else it starts one inside this process's life (embedded): it ends with `close()`, with the
process, or with Ctrl-C. Flows are not lost by that: the next connect to the same database goes on with them.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec
import ray
from dex import AsyncClient, Client, ClientOptions, DexServiceError, FlowDefinitionError, Registry, StatusCode
from dex.wire.service import AnswerT, FlowService, Request
from ray.exceptions import RayError

from dexray.attempts import pack_registry
from dexray.cluster.directory import find_or_make_directory
from dexray.cluster.protocol import EngineConfig, Failed, decode_reply, decode_view
from dexray.cluster.service import ClusterService
from dexray.settings import Settings, resolve

logger = logging.getLogger("dexray")

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
        address: address of a Ray cluster, or "local" for an embedded one. Default: the Ray that is running here,
            else an embedded one.
        namespace: Ray namespace of the engine, default "dexray". One namespace is one engine on one database.
        settings: any other setting of `dexray.settings.Settings`.

    Raises:
        SettingsError: a setting is unknown or can't be used.
        FlowDefinitionError: the code can't be packed, or does not load on a worker.
        DexServiceError: the engine can't work: FAILED_PRECONDITION says why (another engine uses the database, ...).

    Example:
        >>> with dexray.connect(Registry([OrderFlow()])) as client:          # doctest: +SKIP
        ...     client.start_flow(order_flow, "order-7", Order(...))
    """
    engine = Engine.open(_arguments(database, address, namespace, settings))
    try:
        engine.deploy(registry)
        return Client(registry, _Service(engine), _client_options(engine.settings))
    except BaseException:
        engine.close()
        raise


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
    engine = await asyncio.to_thread(Engine.open, arguments)
    try:
        await asyncio.to_thread(engine.deploy, registry)
        return AsyncClient(registry, _Service(engine), _client_options(engine.settings))
    except BaseException:
        await asyncio.to_thread(engine.close)
        raise


def open_service(
    *,
    database: str | os.PathLike[str] | None = None,
    address: str | None = None,
    namespace: str | None = None,
    **settings: Any,
) -> Engine:
    """The engine without a Registry, for tools: a FlowService and a context manager."""
    return Engine.open(_arguments(database, address, namespace, settings))


def default_service() -> FlowService:
    """What a Client works with when it was given no service: the engine that the settings name, without deploying anything."""
    return _Service(Engine.open({}))


def _arguments(
    database: str | os.PathLike[str] | None, address: str | None, namespace: str | None, settings: dict[str, Any]
) -> dict[str, Any]:
    return {"database": database, "address": address, "namespace": namespace, **settings}


def _client_options(settings: Settings) -> ClientOptions:
    return ClientOptions(request_timeout=timedelta(seconds=settings.request_timeout), owns_service=True)


@dataclass
class Engine:
    """A connection to the engine of a namespace: a FlowService. `embedded` tells that Ray itself ends with it."""

    settings: Settings
    service: ClusterService
    directory: Any
    embedded: bool
    closed: bool = False

    @classmethod
    def open(cls, arguments: dict[str, Any]) -> Engine:
        settings, _ = resolve(arguments)
        embedded = start_ray(settings)
        try:
            config = engine_config(settings)
            directory = find_or_make_directory(config)
            reply = decode_reply(_get(directory.ready.remote(msgspec.msgpack.encode(config)), READY_TIMEOUT))
            if isinstance(reply, Failed):
                raise DexServiceError(StatusCode[reply.failure.code], reply.failure.detail, operation="connect")
            view = decode_view(reply.answer)  # type: ignore[union-attr]
            return cls(settings, ClusterService(directory, settings.namespace, view), directory, embedded)
        except BaseException:
            if embedded:
                ray.shutdown()
            raise

    def deploy(self, registry: Registry) -> str:
        code, deployment_id, spec = pack_registry(registry)
        _get(self.directory.deploy.remote(msgspec.msgpack.encode(spec), code), READY_TIMEOUT)
        if self.settings.code_check:
            problem = _get(self.directory.check_code.remote(deployment_id), READY_TIMEOUT)
            if problem:
                raise FlowDefinitionError(f"the code does not load on a worker: {problem}")
        return deployment_id

    async def call(self, request: Request[AnswerT]) -> AnswerT:
        return await self.service.call(request)

    async def aclose(self) -> None:
        await self.service.close()
        await asyncio.to_thread(self.close)

    def close(self) -> None:
        """Leaves the engine. An embedded one ends in order; its Flows go on at the next connect to the same database."""
        if self.closed:
            return
        self.closed = True
        if self.embedded:
            try:
                _get(self.directory.shutdown.remote(), 20.0)
            except DexServiceError as error:
                logger.warning("the engine did not end in order, which harms no Flow: %s", error)
            ray.shutdown()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def engine_config(settings: Settings) -> EngineConfig:
    cpus = int(
        ray.cluster_resources().get(  # type: ignore[no-untyped-call]
            "CPU", 1
        )
    )
    most = settings.max_flow_actors or min(16, max(2, cpus))
    return EngineConfig(
        database_url=absolute(settings.database_url),
        namespace=settings.namespace,
        flow_actors=settings.flow_actors,
        max_flow_actors=max(most, settings.flow_actors),
        flows_per_actor=settings.flows_per_actor,
        lease_seconds=settings.lease_seconds,
        idle_flows=settings.idle_flows,
        cluster_id=f"{ray.get_runtime_context().gcs_address}/{settings.namespace}/{_session()}",
    )


def _session() -> str:
    node = ray._private.worker.global_worker.node
    return str(node.session_name) if node is not None else str(uuid.uuid4())


def absolute(database: str) -> str:
    """A path that means the same in every process of the engine."""
    if "://" in database:
        return database
    return str(Path(database).expanduser().absolute())


def start_ray(settings: Settings) -> bool:
    """Joins or starts Ray. True when it was started here, and ends with us."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    if ray.is_initialized():
        return False
    quiet: dict[str, Any] = {"namespace": settings.namespace, "log_to_driver": False, "logging_level": logging.WARNING}
    try:
        if settings.address and settings.address != "local":
            _in_lasting_thread(lambda: ray.init(settings.address, **quiet))
            return False
        if not settings.address and _ray_is_running():
            _in_lasting_thread(lambda: ray.init("auto", **quiet))
            return False
        cpus = settings.num_cpus or os.cpu_count() or 1
        _in_lasting_thread(lambda: ray.init("local", num_cpus=cpus, include_dashboard=False, **quiet))
        return True
    except (ConnectionError, RayError, RuntimeError, ValueError) as error:
        raise DexServiceError(
            StatusCode.UNAVAILABLE,
            f"Ray at {settings.address or 'this machine'} can't be reached or started: {error}",
            operation="connect",
        ) from error


_lasting_thread: list[ThreadPoolExecutor] = []


def _in_lasting_thread(call: Callable[[], object]) -> None:
    """Ray's processes end with the thread that started them (the kernel's PR_SET_PDEATHSIG): it has to be one that lasts."""
    if threading.current_thread() is threading.main_thread():
        call()
        return
    if not _lasting_thread:
        _lasting_thread.append(ThreadPoolExecutor(max_workers=1, thread_name_prefix="dexray-ray"))
    _lasting_thread[0].submit(call).result()


def _ray_is_running() -> bool:
    if os.environ.get("RAY_ADDRESS"):
        return True
    try:
        return bool(ray._private.services.find_gcs_addresses())  # type: ignore[no-untyped-call]
    except Exception as error:
        logger.debug("looking for a running Ray: %s", error)
        return False


def _get(reference: Any, seconds: float) -> Any:
    try:
        return ray.get(reference, timeout=seconds)
    except RayError as error:
        raise DexServiceError(
            StatusCode.UNAVAILABLE, f"the engine does not answer: {error}", operation="connect"
        ) from error


class _Service:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def call(self, request: Request[AnswerT]) -> AnswerT:
        return await self._engine.call(request)

    async def close(self) -> None:
        await self._engine.aclose()
