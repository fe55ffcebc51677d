"""Which Flows are in memory, and how they come there and leave.

A Flow comes from the journal: its newest checkpoint and the records after it. Before a new owner loads an open Flow it
raises the run's epoch, which fences whoever had it before. A Flow that only waits may leave memory; what stays is its
id with its epoch, and the time when it is due.

Loads (`loading`) are the host's and not of those who ask: several may ask for one Flow, each with a patience of its
own.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Protocol, TypeVar

from dexray.engine.live import LiveFlow
from dexray.engine.loading import Loader, Loading
from dexray.journal.interface import NEVER, Journal, LoadedRun, RunRow
from dexray.machine.events import decode_record
from dexray.machine.evolve import evolve
from dexray.machine.state import Flow, FlowState, decode_checkpoint

logger = logging.getLogger("dexray.engine.residents")

T = TypeVar("T")

TRIM_AGAIN = 5.0  # seconds
PAGE = 500  # rows of open runs that are read at a time
MOST_COMING = 20_000  # Flows that stand in the queue of loads, before more pages are read
_UNCLAIMED = ("", 0)


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
        crowded: Callable[[], bool],
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
        self._trim_above = limit * 5 // 4
        # Flow ID -> (run id, epoch) of open Flows of ours that are not in memory
        self._away: dict[str, tuple[str, int]] = {}
        self._loader = Loader(
            owner=owner,
            journal=journal,
            read=read,
            spawn=spawn,
            here=self.flows.get,
            epoch_of=self._epoch_of,
            not_mine=self._not_mine,
            take=self._take,
            crowded=crowded,
            width=width,
        )
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
        self._loader.close()
        if self._trim_later is not None:
            self._trim_later.cancel()

    def loading(self, flow_id: str) -> Loading:
        """A load of the Flow: done with the Flow, with None when there is none, or with NotMine when another owner has
        it. By the time a waiter looks, the Flow may have left again if it was not `wanted`."""
        return self._loader.ask(flow_id)

    async def loaded(self, flow_id: str) -> None:
        """Returns when no load of the Flow is under way, that began before now."""
        future = self._loader.find(flow_id)
        if future is not None:
            await asyncio.wait((future,))

    def room(self) -> None:
        """Steps were handed out: there may be room for more Flows."""
        self._loader.look()

    def _epoch_of(self, row: RunRow) -> int | None:
        return row.epoch if self._away.get(row.flow_id) == (row.run_id, row.epoch) else None

    def _not_mine(self, flow_id: str) -> None:
        self._away.pop(flow_id, None)

    def _take(self, loaded: LoadedRun, epoch: int) -> LiveFlow:
        live = revive(loaded, epoch)
        live.stored_wake = loaded.row.next_wake  # as it is since the claim: nobody else has changed it after that
        live.last_used = self._now()
        self.add(live)
        self._arrived(live)
        return live

    async def recover(self) -> None:
        """Resumes the open Flows of this owner: those with work under way now, those that wait for a time when it
        comes. Returns when the former are there."""
        after = ""
        coming: list[Loading] = []
        while True:
            rows = await self._read(partial(self._journal.open_runs, self._owner, after, PAGE))
            if not rows or len(coming) >= MOST_COMING:
                await _all_done(coming)
                coming.clear()
            if not rows:
                return
            for row in rows:
                after = max(after, row.run_id)
                if row.flow_id in self.flows:
                    continue
                if row.next_wake <= self._now():
                    coming.append(self._loader.due(row.flow_id))
                else:
                    self._away.setdefault(row.flow_id, _UNCLAIMED)
                    if row.next_wake < NEVER:
                        self._wake_at(row.next_wake, row.flow_id)

    async def sweep(self) -> None:
        """Resumes open Flows of this owner that are due and that it has not, whoever began them."""
        after = ""
        while True:
            rows = await self._read(partial(self._journal.open_runs, self._owner, after, PAGE, self._now()))
            if not rows:
                return
            after = rows[-1].run_id
            for row in rows:
                here = self.flows.get(row.flow_id)
                if here is not None and here.run_id != row.run_id and here.durable_closed:
                    self.forget(here)  # another life of ours has begun a new run of it
            await self.resume(row.flow_id for row in rows)

    async def resume(self, flow_ids: Iterable[str]) -> None:
        """Loads Flows, so that they go on. One that can't be loaded stops nobody."""
        await _all_done([self._loader.due(flow_id) for flow_id in flow_ids if flow_id not in self.flows])

    def resume_soon(self, flow_id: str) -> None:
        """The same of one Flow, for who does not wait for it."""
        if flow_id not in self.flows:
            self._loader.due(flow_id)

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


async def _all_done(loads: Sequence[Loading]) -> None:
    if loads:
        await asyncio.wait(loads)


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
