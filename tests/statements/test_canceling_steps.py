"""Cancelling other Steps, and completing only when Channels are empty."""

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
    FlowNotActiveOrNotFoundError,
    FlowStatus,
    RetryPolicy,
    Step,
    StepDecision,
    StepMovement,
    StepOptions,
    Timer,
    Wait,
    dead_end,
    force_complete_if_channels_empty,
    go_to,
    go_to_many,
    graceful_complete,
)
from tests.statements.kit import Made, events, note_down, noted_down, outputs, steps_of
from tests.world import World, scenario

orders = Channel("orders", str)  # `cancel` for Decides
jobs = Channel("jobs", int)
log = Channel("log", str)
mood = Attribute("mood", str)
HAS = (orders, jobs, log, mood)


def open_steps(description: Any) -> list[str]:
    return sorted(step.step_execution_id for step in description.steps)


# Which Steps ----------------------------------------------------------------------------------------------------------


class Begins(Step[str]):
    """Two families of Steps with different parents, and one that decides."""

    def execute(self, context: Context, input: str) -> StepDecision:
        return go_to_many(
            StepMovement.of(Idles, 1),
            StepMovement.of(Other, 1),
            StepMovement.of(Parent, 1),
            StepMovement.of(Decides, input),
        )


class Parent(Step[int]):
    def execute(self, context: Context, input: int) -> StepDecision:
        return go_to_many(StepMovement.of(Idles, 2), StepMovement.of(Other, 2))


class Idles(Step[int]):
    def wait_for(self, context: Context, input: int) -> Wait:
        return Wait.until(jobs.for_one())

    def execute(self, context: Context, input: int) -> StepDecision:
        return dead_end()


class Other(Idles):
    pass


class Decides(Step[str]):
    def wait_for(self, context: Context, input: str) -> Wait:
        return Wait.until(orders.for_one())

    def execute(self, context: Context, input: str) -> StepDecision:
        decision = go_to(Idles, 3) if "new" in input else dead_end()
        if "siblings" in input:
            decision = decision.with_canceling_sibling_steps(Idles)
        if "all" in input:
            decision = decision.with_canceling_steps(Idles, Idles)
        if "types" in input:
            decision = decision.with_canceling_steps(Idles, Other)
        if "self" in input:
            decision = decision.with_canceling_steps(Decides)
        return decision


SELECTIONS = {
    # decision: the Steps that are cancelled. Siblings of Decides-1 are Idles-1 and Other-1.
    "all": ["Idles-1", "Idles-2"],
    "types": ["Idles-1", "Idles-2", "Other-1", "Other-2"],
    "siblings": ["Idles-1"],
    "siblings all": ["Idles-1", "Idles-2"],
    "all new": ["Idles-1", "Idles-2"],
    "siblings new": ["Idles-1"],
    "self": [],
    "nobody": [],
}


@pytest.mark.statement("B115", "B123", "C12", "C13", "C15")
@pytest.mark.parametrize("how", SELECTIONS)
@scenario()
async def test_which_steps_a_decision_cancels(world: World, how: str) -> None:
    flow = Made(Begins(), Parent(), Idles(), Other(), Decides(), has=HAS)
    await world.deploy(flow)
    await world.start(flow, "f", how)
    await world.until_phase("f", "Other-2", "waiting")
    await world.publish("f", orders, "decide")
    await world.advance(1)
    everyone = {"Idles-1", "Idles-2", "Other-1", "Other-2"} | ({"Idles-3"} if "new" in how else set())
    assert open_steps(await world.describe("f")) == sorted(everyone - {*SELECTIONS[how]})
    assert sorted(await steps_of(world, "f", "StepCancelled")) == SELECTIONS[how]
    await world.publish("f", jobs, *range(9))
    await world.advance(1)
    assert sorted(await steps_of(world, "f", "ConditionsMet")) == sorted(everyone - {*SELECTIONS[how]} | {"Decides-1"})


class Starts(Step[None]):
    def execute(self, context: Context, input: None) -> StepDecision:
        return go_to_many(StepMovement.of(Idles, 1), StepMovement.of(Cancels, 1))


class Cancels(Step[int]):
    def execute(self, context: Context, input: int) -> StepDecision:
        if input < 3:  # the second time there is a Step to cancel again, the third time none of the first
            return go_to_many(StepMovement.of(Cancels, input + 1), StepMovement.of(Idles, input)).with_canceling_steps(
                Idles
            )
        return graceful_complete().with_canceling_steps(Idles, Other)


@pytest.mark.statement("C15", "C16", "C18")
@scenario()
async def test_the_number_of_a_cancelled_step_execution_stays_used(world: World) -> None:
    flow = Made(Starts(), Cancels(), Idles(), Other(), has=HAS)
    await world.deploy(flow)
    await world.start(flow, "f")
    assert (await world.result("f")).status is FlowStatus.COMPLETED
    assert await steps_of(world, "f", "StepCancelled") == ["Idles-1", "Idles-2", "Idles-3"]


# What becomes of them -------------------------------------------------------------------------------------------------


class Race(Step[str]):
    def execute(self, context: Context, input: str) -> StepDecision:
        return go_to_many(StepMovement.of(Runs, input), StepMovement.of(Decider, 1))


class Decider(Step[int]):
    def wait_for(self, context: Context, input: int) -> Wait:
        return Wait.until(orders.for_one())

    def execute(self, context: Context, input: int) -> StepDecision:
        return graceful_complete("decided").with_canceling_steps(Runs)


class Runs(Step[str]):
    """Runs until it is asked to stop, and does then as its input says."""

    def get_step_options(self) -> StepOptions:
        return StepOptions(execute_retry=RetryPolicy(maximum_attempts=3)).on_execute_failure_proceed_to(Rescues)

    def wait_for(self, context: Context, input: str) -> Wait:
        mood.set(context, "set by wait_for")
        return Wait.skip_immediately()

    async def execute(self, context: AsyncContext, input: str) -> StepDecision:
        how, _, evidence = input.partition(" ")
        assert not context.is_cancellation_requested()
        note_down(evidence, "began")
        try:
            await asyncio.sleep(50)
        except asyncio.CancelledError:
            note_down(evidence, f"asked to stop: {context.is_cancellation_requested()}")
            if how == "returns":
                mood.set(context, "too late")
                log.publish(context, "too late")
                return graceful_complete("too late")
            if how == "raises":
                raise RuntimeError("too late") from None
            raise
        return graceful_complete("not cancelled")


class Rescues(Step[str]):
    def execute(self, context: Context, input: str) -> StepDecision:
        return graceful_complete("rescued")


@pytest.mark.statement("B117", "B120", "B121", "C14", "D9")
@pytest.mark.parametrize("how", ["returns", "raises", "stops"])
@scenario(ray=True)
async def test_a_cancelled_attempt_is_asked_to_stop_and_what_it_says_then_is_refused(world: World, how: str) -> None:
    flow = Made(Race(), Runs(), Decider(), Rescues(), has=HAS, name="Race")
    await world.deploy(flow)
    evidence = world.file("evidence")
    await world.start(flow, "f", f"{how} {evidence}")
    await noted_down(world, evidence, "began")
    await world.publish("f", orders, "cancel")
    assert outputs(await world.result("f")) == [("Decider-1", "decided")]
    await noted_down(world, evidence, "began", "asked to stop: True")  # it needs no heartbeat to hear of it
    await world.advance(1)
    await noted_down(world, evidence, "began", "asked to stop: True")  # and there is no second attempt
    assert await world.client.get_attribute(world.id("f"), mood) == "set by wait_for", "earlier commits remain"
    assert not {"AttemptFailed", "StepExecuteFailed", "StepWaitForFailed", "MessagePublished"} & {
        event.kind for event in await world.history("f") if event.step_execution_id == "Runs-1"
    }


class Ignores(Step[str]):
    async def execute(self, context: AsyncContext, input: str) -> StepDecision:
        for _ in range(40):
            try:
                await asyncio.sleep(1)
            except asyncio.CancelledError:
                await context.heartbeat("I go on")
        self.ended.append(context.is_cancellation_requested())
        return graceful_complete("too late")

    def __init__(self) -> None:
        self.ended: list[bool] = []


class CancelsIgnores(Step[str]):
    def execute(self, context: Context, input: str) -> StepDecision:
        return go_to_many(StepMovement.of(Ignores, ""), StepMovement.of(CancelsLater, 5))


class CancelsLater(Step[int]):
    def wait_for(self, context: Context, input: int) -> Wait:
        return Wait.until(Timer.by_duration(timedelta(seconds=input)))

    def execute(self, context: Context, input: int) -> StepDecision:
        return dead_end().with_canceling_steps(Ignores)


@pytest.mark.statement("B121", "B245", "D9")
@scenario()
async def test_a_handler_that_does_not_stop_runs_on_and_is_not_heard(world: World) -> None:
    ignores = Ignores()
    flow = Made(CancelsIgnores(), ignores, CancelsLater(), has=HAS)
    await world.deploy(flow)
    await world.start(flow, "f", "")
    await world.advance(10)
    assert open_steps(await world.describe("f")) == []
    assert ignores.ended == []
    await world.advance(50)
    assert ignores.ended == [True], "it was told, and could not be made to stop"
    assert (await world.describe("f")).status == "RUNNING"
    assert not await events(world, "f", "HeartbeatStored")


# Messages that come back ----------------------------------------------------------------------------------------------


class Collects(Step[int]):
    """Has consumed two jobs, and works on them for 20 s."""

    def wait_for(self, context: Context, input: int) -> Wait:
        return Wait.until(jobs.for_n(input))

    async def execute(self, context: AsyncContext, input: int) -> StepDecision:
        await asyncio.sleep(20)
        return dead_end()


class Dispatch(Step[int]):
    def execute(self, context: Context, input: int) -> StepDecision:
        return go_to_many(*(StepMovement.of(Collects, 2) for _ in range(input)), StepMovement.of(Withdraws, 1))


class Withdraws(Step[int]):
    def wait_for(self, context: Context, input: int) -> Wait:
        return Wait.until(orders.for_one())

    def execute(self, context: Context, input: int) -> StepDecision:
        return go_to(Lists, 1).with_canceling_steps(Collects)


class Lists(Step[int]):
    def wait_for(self, context: Context, input: int) -> Wait:
        return Wait.until(jobs.at_most(99))

    def execute(self, context: Context, input: int) -> StepDecision:
        return graceful_complete(list(jobs.results(context)))


@pytest.mark.statement("D5", "D6", "B239")
@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("crash", [False, True])
@scenario()
async def test_messages_of_cancelled_steps_come_back_to_the_front_in_their_order(
    world: World, workers: int, crash: bool
) -> None:
    flow = Made(Dispatch(), Collects(), Withdraws(), Lists(), has=HAS)
    await world.deploy(flow)
    await world.start(flow, "f", workers)
    await world.until_phase("f", "Withdraws-1", "waiting")
    await world.publish("f", jobs, 1, 2, 3, 4, 5)
    await world.until_phase("f", f"Collects-{workers}", "running")
    if crash:
        await world.restart()
    await world.publish("f", jobs, 6)
    await world.publish("f", orders, "cancel")
    assert (await world.result("f")).single_output(list[int]) == [1, 2, 3, 4, 5, 6]


@pytest.mark.statement("D6", "B241")
@scenario()
async def test_messages_of_a_step_that_saved_its_result_do_not_come_back(world: World) -> None:
    flow = Made(Dispatch(), Collects(), Withdraws(), Lists(), has=HAS)
    await world.deploy(flow)
    await world.start(flow, "f", 1)
    await world.publish("f", jobs, 1, 2, 3)
    await world.advance(30)
    await world.publish("f", orders, "cancel")
    assert (await world.result("f")).single_output(list[int]) == [3]


# force_complete_if_channels_empty -------------------------------------------------------------------------------------


class Fills(Step[list[str]]):
    """`input`: what is in the way of completion."""

    def execute(self, context: Context, input: list[str]) -> StepDecision:
        if "queued" in input:
            jobs.publish(context, 1)
        if "queued elsewhere" in input:
            orders.publish(context, "x")
        movements = [StepMovement.of(Checks, input)]
        if "under way" in input:
            jobs.publish(context, 1)
            movements.append(StepMovement.of(WorksOn, 20))
        if "waited for" in input:
            movements.append(StepMovement.of(Idles, 1))
        return go_to_many(*movements)


class WorksOn(Step[int]):
    def wait_for(self, context: Context, input: int) -> Wait:
        return Wait.until(jobs.for_one())

    async def execute(self, context: AsyncContext, input: int) -> StepDecision:
        await asyncio.sleep(input)
        return dead_end()


class Checks(Step[list[str]]):
    async def execute(self, context: AsyncContext, input: list[str]) -> StepDecision:
        await asyncio.sleep(10)
        if "published by itself" in input:
            jobs.publish(context, 2)
        return force_complete_if_channels_empty("empty", StepMovement.of(FallsBack, input), jobs, log)


class FallsBack(Step[list[str]]):
    def execute(self, context: Context, input: list[str]) -> StepDecision:
        return graceful_complete("not empty")


@pytest.mark.statement("B124", "B125", "B126", "B127")
@pytest.mark.parametrize(
    ("way", "output"),
    [
        ([], "empty"),
        (["queued"], "not empty"),
        (["queued elsewhere"], "empty"),  # a Channel that is not named does not count
        (["under way"], "not empty"),  # consumed, and its Step has not finished execute
        (["waited for"], "empty"),
        (["published by itself"], "not empty"),
    ],
    ids=str,
)
@scenario()
async def test_a_flow_completes_when_the_named_channels_are_empty(world: World, way: list[str], output: str) -> None:
    flow = Made(Fills(), Checks(), FallsBack(), WorksOn(), Idles(), has=HAS)
    await world.deploy(flow)
    await world.start(flow, "f", way)
    assert outputs(await world.result("f")) == [("Checks-1" if output == "empty" else "FallsBack-1", output)]
    closed = (await events(world, "f", "FlowClosed"))[0]
    assert round(closed.at - (await world.describe("f")).started_at) == (20 if way == ["under way"] else 10)


class Drains(Step[None]):
    """Takes jobs one by one, and ends the Flow when none is left."""

    def wait_for(self, context: Context, input: None) -> Wait:
        return Wait.until(jobs.for_one())

    def execute(self, context: Context, input: None) -> StepDecision:
        done = [*(seen_jobs.get(context) or []), *jobs.results(context)]
        seen_jobs.set(context, done)
        return force_complete_if_channels_empty(done, StepMovement.of(Drains, None), jobs)


seen_jobs: Attribute[list[int]] = Attribute("seen_jobs", list[int])


@pytest.mark.statement("B124", "B125", "B128")
@scenario(ray=True)
async def test_a_message_that_races_the_check_is_processed_or_refused(world: World) -> None:
    flow = Made(Drains(), has=(jobs, seen_jobs), name="Drains")
    await world.deploy(flow)
    await world.start(flow, "f")
    accepted: list[int] = []
    refused = 0

    async def producer(first: int) -> None:
        nonlocal refused
        for number in range(first, first + 10):
            try:
                await world.publish("f", jobs, number)
                accepted.append(number)
            except FlowNotActiveOrNotFoundError:
                refused += 1
            await asyncio.sleep(0.001 * (number % 3))

    await asyncio.gather(*(producer(first) for first in (0, 100, 200)))
    assert accepted
    assert sorted((await world.result("f")).single_output(list[int])) == sorted(accepted), "none lost, none doubled"
    assert len(accepted) + refused == 30
