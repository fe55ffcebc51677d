"""Which Flows are in memory, and how they come there and leave.

A Flow comes from the journal: its newest checkpoint and the records after it. Before a new owner loads an open Flow it raises the run's epoch, which fences
whoever had it before. A Flow that only waits may leave memory; what stays is its id with its epoch, and the time when it is due.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Protocol, TypeVar

from dexray.engine.live import LiveFlow
from dexray.journal.interface import NEVER, Journal, RunRow
from dexray.machine.events import decode_record
from dexray.machine.evolve import evolve
from dexray.machine.state import Flow, decode_checkpoint

logger = logging.getLogger("dexray.engine.residents")

T = TypeVar("T")


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
        self._now = now
        self._arrived = arrived
        self._wake_at = wake_at
        self._limit = limit
        self._width = width
        self._trim_above = limit * 5 // 4
        self._away: dict[
            str, tuple[str, int]
        ] = {}  # Flow ID -> (run id, epoch) of open Flows of ours that are not in memory
        self._loading: dict[str, asyncio.Future[LiveFlow | None]] = {}

    def is_away(self, flow_id: str) -> bool:
        return flow_id in self._away

    def add(self, live: LiveFlow) -> None:
        self.flows[live.flow_id] = live
        self._away.pop(live.flow_id, None)
        self._trim()

    async def load(self, flow_id: str) -> LiveFlow | None:
        """The Flow, from memory or from the journal; None when there is none. NotMine when another owner has it."""
        live = self.flows.get(flow_id)
        if live is not None:
            live.last_used = self._now()
            return live
        loading = self._loading.get(flow_id)
        if loading is not None:
            return await asyncio.shield(loading)
        loading = asyncio.get_running_loop().create_future()
        self._loading[flow_id] = loading
        try:
            live = await self._load(flow_id)
        except BaseException as error:
            loading.set_exception(error if isinstance(error, Exception) else RuntimeError("the load was given up"))
            loading.exception()  # whoever waits gets it; nobody waiting is no fault
            raise
        else:
            loading.set_result(live)
            return live
        finally:
            del self._loading[flow_id]

    async def _load(self, flow_id: str) -> LiveFlow | None:
        while True:
            row = await self._read(lambda: self._journal.current_run(flow_id))
            if row is None:
                return self.flows.get(flow_id)  # it may have been started here meanwhile
            if row.owner != self._owner:
                self._away.pop(flow_id, None)
                raise NotMine(row.owner)
            if self._away.get(flow_id) == (row.run_id, row.epoch):
                return await self._load_run(row, row.epoch)
            epochs = await self._read(partial(self._journal.claim, [row.run_id], self._owner))
            if row.run_id in epochs:
                return await self._load_run(row, epochs[row.run_id])

    async def _load_run(self, row: RunRow, epoch: int) -> LiveFlow:
        loaded = await self._read(lambda: self._journal.load(row.run_id))
        assert loaded is not None
        started_here = self.flows.get(row.flow_id)
        if started_here is not None:
            return started_here
        seq = loaded.checkpoint_seq
        flow = decode_checkpoint(loaded.checkpoint) if loaded.checkpoint is not None else Flow()
        for record in loaded.tail:
            for event in decode_record(record.body):
                evolve(flow, event, record.at)
            seq = record.seq
        live = LiveFlow(flow, epoch=epoch, seq=seq)
        live.records_since_checkpoint = len(loaded.tail)
        live.bytes_since_checkpoint = sum(len(record.body) for record in loaded.tail)
        live.stored_wake = row.next_wake
        live.last_used = self._now()
        self.add(live)
        self._arrived(live)
        return live

    async def recover(self) -> None:
        """Resumes the open Flows of this owner: those with work under way now, those that wait for a time when it comes."""
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

    async def resume(self, flow_ids: list[str]) -> None:
        """Loads Flows, so that they go on; at most `width` at a time. One that can't be loaded stops nobody."""
        gate = asyncio.Semaphore(self._width)
        await asyncio.gather(*(self._resume(flow_id, gate) for flow_id in flow_ids))

    async def _resume(self, flow_id: str, gate: asyncio.Semaphore) -> None:
        async with gate:
            try:
                await self.load(flow_id)
            except NotMine:
                logger.info("Flow %r is not ours any more", flow_id)
            except Exception:
                logger.exception("Flow %r can't be resumed; the others go on", flow_id)

    def _trim(self) -> None:
        """Lets Flows leave memory that only wait, the longest unused first, when there are too many."""
        if len(self.flows) <= self._trim_above:
            return
        idle = sorted((live for live in self.flows.values() if live.is_idle), key=lambda live: live.last_used)
        for live in idle[: max(0, len(self.flows) - self._limit)]:
            self.evict(live)
        self._trim_above = max(self._limit, len(self.flows)) * 5 // 4

    def evict(self, live: LiveFlow) -> None:
        """Leaves memory in good order. Only for a Flow that `is_idle`."""
        self.forget(live)
        if not live.flow.is_closed:
            self._away[live.flow_id] = (live.run_id, live.epoch)

    def forget(self, live: LiveFlow) -> None:
        live.lost = True
        if self.flows.get(live.flow_id) is live:
            del self.flows[live.flow_id]
