"""Responsive update: ask a running Flow to do something, and hear how it went, in three ways.

An RPC must be quick, so what takes time is done by a Step that the RPC starts (`next_steps`). The caller then waits for

- the **Step** to complete: it knows that the change is done;
- an **Attribute** to match: it gets a value, whoever wrote it;
- **Stream** messages: it sees the progress while it happens.

If a process dies in the middle: the RPC's Step was committed with the RPC's answer, and runs to its end. A wait is
attached again. Stream messages may come twice after a retry, and are for eyes only.

Run it with `python -m examples.patterns.responsive_update`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from uuid import uuid4

from dex import (
    AsyncClient,
    AsyncContext,
    Attribute,
    AttributeMatch,
    Context,
    Flow,
    PersistenceSchema,
    Registry,
    RPCResult,
    Step,
    StepDecision,
    StepExecutionId,
    StepList,
    StepMovement,
    StopFlowOptions,
    Stream,
    WaitForAttributeOptions,
    WaitForStepCompletionOptions,
    dead_end,
    rpc,
)

started = Attribute("started", int)
height = Attribute("height", int)
floors = Stream("floors", int, 10_000)
SOON = timedelta(seconds=30)


class Move(Step[int]):
    """Moves the lift to a floor, one floor in a tenth of a second."""

    async def execute(self, context: AsyncContext, input: int) -> StepDecision:
        floor = height.get(context)
        while floor != input:
            await asyncio.sleep(0.1)
            floor += 1 if input > floor else -1
            floors.write(context, floor)
        height.set(context, floor)
        return dead_end()


class LiftFlow(Flow[None]):
    def get_steps(self) -> StepList[None]:
        return StepList.without_start_step(Move)

    def get_persistence_schema(self) -> PersistenceSchema:
        return PersistenceSchema.of(started, height, floors)

    @rpc(is_transactional=True)
    def go(self, context: Context, input: int) -> RPCResult[int]:
        """Starts a move, and tells its number. Calls one after the other, so that each has its own."""
        started.set(context, started.get(context) + 1)
        return RPCResult(started.get(context), next_steps=(StepMovement.of(Move, input),))


flow = LiftFlow()
registry = Registry([flow], allow_async_handlers=True)


async def by_step(client: AsyncClient, flow_id: str, floor: int) -> None:
    """Returns when the lift is there."""
    move = await client.invoke_rpc(flow.go, flow_id, floor)
    options = WaitForStepCompletionOptions(request_timeout=SOON)
    await client.wait_for_step_completion(flow_id, StepExecutionId(Move, move), options)


async def by_attribute(client: AsyncClient, flow_id: str, floor: int) -> int:
    await client.invoke_rpc(flow.go, flow_id, floor)
    options = WaitForAttributeOptions(request_timeout=SOON)
    return await client.wait_for_attribute_match(flow_id, height, AttributeMatch.equal_to(floor), options)


async def by_stream(client: AsyncClient, flow_id: str, floor: int) -> AsyncIterator[int]:
    """The floors as they go by."""
    newest = (await client.list_stream_messages(flow_id, floors, page_size=1)).messages
    token = newest[0].resume_token if newest else ""
    await client.invoke_rpc(flow.go, flow_id, floor)
    passed = None
    while passed != floor:
        message = await client.read_stream(flow_id, floors, token, SOON)
        passed, token = message.value, message.resume_token
        yield passed


async def demo() -> None:
    import dexray

    async with await dexray.connect_async(registry) as client:
        flow_id = f"lift-{uuid4()}"
        await client.start_flow(flow, flow_id)
        await by_step(client, flow_id, 3)
        print("at floor", await client.get_attribute(flow_id, height))
        print("at floor", await by_attribute(client, flow_id, 1))
        print("passing", *[floor async for floor in by_stream(client, flow_id, 5)])
        await client.stop_flow(flow_id, StopFlowOptions(reason="out of order"))


def main() -> None:
    asyncio.run(demo())


if __name__ == "__main__":
    main()
