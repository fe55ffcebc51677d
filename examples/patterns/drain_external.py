"""Drain a queue that clients fill: the Flow ends when it has nothing to do, and no message falls into the gap.

All orders of a customer go to one Flow, which packs what is there into a parcel, and ends when nothing more has come.
Between its last look and its end a message could arrive and be lost. `force_complete_if_channels_empty` looks and ends
in one commit: a message that came before it is packed, one that comes after it is refused, and its sender starts a new
run.

If a process dies in the middle: an order that `submit` was told is accepted is in the database. A parcel that was being
sent is tried again, so the carrier is given a number by which it knows a repeat.

Run it with `python -m examples.patterns.drain_external`.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Protocol
from uuid import uuid4

from dex import (
    AsyncClient,
    AsyncContext,
    Channel,
    Context,
    Flow,
    FlowAlreadyStartedError,
    FlowNotActiveOrNotFoundError,
    IdReusePolicy,
    PersistenceSchema,
    Registry,
    StartFlowOptions,
    Step,
    StepDecision,
    StepList,
    StepMovement,
    Wait,
    force_complete_if_channels_empty,
)

orders = Channel("orders", str)
AGAIN = StartFlowOptions(id_reuse_policy=IdReusePolicy.ALLOW_IF_NOT_RUNNING)


class Carrier(Protocol):
    async def send(self, number: str, goods: list[str]) -> None:
        """Sends a parcel; the same number again: does nothing."""


class SlowCarrier:
    async def send(self, number: str, goods: list[str]) -> None:
        await asyncio.sleep(0.5)


class Pack(Step[int]):
    """Input: how many orders have been packed in this run."""

    def __init__(self, carrier: Carrier) -> None:
        self.carrier = carrier

    def wait_for(self, context: Context, input: int) -> Wait:
        return Wait.until(orders.at_least(1))

    async def execute(self, context: AsyncContext, input: int) -> StepDecision:
        goods = list(orders.results(context))
        await self.carrier.send(f"{context.run_id}/{context.step_execution_id}", goods)
        packed = input + len(goods)
        return force_complete_if_channels_empty(packed, StepMovement.of(Pack, packed), orders)


class DrainExternalFlow(Flow[int]):
    def __init__(self, carrier: Carrier) -> None:
        self.carrier = carrier

    def get_steps(self) -> StepList[int]:
        return StepList.start_step(Pack(self.carrier))

    def get_persistence_schema(self) -> PersistenceSchema:
        return PersistenceSchema.of(orders)


async def submit(client: AsyncClient, flow: DrainExternalFlow, flow_id: str, order: str) -> None:
    """Gives an order to the customer's Flow, which is started when it does not run."""
    while True:
        try:
            await client.publish(flow_id, orders, order)
            return
        except FlowNotActiveOrNotFoundError:
            with suppress(FlowAlreadyStartedError):  # another sender was faster
                await client.start_flow(flow, flow_id, 0, AGAIN)


flow = DrainExternalFlow(SlowCarrier())
registry = Registry([flow], allow_async_handlers=True)


async def demo() -> None:
    import dexray

    async with await dexray.connect_async(registry) as client:
        flow_id = f"customer-{uuid4()}"
        await asyncio.gather(*(submit(client, flow, flow_id, f"article {number}") for number in range(10)))
        print((await client.wait_for_flow(flow_id)).single_output(int), "orders packed in the last run")


def main() -> None:
    asyncio.run(demo())


if __name__ == "__main__":
    main()
