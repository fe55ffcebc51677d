"""SubFlows a second: one Step each, whose parent waits for all of them, or for one after the other."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable

from dex import AsyncClient, Context, Flow, Step, StepDecision, StepList, SubFlow, Wait, graceful_complete


class Leaf(Step[int]):
    def execute(self, context: Context, input: int) -> StepDecision:
        return graceful_complete(input)


class Leaves(Flow[int]):
    def get_steps(self) -> StepList[int]:
        return StepList.start_step(Leaf())


class Branch(Step[int]):
    def wait_for(self, context: Context, input: int) -> Wait:
        return Wait.all_of(*(SubFlow.run(LEAVES, number) for number in range(input)))

    def execute(self, context: Context, input: int) -> StepDecision:
        outputs = (SubFlow.get_condition_results(context, number).single_output(int) for number in range(input))
        return graceful_complete(sum(outputs))


class Tree(Flow[int]):
    """As many children as its input says, all at once."""

    def get_steps(self) -> StepList[int]:
        return StepList.start_step(Branch())


LEAVES, TREE = Leaves(), Tree()


async def one_child(client: AsyncClient, count: int) -> dict[str, float]:
    times = []
    for number in range(count):
        began = time.perf_counter()
        await client.start_flow(TREE, f"tree-of-one-{number}", 1)
        await client.wait_for_flow(f"tree-of-one-{number}")
        times.append((time.perf_counter() - began) * 1000)
    return {"p50_ms": statistics.median(times)}


async def children(client: AsyncClient, name: str, parents: int, width: int) -> dict[str, float]:
    began = time.perf_counter()
    for number in range(parents):
        await client.start_flow(TREE, f"{name}-{number}", width)
    results = await asyncio.gather(*(client.wait_for_flow(f"{name}-{number}") for number in range(parents)))
    assert all(result.single_output(int) == sum(range(width)) for result in results)
    return {"subflows_per_second": parents * width / (time.perf_counter() - began)}


def subflow_measures(client: AsyncClient, scale: float) -> list[tuple[str, Callable[[], Awaitable[dict[str, float]]]]]:
    return [
        ("a Flow with one SubFlow", lambda: one_child(client, int(100 * scale) or 1)),
        ("100 Flows of 10 SubFlows", lambda: children(client, "tree", int(100 * scale) or 1, 10)),
        ("a Flow of 1,000 SubFlows", lambda: children(client, "wide-tree", 1, int(1000 * scale) or 1)),
    ]
