"""The same on embedded Ray: all FlowActors and the Directory are killed at once, and Ray starts them again.

What becomes of the Flows is read in the database, beside the engine.
"""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
from sqlalchemy import Connection, text

import dexray
from dex import AsyncClient
from dexray.journal.interface import JournalUnavailable
from dexray.journal.sql import SqlJournal
from tests.benchmarks.recovery.flows import BACKOFF, BACKOFF_SECONDS, HELD, MESSAGE, PARENT, REGISTRY, nudge

LOOK = 0.1  # seconds
LONGEST = 900.0


def engine_processes(*names: str) -> list[psutil.Process]:
    """The engine's processes in our Ray."""
    found = []
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):
            if any(f"ray::{name}" in " ".join(process.cmdline()) for name in names):
                found.append(process)
    return found


class Memory:
    """The largest sum of what the FlowActors take of it, while it is looked at."""

    def __init__(self) -> None:
        self.peak = 0
        self.looking = asyncio.ensure_future(self._look())

    async def _look(self) -> None:
        while True:
            sizes = 0
            for process in engine_processes("FlowActor"):
                with suppress(psutil.Error):
                    sizes += process.memory_info().rss
            self.peak = max(self.peak, sizes)
            await asyncio.sleep(2 * LOOK)


class Book:
    """Questions to the database."""

    def __init__(self, journal: Any) -> None:
        assert isinstance(journal, SqlJournal)
        self._database = journal._database
        self._turn = threading.Lock()

    def count(self, condition: str, **values: Any) -> int:
        def work(connection: Connection) -> int:
            return int(connection.execute(text(f"SELECT count(*) FROM runs WHERE {condition}"), values).scalar_one())

        while True:
            with suppress(JournalUnavailable), self._turn:
                return self._database.read(work)

    async def until(self, condition: str, began: float, **values: Any) -> float:
        """Seconds since `began` until no run is like that."""
        while left := await asyncio.to_thread(self.count, condition, **values):
            if time.perf_counter() - began > LONGEST:
                raise TimeoutError(f"{left} runs are still {condition}")
            await asyncio.sleep(LOOK)
        return time.perf_counter() - began


async def _fill(client: AsyncClient, book: Book, gate: str, count: int) -> None:
    width = asyncio.Semaphore(300)

    async def begin(flow: Any, name: str, input: Any) -> None:
        async with width:
            await client.start_flow(flow, name, input)

    each = count // 6
    seconds = 30.0 + count // 100
    await asyncio.gather(*(begin(MESSAGE, f"message-{number}", None) for number in range(each)))
    await asyncio.gather(*(begin(PARENT, f"parent-{number}", seconds) for number in range(each)))
    await asyncio.gather(*(begin(BACKOFF, f"backoff-{number}", BACKOFF_SECONDS) for number in range(each)))
    # Each has had its first attempt: those that wait for time or a message are known to, the last parent has its child.
    await book.until(
        f"(flow_type = 'MessageFlow' AND next_wake = 0) OR (flow_id = 'parent-{each - 1}' AND NOT EXISTS "
        f"(SELECT 1 FROM runs AS child WHERE child.parent = runs.flow_id AND child.next_wake > 0))",
        time.perf_counter(),
    )
    await asyncio.gather(*(begin(HELD, f"held-{number}", gate) for number in range(count - 4 * each)))
    await asyncio.sleep(2.0)


async def measure(database: str, journal: Any, gate: str, count: int) -> dict[str, float]:
    book = Book(journal)
    async with await dexray.connect_async(REGISTRY, address="local", database=database, request_timeout=300) as client:
        began = time.perf_counter()
        await _fill(client, book, gate, count)
        filled = time.perf_counter() - began
        closed = book.count("closed_at IS NOT NULL")
        memory = Memory()
        await asyncio.sleep(1.0)
        before, memory.peak = memory.peak, 0
        now = time.time()
        due = book.count("closed_at IS NULL AND next_wake <= :now", now=now)
        began = time.perf_counter()
        for process in engine_processes("FlowActor", "Directory"):
            os.kill(process.pid, signal.SIGKILL)
        await asyncio.to_thread(Path(gate).touch)

        async def first() -> float:
            while await asyncio.to_thread(book.count, "closed_at IS NOT NULL") <= closed:  # noqa: ASYNC110
                await asyncio.sleep(LOOK)
            return time.perf_counter() - began

        async def wake(number: int, width: asyncio.Semaphore) -> None:
            async with width:
                await client.publish(f"message-{number}", nudge, 1)

        async def wake_all() -> None:
            width = asyncio.Semaphore(100)
            await asyncio.gather(*(wake(number, width) for number in range(count // 6)))

        waking = asyncio.ensure_future(wake_all())
        progress, resumed = await asyncio.gather(
            first(), book.until("closed_at IS NULL AND epoch = 1 AND next_wake <= :now", began, now=now)
        )
        await waking
        finished = await book.until("closed_at IS NULL", began)
        memory.looking.cancel()
        assert book.count("status = 'COMPLETED'") >= count, "a Flow has failed"
    return {
        "due": due,
        "filled_s": filled,
        "first_s": progress,
        "resumed_s": resumed,
        "finished_s": finished,
        "actors_before_mb": before / 1e6,
        "actors_peak_mb": memory.peak / 1e6,
    }
