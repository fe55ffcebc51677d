"""From the threads of Ray into an event loop, cheaply, and back to whoever waits there.

`Inbox` brings the outcome of a reference into the loop. Measured for a no-op task submitted by an async actor
(CPU of the actor a task): a callback of the reference 0.60 ms, `ref.future()` 0.65 ms, awaiting it 0.72 ms.

`LongPolls` are the questions of workers that are answered when there is news of an attempt.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

logger = logging.getLogger("dexray.cluster.attempts")


class Inbox:
    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._arrived: deque[tuple[Callable[[object], None], object]] = deque()
        self._is_draining = False

    def when_ready(self, reference: Any, done: Callable[[object], None]) -> None:
        """Arranges that `done` is called in the loop with the value of a reference, or with its exception.

        The caller keeps the reference until then.
        """
        reference._on_completed(partial(self._post, done))

    def _post(self, done: Callable[[object], None], value: object) -> None:
        """Called by threads of Ray. One wake-up of the loop serves all that has come in by then."""
        self._arrived.append((done, value))
        if not self._is_draining:
            self._is_draining = True
            with contextlib.suppress(RuntimeError):  # the loop is closed: so is this owner
                self._loop.call_soon_threadsafe(self._drain)

    def _drain(self) -> None:
        self._is_draining = False  # before the first look: what is posted during the last one wakes the loop again
        while self._arrived:
            done, value = self._arrived.popleft()
            try:
                done(value)
            except Exception:
                logger.exception("an answer of Ray could not be handled")


class LongPolls:
    """Keyed by the tokens of attempts."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiting: dict[int, set[asyncio.Future[None]]] = {}

    async def wait(self, tokens: tuple[int, ...], seconds: float) -> None:
        """Until there is news of one of these attempts, or for so long."""
        news: asyncio.Future[None] = self._loop.create_future()
        for token in tokens:
            self._waiting.setdefault(token, set()).add(news)
        try:
            await asyncio.wait((news,), timeout=seconds)
        finally:
            for token in tokens:
                waiting = self._waiting.get(token, set())
                waiting.discard(news)
                if not waiting:
                    self._waiting.pop(token, None)

    def answer(self, token: int) -> None:
        for news in self._waiting.get(token, ()):
            if not news.done():
                news.set_result(None)
