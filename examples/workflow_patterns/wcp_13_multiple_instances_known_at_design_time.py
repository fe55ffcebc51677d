"""WCP-13: Multiple Instances with a priori Design-Time Knowledge.

A number of instances that is written in the Flow run concurrently; what follows begins when all have completed.

Criterion: the number stands in the model, and the instances are synchronized at their end.
Here: the constant stands in the split and in the wait, `for_n`. The join is started by the same commit as the
instances.

Verdict: + `go_to_many` and `for_n` of one constant.
"""

from __future__ import annotations

import asyncio

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
    go_to_many,
    graceful_complete,
)
from examples.workflow_patterns.common import Example, show

REVIEWERS = 3
reviews = Channel("reviews", float)


class Submit(Step[list[float]]):
    """The input: how long each reviewer takes."""

    def execute(self, context: Context, input: list[float]) -> StepDecision:
        instances = (StepMovement.of(Review, input[number]) for number in range(REVIEWERS))
        return go_to_many(*instances, StepMovement.of(Decide, None))


class Review(Step[float]):
    async def execute(self, context: AsyncContext, input: float) -> StepDecision:
        await asyncio.sleep(input)
        reviews.publish(context, input)
        return dead_end()


class Decide(Step[None]):
    def wait_for(self, context: Context, input: None) -> Wait:
        return Wait.until(reviews.for_n(REVIEWERS))

    def execute(self, context: Context, input: None) -> StepDecision:
        return graceful_complete(list(reviews.results(context)))


class InstancesKnownAtDesignTimeFlow(Flow[list[float]]):
    def get_steps(self) -> StepList[list[float]]:
        return StepList.start_step(Submit()).other_steps(Review(), Decide())

    def get_persistence_schema(self) -> PersistenceSchema:
        return PersistenceSchema.of(reviews)


example = Example(InstancesKnownAtDesignTimeFlow(), [0.3, 0.1, 0.2])

if __name__ == "__main__":
    show()
