"""Answer early: a request is answered when its data is safe, while the slow rest goes on.

A caller who started a Flow may wait for one Step execution instead of the Flow: here for `SaveOrder`, after which the
order can't be lost. The customer gets a number in milliseconds; printing and packing take their time.

If a process dies in the middle: the caller's, then the Flow goes on and the caller asks again, with the same Flow ID
and request id. The engine's, then the wait is attached again when it is back; a Step that completed meanwhile counts.

Run it with `python -m examples.patterns.wait_for_step_completion`.
"""

from __future__ import annotations

import asyncio
from datetime import timedelta
from uuid import uuid4

from dex import (
    AsyncClient,
    Attribute,
    Context,
    Flow,
    IdReusePolicy,
    PersistenceSchema,
    Registry,
    RPCResult,
    StartFlowOptions,
    Step,
    StepDecision,
    StepExecutionId,
    StepList,
    Timer,
    Wait,
    WaitForStepCompletionOptions,
    go_to,
    graceful_complete,
    rpc,
)

state = Attribute("state", str)
SOON = WaitForStepCompletionOptions(request_timeout=timedelta(seconds=30))


class SaveOrder(Step[str]):
    def execute(self, context: Context, input: str) -> StepDecision:
        if not input:
            raise ValueError("an order has to say what is ordered")
        state.set(context, f"{input} is ordered")
        return go_to(Pack, input)


class Pack(Step[str]):
    def wait_for(self, context: Context, input: str) -> Wait:
        return Wait.until(Timer.by_duration(timedelta(seconds=2)))

    def execute(self, context: Context, input: str) -> StepDecision:
        state.set(context, f"{input} is packed")
        return graceful_complete(state.get(context))


class OrderFlow(Flow[str]):
    def get_steps(self) -> StepList[str]:
        return StepList.start_step(SaveOrder).other_steps(Pack)

    def get_persistence_schema(self) -> PersistenceSchema:
        return PersistenceSchema.of(state)

    @rpc
    def how_is_it(self, context: Context) -> RPCResult[str | None]:
        return RPCResult(state.get(context))


flow = OrderFlow()
registry = Registry([flow])


async def place_order(client: AsyncClient, order_id: str, what: str) -> str:
    """What a web server does for one request. To call it again for the same order is safe."""
    once = StartFlowOptions(
        id_reuse_policy=IdReusePolicy.DISALLOW, request_id=f"place {order_id}", ignore_already_started=True
    )
    await client.start_flow(flow, order_id, what, once)
    await client.wait_for_step_completion(order_id, StepExecutionId(SaveOrder), SOON)
    return f"thank you, your order is {order_id}"


async def demo() -> None:
    import dexray

    async with await dexray.connect_async(registry) as client:
        order_id = f"order-{uuid4()}"
        print(await place_order(client, order_id, "a bicycle"))
        print(await client.invoke_rpc(flow.how_is_it, order_id))
        print((await client.wait_for_flow(order_id)).single_output(str))


def main() -> None:
    asyncio.run(demo())


if __name__ == "__main__":
    main()
