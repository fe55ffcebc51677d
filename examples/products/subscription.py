"""Subscription: a free trial, then a charge each month, with a price that may change and a customer who may leave.

Three things are waited for at once, each in a branch of its own: the next bill, a new price, the cancellation.
None disturbs the others: a new price does not move the day of the bill.

If a process dies in the middle: bills fall due in the database. One that was being charged is charged again with the
same key, and the bank knows it. Messages wait until their branch is back.

Run it with `python -m examples.products.subscription`.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Protocol
from uuid import uuid4

from dex import (
    Attribute,
    Channel,
    Context,
    Flow,
    PersistenceSchema,
    Registry,
    RPCResult,
    Step,
    StepDecision,
    StepList,
    StepMovement,
    Timer,
    Wait,
    force_complete,
    go_to,
    go_to_many,
    rpc,
)


@dataclass(frozen=True)
class Plan:
    customer: str
    price: int
    trial: timedelta = timedelta(days=30)
    period: timedelta = timedelta(days=30)
    bills: int = 12


class Billing(Protocol):
    def welcome(self, customer: str) -> None: ...

    def charge(self, customer: str, price: int, key: str) -> None: ...


class NoBilling:
    def welcome(self, customer: str) -> None: ...

    def charge(self, customer: str, price: int, key: str) -> None: ...


price = Attribute("price", int)
charged = Attribute("charged", int)
new_price = Channel("new_price", int)
cancel = Channel("cancel", str)


class Initialize(Step[Plan]):
    def __init__(self, billing: Billing) -> None:
        self.billing = billing

    def execute(self, context: Context, input: Plan) -> StepDecision:
        self.billing.welcome(input.customer)
        price.set(context, input.price)
        return go_to_many(
            StepMovement.of(Trial, input), StepMovement.of(UpdateChargeAmount, None), StepMovement.of(Cancel, None)
        )


class Trial(Step[Plan]):
    def wait_for(self, context: Context, input: Plan) -> Wait:
        return Wait.until(Timer.by_duration(input.trial))

    def execute(self, context: Context, input: Plan) -> StepDecision:
        return go_to(ChargeCurrentBill, input)


class ChargeCurrentBill(Step[Plan]):
    """The first bill is due at once, each later one a period after the one before; after the last there is an end."""

    def __init__(self, billing: Billing) -> None:
        self.billing = billing

    def wait_for(self, context: Context, input: Plan) -> Wait:
        number = charged.get(context) + 1
        context.set_step_execution_local("number", number)
        return Wait.skip_immediately() if number == 1 else Wait.until(Timer.by_duration(input.period))

    def execute(self, context: Context, input: Plan) -> StepDecision:
        number = context.get_step_execution_local("number", int) or 0
        if number > input.bills:
            return force_complete(f"ended after {input.bills} bills")
        self.billing.charge(input.customer, price.get(context), f"{context.flow_id}/{number}")
        charged.set(context, number)
        return go_to(ChargeCurrentBill, input)


class UpdateChargeAmount(Step[None]):
    def wait_for(self, context: Context, input: None) -> Wait:
        return Wait.until(new_price.for_one())

    def execute(self, context: Context, input: None) -> StepDecision:
        price.set(context, new_price.results(context)[0])
        return go_to(UpdateChargeAmount, None)


class Cancel(Step[None]):
    def wait_for(self, context: Context, input: None) -> Wait:
        return Wait.until(cancel.for_one())

    def execute(self, context: Context, input: None) -> StepDecision:
        return force_complete(f"canceled after {charged.get(context)} bills: {cancel.results(context)[0]}")


class SubscriptionFlow(Flow[Plan]):
    def __init__(self, billing: Billing) -> None:
        self.billing = billing

    def get_steps(self) -> StepList[Plan]:
        return StepList.start_step(Initialize(self.billing)).other_steps(
            Trial, ChargeCurrentBill(self.billing), UpdateChargeAmount, Cancel
        )

    def get_persistence_schema(self) -> PersistenceSchema:
        return PersistenceSchema.of(price, charged, new_price, cancel)

    @rpc
    def describe(self, context: Context) -> RPCResult[str]:
        return RPCResult(f"{charged.get(context)} bills so far, the next is {price.get(context)}")


flow = SubscriptionFlow(NoBilling())
registry = Registry([flow])


def main() -> None:
    import time

    import dexray

    second = timedelta(seconds=1)
    with dexray.connect(registry) as client:
        flow_id = f"subscription-{uuid4()}"
        client.start_flow(flow, flow_id, Plan("Ada", 10, trial=second, period=second))
        client.publish(flow_id, new_price, 12)
        time.sleep(3)
        print(client.invoke_rpc(flow.describe, flow_id))
        client.publish(flow_id, cancel, "moving to the sea")
        print(client.wait_for_flow(flow_id).single_output(str))


if __name__ == "__main__":
    main()
