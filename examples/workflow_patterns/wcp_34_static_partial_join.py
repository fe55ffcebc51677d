"""WCP-34: Static Partial Join for Multiple Instances.

Of m instances of an activity the first n to complete start what follows, once. m and n are known when the first
begins. The others run to their end without effect; when all have completed the activity can be done anew.

Criterion: a threshold on the instances of one activity, whose later completions have no effect, and a reset at the
end.
Here: the split hands n to Enough, which waits `for_n(n)`; Rest takes the m - n completions to come, and then the
activity may begin again.

Verdict: +/- the threshold is a Wait, but that the rest is counted and swallowed is up to the author.
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

samples = Channel("samples", str)


@dataclass(frozen=True)
class Series:
    needed: int
    tasks: list[Task]


class Begin(Step[list[Series]]):
    """The input: this series, and those that follow it."""

    def execute(self, context: Context, input: list[Series]) -> StepDecision:
        instances = (StepMovement.of(TakeSample, task) for task in input[0].tasks)
        return go_to_many(*instances, StepMovement.of(Enough, input))


class TakeSample(Step[Task]):
    """An instance."""

    async def execute(self, context: AsyncContext, input: Task) -> StepDecision:
        await asyncio.sleep(input.seconds)
        samples.publish(context, input.name)
        return dead_end()


class Enough(Step[list[Series]]):
    def wait_for(self, context: Context, input: list[Series]) -> Wait:
        return Wait.until(samples.for_n(input[0].needed))

    def execute(self, context: Context, input: list[Series]) -> StepDecision:
        return go_to_many(StepMovement.of(Analyse, list(samples.results(context))), StepMovement.of(Rest, input))


class Rest(Step[list[Series]]):
    """The reset."""

    def wait_for(self, context: Context, input: list[Series]) -> Wait:
        return Wait.until(samples.for_n(len(input[0].tasks) - input[0].needed))

    def execute(self, context: Context, input: list[Series]) -> StepDecision:
        return go_to(Begin, input[1:]) if input[1:] else graceful_complete()


class Analyse(Step[list[str]]):
    def execute(self, context: Context, input: list[str]) -> StepDecision:
        return graceful_complete(input)


class StaticPartialJoinFlow(Flow[list[Series]]):
    def get_steps(self) -> StepList[list[Series]]:
        return StepList.start_step(Begin()).other_steps(TakeSample(), Enough(), Rest(), Analyse())

    def get_persistence_schema(self) -> PersistenceSchema:
        return PersistenceSchema.of(samples)


WELLS = Series(2, [Task("well 1", 0.3), Task("well 2", 0.1), Task("well 3", 0.2)])
example = Example(StaticPartialJoinFlow(), [WELLS, Series(1, [Task("lake 1", 0.2), Task("lake 2", 0.1)])])

if __name__ == "__main__":
    show()
