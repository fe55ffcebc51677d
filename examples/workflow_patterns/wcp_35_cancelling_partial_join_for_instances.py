"""WCP-35: Cancelling Partial Join for Multiple Instances.

Of m instances of an activity the first n to complete start what follows, once, and the others are cancelled. m and n
are known when the first begins.

Criterion: a threshold on the instances of one activity, and the withdrawal of those left, in one act.
Here: the split hands n to Enough, which waits `for_n(n)`; its decision goes on and cancels all open instances.

Verdict: + a Wait, and one decision that fires and cancels.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from dex import (
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

models = Channel("models", str)


@dataclass(frozen=True)
class Search:
    needed: int
    tasks: list[Task]


class Begin(Step[Search]):
    def execute(self, context: Context, input: Search) -> StepDecision:
        return go_to_many(
            *(StepMovement.of(Train, task) for task in input.tasks), StepMovement.of(Enough, input.needed)
        )


class Train(Step[Task]):
    """An instance."""

    async def execute(self, context: AsyncContext, input: Task) -> StepDecision:
        await asyncio.sleep(input.seconds)
        models.publish(context, input.name)
        return dead_end()


class Enough(Step[int]):
    def wait_for(self, context: Context, input: int) -> Wait:
        return Wait.until(models.for_n(input))

    def execute(self, context: Context, input: int) -> StepDecision:
        return go_to(Compare, list(models.results(context))).with_canceling_steps(Train)


class Compare(Step[list[str]]):
    def execute(self, context: Context, input: list[str]) -> StepDecision:
        return graceful_complete(input)


class CancellingPartialJoinForInstancesFlow(Flow[Search]):
    def get_steps(self) -> StepList[Search]:
        return StepList.start_step(Begin()).other_steps(Train(), Enough(), Compare())

    def get_persistence_schema(self) -> PersistenceSchema:
        return PersistenceSchema.of(models)


example = Example(
    CancellingPartialJoinForInstancesFlow(),
    Search(2, [Task("forest", 0.2), Task("net", 20.0), Task("tree", 0.1), Task("kernel", 30.0)]),
)

if __name__ == "__main__":
    show()
