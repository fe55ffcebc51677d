"""Runs the engine's event loop by hand, a call at a time, in the thread of the test.

Between two calls of the test the engine stands still: nothing happens behind a test's back. A call runs the loop until
it is answered and, beyond that, until nothing more can happen without time passing. So what a test sees after a call
does not depend on how fast anything is.

    call    put it into the loop;  run to rest;  answered?  ->  done
                                        |  no
                                        v
            time may be skipped?  move to the next timer, run to rest, and so on  ->  answered
                                  there is none, or none before the end of days   ->  WaitsForever
            it may not                                                            ->  WaitsForTime

The thread of the test may have an event loop of its own that runs (an `async def` test). The engine's loop is then run
inside of it: that one stands still meanwhile, as it does in any blocking call. Tasks of the test that wait for several
calls at once take turns, and time is skipped only when each has had its say.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from dexray.testing.errors import WaitsForever, WaitsForTime
from dexray.testing.virtual import VirtualLoop

T = TypeVar("T")

NEVER = 100 * 366 * 86400.0  # seconds; who waits longer waits for ever
_TURNS = 20  # of the test's own loop, in which other tasks of it may make calls
_REAL_PATIENCE = 5.0  # seconds that a call of an `async def` test waits for other tasks to do something


class Driver:
    """`waiting` says in words what the Flows wait for; `check` is called at rest and raises what must not be
    overlooked."""

    def __init__(
        self, *, skip_time: bool, skip_at_most: float, waiting: Callable[[], str], check: Callable[[], None]
    ) -> None:
        self.loop = VirtualLoop()
        self.skip_time = skip_time
        self._skip_at_most = skip_at_most
        self._waiting = waiting
        self._check = check
        self._thread = threading.get_ident()
        self._calls = 0

    # Blocking ---------------------------------------------------------------------------------------------------------

    def run(self, make: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Runs a coroutine to its end, and then everything to rest."""
        self._check_caller()
        self._calls += 1
        with _beside_the_running_loop():
            began = self.loop.time()
            task = self.loop.create_task(make())
            try:
                self._rest()
                while not task.done():
                    self._let_time_pass(began)
            except BaseException:
                self._give_up(task)
                raise
            return task.result()

    def advance(self, seconds: float) -> None:
        """Lets time pass: everything that falls due happens in its order and at its time."""
        self._check_caller()
        with _beside_the_running_loop():
            end = self.loop.time() + seconds
            self._rest()
            while (due := self.loop.next_timer()) is not None and due <= end:
                self.loop.advance_to(due)
                self._rest()
            self.loop.advance_to(end)
            self._rest()

    def rest(self) -> None:
        self.advance(0.0)

    # From another loop ------------------------------------------------------------------------------------------------

    async def await_(self, make: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """As `run`, for tasks of another loop in the same thread, and for handlers, which run in the engine's loop."""
        if asyncio.get_running_loop() is self.loop:
            return await make()
        self._check_caller()
        self._calls += 1
        began = self.loop.time()
        task = self.loop.create_task(make())
        try:
            self._rest_beside()
            while not task.done():
                if await self._others_had_a_turn() and not task.done():
                    await self._let_time_pass_beside(task, began)
                else:
                    self._rest_beside()
            return task.result()
        finally:
            if not task.done():
                with _beside_the_running_loop():
                    self._give_up(task)

    async def _let_time_pass_beside(self, task: asyncio.Task[Any], began: float) -> None:
        try:
            with _beside_the_running_loop():
                self._let_time_pass(began)
        except WaitsForever:
            if not await self._somebody_else_calls(task):
                raise

    async def _others_had_a_turn(self) -> bool:
        """False when one of them has made a call."""
        calls = self._calls
        for _ in range(_TURNS):
            await asyncio.sleep(0)
        return calls == self._calls

    async def _somebody_else_calls(self, task: asyncio.Task[Any]) -> bool:
        calls, until = self._calls, time.monotonic() + _REAL_PATIENCE
        # What they wait for is real, and not to be seen from here.
        while calls == self._calls and not task.done() and time.monotonic() < until:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        return calls != self._calls or task.done()

    def _rest_beside(self) -> None:
        with _beside_the_running_loop():
            self._rest()

    # Both -------------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        with _beside_the_running_loop():
            left = asyncio.all_tasks(self.loop)
            for task in left:
                task.cancel()
            if left:
                self.loop.run_until_complete(asyncio.wait(left, timeout=1.0))
            self.loop.run_until_complete(self.loop.shutdown_asyncgens())
            self.loop.run_until_complete(self.loop.shutdown_default_executor())
            self.loop.close()

    def _rest(self) -> None:
        self.loop.run_to_rest()
        self._check()

    def _let_time_pass(self, began: float) -> None:
        due = self.loop.next_timer()
        if due is None or due - self.loop.time() > NEVER / 2:
            raise WaitsForever(
                "this call waits for something that can't happen any more, however much time passes. Send the message "
                f"that is waited for, or call with a timeout.\n{self._waiting()}"
            )
        if not self.skip_time:
            raise WaitsForTime(
                "this call needs time to pass, and time passes by advance(...) alone here (skip_time=False): the next "
                f"thing to happen is {due - self.loop.time():g} s away.\n{self._waiting()}"
            )
        if due - began > self._skip_at_most:
            raise WaitsForever(
                f"this call was not answered in {self._skip_at_most:g} s of virtual time, which is all that may be "
                f"skipped in one call (skip_at_most).\n{self._waiting()}"
            )
        self.loop.advance_to(due)
        self._rest()

    def _give_up(self, task: asyncio.Task[Any]) -> None:
        """The call is over for its caller; what else there is to say of the engine was said."""
        task.cancel()
        for _ in range(_TURNS):
            if not task.done():
                self.loop.run_until_complete(asyncio.sleep(0))
        if task.done() and not task.cancelled():
            task.exception()

    def _check_caller(self) -> None:
        if threading.get_ident() != self._thread:
            raise RuntimeError("a FlowTest belongs to the thread that made it: call it there")
        if self.loop.is_closed():
            raise RuntimeError("this FlowTest is closed: make a new one")
        if asyncio._get_running_loop() is self.loop:
            raise RuntimeError(
                "a handler can't make a blocking call to the engine that runs it, it would wait for itself: make the "
                "handler asynchronous and await FlowTest.async_client"
            )


@contextmanager
def _beside_the_running_loop() -> Iterator[None]:
    """Steps out of the event loop that runs in this thread, if one does, so that another one can run."""
    outer = asyncio._get_running_loop()
    if outer is None:
        yield
        return
    task = asyncio.current_task(outer)
    if task is not None:
        asyncio.tasks._leave_task(outer, task)
    asyncio._set_running_loop(None)
    try:
        yield
    finally:
        asyncio._set_running_loop(outer)
        if task is not None:
            asyncio.tasks._enter_task(outer, task)
