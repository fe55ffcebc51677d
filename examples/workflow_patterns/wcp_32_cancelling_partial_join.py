"""WCP-32: Cancelling Partial Join.

Of m branches that were split earlier, the first n to arrive start what follows, once, and cancel the others; with
that the construct is as new.

Criterion: firing and cancelling are one act.
Here: the join is a branch of the same split. It waits `for_n(n)`, and its decision goes on and cancels its siblings.
The Channel has an instance for each split, by the id of its Step execution, so that a branch that arrives between
the n-th arrival and the commit is ignored for good.

Verdict: + a Wait, and one decision that fires and cancels.
"""

from __future__ import annotations

import asyncio

from dex import (
    AsyncContext,
    ChannelMap,
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

NEEDED = 2
offers = ChannelMap("offers", str)


class Begin(Step[list[list[Task]]]):
    """The input: rounds, which run at the same time."""

    def execute(self, context: Context, input: list[list[Task]]) -> StepDecision:
        return go_to_many(*(StepMovement.of(Tender, tasks) for tasks in input))


class Tender(Step[list[Task]]):
    def execute(self, context: Context, input: list[Task]) -> StepDecision:
        return go_to_many(*(StepMovement.of(MakeOffer, task) for task in input), StepMovement.of(Enough, None))


class MakeOffer(Step[Task]):
    async def execute(self, context: AsyncContext, input: Task) -> StepDecision:
        await asyncio.sleep(input.seconds)
        offers.publish(context, context.from_step_execution_id, input.name)
        return dead_end()


class Enough(Step[None]):
    def wait_for(self, context: Context, input: None) -> Wait:
        return Wait.until(offers.for_n(context.from_step_execution_id, NEEDED))

    def execute(self, context: Context, input: None) -> StepDecision:
        chosen = list(offers.results(context, context.from_step_execution_id))
        return go_to(Compare, chosen).with_canceling_sibling_steps(MakeOffer)


class Compare(Step[list[str]]):
    def execute(self, context: Context, input: list[str]) -> StepDecision:
        return graceful_complete(input)


class CancellingPartialJoinFlow(Flow[list[list[Task]]]):
    def get_steps(self) -> StepList[list[list[Task]]]:
        return StepList.start_step(Begin()).other_steps(Tender(), MakeOffer(), Enough(), Compare())

    def get_persistence_schema(self) -> PersistenceSchema:
        return PersistenceSchema.of(offers)


ROOF = [Task("slate", 0.2), Task("tile", 20.0), Task("thatch", 0.1)]
example = Example(CancellingPartialJoinFlow(), [ROOF, [Task("oak", 30.0), Task("ash", 0.1), Task("elm", 0.3)]])

if __name__ == "__main__":
    show()
