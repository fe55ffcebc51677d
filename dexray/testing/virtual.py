"""Virtual time: an event loop whose clock jumps to the next timer instead of waiting for it."""

from __future__ import annotations

import asyncio
import math
import selectors
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from dexray.engine.clock import Handle, LoopClock

T = TypeVar("T")

EPOCH = 1_700_000_000.0  # when virtual time begins


class _JumpingSelector(selectors.SelectSelector):
    """Never waits: what it was asked to wait for becomes a jump of the clock."""

    def __init__(self) -> None:
        super().__init__()
        self.elapsed = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        events = super().select(0)
        if events or timeout == 0:
            return events
        if timeout is None:
            raise RuntimeError("nothing can ever happen in this virtual loop: every task waits for another")
        self.elapsed += timeout
        return events


class VirtualLoop(asyncio.SelectorEventLoop):
    """Runs everything in one thread, in virtual time. Calls in other threads have no place here."""

    def __init__(self) -> None:
        self._jumping = _JumpingSelector()
        super().__init__(self._jumping)
        # A timer fires when it is due within the resolution. That of the real clock is less than the gap between two
        # floats after a hundred days, and then no timer would ever be due.
        self._clock_resolution = 1e-6

    def time(self) -> float:
        return self._jumping.elapsed

    def advance(self, seconds: float) -> None:
        """Moves the clock; timers that fall due fire in the loop's next turn."""
        self._jumping.elapsed += seconds


class VirtualClock(LoopClock):
    """The engine's clock over the running loop's time: the real one, over a wall clock that tests may set.

    `wall_offset` is how far the wall clock was set; a clock that is made afterwards (that of an engine that was started
    anew) begins there. `offset` moves the engine's time itself, as seen by an owner that comes from another machine.
    `begins`: the wall clock at the loop's zero, in seconds since the epoch.
    """

    def __init__(self, begins: float = EPOCH, wall_offset: float = 0.0) -> None:
        self._begins = begins
        self._wall_offset = wall_offset
        self._offset = 0.0
        self._armed: dict[_Armed, None] = {}
        super().__init__(math.inf, wall=self.wall, passed=_loop_time)

    def wall(self) -> float:
        """What the wall clock shows."""
        return self._begins + self._wall_offset + _loop_time()

    @property
    def wall_offset(self) -> float:
        return self._wall_offset

    @wall_offset.setter
    def wall_offset(self, seconds: float) -> None:
        self.now()
        self._wall_offset = seconds
        self._look_anew()

    @property
    def offset(self) -> float:
        return self._offset

    @offset.setter
    def offset(self, seconds: float) -> None:
        self._offset = seconds
        self._look_anew()

    def now(self) -> float:
        return super().now() + self._offset

    def call_at(self, when: float, callback: Callable[[], None]) -> Handle:
        delay = self._delay(when)
        if self._ahead:
            at = _loop_time() + delay
        else:  # to the very moment
            at = when - self._begins - self._wall_offset - self._offset
        return _Armed(self._armed, at, callback)

    def _look_anew(self) -> None:
        for armed in list(self._armed):
            armed.ring_soon()


def _loop_time() -> float:
    try:
        return asyncio.get_running_loop().time()
    except RuntimeError:  # made before its loop runs: that is the loop's zero
        return 0.0


class _Armed:
    def __init__(self, among: dict[_Armed, None], at: float, callback: Callable[[], None]) -> None:
        self._among = among
        self._callback = callback
        self._loop = asyncio.get_running_loop()
        self._handle: asyncio.Handle = self._loop.call_at(at, self._ring)
        among[self] = None

    def ring_soon(self) -> None:
        self._handle.cancel()
        self._handle = self._loop.call_soon(self._ring)

    def cancel(self) -> None:
        self._handle.cancel()
        self._among.pop(self, None)

    def _ring(self) -> None:
        self._among.pop(self, None)
        self._callback()


def run_virtual(main: Coroutine[Any, Any, T]) -> T:
    """Runs a coroutine in a loop of its own, in virtual time."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main)
