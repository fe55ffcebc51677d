"""WCP-27: Complete Multiple Instance Activity.

An activity with many instances is ended before all have completed: the open ones are withdrawn, and what follows the
activity begins, as if all had completed.

Criterion: one act withdraws the rest and passes control on, exactly once.
Here: Finish waits for the word to finish, and takes the results that are there by then (`at_most`). One decision
goes to Evaluate and cancels the instances and their join. Whichever of Finish and join is committed first cancels
the other.

Verdict: + `go_to(…).with_canceling_steps(…)` is one decision.
"""

from __future__ import annotations

import asyncio

from dex import (
    AsyncClient,
    AsyncContext,
    Channel,
    Context,
    Flow,
    PersistenceSchema,
    Step,
    StepDecision,
    StepList,
    StepMovement,
    Wait,
    dead_end,
    go_to,
    go_to_many,
    graceful_complete,
)
from examples.workflow_patterns.common import Example, Task, show

found = Channel("found", str)
enough = Channel("enough", None)


class Begin(Step[list[Task]]):
    def execute(self, context: Context, input: list[Task]) -> StepDecision:
        instances = (StepMovement.of(Probe, task) for task in input)
        return go_to_many(*instances, StepMovement.of(AllIn, len(input)), StepMovement.of(Finish, len(input)))


class Probe(Step[Task]):
    """An instance."""

    async def execute(self, context: AsyncContext, input: Task) -> StepDecision:
        await asyncio.sleep(input.seconds)
        found.publish(context, input.name)
        return dead_end()


class AllIn(Step[int]):
    """The join of the instances."""

    def wait_for(self, context: Context, input: int) -> Wait:
        return Wait.until(found.for_n(input))

    def execute(self, context: Context, input: int) -> StepDecision:
        return go_to(Evaluate, list(found.results(context))).with_canceling_steps(Finish)


class Finish(Step[int]):
    def wait_for(self, context: Context, input: int) -> Wait:
        return Wait.all_of(enough.for_one(), found.at_most(input))

    def execute(self, context: Context, input: int) -> StepDecision:
        return go_to(Evaluate, list(found.results(context))).with_canceling_steps(Probe, AllIn)


class Evaluate(Step[list[str]]):
    def execute(self, context: Context, input: list[str]) -> StepDecision:
        return graceful_complete(input)


class CompleteInstancesFlow(Flow[list[Task]]):
    def get_steps(self) -> StepList[list[Task]]:
        return StepList.start_step(Begin()).other_steps(Probe(), AllIn(), Finish(), Evaluate())

    def get_persistence_schema(self) -> PersistenceSchema:
        return PersistenceSchema.of(found, enough)


async def end_early(client: AsyncClient, flow_id: str) -> None:
    await asyncio.sleep(0.5)
    await client.publish(flow_id, enough, None)


example = Example(CompleteInstancesFlow(), [Task("north"), Task("south", 20.0), Task("east", 30.0)], drive=end_early)

if __name__ == "__main__":
    show()
