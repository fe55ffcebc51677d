"""`python -m tests.benchmarks`: what the engine does on this machine, beside what Ray alone does in the same run.

Embedded Ray, SQLite with synchronous=FULL, SYNC durability, in a temporary folder. `--database postgres` takes a
private PostgreSQL server on this machine, which syncs; `--database URL` an empty database of yours. Prints a table;
`--json` prints one line.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

import ray

import dexray
from dex import AsyncClient, AttributeMatch, Registry
from dexray.settings import masked
from tests.benchmarks.blobs import large_value_measures
from tests.benchmarks.control import LAPS, control_measures
from tests.benchmarks.flows import Chain, FanOut, PingPong, ping, pong_count
from tests.benchmarks.rpc import LEDGER, rpc_measures
from tests.benchmarks.search import searching
from tests.benchmarks.streams import TICKER, stream_measures
from tests.benchmarks.subflows import LEAVES, TREE, subflow_measures
from tests.postgres import durable_server

CHAIN, FAN_OUT, PING_PONG = Chain(), FanOut(), PingPong()
STEPS = 5


async def one_at_a_time(client: AsyncClient, count: int) -> dict[str, float]:
    times = []
    for number in range(count):
        began = time.perf_counter()
        await client.start_flow(CHAIN, f"single-{number}", STEPS)
        await client.wait_for_flow(f"single-{number}")
        times.append((time.perf_counter() - began) * 1000)
    return {"p50_ms": statistics.median(times), "p95_ms": statistics.quantiles(times, n=20)[18]}


async def many(client: AsyncClient, count: int, width: int) -> dict[str, float]:
    gate = asyncio.Semaphore(width)

    async def run(number: int) -> None:
        async with gate:
            await client.start_flow(CHAIN, f"many-{number}", STEPS)
            await client.wait_for_flow(f"many-{number}")

    began = time.perf_counter()
    await asyncio.gather(*(run(number) for number in range(count)))
    seconds = time.perf_counter() - began
    return {"flows_per_second": count / seconds, "steps_per_second": count * STEPS / seconds}


async def fan_out(client: AsyncClient, rounds: int, branches: int) -> dict[str, float]:
    times = []
    for number in range(rounds):
        began = time.perf_counter()
        await client.start_flow(FAN_OUT, f"fan-{number}", branches)
        result = await client.wait_for_flow(f"fan-{number}")
        assert result.single_output(int) == sum(range(branches))
        times.append((time.perf_counter() - began) * 1000)
    return {"p50_ms": statistics.median(times)}


async def ping_pong(client: AsyncClient, rounds: int) -> dict[str, float]:
    """A round trip: a published message wakes the Flow, whose Step answers in an Attribute that the client awaits."""
    await client.start_flow(PING_PONG, "ping-pong", rounds + 1)  # with one message more it ends
    began = time.perf_counter()
    for number in range(1, rounds + 1):
        await client.publish("ping-pong", ping, number)
        await client.wait_for_attribute_match("ping-pong", pong_count, AttributeMatch.equal_to(number))
    seconds = time.perf_counter() - began
    await client.publish("ping-pong", ping, rounds + 1)
    await client.wait_for_flow("ping-pong")
    return {"round_trips_per_second": rounds / seconds}


def raw_tasks(count: int, in_flight: int) -> dict[str, float]:
    """No-op Ray tasks from the driver: p50 of one at a time, and tasks a second with many in flight."""

    @ray.remote(num_cpus=1, max_retries=0)
    def nothing() -> None:
        return None

    ray.get([nothing.remote() for _ in range(100)])
    times = []
    for _ in range(200):
        began = time.perf_counter()
        ray.get(nothing.remote())
        times.append((time.perf_counter() - began) * 1000)
    began = time.perf_counter()
    waiting = [nothing.remote() for _ in range(in_flight)]
    done = 0
    while done < count:
        ready, waiting = ray.wait(waiting, num_returns=1)
        ready_more, waiting = ray.wait(waiting, num_returns=len(waiting), timeout=0) if waiting else ([], [])
        finished = len(ready) + len(ready_more)
        done += finished
        if done + len(waiting) < count:
            waiting += [nothing.remote() for _ in range(finished)]
        elif not waiting:
            break
    return {"p50_ms": statistics.median(times), "tasks_per_second": done / (time.perf_counter() - began)}


async def warm_up(client: AsyncClient) -> None:
    for number in range(30):
        await client.start_flow(CHAIN, f"warm-{number}", STEPS)
    for number in range(30):
        await client.wait_for_flow(f"warm-{number}")


@contextmanager
def place_of(database: str) -> Iterator[str]:
    """A database to work on, as a path or a URL."""
    if database == "sqlite":
        with tempfile.TemporaryDirectory() as folder:
            yield f"{folder}/flows.db"
    elif database == "postgres":
        with durable_server() as server:
            yield server.new_database()
    else:
        yield database


async def main(scale: float, database: str) -> dict[str, dict[str, float]]:
    with place_of(database) as place:
        registry = Registry([CHAIN, FAN_OUT, PING_PONG, LEDGER, LAPS, TREE, LEAVES, TICKER], allow_async_handlers=True)
        figures: dict[str, dict[str, float]] = {}
        async with await dexray.connect_async(registry, address="local", database=place) as client:
            await warm_up(client)
            measures: list[tuple[str, Callable[[], Awaitable[dict[str, float]]]]] = [
                ("a Flow of 5 Steps, one at a time", lambda: one_at_a_time(client, int(200 * scale))),
                ("1,000 Flows of 5 Steps", lambda: many(client, int(1000 * scale), 500)),
                ("fan-out of 100 Steps and join", lambda: fan_out(client, int(10 * scale) or 1, 100)),
                ("message ping-pong", lambda: ping_pong(client, int(300 * scale))),
                *rpc_measures(client, scale),
                *control_measures(client, scale),
                *subflow_measures(client, scale),
                *stream_measures(client, scale),
                *large_value_measures(scale),
            ]
            for name, measure in measures:
                figures[name] = await measure()
            figures |= await searching(int(100_000 * scale))
            figures["raw no-op Ray tasks"] = await asyncio.to_thread(raw_tasks, int(5000 * scale), 100)
        many_figures, raw = figures["1,000 Flows of 5 Steps"], figures["raw no-op Ray tasks"]
        many_figures["share_of_raw_tasks"] = many_figures["steps_per_second"] / raw["tasks_per_second"]
        return figures


def cli() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks", description=__doc__)
    parser.add_argument("--scale", type=float, default=1.0, help="a fraction of the usual counts")
    parser.add_argument("--json", action="store_true", help="one line of JSON")
    parser.add_argument("--database", default="sqlite", help="sqlite, postgres, or a URL")
    options = parser.parse_args()
    figures = asyncio.run(main(options.scale, options.database))
    if options.json:
        print(json.dumps({"cpus": os.cpu_count(), "database": masked(options.database), **figures}))
        return
    print(f"{os.cpu_count()} CPUs, embedded Ray {ray.__version__}, {masked(options.database)}, SYNC")
    for name, values in figures.items():
        print(f"  {name:36}" + "  ".join(f"{key} {value:,.2f}" for key, value in values.items()))


if __name__ == "__main__":
    cli()
