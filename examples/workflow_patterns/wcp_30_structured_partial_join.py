"""WCP-30: Structured Partial Join.

Of m branches that were split earlier, the first n to arrive start what follows, once. The others are ignored; when
all have arrived the construct is as new.

Criterion: one construct that fires on the n-th arrival, swallows the rest, and resets when the last is in.
Here: as WCP-9, of which this is the general form: Quorum waits `for_n(n)` and fires, Rest takes the m - n to come.

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

QUORUM = 2
vote = Channel("vote", str)


class Ask(Step[list[list[Task]]]):
    """Begins a round. The input: who is asked in this round and in the following ones."""

    def execute(self, context: Context, input: list[list[Task]]) -> StepDecision:
        return go_to_many(*(StepMovement.of(CastVote, task) for task in input[0]), StepMovement.of(Quorum, input))


class CastVote(Step[Task]):
    async def execute(self, context: AsyncContext, input: Task) -> StepDecision:
        await asyncio.sleep(input.seconds)
        vote.publish(context, input.name)
        return dead_end()


class Quorum(Step[list[list[Task]]]):
    def wait_for(self, context: Context, input: list[list[Task]]) -> Wait:
        return Wait.until(vote.for_n(QUORUM))

    def execute(self, context: Context, input: list[list[Task]]) -> StepDecision:
        return go_to_many(StepMovement.of(Act, list(vote.results(context))), StepMovement.of(Rest, input))


class Rest(Step[list[list[Task]]]):
    """The reset."""

    def wait_for(self, context: Context, input: list[list[Task]]) -> Wait:
        return Wait.until(vote.for_n(len(input[0]) - QUORUM))

    def execute(self, context: Context, input: list[list[Task]]) -> StepDecision:
        return go_to(Ask, input[1:]) if input[1:] else graceful_complete()


class Act(Step[list[str]]):
    def execute(self, context: Context, input: list[str]) -> StepDecision:
        return graceful_complete(input)


class StructuredPartialJoinFlow(Flow[list[list[Task]]]):
    def get_steps(self) -> StepList[list[list[Task]]]:
        return StepList.start_step(Ask()).other_steps(CastVote(), Quorum(), Rest(), Act())

    def get_persistence_schema(self) -> PersistenceSchema:
        return PersistenceSchema.of(vote)


FIRST_ROUND = [Task("Ada", 0.3), Task("Ben", 0.1), Task("Cleo", 0.2)]
example = Example(StructuredPartialJoinFlow(), [FIRST_ROUND, [Task("Dan", 0.2), Task("Eve", 0.1), Task("Finn")]])

if __name__ == "__main__":
    show()
