"""SYNC and ASYNC durability: what is written before what, and what a crash takes back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from dex import (
    AsyncContext,
    Channel,
    Context,
    FlowConfig,
    RetryPolicy,
    StartFlowOptions,
    Step,
    StepDecision,
    StepDurability,
    StepMovement,
    StepOptions,
    Wait,
    go_to,
    go_to_many,
    graceful_complete,
)
from dexray.machine.events import AttemptStarted, StepCompleted, decode_record
from tests.statements.kit import Made, events
from tests.statements.test_timeouts import A, Does, every, seconds
from tests.world import InProcessWorld, World, scenario

DEFAULT, SYNC, ASYNC = StepDurability.DEFAULT, StepDurability.SYNC, StepDurability.ASYNC

go = Channel("go", int)


@dataclass
class Log:
    """What handlers did, and whether their start and the completion before it were in the journal by then."""

    world: World
    lines: list[tuple[str, int]] = field(default_factory=list)
    start_was_durable: list[bool] = field(default_factory=list)
    previous_was_durable: list[bool] = field(default_factory=list)
    reached: dict[str, asyncio.Event] = field(default_factory=dict)

    def write(self, context: Context) -> None:
        self.lines.append((context.step_execution_id, context.attempt))
        assert isinstance(self.world, InProcessWorld)
        assert self.world.engine is not None
        found = [
            event
            for record in self.world.engine.host.journal.records(context.run_id, 0, 1000)
            for event in decode_record(record.body)
            if isinstance(event, AttemptStarted | StepCompleted)
        ]
        self.start_was_durable.append(
            any(
                isinstance(event, AttemptStarted)
                and (event.step, event.attempt) == (context.step_execution_id, context.attempt)
                for event in found
            )
        )
        self.previous_was_durable.append(any(isinstance(event, StepCompleted) for event in found))
        self.reached.setdefault(context.step_execution_id, asyncio.Event()).set()

    async def until(self, step: str) -> None:
        await self.reached.setdefault(step, asyncio.Event()).wait()

    def attempts(self, step: str) -> list[int]:
        return [attempt for name, attempt in self.lines if name == step]


class Chain(Made):
    """Does, then A, which ends the Flow. `ends`: what A does."""

    def __init__(
        self, world: World, durability: StepDurability, ends: Callable[[AsyncContext], Any] | None = None
    ) -> None:
        self.log = log = Log(world)

        async def first(context: AsyncContext, input: None) -> StepDecision:
            log.write(context)
            return go_to(A, None)

        async def last(context: AsyncContext, input: None) -> StepDecision:
            log.write(context)
            if ends is not None:
                await ends(context)
            return graceful_complete("done")

        options: dict[str, Any] = {"execute_durability": durability, "execute_retry": every(1)}
        super().__init__(Does(first, **options), A(last, **options), name="Chain")


async def once_for_long(context: AsyncContext) -> None:
    if context.attempt == 1:
        await asyncio.sleep(50)


async def fails(context: AsyncContext) -> None:
    raise RuntimeError("no")


# The table of the specification ---------------------------------------------------------------------------------------


async def start_before_the_work(world: World, durability: StepDurability) -> object:
    flow = Chain(world, durability)
    await world.deploy(flow)
    await world.start(flow, "f", None)
    await world.result("f")
    return flow.log.start_was_durable[1], flow.log.previous_was_durable[1]


async def crash_before_the_commit(world: World, durability: StepDurability) -> object:
    flow = Chain(world, durability, once_for_long)
    await world.deploy(flow)
    await world.start(flow, "f", None)
    await flow.log.until("A-1")
    await world.restart()
    await world.result("f", timeout=200)
    return flow.log.attempts("Does-1"), flow.log.attempts("A-1")


async def crash_after_the_commit(world: World, durability: StepDurability) -> object:
    flow = Chain(world, durability, once_for_long)
    await world.deploy(flow)
    await world.start(flow, "f", None)
    await flow.log.until("A-1")
    await world.advance(1)
    await world.restart()
    await world.result("f", timeout=200)
    (failed,) = await events(world, "f", "AttemptFailed")
    return flow.log.attempts("Does-1"), flow.log.attempts("A-1"), failed.data["failure"]["kind"]


async def a_failure(world: World, durability: StepDurability) -> object:
    flow = Chain(world, durability, fails)
    await world.deploy(flow)
    await world.start(flow, "f", None)
    await world.until_phase("f", "A-1", "backoff")
    await world.advance(1.5)
    return flow.log.attempts("A-1")


INTERRUPTED = "STARTED_ATTEMPT_INTERRUPTED"


@pytest.mark.statement("B150", "B151", "B152", "B153", "B198", "B199", "B202", "B203", "B210")
@pytest.mark.parametrize(
    ("row", "durability", "expected"),
    [
        (start_before_the_work, SYNC, (True, True)),
        (start_before_the_work, ASYNC, (False, False)),
        # SYNC: A's start was durable, so it has failed. ASYNC: the result of Does is lost, and its start was durable;
        # the start of A is rolled back and the same attempt number runs again.
        (crash_before_the_commit, SYNC, ([1], [1, 2])),
        (crash_before_the_commit, ASYNC, ([1, 2], [1, 1])),
        (crash_after_the_commit, SYNC, ([1], [1, 2], INTERRUPTED)),
        (crash_after_the_commit, ASYNC, ([1], [1, 2], INTERRUPTED)),
        (a_failure, SYNC, [1, 2]),
        (a_failure, ASYNC, [1, 2]),
    ],
)
@scenario()
async def test_sync_and_async_differ_as_the_table_says(
    world: World, row: Any, durability: StepDurability, expected: object
) -> None:
    assert await row(world, durability) == expected


@pytest.mark.statement("B153")
@scenario()
async def test_an_attempt_that_was_rolled_back_may_run_on_other_input(world: World) -> None:
    """It consumes no retry, though it has none left."""
    seen: list[tuple[int, int]] = []
    reached = asyncio.Event()

    async def first(context: AsyncContext, input: None) -> StepDecision:
        return go_to(A, context.attempt)

    async def last(context: AsyncContext, input: int) -> StepDecision:
        seen.append((context.attempt, input))
        reached.set()
        if input == 1:
            await asyncio.sleep(50)
        return graceful_complete()

    flow = Made(
        Does(first, execute_durability=ASYNC),
        A(last, execute_durability=ASYNC, execute_retry=RetryPolicy(maximum_attempts=1)),
        name="RolledBack",
    )
    await world.deploy(flow)
    await world.start(flow, "f")
    await reached.wait()
    await world.restart()
    assert (await world.result("f")).status.name == "COMPLETED"
    assert seen == [(1, 1), (1, 2)]


@pytest.mark.statement("B157")
@pytest.mark.parametrize("durability", [SYNC, ASYNC])
@scenario()
async def test_what_a_client_was_told_is_not_lost(world: World, durability: StepDurability) -> None:
    flow = Chain(world, durability)
    await world.deploy(flow)
    await world.start(flow, "f", None)
    assert (await world.result("f")).single_output(str) == "done"
    await world.restart()
    assert (await world.describe("f")).status == "COMPLETED"
    assert (await world.result("f")).single_output(str) == "done"
    assert len(flow.log.lines) == 2


@pytest.mark.statement("B157")
@scenario()
async def test_describe_tells_only_what_is_durable(world: World) -> None:
    flow = Chain(world, ASYNC, once_for_long)
    await world.deploy(flow)
    await world.start(flow, "f", None)
    await flow.log.until("A-1")
    described = await world.describe("f")
    await world.restart()
    again = await world.describe("f")
    assert [step.step_execution_id for step in described.steps] == ["A-1"]
    assert [step.step_execution_id for step in again.steps] == ["A-1"]


@pytest.mark.statement("B150", "B151")
@pytest.mark.parametrize(("before", "after"), [(SYNC, ASYNC), (ASYNC, SYNC)])
@scenario()
async def test_where_one_of_two_steps_is_sync_all_is_durable_between_them(
    world: World, before: StepDurability, after: StepDurability
) -> None:
    """What is SYNC is durable before anything follows from it, and before it runs."""
    log = Log(world)

    async def first(context: AsyncContext, input: None) -> StepDecision:
        return go_to(A, None)

    async def last(context: AsyncContext, input: None) -> StepDecision:
        log.write(context)
        return graceful_complete()

    flow = Made(Does(first, execute_durability=before), A(last, execute_durability=after), name="Mixed")
    await world.deploy(flow)
    await world.start(flow, "f")
    await world.result("f")
    assert (log.start_was_durable, log.previous_was_durable) == ([True], [True])


# Which one it is ------------------------------------------------------------------------------------------------------


@pytest.mark.statement("B14", "B69", "B155")
@pytest.mark.parametrize(
    ("own", "config", "expected"),
    [
        (DEFAULT, None, "SYNC"),
        (DEFAULT, DEFAULT, "SYNC"),
        (DEFAULT, SYNC, "SYNC"),
        (DEFAULT, ASYNC, "ASYNC"),
        (SYNC, None, "SYNC"),
        (SYNC, ASYNC, "SYNC"),
        (ASYNC, None, "ASYNC"),
        (ASYNC, SYNC, "ASYNC"),
    ],
)
@scenario()
async def test_the_methods_own_durability_wins_then_the_configs_then_sync(
    world: World, own: StepDurability, config: StepDurability | None, expected: str
) -> None:
    flow = Chain(world, own)
    await world.deploy(flow)
    override = None if config is None else FlowConfig(step_durability=config)
    await world.start(flow, "f", None, StartFlowOptions(config_override=override))
    await world.result("f")
    scheduled = await events(world, "f", "StepScheduled")
    assert [event.data["durability"] for event in scheduled] == [expected] * 2
    assert flow.log.start_was_durable[1] is (expected == "SYNC")


@pytest.mark.statement("B69", "B129", "B131")
@scenario()
async def test_each_method_has_its_own_and_a_movement_may_set_it(world: World) -> None:
    class Waits(Step[int]):
        def get_step_options(self) -> StepOptions:
            return StepOptions(wait_for_durability=ASYNC, execute_durability=SYNC)

        def wait_for(self, context: Context, input: int) -> Wait:
            return Wait.until(go.for_one())

        def execute(self, context: Context, input: int) -> StepDecision:
            return graceful_complete()

    class Forks(Step[None]):
        def execute(self, context: Context, input: None) -> StepDecision:
            swapped = StepOptions(wait_for_durability=SYNC, execute_durability=ASYNC)
            return go_to_many(StepMovement.of(Waits, 1), StepMovement.of(Waits, 2, swapped))

    flow = Made(Forks(), Waits(), has=(go,), name="Methods")
    await world.deploy(flow)
    await world.start(flow, "f", None)
    await world.publish("f", go, 1, 2)
    await world.result("f")
    found = {
        (event.step_execution_id, event.kind): event.data["durability"]
        for event in await events(world, "f", "StepScheduled", "ConditionsMet")
    }
    assert found == {
        ("Forks-1", "StepScheduled"): "SYNC",
        ("Waits-1", "StepScheduled"): "ASYNC",
        ("Waits-1", "ConditionsMet"): "SYNC",
        ("Waits-2", "StepScheduled"): "SYNC",
        ("Waits-2", "ConditionsMet"): "ASYNC",
    }


@pytest.mark.statement("B70")
@scenario()
async def test_durability_is_pinned_when_a_call_becomes_pending(world: World) -> None:
    """Code with another durability, deployed while calls are pending, is for the calls that are scheduled after."""

    def version(durability: StepDurability) -> Made:
        async def fan(context: AsyncContext, input: None) -> StepDecision:
            return go_to_many(StepMovement.of(A, 1), StepMovement.of(A, 2))

        async def act(context: AsyncContext, input: int) -> StepDecision:
            log.write(context)
            await asyncio.sleep(5)
            return go_to(A, input + 2) if input <= 2 else graceful_complete()

        return Made(Does(fan), A(act, execute_durability=durability), name="Pins")

    log = Log(world)
    flow = version(SYNC)
    await world.deploy(flow, slots=1)
    await world.start(flow, "f")
    await log.until("A-1")
    await world.deploy(version(ASYNC))
    await world.result("f")
    assert log.lines == [("A-1", 1), ("A-2", 1), ("A-3", 1), ("A-4", 1)]
    scheduled = (await events(world, "f", "StepScheduled"))[1:]
    assert [event.data["durability"] for event in scheduled] == ["SYNC", "SYNC", "ASYNC", "ASYNC"]
    assert log.start_was_durable == [True, True, True, False]


@pytest.mark.statement("B156")
@pytest.mark.parametrize("durability", [SYNC, ASYNC])
@scenario(ray=True)
async def test_a_chain_ends_alike_in_both(world: World, durability: StepDurability) -> None:
    class Counts(Step[int]):
        def get_step_options(self) -> StepOptions:
            return StepOptions(execute_durability=durability, execute_retry=RetryPolicy(initial_interval=seconds(1)))

        def execute(self, context: Context, input: int) -> StepDecision:
            if input == 3 and context.attempt == 1:
                raise RuntimeError("once")
            return go_to(Counts, input + 1) if input < 5 else graceful_complete([input, context.attempt])

    flow = Made(Counts(), name=f"Counts{durability.name}")
    await world.deploy(flow)
    await world.start(flow, "f", 0)
    assert (await world.result("f")).single_output(list) == [5, 1]
