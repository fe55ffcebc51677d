"""Large values: an array of 100 MB handed on through 5 Steps, unchanged and changed by each."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import dexray
from dex import (
    AsyncClient,
    Attribute,
    Context,
    Flow,
    PersistenceSchema,
    Registry,
    Step,
    StepDecision,
    StepList,
    go_to,
    graceful_complete,
)

MEGABYTE = 1_000_000
STEPS = 5
LIMIT = 512 * 1024 * 1024


@dataclass
class Task:
    megabytes: int
    changes: bool


left = Attribute("left", int)
changes = Attribute("changes", bool)


class Make(Step[Task]):
    def execute(self, context: Context, input: Task) -> StepDecision:
        left.set(context, STEPS)
        changes.set(context, input.changes)
        return go_to(Carry, np.arange(input.megabytes * MEGABYTE // 8, dtype=np.float64))


class Carry(Step[NDArray[np.float64]]):
    def execute(self, context: Context, input: NDArray[np.float64]) -> StepDecision:
        more = left.get(context)
        if more == 0:
            return graceful_complete(float(input[-1]))
        left.set(context, more - 1)
        return go_to(Carry, input + 1 if changes.get(context) else input)


class Freight(Flow[Task]):
    def get_steps(self) -> StepList[Task]:
        return StepList.start_step(Make()).other_steps(Carry())

    def get_persistence_schema(self) -> PersistenceSchema:
        return PersistenceSchema.of(left, changes)


FREIGHT = Freight()


async def freight(client: AsyncClient, name: str, megabytes: int, changes: bool) -> float:
    began = time.perf_counter()
    await client.start_flow(FREIGHT, name, Task(megabytes, changes))
    result = await client.wait_for_flow(name)
    seconds = time.perf_counter() - began
    assert result.single_output(float) == megabytes * MEGABYTE // 8 - 1 + (STEPS if changes else 0)
    await client.delete_flow(name)
    return seconds


async def large_values(scale: float, **settings: Any) -> dict[str, float]:
    """An engine of its own, on the Ray of this process, whose limit of a value is high enough."""
    megabytes = max(1, int(100 * scale))
    with tempfile.TemporaryDirectory() as folder:
        registry = Registry([FREIGHT])
        settings = {"database": Path(folder) / "flows.db", "namespace": "freight", "max_value_bytes": LIMIT, **settings}
        async with await dexray.connect_async(registry, **settings) as client:
            await freight(client, "warm", 1, True)
            return {
                "megabytes": megabytes,
                "unchanged_seconds": await freight(client, "same", megabytes, False),
                "changed_seconds": await freight(client, "other", megabytes, True),
            }


def large_value_measures(scale: float) -> list[tuple[str, Callable[[], Awaitable[dict[str, float]]]]]:
    return [("a 100 MB array through 5 Steps", lambda: large_values(scale))]
