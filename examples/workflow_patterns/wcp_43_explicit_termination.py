"""WCP-43: Explicit Termination.

A Flow ends when it reaches a certain point, whatever else is still to do: that is cancelled, and the Flow has
completed successfully.

Criterion: a designated end that completes the case at once, with all remaining work withdrawn.
Here: a Step returns `force_complete`. Its commit closes the Flow; what else runs or waits is ended, and its results
are refused. (SubFlows that are under way go on, as in WCP-20.)

Verdict: + `force_complete` is the construct.
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
    force_complete,
    go_to,
    go_to_many,
    graceful_complete,
)
from examples.workflow_patterns.common import Example, Task, show

never = Channel("never", None)


class Begin(Step[list[Task]]):
    """The input: searches. One called "found" ends the Flow."""

    def execute(self, context: Context, input: list[Task]) -> StepDecision:
        return go_to_many(*(StepMovement.of(Search, task) for task in input), StepMovement.of(Wonder, None))


class Search(Step[Task]):
    async def execute(self, context: AsyncContext, input: Task) -> StepDecision:
        await asyncio.sleep(input.seconds)
        return go_to(End, None) if input.name == "found" else graceful_complete(input.name)


class Wonder(Step[None]):
    """Would wait for ever."""

    def wait_for(self, context: Context, input: None) -> Wait:
        return Wait.until(never.for_one())

    def execute(self, context: Context, input: None) -> StepDecision:
        return graceful_complete("wondered")


class End(Step[None]):
    def execute(self, context: Context, input: None) -> StepDecision:
        return force_complete("the end")


class ExplicitTerminationFlow(Flow[list[Task]]):
    def get_steps(self) -> StepList[list[Task]]:
        return StepList.start_step(Begin()).other_steps(Search(), Wonder(), End())

    def get_persistence_schema(self) -> PersistenceSchema:
        return PersistenceSchema.of(never)


example = Example(ExplicitTerminationFlow(), [Task("attic", 20.0), Task("found", 0.3), Task("cellar", 0.1)])

if __name__ == "__main__":
    show()
