"""WCP-7: Structured Synchronizing Merge.

The branches that an earlier multi-choice took come together into one, which goes on when all those have completed.
Branches that were not taken are not waited for. Choice and merge belong together, one structure around the other.

Criterion: a construct that knows by the structure how many branches are active, without being told by the author.
Here: `wait_for` starts the chosen branches as SubFlows, in `all_of`: what it starts is what it waits for.

Verdict: + a Wait on SubFlows is split and merge in one; a branch is then a Flow of its own.
"""

from __future__ import annotations

import asyncio

from dex import AsyncContext, Context, Flow, Step, StepDecision, StepList, SubFlow, Wait, go_to, graceful_complete
from examples.workflow_patterns.common import Example, Task, show


class Dispatch(Step[list[Task]]):
    """Takes those of the branches that are in the input: at least one."""

    def wait_for(self, context: Context, input: list[Task]) -> Wait:
        return Wait.all_of(*(SubFlow.run(crew_flow, task) for task in input))

    def execute(self, context: Context, input: list[Task]) -> StepDecision:
        reports = [SubFlow.get_condition_results(context, index).single_output(str) for index in range(len(input))]
        return go_to(CloseCall, reports)


class CloseCall(Step[list[str]]):
    def execute(self, context: Context, input: list[str]) -> StepDecision:
        return graceful_complete(input)


class StructuredSynchronizingMergeFlow(Flow[list[Task]]):
    def get_steps(self) -> StepList[list[Task]]:
        return StepList.start_step(Dispatch()).other_steps(CloseCall())


class Attend(Step[Task]):
    async def execute(self, context: AsyncContext, input: Task) -> StepDecision:
        await asyncio.sleep(input.seconds)
        return graceful_complete(f"{input.name} is back")


class CrewFlow(Flow[Task]):
    """A branch."""

    def get_steps(self) -> StepList[Task]:
        return StepList.start_step(Attend())


crew_flow = CrewFlow()
example = Example(
    StructuredSynchronizingMergeFlow(), [Task("engine", 0.1), Task("ambulance", 0.3)], children=(crew_flow,)
)

if __name__ == "__main__":
    show()
