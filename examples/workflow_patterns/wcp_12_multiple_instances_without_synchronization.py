"""WCP-12: Multiple Instances without Synchronization.

Many instances of an activity are started in one Flow. They run independently of each other and of what follows, and
nobody waits for them.

Criterion: instances with inputs of their own, concurrent within the case, without a join being needed.
Here: `go_to_many` with the same Step many times. Each ends its branch with `dead_end`; the main line goes on at
once.

Verdict: + the same Step may stand in a decision any number of times.
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
    dead_end,
    go_to_many,
    graceful_complete,
)
from examples.workflow_patterns.common import Example, Task, show


class Announce(Step[list[Task]]):
    def execute(self, context: Context, input: list[Task]) -> StepDecision:
        return go_to_many(*(StepMovement.of(SendLetter, task) for task in input), StepMovement.of(FileCase, None))


class SendLetter(Step[Task]):
    async def execute(self, context: AsyncContext, input: Task) -> StepDecision:
        await asyncio.sleep(input.seconds)
        context.record_event("sent", input.name)
        return dead_end()


class FileCase(Step[None]):
    def execute(self, context: Context, input: None) -> StepDecision:
        return graceful_complete("filed")


class InstancesWithoutSynchronizationFlow(Flow[list[Task]]):
    def get_steps(self) -> StepList[list[Task]]:
        return StepList.start_step(Announce()).other_steps(SendLetter(), FileCase())


example = Example(InstancesWithoutSynchronizationFlow(), [Task("Ada", 0.3), Task("Ben", 0.1), Task("Cleo", 0.2)])

if __name__ == "__main__":
    show()
