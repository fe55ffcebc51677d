"""Recovery of one owner, in processes of this machine without Ray: the engine, the database and nothing else."""

from __future__ import annotations

import asyncio
import os
import resource
import time
from collections import Counter
from typing import Any

import psutil
from sqlalchemy import event
from sqlalchemy.engine import Engine

from dex import AsyncClient
from dexray.engine import LoopClock
from dexray.engine.clock import BlockingThread
from dexray.journal import open_journal
from dexray.journal.database import Prepared
from dexray.testing import InProcessEngine
from tests.benchmarks.recovery.flows import BACKOFF, BACKOFF_SECONDS, HELD_HERE, MESSAGE, PARENT, REGISTRY, nudge

SLOTS = 8
TIMER_SECONDS = 5.0


def _engine(database: str) -> InProcessEngine:
    return InProcessEngine(
        REGISTRY, open_journal(database), LoopClock(), blocking=BlockingThread("benchmark-journal"), slots=SLOTS
    )


async def fill(database: str, gate: str, count: int) -> None:
    """Starts the Flows, waits until each stands where it is to stand, and ends as by SIGKILL."""
    engine = _engine(database)
    await engine.start()
    client = AsyncClient(REGISTRY, engine)
    width = asyncio.Semaphore(500)

    async def begin(flow: Any, name: str, input: Any) -> None:
        async with width:
            await client.start_flow(flow, name, input)

    each = count // 6
    seconds = TIMER_SECONDS + count // 500
    await asyncio.gather(*(begin(MESSAGE, f"message-{number}", None) for number in range(each)))
    await asyncio.gather(*(begin(PARENT, f"parent-{number}", seconds) for number in range(each)))
    await asyncio.gather(*(begin(BACKOFF, f"backoff-{number}", BACKOFF_SECONDS) for number in range(each)))
    while engine.host.load_report().attempts:  # noqa: ASYNC110
        await asyncio.sleep(0.1)
    await asyncio.gather(*(begin(HELD_HERE, f"held-{number}", gate) for number in range(count - 4 * each)))
    await asyncio.sleep(0.5)
    os._exit(0)


class Statements:
    """Counts what goes to the database, in this process."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        event.listen(Engine, "before_cursor_execute", self._execute)
        for name in ("rows", "many"):
            setattr(Prepared, name, self._counted(getattr(Prepared, name)))

    def _execute(self, connection: Any, cursor: Any, statement: str, *_: Any) -> None:
        self._note(statement)

    def _counted(self, call: Any) -> Any:
        def counted(prepared: Prepared, connection: Any, parameters: Any) -> Any:
            if parameters:
                self._note(prepared._sql)
            return call(prepared, connection, parameters)

        return counted

    def _note(self, statement: str) -> None:
        self.counts["all"] += 1
        self.counts[" ".join(statement.split())[:100]] += 1


async def measure(database: str, gate: str, count: int, verbose: bool) -> dict[str, float]:
    statements = Statements()
    process = psutil.Process()
    engine = _engine(database)
    before = process.memory_info().rss
    began = time.perf_counter()
    await engine.start()

    async def first_progress() -> float:
        client = AsyncClient(REGISTRY, engine)
        await client.wait_for_flow("held-0")
        return time.perf_counter() - began

    first = asyncio.ensure_future(first_progress())
    await engine.host.recovered()
    resumed = time.perf_counter() - began
    asked = statements.counts.copy()
    in_memory = len(engine.host.flows)
    client = AsyncClient(REGISTRY, engine)
    width = asyncio.Semaphore(200)

    async def wake(number: int) -> None:
        async with width:
            await client.publish(f"message-{number}", nudge, 1)

    await asyncio.gather(*(wake(number) for number in range(count // 6)))
    for number in range(count // 6):
        for name in ("message", "parent", "backoff"):
            await client.wait_for_flow(f"{name}-{number}")
    for number in range(count - 4 * (count // 6)):
        await client.wait_for_flow(f"held-{number}")
    finished = time.perf_counter() - began
    if verbose:
        for statement, times in asked.most_common(25):
            print(f"{times:>8} {statement}")
    owned = engine.host.journal.owners_of_open_runs()
    assert not owned, owned
    return {
        "first_s": await first,
        "resumed_s": resumed,
        "finished_s": finished,
        "statements_per_flow": asked["all"] / count,
        "in_memory": in_memory,
        "peak_mb": (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - before) / 1e6,
    }
