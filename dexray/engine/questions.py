"""Questions over all runs, which may take long: a search holds up no commit.

They are asked of a journal object and a thread of their own, made with the first question. What a call has acknowledged
is committed by then, so they see it. A host that was given no way to open a second journal object asks its own, between
its commits: one in a test, whose journal runs in the event loop.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar

from dexray.engine.clock import BlockingThread
from dexray.journal.interface import Journal, JournalUnavailable

if TYPE_CHECKING:
    from dexray.engine.host import FlowHost

T = TypeVar("T")


class Questions:
    def __init__(self, host: FlowHost, open_journal: Callable[[], Journal] | None) -> None:
        self._host = host
        self._open = open_journal
        self._journal: Journal | None = None
        self._thread: BlockingThread | None = None

    async def ask(self, question: Callable[[Journal], T]) -> T:
        """The answer; UNAVAILABLE when the database does not give it in time."""
        from dexray.engine.requests import look_up

        if self._open is None:
            return await look_up(self._host, lambda: question(self._host.journal))
        if self._thread is None:
            self._thread = BlockingThread("dexray-search")
        return await look_up(self._host, lambda: question(self._opened()), self._thread)

    async def do(self, work: Callable[[Journal], T]) -> T:
        """The same for work that nobody waits for: it is tried again for as long as the database is away."""
        if self._open is None:
            return await self._host.read(lambda: work(self._host.journal))
        if self._thread is None:
            self._thread = BlockingThread("dexray-search")
        return await self._host.read(lambda: work(self._opened()), self._thread)

    def _opened(self) -> Journal:
        if self._journal is None:
            assert self._open is not None
            self._journal = self._open()
        return self._journal

    async def close(self) -> None:
        thread, self._thread = self._thread, None
        if thread is not None:
            await thread(self._close_journal)
            thread.close()

    def _close_journal(self) -> None:
        if self._journal is not None:
            with suppress(JournalUnavailable):
                self._journal.close()
            self._journal = None
