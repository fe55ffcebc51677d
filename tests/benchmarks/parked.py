"""Flows that only wait: what each costs its owner in memory, what all of them cost in idle CPU, and what a wake takes.

    PYTHONPATH=sdk:. python -m tests.benchmarks.parked [flows] [--ray]

Half of the Flows wait for a message, half for a Timer of thirty days. They are started by one process with the real
engine on SQLite; the measures are taken in a second one, which finds them in the database as an owner does after a
restart. No process stands behind a parked Flow. With `--ray` the owner is a FlowActor of an embedded Ray, which is
killed and started again by Ray between the start of the Flows and the measures.
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

import dexray
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
from tests.benchmarks.recovery.on_ray import Book, engine_processes

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


async def begin_all(client: AsyncClient, count: int) -> None:
    gate = asyncio.Semaphore(500)

    async def begin(number: int) -> None:
        async with gate:
            await client.start_flow(FLOW, f"parked-{number}", number % 2 == 0)

    for first in range(0, count, 10_000):
        await asyncio.gather(*(begin(number) for number in range(first, min(count, first + 10_000))))


async def wake_some(client: AsyncClient, count: int) -> float:
    """The median of milliseconds from a message to the end of its Flow."""
    times = []
    step = max(2, count // WAKES // 2 * 2)
    for number in range(0, min(count, WAKES * step), step):
        began = time.perf_counter()
        await client.publish(f"parked-{number}", nudge, 1)
        await client.wait_for_flow(f"parked-{number}")
        times.append((time.perf_counter() - began) * 1000)
    return statistics.median(times)


async def fill(path: Path, count: int) -> None:
    engine, blocking = _engine(path)
    await engine.start()
    async with AsyncClient(REGISTRY, engine) as client:
        await begin_all(client, count)
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
    async with AsyncClient(REGISTRY, engine) as client:
        wake = await wake_some(client, count)
    print(
        f"{count:>7} parked Flows: known to a new owner after {ready:.2f} s, {memory / count:,.0f} bytes each, "
        f"idle CPU {idle:.2%}, a wake p50 {wake:.1f} ms (from a message to the end of the Flow)",
        flush=True,
    )
    await engine.close()
    blocking.close()


def _engine(path: Path) -> tuple[InProcessEngine, BlockingThread]:
    blocking = BlockingThread("benchmark-journal")
    return InProcessEngine(REGISTRY, open_journal(path), LoopClock(), blocking=blocking, slots=100), blocking


async def on_ray(path: Path, count: int) -> int:
    """The FlowActor's resident bytes when it has found the Flows again."""
    book = Book(open_journal(path))
    async with await dexray.connect_async(
        REGISTRY, address="local", database=path, flow_actors=1, max_flow_actors=1, request_timeout=300
    ) as client:
        began = time.perf_counter()
        await begin_all(client, count)
        await book.until("closed_at IS NULL AND next_wake = 0", began)
        rate = count / (time.perf_counter() - began)
        (owner,) = engine_processes("FlowActor")
        began = time.perf_counter()
        owner.kill()
        await client.describe("parked-1")
        answers = time.perf_counter() - began
        (owner,) = engine_processes("FlowActor")
        while await _share(owner, 1.0) > 0.05:  # it has read which Flows there are
            pass
        rests = time.perf_counter() - began - 1.0
        memory = int(owner.memory_info().rss)
        idle = await _share(owner, IDLE_SECONDS)
        wake = await wake_some(client, count)
    print(
        f"{count:>7} parked Flows: started at {rate:,.0f} a second; after SIGKILL of the FlowActor it answers in "
        f"{answers:.1f} s and rests after {rests:.1f} s, has {memory / 1e6:.1f} MB, idle CPU {idle:.2%}, a wake p50 "
        f"{wake:.1f} ms (load {os.getloadavg()[0]:.0f})",
        flush=True,
    )
    return memory


async def _share(process: psutil.Process, seconds: float) -> float:
    """Of a CPU, that a process takes."""
    before = process.cpu_times()
    await asyncio.sleep(seconds)
    after = process.cpu_times()
    return float(after.user + after.system - before.user - before.system) / seconds


def main() -> None:
    if len(sys.argv) > 3:
        work = {"fill": fill, "measure": measure}[sys.argv[1]]
        asyncio.run(work(Path(sys.argv[2]), int(sys.argv[3])))
        return
    numbers = [int(word) for word in sys.argv[1:] if word.isdecimal()]
    most = numbers[0] if numbers else 100_000
    sizes = []
    for count in (10, most):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "flows.db")
            journal = open_journal(path)
            journal.migrate()
            journal.close()
            if "--ray" in sys.argv:
                sizes.append(asyncio.run(on_ray(Path(path), count)))
                continue
            for part in ("fill", "measure"):
                subprocess.run([sys.executable, "-m", "tests.benchmarks.parked", part, path, str(count)], check=True)
    if sizes:
        print(f"{(sizes[1] - sizes[0]) / most:,.0f} bytes for each parked Flow")


if __name__ == "__main__":
    main()
