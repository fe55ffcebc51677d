"""WCP-26: Cancel Multiple Instance Activity.

All instances of an activity that have not completed are withdrawn, and the activity with them: what would have
followed doesn't. Instances that have completed are left as they are.

Criterion: the whole set is cancelled by one act, whichever of its instances waits, runs or has ended.
Here: `.with_canceling_steps(Probe, Evaluate)` cancels every open execution of the instances' Step, and their join.

Verdict: + naming a Step cancels all its executions.
"""

from __future__ import annotations

import asyncio

from dex import (
    AsyncClient,
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

found = Channel("found", str)
abort = Channel("abort", None)


class Begin(Step[list[Task]]):
    def execute(self, context: Context, input: list[Task]) -> StepDecision:
        instances = (StepMovement.of(Probe, task) for task in input)
        return go_to_many(*instances, StepMovement.of(Evaluate, len(input)), StepMovement.of(Abort, None))


class Probe(Step[Task]):
    """An instance."""

    async def execute(self, context: AsyncContext, input: Task) -> StepDecision:
        await asyncio.sleep(input.seconds)
        found.publish(context, input.name)
        return dead_end()


class Evaluate(Step[int]):
    """The join of the instances."""

    def wait_for(self, context: Context, input: int) -> Wait:
        return Wait.until(found.for_n(input))

    def execute(self, context: Context, input: int) -> StepDecision:
        return graceful_complete("evaluated").with_canceling_steps(Abort)


class Abort(Step[None]):
    def wait_for(self, context: Context, input: None) -> Wait:
        return Wait.until(abort.for_one())

    def execute(self, context: Context, input: None) -> StepDecision:
        return graceful_complete("aborted").with_canceling_steps(Probe, Evaluate)


class CancelInstancesFlow(Flow[list[Task]]):
    def get_steps(self) -> StepList[list[Task]]:
        return StepList.start_step(Begin()).other_steps(Probe(), Evaluate(), Abort())

    def get_persistence_schema(self) -> PersistenceSchema:
        return PersistenceSchema.of(found, abort)


async def end_early(client: AsyncClient, flow_id: str) -> None:
    await asyncio.sleep(0.5)
    await client.publish(flow_id, abort, None)


example = Example(CancelInstancesFlow(), [Task("north"), Task("south", 20.0), Task("east", 30.0)], drive=end_early)

if __name__ == "__main__":
    show()
