"""Calls that the interface has and no service of this version serves yet.

They have their full signatures, so that code written for them type-checks, and check their arguments as they will, so
that a mistake is not hidden behind the refusal. What is right is refused with DexServiceError UNIMPLEMENTED, naming the
feature.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Final, TypeVar

from dex.client_calls import seconds_of, unimplemented
from dex.client_requests import RequestBuilder
from dex.names import check_flow_id
from dex.results import SearchFlowsPage
from dex.stream import Stream, StreamMessage, StreamMessagesPage

T = TypeVar("T")

LARGEST_PAGE: Final = 1000


class UnservedCalls:
    """The part of AsyncClient that is refused."""

    _requests: RequestBuilder

    async def write_stream(self, flow_id: str, stream: Stream[T], source: str, value: T) -> None:
        """Writes a message to a Stream in the name of `source`, a non-empty text."""
        if not source:
            raise ValueError(f"write_stream: the source of a message to Stream {stream.name!r} must not be empty")
        self._requests.check_stream("write_stream", stream, value)
        raise unimplemented("write_stream", check_flow_id(flow_id), "writing to Streams from clients")

    async def read_stream(
        self, flow_id: str, stream: Stream[T], resume_token: str = "", timeout: timedelta | None = None
    ) -> StreamMessage[T]:
        """The next message behind `resume_token`, "" for the oldest; waits for it up to `timeout`."""
        self._requests.check_stream("read_stream", stream)
        if timeout is not None:
            seconds_of("read_stream(timeout=…)", timeout)
        raise unimplemented("read_stream", check_flow_id(flow_id), "reading Streams")

    async def list_stream_messages(
        self, flow_id: str, stream: Stream[T], page_size: int, before_page_token: str = ""
    ) -> StreamMessagesPage[T]:
        """Messages of a Stream, newest first; page_size from 1 to 1,000."""
        self._requests.check_stream("list_stream_messages", stream)
        if not 1 <= page_size <= LARGEST_PAGE:
            raise ValueError(f"list_stream_messages: page_size must be from 1 to {LARGEST_PAGE}, got {page_size}")
        raise unimplemented("list_stream_messages", check_flow_id(flow_id), "listing Stream messages")

    async def search_flows(
        self,
        query: str,
        page_size: int,
        next_page_token: str = "",
        *,
        include_continued_as_new: bool = False,
    ) -> SearchFlowsPage:
        """Runs that a query finds. `list_flows` filters by status and type."""
        if page_size < 0:
            raise ValueError(f"search_flows: page_size must not be negative, got {page_size}")
        raise unimplemented("search_flows", "", "searching with a query")
