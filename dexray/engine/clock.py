"""Time and threads as ports, so that a test or the simulator can hold both."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol, TypeVar

logger = logging.getLogger("dexray.engine.clock")

T = TypeVar("T")


class Handle(Protocol):
    def cancel(self) -> None: ...


class Clock(Protocol):
    def now(self) -> float:
        """Seconds since the epoch, UTC."""
        ...

    def call_at(self, when: float, callback: Callable[[], None]) -> Handle:
        """Calls back in the event loop at about `when`, or earlier: the callback looks at the time itself."""
        ...


STEP = 0.1  # seconds by which the wall clock moves against the time that passed: then somebody has set it
CATCH_UP = 0.01  # of the time that passes: how fast the engine's time goes to meet a wall clock that was set
_SHORTEST = 0.001

_NEVER_SET: int | None = getattr(time, "CLOCK_BOOTTIME", getattr(time, "CLOCK_MONOTONIC", None))


def time_passed() -> float:
    """Seconds on a clock that nobody sets and that goes on while the machine sleeps. Its zero means nothing."""
    return time.monotonic() if _NEVER_SET is None else time.clock_gettime(_NEVER_SET)


class LoopClock:
    """The engine's time: UTC that goes steadily, over the running event loop.

    Deadlines are stored as UTC, so that they mean the same after a restart, and to another owner. But what a user asks
    for are durations, and a wall clock may be set: by NTP after a boot, by a hand, by a host that resumes. So:

    - It begins with the wall clock, and follows it as long as that moves as time does: drift and smears are followed.
    - When the wall clock is set, forward or back, no time has passed: the engine's time goes on as it was, and meets
      the wall clock by going at most 1 % faster or slower. A Timer of an hour is off by at most 36 seconds.
    - While the machine sleeps time does pass: what fell due meanwhile is due when it wakes.
    - Who begins anew (a restart, another owner) begins with the wall clock as it is then. If it was set while nobody
      looked, stored deadlines are off by as much; nothing else could tell.

    Time zones and daylight saving play no part: nothing is computed in local time. No timer of the loop is armed for
    longer than `longest`, as the loop's own clock may stand still while the machine sleeps.
    """

    def __init__(
        self,
        longest: float = 10.0,
        *,
        wall: Callable[[], float] = time.time,
        passed: Callable[[], float] = time_passed,
    ) -> None:
        self._longest = longest
        self._wall = wall
        self._passed = passed
        self._last_wall = wall()
        self._last_passed = passed()
        self._ahead = 0.0  # of the wall clock

    def now(self) -> float:
        wall, passed = self._wall(), self._passed()
        since = passed - self._last_passed
        step = wall - self._last_wall - since
        self._last_wall, self._last_passed = wall, passed
        if self._ahead:
            self._ahead -= math.copysign(min(abs(self._ahead), CATCH_UP * since), self._ahead)
        if abs(step) > STEP:
            self._ahead -= step
            logger.warning("the wall clock was set by %+.1f s; durations that are under way stay as they are", step)
        return wall + self._ahead

    def call_at(self, when: float, callback: Callable[[], None]) -> Handle:
        return asyncio.get_running_loop().call_later(min(self._delay(when), self._longest), callback)

    def _delay(self, when: float) -> float:
        """How long it takes at the least until it is `when`; not so little that a timer would be armed in vain."""
        left = when - self.now()
        if left <= 0.0:
            return 0.0
        return max(left / (1.0 + CATCH_UP) if self._ahead < 0.0 else left, _SHORTEST)


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
    """One thread of its own. waits: `close` returns when the thread has come to its end."""

    def __init__(self, name: str, *, waits: bool = True) -> None:
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix=name)
        self._waits = waits

    def __call__(self, call: Callable[[], T], /) -> Awaitable[T]:
        return asyncio.get_running_loop().run_in_executor(self._executor, call)

    def close(self) -> None:
        self._executor.shutdown(wait=self._waits)


class BlockingInline:
    """Runs at once, in the event loop: for engines whose journal does not block, and for tests that want one order of
    events."""

    async def __call__(self, call: Callable[[], T], /) -> T:
        return call()

    def close(self) -> None:
        pass
