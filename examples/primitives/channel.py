"""Channel: the messages of a Flow; here a kitchen takes orders as they come, and closes when none has come for a while.

Clients, RPCs and Steps publish; a Step waits for messages, and those that end its wait are taken out of the Channel.
A message that comes while nobody waits stays until somebody does. One message goes to one wait.

If a process dies in the middle: a published message is in the database, and a message is taken in the same commit that
ends the wait; a retry of `execute` sees the same messages again. So no order is lost and none is cooked for two.

Run it with `python -m examples.primitives.channel`.
"""

from __future__ import annotations

from datetime import timedelta
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
    Timer,
    Wait,
    go_to,
    graceful_complete,
    rpc,
)

orders = Channel("orders", str)
cooked: Attribute[list[str]] = Attribute("cooked", list[str])


class Cook(Step[timedelta]):
    """Takes one order at a time. The input is how long the kitchen waits for the next."""

    def wait_for(self, context: Context, input: timedelta) -> Wait:
        return Wait.any_of(orders.for_one(), Timer.by_duration(input))

    def execute(self, context: Context, input: timedelta) -> StepDecision:
        done = cooked.get(context) or []
        for order in orders.results(context):  # one, or none when the Timer was first
            cooked.set(context, [*done, order])
            return go_to(Cook, input)
        return graceful_complete(done)


class ChannelFlow(Flow[timedelta]):
    def get_steps(self) -> StepList[timedelta]:
        return StepList.start_step(Cook)

    def get_persistence_schema(self) -> PersistenceSchema:
        return PersistenceSchema.of(orders, cooked)

    @rpc
    def order(self, context: Context, input: str) -> RPCResult[int]:
        """Publishes, and tells how many orders now wait; a client that needs no answer can `publish` directly."""
        orders.publish(context, input)
        return RPCResult(orders.size(context))


flow = ChannelFlow()
registry = Registry([flow])


def main() -> None:
    import dexray

    with dexray.connect(registry) as client:
        flow_id = f"kitchen-{uuid4()}"
        client.start_flow(flow, flow_id, timedelta(seconds=1))
        client.publish(flow_id, orders, "soup", "fish")
        print("orders waiting:", client.invoke_rpc(flow.order, flow_id, "cake"))
        print("cooked:", *client.wait_for_flow(flow_id).single_output(list[str]))


if __name__ == "__main__":
    main()
