"""Handlers and host in one event loop: an AttemptPort without processes, and a FlowService over one host."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from typing import Any, Protocol

from msgspec.structs import replace

from dex import Registry
from dex._runtime import served_by
from dex.wire.service import AnswerT, FlowService, Request
from dexray.attempts import run_async, run_sync
from dexray.attempts.ids import message_id
from dexray.engine import Clock, FlowHost, HostSettings
from dexray.engine.clock import Blocking, BlockingInline
from dexray.journal.interface import Journal
from dexray.protocol.attempts import AttemptFailed, AttemptKey, AttemptResult, AttemptTask, Heartbeat
from dexray.protocol.ports import AttemptPort, AttemptSink, Router
from dexray.protocol.streams import StreamWrite

WORKER = "in-process"
"""The name of the worker in failures."""


class _Reporter:
    def __init__(self, port: LocalAttempts, key: AttemptKey) -> None:
        self._port = port
        self._key = key

    def heartbeat(self, heartbeat: Heartbeat | None) -> None:
        self._port.sink.attempt_heartbeat(self._key, heartbeat)

    def stream(self, message: StreamWrite) -> None:
        self._port.sink.attempt_heartbeat(self._key, None)
        self._port.sink.stream_written(message)

    def is_canceled(self) -> bool:
        return self._key in self._port.canceled

    def interrupts(self) -> bool:
        return self._port.interrupts(self._key)

    def now(self) -> float:
        return self._port.clock.now()


class AttemptWatcher(Protocol):
    """Sees attempts from beside, and may decide how they end."""

    def begins(self, task: AttemptTask) -> AttemptFailed | None:
        """Before the handler's first line. A failure ends the attempt without it."""

    def raised(self, task: AttemptTask, error: BaseException) -> None:
        """What the attempt fails with, before it becomes data."""

    def ended(self, task: AttemptTask, result: AttemptResult) -> AttemptResult:
        """The result that the engine is to be told."""
        ...


class LocalAttempts(AttemptPort):
    """Runs attempts in the event loop: synchronous handlers in one go, asynchronous ones as tasks."""

    sink: AttemptSink

    service: FlowService | None = None
    """Who serves the clients that handlers make."""

    def __init__(
        self, registry: Callable[[], Registry], clock: Clock, slots: int = 100, watcher: AttemptWatcher | None = None
    ) -> None:
        self.clock = clock
        self._watcher = watcher
        self.canceled: set[AttemptKey] = set()
        self._interrupted: set[AttemptKey] = set()
        self._registry = registry
        self._slots = slots
        self._taken = 0
        self._refused = False
        self._running: dict[AttemptKey, asyncio.Task[None]] = {}

    def reserve(self, flow_type: str, step_type: str, is_async: bool) -> bool:
        if self._taken >= self._slots:
            self._refused = True
            return False
        self._taken += 1
        return True

    def release(self, flow_type: str, step_type: str, is_async: bool) -> None:
        self._taken -= 1
        if self._refused:
            self._refused = False
            self.sink.slots_changed()

    def run(self, task: AttemptTask) -> None:
        self._running[task.key] = asyncio.get_running_loop().create_task(self._run(task))

    async def _run(self, task: AttemptTask) -> None:
        service = self.service
        result: AttemptResult | None
        try:
            result = self._watcher.begins(task) if self._watcher is not None else None
            if result is None:
                with served_by(None if service is None else lambda: service):
                    result = await self._result(task)
                if self._watcher is not None:
                    result = self._watcher.ended(task, result)
        finally:
            self._running.pop(task.key, None)
            self.canceled.discard(task.key)
            self._interrupted.discard(task.key)
            self.release(task.flow_type, task.step_type, task.is_async)
        if isinstance(result, AttemptFailed) and not result.worker:
            result = replace(result, worker=WORKER)
        self.sink.attempt_finished(task.key, result)

    async def _result(self, task: AttemptTask) -> AttemptResult:
        reporter = _Reporter(self, task.key)
        watcher = self._watcher
        raised = None if watcher is None else lambda error: watcher.raised(task, error)
        self.sink.attempt_running(task.key)
        try:
            if task.is_async:
                return await run_async(task, self._registry(), reporter, raised)
            return run_sync(task, self._registry(), reporter, raised)
        except Exception as error:
            if watcher is not None:
                watcher.raised(task, error)
            return AttemptFailed(error_type=type(error).__qualname__, detail=str(error), kind="WORKER_CRASHED")

    def waiting_for(self, key: AttemptKey) -> str:
        return ""

    def cancel(self, key: AttemptKey) -> None:
        task = self._running.get(key)
        if task is not None:
            self.canceled.add(key)
            if self.interrupts(key):
                task.cancel()

    def interrupts(self, key: AttemptKey) -> bool:
        is_first = key not in self._interrupted
        self._interrupted.add(key)
        return is_first

    async def close(self) -> None:
        """Kills what runs, as the end of the process would."""
        running = list(self._running.values())
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)


class _HandlersService:
    """The engine as it serves the clients that its own handlers make: closing it ends nothing."""

    def __init__(self, engine: InProcessEngine) -> None:
        self._engine = engine
        self._loop: asyncio.AbstractEventLoop | None = None

    def begin(self) -> None:
        self._loop = asyncio.get_running_loop()

    async def call(self, request: Request[AnswerT]) -> AnswerT:
        if asyncio.get_running_loop() is not self._loop:
            raise RuntimeError(
                "in process, handlers run in the engine's own event loop, which a blocking Client would hold up for "
                "ever: make the handler `async def` and use an AsyncClient"
            )
        return await self._engine.call(request)

    async def close(self) -> None: ...


class InProcessEngine:
    """One host over one journal: a FlowService. `await start()` resumes what the journal holds."""

    def __init__(
        self,
        registry: Registry,
        journal: Journal,
        clock: Clock,
        *,
        owner: str = "in-process",
        blocking: Blocking | None = None,
        settings: HostSettings | None = None,
        slots: int = 100,
        router: Router | None = None,
        watcher: AttemptWatcher | None = None,
        outlived: Callable[[], None] = lambda: None,
    ) -> None:
        self.registry = registry
        self.attempts = LocalAttempts(lambda: self.registry, clock, slots, watcher)
        numbers = itertools.count(1)
        self.host = FlowHost(
            owner=owner,
            journal=journal,
            attempts=self.attempts,
            clock=clock,
            blocking=blocking if blocking is not None else BlockingInline(),
            new_id=lambda: message_id(clock.now(), next(numbers)),
            settings=settings,
            router=router,
            outlived=outlived,
        )
        self.attempts.sink = self.host
        self._handlers_service = _HandlersService(self)
        self.attempts.service = self._handlers_service

    async def start(self) -> None:
        """Deploys the Registry, loads the open Flows of the journal and lets them go on."""
        self._handlers_service.begin()
        self.host.deploy(self.registry.describe("in-process"))
        self.host.start()

    async def call(self, request: Request[AnswerT]) -> AnswerT:
        """Answers one request: it is a FlowService. Raises ServiceError."""
        answer: Any = await self.host.call(request)  # type: ignore[arg-type]
        return answer  # type: ignore[no-any-return]

    def deploy(self, registry: Registry, deployment_id: str) -> None:
        """Newer code, for Flows that are under way too."""
        self.registry = registry
        self.host.deploy(registry.describe(deployment_id))

    async def close(self) -> None:
        """Ends in order."""
        await self.attempts.close()
        await self.host.stop()

    async def crash(self) -> None:
        """Ends at once: what is not in the journal is lost."""
        await self.host.abandon()
        await self.attempts.close()
