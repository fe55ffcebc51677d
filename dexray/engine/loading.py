"""Flows that are wanted in memory come from the journal in lots.

One loader does all loads of an owner, one lot at a time: a look for the current runs, a claim of those whose epoch is
not known, and a read of their checkpoints and tails; so the database has as many statements for a lot as for one Flow.
There are two queues:

    queue      who stands in it                                       goes
    --------   ----------------------------------------------------   --------------------------------------------------
    asked      Flows that a request is about                          first
    due        Flows that have something to do: found when the owner  as fast as the owner has work for them: when many
               began, or their Timers fell due                        Steps wait for a slot, at most `PACE` a second

So an owner that finds ten thousand Flows to go on with, or has as many Timers that fall due at midnight, neither keeps
them all in memory at once when it can run a handful, nor keeps a client waiting meanwhile. It is a pace and not a stop:
what waits may wait for a resource that no node has, and is not to hold up the others, nor a Flow's timeout.

A Flow that can't be loaded stops nobody: when a lot fails, its Flows go one by one.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any

from dexray.engine.live import LiveFlow, Lost
from dexray.journal.interface import Journal, LoadedRun, RunRow

if TYPE_CHECKING:
    from dexray.engine.residents import Read

logger = logging.getLogger("dexray.engine.loading")

PACE = 500  # Flows a second that are loaded however many Steps wait for a slot

Loading = asyncio.Future[LiveFlow | None]


class NotMine(Exception):
    """The Flow belongs to another owner, named here."""

    def __init__(self, owner: str) -> None:
        super().__init__(f"the Flow is owned by {owner}")
        self.owner = owner


class Loader:
    """`here` finds a Flow in memory, `epoch_of` the epoch of a run that is ours already (None: it must be claimed).
    `take` makes a Flow of what was loaded. `crowded`: many Steps wait for a slot."""

    def __init__(
        self,
        *,
        owner: str,
        journal: Journal,
        read: Read,
        spawn: Callable[[Coroutine[Any, Any, None]], object],
        here: Callable[[str], LiveFlow | None],
        epoch_of: Callable[[RunRow], int | None],
        not_mine: Callable[[str], None],
        take: Callable[[LoadedRun, int], LiveFlow],
        crowded: Callable[[], bool],
        width: int,
    ) -> None:
        self._owner = owner
        self._journal = journal
        self._read = read
        self._spawn = spawn
        self._here = here
        self._epoch_of = epoch_of
        self._not_mine = not_mine
        self._take = take
        self._crowded = crowded
        self._width = width
        self._loads: dict[str, Loading] = {}
        self._asked: dict[str, None] = {}
        self._due: dict[str, None] = {}
        self._is_running = False
        self._closed = False
        self._stir: asyncio.Event | None = None  # while the loader waits for room

    def ask(self, flow_id: str) -> Loading:
        """A load of the Flow: done with the Flow, with None when there is none, or with NotMine when another owner has
        it."""
        future = self._loads.get(flow_id)
        if future is None:
            future = self._begin(flow_id)
            self._asked[flow_id] = None
        elif self._due.pop(flow_id, flow_id) is None:
            self._asked[flow_id] = None  # it was going to come: it comes sooner
        if self._stir is not None and self._asked:
            self._stir.set()
        return future

    def due(self, flow_id: str) -> Loading:
        """The same, for nobody in particular: what goes wrong is logged."""
        future = self._loads.get(flow_id)
        if future is None:
            future = self._begin(flow_id)
            future.add_done_callback(partial(_tell_log, flow_id))
            self._due[flow_id] = None
        return future

    def find(self, flow_id: str) -> Loading | None:
        """The load that is under way, if there is one."""
        return self._loads.get(flow_id)

    def look(self) -> None:
        """Steps were handed out: there may be room."""
        if self._stir is not None and not self._crowded():
            self._stir.set()

    def close(self) -> None:
        """What is queued is not loaded any more."""
        self._closed = True
        for flow_id in list(self._loads):
            self._fail(flow_id, Lost("the engine has stopped"))

    def _begin(self, flow_id: str) -> Loading:
        future: Loading = asyncio.get_running_loop().create_future()
        if self._closed:
            future.set_exception(Lost("the engine has stopped"))
            future.exception()
            return future
        self._loads[flow_id] = future
        if not self._is_running:
            self._is_running = True
            self._spawn(self._run())
        return future

    # Lots -------------------------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        try:
            while self._asked or self._due:
                if not self._asked and self._crowded():
                    await self._wait_for_room()
                lot = self._next_lot()
                if not await self._load(lot):
                    for flow_id in lot:
                        await self._load([flow_id])
        finally:
            self._is_running = False

    async def _wait_for_room(self) -> None:
        self._stir = asyncio.Event()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._stir.wait(), self._width / PACE)
        self._stir = None

    def _next_lot(self) -> list[str]:
        lot: list[str] = []
        for queue in (self._asked, self._due):
            while queue and len(lot) < self._width:
                flow_id = next(iter(queue))
                del queue[flow_id]
                lot.append(flow_id)
        return lot

    async def _load(self, lot: Iterable[str]) -> bool:
        """False when the lot as a whole has failed, and one of its Flows may be to blame."""
        left = [flow_id for flow_id in lot if flow_id in self._loads]
        try:
            while left:
                left = await self._look_and_load(left)
        except Exception as error:
            left = [flow_id for flow_id in left if flow_id in self._loads]
            if len(left) > 1 and not isinstance(error, Lost):
                logger.warning("%d Flows can't be loaded together, they go one by one: %s", len(left), error)
                return False
            for flow_id in left:
                self._fail(flow_id, error)
        return True

    async def _look_and_load(self, lot: list[str]) -> list[str]:
        """Those that changed hands between two looks are returned, to be looked for again."""
        found = await self._read(partial(self._journal.current_runs, lot))
        rows = {row.flow_id: row for row in found}
        epochs: dict[str, int] = {}
        unknown: list[str] = []
        wanted: list[RunRow] = []
        for flow_id in lot:
            row, here = rows.get(flow_id), self._here(flow_id)
            if row is None or here is not None:  # it may have been started here meanwhile: then it is not claimed again
                self._done(flow_id, here)
            elif row.owner != self._owner:
                self._not_mine(flow_id)
                self._fail(flow_id, NotMine(row.owner))
            else:
                wanted.append(row)
                epoch = self._epoch_of(row)
                if epoch is None:
                    unknown.append(row.run_id)
                else:
                    epochs[row.run_id] = epoch
        if unknown:
            epochs |= await self._read(partial(self._journal.claim, unknown, self._owner))
        loaded = await self._read(partial(self._journal.load_all, list(epochs))) if epochs else {}
        again: list[str] = []
        for row in wanted:
            here, run = self._here(row.flow_id), loaded.get(row.run_id)
            if here is not None:
                self._done(row.flow_id, here)
            elif run is None or not run.row.is_current:
                again.append(row.flow_id)
            else:
                self._done(row.flow_id, self._take(run, epochs[row.run_id]))
                await asyncio.sleep(0)  # the owner has other things to do as well
        return again

    def _done(self, flow_id: str, live: LiveFlow | None) -> None:
        future = self._loads.pop(flow_id, None)
        if future is not None and not future.done():
            future.set_result(live)

    def _fail(self, flow_id: str, error: Exception) -> None:
        future = self._loads.pop(flow_id, None)
        if future is not None and not future.done():
            future.set_exception(error)
            future.exception()  # whoever waits gets it; that nobody waits is no fault


def _tell_log(flow_id: str, future: Loading) -> None:
    error = None if future.cancelled() else future.exception()
    match error:
        case None:
            pass
        case NotMine():
            logger.info("Flow %r is not ours any more", flow_id)
        case Lost():
            logger.info("Flow %r is not resumed here: %s", flow_id, error)
        case _:
            logger.error("Flow %r can't be resumed; the others go on", flow_id, exc_info=error)
