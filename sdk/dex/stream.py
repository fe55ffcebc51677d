"""Streams: progress for people to watch while a Step runs, such as the words of an answer.

Messages are best effort and no part of any commit: they survive a failed attempt, and may repeat when it is tried
again. Writing one is also a heartbeat. Asynchronous handlers write directly, generator handlers yield the frame that
`write` returns; plain functions can't write.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final, Generic, TypeVar, overload

from dex._runtime import runtime_of
from dex.context import AsyncContext, Context
from dex.names import check_name
from dex.step import StepOutput

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

MESSAGE_LIMIT: Final = 100 * 1024
"""Bytes that one encoded message may have."""


@dataclass(frozen=True, slots=True)
class StreamMessage(Generic[T_co]):
    """A message of a Stream. source: who wrote it, `#<StepExecutionID>` for Steps. resume_token: reads on behind it."""

    value: T_co
    resume_token: str
    created_time: datetime
    source: str


@dataclass(frozen=True, slots=True)
class StreamMessagesPage(Generic[T_co]):
    """Messages, newest first; next_page_token "" is the end."""

    messages: tuple[StreamMessage[T_co], ...]
    next_page_token: str


@dataclass(frozen=True, slots=True, eq=False, init=False, weakref_slot=True)
class Stream(Generic[T]):
    """A Stream of values of one type, trimmed oldest first at about `stream_capacity_bytes`. One object belongs to
    one Flow.

    Raises ValueError for a wrong name or a capacity that is not positive.
    """

    name: str
    value_type: Any
    stream_capacity_bytes: int

    @overload
    def __init__(self, name: str, value_type: type[T], stream_capacity_bytes: int) -> None: ...

    @overload
    def __init__(self, name: str, value_type: object, stream_capacity_bytes: int) -> None: ...

    def __init__(self, name: str, value_type: object, stream_capacity_bytes: int) -> None:
        check_name("Stream", name)
        if type(stream_capacity_bytes) is not int:
            raise TypeError(f"Stream {name!r}: stream_capacity_bytes is an int, got {stream_capacity_bytes!r}")
        if stream_capacity_bytes <= 0:
            raise ValueError(f"Stream {name!r}: stream_capacity_bytes must be > 0, got {stream_capacity_bytes}")
        object.__setattr__(self, "name", name)
        object.__setattr__(self, "value_type", value_type)
        object.__setattr__(self, "stream_capacity_bytes", stream_capacity_bytes)

    @overload
    def write(self, context: AsyncContext, value: T) -> None: ...  # type: ignore[overload-overlap]

    @overload
    def write(self, context: Context, value: T) -> StepOutput: ...

    def write(self, context: Context, value: T) -> StepOutput | None:
        """Sends a message from an asynchronous handler; makes the frame to `yield` in a generator handler.

        A Stream whose store fails fails no Step. Raises ValueMappingError for a value of another type or of more than
        100 KiB when encoded, ValueError in a plain function, in an RPC, and for a Stream that its Flow does not
        declare.
        """
        return runtime_of(context).write_stream(self, value)

    @overload
    def buffered_text(  # type: ignore[overload-overlap]
        self: Stream[str],
        context: AsyncContext,
        *,
        flush_interval: timedelta = ...,
        max_buffered_bytes: int = ...,
    ) -> AsyncBufferedTextStream: ...

    @overload
    def buffered_text(
        self: Stream[str], context: Context, *, flush_interval: timedelta = ..., max_buffered_bytes: int = ...
    ) -> BufferedTextStream: ...

    def buffered_text(
        self: Stream[Any],
        context: Any,
        *,
        flush_interval: timedelta = timedelta(seconds=1),
        max_buffered_bytes: int = 16384,
    ) -> AsyncBufferedTextStream | BufferedTextStream:
        """Gathers small texts into messages: one per `flush_interval`, or when `max_buffered_bytes` of UTF-8 are
          crossed.

        Raises TypeError unless this is a Stream of str, ValueError for limits that are not positive.
        """
        if self.value_type is not str:
            raise TypeError(f"Stream {self.name!r}: buffered_text is for Streams of str, not of {self.value_type!r}")
        if flush_interval <= timedelta(0):
            raise ValueError(f"Stream {self.name!r}: flush_interval must be positive, got {flush_interval}")
        if max_buffered_bytes <= 0:
            raise ValueError(f"Stream {self.name!r}: max_buffered_bytes must be > 0, got {max_buffered_bytes}")
        seconds = flush_interval.total_seconds()
        runtime = runtime_of(context)
        if not hasattr(context, "heartbeat"):
            return BufferedTextStream(self, context, seconds, max_buffered_bytes)
        stream = AsyncBufferedTextStream(self, context, seconds, max_buffered_bytes)
        runtime.at_end(stream._finish)
        return stream


class _Buffer:
    """Chunks that wait to be sent; the first one sets the time of the flush."""

    __slots__ = ("_chunks", "_limit", "_size")

    def __init__(self, limit: int) -> None:
        self._chunks: list[str] = []
        self._limit = limit
        self._size = 0

    def add(self, chunk: str) -> bool:
        """Whether the limit is crossed."""
        self._chunks.append(chunk)
        self._size += len(chunk.encode("utf-8", "surrogatepass"))
        return self._size >= self._limit

    def take(self) -> str:
        text = "".join(self._chunks)
        self._chunks.clear()
        self._size = 0
        return text

    def __bool__(self) -> bool:
        return bool(self._chunks)


class BufferedTextStream:
    """Text of a generator handler: `yield from stream.write(chunk)`, and `yield from stream.flush()` at the end."""

    def __init__(
        self,
        stream: Stream[str],
        context: Context,
        flush_seconds: float,
        limit: int,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._stream = stream
        self._context = context
        self._flush_seconds = flush_seconds
        self._buffer = _Buffer(limit)
        self._now = now
        self._flush_at = 0.0

    def write(self, chunk: str) -> tuple[StepOutput, ...]:
        """Keeps a chunk; the frames to yield when it is time to send. Time is looked at only here. Empty chunks count
        for nothing.
        """
        if not chunk:
            return ()
        now = self._now()
        if not self._buffer:
            self._flush_at = now + self._flush_seconds
        if self._buffer.add(chunk) or now >= self._flush_at:
            return self.flush()
        return ()

    def flush(self) -> tuple[StepOutput, ...]:
        """The frames of everything kept; to be yielded before the handler returns."""
        return (self._stream.write(self._context, self._buffer.take()),) if self._buffer else ()


class AsyncBufferedTextStream:
    """Text of an asynchronous handler: `stream.write(chunk)`. A timer sends it, and the end of the handler the rest."""

    def __init__(self, stream: Stream[str], context: AsyncContext, flush_seconds: float, limit: int) -> None:
        self._stream = stream
        self._context = context
        self._flush_seconds = flush_seconds
        self._buffer = _Buffer(limit)
        self._timer: asyncio.TimerHandle | None = None
        self._error: Exception | None = None
        self._is_finished = False

    def write(self, chunk: str) -> None:
        """Keeps a chunk. Raises ValueError after the handler's end, and the error of an earlier flush once it has
        happened.
        """
        if self._is_finished:
            raise ValueError(f"Stream {self._stream.name!r}: the handler of this buffered text has ended")
        if self._error is not None:
            raise self._error
        if not chunk:
            return
        if self._buffer.add(chunk):
            self._flush()
            if self._error is not None:
                raise self._error
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._flush_seconds, self._flush)

    def _flush(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._buffer and self._error is None:
            try:
                self._stream.write(self._context, self._buffer.take())
            except Exception as error:
                self._error = error

    def _finish(self) -> None:
        self._flush()
        self._is_finished = True
