"""WCP-29: Cancelling Discriminator.

Branches that were split earlier come together. The first to arrive starts what follows and cancels all others; with
that the construct is as new.

Criterion: firing and cancelling are one act, also when two branches end at the same moment.
Here: the branch that is first says it with its own decision: `go_to(Use).with_canceling_sibling_steps(Search)`. What
is committed first wins; a branch that comes after it has been cancelled. Siblings are those of the same split, so
rounds, even concurrent ones, don't touch each other.

Verdict: + one decision of the first branch; no join is needed.
"""

from __future__ import annotations

import asyncio

from dex import (
    AsyncContext,
    Context,
    Flow,
    Step,
    StepDecision,
    StepList,
    StepMovement,
    go_to,
    go_to_many,
    graceful_complete,
)
from examples.workflow_patterns.common import Example, Task, show


class Begin(Step[list[list[Task]]]):
    """The input: rounds, which run at the same time."""

    def execute(self, context: Context, input: list[list[Task]]) -> StepDecision:
        return go_to_many(*(StepMovement.of(Split, tasks) for tasks in input))


class Split(Step[list[Task]]):
    def execute(self, context: Context, input: list[Task]) -> StepDecision:
        return go_to_many(*(StepMovement.of(Search, task) for task in input))


class Search(Step[Task]):
    async def execute(self, context: AsyncContext, input: Task) -> StepDecision:
        await asyncio.sleep(input.seconds)
        return go_to(Use, input.name).with_canceling_sibling_steps(Search)


class Use(Step[str]):
    def execute(self, context: Context, input: str) -> StepDecision:
        return graceful_complete(input)


class CancellingDiscriminatorFlow(Flow[list[list[Task]]]):
    def get_steps(self) -> StepList[list[list[Task]]]:
        return StepList.start_step(Begin()).other_steps(Split(), Search(), Use())


example = Example(
    CancellingDiscriminatorFlow(), [[Task("web", 20.0), Task("index", 0.1)], [Task("attic", 0.3), Task("cellar", 30.0)]]
)

if __name__ == "__main__":
    show()
