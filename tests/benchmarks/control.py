"""Milestones and time travel: how soon a caller hears of a commit, and how long it takes to begin a run anew."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable

from dex import (
    AsyncClient,
    Attribute,
    AttributeMatch,
    Channel,
    Context,
    Flow,
    PersistenceSchema,
    Step,
    StepDecision,
    StepExecutionId,
    StepList,
    TimeTravelOptions,
    TimeTravelType,
    Wait,
    go_to,
)

lap_done = Attribute("lap_done", int)
next_lap = Channel("next_lap", int)


class Lap(Step[int]):
    def wait_for(self, context: Context, input: int) -> Wait:
        return Wait.until(next_lap.for_one())

    def execute(self, context: Context, input: int) -> StepDecision:
        lap_done.set(context, input)
        return go_to(Lap, input + 1)


class Laps(Flow[int]):
    def get_steps(self) -> StepList[int]:
        return StepList.start_step(Lap())

    def get_persistence_schema(self) -> PersistenceSchema:
        return PersistenceSchema.of(lap_done, next_lap)


LAPS = Laps()


async def milestones(client: AsyncClient, kind: str, count: int) -> dict[str, float]:
    """A message, a Step, and the wait for its end: one caller, then 100 at once with a Flow each."""

    async def laps(name: str, times: int) -> list[float]:
        await client.start_flow(LAPS, name, 1)
        took = []
        for number in range(1, times + 1):
            began = time.perf_counter()
            waiting = (
                client.wait_for_step_completion(name, StepExecutionId(Lap, number))
                if kind == "step"
                else client.wait_for_attribute_match(name, lap_done, AttributeMatch.equal_to(number))
            )
            await asyncio.gather(waiting, client.publish(name, next_lap, number))
            took.append((time.perf_counter() - began) * 1000)
        return took

    alone = await laps(f"laps-{kind}", count)
    began = time.perf_counter()
    await asyncio.gather(*(laps(f"laps-{kind}-{number}", count // 10 or 1) for number in range(100)))
    together = time.perf_counter() - began
    return {"p50_ms": statistics.median(alone), "per_second_with_100_callers": 100 * (count // 10 or 1) / together}


async def travels(client: AsyncClient, messages: int, count: int) -> dict[str, float]:
    """A Flow goes back to its beginning, and takes the messages that came since with it."""
    await client.start_flow(LAPS, "travels", 1)
    for number in range(messages):
        await client.set_attribute("travels", lap_done, number)
    took = []
    for _ in range(count):
        began = time.perf_counter()
        await client.time_travel("travels", TimeTravelOptions(TimeTravelType.BEGINNING))
        took.append((time.perf_counter() - began) * 1000)
    return {"p50_ms": statistics.median(took)}


def control_measures(client: AsyncClient, scale: float) -> list[tuple[str, Callable[[], Awaitable[dict[str, float]]]]]:
    """The lines of the benchmark's table."""
    count = int(200 * scale) or 1
    return [
        ("wait_for_step_completion", lambda: milestones(client, "step", count)),
        ("wait_for_attribute_match", lambda: milestones(client, "attribute", count)),
        ("time travel, 1,000 writes again", lambda: travels(client, int(1000 * scale) or 1, int(20 * scale) or 1)),
    ]
