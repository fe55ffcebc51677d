"""What a running attempt tells the outside, and what it asks of it.

The cluster implements it over Ray, the in-process engine over its own queues. All methods are called on the
thread of the handler (asynchronous handlers: on its event loop) and must neither block nor raise: a sign of
life is one-way.
"""

from __future__ import annotations

import time
from typing import Protocol

from dexray.protocol.attempts import Heartbeat
from dexray.protocol.streams import StreamWrite


class Reporter(Protocol):
    def heartbeat(self, heartbeat: Heartbeat | None) -> None:
        """A sign of life of the handler; None is an implicit one, which keeps the checkpoint."""

    def stream(self, message: StreamWrite) -> None:
        """One message for a Stream, which is an implicit heartbeat too."""

    def is_canceled(self) -> bool:
        """True once the owner has asked this attempt to stop. Asked often: it should cost about a microsecond."""
        ...

    def interrupts(self) -> bool:
        """True for the first who asks: the deadline and the owner may both want to stop an asynchronous handler, and it
        gets one CancelledError, so that its clean-up can await."""
        ...

    def now(self) -> float:
        """Seconds since the epoch (UTC) that go steadily (`SteadyTime`). The attempt's own deadline is judged by it."""
        ...


class SteadyTime:
    """UTC as it was when this was made, and from there on by a clock that nobody sets: an attempt has not run for an
    hour because the wall clock was set by one."""

    __slots__ = ("_offset",)

    def __init__(self) -> None:
        self._offset = time.time() - time.monotonic()

    def __call__(self) -> float:
        return self._offset + time.monotonic()


class SilentReporter:
    """Reports to nobody and is never canceled: for one attempt run by hand."""

    def __init__(self) -> None:
        self.now = SteadyTime()

    def heartbeat(self, heartbeat: Heartbeat | None) -> None:
        pass

    def stream(self, message: StreamWrite) -> None:
        pass

    def is_canceled(self) -> bool:
        return False

    def interrupts(self) -> bool:
        return True
