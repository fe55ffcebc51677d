"""Scalable fan-out: more work than one Flow should hold is cut into shards, each a Flow of its own.

One Flow is owned by one process, and its Steps are committed one after the other; some hundred at once are fine, many
thousands are not. So the root cuts its items into shards by a hash, and runs each shard as a SubFlow. Shards are owned
by different processes, on different nodes. Within a shard a few workers take items from a Channel, so that a shard of
any size has no more than `at_once` Steps under way; that is its back pressure.

If a process dies in the middle: the shards that it did not own notice nothing. An item is taken in the same commit that
begins its execution, and counted in the one that ends it: none is lost, none counted twice.

Run it with `python -m examples.patterns.scalable_parallel`.
"""

from __future__ import annotations

from dataclasses import dataclass
from uuid import uuid4
from zlib import crc32

from dex import (
    Channel,
    Context,
    Flow,
    PersistenceSchema,
    Registry,
    Step,
    StepDecision,
    StepList,
    StepMovement,
    SubFlow,
    Wait,
    dead_end,
    go_to,
    go_to_many,
    graceful_complete,
)


@dataclass(frozen=True)
class Work:
    items: list[str]
    shards: int
    at_once: int


# A shard --------------------------------------------------------------------------------------------------------------

items = Channel("items", str)
sizes = Channel("sizes", int)


class Fill(Step[Work]):
    def execute(self, context: Context, input: Work) -> StepDecision:
        for item in input.items:
            items.publish(context, item)
        workers = (StepMovement.of(Measure, None) for _ in range(min(input.at_once, len(input.items))))
        return go_to_many(*workers, StepMovement.of(AddUp, len(input.items)))


class Measure(Step[None]):
    """A worker: takes an item, measures it, and takes the next while there are any."""

    def wait_for(self, context: Context, input: None) -> Wait:
        return Wait.until(items.at_most(1))

    def execute(self, context: Context, input: None) -> StepDecision:
        for item in items.results(context):
            sizes.publish(context, len(item))
            return go_to(Measure, None)
        return dead_end()


class AddUp(Step[int]):
    def wait_for(self, context: Context, input: int) -> Wait:
        return Wait.until(sizes.for_n(input))

    def execute(self, context: Context, input: int) -> StepDecision:
        return graceful_complete(sum(sizes.results(context)))


class ShardFlow(Flow[Work]):
    def get_steps(self) -> StepList[Work]:
        return StepList.start_step(Fill).other_steps(Measure, AddUp)

    def get_persistence_schema(self) -> PersistenceSchema:
        return PersistenceSchema.of(items, sizes)


# The root -------------------------------------------------------------------------------------------------------------


def cut(work: Work) -> list[Work]:
    """Shards that are not empty. The hash is the same in every process, and for all time."""
    shards: list[list[str]] = [[] for _ in range(work.shards)]
    for item in work.items:
        shards[crc32(item.encode()) % work.shards].append(item)
    return [Work(shard, 1, work.at_once) for shard in shards if shard]


class RunShards(Step[Work]):
    def wait_for(self, context: Context, input: Work) -> Wait:
        return Wait.all_of(*(SubFlow.run(shard_flow, shard) for shard in cut(input)))

    def execute(self, context: Context, input: Work) -> StepDecision:
        results = [SubFlow.get_condition_results(context, index) for index, _ in enumerate(cut(input))]
        return graceful_complete(sum(result.single_output(int) for result in results))


class RootFlow(Flow[Work]):
    """Its output is the length of all items together."""

    def get_steps(self) -> StepList[Work]:
        return StepList.start_step(RunShards)


shard_flow, root_flow = ShardFlow(), RootFlow()
registry = Registry([root_flow, shard_flow])


def main() -> None:
    import dexray

    with dexray.connect(registry) as client:
        flow_id = f"library-{uuid4()}"
        client.start_flow(root_flow, flow_id, Work([f"book {number}" for number in range(100)], shards=4, at_once=3))
        print(client.wait_for_flow(flow_id).single_output(int), "letters")


if __name__ == "__main__":
    main()
