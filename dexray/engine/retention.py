"""The end of closed runs: on demand, or when the time is over for which they are kept.

The journal removes a run in one step, after which nobody finds it, and clears away what it has left in small ones
(`dexray.journal.removal`). Here is decided which runs may go:

- Only closed ones. The journal looks again, in the transaction that removes.
- No SubFlow whose parent still waits for it. A parent that does not find its child starts it again, so the end of a
  child has to be in the parent's journal before the child goes. What the parent has in memory does not count.

One owner of an engine removes what has outlived the retention, whoever owns it. Another owner may have such a run in
memory; it knows when the time was over, and looks into the journal from then on before it speaks of the run.

Everything is done in small pieces, aside from the owner's own calls of the journal.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from functools import partial
from typing import TYPE_CHECKING

from dex.wire import service as s
from dex.wire.service import ServiceError
from dexray.engine.clock import time_passed
from dexray.engine.live import LiveFlow
from dexray.engine.residents import revive
from dexray.journal.interface import Journal, RunRow
from dexray.protocol.subflows import parent_of

if TYPE_CHECKING:
    from dexray.engine.host import FlowHost

logger = logging.getLogger("dexray.engine.retention")

PAGE = 200  # runs, or blobs, that are looked at together
RECORDS_AT_ONCE = 500
ORPHANS_EVERY = 24 * 3600.0
PAUSE = 0.002  # seconds between two pieces
SHORTEST_WAIT = 1.0
LONGEST_WAIT = 600.0  # seconds between two looks for runs whose time is over


def may_be_gone(host: FlowHost, live: LiveFlow) -> bool:
    """Another owner may have removed this closed run: the journal knows."""
    keep = host.settings.retention
    over = keep > 0 and live.durable_closed and live.flow.state.closed_at + keep <= host.clock.now()
    return over and live.is_idle


class Retention:
    """Removes runs in the background. `run` is the life of the one that an engine has; `clean` serves all."""

    def __init__(self, host: FlowHost) -> None:
        self._host = host
        self._cleaning: asyncio.Task[None] | None = None
        self._clean_again = False
        self._orphans_after = 0.0

    async def run(self) -> None:
        """Also picks up what a former owner has not brought to its end."""
        self.clean()
        keep = self._host.settings.retention
        while keep > 0:
            try:
                if await self.sweep():
                    self.clean()
            except Exception:
                logger.exception("a look for runs whose time is over failed; there will be another one")
            await asyncio.sleep(min(max(keep / 10, SHORTEST_WAIT), LONGEST_WAIT))

    async def sweep(self) -> int:
        """Removes all runs whose time is over now; how many they were."""
        host, removed = self._host, 0
        before = host.clock.now() - host.settings.retention
        after = (0.0, "")
        while True:
            page = await host.questions.do(partial(_closed_runs, before, after))
            for row in page:
                assert row.closed_at is not None
                after = (row.closed_at, row.run_id)
                if not await waiting_parent(host, row):
                    removed += await remove(host, row)
                    await asyncio.sleep(PAUSE)
            if len(page) < PAGE:
                return removed

    def clean(self) -> None:
        """Clears away what removed runs have left, in the background."""
        self._clean_again = True
        if self._cleaning is None or self._cleaning.done():
            self._cleaning = self._host.spawn(self._clean())

    async def _clean(self) -> None:
        host = self._host
        while self._clean_again:
            self._clean_again = False
            more = True
            while more:
                more = await host.questions.do(lambda journal: journal.clear_removed(RECORDS_AT_ONCE))
                await asyncio.sleep(PAUSE)
            await self._free_blobs()

    async def _free_blobs(self) -> None:
        host, after, freed, more = self._host, "", 0, True
        while more:
            some, after = await host.questions.do(partial(_free_some, after))
            freed, more = freed + some, bool(after)
            await asyncio.sleep(PAUSE)
        if time_passed() >= self._orphans_after:
            self._orphans_after = time_passed() + ORPHANS_EVERY
            freed += await host.questions.do(lambda journal: journal.delete_orphans())
        if freed:
            logger.info("%d values that no run refers to were deleted", freed)

    async def cleaned(self) -> None:
        """Until nothing is being cleared away."""
        while self._cleaning is not None and not self._cleaning.done():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.shield(self._cleaning)


def _closed_runs(before: float, after: tuple[float, str], journal: Journal) -> list[RunRow]:
    return journal.closed_runs(before, after, PAGE)


def _free_some(after: str, journal: Journal) -> tuple[int, str]:
    return journal.free_blobs(after, PAGE)


async def remove(host: FlowHost, row: RunRow) -> bool:
    removed = await host.questions.do(lambda journal: journal.remove_run(row.run_id))
    await host.residents.loaded(row.flow_id)  # it may have read the run just before
    host.removed(row.flow_id, row.run_id)  # also when it was gone already
    return removed


async def waiting_parent(host: FlowHost, row: RunRow) -> str:
    """The Flow ID of the parent that this run is a SubFlow of, if the parent still waits for it; else ""."""
    journal = host.journal
    named = parent_of(row.request_id)
    parent = await host.read(partial(journal.find_run, named[0])) if named is not None else None
    if named is None or parent is None:
        return ""
    current = await host.read(partial(journal.current_run, parent.flow_id))  # that the parent was forked to, perhaps
    if current is None or current.closed_at is not None:
        return ""
    loaded = await host.read(partial(journal.load, current.run_id))
    if loaded is None:
        return ""
    live = revive(loaded, current.epoch)
    return parent.flow_id if live.problem or named[1] in live.flow.state.steps else ""


async def delete_flow(host: FlowHost, request: s.DeleteFlow) -> s.Done:
    from dexray.engine.requests import look_for, look_up, not_there, settled

    flow_id, run_id = request.flow_id, request.run_id
    live = await look_for(host, flow_id)
    if live is not None and not live.problem:
        await settled(host, live)
    runs = await look_up(host, partial(host.journal.runs_of, flow_id))
    wanted = [row for row in runs if row.run_id == run_id or not run_id]
    if not wanted:
        if not request.fresh:
            return s.Done()
        raise not_there(flow_id, run_id)
    for row in wanted:
        await _check_removable(host, row)
    for row in reversed(wanted):  # oldest first: the current one is current to the end
        await look_up(host, partial(host.journal.remove_run, row.run_id))
        await host.residents.loaded(flow_id)
        host.removed(flow_id, row.run_id)
    host.retention.clean()
    return s.Done()


async def _check_removable(host: FlowHost, row: RunRow) -> None:
    if row.closed_at is None:
        raise ServiceError(
            "FAILED_PRECONDITION",
            f"Flow {row.flow_id!r} can't be deleted: its run {row.run_id} is {row.status}. Stop it first (stop_flow, "
            "or `dexray flow stop`), or let it come to its end",
        )
    parent = await waiting_parent(host, row)
    if parent:
        raise ServiceError(
            "FAILED_PRECONDITION",
            f"Flow {row.flow_id!r} can't be deleted: it is a SubFlow of Flow {parent!r}, which still waits for it and "
            "would start it again. Delete it when the parent has gone on, or stop the parent first",
        )
