"""One source, two engines: a test written once runs in process under a virtual clock, and over real Ray.

    @pytest.mark.statement("B106")
    @scenario(ray=True)                       # without ray=True: in process only
    async def test_graceful_completion_waits_for_all_branches(world: World) -> None:
        flow = Fork()
        await world.deploy(flow)
        await world.start(flow, "f", 3)
        result = await world.result("f")

In process, the real machine, host, SQLite journal and attempt runner work in one event loop in virtual time:
`await asyncio.sleep(3600)`, in a test or in an asynchronous handler, takes no time, and so does a Timer of 30 days.
Over Ray, handlers run in worker processes and time is real: keep waits short there. Flow IDs are made unique by
`world.id`; all methods of World take the short name. One Ray cluster serves all tests of a pytest process.
"""

from __future__ import annotations

import asyncio
import inspect
import itertools
import os
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Coroutine
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from dex import AsyncClient, Channel, ChannelMap, Flow, FlowResult, Registry, StartFlowOptions
from dex.wire.service import FlowDescription, HistoryEvent
from dex.wire.specs import MethodSpec
from dexray.engine import HostSettings
from dexray.journal import open_journal
from dexray.journal.interface import Journal
from dexray.settings import AttributeStore
from dexray.testing import InProcessEngine, VirtualClock, VirtualLoop

_numbers = itertools.count(1)


class World(ABC):
    """What a test sees of an engine. `client` is the real AsyncClient; the other methods are shorthands."""

    client: AsyncClient
    on_ray: bool

    store_file: Path
    """The SQLite file of the Attribute store "main", whose table is `rows`. It is not there until a test makes it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._prefix = f"t{os.getpid()}-{next(_numbers)}"

    @abstractmethod
    async def deploy(
        self, *flows: Flow[Any], heartbeat_timeout: float | None = None, slots: int = 100, **settings: Any
    ) -> None:
        """Deploys Flows; again for newer code. heartbeat_timeout: of all Steps, shorter than options allow.
        slots, settings (of HostSettings): in process only."""

    async def advance(self, seconds: float) -> None:
        """Lets time pass: virtual time, or real."""
        await asyncio.sleep(seconds)

    async def restart(self) -> None:
        """Kills the engine as a crash would and starts it again on the same journal. In process only."""
        raise AssertionError("a test that restarts the engine runs in process only")

    def id(self, name: str) -> str:
        return f"{self._prefix}-{name}"

    def file(self, name: str) -> Path:
        """A file that handlers may write to, on every engine."""
        return self.folder / name

    async def start(
        self, flow: Flow[Any], name: str, input: Any = None, options: StartFlowOptions | None = None
    ) -> str:
        return await self.client.start_flow(flow, self.id(name), input, options or StartFlowOptions())

    async def result(self, name: str, timeout: float = 60.0) -> FlowResult:
        """The result of a Flow; LongPollTimeoutError when it is not there in time (virtual days are cheap)."""
        return await self.client.wait_for_flow(self.id(name), timeout=timedelta(seconds=timeout))

    async def publish(self, name: str, channel: Channel[Any] | ChannelMap[Any], *values: Any) -> tuple[str, ...]:
        """values of a ChannelMap: the instance first."""
        return await self.client.publish(self.id(name), channel, *values)

    async def describe(self, name: str) -> FlowDescription:
        return await self.client.describe(self.id(name))

    async def history(self, name: str) -> list[HistoryEvent]:
        return [event async for event in self.client.history(self.id(name))]

    async def kinds(self, name: str) -> list[str]:
        """The kinds of events in the history, in order."""
        return [event.kind for event in await self.history(name)]

    async def until(self, what: Callable[[], Awaitable[bool]], timeout: float = 30.0) -> None:
        """Waits until something is true; looks again and again, at growing distances."""
        pause, waited = 0.001, 0.0
        while not await what():
            assert waited < timeout, f"not true after {timeout} s: {inspect.getsource(what).strip()}"
            await asyncio.sleep(pause)
            waited += pause
            pause = min(pause * 1.5, 0.25)

    async def until_phase(self, name: str, step: str, phase: str, timeout: float = 30.0) -> None:
        """Until an open Step execution is in a phase: ready, running, backoff, waiting."""

        async def there() -> bool:
            steps = (await self.describe(name)).steps
            return any(open.step_execution_id == step and open.phase == phase for open in steps)

        await self.until(there, timeout)

    async def close(self) -> None:
        await self.client.close()


def registry_of(flows: tuple[Flow[Any], ...], heartbeat_timeout: float | None) -> Registry:
    registry = Registry(list(flows), allow_async_handlers=True)
    if heartbeat_timeout is not None:

        def shorter(method: MethodSpec | None) -> MethodSpec | None:
            return None if method is None else replace(method, heartbeat_timeout=heartbeat_timeout)

        for flow_type, spec in registry._specs.items():
            steps = {
                name: replace(step, wait_for=shorter(step.wait_for), execute=shorter(step.execute))
                for name, step in spec.steps.items()
            }
            registry._specs[flow_type] = replace(spec, steps=steps)
    return registry


class InProcessWorld(World):
    on_ray = False

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.clock = VirtualClock()
        self.engine: InProcessEngine | None = None
        self._journal_path = folder / "flows.db"
        self._journals: list[Journal] = []
        self.blob_store = ""
        self.store_file = folder / "main.db"
        self._settings: HostSettings | None = None
        self._slots = 100

    def journal(self) -> Journal:
        journal = open_journal(self._journal_path, blob_store=self.blob_store)
        self._journals.append(journal)
        journal.migrate()
        return journal

    async def deploy(
        self, *flows: Flow[Any], heartbeat_timeout: float | None = None, slots: int = 100, **settings: Any
    ) -> None:
        registry = registry_of(flows, heartbeat_timeout)
        if self.engine is None:
            settings.setdefault("attribute_stores", (AttributeStore("main", f"sqlite:///{self.store_file}", "rows"),))
            self._settings, self._slots = HostSettings(**settings), slots
            await self._begin(registry)
        else:
            self.engine.registry = registry
            self.engine.host.deploy(registry.describe(f"in-process-{next(_numbers)}"))
            self.client = AsyncClient(registry, self.engine)

    async def _begin(self, registry: Registry) -> None:
        self.engine = InProcessEngine(registry, self.journal(), self.clock, settings=self._settings, slots=self._slots)
        await self.engine.start()
        self.client = AsyncClient(registry, self.engine)

    async def restart(self) -> None:
        assert self.engine is not None
        await self.engine.crash()
        await self._begin(self.engine.registry)

    async def close(self) -> None:
        if self.engine is not None:
            await super().close()
            await self.engine.crash()
        for journal in self._journals:
            journal.close()


class RayWorld(World):
    on_ray = True

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.client = None  # type: ignore[assignment]
        self.store_file = Path(ray_database()).with_name("main.db")

    async def deploy(
        self, *flows: Flow[Any], heartbeat_timeout: float | None = None, slots: int = 100, **settings: Any
    ) -> None:
        import dexray

        registry = registry_of(flows, heartbeat_timeout)
        if self.client is not None:
            await self.client.close()
        self.client = await dexray.connect_async(
            registry,
            database=ray_database(),
            namespace="dexray-world",
            code_check=False,
            attribute_stores={"main": {"url": f"sqlite:///{self.store_file}", "table": "rows"}},
        )

    async def close(self) -> None:
        if self.client is not None:
            await super().close()


_ray_folder: list[str] = []


def ray_database() -> str:
    """Starts the Ray that all tests of this process share, once; the database that its engine works on."""
    if not _ray_folder:
        import atexit
        import shutil
        import tempfile

        import ray

        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        if not ray.is_initialized():
            ray.init(
                "local",
                num_cpus=4,
                resources={"bench": 2},
                include_dashboard=False,
                namespace="dexray-world",
                log_to_driver=False,
                logging_level=40,
            )
        folder = tempfile.mkdtemp(prefix="dexray-world-")
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        atexit.register(ray.shutdown)
        _ray_folder.append(folder)
    return f"{_ray_folder[0]}/flows.db"


def forget_ray() -> None:
    """Whoever ended Ray says so here; the next test that needs it starts it anew."""
    _ray_folder.clear()


Test = Callable[..., Coroutine[Any, Any, None]]


def scenario(*, ray: bool = False, in_process: bool = True) -> Callable[[Test], Callable[..., None]]:
    """Makes a test of `async def test(world, ...)`; further parameters are fixtures or parametrisations as usual."""
    places = [pytest.param("in-process", id="in-process")] if in_process else []
    if ray:
        places.append(pytest.param("ray", id="ray", marks=pytest.mark.ray))

    def decorate(test: Test) -> Callable[..., None]:
        def run(where: str, tmp_path: Path, **others: Any) -> None:
            world = InProcessWorld(tmp_path) if where == "in-process" else RayWorld(tmp_path)

            async def main() -> None:
                try:
                    await test(world, **others)
                finally:
                    await world.close()

            if where == "in-process":
                with asyncio.Runner(loop_factory=VirtualLoop) as runner:
                    runner.run(main())
            else:
                ray_database()
                asyncio.run(main())

        run.__name__ = test.__name__
        run.__doc__ = test.__doc__
        run.__module__ = test.__module__
        parameters = [
            inspect.Parameter("where", inspect.Parameter.POSITIONAL_OR_KEYWORD),
            inspect.Parameter("tmp_path", inspect.Parameter.POSITIONAL_OR_KEYWORD),
            *list(inspect.signature(test).parameters.values())[1:],
        ]
        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        run.pytestmark = list(getattr(test, "pytestmark", []))  # type: ignore[attr-defined]
        marked: Callable[..., None] = pytest.mark.parametrize("where", places)(run)
        return marked

    return decorate
