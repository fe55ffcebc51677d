"""Messages of Streams: gathered and written by one task of the owner, and read by clients.

Streams are best effort and stand beside the journal of a Flow: no record tells of them, and nothing of a Flow waits for
them. A store that fails is tried again for a moment; then messages of Steps are dropped and counted, and a client's
write fails. What comes in while a batch is written goes with the next, `GATHER_SECONDS` later at most.

A Stream may be written by more than one owner (its Flow moved, or never existed), and it may be read at any. So a
reader that waits is woken by what is written here, and looks for what is written elsewhere every `LOOK_SECONDS`.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import contextlib
import logging
import struct
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from dex.stream import MESSAGE_LIMIT
from dex.wire import service as s
from dex.wire.service import ServiceError
from dexray.engine import requests
from dexray.engine.loading import NotMine
from dexray.journal.interface import JournalRefused, JournalUnavailable, NewMessage, StoredMessage
from dexray.protocol.streams import StreamWrite

if TYPE_CHECKING:
    from dexray.engine.host import FlowHost

logger = logging.getLogger("dexray.engine.streams")

GATHER_SECONDS = 0.03
LOOK_SECONDS = 1.0
LOG_SECONDS = 1.0
PLACE_SECONDS = 5.0
LARGEST_MEMORY = 10_000  # places
LARGEST_PAGE = 1000
LARGEST_READ = 256 * 1024  # bytes of payloads in one answer
SETTLE_SECONDS = 1.0  # how long a reader waits for what is on its way to the database
LARGEST_BATCH = 1_000
LARGEST_BACKLOG = 64 * 1024 * 1024  # bytes that wait here
OVERHEAD = 256  # bytes of a message beside its payload
AGAIN_SECONDS = (0.1, 0.4, 1.0)

Key = tuple[str, str]  # Flow ID and Stream


@dataclass(frozen=True, slots=True)
class _Waiting:
    message: NewMessage
    written: asyncio.Future[None] | None = None  # of a client; None for Steps


class StreamDesk:
    """The Streams of one owner. `failures` counts messages of Steps that were lost."""

    def __init__(self, host: FlowHost) -> None:
        self._host = host
        self._waiting: list[_Waiting] = []
        self._waiting_bytes = 0
        self._unwritten: Counter[Key] = Counter()
        self._readers: dict[Key, dict[asyncio.Future[None], None]] = {}
        self._placed: dict[str, float] = {}
        self._hurry = asyncio.Event()
        self._writer: asyncio.Task[None] | None = None
        self.failures = 0
        self._log_after = 0.0

    # Writing ----------------------------------------------------------------------------------------------------------

    def take(self, write: StreamWrite) -> None:
        """A message of a Step. Never fails: what can't be kept is counted."""
        if self._host.stopped:
            self._lose(1, "the engine has stopped")
        elif self._waiting_bytes > LARGEST_BACKLOG:
            self._lose(1, "they come faster than the database takes them")
        else:
            self._put(write, None)

    async def write(self, write: StreamWrite) -> None:
        """A message of a client: returns when it is in the database. Raises what the database says."""
        if self._waiting_bytes > LARGEST_BACKLOG:
            raise ServiceError("RESOURCE_EXHAUSTED", "more Stream messages wait than the database takes: try later")
        written: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._put(write, written)
        self._hurry.set()
        if not await requests.within(written, self._host.settings.outage_patience):
            raise ServiceError("UNAVAILABLE", "the database did not answer in time; the message may come yet")
        written.result()

    async def drained(self) -> None:
        """Returns when nothing waits to be written; in an outage, after as long as a call would wait."""
        if self._writer is not None:
            self._hurry.set()
            await asyncio.wait((self._writer,), timeout=self._host.settings.outage_patience)

    def _put(self, write: StreamWrite, written: asyncio.Future[None] | None) -> None:
        now = self._host.clock.now()
        message = NewMessage(write.flow_id, write.stream, now, write.source, write.payload, write.capacity)
        self._waiting.append(_Waiting(message, written))
        self._waiting_bytes += len(write.payload) + OVERHEAD
        self._unwritten[write.flow_id, write.stream] += 1
        if self._writer is None:
            self._writer = self._host.spawn(self._write_all())

    async def _write_all(self) -> None:
        batch: list[_Waiting] = []
        try:
            while self._waiting:
                self._hurry.clear()
                batch = self._waiting[:LARGEST_BATCH]
                del self._waiting[:LARGEST_BATCH]
                self._waiting_bytes -= sum(len(one.message.payload) + OVERHEAD for one in batch)
                await self._store(batch)
                self._tell(batch)
                if len(self._waiting) < LARGEST_BATCH:
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(self._hurry.wait(), GATHER_SECONDS)
        finally:
            self._writer = None
            stopped = ServiceError("UNAVAILABLE", "the engine has stopped; write again")
            for one in (*batch, *self._waiting):  # with an open fate only at the end of the owner
                _settle(one, stopped)

    async def _store(self, batch: Sequence[_Waiting]) -> None:
        messages = [one.message for one in batch]
        for pause in (*AGAIN_SECONDS, None):
            try:
                await self._host.blocking(partial(self._host.journal.append_messages, messages))
            except (JournalUnavailable, JournalRefused) as error:
                cause: Exception = error
                if pause is None:
                    break
                await asyncio.sleep(pause)
            except Exception as error:
                if len(batch) > 1:  # one that the database can't take must not spoil the others
                    for one in batch:
                        await self._store((one,))
                    return
                cause = error
                break
            else:
                for one in batch:
                    _settle(one, None)
                return
        for one in batch:
            _settle(one, _refusal(one.message, cause))
        lost = sum(1 for one in batch if one.written is None)
        if lost:
            self._lose(lost, str(cause))

    def _tell(self, batch: Sequence[_Waiting]) -> None:
        """Readers look again, whatever came of the batch."""
        self._unwritten -= Counter((one.message.flow_id, one.message.stream) for one in batch)
        for key in {(one.message.flow_id, one.message.stream) for one in batch}:
            for reader in self._readers.get(key, ()):
                if not reader.done():
                    reader.set_result(None)

    def _lose(self, count: int, why: str) -> None:
        self.failures += count
        now = asyncio.get_running_loop().time()
        if now >= self._log_after:
            self._log_after = now + LOG_SECONDS
            logger.warning("Stream messages of Steps were lost, %d by now: %s", self.failures, why)

    # Places -----------------------------------------------------------------------------------------------------------

    def was_placed(self, flow_id: str) -> bool:
        """Whether it was here a moment ago that the Streams of this Flow ID are served. To be wrong costs a delay."""
        return self._placed.get(flow_id, -PLACE_SECONDS) + PLACE_SECONDS > asyncio.get_running_loop().time()

    def place(self, flow_id: str) -> None:
        if len(self._placed) >= LARGEST_MEMORY:
            self._placed.clear()
        self._placed[flow_id] = asyncio.get_running_loop().time()

    # Reading ----------------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def listening(self, key: Key) -> Iterator[asyncio.Future[None]]:
        """A future that is done when something was written to the Stream here."""
        news: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._readers.setdefault(key, {})[news] = None
        try:
            yield news
        finally:
            readers = self._readers[key]
            readers.pop(news, None)
            if not readers:
                del self._readers[key]

    async def settled(self, key: Key) -> None:
        """Until what came here for the Stream by now is in the database, or given up; not for long."""
        for _ in range(2):  # the batch under way, and the next
            if key in self._unwritten:
                with self.listening(key) as news:
                    self._hurry.set()
                    await requests.within(news, SETTLE_SECONDS)


def _settle(one: _Waiting, error: ServiceError | None) -> None:
    """Tells a client what became of its message."""
    if one.written is None or one.written.done():
        return
    if error is None:
        one.written.set_result(None)
    else:
        one.written.set_exception(error)
        one.written.exception()  # whoever asked may have lost patience


def _refusal(message: NewMessage, cause: Exception) -> ServiceError:
    where = f"Stream {message.stream!r} of Flow {message.flow_id!r}"
    if isinstance(cause, JournalUnavailable):
        return ServiceError("UNAVAILABLE", f"{where} can't be written, the database is away: {cause}")
    return ServiceError("INTERNAL", f"{where} can't be written: {type(cause).__name__}: {cause}")


# The requests ---------------------------------------------------------------------------------------------------------


async def write_stream(host: FlowHost, request: s.WriteStream) -> s.Done:
    if not request.source:
        raise ServiceError("INVALID_ARGUMENT", "the source of a Stream message must not be empty")
    if len(request.value) > MESSAGE_LIMIT:
        raise ServiceError(
            "INVALID_ARGUMENT", f"a Stream message may have {MESSAGE_LIMIT} bytes, this one has {len(request.value)}"
        )
    if request.capacity <= 0:
        raise ServiceError("INVALID_ARGUMENT", f"a Stream can't keep {request.capacity} bytes")
    await _place(host, request.flow_id)
    await host.streams.write(
        StreamWrite(request.flow_id, request.stream, request.source, request.capacity, request.value)
    )
    return s.Done()


async def read_stream(host: FlowHost, request: s.ReadStream) -> s.StreamMessages:
    """A long poll. Whoever wants one message may be given the next ones with it."""
    key = request.flow_id, request.stream
    after = _seq_of(_RESUME, key, request.token) if request.token else 0
    limit = max(1, min(request.limit, LARGEST_PAGE))
    await _place(host, request.flow_id)
    loop = asyncio.get_running_loop()
    until = loop.time() + min(request.timeout, host.settings.longest_poll)
    await host.streams.settled(key)
    while True:
        with host.streams.listening(key) as news:  # before it looks: what is written meanwhile is not missed
            found = await requests.look_up(host, partial(host.journal.read_messages, *key, after, limit, LARGEST_READ))
            if found:
                return s.StreamMessages(messages=_entries(key, found))
            left = until - loop.time()
            if left <= 0:
                raise ServiceError(
                    "DEADLINE_EXCEEDED",
                    f"no message came to Stream {request.stream!r} of Flow {request.flow_id!r}",
                    "LONG_POLL_TIMEOUT",
                )
            await requests.within(news, min(left, LOOK_SECONDS))


async def list_messages(host: FlowHost, request: s.ListStreamMessages) -> s.StreamMessages:
    if not 1 <= request.page_size <= LARGEST_PAGE:
        raise ServiceError("INVALID_ARGUMENT", f"page_size {request.page_size}: from 1 to {LARGEST_PAGE}")
    key = request.flow_id, request.stream
    before = _seq_of(_PAGE, key, request.token) if request.token else 0
    await _place(host, request.flow_id)
    await host.streams.settled(key)
    found = await requests.look_up(host, partial(host.journal.list_messages, *key, before, request.page_size + 1))
    more = len(found) > request.page_size
    found = found[: request.page_size]
    return s.StreamMessages(
        messages=_entries(key, found), next_page_token=_token(_PAGE, key, found[-1].seq) if more else ""
    )


async def _place(host: FlowHost, flow_id: str) -> None:
    """The owner of an open Flow hears first of what its Steps write; for all others any owner will do."""
    if flow_id in host.flows or host.streams.was_placed(flow_id):
        return
    row = await requests.look_up(host, partial(host.journal.current_run, flow_id))
    if row is not None and row.owner != host.owner and row.closed_at is None:
        raise NotMine(row.owner)
    host.streams.place(flow_id)


def _entries(key: Key, found: Sequence[StoredMessage]) -> tuple[s.StreamEntry, ...]:
    return tuple(
        s.StreamEntry(
            value=message.payload,
            token=_token(_RESUME, key, message.seq),
            created_at=message.created_at,
            source=message.source,
        )
        for message in found
    )


# Tokens: opaque to clients, and of one Stream only --------------------------------------------------------------------

_RESUME, _PAGE = 1, 2
_TOKEN = struct.Struct(">BIQ")


def _token(kind: int, key: Key, seq: int) -> str:
    return base64.urlsafe_b64encode(_TOKEN.pack(kind, _sum_of(key), seq)).decode().rstrip("=")


def _seq_of(kind: int, key: Key, token: str) -> int:
    try:
        found, checksum, seq = _TOKEN.unpack(base64.urlsafe_b64decode(token + "=" * (-len(token) % 4)))
    except (binascii.Error, struct.error, ValueError):
        found, checksum, seq = 0, 0, 0
    if found != kind or checksum != _sum_of(key):
        what = "resume token" if kind == _RESUME else "page token"
        raise ServiceError(
            "INVALID_ARGUMENT", f'{token!r} is no {what} of Stream {key[1]!r} of Flow {key[0]!r}: begin with ""'
        )
    return int(seq)


def _sum_of(key: Key) -> int:
    return zlib.crc32("/".join(key).encode("utf-8", "surrogatepass"))
