"""WCP-28: Blocking Discriminator.

Branches that may arrive again and again come together. The first arrival of a round starts what follows; one arrival
from each of the others ends the round. A branch that arrives twice in a round is held back until the next.

Criterion: the construct fires once a round, and keeps early arrivals for the round that they belong to.
Here: each line has a Channel of its own, a queue of its arrivals. First waits for `any_of` them, Reset for one of
each other line: so a round takes exactly one of each, and a second one of the same line stays in its queue. (The
line isn't stopped; its arrival is.)

Verdict: +/- two Waits that the author alternates; the queues keep the rounds apart.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from dex import (
    AsyncContext,
    ChannelMap,
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

LINES = ("left", "middle", "right")
arrived = ChannelMap("arrived", str)


@dataclass(frozen=True)
class Round:
    left: int
    """Rounds still to come, with this one."""
    winner: str = ""


class Begin(Step[list[list[float]]]):
    """The input: for each line, the seconds to each of its arrivals from the one before."""

    def execute(self, context: Context, input: list[list[float]]) -> StepDecision:
        lines = [
            StepMovement.of(Run, [Task(line, seconds) for seconds in pauses])
            for line, pauses in zip(LINES, input, strict=True)
        ]
        return go_to_many(*lines, StepMovement.of(First, Round(len(input[0]))))


class Run(Step[list[Task]]):
    """A line."""

    async def execute(self, context: AsyncContext, input: list[Task]) -> StepDecision:
        await asyncio.sleep(input[0].seconds)
        arrived.publish(context, input[0].name, input[0].name)
        return go_to(Run, input[1:]) if input[1:] else dead_end()


class First(Step[Round]):
    def wait_for(self, context: Context, input: Round) -> Wait:
        return Wait.any_of(*(arrived.for_one(line) for line in LINES))

    def execute(self, context: Context, input: Round) -> StepDecision:
        (winner,) = (line for line in LINES if arrived.results(context, line))
        return go_to_many(StepMovement.of(Use, winner), StepMovement.of(Reset, Round(input.left, winner)))


class Reset(Step[Round]):
    def wait_for(self, context: Context, input: Round) -> Wait:
        return Wait.all_of(*(arrived.for_one(line) for line in LINES if line != input.winner))

    def execute(self, context: Context, input: Round) -> StepDecision:
        return go_to(First, Round(input.left - 1)) if input.left > 1 else graceful_complete()


class Use(Step[str]):
    def execute(self, context: Context, input: str) -> StepDecision:
        return graceful_complete(input)


class BlockingDiscriminatorFlow(Flow[list[list[float]]]):
    def get_steps(self) -> StepList[list[list[float]]]:
        return StepList.start_step(Begin()).other_steps(Run(), First(), Reset(), Use())

    def get_persistence_schema(self) -> PersistenceSchema:
        return PersistenceSchema.of(arrived)


example = Example(BlockingDiscriminatorFlow(), [[0.1, 0.1], [0.3, 0.1], [0.2, 0.5]])

if __name__ == "__main__":
    show()
