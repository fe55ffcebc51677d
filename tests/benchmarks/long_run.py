"""One run of very many Steps in sequence: whether its rate, its cost or its memory drift.

    PYTHONPATH=sdk:. python -m tests.benchmarks.long_run [steps]

In process, with the real engine on SQLite: a line for each tenth of the Steps, with the processor time that each took
and what the process has in memory: its resident bytes, and how many objects of Python; then how long a new owner needs
for the run as it is at its end. SQLite's page cache fills up to 32 MB, and no further.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time

import psutil

from dex import AsyncClient, Context, Flow, Registry, Step, StepDecision, StepList, go_to, graceful_complete
from dexray.engine import LoopClock
from dexray.engine.clock import BlockingThread
from dexray.engine.residents import revive
from dexray.journal import open_journal
from dexray.testing import InProcessEngine


class Onward(Step[int]):
    def execute(self, context: Context, input: int) -> StepDecision:
        return go_to(Onward, input - 1) if input > 1 else graceful_complete(1)


class Long(Flow[int]):
    def get_steps(self) -> StepList[int]:
        return StepList.start_step(Onward())


FLOW = Long()
REGISTRY = Registry([FLOW])


async def measure(path: str, steps: int) -> None:
    journal = open_journal(path)
    journal.migrate()
    blocking = BlockingThread("benchmark-journal")
    engine = InProcessEngine(REGISTRY, journal, LoopClock(), blocking=blocking)
    await engine.start()
    process = psutil.Process()
    async with AsyncClient(REGISTRY, engine) as client:
        run_id = await client.start_flow(FLOW, "long", steps)
        state = engine.host.flows["long"].flow.state
        ending = asyncio.ensure_future(client.wait_for_flow("long"))
        last, since, cpu = 0, time.perf_counter(), time.process_time()
        while not ending.done():
            await asyncio.wait({ending}, timeout=0.1)
            done = state.counters["Onward"]
            if done - last >= steps // 10 or ending.done():
                now, used = time.perf_counter(), time.process_time()
                print(
                    f"{done:>9,} Steps  {(done - last) / (now - since):>6,.0f} a second  "
                    f"{(used - cpu) / max(1, done - last) * 1000:.3f} ms CPU each  "
                    f"{process.memory_info().rss / 1e6:.0f} MB, {sys.getallocatedblocks():,} objects",
                    flush=True,
                )
                last, since, cpu = done, now, used
        await ending
    await engine.close()
    began = time.perf_counter()
    loaded = await blocking(lambda: journal.load(run_id))
    assert loaded is not None
    revive(loaded, 1)
    print(f"{len(loaded.tail)} records after the checkpoint, loaded in {(time.perf_counter() - began) * 1000:.1f} ms")
    blocking.close()


def main() -> None:
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(measure(f"{folder}/flows.db", steps))


if __name__ == "__main__":
    main()
