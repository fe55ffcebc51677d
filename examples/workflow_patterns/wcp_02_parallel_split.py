"""WCP-2: Parallel Split.

After an activity, two or more branches begin, each with a thread of control of its own, and run concurrently.

Criterion: a construct that turns one thread of control into several, all of which are taken.
Here: `go_to_many` starts one Step execution per movement, in one commit: all branches begin, or none.

Verdict: + `go_to_many` is the construct.
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
    go_to_many,
    graceful_complete,
)
from examples.workflow_patterns.common import Example, show

SECONDS = 0.2


class TakeOrder(Step[None]):
    def execute(self, context: Context, input: None) -> StepDecision:
        return go_to_many(*(StepMovement.of(branch, SECONDS) for branch in (Pack, Invoice, TellCustomer)))


class Branch(Step[float]):
    async def execute(self, context: AsyncContext, input: float) -> StepDecision:
        await asyncio.sleep(input)
        return graceful_complete()


class Pack(Branch): ...


class Invoice(Branch): ...


class TellCustomer(Branch): ...


class ParallelSplitFlow(Flow[None]):
    def get_steps(self) -> StepList[None]:
        return StepList.start_step(TakeOrder()).other_steps(Pack(), Invoice(), TellCustomer())


example = Example(ParallelSplitFlow())

if __name__ == "__main__":
    show()
