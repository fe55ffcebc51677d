"""How long an attempt may last and how long a method is retried: method timeout, heartbeat timeout, total duration."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from dex import (
    AsyncContext,
    Attribute,
    Context,
    FlowDefinitionError,
    HistoryEvent,
    Registry,
    RetryPolicy,
    Step,
    StepDecision,
    StepDurability,
    StepMovement,
    StepOptions,
    Timer,
    Wait,
    dead_end,
    go_to_many,
    graceful_complete,
)
from tests.statements.kit import Made, events, steps_of
from tests.world import World, scenario

guard = Attribute("guard", str)


def seconds(number: float) -> timedelta:
    return timedelta(seconds=number)


def every(interval: float, **policy: Any) -> RetryPolicy:
    return RetryPolicy(initial_interval=seconds(interval), backoff_coefficient=1.0, **policy)


ONCE = RetryPolicy(maximum_attempts=1)


class Does(Step[Any]):
    """A Step whose execute is `act(context, input)`."""

    def __init__(self, act: Any = None, **options: Any) -> None:
        self.act = act
        self.options = StepOptions(**options)

    def get_step_options(self) -> StepOptions:
        return self.options

    async def execute(self, context: AsyncContext, input: Any) -> StepDecision:
        decision = await self.act(context, input) if self.act is not None else None
        return decision if decision is not None else graceful_complete(context.attempt)


class A(Does):
    """Another Step of the same kind: movements name a Step by its class."""


class B(Does): ...


class C(Does): ...


async def sleeps(context: AsyncContext, input: float) -> None:
    await asyncio.sleep(input)


async def lives(context: AsyncContext, input: float) -> None:
    """Lasts as long as its input says, and shows that it is alive."""
    ends = asyncio.get_running_loop().time() + input
    while (left := ends - asyncio.get_running_loop().time()) > 0:
        await context.heartbeat()
        await asyncio.sleep(min(5.0, left))


async def fails(context: AsyncContext, input: Any) -> None:
    raise RuntimeError("always")


async def failures(world: World, name: str) -> list[tuple[str, float]]:
    """Kind of each failed attempt, and how long after its start it failed."""
    started: HistoryEvent | None = None
    found = []
    for event in await events(world, name, "AttemptStarted", "AttemptFailed"):
        if event.kind == "AttemptStarted":
            started = event
        else:
            assert started is not None
            found.append((event.data["failure"]["kind"], event.at - started.at))
    return found


HOUR = 3600.0
DAY = 24 * HOUR


@pytest.mark.statement("B156", "B158", "B160", "B161", "B172", "B173")
@pytest.mark.parametrize("durability", [StepDurability.SYNC, StepDurability.ASYNC])
@pytest.mark.parametrize(
    ("act", "options", "kind", "after"),
    [
        (lives, {}, "METHOD_TIMEOUT", 2 * HOUR),
        (lives, {"execute_method_timeout": seconds(90)}, "METHOD_TIMEOUT", 90),
        (sleeps, {"execute_method_timeout": seconds(20)}, "METHOD_TIMEOUT", 20),
        (sleeps, {}, "HEARTBEAT_TIMEOUT", 60),
        (sleeps, {"heartbeat_timeout": seconds(10)}, "HEARTBEAT_TIMEOUT", 10),
        (sleeps, {"heartbeat_timeout": timedelta(0), "execute_method_timeout": seconds(70)}, "HEARTBEAT_TIMEOUT", 60),
        (sleeps, {"heartbeat_timeout": timedelta(hours=3)}, "METHOD_TIMEOUT", 2 * HOUR),
    ],
)
@scenario()
async def test_an_attempt_over_its_time_fails_and_is_retried(
    world: World, act: Any, options: dict[str, Any], kind: str, after: float, durability: StepDurability
) -> None:
    retry = every(1, maximum_attempts=3, total_duration=timedelta(days=1))
    step = Does(act, execute_retry=retry, execute_durability=durability, **options)
    flow = Made(step, name="Timed")
    await world.deploy(flow)
    await world.start(flow, "f", DAY)
    result = await world.result("f", timeout=DAY)
    assert result.status.name == "FAILED"
    assert result.error_message.startswith(f"Does-1: {kind}: ")
    failed = await failures(world, "f")
    assert [name for name, _ in failed] == [kind] * 3
    assert [lasted for _, lasted in failed] == pytest.approx([after] * 3, abs=0.1)


@pytest.mark.statement("B129", "B158", "B160")
@scenario()
async def test_wait_for_has_a_timeout_of_its_own(world: World) -> None:
    class Slow(Step[int]):
        def get_step_options(self) -> StepOptions:
            return StepOptions(
                wait_for_method_timeout=seconds(20), wait_for_retry=ONCE, heartbeat_timeout=timedelta(hours=1)
            )

        async def wait_for(self, context: AsyncContext, input: int) -> Wait:
            await asyncio.sleep(input)
            return Wait.skip_immediately()

        async def execute(self, context: AsyncContext, input: int) -> StepDecision:
            await asyncio.sleep(30)
            return graceful_complete()

    flow = Made(Slow(), name="SlowWait")
    await world.deploy(flow)
    await world.start(flow, "slow", 30)
    await world.start(flow, "quick", 10)
    assert "METHOD_TIMEOUT" in (await world.result("slow")).error_message
    assert (await world.result("quick")).status.name == "COMPLETED"


@pytest.mark.statement("B160")
@pytest.mark.parametrize("timeout", [1, 9])
def test_a_heartbeat_timeout_under_ten_seconds_is_refused(timeout: int) -> None:
    with pytest.raises(FlowDefinitionError, match="at least 10 s"):
        Registry([Made(Does(heartbeat_timeout=seconds(timeout)))], allow_async_handlers=True)


@pytest.mark.statement("B119", "B164")
@scenario()
async def test_the_handler_is_told_at_the_deadline_which_is_the_hand_out_plus_the_method_timeout(world: World) -> None:
    told: list[float] = []

    async def act(context: AsyncContext, input: int) -> None:
        began = asyncio.get_running_loop().time()
        try:
            await asyncio.sleep(300)
        except asyncio.CancelledError:
            told.append(asyncio.get_running_loop().time() - began)
            assert context.is_cancellation_requested()
            raise

    options: dict[str, Any] = {"execute_method_timeout": seconds(30), "execute_retry": every(1, maximum_attempts=2)}
    flow = Made(Does(act, **options), name="Deadlines")
    await world.deploy(flow)
    await world.start(flow, "f", 0)
    assert (await world.result("f", timeout=HOUR)).status.name == "FAILED"
    assert told == pytest.approx([30, 30], abs=0.01)


# Total duration -------------------------------------------------------------------------------------------------------


@pytest.mark.statement("B132", "B159", "B162")
@pytest.mark.parametrize("durability", [StepDurability.SYNC, StepDurability.ASYNC])
@pytest.mark.parametrize(
    ("policy", "total"), [(every(600), 4 * HOUR), (every(7, total_duration=seconds(60)), 60.0)], ids=["default", "own"]
)
@scenario()
async def test_a_failed_attempt_is_retried_while_the_total_duration_has_time_left(
    world: World, policy: RetryPolicy, total: float, durability: StepDurability
) -> None:
    flow = Made(Does(fails, execute_retry=policy, execute_durability=durability), name="Retries")
    await world.deploy(flow)
    await world.start(flow, "f")
    await world.result("f", timeout=DAY)
    started, *_, retried, last = [event.at for event in await events(world, "f", "AttemptStarted")]
    assert retried - started < total <= last - started


@pytest.mark.statement("B161", "B162", "B170", "B171")
@pytest.mark.parametrize(("lasts", "expected"), [(50.0, "COMPLETED"), (70.0, "FAILED")])
@scenario()
async def test_the_total_duration_stops_no_attempt_the_method_timeout_does(
    world: World, lasts: float, expected: str
) -> None:
    options: dict[str, Any] = {
        "execute_method_timeout": seconds(60),
        "execute_retry": every(1, total_duration=seconds(10)),
    }
    flow = Made(Does(lives, **options), name="Total")
    await world.deploy(flow)
    await world.start(flow, "f", lasts)
    assert (await world.result("f", timeout=HOUR)).status.name == expected
    failed = await failures(world, "f")
    assert [kind for kind, _ in failed] == ([] if expected == "COMPLETED" else ["METHOD_TIMEOUT"])


@pytest.mark.statement("B165", "B167", "B168")
@scenario()
async def test_waiting_in_the_queue_counts_for_a_retry_only_and_stops_none(world: World) -> None:
    async def act(context: AsyncContext, input: int) -> None:
        if context.attempt < input:
            raise RuntimeError("once more")

    held: dict[str, Any] = {"heartbeat_timeout": timedelta(hours=2)}
    holder = Made(Does(sleeps, **held), name="Holder")
    flow = Made(Does(act, execute_retry=every(1, total_duration=seconds(20))), name="Queues")
    await world.deploy(holder, flow, slots=1)
    await world.start(holder, "first", 100)
    await world.start(flow, "f", 3)
    await world.advance(90)  # attempt 1 waits for the slot: this does not count
    await world.start(holder, "second", 100)
    await world.until_phase("f", "Does-1", "backoff", timeout=60)
    await world.advance(90)  # attempt 2 waits: this counts, but it runs all the same
    await world.result("f", timeout=200)
    started = [event.at for event in await events(world, "f", "AttemptStarted")]
    assert started[1] - started[0] == pytest.approx(100, abs=5)
    assert (await world.result("f")).status.name == "FAILED"
    assert len(started) == 2


@pytest.mark.statement("B165")
@scenario()
async def test_the_wait_before_execute_counts_for_nothing(world: World) -> None:
    class WaitsFirst(Does):
        def wait_for(self, context: Context, input: Any) -> Wait:
            return Wait.until(Timer.by_duration(seconds(100)))

    async def once(context: AsyncContext, input: None) -> None:
        if context.attempt == 1:
            raise RuntimeError("once")

    flow = Made(WaitsFirst(once, execute_retry=every(1, total_duration=seconds(20))), name="WaitsFirst")
    await world.deploy(flow, slots=1)
    await world.start(flow, "f", None)
    await world.advance(99)
    holder = Made(Does(sleeps, heartbeat_timeout=timedelta(hours=1)), name="Holder")
    await world.deploy(flow, holder)
    await world.start(holder, "holds the only slot", 50.0)
    assert (await world.result("f", timeout=HOUR)).single_output(int) == 2


@pytest.mark.statement("B163", "B196")
@scenario()
async def test_waiting_for_a_slot_or_a_lock_counts_toward_no_timeout(world: World) -> None:
    short: dict[str, Any] = {
        "execute_method_timeout": seconds(10),
        "heartbeat_timeout": seconds(10),
        "execute_lock_attributes": (guard.lock(),),
        "execute_retry": ONCE,
    }
    queued: dict[str, Any] = {**short, "execute_lock_attributes": ()}

    async def fan(context: AsyncContext, input: None) -> StepDecision:
        return go_to_many(*(StepMovement.of(A, 8.0) for _ in range(4)), *(StepMovement.of(B, 8.0) for _ in range(4)))

    flow = Made(Does(fan), A(sleeps, **short), B(sleeps, **queued), has=(guard,), name="Locks")
    await world.deploy(flow, slots=2)
    await world.start(flow, "f", None)
    result = await world.result("f", timeout=300)
    assert result.status.name == "COMPLETED"
    assert len(result.completions) == 8


# What follows ---------------------------------------------------------------------------------------------------------


class Recovers(Step[float]):
    def execute(self, context: Context, input: float) -> StepDecision:
        error = context.recovery_error
        assert error is not None
        return graceful_complete([error.error_type, error.attempt_progress.name, input])


@pytest.mark.statement("B132", "B172", "B215", "B217", "B220")
@pytest.mark.parametrize("kind", ["METHOD_TIMEOUT", "HEARTBEAT_TIMEOUT"])
@pytest.mark.parametrize("has_route", [True, False])
@scenario()
async def test_after_the_last_timeout_the_failure_policy_decides(world: World, kind: str, has_route: bool) -> None:
    step = Does(lives if kind == "METHOD_TIMEOUT" else sleeps)
    step.options = StepOptions(execute_method_timeout=seconds(100), execute_retry=ONCE)
    if has_route:
        step.options = step.options.on_execute_failure_proceed_to(Recovers)

    class Timed(Step[float]):
        def get_step_options(self) -> StepOptions:
            return step.options

        async def execute(self, context: AsyncContext, input: float) -> StepDecision:
            await step.act(context, input)
            return dead_end()

    flow = Made(Timed(), Recovers(), name="Policies")
    await world.deploy(flow)
    await world.start(flow, "f", HOUR)
    result = await world.result("f", timeout=HOUR)
    if has_route:
        assert result.single_output(list) == [kind, "NOT_COMPLETED", HOUR]
    else:
        assert (result.status.name, str(result.error_type and result.error_type.name)) == (
            "FAILED",
            "WORKER_API_FAILED",
        )
        assert kind in result.error_message


@pytest.mark.statement("B143", "B161")
@scenario()
async def test_while_it_waits_for_the_next_attempt_the_timeout_is_there_to_see(world: World) -> None:
    flow = Made(Does(sleeps, execute_method_timeout=seconds(20), execute_retry=every(50)), name="Seen")
    await world.deploy(flow)
    await world.start(flow, "f", HOUR)
    await world.until_phase("f", "Does-1", "backoff", timeout=60)
    (open_step,) = (await world.describe("f")).steps
    assert open_step.attempt == 2
    assert open_step.last_failure is not None
    assert open_step.last_failure.kind == open_step.last_failure.error_type == "METHOD_TIMEOUT"
    assert open_step.last_failure.attempt == 1


@pytest.mark.statement("B169")
@scenario()
async def test_queued_steps_are_handed_out_in_the_order_in_which_they_became_ready(world: World) -> None:
    async def fan(context: AsyncContext, input: None) -> StepDecision:
        return go_to_many(*(StepMovement.of((A, B, C)[number % 3], 1.0) for number in range(9)))

    flow = Made(Does(fan), A(sleeps), B(sleeps), C(sleeps), name="Orders")
    await world.deploy(flow, slots=1)
    await world.start(flow, "f")
    await world.result("f")
    started = await steps_of(world, "f", "AttemptStarted")
    assert started == ["Does-1", *(f"{name}-{number}" for number in (1, 2, 3) for name in "ABC")]
