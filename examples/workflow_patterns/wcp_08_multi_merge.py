"""WCP-8: Multi-Merge.

Two or more branches come together into one without synchronization: each arrival starts what follows once more, also
when another is still at it.

Criterion: a construct at which concurrent branches meet, with one activation of what follows for each of them.
Here: each branch returns `go_to` of the same Step, and each of these is a Step execution of its own: Audit-1,
Audit-2.

Verdict: + executions of one Step are independent.
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

AUDIT_SECONDS = 0.1


class Begin(Step[list[Task]]):
    def execute(self, context: Context, input: list[Task]) -> StepDecision:
        return go_to_many(*(StepMovement.of(Work, task) for task in input))


class Work(Step[Task]):
    async def execute(self, context: AsyncContext, input: Task) -> StepDecision:
        await asyncio.sleep(input.seconds)
        return go_to(Audit, input.name)


class Audit(Step[str]):
    async def execute(self, context: AsyncContext, input: str) -> StepDecision:
        await asyncio.sleep(AUDIT_SECONDS)
        return graceful_complete(input)


class MultiMergeFlow(Flow[list[Task]]):
    def get_steps(self) -> StepList[list[Task]]:
        return StepList.start_step(Begin()).other_steps(Work(), Audit())


example = Example(MultiMergeFlow(), [Task("dig", 0.3), Task("lay", 0.1), Task("pave", 0.15)])

if __name__ == "__main__":
    show()
