"""The Ray task that runs a lot of attempts, as it looks from inside its worker process.

Bytes come in and bytes go out, and no exception leaves: not of a handler (the runner makes them data), not of
ours. Ray turns a SystemExit into a dead worker, a KeyboardInterrupt into a cancellation, and can't pickle
some exceptions at all.

SIGINT is ignored while handlers run, because `ray.cancel` sends one: being canceled is nothing a handler
should find out by a KeyboardInterrupt in the middle of a line.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import msgspec
import ray

from dex._runtime import served_by
from dex.registry import Registry
from dex.wire.service import FlowService
from dexray.attempts.failures import log_failure
from dexray.attempts.reporter import SteadyTime
from dexray.attempts.runner import run_async, run_sync
from dexray.cluster.attempt_messages import (
    Answer,
    Finished,
    Lot,
    LotResult,
    Question,
    Report,
    decode_answer,
    decode_lot,
    encode,
)
from dexray.cluster.code_store import CodeCache, why_not_loadable
from dexray.cluster.lot_run import Asked, LotRun, Watchdog
from dexray.cluster.service import HandlersService
from dexray.cluster.shared_values import FETCH_SECONDS, apart, buffers, fetch, given
from dexray.cluster.worker_lane import WorkerLanes
from dexray.protocol.attempts import (
    WORKER_CRASHED,
    AttemptFailed,
    AttemptResult,
    AttemptReturned,
    AttemptTask,
    Heartbeat,
)
from dexray.protocol.streams import StreamWrite

logger = logging.getLogger("dexray.cluster.worker")

_TRACE_LIMIT = 4096

_ENDED_BY_RAY = "in ray._raylet.raise_sys_exit_with_custom_error_message"
"""In the trace of a handler whose process Ray ends, because its owner has gone: no news for anybody."""


def run_lot(parcel: list[Any], data: bytes, shared: Sequence[Any] = ()) -> bytes | list[Any]:
    """The function behind all attempts of synchronous handlers, and of asynchronous ones that ask for resources. Large
    values come by the references in `shared`, and go back in a list behind the results."""
    with _sigint_ignored():
        lot: Lot | tuple[Finished, ...] = decode_lot(data)
        if shared and isinstance(lot, Lot):
            lot = given(lot, fetch(_get, shared))
        result = worker_process.run(parcel, lot) if isinstance(lot, Lot) else LotResult(lot)
        lighter, values = apart(result)
        return [encode(lighter), *buffers(values)] if values else encode(result)


def _get(reference: Any) -> Any:
    return ray.get(reference, timeout=FETCH_SECONDS)


def check_code(parcel: list[Any], deployment_id: str, life: int) -> str:
    """Loads the code of a deployment here; "" or the reason why that is not possible."""
    try:
        worker_process.code.get(parcel, deployment_id, life)
    except Exception as error:
        return why_not_loadable(error, deployment_id)
    return ""


class WorkerProcess:
    """What a worker process keeps from one lot to the next."""

    def __init__(self) -> None:
        self.code = CodeCache()
        self._watchdog = Watchdog(broken=_log_broken)
        self._place: tuple[str, str] | None = None
        self._lanes = WorkerLanes()

    def run(self, parcel: list[Any], lot: Lot) -> LotResult:
        """Runs a lot, and more when the owner takes the offer to stay. What is returned goes back by Ray."""
        first = lot.handed[0].task
        try:
            known = self.code.known(first.deployment_id, lot.life)
            registry, owner = known or self.code.get(parcel, first.deployment_id, lot.life)
        except Exception as error:
            returned = AttemptReturned(reason=why_not_loadable(error, first.deployment_id))
            return LotResult(tuple(Finished(handed.token, returned, declined=True) for handed in lot.handed))
        worker, node = self.place()
        run = LotRun(lot, RayLink(owner), worker, node)
        lane = self._lanes.begin(self.code.door(lot.life), lot, node)
        result = self.run_lot(run, lot, registry, worker, is_known=lane is not None)
        if lane is None:
            return result
        left = lane.serve(result, lambda more: self._run_more(more, registry, owner))
        if not lane.confirmed:
            run.announce()
        return left

    def _run_more(self, lot: Lot, registry: Registry, owner: Any) -> LotResult:
        """A lot that came over a lane, and so is of the same deployment and the same owner."""
        worker, node = self.place()
        return self.run_lot(LotRun(lot, RayLink(owner), worker, node), lot, registry, worker, is_known=True)

    def run_lot(self, run: LotRun, lot: Lot, registry: Registry, worker: str, *, is_known: bool = False) -> LotResult:
        run.begin(time.time() - lot.sent_at, is_known)
        self._watchdog.watch(run)
        try:
            while (handed := run.next()) is not None:
                with served_by(finder(lot.namespace)):
                    result = _attempt(handed.task, registry, run, worker)
                run.done(result, declined=isinstance(result, AttemptReturned))
        finally:
            self._watchdog.leave()
        return run.result()

    def place(self) -> tuple[str, str]:
        """This process for people, and its node for Ray."""
        if self._place is None:
            self._place = (f"{socket.gethostname()}:{os.getpid()}", ray.get_runtime_context().get_node_id())
        return self._place


def finder(namespace: str) -> Callable[[], FlowService] | None:
    """How a client that a handler makes finds the engine in this namespace."""
    return partial(HandlersService, namespace) if namespace else None


class LotReporter:
    """What handlers of a lot see of it: a Reporter."""

    __slots__ = ("_interrupted", "heartbeat", "is_canceled", "now", "stream")

    def __init__(self, run: LotRun) -> None:
        self._interrupted = False
        self.now: Callable[[], float] = SteadyTime()
        self.heartbeat: Callable[[Heartbeat | None], None] = run.heartbeat
        self.stream: Callable[[StreamWrite], None] = run.stream
        self.is_canceled: Callable[[], bool] = run.is_canceled

    def interrupts(self) -> bool:
        is_first, self._interrupted = not self._interrupted, True
        return is_first


def _attempt(task: AttemptTask, registry: Registry, run: LotRun, worker: str) -> AttemptResult:
    try:
        if task.is_async:
            result = asyncio.run(_cancelable(task, registry, run))
        else:
            result = run_sync(task, registry, LotReporter(run))
    except BaseException as error:
        result = runner_failure(task, error)
    return with_worker(task, result, worker)


async def _cancelable(task: AttemptTask, registry: Registry, run: LotRun) -> AttemptResult:
    loop, handler = asyncio.get_running_loop(), asyncio.current_task()
    assert handler is not None
    reporter = LotReporter(run)

    def interrupt() -> None:
        if reporter.interrupts():
            handler.cancel()

    run.on_cancel = lambda: _call_soon(loop, interrupt)
    try:
        if run.is_canceled():
            interrupt()
        return await run_async(task, registry, reporter)
    finally:
        run.on_cancel = None


def _call_soon(loop: asyncio.AbstractEventLoop, call: Callable[[], object]) -> None:
    with contextlib.suppress(RuntimeError):  # the attempt has ended and its loop is closed
        loop.call_soon_threadsafe(call)


def with_worker(task: AttemptTask, result: AttemptResult, worker: str) -> AttemptResult:
    """A failure tells where it happened, and is logged here: whoever looks for the reason looks at the output first."""
    if not isinstance(result, AttemptFailed):
        return result
    if _ENDED_BY_RAY not in result.trace:
        log_failure(task, result)
    return result if result.worker else msgspec.structs.replace(result, worker=worker)


def runner_failure(task: AttemptTask, error: BaseException) -> AttemptFailed:
    """The result of an attempt whose runner raised, which it should never do."""
    return AttemptFailed(
        error_type=f"{type(error).__module__}.{type(error).__qualname__}",
        detail=f"running {task.key.method} of {task.key.step_execution_id} failed outside of the handler",
        trace="".join(traceback.format_exception(error))[-_TRACE_LIMIT:],
        kind=WORKER_CRASHED,
    )


class RayLink:
    """The way to an owner over its actor handle: an OwnerLink."""

    def __init__(self, owner: Any) -> None:
        self._owner = owner

    def report(self, report: Report) -> None:
        try:
            self._owner.report.remote(encode(report))
        except Exception as error:
            _log_broken(error)

    def ask(self, question: Question, answered: Callable[[Answer | None], None]) -> Asked:
        return _Asking(self._owner, question, answered)


class _Asking:
    def __init__(self, owner: Any, question: Question, answered: Callable[[Answer | None], None]) -> None:
        self._answered = answered
        self._done = threading.Event()
        try:
            self._reference = owner.canceled.remote(encode(question))
            self._reference._on_completed(self._completed)
        except Exception as error:
            _log_broken(error)
            self._completed(None)

    def _completed(self, value: object) -> None:
        """Called by a thread of Ray, with bytes or with an exception."""
        try:
            self._answered(decode_answer(value) if isinstance(value, bytes) else None)
        finally:
            self._done.set()

    def wait(self, timeout: float) -> None:
        self._done.wait(timeout)


def _log_broken(error: BaseException) -> None:
    logger.warning("a word to the owner of attempts was lost: %r", error, exc_info=error)


@contextlib.contextmanager
def _sigint_ignored() -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.SIG_DFL if before is None else before)


worker_process = WorkerProcess()
"""The one piece of state of this module: a worker process has one life and one main thread."""
