"""Stream messages of the handlers in a worker process, on their way to the owner.

They leave in batches: the first at once, the next ones together after a moment. They are kept in order although two
threads send them, the handlers' and the watchdog's. What a handler writes faster than it can leave is bounded: then the
newest are lost, which is logged.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from dexray.protocol.streams import StreamWrite

logger = logging.getLogger("dexray.cluster.streams")

GATHER_SECONDS = 0.03
BATCH_BYTES = 256 * 1024
"""Messages that make a batch leave before its time."""
LARGEST_BACKLOG = 16 * 1024 * 1024
OVERHEAD = 256
"""Bytes of a message beside its payload."""


class Backlog:
    """Messages that wait, up to `limit` bytes."""

    def __init__(self, limit: int = LARGEST_BACKLOG) -> None:
        self.size = 0
        self._limit = limit
        self._messages: list[StreamWrite] = []
        self._lost = 0

    def __bool__(self) -> bool:
        return bool(self._messages)

    def add(self, message: StreamWrite) -> None:
        size = len(message.payload) + OVERHEAD
        if self.size + size > self._limit:
            self._lost += 1
            return
        self.size += size
        self._messages.append(message)

    def take(self) -> tuple[StreamWrite, ...]:
        messages, self._messages, self.size = tuple(self._messages), [], 0
        if self._lost:
            logger.warning("%d Stream messages were lost: they were written faster than they can be sent", self._lost)
            self._lost = 0
        return messages


class MessageOutbox:
    """Of the attempts of one lot. `add` and `flush` are for the handlers' thread, `look` for the watchdog."""

    def __init__(self, send: Callable[[tuple[StreamWrite, ...]], None], clock: Callable[[], float]) -> None:
        self._send = send
        self._clock = clock
        self._lock = threading.Lock()
        self._sending = threading.Lock()
        self._backlog = Backlog()
        self._due_at = 0.0

    def add(self, message: StreamWrite) -> None:
        with self._lock:
            self._backlog.add(message)
            is_due = self._clock() >= self._due_at or self._backlog.size >= BATCH_BYTES
        if is_due:
            self.flush()

    def look(self) -> None:
        if self._backlog and self._clock() >= self._due_at:
            self.flush()

    def flush(self) -> None:
        if not self._backlog:
            return
        with self._sending:  # over both: a batch taken first is sent first
            with self._lock:
                messages = self._backlog.take()
                self._due_at = self._clock() + GATHER_SECONDS
            if messages:
                self._send(messages)
