"""A client that a handler makes talks to the engine that runs the handler, whatever that was connected with."""

from __future__ import annotations

from datetime import timedelta

import pytest

from dex import (
    AsyncClient,
    AsyncContext,
    Channel,
    Client,
    Context,
    Flow,
    FlowStatus,
    IdReusePolicy,
    PersistenceSchema,
    Registry,
    RPCResult,
    StartFlowOptions,
    Step,
    StepDecision,
    StepList,
    Wait,
    graceful_complete,
    rpc,
)
from tests.statements.kit import Made
from tests.world import World, scenario

greetings = Channel("greetings", str)


class Listen(Step[None]):
    def wait_for(self, context: Context, input: None) -> Wait:
        return Wait.until(greetings.for_one())

    def execute(self, context: Context, input: None) -> StepDecision:
        return graceful_complete(greetings.results(context)[0])


class Listener(Flow[None]):
    def get_steps(self) -> StepList[None]:
        return StepList.start_step(Listen)

    def get_persistence_schema(self) -> PersistenceSchema:
        return PersistenceSchema.of(greetings)


LISTENER = Listener()
ONCE = StartFlowOptions(request_id="once", id_reuse_policy=IdReusePolicy.DISALLOW, ignore_already_started=True)


class Greet(Step[str]):
    async def execute(self, context: AsyncContext, input: str) -> StepDecision:
        async with AsyncClient(Registry([LISTENER])) as client:
            await client.start_flow(LISTENER, input, None, ONCE)
            await client.publish(input, greetings, f"hello from {context.step_execution_id}")
            result = await client.wait_for_flow(input, timedelta(seconds=30))
        return graceful_complete(result.single_output(str))


class GreetBlocking(Step[str]):
    def execute(self, context: Context, input: str) -> StepDecision:
        with Client(Registry([LISTENER])) as client:
            client.start_flow(LISTENER, input, None, ONCE)
            client.publish(input, greetings, f"hello from {context.step_execution_id}")
            result = client.wait_for_flow(input, timedelta(seconds=30))
        return graceful_complete(result.single_output(str))


class Asks(Flow[None]):
    @rpc
    async def status_of(self, context: AsyncContext, input: str) -> RPCResult[str]:
        async with AsyncClient(Registry([LISTENER])) as client:
            return RPCResult((await client.describe_flow(input)).status.name)


@pytest.mark.statement("B62")
@scenario(ray=True)
async def test_an_asynchronous_step_starts_feeds_and_awaits_another_flow(world: World) -> None:
    greeter = Made(Greet(), name="Greeter")
    await world.deploy(greeter, LISTENER)
    await world.start(greeter, "greeter", world.id("listener"))
    assert (await world.result("greeter")).single_output(str) == "hello from Greet-1"
    assert (await world.client.describe_flow(world.id("listener"))).status is FlowStatus.COMPLETED


@scenario(ray=True, in_process=False)
async def test_a_synchronous_step_uses_a_blocking_client(world: World) -> None:
    greeter = Made(GreetBlocking(), name="BlockingGreeter")
    await world.deploy(greeter, LISTENER)
    await world.start(greeter, "greeter", world.id("listener"))
    assert (await world.result("greeter")).single_output(str) == "hello from GreetBlocking-1"


@scenario()
async def test_in_process_a_blocking_client_in_a_handler_is_refused_with_the_way_out(world: World) -> None:
    greeter = Made(GreetBlocking(), name="BlockingGreeter")
    await world.deploy(greeter, LISTENER)
    await world.start(greeter, "greeter", world.id("listener"))
    await world.until_phase("greeter", "GreetBlocking-1", "backoff")
    (step,) = (await world.describe("greeter")).steps
    assert step.last_failure is not None
    assert "make the handler `async def` and use an AsyncClient" in step.last_failure.detail


@scenario(ray=True)
async def test_an_rpc_looks_at_another_flow(world: World) -> None:
    asks = Asks()
    await world.deploy(asks, LISTENER)
    await world.start(asks, "asks")
    await world.start(LISTENER, "listener")
    assert await world.client.invoke_rpc(asks.status_of, world.id("asks"), world.id("listener")) == "RUNNING"
