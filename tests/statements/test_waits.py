"""Waits: which conditions win, what they consume, and what execute is told of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest

from dex import (
    Channel,
    ChannelMap,
    Condition,
    ConditionCombination,
    Context,
    FlowErrorType,
    FlowStatus,
    RetryPolicy,
    Step,
    StepDecision,
    StepMovement,
    StepOptions,
    Timer,
    Wait,
    dead_end,
    force_complete,
    go_to,
    go_to_many,
    graceful_complete,
)
from tests.statements.kit import Made, outputs, steps_of
from tests.world import World, scenario

a = Channel("a", int)
b = Channel("b", int)
rooms = ChannelMap("rooms", int)
HAS = (a, b, rooms)


def after(seconds: int, condition_id: str | None = None) -> Condition:
    return Timer.by_duration(timedelta(seconds=seconds), condition_id=condition_id)


all_of, any_of, group = Wait.all_of, Wait.any_of, ConditionCombination.of

# The cases: what is queued when the wait is committed, and what comes of it at once. ----------------------------------


@dataclass(frozen=True)
class Case:
    """taken, left: messages of (a, b). fired: the Timers, in order. taken None: the wait stays open."""

    wait: Callable[[], Wait]
    queued: tuple[list[int], list[int]] = ([], [])
    taken: tuple[list[int], list[int]] | None = ([], [])
    fired: tuple[bool, ...] = ()

    @property
    def left(self) -> list[int]:
        taken = self.taken or ([], [])
        return [len(queue) - len(gone) for queue, gone in zip(self.queued, taken, strict=True)]


Q = [1, 2, 3, 4, 5]
CASES = {
    # kinds of waits
    "skip": Case(Wait.skip_immediately, queued=(Q, [])),
    "until-ready": Case(lambda: Wait.until(a.for_one()), queued=([1, 2], []), taken=([1], [])),
    "until-open": Case(lambda: Wait.until(a.for_one()), taken=None),
    "all-ready": Case(lambda: all_of(a.for_one(), b.for_one()), queued=([1], [8, 9]), taken=([1], [8])),
    "all-open": Case(lambda: all_of(a.for_one(), b.for_one()), queued=([1], []), taken=None),
    "all-with-timer": Case(lambda: all_of(after(0), a.for_one()), queued=([1], []), taken=([1], []), fired=(True,)),
    "all-timer-open": Case(lambda: all_of(after(9), a.for_one()), queued=([1], []), taken=None),
    # any_of: Timers, then Channels, each in declaration order; losers keep their messages
    "any-first-channel": Case(lambda: any_of(b.for_one(), a.for_one()), queued=([1], [8]), taken=([], [8])),
    "any-not-blocked": Case(lambda: any_of(b.for_n(2), a.for_one()), queued=([1], [8]), taken=([1], [])),
    "any-timer-first": Case(lambda: any_of(a.for_one(), after(0)), queued=([1], []), fired=(True,)),
    "any-timer-lost": Case(lambda: any_of(after(9), a.for_one()), queued=([1], []), taken=([1], []), fired=(False,)),
    "any-both-timers-report": Case(lambda: any_of(after(0), after(0), after(9)), fired=(True, True, False)),
    "any-open": Case(lambda: any_of(a.for_n(2), b.for_n(2), after(9)), queued=([1], [8]), taken=None),
    # how much a condition takes: the oldest first
    "one-of-five": Case(lambda: Wait.until(a.for_one()), queued=(Q, []), taken=([1], [])),
    "n-of-five": Case(lambda: Wait.until(a.for_n(3)), queued=(Q, []), taken=([1, 2, 3], [])),
    "n-short": Case(lambda: Wait.until(a.for_n(6)), queued=(Q, []), taken=None),
    "at-least": Case(lambda: Wait.until(a.at_least(2)), queued=(Q, []), taken=(Q, [])),
    "at-least-short": Case(lambda: Wait.until(a.at_least(6)), queued=(Q, []), taken=None),
    "at-most": Case(lambda: Wait.until(a.at_most(3)), queued=(Q, []), taken=([1, 2, 3], [])),
    "at-most-empty": Case(lambda: Wait.until(a.at_most(3))),
    "at-most-none": Case(lambda: Wait.until(a.at_most(0)), queued=(Q, [])),
    "range": Case(lambda: Wait.until(a.for_range(at_least=2, at_most=4)), queued=(Q, []), taken=([1, 2, 3, 4], [])),
    "range-minimum": Case(
        lambda: Wait.until(a.for_range(at_least=2, at_most=4)), queued=([1, 2], []), taken=([1, 2], [])
    ),
    "range-short": Case(lambda: Wait.until(a.for_range(at_least=2, at_most=4)), queued=([1], []), taken=None),
    # conditions on one Channel compete: minima first, then extended in declaration order
    "compete-short": Case(lambda: all_of(a.for_n(3), a.for_n(3)), queued=(Q, []), taken=None),
    "compete-enough": Case(lambda: all_of(a.for_n(3), a.for_n(2)), queued=(Q, []), taken=(Q, [])),
    "compete-extend": Case(lambda: all_of(a.at_most(9), a.for_n(4), b.at_most(1)), queued=(Q, [8, 9]), taken=(Q, [8])),
    # any_combination_of: an OR of AND groups, in declaration order
    "groups-first": Case(
        lambda: Wait.any_combination_of(group(a.for_one(condition_id="a")), group(b.for_one(condition_id="b"))),
        queued=([1], [8]),
        taken=([1], []),
    ),
    "groups-second": Case(
        lambda: Wait.any_combination_of(
            group(a.for_one(condition_id="a"), b.for_n(2, condition_id="b2")), group(b.for_one(condition_id="b"))
        ),
        queued=([1], [8]),
        taken=([], [8]),
    ),
    "groups-order-beats-kinds": Case(
        lambda: Wait.any_combination_of(group(a.for_one(condition_id="a")), group(after(0, "t"))),
        queued=([1], []),
        taken=([1], []),
        fired=(True,),
    ),
    "groups-need-all": Case(
        lambda: Wait.any_combination_of(group(a.for_one(condition_id="a"), after(9, "t"))),
        queued=([1], []),
        taken=None,
    ),
    "groups-compete": Case(
        lambda: Wait.any_combination_of(
            group(a.for_n(2, condition_id="x"), a.for_n(2, condition_id="y")), group(a.for_one(condition_id="z"))
        ),
        queued=([1, 2, 3], []),
        taken=([1], []),
    ),
    "groups-share-a-condition": Case(
        lambda: (
            lambda shared: Wait.any_combination_of(
                group(shared, b.for_one(condition_id="b")), group(shared, after(0, "t"))
            )
        )(a.for_one(condition_id="a")),
        queued=([1, 2], []),
        taken=([1], []),
        fired=(True,),
    ),
}


class Queues(Step[str]):
    """Fills the Channels, then goes to the Step that waits."""

    def execute(self, context: Context, input: str) -> StepDecision:
        for channel, values in zip((a, b), CASES[input].queued, strict=True):
            for value in values:
                channel.publish(context, value)
        return go_to(Waits, input)


class Waits(Step[str]):
    def wait_for(self, context: Context, input: str) -> Wait:
        return CASES[input].wait()

    def execute(self, context: Context, input: str) -> StepDecision:
        timers = [context.has_timer_fired(index) for index in range(3)]
        return graceful_complete(
            {
                "a": list(a.results(context)),
                "b": list(b.results(context)),
                "left": [a.size(context), b.size(context)],
                "timers": timers,
                "any timer": context.has_timer_fired(),
            }
        )


WAITS = Made(Queues(), Waits(), has=HAS, name="Waits")


@pytest.mark.statement("B83", "B84", "B85", "B87", "B88", "B89", "B90", "B91", "B93", "B94", "B96", "B97", "B98")
@pytest.mark.statement("C1", "C2", "C3", "C4", "C5", "C6", "C8", "D1")
@pytest.mark.parametrize("name", CASES)
@scenario()
async def test_what_a_wait_takes_of_what_is_there(world: World, name: str) -> None:
    case = CASES[name]
    await world.deploy(WAITS)
    await world.start(WAITS, "f", name)
    if case.taken is None:
        await world.until_phase("f", "Waits-1", "waiting")
        await world.advance(5)
        description = await world.describe("f")
        assert description.steps[0].phase == "waiting"
        assert [description.channels.get(channel, 0) for channel in ("a", "b")] == case.left
        return
    found = (await world.result("f", timeout=5)).single_output(dict[str, Any])
    assert (found["a"], found["b"]) == case.taken
    assert found["left"] == case.left
    assert tuple(found["timers"]) == case.fired + (False,) * (3 - len(case.fired))
    assert found["any timer"] == any(case.fired)


# While it waits -------------------------------------------------------------------------------------------------------


class Asks(Step[int]):
    """Waits for an answer on a, up to `input` seconds; with 0 it does not wait."""

    def wait_for(self, context: Context, input: int) -> Wait:
        if input == 0:
            return Wait.skip_immediately()
        return any_of(a.for_one(), after(input))

    def execute(self, context: Context, input: int) -> StepDecision:
        answer = a.results(context)
        assert bool(answer) != context.has_timer_fired() or input == 0
        return graceful_complete(answer[0] if answer else -1)


@pytest.mark.statement("B85", "B86", "B87", "B93", "B94")
@scenario(ray=True)
async def test_a_wait_for_decides_anew_each_time_whether_it_waits(world: World) -> None:
    flow = Made(Asks(), has=HAS, name="Asks")
    await world.deploy(flow)
    for name, seconds in (("skips", 0), ("times out", 1), ("is answered", 3600)):
        await world.start(flow, name, seconds)
    await world.publish("is answered", a, 7)
    assert (await world.result("skips")).single_output(int) == -1
    assert (await world.result("times out")).single_output(int) == -1
    assert (await world.result("is answered")).single_output(int) == 7


@pytest.mark.statement("B81", "B82", "C6")
@pytest.mark.parametrize("crash", [False, True])
@scenario()
async def test_an_open_wait_is_looked_at_again_with_each_message_and_timer_also_after_a_crash(
    world: World, crash: bool
) -> None:
    flow = Made(NeedsBoth(), has=HAS)
    await world.deploy(flow)
    await world.start(flow, "f")

    async def still_waits() -> None:
        if crash:
            await world.restart()
        description = await world.describe("f")
        assert [step.phase for step in description.steps] == ["waiting"]

    await world.until_phase("f", "NeedsBoth-1", "waiting")
    await world.publish("f", a, 1)
    await still_waits()
    await world.advance(15)  # the Timer fires
    await still_waits()
    await world.publish("f", a, 2)
    await still_waits()
    assert (await world.describe("f")).channels == {"a": 2}
    await world.publish("f", rooms, "red", 9)
    await still_waits()
    await world.publish("f", rooms, "blue", 3)
    assert (await world.result("f", timeout=1)).single_output(list[Any]) == [[1, 2], [3], True]


class NeedsBoth(Step[None]):
    def wait_for(self, context: Context, input: None) -> Wait:
        return all_of(a.for_n(2), after(10), rooms.for_one("blue"))

    def execute(self, context: Context, input: None) -> StepDecision:
        found = [list(a.results(context)), list(rooms.results(context, "blue")), context.has_timer_fired(0)]
        return graceful_complete(found)


class Strict(Step[None]):
    """Waits for what is urgent; then for anything."""

    def wait_for(self, context: Context, input: None) -> Wait:
        return Wait.until(a.for_one())

    def execute(self, context: Context, input: None) -> StepDecision:
        return go_to(Relaxed, None)


class Relaxed(Step[None]):
    def wait_for(self, context: Context, input: None) -> Wait:
        return any_of(a.for_one(), b.for_one())

    def execute(self, context: Context, input: None) -> StepDecision:
        return graceful_complete([list(a.results(context)), list(b.results(context))])


@pytest.mark.statement("B92")
@scenario()
async def test_a_wait_on_one_channel_alone_is_not_ended_by_another(world: World) -> None:
    flow = Made(Strict(), Relaxed(), has=HAS)
    await world.deploy(flow)
    await world.start(flow, "f")
    await world.publish("f", b, 8)
    await world.advance(3600)
    assert [step.step_execution_id for step in (await world.describe("f")).steps] == ["Strict-1"]
    await world.publish("f", a, 1)
    assert (await world.result("f", timeout=1)).single_output(list[Any]) == [[], [8]]


class TimerThenMessage(Step[int]):
    def wait_for(self, context: Context, input: int) -> Wait:
        return any_of(a.for_one(), after(input))

    def execute(self, context: Context, input: int) -> StepDecision:
        return graceful_complete(f"{list(a.results(context))} {context.has_timer_fired()}")


@pytest.mark.statement("B81")
@pytest.mark.parametrize("seconds", [1, 60, 30 * 24 * 3600])
@scenario()
async def test_a_timer_counts_from_the_commit_of_its_wait(world: World, seconds: int) -> None:
    flow = Made(TimerThenMessage(), has=HAS)
    await world.deploy(flow)
    await world.start(flow, "f", seconds)
    await world.advance(seconds - 0.5)
    assert (await world.describe("f")).status == "RUNNING"
    await world.advance(1)
    assert (await world.result("f")).single_output(str) == "[] True"


# Several waiters ------------------------------------------------------------------------------------------------------


class Forks(Step[int]):
    def execute(self, context: Context, input: int) -> StepDecision:
        return go_to_many(*(StepMovement.of(Takes, number) for number in range(input)))


class Takes(Step[int]):
    def get_step_options(self) -> StepOptions:
        return StepOptions(execute_retry=RetryPolicy(maximum_attempts=3))

    def wait_for(self, context: Context, input: int) -> Wait:
        return Wait.until(a.for_one())

    def execute(self, context: Context, input: int) -> StepDecision:
        if context.attempt < 2 and input % 2:
            raise RuntimeError(f"saw {list(a.results(context))}")
        return graceful_complete(list(a.results(context)))


@pytest.mark.statement("B231", "C7", "C9")
@scenario(ray=True)
async def test_each_message_goes_to_one_of_the_steps_that_wait_and_stays_with_it(world: World) -> None:
    flow = Made(Forks(), Takes(), has=HAS, name="Takers")
    await world.deploy(flow)
    await world.start(flow, "f", 3)
    await world.until_phase("f", "Takes-3", "waiting")
    await world.publish("f", a, 10)
    assert len(await steps_of(world, "f", "ConditionsMet")) == 1
    await world.publish("f", a, 11, 12, 13)
    taken = outputs(await world.result("f"), list[int])
    assert sorted(value for _, value in taken) == [[10], [11], [12]]
    for failed in [event for event in await world.history("f") if event.kind == "AttemptFailed"]:
        number = failed.step_execution_id
        assert failed.data["failure"]["detail"] == f"saw {dict(taken)[number]}", "each attempt sees the same message"


@pytest.mark.statement("C9")
@scenario()
async def test_consumed_messages_are_kept_over_a_crash(world: World) -> None:
    flow = Made(Takes(), has=HAS)
    await world.deploy(flow)
    await world.start(flow, "f", 1)
    await world.publish("f", a, 10)
    await world.until_phase("f", "Takes-1", "backoff")
    await world.restart()
    assert (await world.result("f")).single_output(list[int]) == [10]


class Leaves(Step[None]):
    def execute(self, context: Context, input: None) -> StepDecision:
        a.publish(context, 1)
        b.publish(context, 2)
        return force_complete("left two messages behind")


@pytest.mark.statement("C8")
@scenario()
async def test_a_flow_may_close_with_messages_left_which_are_dropped(world: World) -> None:
    flow = Made(Leaves(), has=HAS)
    await world.deploy(flow)
    await world.start(flow, "f")
    assert (await world.result("f")).status is FlowStatus.COMPLETED
    assert (await world.describe("f")).channels == {}


# Waits that can't be --------------------------------------------------------------------------------------------------

WRONG: dict[str, Callable[[], Any]] = {
    "no id": lambda: Wait.any_combination_of(group(a.for_one(condition_id="a"), b.for_one())),
    "one id twice": lambda: Wait.any_combination_of(
        group(a.for_one(condition_id="a")), group(b.for_one(condition_id="a"))
    ),
    "an empty id": lambda: any_of(a.for_one(condition_id="")),
    "one id twice in any_of": lambda: any_of(a.for_one(condition_id="x"), b.for_one(condition_id="x")),
    "nothing": lambda: None,
    "a condition": lambda: a.for_one(),
    "an undeclared Channel": lambda: Wait.until(Channel("stranger", int).for_one()),
    "another Channel of the name": lambda: Wait.until(Channel("a", int).for_one()),
}


class WaitsWrongly(Step[str]):
    def get_step_options(self) -> StepOptions:
        return StepOptions(wait_for_retry=RetryPolicy(maximum_attempts=2))

    def wait_for(self, context: Context, input: str) -> Wait:
        return WRONG[input]()  # type: ignore[no-any-return]

    def execute(self, context: Context, input: str) -> StepDecision:
        return dead_end()


@pytest.mark.statement("B99", "C10", "C24")
@pytest.mark.parametrize("name", WRONG)
@scenario()
async def test_a_wait_that_breaks_a_rule_fails_its_attempts_and_then_the_flow(world: World, name: str) -> None:
    flow = Made(WaitsWrongly(), has=HAS)
    await world.deploy(flow)
    await world.start(flow, "f", name)
    result = await world.result("f")
    assert (result.status, result.error_type) == (FlowStatus.FAILED, FlowErrorType.WORKER_API_FAILED)
    assert "WaitsWrongly" in result.error_message
    assert (await world.kinds("f")).count("AttemptFailed") == 2
