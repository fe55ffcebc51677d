"""WCP-14: Multiple Instances with a priori Run-Time Knowledge.

As many instances as the data of the case ask for run concurrently: the number is known when the first is started.
What follows begins when all have completed.

Criterion: the number is computed while the Flow runs, and the instances are synchronized at their end.
Here: a Wait starts one SubFlow per item, in `all_of`; nobody counts. An instance that fails has ended, too: the Step
reads how. (Steps instead of SubFlows are just as well: WCP-13 with a number that the split hands to the join.)

Verdict: + a Wait on SubFlows starts and joins as many as it is given.
"""

from __future__ import annotations

import asyncio

from dex import (
    AsyncContext,
    Context,
    Flow,
    FlowStatus,
    Step,
    StepDecision,
    StepList,
    SubFlow,
    Wait,
    force_fail,
    go_to,
    graceful_complete,
)
from examples.workflow_patterns.common import Example, Task, show


class AskSuppliers(Step[list[Task]]):
    def wait_for(self, context: Context, input: list[Task]) -> Wait:
        if not input:
            return Wait.skip_immediately()
        return Wait.all_of(*(SubFlow.run(quote_flow, task) for task in input))

    def execute(self, context: Context, input: list[Task]) -> StepDecision:
        quotes = [SubFlow.get_condition_results(context, index) for index in range(len(input))]
        return go_to(Compare, [q.single_output(str) for q in quotes if q.status is FlowStatus.COMPLETED])


class Compare(Step[list[str]]):
    def execute(self, context: Context, input: list[str]) -> StepDecision:
        return graceful_complete(input)


class InstancesKnownAtRunTimeFlow(Flow[list[Task]]):
    def get_steps(self) -> StepList[list[Task]]:
        return StepList.start_step(AskSuppliers()).other_steps(Compare())


class Quote(Step[Task]):
    async def execute(self, context: AsyncContext, input: Task) -> StepDecision:
        await asyncio.sleep(input.seconds)
        return graceful_complete(input.name) if input.name else force_fail("nobody there")


class QuoteFlow(Flow[Task]):
    """An instance."""

    def get_steps(self) -> StepList[Task]:
        return StepList.start_step(Quote())


quote_flow = QuoteFlow()
example = Example(
    InstancesKnownAtRunTimeFlow(), [Task("Ada", 0.1), Task("Ben", 0.3), Task("", 0.2)], children=(quote_flow,)
)

if __name__ == "__main__":
    show()
