"""WCP-24: Persistent Trigger.

A signal from outside starts an activity, at once if the Flow is waiting for it, otherwise as soon as it does.

Criterion: a signal is kept until the activity that it is for can act on it.
Here: a message in a Channel stays until a Step takes it, however long that is, and across crashes.

Verdict: + a Channel is the construct.
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
    Wait,
    go_to,
    graceful_complete,
)
from examples.workflow_patterns.common import Example, show

COOK_SECONDS = 2.0

orders = Channel("orders", str)


class TakeOrder(Step[list[str]]):
    """The input: what was cooked so far. An order for "the bill" is the last."""

    def wait_for(self, context: Context, input: list[str]) -> Wait:
        return Wait.until(orders.for_one())

    def execute(self, context: Context, input: list[str]) -> StepDecision:
        order = orders.results(context)[0]
        return graceful_complete(input) if order == "the bill" else go_to(Cook, [*input, order])


class Cook(Step[list[str]]):
    """The activity; orders that come meanwhile are kept."""

    async def execute(self, context: AsyncContext, input: list[str]) -> StepDecision:
        await asyncio.sleep(COOK_SECONDS)
        return go_to(TakeOrder, input)


class PersistentTriggerFlow(Flow[list[str]]):
    def get_steps(self) -> StepList[list[str]]:
        return StepList.start_step(TakeOrder()).other_steps(Cook())

    def get_persistence_schema(self) -> PersistenceSchema:
        return PersistenceSchema.of(orders)


async def order(client: AsyncClient, flow_id: str) -> None:
    for dish in ("soup", "the bill"):
        await client.publish(flow_id, orders, dish)


example = Example(PersistentTriggerFlow(), [], drive=order)

if __name__ == "__main__":
    show()
