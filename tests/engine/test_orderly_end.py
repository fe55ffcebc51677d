"""An engine that ends in order, and one that was only started to be asked, harm no Flow."""

from __future__ import annotations

import asyncio

import pytest

from dex import AsyncContext, Flow, Step, StepDecision, StepList, go_to, graceful_complete
from tests.world import InProcessWorld, World, scenario


class Slow(Step[float]):
    """Takes as many seconds as its input says, then moves on."""

    async def execute(self, context: AsyncContext, input: float) -> StepDecision:
        await asyncio.sleep(input)
        return go_to(Last, context.attempt)


class Last(Step[int]):
    async def execute(self, context: AsyncContext, input: int) -> StepDecision:
        return graceful_complete(input)


class SlowFlow(Flow[float]):
    def get_steps(self) -> StepList[float]:
        return StepList.start_step(Slow()).other_steps(Last())


@pytest.mark.statement("B208")
@scenario()
async def test_an_orderly_end_lets_running_attempts_finish_and_begins_none(world: World) -> None:
    assert isinstance(world, InProcessWorld)
    flow = SlowFlow()
    await world.deploy(flow)
    await world.start(flow, "f", 3.0)
    await world.until_phase("f", "Slow-1", "running")
    assert world.engine is not None
    await world.engine.host.stop(drain=10.0)
    await world.restart()
    assert (await world.result("f")).single_output(int) == 1  # the attempt that was out has counted
    kinds = await world.kinds("f")
    assert "AttemptFailed" not in kinds
    assert kinds.count("AttemptStarted") == 2


@scenario()
async def test_an_orderly_end_does_not_wait_for_ever(world: World) -> None:
    assert isinstance(world, InProcessWorld)
    flow = SlowFlow()
    await world.deploy(flow)
    await world.start(flow, "f", 1000.0)
    await world.until_phase("f", "Slow-1", "running")
    assert world.engine is not None
    before = world.clock.now()
    await world.engine.host.stop(drain=5.0)
    assert 5.0 <= world.clock.now() - before < 6.0


@scenario()
async def test_an_engine_that_holds_answers_and_starts_nothing(world: World) -> None:
    assert isinstance(world, InProcessWorld)
    flow = SlowFlow()
    await world.deploy(flow, hold=True)
    await world.start(flow, "f", 1.0)
    await world.advance(60)
    (step,) = (await world.describe("f")).steps
    assert (step.phase, step.attempt) == ("ready", 1)
    assert "AttemptStarted" not in await world.kinds("f")
