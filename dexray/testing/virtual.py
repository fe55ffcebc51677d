"""Virtual time: an event loop whose clock jumps to the next timer instead of waiting for it."""

from __future__ import annotations

import asyncio
import math
import selectors
import time
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from dexray.engine.clock import Handle, LoopClock

T = TypeVar("T")

EPOCH = 1_700_000_000.0  # when virtual time begins


IO_PATIENCE = 0.02  # real seconds in which a peer may answer on a socket, each time that nothing else can happen


class _JumpingSelector(selectors.DefaultSelector):
    """Never waits: what it was asked to wait for becomes a jump of the clock, or `at_rest` is called where that is set.

    What happens outside of the loop takes real time: while calls are out in threads, time passes as it does.
    """

    def __init__(self) -> None:
        super().__init__()
        self.elapsed = 0.0
        self.calls_in_threads = 0
        self.at_rest: Callable[[], None] | None = None

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        events = super().select(0)
        if events or timeout == 0:
            return events
        if self.calls_in_threads:
            began = time.monotonic()
            events = super().select(timeout)
            self.elapsed += time.monotonic() - began
            return events
        if self.at_rest is not None:
            if len(self.get_map()) > 1:  # more than the loop's own wake-up pipe
                events = super().select(IO_PATIENCE)
            if not events:
                self.at_rest()
            return events
        if timeout is None:
            raise RuntimeError("nothing can ever happen in this virtual loop: every task waits for another")
        self.elapsed += timeout
        return events


class VirtualLoop(asyncio.SelectorEventLoop):
    """Runs everything in one thread, in virtual time. Only what `run_in_executor` gives to threads takes real time."""

    def __init__(self) -> None:
        self._jumping = _JumpingSelector()
        self._cut_short: BaseException | None = None
        super().__init__(self._jumping)
        # A timer fires when it is due within the resolution. That of the real clock is less than the gap between two
        # floats after a hundred days, and then no timer would ever be due.
        self._clock_resolution = 1e-6

    def time(self) -> float:
        """Virtual seconds since the loop was made."""
        return self._jumping.elapsed

    def advance(self, seconds: float) -> None:
        """Moves the clock; timers that fall due fire in the loop's next turn."""
        self._jumping.elapsed += seconds

    def advance_to(self, when: float) -> None:
        """Moves the clock to a time of the loop; never back."""
        self._jumping.elapsed = max(self._jumping.elapsed, when)

    def run_to_rest(self) -> None:
        """Runs everything that can happen without time passing. Raises what the loop was `cut_short` with."""
        self._jumping.at_rest = self.stop
        try:
            self.run_forever()
        finally:
            self._jumping.at_rest = None
        if self._cut_short is not None:
            error, self._cut_short = self._cut_short, None
            raise error

    def cut_short(self, error: BaseException) -> None:
        """Ends `run_to_rest`, this one or the next, after a turn of the loop."""
        self._cut_short = error
        if self._jumping.at_rest is not None:
            self.stop()

    def next_timer(self) -> float | None:
        """The time of the loop at which a timer is due, None when there is none."""
        handles: list[asyncio.TimerHandle] = self._scheduled  # type: ignore[attr-defined]
        return min((handle.when() for handle in handles if not handle.cancelled()), default=None)

    def run_in_executor(self, executor: Any, func: Callable[..., T], *args: Any) -> asyncio.Future[T]:  # type: ignore[override]
        """As ever; time passes for real until the call is back."""
        future: asyncio.Future[T] = super().run_in_executor(executor, func, *args)
        self._jumping.calls_in_threads += 1
        future.add_done_callback(self._thread_is_back)
        return future

    async def shutdown_default_executor(self, timeout: float | None = None) -> None:
        """As ever, and time passes for real meanwhile."""
        self._jumping.calls_in_threads += 1  # it is a thread that waits for the others
        try:
            await super().shutdown_default_executor()
        finally:
            self._jumping.calls_in_threads -= 1

    def _thread_is_back(self, _: object) -> None:
        self._jumping.calls_in_threads -= 1


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
        """Seconds by which the wall clock was set. Setting it rings the timers that fall due by it."""
        return self._wall_offset

    @wall_offset.setter
    def wall_offset(self, seconds: float) -> None:
        self.now()
        self._wall_offset = seconds
        self._look_anew()

    @property
    def offset(self) -> float:
        """Seconds by which the engine's time is off."""
        return self._offset

    @offset.setter
    def offset(self, seconds: float) -> None:
        self._offset = seconds
        self._look_anew()

    def now(self) -> float:
        """The engine's time, in seconds since the epoch."""
        return super().now() + self._offset

    def call_at(self, when: float, callback: Callable[[], None]) -> Handle:
        """Calls back at an engine's time, as soon as it can if that is over."""
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
