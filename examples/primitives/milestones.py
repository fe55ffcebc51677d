"""Milestones: an order is answered when it is safe, long before it is delivered.

An accepted start promises nothing but that the Flow exists. A caller who has to promise more waits for a milestone:
`wait_for_step_completion` for the end of one Step execution, `wait_for_attribute_match` for a committed value. Both may
be called straight after the start, before anything has run. Neither waits for the end of the Flow, and one that gives
up when its time is over has undone nothing.

If a process dies in the middle: a wait is attached again when the engine is back; milestones that were reached
meanwhile count.

Run it with `python -m examples.primitives.milestones`.
"""

from __future__ import annotations

from datetime import timedelta
from uuid import uuid4

from dex import (
    Attribute,
    AttributeMatch,
    Channel,
    Client,
    Context,
    Flow,
    PersistenceSchema,
    Registry,
    Step,
    StepDecision,
    StepExecutionId,
    StepList,
    Wait,
    WaitForAttributeOptions,
    WaitForStepCompletionOptions,
    go_to,
    graceful_complete,
)

parcels = Attribute("parcels", int)
picked_up = Channel("picked_up", str)
PATIENCE = timedelta(seconds=30)


class SaveOrder(Step[int]):
    """When it has completed, the order is in the books."""

    def execute(self, context: Context, input: int) -> StepDecision:
        return go_to(Pack, input)


class Pack(Step[int]):
    """Packs three things into a parcel."""

    def execute(self, context: Context, input: int) -> StepDecision:
        parcels.set(context, parcels.get(context) + 1)
        return go_to(Pack, input - 3) if input > 3 else go_to(Deliver, input)


class Deliver(Step[int]):
    def wait_for(self, context: Context, input: int) -> Wait:
        return Wait.until(picked_up.for_one())

    def execute(self, context: Context, input: int) -> StepDecision:
        return graceful_complete(f"{parcels.get(context)} parcels went with {picked_up.results(context)[0]}")


class OrderFlow(Flow[int]):
    def get_steps(self) -> StepList[int]:
        return StepList.start_step(SaveOrder()).other_steps(Pack(), Deliver())

    def get_persistence_schema(self) -> PersistenceSchema:
        return PersistenceSchema.of(parcels, picked_up)


flow = OrderFlow()
registry = Registry([flow])


def order(client: Client, flow_id: str, things: int) -> list[str]:
    """What the customer hears, in its order."""
    client.start_flow(flow, flow_id, things)
    client.wait_for_step_completion(
        flow_id, StepExecutionId(SaveOrder), WaitForStepCompletionOptions(request_timeout=PATIENCE)
    )
    heard = ["your order is in our books"]
    count = client.wait_for_attribute_match(
        flow_id,
        parcels,
        AttributeMatch.greater_than_or_equal(2),
        WaitForAttributeOptions(request_timeout=PATIENCE),
    )
    heard.append(f"at least {min(count, 2)} parcels are packed")
    client.publish(flow_id, picked_up, "Ada")
    return [*heard, client.wait_for_flow(flow_id).single_output(str)]


def main() -> None:
    import dexray

    with dexray.connect(registry) as client:
        print(*order(client, f"order-{uuid4()}", 7), sep="\n")


if __name__ == "__main__":
    main()
