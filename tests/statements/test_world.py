"""The two engines behave alike, seen through the harness itself."""

from __future__ import annotations

from datetime import timedelta

import pytest

from dex import (
    AsyncContext,
    Channel,
    Context,
    Flow,
    PersistenceSchema,
    Step,
    StepDecision,
    StepList,
    Timer,
    Wait,
    go_to,
    graceful_complete,
)
from tests.world import World, scenario

approval = Channel("approval", str)


class Ask(Step[int]):
    def wait_for(self, context: Context, input: int) -> Wait:
        return Wait.any_of(approval.for_one(), Timer.by_duration(timedelta(seconds=input)))

    async def execute(self, context: AsyncContext, input: int) -> StepDecision:
        if context.has_timer_fired():
            return graceful_complete("timed out")
        return go_to(Tell, approval.results(context)[0])


class Tell(Step[str]):
    def execute(self, context: Context, input: str) -> StepDecision:
        return graceful_complete(f"{input} in {context.step_execution_id}")


class Approval(Flow[int]):
    def get_steps(self) -> StepList[int]:
        return StepList.start_step(Ask()).other_steps(Tell())

    def get_persistence_schema(self) -> PersistenceSchema:
        return PersistenceSchema.of(approval)


@pytest.mark.statement("B93", "B94")
@scenario(ray=True)
async def test_a_message_or_a_timer_ends_the_wait(world: World) -> None:
    flow = Approval()
    await world.deploy(flow)
    await world.start(flow, "asked", 60)
    await world.publish("asked", approval, "yes")
    assert (await world.result("asked")).single_output(str) == "yes in Tell-1"
    await world.start(flow, "silent", 1)
    assert (await world.result("silent")).single_output(str) == "timed out"


@scenario()
async def test_virtual_days_pass_in_no_time_and_a_crash_keeps_timers(world: World) -> None:
    flow = Approval()
    await world.deploy(flow)
    await world.start(flow, "f", 30 * 24 * 3600)
    await world.advance(29 * 24 * 3600)
    await world.restart()
    await world.until_phase("f", "Ask-1", "waiting")
    result = await world.result("f", timeout=2 * 24 * 3600)
    assert result.single_output(str) == "timed out"
