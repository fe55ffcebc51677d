"""WCP-3: Synchronization.

Two or more branches come together into one, which goes on when all of them have completed.

Criterion: a construct that joins all incoming branches, passes control on once, and takes one arrival of each.
Here: each branch has a Channel, on which it says with its last commit that it has arrived. The joining Step waits
for `all_of` of them: it takes one message from each, or from none.

Verdict: + `Wait.all_of` is the construct; an arc into it is a Channel.
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
    dead_end,
    go_to_many,
    graceful_complete,
)
from examples.workflow_patterns.common import Example, show

packed = Channel("packed", None)
invoiced = Channel("invoiced", None)


class TakeOrder(Step[list[float]]):
    def execute(self, context: Context, input: list[float]) -> StepDecision:
        return go_to_many(
            StepMovement.of(Pack, input[0]), StepMovement.of(Invoice, input[1]), StepMovement.of(Ship, None)
        )


class Pack(Step[float]):
    async def execute(self, context: AsyncContext, input: float) -> StepDecision:
        await asyncio.sleep(input)
        packed.publish(context, None)
        return dead_end()


class Invoice(Step[float]):
    async def execute(self, context: AsyncContext, input: float) -> StepDecision:
        await asyncio.sleep(input)
        invoiced.publish(context, None)
        return dead_end()


class Ship(Step[None]):
    def wait_for(self, context: Context, input: None) -> Wait:
        return Wait.all_of(packed.for_one(), invoiced.for_one())

    def execute(self, context: Context, input: None) -> StepDecision:
        return graceful_complete("shipped")


class SynchronizationFlow(Flow[list[float]]):
    def get_steps(self) -> StepList[list[float]]:
        return StepList.start_step(TakeOrder()).other_steps(Pack(), Invoice(), Ship())

    def get_persistence_schema(self) -> PersistenceSchema:
        return PersistenceSchema.of(packed, invoiced)


example = Example(SynchronizationFlow(), [0.3, 0.1])

if __name__ == "__main__":
    show()
