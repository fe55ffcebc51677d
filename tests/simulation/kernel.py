"""Processes, time and chance in one thread: what the simulated cluster runs on.

A `World` has one virtual time and any number of `Process`es. A Process is an asyncio event loop without a selector: the
engine's own code runs in it and finds tasks, futures and timers as ever. All Processes share one queue of callbacks, so
that a run is one sequence and the same for the same seed.

What a Process can suffer, and what no event loop could do to itself:

    kill      nothing of it runs ever again, no `finally` and no `except`: SIGKILL
    pause     its callbacks are put aside until it continues; time goes on and messages pile up: SIGSTOP
    fuse      either of these, after so many more of its callbacks: between any two of them, not only where it waits

Nothing here depends on addresses, hashes or the real clock. Garbage of killed Processes is kept until the end of the
World, because generators that are collected run their `finally`.
"""

from __future__ import annotations

import asyncio
import gc
import hashlib
import logging
import sys
import warnings
from collections import deque
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from heapq import heappop, heappush
from itertools import count
from typing import Any

EPOCH = 1_700_000_000.0
LIVELOCK = 100_000  # callbacks without time passing, after which the World gives up

_set_running_loop = asyncio._set_running_loop
logger = logging.getLogger("dexray")


class Handle:
    """A callback that is to come; also asyncio's TimerHandle, as far as it is used."""

    __slots__ = ("args", "at", "callback", "process")

    def __init__(self, process: Process, callback: Callable[..., object] | None, args: tuple[Any, ...], at: float):
        self.process = process
        self.callback = callback
        self.args = args
        self.at = at

    def cancel(self) -> None:
        self.callback = None
        self.args = ()

    def cancelled(self) -> bool:
        return self.callback is None

    def when(self) -> float:
        return self.at


class Livelock(Exception):
    """Time stands still and the callbacks never end."""


class World:
    def __init__(self, *, trace: bool = False) -> None:
        self.now = 0.0
        self.callbacks = 0
        self.ready: deque[Handle] = deque()
        self.timers: list[tuple[float, int, Handle]] = []
        self.failures: list[str] = []
        self.lines: list[str] | None = [] if trace else None
        self.numbers = count(1)
        self._stop = False
        self.fate = Process(self, "world")  # of what belongs to nobody: the wires, the database, fate
        self.graveyard: list[Any] = []

    def say(self, who: str, what: str) -> None:
        if self.lines is not None:
            self.lines.append(f"{self.now:12.6f} {who:>8} {what}")

    def digest(self) -> str:
        return hashlib.sha256("\n".join(self.lines or ()).encode()).hexdigest()

    def number(self) -> int:
        return next(self.numbers)

    def stop(self) -> None:
        self._stop = True

    def run(self, until: float) -> bool:
        """Runs until `stop` is called; True then, False when the time is over or nothing is left to happen."""
        self._stop = False
        ready, timers = self.ready, self.timers
        current: Process | None = None
        standing = 0
        try:
            while not self._stop:
                if not ready:
                    if not timers or timers[0][0] > until:
                        self.now = max(self.now, until)
                        return False
                    at = timers[0][0]
                    if at > self.now:
                        self.now = at
                        standing = 0
                    while timers and timers[0][0] <= self.now:
                        handle = heappop(timers)[2]
                        if handle.callback is not None:
                            ready.append(handle)
                    continue
                handle = ready.popleft()
                callback = handle.callback
                if callback is None:
                    continue
                process = handle.process
                if process.is_held:
                    process.held.append(handle)  # what a dead one leaves is kept for `bury`
                    continue
                if process is not current:
                    _set_running_loop(process)
                    current = process
                self.callbacks += 1
                standing += 1
                if standing > LIVELOCK:
                    raise Livelock(f"{LIVELOCK} callbacks and no time has passed; the last was {callback} {process}")
                try:
                    callback(*handle.args)
                except Exception as error:
                    self.failures.append(f"a callback of {process.name} raised {type(error).__name__}: {error}")
                if process.fuse:
                    process.fuse -= 1
                    if not process.fuse and process.burnt is not None:
                        burnt, process.burnt = process.burnt, None
                        burnt()
            return True
        finally:
            _set_running_loop(None)


class Process(asyncio.AbstractEventLoop):
    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self._ready = world.ready.append
        self.name = name
        self.is_held = False  # paused or dead
        self.is_dead = False
        self.held: deque[Handle] = deque()
        self.fuse = 0
        self.burnt: Callable[[], None] | None = None

    def __repr__(self) -> str:
        return f"<{self.name}>"

    # Fate

    def kill(self) -> None:
        self.is_held = self.is_dead = True
        self.world.graveyard.append(self)

    def pause(self) -> None:
        self.is_held = True

    def resume(self) -> None:
        if not self.is_dead and self.is_held:
            self.is_held = False
            self.world.ready.extend(self.held)
            self.held.clear()

    def after(self, callbacks: int, burnt: Callable[[], None]) -> None:
        self.fuse, self.burnt = callbacks, burnt

    # The event loop

    def time(self) -> float:
        return self.world.now

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return True

    def is_closed(self) -> bool:
        return self.is_dead

    def call_soon(self, callback: Callable[..., object], *args: Any, context: Any = None) -> Handle:  # type: ignore[override]
        handle = Handle(self, callback, args, 0.0)
        self._ready(handle)
        return handle

    def call_later(self, delay: float, callback: Callable[..., object], *args: Any, context: Any = None) -> Handle:  # type: ignore[override]
        world = self.world
        when = world.now + delay
        handle = Handle(self, callback, args, when)
        heappush(world.timers, (when, next(world.numbers), handle))
        return handle

    def call_at(self, when: float, callback: Callable[..., object], *args: Any, context: Any = None) -> Handle:  # type: ignore[override]
        world = self.world
        handle = Handle(self, callback, args, when)
        heappush(world.timers, (when, next(world.numbers), handle))
        return handle

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(self, coro: Coroutine[Any, Any, Any], *, name: str | None = None, context: Any = None) -> Any:  # type: ignore[override]
        return asyncio.Task(coro, loop=self, name=name or "task")

    def call_exception_handler(self, context: Any) -> None:
        """Of tasks that nobody asked, and of those that were killed: what matters is seen elsewhere."""


class Limbo(Process):
    """Where the remains of a World are when they are collected: what they still want to do is dropped."""

    def __init__(self) -> None:
        super().__init__(World(), "limbo")

    def call_soon(self, callback: Callable[..., object], *args: Any, context: Any = None) -> Handle:  # type: ignore[override]
        return Handle(self, None, (), 0.0)

    def call_at(self, when: float, callback: Callable[..., object], *args: Any, context: Any = None) -> Handle:  # type: ignore[override]
        return Handle(self, None, (), when)


def bury() -> None:
    """Collects what is left of Worlds that have ended. The tasks of the killed run their `finally` now, in limbo, and
    what they say there interests nobody."""
    hook = sys.unraisablehook
    _set_running_loop(Limbo())
    sys.unraisablehook = lambda _: None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            gc.collect()
    finally:
        sys.unraisablehook = hook
        _set_running_loop(None)


@contextmanager
def undisturbed() -> Iterator[None]:
    """No collection in here but by `bury`: what is collected is not to depend on what else there is. Nor does the
    engine log anything below an error, which nobody would read."""
    was_enabled = gc.isenabled()
    level = logger.level
    logger.setLevel(logging.ERROR)
    bury()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        bury()
        logger.setLevel(level)
        gc.unfreeze()
        if was_enabled:
            gc.enable()


class SimClock:
    """A wall clock of one Process; `step` sets it. Who waits for a time notices a clock that was set after at most
    `notice` seconds, as with the engine's own clock."""

    def __init__(self, process: Process, offset: float, notice: float = 10.0) -> None:
        self._process = process
        self.offset = offset
        self.notice = notice
        self._armed: dict[_Armed, None] = {}

    def now(self) -> float:
        return EPOCH + self.offset + self._process.world.now

    def step(self, seconds: float) -> None:
        self.offset += seconds
        armed = list(self._armed)
        self._process.call_later(self.notice, self._look, armed)

    def _look(self, armed: list[_Armed]) -> None:
        for one in armed:
            if one in self._armed:
                one.ring()

    def call_at(self, when: float, callback: Callable[[], None]) -> _Armed:
        return _Armed(self._armed, self._process, when - EPOCH - self.offset, callback)


class _Armed:
    __slots__ = ("_among", "_callback", "_handle")

    def __init__(self, among: dict[_Armed, None], process: Process, at: float, callback: Callable[[], None]) -> None:
        self._among = among
        self._callback = callback
        self._handle = process.call_at(max(at, process.world.now), self.ring)
        among[self] = None

    def cancel(self) -> None:
        self._handle.cancel()
        self._among.pop(self, None)

    def ring(self) -> None:
        self._handle.cancel()
        self._among.pop(self, None)
        self._callback()
