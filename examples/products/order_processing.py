"""Order processing: charge, wait for the warehouse, remind it every day, and pay back when it can't deliver.

The customer gets an answer when the money is charged (`wait_for_step_completion`); the rest takes days. The warehouse
tells by a message how it went. Everybody may ask at any time how the order stands.

If a process dies in the middle: the charge is tried again under the same key, so the card is charged once. The days
until the next reminder go on in the database. A message of the warehouse that was accepted is not lost.

Run it with `python -m examples.products.order_processing`.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Protocol
from uuid import uuid4

from dex import (
    Attribute,
    AttributeIndex,
    Channel,
    Client,
    Context,
    Flow,
    IndexType,
    PersistenceSchema,
    Registry,
    RetryPolicy,
    RPCResult,
    Step,
    StepDecision,
    StepExecutionId,
    StepList,
    StepOptions,
    Timer,
    Wait,
    WaitForStepCompletionOptions,
    force_fail,
    go_to,
    graceful_complete,
    rpc,
)


@dataclass(frozen=True)
class Order:
    card: str
    article: str
    price: int


@dataclass(frozen=True)
class Shipment:
    """tracking: the number of the parcel; empty when the article can't be delivered."""

    tracking: str = ""


class Shop(Protocol):
    def charge(self, card: str, price: int, key: str) -> None: ...

    def refund(self, card: str, price: int, key: str) -> None: ...

    def remind_warehouse(self, article: str) -> None: ...


class DemoShop:
    def charge(self, card: str, price: int, key: str) -> None:
        if card == "stolen":
            raise PermissionError("the card is refused")

    def refund(self, card: str, price: int, key: str) -> None: ...

    def remind_warehouse(self, article: str) -> None: ...


status = Attribute("status", str, index=AttributeIndex(IndexType.KEYWORD, "OrderStatus"))
reminders = Attribute("reminders", int)
shipped = Channel("shipped", Shipment)
THREE_TIMES = RetryPolicy(initial_interval=timedelta(seconds=1), maximum_attempts=3)


class ShopStep(Step[Order]):
    def __init__(self, shop: Shop, remind_after: timedelta) -> None:
        self.shop, self.remind_after = shop, remind_after


class Charge(ShopStep):
    def get_step_options(self) -> StepOptions:
        return StepOptions(execute_retry=THREE_TIMES).on_execute_failure_proceed_to(Refuse)

    def execute(self, context: Context, input: Order) -> StepDecision:
        self.shop.charge(input.card, input.price, context.flow_id)
        status.set(context, "charged")
        return go_to(Ship, input)


class Ship(ShopStep):
    def wait_for(self, context: Context, input: Order) -> Wait:
        return Wait.any_of(shipped.for_one(), Timer.by_duration(self.remind_after))

    def execute(self, context: Context, input: Order) -> StepDecision:
        for shipment in shipped.results(context):
            if not shipment.tracking:
                return go_to(Refund, input)
            status.set(context, "shipped")
            return graceful_complete(f"{input.article} is on its way: {shipment.tracking}")
        self.shop.remind_warehouse(input.article)
        reminders.set(context, reminders.get(context) + 1)
        return go_to(Ship, input)


class Refund(ShopStep):
    def execute(self, context: Context, input: Order) -> StepDecision:
        self.shop.refund(input.card, input.price, context.flow_id)
        status.set(context, "refunded")
        return graceful_complete(f"{input.article} is sold out; {input.price} is paid back")


class Refuse(ShopStep):
    def execute(self, context: Context, input: Order) -> StepDecision:
        status.set(context, "refused")
        error = context.recovery_error
        return force_fail(error.detail if error else "not charged")


class OrderProcessingFlow(Flow[Order]):
    def __init__(self, shop: Shop, remind_after: timedelta = timedelta(hours=24)) -> None:
        self.steps = [step(shop, remind_after) for step in (Ship, Refund, Refuse)]
        self.charge = Charge(shop, remind_after)

    def get_steps(self) -> StepList[Order]:
        return StepList.start_step(self.charge).other_steps(*self.steps)

    def get_persistence_schema(self) -> PersistenceSchema:
        return PersistenceSchema.of(status, reminders, shipped)

    @rpc
    def how_is_it(self, context: Context) -> RPCResult[str]:
        return RPCResult(status.get(context) or "accepted")


flow = OrderProcessingFlow(DemoShop(), remind_after=timedelta(seconds=1))
registry = Registry([flow])


def buy(client: Client, order_id: str, order: Order) -> str:
    """The answer to the customer: as soon as it is known whether the card is good."""
    client.start_flow(flow, order_id, order)
    soon = WaitForStepCompletionOptions(request_timeout=timedelta(seconds=30))
    client.wait_for_step_completion(order_id, StepExecutionId(Charge), soon)
    return client.invoke_rpc(flow.how_is_it, order_id)


def main() -> None:
    import dexray

    with dexray.connect(registry) as client:
        for shipment in (Shipment("parcel 12"), Shipment()):
            order_id = f"order-{uuid4()}"
            print(buy(client, order_id, Order("Ada's card", "a bicycle", 300)))
            client.publish(order_id, shipped, shipment)
            print(client.wait_for_flow(order_id).single_output(str))


if __name__ == "__main__":
    main()
