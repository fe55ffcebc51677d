"""Cancellation is a request: handlers hear of it and may go on, but nothing that comes of them counts."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from dex import (
    AsyncContext,
    Attribute,
    Channel,
    Context,
    FlowDefinitionError,
    Registry,
    Step,
    StepDecision,
    StepMovement,
    StepOptions,
    StopFlowOptions,
    StopType,
    Wait,
    dead_end,
    force_complete,
    force_fail,
    go_to_many,
    graceful_complete,
)
from tests.statements.kit import Made, events, steps_of
from tests.statements.test_timeouts import ONCE, Does, every, seconds
from tests.world import InProcessWorld, World, scenario

stop = Channel("stop", str)
note = Attribute("note", str)
mail = Channel("mail", str)


class Listens(Step[int]):
    """Lasts until it is asked to stop, in the method that its input says; then goes on for so many seconds."""

    def __init__(self) -> None:
        self.heard: list[tuple[str, float, bool]] = []
        self.ended: list[str] = []

    def get_step_options(self) -> StepOptions:
        return StepOptions(heartbeat_timeout=timedelta(hours=3), execute_retry=every(1), wait_for_retry=every(1))

    async def wait_for(self, context: AsyncContext, input: int) -> Wait:
        if input < 0:
            await self.listen(context, -input)
        return Wait.skip_immediately()

    async def execute(self, context: AsyncContext, input: int) -> StepDecision:
        await self.listen(context, input)
        note.set(context, "a zombie was here")
        mail.publish(context, "from a zombie")
        return graceful_complete("a zombie's")

    async def listen(self, context: AsyncContext, goes_on: int) -> None:
        before = context.is_cancellation_requested()
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            now = asyncio.get_running_loop().time()
            self.heard.append((context.step_execution_id, now, not before and context.is_cancellation_requested()))
            await asyncio.sleep(goes_on)
        self.ended.append(context.step_execution_id)


class Stops(Step[None]):
    def wait_for(self, context: Context, input: None) -> Wait:
        return Wait.until(stop.for_one())

    def execute(self, context: Context, input: None) -> StepDecision:
        how = stop.results(context)[0]
        if how == "cancel":
            return dead_end().with_canceling_steps(Listens)
        return force_complete("over") if how == "complete" else force_fail("over")


class Forks(Step[list[int]]):
    def execute(self, context: Context, input: list[int]) -> StepDecision:
        return go_to_many(StepMovement.of(Stops, None), *(StepMovement.of(Listens, number) for number in input))


class Cancels(Made):
    def __init__(self) -> None:
        self.listens = Listens()
        super().__init__(Forks(), Stops(), self.listens, has=(stop, note, mail), name="Cancels")


ENDS = ["cancel", "complete", "fail", "CANCEL", "TERMINATE", "FAIL"]


async def end(world: World, how: str) -> None:
    if how.islower():
        await world.publish("f", stop, how)
    else:
        await world.client.stop_flow(world.id("f"), StopFlowOptions(StopType[how]))


@pytest.mark.statement("B117", "B120", "B121", "B243")
@pytest.mark.parametrize("how", ENDS)
@pytest.mark.parametrize("method", ["execute", "wait_for"])
@scenario()
async def test_a_running_handler_is_asked_to_stop_at_once(world: World, how: str, method: str) -> None:
    flow = Cancels()
    await world.deploy(flow)
    await world.start(flow, "f", [3, 3] if method == "execute" else [-3, -3])
    await world.until_phase("f", "Listens-2", "running")
    await world.advance(10)
    assert flow.listens.heard == []
    now = asyncio.get_running_loop().time()
    await end(world, how)
    await world.advance(1)
    assert [(step, seen) for step, _, seen in flow.listens.heard] == [("Listens-1", True), ("Listens-2", True)]
    assert all(at - now < 0.1 for _, at, _ in flow.listens.heard)
    assert flow.listens.ended == []  # nobody stops the code itself


@pytest.mark.statement("B121", "B240", "B245", "D9")
@pytest.mark.parametrize("how", ENDS)
@scenario()
async def test_what_a_cancelled_handler_does_does_not_count(world: World, how: str) -> None:
    flow = Cancels()
    await world.deploy(flow)
    await world.start(flow, "f", [3, -3])
    await world.until_phase("f", "Listens-2", "running")
    await end(world, how)
    await world.advance(1)
    before = len(await world.history("f"))
    await world.advance(10)
    assert sorted(flow.listens.ended) == ["Listens-1", "Listens-2"]
    assert len(await world.history("f")) == before
    assert await world.client.get_attribute(world.id("f"), note) is None
    assert isinstance(world, InProcessWorld)
    assert world.engine is not None
    assert world.engine.host.counters["late_results"] == 2
    assert world.engine.attempts._taken == 0


@pytest.mark.statement("B240", "C14", "C16")
@scenario()
async def test_a_cancelled_step_is_gone_without_retry_or_output(world: World) -> None:
    flow = Cancels()
    await world.deploy(flow)
    await world.start(flow, "f", [0])
    await world.until_phase("f", "Listens-1", "running")
    await world.publish("f", stop, "cancel")
    await world.advance(20)
    described = await world.describe("f")
    assert (described.status, described.steps) == ("RUNNING", ())
    assert await steps_of(world, "f", "AttemptFailed") == []
    assert (await steps_of(world, "f", "AttemptStarted")).count("Listens-1") == 2


@pytest.mark.statement("B117")
@scenario()
async def test_a_cancelled_step_that_waits_its_turn_never_runs(world: World) -> None:
    flow = Cancels()
    await world.deploy(flow, slots=2)
    await world.start(flow, "f", [1, 1, 1])
    await world.advance(1)
    await world.client.stop_flow(world.id("f"))
    await world.advance(20)
    assert sorted(step for step, _, _ in flow.listens.heard) == ["Listens-1", "Listens-2"]
    started = await steps_of(world, "f", "AttemptStarted")
    assert [started.count(f"Listens-{number}") for number in (1, 2, 3)] == [2, 2, 1]  # the third: its wait_for only


@pytest.mark.statement("B118", "B120", "B121", "B122", "B211", "D9")
@pytest.mark.parametrize("kind", ["METHOD_TIMEOUT", "HEARTBEAT_TIMEOUT"])
@scenario()
async def test_an_attempt_that_times_out_is_asked_to_stop_and_may_overlap_the_next(world: World, kind: str) -> None:
    log: list[str] = []

    async def act(context: AsyncContext, input: None) -> StepDecision:
        log.append(f"{context.attempt} begins")
        if context.attempt == 1:
            try:
                await asyncio.sleep(3600)
            except asyncio.CancelledError:
                log.append(f"1 hears {context.is_cancellation_requested()}")
                await asyncio.sleep(10)
        else:
            await asyncio.sleep(15)
        note.set(context, f"by {context.attempt}")
        log.append(f"{context.attempt} ends")
        return graceful_complete(context.attempt)

    timeout = (
        {"heartbeat_timeout": seconds(20)}
        if kind == "HEARTBEAT_TIMEOUT"
        else {"execute_method_timeout": seconds(20), "heartbeat_timeout": seconds(300)}
    )
    flow = Made(Does(act, execute_retry=every(1), **timeout), has=(note,), name="Overlaps")
    await world.deploy(flow)
    await world.start(flow, "f")
    assert (await world.result("f", timeout=300)).single_output(int) == 2
    assert log == ["1 begins", "1 hears True", "2 begins", "1 ends", "2 ends"]
    assert await world.client.get_attribute(world.id("f"), note) == "by 2"
    (failed,) = await events(world, "f", "AttemptFailed")
    assert failed.data["failure"]["kind"] == kind


@pytest.mark.statement("B122")
@scenario()
async def test_an_interrupted_handler_may_still_run_while_the_failure_route_does(world: World) -> None:
    log: list[str] = []

    async def act(context: AsyncContext, input: None) -> None:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            await asyncio.sleep(5)
        log.append("the handler ends")

    class Recovers(Step[Any]):
        def execute(self, context: Context, input: Any) -> StepDecision:
            log.append("the route runs")
            return dead_end()

    step = Does(act)
    step.options = StepOptions(execute_retry=ONCE, heartbeat_timeout=seconds(10)).on_execute_failure_proceed_to(
        Recovers
    )
    flow = Made(step, Recovers(), name="Routes")
    await world.deploy(flow)
    await world.start(flow, "f")
    await world.advance(20)
    assert log == ["the route runs", "the handler ends"]
    assert (await world.describe("f")).status == "RUNNING"


class Handled(Step[Any]):
    def __init__(self, after: timedelta | None) -> None:
        self.after = after

    def get_step_options(self) -> StepOptions:
        return StepOptions(kill_after=self.after)


class Plain(Handled):
    def execute(self, context: Context, input: Any) -> StepDecision:
        return dead_end()


class WaitsAsync(Plain):
    async def wait_for(self, context: AsyncContext, input: Any) -> Wait:
        return Wait.skip_immediately()


class ActsAsync(Handled):
    async def execute(self, context: AsyncContext, input: Any) -> StepDecision:
        return dead_end()


@pytest.mark.parametrize(
    ("step", "reason"),
    [
        (Plain(timedelta(milliseconds=1500)), "kill_after must be whole seconds"),
        (Plain(timedelta(seconds=-1)), "kill_after must not be negative"),
        (Plain(5), "kill_after must be a datetime.timedelta"),  # type: ignore[arg-type]
        (ActsAsync(seconds(5)), "Flow 'Kills', Step 'ActsAsync': kill_after can't be kept, because execute is async"),
        (
            WaitsAsync(seconds(5)),
            "Flow 'Kills', Step 'WaitsAsync': kill_after can't be kept, because wait_for is async",
        ),
    ],
)
def test_a_kill_that_can_not_be_kept_is_refused_by_the_registry(step: Step[Any], reason: str) -> None:
    with pytest.raises(FlowDefinitionError, match=reason):
        Registry([Made(step, name="Kills")], allow_async_handlers=True)


@pytest.mark.parametrize(("after", "expected"), [(None, None), (timedelta(0), None), (seconds(7), 7.0)])
def test_a_kill_is_off_unless_it_is_asked_for(after: timedelta | None, expected: float | None) -> None:
    registry = Registry([Made(Plain(after), name="Kills")])
    assert registry.describe("d").flows["Kills"].steps["Plain"].execute.kill_after == expected
