"""Time and threads as ports, so that a test or the simulator can hold both."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol, TypeVar

T = TypeVar("T")


class Handle(Protocol):
    def cancel(self) -> None: ...


class Clock(Protocol):
    def now(self) -> float:
        """Seconds since the epoch, UTC."""
        ...

    def call_at(self, when: float, callback: Callable[[], None]) -> Handle:
        """Calls back in the event loop at about `when`, or a little earlier if the clock jumped: the callback looks at
        the time itself."""
        ...


class LoopClock:
    """The wall clock over the running event loop. No timer is armed for longer than `longest`, so that a clock that was
    set is noticed."""

    def __init__(self, longest: float = 10.0) -> None:
        self._longest = longest

    def now(self) -> float:
        return time.time()

    def call_at(self, when: float, callback: Callable[[], None]) -> Handle:
        delay = min(max(0.0, when - time.time()), self._longest)
        return asyncio.get_running_loop().call_later(delay, callback)


class LoopTime:
    """The event loop's own time, which nobody sets: for durations. Its zero means nothing."""

    def now(self) -> float:
        return asyncio.get_running_loop().time()

    def call_at(self, when: float, callback: Callable[[], None]) -> Handle:
        return asyncio.get_running_loop().call_at(when, callback)


class Blocking(Protocol):
    """Runs blocking calls of the journal, one at a time and in order."""

    def __call__(self, call: Callable[[], T], /) -> Awaitable[T]: ...

    def close(self) -> None: ...


class BlockingThread:
    """One thread of its own: the journal's."""

    def __init__(self, name: str) -> None:
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix=name)

    def __call__(self, call: Callable[[], T], /) -> Awaitable[T]:
        return asyncio.get_running_loop().run_in_executor(self._executor, call)

    def close(self) -> None:
        self._executor.shutdown(wait=True)


class BlockingInline:
    """Runs at once, in the event loop: for engines whose journal does not block, and for tests that want one order of
    events."""

    async def __call__(self, call: Callable[[], T], /) -> T:
        return call()

    def close(self) -> None:
        pass
