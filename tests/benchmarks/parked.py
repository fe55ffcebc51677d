"""Flows that only wait: what each costs its owner in memory, what all of them cost in idle CPU, and what a wake takes.

    PYTHONPATH=sdk:. python -m tests.benchmarks.parked [flows]

Half of the Flows wait for a message, half for a Timer of thirty days. They are started by one process with the real
engine on SQLite; the measures are taken in a second one, which finds them in the database as an owner does after a
restart. No process stands behind a parked Flow.
"""

from __future__ import annotations

import asyncio
import gc
import os
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import timedelta
from pathlib import Path

import psutil

from dex import (
    AsyncClient,
    Channel,
    Context,
    Flow,
    PersistenceSchema,
    Registry,
    Step,
    StepDecision,
    StepList,
    Timer,
    Wait,
    graceful_complete,
)
from dexray.engine import LoopClock
from dexray.engine.clock import BlockingThread
from dexray.journal import open_journal
from dexray.testing import InProcessEngine

WAKES = 100
IDLE_SECONDS = 20.0

nudge = Channel("nudge", int)


class Park(Step[bool]):
    """True: waits for a message; False: for a Timer."""

    def wait_for(self, context: Context, input: bool) -> Wait:
        return Wait.until(nudge.for_one() if input else Timer.by_duration(timedelta(days=30)))

    def execute(self, context: Context, input: bool) -> StepDecision:
        return graceful_complete(1)


class Parked(Flow[bool]):
    def get_steps(self) -> StepList[bool]:
        return StepList.start_step(Park())

    def get_persistence_schema(self) -> PersistenceSchema:
        return PersistenceSchema.of(nudge)


FLOW = Parked()
REGISTRY = Registry([FLOW])


async def fill(path: Path, count: int) -> None:
    engine, blocking = _engine(path)
    await engine.start()
    gate = asyncio.Semaphore(500)

    async with AsyncClient(REGISTRY, engine) as client:

        async def begin(number: int) -> None:
            async with gate:
                await client.start_flow(FLOW, f"parked-{number}", number % 2 == 0)

        for first in range(0, count, 10_000):
            await asyncio.gather(*(begin(number) for number in range(first, min(count, first + 10_000))))
        while engine.host.load_report().active:  # noqa: ASYNC110  # the last ones come to their wait
            await asyncio.sleep(0.5)
    await engine.close()
    blocking.close()


async def measure(path: Path, count: int) -> None:
    process = psutil.Process()
    engine, blocking = _engine(path)
    gc.collect()
    before = process.memory_info().rss
    began = time.perf_counter()
    await engine.start()
    await engine.host.recovered()
    ready = time.perf_counter() - began
    gc.collect()
    memory = process.memory_info().rss - before
    await asyncio.sleep(2.0)
    cpu = time.process_time()
    await asyncio.sleep(IDLE_SECONDS)
    idle = (time.process_time() - cpu) / IDLE_SECONDS
    times = []
    async with AsyncClient(REGISTRY, engine) as client:
        step = max(2, count // WAKES // 2 * 2)
        for number in range(0, min(count, WAKES * step), step):
            began = time.perf_counter()
            await client.publish(f"parked-{number}", nudge, 1)
            await client.wait_for_flow(f"parked-{number}")
            times.append((time.perf_counter() - began) * 1000)
    print(
        f"{count:>7} parked Flows: known to a new owner after {ready:.2f} s, {memory / count:,.0f} bytes each, "
        f"idle CPU {idle:.2%}, a wake p50 {statistics.median(times):.1f} ms (from a message to the end of the Flow)",
        flush=True,
    )
    await engine.close()
    blocking.close()


def _engine(path: Path) -> tuple[InProcessEngine, BlockingThread]:
    blocking = BlockingThread("benchmark-journal")
    return InProcessEngine(REGISTRY, open_journal(path), LoopClock(), blocking=blocking, slots=100), blocking


def main() -> None:
    if len(sys.argv) > 2:
        work = {"fill": fill, "measure": measure}[sys.argv[1]]
        asyncio.run(work(Path(sys.argv[2]), int(sys.argv[3])))
        return
    most = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000
    for count in (10, most):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "flows.db")
            journal = open_journal(path)
            journal.migrate()
            journal.close()
            for part in ("fill", "measure"):
                subprocess.run([sys.executable, "-m", "tests.benchmarks.parked", part, path, str(count)], check=True)


if __name__ == "__main__":
    main()
