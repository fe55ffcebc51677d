"""The async worker processes of one owner: started when they are needed, replaced when they die.

A worker here is one life of an actor (`max_restarts=0`): when it is gone, all its attempts have failed, and
the next attempt gets a new one. That is simpler than a restarting actor, of which one would have to know
which attempts its former life had.

A worker whose event loop is blocked by a handler is not killed, because others run in it; it only gets no more
attempts until it answers again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from dexray.cluster.async_worker import AsyncWorker
from dexray.cluster.handouts import SentLot

logger = logging.getLogger("dexray.cluster.async_pool")

_CONCURRENCY = 1000  # calls at once in an actor; `run` and `cancel` return at once, so this is never reached


class PoolWorker:
    """One async worker process. `is_up` once it has answered."""

    def __init__(self, handle: Any) -> None:
        self.handle = handle
        self.is_up = False
        self.lots: set[SentLot] = set()
        self.is_checked = False  # it was asked whether it is blocked, and has not answered
        self.references: dict[str, Any] = {}  # of calls under way: what Ray may answer has to be kept

    @property
    def load(self) -> int:
        return sum(len(lot.open) for lot in self.lots)


class AsyncPool:
    """`call(reference, done)` arranges that `done(value)` is called in the event loop when the reference is ready.
    `lost(worker, error)` hears of a worker that is gone."""

    def __init__(
        self,
        processes: int,
        call: Callable[[Any, Callable[[object], None]], None],
        lost: Callable[[PoolWorker, object], None],
    ) -> None:
        self._processes = processes
        self._call = call
        self._lost = lost
        self._workers: list[PoolWorker] = []
        self._aside: set[PoolWorker] = set()
        self._actor_class: Any = None

    def prestart(self) -> None:
        while len(self._workers) < self._processes:
            self._start()

    def send(self, lot: SentLot, parcel: list[Any], data: bytes, shared: list[Any]) -> Any:
        """Hands a lot to the process with the fewest attempts; the reference of the call."""
        self.prestart()
        worker = min(self._workers, key=lambda one: one.load)
        lot.worker = worker
        worker.lots.add(lot)
        return worker.handle.run.remote(parcel, data, shared)

    def cancel(self, lot: SentLot, life: int, token: int) -> None:
        lot.worker.handle.cancel.remote(life, [token])

    def drop(self, worker: PoolWorker) -> None:
        """Forgets a worker that is gone or can't be reached, and makes sure of it."""
        if self._forget(worker):
            ray.kill(worker.handle)

    def _forget(self, worker: PoolWorker) -> bool:
        known = worker in self._workers or worker in self._aside
        if worker in self._workers:
            self._workers.remove(worker)
        self._aside.discard(worker)
        return known

    def close(self) -> None:
        for worker in [*self._workers, *self._aside]:
            self.drop(worker)

    def _start(self) -> None:
        if self._actor_class is None:
            here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=True)
            self._actor_class = ray.remote(AsyncWorker).options(
                num_cpus=0,
                max_restarts=0,
                max_task_retries=0,
                max_concurrency=_CONCURRENCY,
                scheduling_strategy=here,
            )
        worker = PoolWorker(self._actor_class.remote())
        self._workers.append(worker)
        self._ask(worker)
        worker.references["stay"] = worker.handle.stay.remote()
        self._call(worker.references["stay"], lambda error: self._gone(worker, error))

    def check(self, worker: PoolWorker, loop: asyncio.AbstractEventLoop, patience: float) -> None:
        """Sets a worker aside that does not answer within `patience` seconds, until it does."""
        if worker in self._workers and not worker.is_checked:
            worker.is_checked = True
            self._ask(worker)
            loop.call_later(patience, self._set_aside, worker)

    def _set_aside(self, worker: PoolWorker) -> None:
        if worker.is_checked and worker in self._workers:
            logger.warning(
                "an async worker process is blocked by a handler that does not await: it gets no more attempts"
            )
            self._workers.remove(worker)
            self._aside.add(worker)

    def _ask(self, worker: PoolWorker) -> None:
        worker.references["ready"] = worker.handle.ready.remote()
        self._call(worker.references["ready"], lambda answer: self._ready(worker, answer))

    def _ready(self, worker: PoolWorker, answer: object) -> None:
        if answer is not True:
            return
        worker.is_up, worker.is_checked = True, False
        if worker in self._aside:
            self._aside.discard(worker)
            self._workers.append(worker)

    def _gone(self, worker: PoolWorker, error: object) -> None:
        if worker in self._workers or worker in self._aside:
            logger.warning("an async worker process is gone: %s", error)
            self._lost(worker, error)
