"""Attribute stores, as the engine sees to them: rows of users' own tables that are behind are brought up to date.

What is promised: when the trouble is over, every row is what the last record of its Flow ID made of its Attributes. A
Flow never waits for it, and never fails of it.

1. **Nothing is lost.** A record that leaves a row behind marks it, in the same transaction (`dexray.engine.marking`).
   The mark is cleared when the row is written, and not before; a crash between the two sends it again.
2. **What is later is never overwritten by what is earlier.** The mark of a row has the image of the last durable record
   that marked it, because records are fenced. A sender locks the row in its own database (`dexray.stores`), then reads
   the mark, then writes the image and commits, which lets go of the lock. So for any two senders of a row, one has
   committed before the other has read: what the other read is as late or later. An owner that was replaced and does not
   know it may still send, and does no harm: it sends what the mark says, or finds none.
3. **Whoever finds a mark may send it.** The owner whose record it was begins at once, when the record is durable. An
   owner that starts, or is given Flows of another one, looks for all marks that are left.
4. **A Flow without it pays nothing.** Nothing is looked for, no task and no thread exist until something is behind.

One sender for each store. What goes wrong:

    the store, or the journal, is away      all rows wait: 0.1 s, twice as long each time, at most 30 s; for an hour.
                                            After that the sender rests until something is marked again
    it does not take a batch                its rows go one by one
    it does not take a row                  that row waits in the same way; the others go on
    a store is named that nobody set up     its marks stay until somebody has

Marks that are left by a sender at rest, or by a row that was given up, are sent with the next change of the row, or
when an engine starts.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from dex.values import reference_of
from dex.wire.service import StoreDescription
from dex.wire.specs import FlowSpec
from dexray.engine.clock import Blocking
from dexray.engine.live import LiveFlow
from dexray.engine.marking import decode_image, stores_of
from dexray.journal.interface import Append, JournalRefused, JournalUnavailable, StoredMark
from dexray.settings import AttributeStore, unknown_store
from dexray.stores import Image, RowsRefused, StoreAway, StoreTable

if TYPE_CHECKING:
    from dexray.engine.host import FlowHost

logger = logging.getLogger("dexray.engine.stores")

T = TypeVar("T")

FIRST_DELAY, LONGEST_DELAY, RETRIED_FOR = 0.1, 30.0, 3600.0
BATCH = 100
ATTEMPT_SECONDS = 30.0
PAGE = 1_000
SINGLES = 10  # rows that were refused and go alone, before others have a turn
DRAIN_SECONDS = 5.0  # how long an orderly end waits for a store that works


@dataclass(slots=True)
class _Refused:
    """A row that the store did not take."""

    behind_since: float
    failing_since: float
    delay: float
    again_at: float
    why: str


class StoreDesk:
    """All stores of one owner."""

    def __init__(
        self,
        host: FlowHost,
        thread: Callable[[str], Blocking],
        open_store: Callable[[AttributeStore], StoreTable],
    ) -> None:
        self._host = host
        self._thread = thread
        self._open = open_store
        self._senders = {store.name: Sender(host, store, self._begin) for store in host.settings.attribute_stores}
        self._unknown: set[str] = set()

    def end(self) -> None:
        """Nothing more is sent."""
        for sender in self._senders.values():
            sender.ended = True

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._senders)

    def _begin(self, store: AttributeStore) -> tuple[StoreTable, Blocking]:
        return self._open(store), self._thread(store.name)

    def marked(self, append: Append) -> None:
        """A record with marks is durable."""
        for mark in append.marks:
            sender = self._senders.get(mark.store)
            if sender is not None:
                sender.behind(mark.flow_id, append.at)
            elif mark.store not in self._unknown:
                self._unknown.add(mark.store)
                known = unknown_store(mark.store, self._senders)
                logger.warning("Flow %r: %s. Its rows are sent when there is one", mark.flow_id, known)

    def recover(self) -> None:
        """Looks, in the background, for what is left by others or by a former life."""
        for sender in self._senders.values():
            self._host.spawn(sender.recover())

    async def drained(self) -> None:
        """Returns when all rows are up to date, as far as stores work; marks outlive the engine anyway."""
        working = [sender for sender in self._senders.values() if sender.task is not None and not sender.problem]
        if working:
            waits = {asyncio.ensure_future(sender.up_to_date.wait()) for sender in working}
            _, left = await asyncio.wait(waits, timeout=DRAIN_SECONDS)
            for wait in left:
                wait.cancel()

    async def close(self) -> None:
        for sender in self._senders.values():
            await sender.close()

    def described(self, live: LiveFlow, spec: FlowSpec | None) -> tuple[StoreDescription, ...]:
        """How the stores of a Flow stand with it."""
        if spec is None or not spec.synced:
            return ()
        return tuple(self._described(name, live.flow_id) for name in stores_of(live, self._host.settings))

    def _described(self, name: str, flow_id: str) -> StoreDescription:
        sender = self._senders.get(name)
        if sender is None:
            return StoreDescription(name=name, problem=unknown_store(name, self._senders))
        return sender.described(flow_id)


class Sender:
    """Brings the rows of one store up to date. `problem` is what keeps the whole store from it, "" for nothing."""

    def __init__(
        self,
        host: FlowHost,
        store: AttributeStore,
        begin: Callable[[AttributeStore], tuple[StoreTable, Blocking]],
    ) -> None:
        self._host = host
        self._store = store
        self._begin = begin
        self._opened: tuple[StoreTable, Blocking] | None = None
        self._waiting: dict[str, float] = {}  # Flow IDs, with the time since when their rows are behind
        self._sending: dict[str, float] = {}
        self._refused: dict[str, _Refused] = {}
        self._news = asyncio.Event()
        self._failing_since: float | None = None
        self._delay = FIRST_DELAY
        self.problem = ""
        self.task: asyncio.Task[None] | None = None
        self.up_to_date = asyncio.Event()
        """All rows are sent, but for those that were refused."""
        self.ended = False

    def behind(self, flow_id: str, since: float) -> None:
        refused = self._refused.pop(flow_id, None)  # what it is to become is another thing now
        since = since if refused is None else refused.behind_since
        self._waiting.setdefault(flow_id, since)
        self._news.set()
        self.up_to_date.clear()
        if self.task is None and not self.ended:
            self.task = self._host.spawn(self._run())

    async def recover(self) -> None:
        after = ""
        while True:
            page = await self._host.read(partial(self._host.journal.list_marks, self._store.name, after, PAGE))
            for flow_id, since in page:
                after = flow_id
                if flow_id not in self._sending and flow_id not in self._refused:
                    self.behind(flow_id, since)
            if len(page) < PAGE:
                return

    def described(self, flow_id: str) -> StoreDescription:
        refused = self._refused.get(flow_id)
        if refused is not None:
            return StoreDescription(name=self._store.name, behind_since=refused.behind_since, problem=refused.why)
        since = self._sending.get(flow_id, self._waiting.get(flow_id))
        return StoreDescription(
            name=self._store.name, behind_since=since, problem=self.problem if since is not None else ""
        )

    async def close(self) -> None:
        if self._opened is not None:
            (table, blocking), self._opened = self._opened, None
            # Not for as long as a store that does not answer may take.
            closing = asyncio.ensure_future(blocking(table.close))
            await asyncio.wait({closing}, timeout=1.0)
            blocking.close()

    # Sending ----------------------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        try:
            while await self._something_to_send():
                try:
                    await self._send_some()
                    self._works()
                except _Away as away:
                    if not self._fails(str(away)):
                        return
                    await asyncio.sleep(self._delay)
                    self._delay = min(2 * self._delay, LONGEST_DELAY)
        finally:
            self.task = None

    async def _something_to_send(self) -> bool:
        """Waits until a row has its turn; False when none is behind."""
        while not self._waiting:
            self.up_to_date.set()
            if not self._refused:
                return False
            wait = min(refused.again_at for refused in self._refused.values()) - self._host.clock.now()
            if wait <= 0.0:
                return True
            self._news.clear()
            await _either(self._news, wait)
        return True

    async def _send_some(self) -> None:
        batch = list(self._waiting)[:BATCH]
        if batch:
            self._sending = {flow_id: self._waiting.pop(flow_id) for flow_id in batch}
            try:
                if len(batch) == 1 or not await self._sent_together(batch):
                    for flow_id in batch:
                        await self._send_alone(flow_id)
            finally:
                for flow_id, since in self._sending.items():
                    self._waiting[flow_id] = since
                self._sending = {}
        for flow_id in self._due():
            await self._send_alone(flow_id)

    def _due(self) -> list[str]:
        now = self._host.clock.now()
        due = sorted((refused.again_at, flow_id) for flow_id, refused in self._refused.items())
        return [flow_id for again_at, flow_id in due if again_at <= now][:SINGLES]

    async def _sent_together(self, batch: Sequence[str]) -> bool:
        """False when the store does not take the batch because of one of its rows."""
        try:
            await self._send(batch)
        except RowsRefused:
            return False
        return True

    async def _send(self, batch: Sequence[str]) -> None:
        try:
            await self._attempt(batch)
        except (StoreAway, JournalUnavailable, JournalRefused) as error:
            raise _Away(str(error)) from error
        except TimeoutError as error:
            raise _Away(f"it did not answer in {ATTEMPT_SECONDS:g} s") from error
        for flow_id in batch:
            self._sending.pop(flow_id, None)
            self._refused.pop(flow_id, None)

    async def _send_alone(self, flow_id: str) -> None:
        try:
            await self._send([flow_id])
        except RowsRefused as error:
            self._was_refused(flow_id, str(error))

    async def _attempt(self, batch: Sequence[str]) -> None:
        """One transaction of the store. The order of its steps is what rule 2 rests on."""
        if self._opened is None:
            self._opened = self._begin(self._store)
        table, blocking = self._opened
        try:
            await _in_time(blocking(partial(table.begin, batch)))
            marks = await self._journal(partial(self._host.journal.find_marks, self._store.name, batch))
            images = await self._images(marks)
            await _in_time(blocking(partial(table.write, images) if images else table.roll_back))
        except Exception:
            # Locks are let go of also when what was not in time succeeds after all.
            await asyncio.wait({asyncio.ensure_future(blocking(table.roll_back))}, timeout=1.0)
            raise
        await self._journal(partial(self._host.journal.clear_marks, marks))

    async def _images(self, marks: Sequence[StoredMark]) -> dict[str, Image]:
        """What the marks say, with the large values that they refer to."""
        images = {mark.flow_id: decode_image(mark.image) for mark in marks}
        wanted = {found for value in _payloads(images.values()) if (found := reference_of(value)) is not None}
        if not wanted:
            return images
        blobs = await self._journal(partial(self._host.journal.get_blobs, wanted))

        def whole(value: bytes) -> bytes:
            return blobs.get(reference_of(value) or "", value)

        return {
            flow_id: {
                name: whole(content)
                if isinstance(content, bytes)
                else None
                if content is None
                else {instance: whole(value) for instance, value in content.items()}
                for name, content in image.items()
            }
            for flow_id, image in images.items()
        }

    async def _journal(self, call: Callable[[], T]) -> T:
        return await _in_time(self._host.blocking(call))

    # Trouble ----------------------------------------------------------------------------------------------------------

    def _works(self) -> None:
        if self.problem:
            logger.warning("Attribute store %r is back", self._store.name)
        self._failing_since, self._delay, self.problem = None, FIRST_DELAY, ""

    def _fails(self, why: str) -> bool:
        """Whether to try again."""
        now = self._host.clock.now()
        if not self.problem:
            logger.warning("Attribute store %r is away, its rows wait: %s", self._store.name, why)
        self.problem = why
        if self._failing_since is None:
            self._failing_since = now
        if now - self._failing_since < RETRIED_FOR:
            return True
        logger.error(
            "Attribute store %r has been away for an hour, and is tried again when a row of it changes, or when an "
            "engine starts: %s",
            self._store.name,
            why,
        )
        self._failing_since = None  # whoever wakes the sender gets an hour of tries as well
        return False

    def _was_refused(self, flow_id: str, why: str) -> None:
        now = self._host.clock.now()
        refused = self._refused.get(flow_id)
        since = self._sending.pop(flow_id, now)
        if flow_id in self._waiting:  # it has changed meanwhile, and has another try at once
            self._waiting[flow_id] = min(since, self._waiting[flow_id])
            return
        if refused is None:
            logger.warning("Attribute store %r does not take the row of Flow %r: %s", self._store.name, flow_id, why)
            self._refused[flow_id] = _Refused(since, now, FIRST_DELAY, now + FIRST_DELAY, why)
            return
        if now - refused.failing_since >= RETRIED_FOR:
            del self._refused[flow_id]
            logger.error(
                "Attribute store %r has not taken the row of Flow %r for an hour, it is tried again when the row "
                "changes, or when an engine starts: %s",
                self._store.name,
                flow_id,
                why,
            )
            return
        refused.delay = min(2 * refused.delay, LONGEST_DELAY)
        refused.again_at, refused.why = now + refused.delay, why


class _Away(Exception):
    """The store, or the journal, does not work now."""


def _payloads(images: Iterable[Image]) -> Iterator[bytes]:
    for image in images:
        for content in image.values():
            if isinstance(content, bytes):
                yield content
            elif content is not None:
                yield from content.values()


async def _in_time(answer: Awaitable[T]) -> T:
    async with asyncio.timeout(ATTEMPT_SECONDS):
        return await answer


async def _either(news: asyncio.Event, seconds: float) -> None:
    """Returns when there are news, or when the time has passed."""
    try:
        async with asyncio.timeout(seconds):
            await news.wait()
    except TimeoutError:
        return
