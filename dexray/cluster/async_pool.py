"""The async worker processes of one owner: started when they are needed, replaced when they die.

A worker here is one life of an actor (`max_restarts=0`): when it is gone, all its attempts have failed, and
the next attempt gets a new one. That is simpler than a restarting actor, of which one would have to know
which attempts its former life had.
"""

from __future__ import annotations

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
        self._actor_class: Any = None

    def prestart(self) -> None:
        while len(self._workers) < self._processes:
            self._start()

    def send(self, lot: SentLot, parcel: list[Any], data: bytes) -> Any:
        """Hands a lot to the process with the fewest attempts; the reference of the call."""
        self.prestart()
        worker = min(self._workers, key=lambda one: one.load)
        lot.worker = worker
        worker.lots.add(lot)
        return worker.handle.run.remote(parcel, data)

    def cancel(self, lot: SentLot, life: int, token: int) -> None:
        lot.worker.handle.cancel.remote(life, [token])

    def drop(self, worker: PoolWorker) -> None:
        """Forgets a worker that is gone or can't be reached, and makes sure of it."""
        if worker in self._workers:
            self._workers.remove(worker)
            ray.kill(worker.handle)

    def close(self) -> None:
        for worker in list(self._workers):
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
        self._call(worker.handle.stay.remote(), lambda error: self._gone(worker, error))

    def _gone(self, worker: PoolWorker, error: object) -> None:
        if worker in self._workers:
            logger.warning("an async worker process is gone: %s", error)
            self._lost(worker, error)
