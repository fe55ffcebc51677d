"""WCP-41: Thread Merge.

In one branch of a Flow there are several threads of control; a given number of them are merged into one.

Criterion: the number can be given, and each firing takes that many threads of the branch, no more and no less.
Here: a thread says on a Channel that it has come; the merge waits `for_n` of them, and then for the next ones.

Verdict: + `for_n` is the construct.
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
from examples.workflow_patterns.common import Example, Task, show

DOZEN = 3
"""Of a small hen."""
laid = Channel("laid", str)


class Begin(Step[list[Task]]):
    """The input: the threads, one per egg."""

    def execute(self, context: Context, input: list[Task]) -> StepDecision:
        threads = [StepMovement.of(LayEgg, task) for task in input]
        return go_to_many(*threads, StepMovement.of(FillBox, len(input) // DOZEN))


class LayEgg(Step[Task]):
    async def execute(self, context: AsyncContext, input: Task) -> StepDecision:
        await asyncio.sleep(input.seconds)
        laid.publish(context, input.name)
        return dead_end()


class FillBox(Step[int]):
    """The merge. The input: how many boxes are still to be filled."""

    def wait_for(self, context: Context, input: int) -> Wait:
        return Wait.until(laid.for_n(DOZEN))

    def execute(self, context: Context, input: int) -> StepDecision:
        more = [StepMovement.of(FillBox, input - 1)] if input > 1 else []
        return go_to_many(StepMovement.of(SellBox, list(laid.results(context))), *more)


class SellBox(Step[list[str]]):
    def execute(self, context: Context, input: list[str]) -> StepDecision:
        return graceful_complete(input)


class ThreadMergeFlow(Flow[list[Task]]):
    def get_steps(self) -> StepList[list[Task]]:
        return StepList.start_step(Begin()).other_steps(LayEgg(), FillBox(), SellBox())

    def get_persistence_schema(self) -> PersistenceSchema:
        return PersistenceSchema.of(laid)


example = Example(ThreadMergeFlow(), [Task(f"egg {number}", number / 10) for number in range(6)])

if __name__ == "__main__":
    show()
