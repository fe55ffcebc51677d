"""Calls about Streams. See `dex.stream` for what a Stream is.

The service gives more messages with the one that was asked for. They are kept here, in `ReadAhead`, until they are
asked for by the token of the message before them, so that who reads a Stream to its end asks once in a while only.
"""

from __future__ import annotations

from collections import OrderedDict
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any, Final, TypeVar

from msgspec.structs import replace

from dex.client_calls import ServiceCaller, seconds_of
from dex.client_requests import RequestBuilder
from dex.stream import Stream, StreamMessage, StreamMessagesPage
from dex.wire.service import ReadStream, StreamEntry

T = TypeVar("T")

LARGEST_PAGE: Final = 1000
READ_AHEAD: Final = 200

Place = tuple[str, str, str]  # Flow ID, Stream, token


class ReadAhead:
    """Messages that came before they were asked for; the oldest are forgotten when there are many."""

    def __init__(self, limit: int = 10 * READ_AHEAD) -> None:
        self._limit = limit
        self._entries: OrderedDict[Place, StreamEntry] = OrderedDict()

    def take(self, flow_id: str, stream: str, token: str) -> StreamEntry | None:
        return self._entries.pop((flow_id, stream, token), None)

    def keep(self, flow_id: str, stream: str, entries: tuple[StreamEntry, ...]) -> None:
        """`entries` follow each other; the first was asked for."""
        for before, entry in pairwise(entries):
            self._entries[flow_id, stream, before.token] = entry
        while len(self._entries) > self._limit:
            self._entries.popitem(last=False)


class StreamCalls:
    """The part of AsyncClient that writes and reads Streams."""

    _requests: RequestBuilder
    _caller: ServiceCaller
    _read_ahead: ReadAhead

    async def write_stream(self, flow_id: str, stream: Stream[T], source: str, value: T) -> None:
        """Writes a message to a Stream in the name of `source`, a non-empty text. The Flow need not exist.

            await client.write_stream("order-17", progress, "courier", "on its way")

        Returns when the message is stored. A write that fails as UNAVAILABLE may have stored it, and so may the repeats
        of this call: a message may come twice.
        Raises ValueError for an empty source, ValueMappingError for a value of another type or of more than 100 KiB
        when encoded, DexServiceError when the store fails.
        """
        await self._caller.call(self._requests.write_stream(flow_id, stream, source, value))

    async def read_stream(
        self, flow_id: str, stream: Stream[T], resume_token: str = "", timeout: timedelta | None = None
    ) -> StreamMessage[T]:
        """The next message behind `resume_token`, "" for the oldest that is kept; waits for it up to `timeout`.

            token = ""
            while True:
                message = await client.read_stream("order-17", progress, token, timedelta(minutes=5))
                token = message.resume_token

        When messages behind the token were trimmed it goes on with the oldest that is kept.
        Raises LongPollTimeoutError when no message comes, DexServiceError INVALID_ARGUMENT for a token that is not one
        of this Stream.
        """
        request = self._requests.read_stream(flow_id, stream, resume_token, READ_AHEAD)
        seconds = None if timeout is None else seconds_of("read_stream(timeout=…)", timeout)
        entry = self._read_ahead.take(flow_id, stream.name, resume_token)
        if entry is None:
            answer = await self._caller.poll(lambda left: _poll(request, left), seconds)
            self._read_ahead.keep(flow_id, stream.name, answer.messages)
            entry = answer.messages[0]
        return self._message(stream, entry)

    async def list_stream_messages(
        self, flow_id: str, stream: Stream[T], page_size: int, before_page_token: str = ""
    ) -> StreamMessagesPage[T]:
        """Messages of a Stream, newest first, that are older than `before_page_token`, "" for the newest.

        page_size: from 1 to 1,000, else ValueError. The page's `next_page_token` is "" when there are no older ones.
        """
        request = self._requests.list_stream_messages(flow_id, stream, page_size, before_page_token, LARGEST_PAGE)
        answer = await self._caller.call(request)
        messages = tuple(self._message(stream, entry) for entry in answer.messages)
        return StreamMessagesPage(messages, answer.next_page_token)

    def _message(self, stream: Stream[Any], entry: StreamEntry) -> StreamMessage[Any]:
        return StreamMessage(
            value=self._requests.stream_value(stream, entry),
            resume_token=entry.token,
            created_time=datetime.fromtimestamp(entry.created_at, UTC),
            source=entry.source,
        )


def _poll(request: ReadStream, seconds: float) -> ReadStream:
    return replace(request, timeout=seconds)
