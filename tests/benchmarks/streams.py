"""Stream messages: written by a Step on a worker, stored by the owner, read one by one by a client meanwhile."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable, Generator
from datetime import timedelta

from dex import (
    AsyncClient,
    Context,
    Flow,
    PersistenceSchema,
    Step,
    StepDecision,
    StepList,
    StepOutput,
    Stream,
    graceful_complete,
)

ticks = Stream("ticks", float, 10_000_000)


class Tick(Step[tuple[int, float]]):
    """So many messages, with a pause before each: the time at which it was written."""

    def execute(self, context: Context, input: tuple[int, float]) -> Generator[StepOutput, None, StepDecision]:
        count, pause = input
        for _ in range(count):
            if pause:
                time.sleep(pause)
            yield ticks.write(context, time.time())
        return graceful_complete(None)


class Ticker(Flow[tuple[int, float]]):
    def get_steps(self) -> StepList[tuple[int, float]]:
        return StepList.start_step(Tick())

    def get_persistence_schema(self) -> PersistenceSchema:
        return PersistenceSchema.of(ticks)


TICKER = Ticker()


async def stream_messages(client: AsyncClient, count: int) -> dict[str, float]:
    """As fast as one Step writes, then one every 50 ms: how old is each when the client has it."""

    async def read(name: str, number: int) -> list[float]:
        token, ages = "", []
        for _ in range(number):
            message = await client.read_stream(name, ticks, token, timedelta(seconds=60))
            token = message.resume_token
            ages.append((time.time() - message.value) * 1000)
        return ages

    await client.start_flow(TICKER, "ticker-warm", (10, 0.0))
    await read("ticker-warm", 10)
    began = time.perf_counter()
    await client.start_flow(TICKER, "ticker-fast", (count, 0.0))
    await read("ticker-fast", count)
    per_second = count / (time.perf_counter() - began)
    slow = max(10, count // 200)
    await client.start_flow(TICKER, "ticker-slow", (slow, 0.05))
    ages = await read("ticker-slow", slow)
    began = time.perf_counter()
    writes = max(20, count // 50)
    await asyncio.gather(*(client.write_stream("ticker-client", ticks, "bench", 0.0) for _ in range(writes)))
    return {
        "per_second": per_second,
        "latency_p50_ms": statistics.median(ages),
        "client_writes_per_second": writes / (time.perf_counter() - began),
    }


def stream_measures(client: AsyncClient, scale: float) -> list[tuple[str, Callable[[], Awaitable[dict[str, float]]]]]:
    """The line of the benchmark's table."""
    return [("Stream messages, Step to client", lambda: stream_messages(client, max(200, int(10_000 * scale))))]
