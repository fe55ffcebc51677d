"""WCP-39: Critical Section.

Two or more parts of a Flow, each of several activities, are never active at the same time: who has begun one ends it
before another begins.

Criterion: a construct that gives several connected activities at a time the sole right to run.
Here: a Channel holds one message, the token. Enter takes it by its wait; the last Step of the section publishes it
again, and so does Release when a Step fails for good. A lock won't do: it covers one method of one Step. All ways
out, with cancellation, are in `examples/patterns/critical_section.py`.

Verdict: +/- the Wait gives one branch the token, but that each way out gives it back is up to the author.
"""

from __future__ import annotations

import asyncio

from dex import (
    AsyncContext,
    Channel,
    Context,
    Flow,
    PersistenceSchema,
    RetryPolicy,
    Step,
    StepDecision,
    StepList,
    StepMovement,
    StepOptions,
    Wait,
    go_to,
    go_to_many,
    graceful_complete,
)
from examples.workflow_patterns.common import Example, Task, show

token = Channel("token", None)


class Begin(Step[list[Task]]):
    def execute(self, context: Context, input: list[Task]) -> StepDecision:
        token.publish(context, None)
        return go_to_many(*(StepMovement.of(Enter, task) for task in input))


class Section(Step[Task]):
    def get_step_options(self) -> StepOptions:
        return StepOptions(execute_retry=RetryPolicy(maximum_attempts=1)).on_execute_failure_proceed_to(Release)


class Enter(Section):
    def wait_for(self, context: Context, input: Task) -> Wait:
        return Wait.until(token.for_one())

    def execute(self, context: Context, input: Task) -> StepDecision:
        return go_to(Remove, input)


class Remove(Section):
    async def execute(self, context: AsyncContext, input: Task) -> StepDecision:
        await asyncio.sleep(input.seconds)
        return go_to(Insert, input)


class Insert(Section):
    """A task called "broken" fails here."""

    async def execute(self, context: AsyncContext, input: Task) -> StepDecision:
        await asyncio.sleep(input.seconds)
        if input.name == "broken":
            raise ValueError("it does not fit")
        token.publish(context, None)
        return graceful_complete(input.name)


class Release(Step[Task]):
    def execute(self, context: Context, input: Task) -> StepDecision:
        token.publish(context, None)
        return graceful_complete(f"{input.name}: released")


class CriticalSectionFlow(Flow[list[Task]]):
    def get_steps(self) -> StepList[list[Task]]:
        return StepList.start_step(Begin()).other_steps(Enter(), Remove(), Insert(), Release())

    def get_persistence_schema(self) -> PersistenceSchema:
        return PersistenceSchema.of(token)


example = Example(CriticalSectionFlow(), [Task("lamp", 0.1), Task("broken", 0.05), Task("fuse", 0.05)])

if __name__ == "__main__":
    show()
