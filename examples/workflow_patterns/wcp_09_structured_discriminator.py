"""WCP-9: Structured Discriminator.

Branches that were split earlier come together. The first to arrive starts what follows; the others are ignored. When
all have arrived the construct is as new, ready for the next round.

Criterion: one construct that fires on the first arrival, swallows the rest, and resets when the last is in.
Here: First waits for one answer and fires. With the same decision it starts Rest, which takes the answers that are
still to come, and only then lets the next round begin: an answer that is late can't be taken for one of the next
round.

Verdict: +/- the firing is a Wait, but that the rest is counted and swallowed is up to the author.
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
    go_to,
    go_to_many,
    graceful_complete,
)
from examples.workflow_patterns.common import Example, Task, show

answer = Channel("answer", str)


class Ask(Step[list[list[Task]]]):
    """Begins a round. The input: who is asked in this round and in the following ones."""

    def execute(self, context: Context, input: list[list[Task]]) -> StepDecision:
        return go_to_many(*(StepMovement.of(Reply, task) for task in input[0]), StepMovement.of(First, input))


class Reply(Step[Task]):
    async def execute(self, context: AsyncContext, input: Task) -> StepDecision:
        await asyncio.sleep(input.seconds)
        answer.publish(context, input.name)
        return dead_end()


class First(Step[list[list[Task]]]):
    def wait_for(self, context: Context, input: list[list[Task]]) -> Wait:
        return Wait.until(answer.for_one())

    def execute(self, context: Context, input: list[list[Task]]) -> StepDecision:
        return go_to_many(StepMovement.of(Use, answer.results(context)[0]), StepMovement.of(Rest, input))


class Rest(Step[list[list[Task]]]):
    """The reset."""

    def wait_for(self, context: Context, input: list[list[Task]]) -> Wait:
        return Wait.until(answer.for_n(len(input[0]) - 1))

    def execute(self, context: Context, input: list[list[Task]]) -> StepDecision:
        return go_to(Ask, input[1:]) if input[1:] else graceful_complete()


class Use(Step[str]):
    def execute(self, context: Context, input: str) -> StepDecision:
        return graceful_complete(input)


class StructuredDiscriminatorFlow(Flow[list[list[Task]]]):
    def get_steps(self) -> StepList[list[list[Task]]]:
        return StepList.start_step(Ask()).other_steps(Reply(), First(), Rest(), Use())

    def get_persistence_schema(self) -> PersistenceSchema:
        return PersistenceSchema.of(answer)


example = Example(
    StructuredDiscriminatorFlow(), [[Task("Ada", 0.1), Task("Ben", 0.4)], [Task("Cleo", 0.2), Task("Dan", 0.1)]]
)

if __name__ == "__main__":
    show()
