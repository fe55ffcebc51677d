"""Searching among 100,000 runs: few that fit, many with paging, two broad conditions that seldom meet, counting.

The runs are written straight into a journal of their own; the questions go through a client and an engine.

PYTHONPATH=sdk:. python -m tests.benchmarks.search [runs]
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from dex import AsyncClient, Attribute, AttributeIndex, Flow, IndexType, PersistenceSchema, Registry, StepList
from dexray.engine import LoopClock
from dexray.engine.clock import BlockingThread
from dexray.journal import Append, Journal, NewRun, RunChange, open_journal
from dexray.journal.interface import IndexEntry
from dexray.testing import InProcessEngine

BATCH = 1000

city = Attribute("city", str, index=AttributeIndex(IndexType.KEYWORD))
age = Attribute("age", int, index=AttributeIndex(IndexType.INT))


class Traveller(Flow[None]):
    def get_steps(self) -> StepList[None]:
        return StepList.without_start_step()

    def get_persistence_schema(self) -> PersistenceSchema:
        return PersistenceSchema.of(city, age)


def fill(journal: Journal, count: int) -> None:
    """Every 1,000th run is in one city; ages go from 0 to 99; a third has completed."""
    journal.migrate()
    for first in range(0, count, BATCH):
        journal.append([_run(number) for number in range(first, min(first + BATCH, count))])


def _run(number: int) -> Append:
    started_at = 1_750_000_000.0 + number
    closed = RunChange(status="COMPLETED", closed_at=started_at + 5) if number % 3 == 0 else None
    return Append(
        f"{number:012x}",
        1,
        1,
        started_at,
        b"started",
        new_run=NewRun(f"traveller-{number}", "Traveller", "nobody", f"start-{number}", started_at),
        change=closed,
        index={
            "city": (IndexEntry("city", "KEYWORD", word=f"city {number % 1000}"),),
            "age": (IndexEntry("age", "INT", whole=number * 7 % 100),),
        },
    )


@asynccontextmanager
async def travellers(count: int) -> AsyncIterator[AsyncClient]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "flows.db"
        await asyncio.to_thread(_filled, path, count)
        blocking = BlockingThread("benchmark-journal")
        registry = Registry([Traveller()])
        engine = InProcessEngine(registry, open_journal(path), LoopClock(), blocking=blocking)
        await engine.start()
        try:
            async with AsyncClient(registry, engine) as client:
                yield client
        finally:
            await engine.close()
            blocking.close()


def _filled(path: Path, count: int) -> None:
    journal = open_journal(path)
    fill(journal, count)
    journal.close()


async def median_ms(call: Callable[[], Awaitable[object]], repeats: int) -> float:
    times = []
    for _ in range(repeats):
        began = time.perf_counter()
        await call()
        times.append((time.perf_counter() - began) * 1000)
    return statistics.median(times)


async def pages(client: AsyncClient, query: str, limit: int) -> float:
    """Milliseconds a page, over so many pages one after the other."""
    token, turned = "", 0
    began = time.perf_counter()
    while turned < limit:
        page = await client.search_flows(query, 100, token)
        token, turned = page.next_page_token, turned + 1
        if not token:
            break
    return (time.perf_counter() - began) * 1000 / turned


async def searching(count: int) -> dict[str, dict[str, float]]:
    """Figures by what was asked."""
    selective, broad, rare = "city = 'city 17'", "age >= 50", "age = 51 AND city >= 'city 990'"
    async with travellers(count) as client:
        return {
            f"search {count:,} runs: few fit": {
                "p50_ms": await median_ms(lambda: client.search_flows(selective, 100), 50),
                "count_p50_ms": await median_ms(lambda: client.count_flows(selective), 50),
                "by_flow_id_p50_ms": await median_ms(lambda: client.search_flows("FlowId = 'traveller-77'", 10), 50),
            },
            f"search {count:,} runs: half fit, pages of 100": {
                "first_p50_ms": await median_ms(lambda: client.search_flows(broad, 100), 30),
                "each_of_100_ms": await pages(client, broad, 100),
                "count_p50_ms": await median_ms(lambda: client.count_flows(broad), 5),
            },
            f"search {count:,} runs: two that seldom meet": {
                "p50_ms": await median_ms(lambda: client.search_flows(rare, 100), 5),
                "count_all_p50_ms": await median_ms(lambda: client.count_flows(), 10),
            },
        }


if __name__ == "__main__":
    for what, figures in asyncio.run(searching(int(sys.argv[1]) if len(sys.argv) > 1 else 100_000)).items():
        print(f"  {what:48}" + "  ".join(f"{key} {value:,.2f}" for key, value in figures.items()))
