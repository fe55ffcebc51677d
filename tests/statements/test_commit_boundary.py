"""What one method call commits, when, and in which order."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from typing import Any

import pytest

from dex import (
    AsyncContext,
    Attribute,
    Channel,
    Context,
    FlowStatus,
    RetryPolicy,
    Step,
    StepDecision,
    StepMovement,
    StepOptions,
    StepOutput,
    Wait,
    dead_end,
    go_to,
    go_to_many,
    graceful_complete,
    heartbeat,
)
from tests.statements.kit import Made, events, note_down, steps_of
from tests.world import World, scenario

mood = Attribute("mood", str)
letters = Channel("letters", str)
go = Channel("go", None)

Beating = Generator[StepOutput, None, StepDecision]
TWICE = StepOptions(wait_for_retry=RetryPolicy(maximum_attempts=2), execute_retry=RetryPolicy(maximum_attempts=2))


async def seen(world: World, name: str = "f") -> tuple[str | None, int]:
    """What is committed: the Attribute, and the number of letters."""
    description = await world.describe(name)
    return await world.client.get_attribute(world.id(name), mood), description.channels.get("letters", 0)


class WaitsThenFails(Step[None]):
    def get_step_options(self) -> StepOptions:
        return StepOptions(execute_retry=RetryPolicy(maximum_attempts=1)).on_execute_failure_proceed_to(Reads)

    def wait_for(self, context: Context, input: None) -> Wait:
        mood.set(context, "waiting")
        letters.publish(context, "from wait_for")
        return Wait.until(go.for_one())

    def execute(self, context: Context, input: None) -> StepDecision:
        mood.set(context, "executing")
        letters.publish(context, "from execute")
        raise RuntimeError("on purpose")


class Reads(Step[None]):
    def execute(self, context: Context, input: None) -> StepDecision:
        return graceful_complete([mood.get(context), letters.size(context)])


@pytest.mark.statement("B74", "B75", "B76")
@scenario(ray=True)
async def test_wait_for_and_execute_are_commits_of_their_own(world: World) -> None:
    flow = Made(WaitsThenFails(), Reads(), has=(mood, letters, go), name="TwoCommits")
    await world.deploy(flow)
    await world.start(flow, "f")
    await world.until_phase("f", "WaitsThenFails-1", "waiting")
    assert await seen(world) == ("waiting", 1), "wait_for is committed while its conditions are open"
    await world.publish("f", go, None)
    assert (await world.result("f")).single_output(list[Any]) == ["waiting", 1], "what failed is not there"


class SlowWait(Step[None]):
    async def wait_for(self, context: AsyncContext, input: None) -> Wait:
        mood.set(context, "first")
        letters.publish(context, "one")
        await asyncio.sleep(10)
        return Wait.skip_immediately()

    async def execute(self, context: AsyncContext, input: None) -> StepDecision:
        mood.set(context, "second")
        letters.publish(context, "two")
        await asyncio.sleep(10)
        return dead_end()


@pytest.mark.statement("B75")
@scenario()
async def test_writes_are_staged_until_the_method_returns(world: World) -> None:
    flow = Made(SlowWait(), has=(mood, letters))
    await world.deploy(flow)
    await world.start(flow, "f")
    await world.advance(5)
    assert await seen(world) == (None, 0)
    await world.advance(10)
    assert await seen(world) == ("first", 1), "wait_for has returned, execute has staged and is under way"
    await world.advance(10)
    assert await seen(world) == ("second", 2)


class FailsOnce(Step[None]):
    def get_step_options(self) -> StepOptions:
        return TWICE

    def wait_for(self, context: Context, input: None) -> Wait:
        self.write(context, "wait_for")
        return Wait.skip_immediately()

    def execute(self, context: Context, input: None) -> StepDecision:
        self.write(context, "execute")
        return dead_end()

    def write(self, context: Context, method: str) -> None:
        if context.attempt == 1:
            mood.set(context, f"never, in {method}")
            letters.publish(context, f"never, in {method}")
            context.set_step_execution_local("never", 1)
            context.record_event("never", 1)
            raise RuntimeError("on purpose")
        assert mood.get(context) is None
        assert letters.size(context) == 0
        assert context.get_step_execution_local("never", int) is None


@pytest.mark.statement("B76")
@scenario()
async def test_a_failed_attempt_commits_nothing(world: World) -> None:
    flow = Made(FailsOnce(), has=(mood, letters))
    await world.deploy(flow)
    await world.start(flow, "f")
    await world.advance(5)
    kinds = await world.kinds("f")
    assert kinds.count("AttemptFailed") == 2
    assert kinds.count("StepCompleted") == 1
    assert not {"AttributesWritten", "MessagePublished", "EventRecorded"} & {*kinds}
    assert await seen(world) == (None, 0)


class Calls(Step[str]):
    def get_step_options(self) -> StepOptions:
        return StepOptions(execute_retry=RetryPolicy(maximum_attempts=2))

    def execute(self, context: Context, input: str) -> StepDecision:
        note_down(input, f"attempt {context.attempt} called")
        letters.publish(context, "called")
        if context.attempt == 1:
            raise RuntimeError("after the call")
        return go_to(Reads, None)


@pytest.mark.statement("B76", "B77")
@scenario(ray=True)
async def test_what_a_handler_does_outside_is_not_taken_back(world: World) -> None:
    flow = Made(Calls(), Reads(), has=(mood, letters), name="CallsOutside")
    await world.deploy(flow)
    calls = world.file("calls")
    await world.start(flow, "f", str(calls))
    assert (await world.result("f")).single_output(list[Any]) == [None, 1], "one letter, of the attempt that succeeded"
    assert calls.read_text().splitlines() == ["attempt 1 called", "attempt 2 called"]


class Beats(Step[int]):
    def get_step_options(self) -> StepOptions:
        return StepOptions(execute_retry=RetryPolicy(maximum_attempts=1))

    def execute(self, context: Context, input: int) -> Beating:
        mood.set(context, "beating")
        for number in range(input):
            yield heartbeat(number)
        return graceful_complete(input)


class YieldsItsDecision(Step[int]):
    def get_step_options(self) -> StepOptions:
        return StepOptions(execute_retry=RetryPolicy(maximum_attempts=1))

    def execute(self, context: Context, input: int) -> Beating:
        mood.set(context, "beating")
        yield graceful_complete("early")  # type: ignore[misc]
        return graceful_complete("late")


@pytest.mark.statement("B78")
@scenario()
async def test_any_number_of_heartbeats_come_before_the_one_result(world: World) -> None:
    flow = Made(Beats(), has=(mood,))
    await world.deploy(flow)
    for count in (0, 1, 50):
        await world.start(flow, f"f{count}", count)
        assert (await world.result(f"f{count}")).single_output(int) == count
    kinds = await world.kinds("f50")
    assert kinds.count("StepCompleted") == 1
    assert kinds.index("HeartbeatStored") < kinds.index("StepCompleted")


@pytest.mark.statement("B78")
@scenario()
async def test_a_decision_is_returned_and_not_yielded(world: World) -> None:
    flow = Made(YieldsItsDecision(), has=(mood,))
    await world.deploy(flow)
    await world.start(flow, "f", 1)
    result = await world.result("f")
    assert result.status is FlowStatus.FAILED
    assert "yielded StepDecision" in result.error_message
    assert await seen(world) == (None, 0)


class Fans(Step[None]):
    def execute(self, context: Context, input: None) -> StepDecision:
        letters.publish(context, "old")
        return go_to_many(StepMovement.of(Idles, None), StepMovement.of(DoesAll, None))


class Idles(Step[None]):
    def wait_for(self, context: Context, input: None) -> Wait:
        return Wait.until(go.for_one())

    def execute(self, context: Context, input: None) -> StepDecision:
        return dead_end()


class DoesAll(Step[None]):
    def get_step_options(self) -> StepOptions:
        return StepOptions(execute_load_channels=(letters,))

    def execute(self, context: Context, input: None) -> StepDecision:
        letters.publish(context, "new")
        letters.delete(context, letters.pending_messages(context)[0].message_id)
        mood.set(context, "busy")
        return go_to(Idles, None).with_canceling_steps(Idles)


@pytest.mark.statement("B75", "C11", "C12")
@scenario()
async def test_one_commit_is_applied_in_a_fixed_order(world: World) -> None:
    flow = Made(Fans(), Idles(), DoesAll(), has=(mood, letters, go))
    await world.deploy(flow)
    await world.start(flow, "f")
    await world.until_phase("f", "Idles-2", "waiting")
    history = await world.history("f")
    ended = next(event.number for event in history if event.step_execution_id == "DoesAll-1" and "Comp" in event.kind)
    assert [event.kind for event in history[ended - 1 : ended + 5]] == [
        "StepCompleted",
        "AttributesWritten",
        "MessageDeleted",
        "MessagePublished",
        "StepCancelled",
        "StepScheduled",
    ]
    assert await steps_of(world, "f", "StepCancelled") == ["Idles-1"], "what the decision starts itself goes on"
    assert await seen(world) == ("busy", 1)


@pytest.mark.statement("B75")
@scenario()
async def test_a_crash_loses_all_of_a_commit_or_nothing(world: World) -> None:
    flow = Made(SlowWait(), has=(mood, letters))
    await world.deploy(flow)
    await world.start(flow, "f")
    await world.advance(15)  # wait_for is committed, execute is under way
    await world.restart()
    assert await seen(world) == ("first", 1)
    await world.advance(30)
    assert await seen(world) == ("second", 2), "the second attempt of execute"
    failed = await events(world, "f", "AttemptFailed")
    assert [event.data["failure"]["kind"] for event in failed] == ["STARTED_ATTEMPT_INTERRUPTED"]
