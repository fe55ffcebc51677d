"""Which Flows are in memory, and how they come there and leave.

A Flow comes from the journal: its newest checkpoint and the records after it. Before a new owner loads an open Flow it
raises the run's epoch, which fences whoever had it before. A Flow that only waits may leave memory; what stays is its
id with its epoch, and the time when it is due.

Loads are tasks of the host and not of those who ask: several may ask for one Flow, each with a patience of its own.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Protocol, TypeVar

from dexray.engine.live import LiveFlow, Lost
from dexray.journal.interface import NEVER, Journal, LoadedRun, RunRow
from dexray.machine.events import decode_record
from dexray.machine.evolve import evolve
from dexray.machine.state import Flow, FlowState, decode_checkpoint

logger = logging.getLogger("dexray.engine.residents")

T = TypeVar("T")

TRIM_AGAIN = 5.0  # seconds


class NotMine(Exception):
    """The Flow belongs to another owner, named here."""

    def __init__(self, owner: str) -> None:
        super().__init__(f"the Flow is owned by {owner}")
        self.owner = owner


class Read(Protocol):
    def __call__(self, call: Callable[[], T], /) -> Awaitable[T]:
        """A blocking call of the journal that is repeated while the database is away."""
        ...


class Residents:
    """`arrived` is called with each Flow that was loaded, before anybody else sees it."""

    def __init__(
        self,
        *,
        owner: str,
        journal: Journal,
        read: Read,
        spawn: Callable[[Coroutine[Any, Any, None]], object],
        now: Callable[[], float],
        arrived: Callable[[LiveFlow], None],
        wake_at: Callable[[float, str], None],
        limit: int,
        width: int,
    ) -> None:
        self.flows: dict[str, LiveFlow] = {}
        self._owner = owner
        self._journal = journal
        self._read = read
        self._spawn = spawn
        self._now = now
        self._arrived = arrived
        self._wake_at = wake_at
        self._limit = limit
        self._width = width
        self._trim_above = limit * 5 // 4
        # Flow ID -> (run id, epoch) of open Flows of ours that are not in memory
        self._away: dict[str, tuple[str, int]] = {}
        self._loading: dict[str, asyncio.Future[LiveFlow | None]] = {}
        self._wanted: Counter[str] = Counter()  # Flow IDs that somebody is about to use: they stay
        self._trim_later: asyncio.TimerHandle | None = None

    def is_away(self, flow_id: str) -> bool:
        return flow_id in self._away

    def add(self, live: LiveFlow) -> None:
        self.flows[live.flow_id] = live
        self._away.pop(live.flow_id, None)
        self._trim(live)

    @contextmanager
    def wanted(self, flow_id: str) -> Iterator[None]:
        """While it is wanted, a Flow does not leave memory."""
        self._wanted[flow_id] += 1
        try:
            yield
        finally:
            self._wanted[flow_id] -= 1
            if not self._wanted[flow_id]:
                del self._wanted[flow_id]

    def close(self) -> None:
        if self._trim_later is not None:
            self._trim_later.cancel()

    def loading(self, flow_id: str) -> asyncio.Future[LiveFlow | None]:
        """A load of the Flow: done with the Flow, with None when there is none, or with NotMine when another owner has
        it. By the time a waiter looks, the Flow may have left again if it was not `wanted`."""
        future = self._loading.get(flow_id)
        if future is None:
            future = self._loading[flow_id] = asyncio.get_running_loop().create_future()
            self._spawn(self._load_for(flow_id, future))
        return future

    async def loaded(self, flow_id: str) -> None:
        """Returns when no load of the Flow is under way, that began before now."""
        future = self._loading.get(flow_id)
        if future is not None:
            await asyncio.wait((future,))

    async def _load_for(self, flow_id: str, future: asyncio.Future[LiveFlow | None]) -> None:
        try:
            future.set_result(await self._load(flow_id))
        except asyncio.CancelledError:
            future.set_exception(Lost("the engine has stopped"))
            raise
        except Exception as error:
            future.set_exception(error)
        finally:
            if future.done() and future.exception() is not None:  # whoever waits gets it; nobody waiting is no fault
                logger.debug("Flow %r was not loaded", flow_id, exc_info=future.exception())
            del self._loading[flow_id]

    async def _load(self, flow_id: str) -> LiveFlow | None:
        while True:
            row = await self._read(lambda: self._journal.current_run(flow_id))
            here = self.flows.get(flow_id)
            if row is None or here is not None:  # it may have been started here meanwhile: then it is not claimed again
                return here
            if row.owner != self._owner:
                self._away.pop(flow_id, None)
                raise NotMine(row.owner)
            epoch: int | None = row.epoch
            if self._away.get(flow_id) != (row.run_id, row.epoch):
                epoch = (await self._read(partial(self._journal.claim, [row.run_id], self._owner))).get(row.run_id)
            if epoch is not None and (live := await self._load_run(row, epoch)) is not None:
                return live

    async def _load_run(self, row: RunRow, epoch: int) -> LiveFlow | None:
        """None when the run was removed meanwhile."""
        loaded = await self._read(lambda: self._journal.load(row.run_id))
        if loaded is None:
            return None
        started_here = self.flows.get(row.flow_id)
        if started_here is not None:
            return started_here
        live = revive(loaded, epoch)
        live.stored_wake = row.next_wake
        live.last_used = self._now()
        self.add(live)
        self._arrived(live)
        return live

    async def recover(self) -> None:
        """Resumes the open Flows of this owner: those with work under way now, those that wait for a time when it
        comes."""
        after = ""
        while True:
            rows = await self._read(partial(self._journal.open_runs, self._owner, after, 500))
            if not rows:
                return
            due = []
            for row in rows:
                after = max(after, row.run_id)
                if row.flow_id in self.flows:
                    continue
                if row.next_wake <= self._now():
                    due.append(row.flow_id)
                else:
                    self._away.setdefault(row.flow_id, ("", 0))
                    if row.next_wake < NEVER:
                        self._wake_at(row.next_wake, row.flow_id)
            await self.resume(due)

    async def sweep(self) -> None:
        """Resumes open Flows of this owner that are due and that it has not, whoever began them."""
        after = ""
        while True:
            rows = await self._read(partial(self._journal.open_runs, self._owner, after, 500, self._now()))
            if not rows:
                return
            after = rows[-1].run_id
            for row in rows:
                here = self.flows.get(row.flow_id)
                if here is not None and here.run_id != row.run_id and here.durable_closed:
                    self.forget(here)  # another life of ours has begun a new run of it
            missing = [row.flow_id for row in rows if row.flow_id not in self.flows]
            if missing:
                await self.resume(missing)

    async def resume(self, flow_ids: list[str]) -> None:
        """Loads Flows, so that they go on; at most `width` at a time. One that can't be loaded stops nobody."""
        gate = asyncio.Semaphore(self._width)
        await asyncio.gather(*(self._resume(flow_id, gate) for flow_id in flow_ids))

    async def _resume(self, flow_id: str, gate: asyncio.Semaphore) -> None:
        async with gate:
            if flow_id in self.flows:
                return
            try:
                await asyncio.shield(self.loading(flow_id))
            except NotMine:
                logger.info("Flow %r is not ours any more", flow_id)
            except Lost as lost:
                logger.info("Flow %r is not resumed here: %s", flow_id, lost)
            except Exception:
                logger.exception("Flow %r can't be resumed; the others go on", flow_id)

    def _trim(self, newest: LiveFlow | None = None) -> None:
        """Lets Flows leave memory that only wait, the longest unused first, when there are too many. When too many are
        busy or wanted, it looks again a little later."""
        if len(self.flows) <= self._trim_above:
            return
        idle = [
            live
            for live in self.flows.values()
            if live is not newest and live.is_idle and live.flow_id not in self._wanted
        ]
        idle.sort(key=lambda live: live.last_used)
        for live in idle[: max(0, len(self.flows) - self._limit)]:
            self.evict(live)
        self._trim_above = max(self._limit, len(self.flows)) * 5 // 4
        if len(self.flows) > self._limit * 5 // 4 and self._trim_later is None:
            self._trim_later = asyncio.get_running_loop().call_later(TRIM_AGAIN, self._trim_again)

    def _trim_again(self) -> None:
        self._trim_later = None
        self._trim_above = self._limit * 5 // 4
        self._trim()

    def evict(self, live: LiveFlow) -> None:
        """Leaves memory in good order. Only for a Flow that `is_idle`."""
        self.forget(live)
        if not live.flow.is_closed:
            self._away[live.flow_id] = (live.run_id, live.epoch)

    def forget(self, live: LiveFlow) -> None:
        live.lost = True
        if self.flows.get(live.flow_id) is live:
            del self.flows[live.flow_id]


def revive(loaded: LoadedRun, epoch: int) -> LiveFlow:
    """The Flow that checkpoint and records add up to; one with a problem when they can't be read."""
    row, seq, problem = loaded.row, loaded.checkpoint_seq, ""
    try:
        flow = decode_checkpoint(loaded.checkpoint) if loaded.checkpoint is not None else Flow()
        for record in loaded.tail:
            for event in decode_record(record.body):
                evolve(flow, event, record.at)
            seq = record.seq
    except Exception as error:
        logger.exception(
            "Flow %r: the journal of its run %s can't be read after record %s", row.flow_id, row.run_id, seq
        )
        problem = f"the journal of run {row.run_id} can't be read after record {seq}: {type(error).__name__}: {error}"
        flow = Flow(
            FlowState(
                flow_id=row.flow_id,
                run_id=row.run_id,
                flow_type=row.flow_type,
                request_id=row.request_id,
                status=row.status,
                started_at=row.started_at,
                closed_at=row.closed_at or 0.0,
            )
        )
    live = LiveFlow(flow, epoch=epoch, seq=seq)
    live.problem = problem
    live.records_since_checkpoint = len(loaded.tail)
    live.bytes_since_checkpoint = sum(len(record.body) for record in loaded.tail)
    live.checkpoint_size = len(loaded.checkpoint or b"")
    return live
