"""A process that runs asynchronous handlers, hundreds at once in one event loop.

It is an actor of one owner and dies with it. A call of `run` hands over attempts and returns at once; results
go back in reports, as many together as have come up while the last report was on its way. A report with
results is repeated until the owner has taken it. Canceling is a call as well: the handler gets
CancelledError.

A handler that blocks the event loop stops all others in the process, their heartbeats and their cancellation.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import time
from collections.abc import Callable, Sequence
from typing import Any

import ray

from dex._runtime import served_by
from dex.registry import Registry
from dexray.attempts.reporter import SteadyTime
from dexray.attempts.runner import run_async
from dexray.cluster.attempt_messages import Beat, Finished, Handed, Lot, LotResult, Question, Report, decode_lot, encode
from dexray.cluster.code_store import CodeCache, why_not_loadable
from dexray.cluster.lot_run import BEAT_SECONDS, MOMENT
from dexray.cluster.outbox import GATHER_SECONDS, Backlog
from dexray.cluster.shared_values import FETCH_SECONDS, apart, buffers, given
from dexray.cluster.worker_task import finder, runner_failure, with_worker
from dexray.protocol.attempts import AttemptReturned, Heartbeat
from dexray.protocol.streams import StreamWrite

logger = logging.getLogger("dexray.cluster.async_worker")

_AGAIN_SECONDS = (0.1, 0.5, 1.0, 2.0, 5.0, 10.0)


class AsyncWorker:
    """The class of the actor. `worker` names the process for people, `node` for Ray."""

    def __init__(self) -> None:
        context = ray.get_runtime_context()
        self._worker = f"{socket.gethostname()}:{os.getpid()} (async worker)"
        self._node = context.get_node_id()
        self._code = CodeCache()
        self._channels: dict[int, Channel] = {}

    async def run(self, parcel: list[Any], data: bytes, shared: Sequence[Any] = ()) -> bytes:
        """Begins the attempts of a lot. Answers with the results of those that can't begin."""
        lot = decode_lot(data)
        if shared:
            ready = given(lot, await asyncio.gather(*(_fetched(one) for one in shared)))
            if not isinstance(ready, Lot):
                return encode(LotResult(ready))
            lot = ready
        deployment_id = lot.handed[0].task.deployment_id
        try:
            known = self._code.known(deployment_id, lot.life)
            if known is None:
                content = await parcel[0]
                known = await asyncio.to_thread(self._code.load, content, deployment_id, lot.life)
        except Exception as error:
            returned = AttemptReturned(reason=why_not_loadable(error, deployment_id))
            return encode(LotResult(tuple(Finished(handed.token, returned, declined=True) for handed in lot.handed)))
        registry, owner = known
        channel = self._channels.get(lot.life)
        if channel is None:
            channel = self._channels[lot.life] = Channel(owner, lot.life, self._worker, self._node)
        with served_by(finder(lot.namespace)):  # the tasks that begin here take it along
            channel.begin(lot.handed, registry)
        return encode(LotResult(()))

    async def cancel(self, life: int, tokens: list[int]) -> None:
        channel = self._channels.get(life)
        if channel is not None:
            channel.cancel(tokens)

    async def ready(self) -> bool:
        """Answers when the process is up, before any handler can block it."""
        return True

    async def stay(self) -> None:
        """Never returns: the call fails when the process ends, and so its owner hears of it."""
        await asyncio.Event().wait()


async def _fetched(reference: Any) -> Any:
    """What a reference leads to, or the error that stands for it."""
    try:
        return await asyncio.wait_for(reference, FETCH_SECONDS)
    except (ray.exceptions.RayError, TimeoutError) as error:
        return error


class Channel:
    """The running attempts of one owner, and what it has to hear of them."""

    def __init__(self, owner: Any, life: int, worker: str, node: str) -> None:
        self._owner = owner
        self._life = life
        self._worker = worker
        self._node = node
        self._running: dict[int, _Running] = {}
        self._finished: list[Finished] = []
        self._beats: dict[int, Heartbeat | None] = {}
        self._beats_due = False
        self._messages = Backlog()
        self._messages_due = False
        self._gathering: asyncio.TimerHandle | None = None
        self._delivery: asyncio.Task[None] | None = None

    def begin(self, handed: tuple[Handed, ...], registry: Registry) -> None:
        loop = asyncio.get_running_loop()
        for one in handed:
            running = _Running(self, one)
            self._running[one.token] = running
            running.task = loop.create_task(self._run(running, registry))
        tokens = tuple(one.token for one in handed)
        loop.call_later(MOMENT, self._tell_running, tokens)

    def cancel(self, tokens: list[int]) -> None:
        for token in tokens:
            running = self._running.get(token)
            if running is not None:
                running.canceled = True
                if running.handler is not None and running.interrupts():
                    running.handler.cancel()

    async def _run(self, running: _Running, registry: Registry) -> None:
        task, token = running.handed.task, running.handed.token
        began = time.monotonic()
        # Only from here on may it be canceled: asyncio drops a task that is canceled before its first step.
        running.handler = running.task
        try:
            if running.canceled and running.handler is not None and running.interrupts():
                running.handler.cancel()
            result = await run_async(task, registry, running)
        except BaseException as error:  # a fault of the runner: data all the same
            result = runner_failure(task, error)
        del self._running[token]
        self._beats.pop(token, None)
        self._finished.append(
            Finished(
                token,
                with_worker(task, result, self._worker),
                time.monotonic() - began,
                declined=isinstance(result, AttemptReturned),
            )
        )
        self._deliver()

    def beat(self, token: int, heartbeat: Heartbeat | None) -> None:
        if heartbeat is not None or token not in self._beats:
            self._beats[token] = heartbeat
        if not self._beats_due:
            self._beats_due = True
            asyncio.get_running_loop().call_later(BEAT_SECONDS, self._beats_are_due)
            self._deliver()

    def _beats_are_due(self) -> None:
        self._beats_due = False
        if self._beats:
            self._deliver()

    def stream(self, message: StreamWrite) -> None:
        """The first message goes at once, and the next ones together a moment later."""
        self._messages.add(message)
        if self._gathering is None:
            self._messages_are_due()

    def _messages_are_due(self) -> None:
        self._gathering = None
        if self._messages:
            self._gathering = asyncio.get_running_loop().call_later(GATHER_SECONDS, self._messages_are_due)
            self._messages_due = True
            self._deliver()

    def _tell_running(self, tokens: tuple[int, ...]) -> None:
        begun = tuple(token for token in tokens if token in self._running)
        if begun:
            self._owner.canceled.remote(encode(Question(self._life, self._worker, self._node, begun=begun)))

    def _deliver(self) -> None:
        if self._delivery is None:
            self._delivery = asyncio.get_running_loop().create_task(self._deliver_all())

    async def _deliver_all(self) -> None:
        try:
            while self._finished or self._beats or self._messages_due:
                finished, self._finished = tuple(self._finished), []
                beats = tuple(Beat(token, heartbeat) for token, heartbeat in self._beats.items())
                self._beats.clear()
                messages, self._messages_due = self._messages.take(), False
                await self._send(Report(self._life, self._worker, finished, beats, messages))
        finally:
            self._delivery = None

    async def _send(self, report: Report) -> None:
        lighter, values = apart(report)
        arguments: list[Any] = [encode(lighter)]
        if values:
            shared = ray.put([None, *buffers(values)])
            arguments += [[shared], shared]  # the reference to keep, and what it leads to
        for pause in _AGAIN_SECONDS:
            try:
                await self._owner.report.remote(*arguments)
            except ray.exceptions.RayError as error:
                logger.warning("the owner of attempts can't be reached (%s); it is told again in %g s", error, pause)
                await asyncio.sleep(pause)
            else:
                return
        logger.error("the owner of attempts can't be reached: results of asynchronous attempts were lost")


class _Running:
    """One running attempt, and its Reporter."""

    __slots__ = ("_channel", "_interrupted", "canceled", "handed", "handler", "now", "task")

    def __init__(self, channel: Channel, handed: Handed) -> None:
        self._channel = channel
        self.handed = handed
        self.task: asyncio.Task[None] | None = None  # kept: the event loop holds its tasks weakly
        self.handler: asyncio.Task[None] | None = None  # the same, once it has begun
        self.canceled = False
        self.now: Callable[[], float] = SteadyTime()
        self._interrupted = False

    def interrupts(self) -> bool:
        is_first, self._interrupted = not self._interrupted, True
        return is_first

    def heartbeat(self, heartbeat: Heartbeat | None) -> None:
        self._channel.beat(self.handed.token, heartbeat)

    def stream(self, message: StreamWrite) -> None:
        self._channel.stream(message)
        self.heartbeat(None)

    def is_canceled(self) -> bool:
        return self.canceled
