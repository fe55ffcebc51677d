"""A door from blocking code into an event loop of its own.

`Client` has no logic: it runs the coroutines of an `AsyncClient` on a background thread and waits for them. That
thread is the portal.

- It starts with the first call, so a Client that is only made costs nothing, and one made before a fork may be used
  after it.
- It is a daemon: a program that forgets to close its Client ends all the same. Then, and when the Client is collected,
  the loop is stopped and what still runs in it is cancelled, with a bound on the time that takes.
- Any thread may call, also one whose own event loop is running (a notebook's). Only the portal's own thread may not,
  as it would wait for itself.
- An interrupt of the waiting thread (KeyboardInterrupt) cancels the coroutine and leaves the portal as it was. It may
  come between any two instructions, and Python's own futures don't bear that: their Condition is left locked, or is
  unlocked twice. So a call waits for a bare lock, which an interrupt finds taken or not taken and nothing in between.
- A thread does not survive a fork. A portal that had started in the parent refuses in the child, before it touches a
  lock.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import functools
import os
import threading
import weakref
from collections.abc import Callable, Coroutine
from typing import Any, Generic, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

_CANCEL_SECONDS = 1.0  # how long coroutines may take to end after they were cancelled
_JOIN_SECONDS = 2.0


class Portal:
    """Runs coroutines on a thread of its own; `owner` is the word for it in errors, like "Client"."""

    def __init__(self, owner: str) -> None:
        self._owner = owner
        self._lock = threading.Lock()
        self._close_lock = threading.Lock()
        self._pid = os.getpid()
        self._closed = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._finalizer: weakref.finalize[[asyncio.AbstractEventLoop, threading.Thread, int], Portal] | None = None

    @property
    def closed(self) -> bool:
        return self._closed

    def call(self, function: Callable[P, Coroutine[Any, Any, T]], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Runs `function(...)` in the portal's loop and returns what it returns.

        RuntimeError: the portal is closed, belongs to another process, or is called from its own thread.
        """
        self._check_process()
        call: _Call[T] = _Call(functools.partial(function, *args, **kwargs))
        loop: asyncio.AbstractEventLoop | None = None
        try:
            # Under the lock: nothing is put into a loop that close() has already told to stop, it would never run.
            with self._lock:
                loop = self._open_loop()
                loop.call_soon_threadsafe(call.begin)
            call.wait()
        except BaseException:
            if loop is not None:
                with contextlib.suppress(RuntimeError):  # the loop is closed: so has the call ended
                    loop.call_soon_threadsafe(call.cancel)
            raise
        try:
            return call.outcome()
        except asyncio.CancelledError:
            if self._closed:
                raise RuntimeError(f"the {self._owner} was closed while a call was running in it") from None
            raise concurrent.futures.CancelledError from None

    def close_after(self, function: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Runs a last coroutine, when the portal is still open and this is its process, and closes."""
        if self._pid != os.getpid():
            return self.close()
        with self._close_lock:
            try:
                if not self._closed:
                    self.call(function)
            finally:
                self.close()

    def close(self) -> None:
        """Cancels what runs and ends the thread. Again: does nothing."""
        if self._pid != os.getpid():
            self._closed = True
            return
        with self._lock:
            self._closed = True
        if self._finalizer is not None:
            self._finalizer()

    def _check_process(self) -> None:
        pid = os.getpid()
        if self._pid == pid:
            return
        if self._thread is not None:
            raise RuntimeError(
                f"this {self._owner} was used in process {self._pid} and then forked into process {pid}, where its "
                f"background thread does not exist: make a new {self._owner} after the fork"
            )
        self._lock = threading.Lock()  # another thread of the parent may have held them
        self._close_lock = threading.Lock()
        self._pid = pid

    def _open_loop(self) -> asyncio.AbstractEventLoop:
        if self._closed:
            raise RuntimeError(f"the {self._owner} is closed: make a new one")
        if self._loop is None or self._thread is None:
            loop = asyncio.new_event_loop()
            thread = threading.Thread(target=_serve, args=(loop,), name=f"dex-{self._owner.lower()}", daemon=True)
            thread.start()
            self._loop, self._thread = loop, thread
            self._finalizer = weakref.finalize(self, _stop, loop, thread, self._pid)
            return loop
        if self._thread.ident == threading.get_ident():
            raise RuntimeError(
                f"a {self._owner} cannot be called from its own background thread, it would wait for itself: "
                f"await an Async{self._owner} there"
            )
        return self._loop


class _Call(Generic[T]):
    """One call of a coroutine function: `begin` and `cancel` in the loop, `wait` and `outcome` in the calling thread.

    The task never gets into the calling thread's hands: letting go of it calls weakref callbacks, and an interrupt that
    comes during one of those is swallowed.
    """

    def __init__(self, function: Callable[[], Coroutine[Any, Any, T]]) -> None:
        self._function = function
        self._task: asyncio.Task[T] | None = None
        self._is_cancelled = False
        self._result: list[T] = []
        self._error: BaseException | None = None
        self._running = threading.Lock()
        self._running.acquire()

    def begin(self) -> None:
        if self._is_cancelled:
            return
        try:
            self._task = asyncio.get_running_loop().create_task(self._function())
        except BaseException as error:  # the arguments don't fit the function
            self._task = asyncio.get_running_loop().create_task(_raise(error))
        self._task.add_done_callback(self._end)

    def _end(self, task: asyncio.Task[T]) -> None:
        self._task = None
        if task.cancelled():
            self._error = asyncio.CancelledError()
        else:
            self._error = task.exception()
            if self._error is None:
                self._result.append(task.result())
        self._running.release()

    def cancel(self) -> None:
        self._is_cancelled = True
        if self._task is not None:
            self._task.cancel()

    def wait(self) -> None:
        self._running.acquire()

    def outcome(self) -> T:
        if self._error is not None:
            raise self._error
        return self._result[0]


async def _raise(error: BaseException) -> Any:
    raise error


def _serve(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
    finally:
        _cancel_all(loop)
        asyncio.set_event_loop(None)
        loop.close()


def _cancel_all(loop: asyncio.AbstractEventLoop) -> None:
    tasks = asyncio.all_tasks(loop)
    for task in tasks:
        task.cancel()
    if tasks:
        loop.run_until_complete(asyncio.wait(tasks, timeout=_CANCEL_SECONDS))
    loop.run_until_complete(loop.shutdown_asyncgens())


def _stop(loop: asyncio.AbstractEventLoop, thread: threading.Thread, pid: int) -> None:
    if pid != os.getpid() or loop.is_closed():  # a forked child shares the loop's socket with its parent: hands off
        return
    loop.call_soon_threadsafe(loop.stop)
    if thread.ident != threading.get_ident():
        thread.join(_JOIN_SECONDS)
