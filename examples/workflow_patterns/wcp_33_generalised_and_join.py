"""WCP-33: Generalised AND-Join.

Two or more branches come together into one, which goes on when each has arrived. A branch may arrive again before
the others have: such arrivals are kept, and count for the next times.

Criterion: arrivals are kept apart by branch and never lost, and each firing takes exactly one of each.
Here: a Channel for each branch, `all_of`, and a Step that goes back to waiting after it has fired.

Verdict: + `Wait.all_of` over Channels is the construct: Channels keep what is not yet matched.
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
from examples.workflow_patterns.common import Example, show

frames = Channel("frames", int)
wheels = Channel("wheels", int)


class Begin(Step[list[list[float]]]):
    """The input: the seconds to each frame from the one before, and to each pair of wheels."""

    def execute(self, context: Context, input: list[list[float]]) -> StepDecision:
        bicycles = min(len(input[0]), len(input[1]))
        return go_to_many(
            StepMovement.of(WeldFrames, input[0]),
            StepMovement.of(LaceWheels, input[1]),
            StepMovement.of(Assemble, bicycles),
        )


class WeldFrames(Step[list[float]]):
    async def execute(self, context: AsyncContext, input: list[float]) -> StepDecision:
        await asyncio.sleep(input[0])
        frames.publish(context, len(input))
        return go_to(WeldFrames, input[1:]) if input[1:] else dead_end()


class LaceWheels(Step[list[float]]):
    async def execute(self, context: AsyncContext, input: list[float]) -> StepDecision:
        await asyncio.sleep(input[0])
        wheels.publish(context, len(input))
        return go_to(LaceWheels, input[1:]) if input[1:] else dead_end()


class Assemble(Step[int]):
    """The join. The input: how many bicycles are still to be made."""

    def wait_for(self, context: Context, input: int) -> Wait:
        return Wait.all_of(frames.for_one(), wheels.for_one())

    def execute(self, context: Context, input: int) -> StepDecision:
        return go_to(Assemble, input - 1) if input > 1 else graceful_complete("all assembled")


class GeneralisedAndJoinFlow(Flow[list[list[float]]]):
    def get_steps(self) -> StepList[list[list[float]]]:
        return StepList.start_step(Begin()).other_steps(WeldFrames(), LaceWheels(), Assemble())

    def get_persistence_schema(self) -> PersistenceSchema:
        return PersistenceSchema.of(frames, wheels)


example = Example(GeneralisedAndJoinFlow(), [[0.1, 0.1, 0.1], [0.3, 0.2]])

if __name__ == "__main__":
    show()
