"""Group commit: all appends that are waiting go into one transaction, while the next batch collects.

Under load a batch is large; idle it is one record and the latency is one commit. Records of ASYNC methods may linger
for a moment to find company. When the database is away the batch is kept and tried again; whether an append that failed
half-way is there is read back first. A record that the database can't take at all must not spoil the others: then the
records of the batch go one by one, and the error is told to the one that it is about.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence
from functools import partial

from dexray.engine.clock import Blocking
from dexray.journal.interface import Append, Journal, JournalRefused, JournalUnavailable, Outcome

logger = logging.getLogger("dexray.engine.committer")

Fate = Outcome | Exception  # an exception: the database can't take this record, or `Closed`
Done = Callable[[Fate], None]


class Closed(Exception):
    """The committer was closed before the fate of the record was known."""


class GroupCommitter:
    """`unavailable` is the cause while the database is away, else None."""

    def __init__(
        self,
        journal: Journal,
        blocking: Blocking,
        *,
        linger: float = 0.02,
        max_batch: int = 2_000,
        first_retry: float = 0.05,
        last_retry: float = 2.0,
    ) -> None:
        self._journal = journal
        self._blocking = blocking
        self._linger = linger
        self._max_batch = max_batch
        self._first_retry = first_retry
        self._last_retry = last_retry
        self._waiting: list[tuple[Append, Done]] = []
        self._under_way: list[tuple[Append, Done]] = []
        self._wake = asyncio.Event()
        self._hurry = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._idle = asyncio.Event()
        self._idle.set()
        self.unavailable: JournalUnavailable | None = None
        self.commits = 0
        self.records = 0

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run(), name="dexray-committer")

    def submit(self, append: Append, done: Done, *, lazy: bool = False) -> None:
        """Queues a record. `done` is called in the event loop when its fate is known. A lazy one may wait up to
        `linger` for others."""
        self._waiting.append((append, done))
        self._idle.clear()
        if not lazy:
            self._hurry.set()
        self._wake.set()

    def hurry(self) -> None:
        """Lazy records wait no longer for company."""
        if self._waiting:
            self._hurry.set()

    async def drained(self) -> None:
        """Returns when nothing is queued or under way."""
        await self._idle.wait()

    async def close(self) -> None:
        """Stops at once; what is queued is dropped, as in a crash. Await `drained` first for an orderly end."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        batch = [*self._under_way, *self._waiting]
        self._under_way, self._waiting = [], []
        self._tell(batch, [Closed("the engine has stopped")] * len(batch))

    async def _run(self) -> None:
        while True:
            await self._wake.wait()
            if not self._hurry.is_set():
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._hurry.wait(), self._linger)
            batch = self._under_way = self._waiting[: self._max_batch]
            del self._waiting[: self._max_batch]
            if not self._waiting:
                self._wake.clear()
                self._hurry.clear()
            fates = await self._append([append for append, _ in batch])
            self.commits += 1
            self.records += len(batch)
            self._under_way = []
            self._tell(batch, fates)
            if not self._waiting:
                self._idle.set()

    def _tell(self, batch: Sequence[tuple[Append, Done]], fates: Sequence[Fate]) -> None:
        for (append, done), fate in zip(batch, fates, strict=True):
            try:
                done(fate)
            except Exception:
                logger.exception("run %s: what follows record %s failed", append.run_id, append.seq)

    async def _append(self, batch: list[Append]) -> list[Fate]:
        try:
            return [*await self._blocking(partial(self._journal.append, batch))]
        except (JournalUnavailable, JournalRefused) as error:
            return await self._append_until_known(batch, error)
        except Exception as error:
            return await self._one_by_one(batch, error)

    async def _one_by_one(self, batch: list[Append], error: Exception) -> list[Fate]:
        if len(batch) == 1:
            logger.error("record %s of run %s can't be written: %s", batch[0].seq, batch[0].run_id, error)
            return [error]
        logger.warning("a batch of %s records can't be written, they go one by one: %s", len(batch), error)
        return [(await self._append([append]))[0] for append in batch]

    async def _append_until_known(self, batch: list[Append], error: JournalUnavailable | JournalRefused) -> list[Fate]:
        """The outcome is unknown: reads back what is there, writes what is not, for as long as it takes."""
        logger.warning("the database is away, Flows pause: %s", error)
        known: dict[int, Fate] = {}
        left = list(range(len(batch)))
        delay = self._first_retry
        self._is_away(error)
        while left:
            await asyncio.sleep(delay)
            delay = min(delay * 2, self._last_retry)
            part = [batch[index] for index in left]
            try:
                found = await self._blocking(partial(self._journal.read_back, part))
                known.update(
                    {index: outcome for index, outcome in zip(left, found, strict=True) if outcome is not None}
                )
                left = [index for index in left if index not in known]
                if left:
                    part = [batch[index] for index in left]
                    outcomes = await self._blocking(partial(self._journal.append, part))
                    known.update(zip(left, outcomes, strict=True))
                    left = []
            except (JournalUnavailable, JournalRefused) as again:
                self._is_away(again)
            except Exception as spoiled:
                known.update(zip(left, await self._one_by_one([batch[index] for index in left], spoiled), strict=True))
                left = []
        self.unavailable = None
        logger.warning("the database is back, Flows go on")
        return [known[index] for index in range(len(batch))]

    def _is_away(self, error: JournalUnavailable | JournalRefused) -> None:
        """A database that can't be used as it is (damaged, read-only) is away as well, until somebody puts it right."""
        self.unavailable = error if isinstance(error, JournalUnavailable) else JournalUnavailable(str(error))
