"""WCP-31: Blocking Partial Join.

Branches that may arrive again and again come together. In each round the first n of the m to arrive start what
follows; one arrival from each of the others ends the round. A branch that arrives twice in a round is held back
until the next.

Criterion: the construct fires once a round, on n different branches, and keeps early arrivals for their round.
Here: each line has a Channel of its own. Pair waits for `any_combination_of` n of them, each combination being one
message of each of its lines; Reset waits for one of each line that was not in it.

Verdict: +/- two Waits that the author alternates, and n of m spelled out as combinations.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from itertools import combinations

from dex import (
    AsyncContext,
    ChannelMap,
    ConditionCombination,
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
NEEDED = 2
arrived = ChannelMap("arrived", str)


@dataclass(frozen=True)
class Round:
    left: int
    """Rounds still to come, with this one."""
    winners: list[str] = field(default_factory=list)


class Begin(Step[list[list[float]]]):
    """The input: for each line, the seconds to each of its arrivals from the one before."""

    def execute(self, context: Context, input: list[list[float]]) -> StepDecision:
        lines = [
            StepMovement.of(Run, [Task(line, seconds) for seconds in pauses])
            for line, pauses in zip(LINES, input, strict=True)
        ]
        return go_to_many(*lines, StepMovement.of(Pair, Round(len(input[0]))))


class Run(Step[list[Task]]):
    """A line."""

    async def execute(self, context: AsyncContext, input: list[Task]) -> StepDecision:
        await asyncio.sleep(input[0].seconds)
        arrived.publish(context, input[0].name, input[0].name)
        return go_to(Run, input[1:]) if input[1:] else dead_end()


class Pair(Step[Round]):
    def wait_for(self, context: Context, input: Round) -> Wait:
        one_of_each = [arrived.for_one(line, condition_id=line) for line in LINES]
        return Wait.any_combination_of(*(ConditionCombination.of(*some) for some in combinations(one_of_each, NEEDED)))

    def execute(self, context: Context, input: Round) -> StepDecision:
        winners = [line for line in LINES if arrived.results(context, line)]
        return go_to_many(StepMovement.of(Use, winners), StepMovement.of(Reset, Round(input.left, winners)))


class Reset(Step[Round]):
    def wait_for(self, context: Context, input: Round) -> Wait:
        return Wait.all_of(*(arrived.for_one(line) for line in LINES if line not in input.winners))

    def execute(self, context: Context, input: Round) -> StepDecision:
        return go_to(Pair, Round(input.left - 1)) if input.left > 1 else graceful_complete()


class Use(Step[list[str]]):
    def execute(self, context: Context, input: list[str]) -> StepDecision:
        return graceful_complete(input)


class BlockingPartialJoinFlow(Flow[list[list[float]]]):
    def get_steps(self) -> StepList[list[list[float]]]:
        return StepList.start_step(Begin()).other_steps(Run(), Pair(), Reset(), Use())

    def get_persistence_schema(self) -> PersistenceSchema:
        return PersistenceSchema.of(arrived)


example = Example(BlockingPartialJoinFlow(), [[0.1, 0.1], [0.3, 0.1], [0.2, 0.5]])

if __name__ == "__main__":
    show()
