"""Stopping a Flow from outside."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest

from dex import (
    AsyncContext,
    Attribute,
    Channel,
    Context,
    DexServiceError,
    FlowErrorType,
    FlowNotActiveOrNotFoundError,
    FlowNotFoundError,
    FlowStatus,
    Step,
    StepDecision,
    StepMovement,
    StopFlowOptions,
    StopType,
    Timer,
    Wait,
    dead_end,
    go_to_many,
    graceful_complete,
)
from tests.statements.kit import Made, events, note_down, noted_down, steps_of
from tests.world import World, scenario

go = Channel("go", int)
mood = Attribute("mood", str)


class Branches(Step[str]):
    """One branch has completed, one runs, one waits, one is about to be retried."""

    def execute(self, context: Context, input: str) -> StepDecision:
        return go_to_many(
            StepMovement.of(Done, ""),
            StepMovement.of(Runs, input),
            StepMovement.of(Waits, ""),
            StepMovement.of(Fails, ""),
        )


class Done(Step[str]):
    def execute(self, context: Context, input: str) -> StepDecision:
        return graceful_complete("done")


class Runs(Step[str]):
    async def execute(self, context: AsyncContext, input: str) -> StepDecision:
        note_down(input, "began")
        try:
            await asyncio.sleep(50)
        except asyncio.CancelledError:
            note_down(input, f"asked to stop: {context.is_cancellation_requested()}")
        mood.set(context, "too late")
        return graceful_complete("too late")


class Waits(Step[str]):
    def wait_for(self, context: Context, input: str) -> Wait:
        return Wait.any_of(go.for_one(), Timer.by_duration(timedelta(seconds=3600)))

    def execute(self, context: Context, input: str) -> StepDecision:
        return dead_end()


class Fails(Step[str]):
    def execute(self, context: Context, input: str) -> StepDecision:
        raise RuntimeError("on purpose")


FLOW = Made(Branches(), Done(), Runs(), Waits(), Fails(), has=(go, mood), name="Stoppable")


@dataclass(frozen=True)
class Stop:
    options: StopFlowOptions | None
    status: FlowStatus
    error_type: FlowErrorType | None = None
    message: str = ""


STOPS = {
    "default": Stop(None, FlowStatus.CANCELED),
    "cancel": Stop(StopFlowOptions(StopType.CANCEL), FlowStatus.CANCELED),
    "cancel-reason": Stop(StopFlowOptions(StopType.CANCEL, "why"), FlowStatus.CANCELED, message="why"),
    "terminate": Stop(StopFlowOptions(StopType.TERMINATE), FlowStatus.TERMINATED),
    "fail": Stop(
        StopFlowOptions(StopType.FAIL, "why"), FlowStatus.FAILED, FlowErrorType.CLIENT_API_FAILED, message="why"
    ),
}


@pytest.mark.statement("C48", "C20", "B243")
@pytest.mark.parametrize("how", STOPS)
@scenario()
async def test_stopping_ends_every_branch_in_the_status_that_was_asked_for(world: World, how: str) -> None:
    await stop(world, STOPS[how])


@pytest.mark.statement("C48", "C20", "B243")
@scenario(ray=True)
async def test_stopping_reaches_workers(world: World) -> None:
    await stop(world, STOPS["fail"])


async def stop(world: World, stop: Stop) -> None:
    await world.deploy(FLOW)
    evidence = world.file("evidence")
    await world.start(FLOW, "f", str(evidence))
    await world.until_phase("f", "Waits-1", "waiting")
    await world.until_phase("f", "Fails-1", "backoff")
    await noted_down(world, evidence, "began")
    await world.client.stop_flow(world.id("f"), stop.options)
    result = await world.result("f")
    assert (result.status, result.error_type, result.error_message) == (stop.status, stop.error_type, stop.message)
    assert result.completions == (), "not even of branches that had completed"
    await noted_down(world, evidence, "began", "asked to stop: True")
    description = await world.describe("f")
    assert (description.steps, description.channels) == ((), {})
    await world.advance(0.5 if world.on_ray else 7200)
    assert (await world.kinds("f"))[-1] == "FlowClosed", "nothing happens afterwards"
    assert await world.client.get_attribute(world.id("f"), mood) is None


@pytest.mark.statement("C48", "D8")
@scenario()
async def test_a_stop_is_kept_over_a_crash_and_repeated_without_effect(world: World) -> None:
    await world.deploy(FLOW)
    await world.start(FLOW, "f", str(world.file("evidence")))
    fail = StopFlowOptions(StopType.FAIL, "first")
    await world.client.stop_flow(world.id("f"), fail, request_id="stop-1")
    await world.restart()
    await world.client.stop_flow(world.id("f"), fail, request_id="stop-1")
    result = await world.result("f")
    assert (result.status, result.error_message) == (FlowStatus.FAILED, "first")
    assert len(await events(world, "f", "FlowClosed")) == 1


# Closed and unknown Flows ---------------------------------------------------------------------------------------------

Call = Callable[[World, str], Awaitable[Any]]
WRITES: dict[str, Call] = {
    "stop_flow": lambda world, flow_id: world.client.stop_flow(flow_id),
    "publish": lambda world, flow_id: world.client.publish(flow_id, go, 1),
    "set_attribute": lambda world, flow_id: world.client.set_attribute(flow_id, mood, "x"),
    "trigger_continue_as_new": lambda world, flow_id: world.client.trigger_continue_as_new(flow_id),
}
READS: dict[str, Call] = {
    "describe": lambda world, flow_id: world.client.describe(flow_id),
    "describe_flow": lambda world, flow_id: world.client.describe_flow(flow_id),
    "wait_for_flow": lambda world, flow_id: world.client.wait_for_flow(flow_id, timedelta(seconds=5)),
    "get_attribute": lambda world, flow_id: world.client.get_attribute(flow_id, mood),
}


@pytest.mark.statement("C49", "C43", "C61")
@pytest.mark.parametrize("closed", [True, False])
@scenario(ray=True)
async def test_a_closed_flow_takes_no_writes_and_an_unknown_one_nothing(world: World, closed: bool) -> None:
    await world.deploy(FLOW)
    if closed:
        await world.start(FLOW, "f", str(world.file("evidence")))
        await world.client.stop_flow(world.id("f"))
        await world.result("f")
    for name, write in WRITES.items():
        with pytest.raises(FlowNotActiveOrNotFoundError) as caught:
            await write(world, world.id("f"))
        assert (caught.value.operation, caught.value.flow_id) == (name, world.id("f"))
    for read in READS.values():
        if closed:
            await read(world, world.id("f"))
        else:
            with pytest.raises(FlowNotFoundError):
                await read(world, world.id("f"))
    if closed:
        assert await steps_of(world, "f", "AttributesWritten") == []


@pytest.mark.statement("C48")
@scenario()
async def test_of_many_stops_one_has_its_effect(world: World) -> None:
    await world.deploy(FLOW)
    await world.start(FLOW, "f", str(world.file("evidence")))
    answers = await asyncio.gather(
        *(world.client.stop_flow(world.id("f"), StopFlowOptions(StopType.FAIL, f"{n}")) for n in range(5)),
        return_exceptions=True,
    )
    assert [answer for answer in answers if answer is None] == [None]
    assert all(isinstance(answer, DexServiceError) for answer in answers if answer is not None)
    assert len(await events(world, "f", "FlowClosed")) == 1
