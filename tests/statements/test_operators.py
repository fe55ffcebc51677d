"""What an operator changes in a running Flow: Timers are skipped, its FlowConfig is updated."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import pytest

from dex import (
    AsyncClient,
    Channel,
    Context,
    DexServiceError,
    FlowConfig,
    FlowNotActiveOrNotFoundError,
    FlowTimeoutPolicy,
    RetryPolicy,
    StartFlowOptions,
    StatusCode,
    Step,
    StepDecision,
    StepDurability,
    StepExecutionId,
    StepOptions,
    Timer,
    TimerId,
    Wait,
    force_complete,
    go_to,
    graceful_complete,
)
from tests.statements.kit import Made, events
from tests.world import World, scenario

box = Channel("box", str)
HOUR = timedelta(hours=1)


class Sleep(Step[str]):
    """Waits as its input says, and completes with the index of the Timer that fired."""

    def wait_for(self, context: Context, input: str) -> Wait:
        short, long = Timer.by_duration(HOUR, condition_id="short"), Timer.by_duration(2 * HOUR, condition_id="long")
        if input == "all":
            return Wait.all_of(short, long)
        return Wait.any_of(box.for_one(condition_id="box"), short, long)

    def execute(self, context: Context, input: str) -> StepDecision:
        return graceful_complete([context.has_timer_fired(index) for index in (0, 1)])


class Sleepy(Made):
    def __init__(self) -> None:
        super().__init__(Sleep(), has=(box,), name="Sleepy")


class Patient(Sleepy):
    def __init__(self) -> None:
        super().__init__()
        self.name = "Patient"

    def handle_timeout(self, context: Context) -> StepDecision:
        return force_complete("handled")


SLEEP = StepExecutionId(Sleep)


async def asleep(world: World, input: str = "") -> None:
    flow = Sleepy()
    await world.deploy(flow)
    await world.start(flow, "f", input)
    await world.until_phase("f", "Sleep-1", "waiting")


# Timers ---------------------------------------------------------------------------------------------------------------


@pytest.mark.statement("C50", "C4", "B93")
@pytest.mark.parametrize(
    ("timer", "fired"),
    [
        (TimerId.by_condition_index(0), [True, False]),
        (TimerId.by_condition_index(1), [False, True]),
        (TimerId.by_condition_id("long"), [False, True]),
    ],
    ids=["first", "second", "by id"],
)
@scenario(ray=True)
async def test_a_skipped_timer_counts_as_fired(world: World, timer: TimerId, fired: list[bool]) -> None:
    await asleep(world)
    await world.client.skip_timer(world.id("f"), SLEEP, timer)
    assert (await world.result("f")).single_output(list[bool]) == fired
    (event,) = await events(world, "f", "TimerFired")
    assert event.data["skipped"] is True


@pytest.mark.statement("C50")
@scenario()
async def test_a_skip_survives_a_crash_and_is_done_once_for_its_request_id(world: World) -> None:
    await asleep(world, "all")
    for _ in range(2):
        await world.client.skip_timer(world.id("f"), SLEEP, TimerId.by_condition_id("long"), request_id="mine")
        await world.restart()
    assert (await world.describe("f")).steps[0].waits_for.endswith("and Timer fired")
    await world.advance(3600)
    assert (await world.result("f")).single_output(list[bool]) == [True, True]
    assert len(await events(world, "f", "TimerFired")) == 2
    await world.client.skip_timer(world.id("f"), SLEEP, TimerId.by_condition_id("long"), request_id="mine")
    with pytest.raises(FlowNotActiveOrNotFoundError):
        await world.client.skip_timer(world.id("f"), SLEEP, TimerId.by_condition_id("long"))


@pytest.mark.statement("C50")
@pytest.mark.parametrize(
    ("step", "timer", "why"),
    [
        (StepExecutionId(Sleep, 2), TimerId.by_condition_index(0), "no open Step execution Sleep-2"),
        (SLEEP, TimerId.by_condition_index(2), "none at index 2"),
        (SLEEP, TimerId.by_condition_id("box"), "none with the condition_id 'box'"),
        (StepExecutionId("sys:timeout_handler"), TimerId.by_condition_index(0), "no timeout"),
    ],
)
@scenario()
async def test_a_timer_that_is_not_there_is_refused(
    world: World, step: StepExecutionId, timer: TimerId, why: str
) -> None:
    await asleep(world)
    with pytest.raises(DexServiceError, match=why) as caught:
        await world.client.skip_timer(world.id("f"), step, timer)
    assert caught.value.code is StatusCode.NOT_FOUND
    assert not isinstance(caught.value, FlowNotActiveOrNotFoundError)


@pytest.mark.statement("C50")
@pytest.mark.parametrize(
    ("flow", "policy", "status"),
    [
        (Sleepy(), FlowTimeoutPolicy.FAIL, "FAILED"),
        (Sleepy(), FlowTimeoutPolicy.CANCEL, "CANCELED"),
        (Patient(), FlowTimeoutPolicy.HANDLER, "COMPLETED"),
    ],
    ids=["FAIL", "CANCEL", "HANDLER"],
)
@scenario()
async def test_the_timeout_of_a_flow_is_skipped_through_its_handlers_type(
    world: World, flow: Made, policy: FlowTimeoutPolicy, status: str
) -> None:
    await world.deploy(flow)
    await world.start(flow, "f", "", StartFlowOptions(timeout=HOUR, timeout_policy=policy))
    await world.client.skip_timer(world.id("f"), StepExecutionId("sys:timeout_handler"), TimerId.by_condition_index(0))
    assert (await world.result("f", timeout=10)).status.name == status


# FlowConfig -----------------------------------------------------------------------------------------------------------


class Loop(Step[int]):
    """Each message is one more execution; the first attempt of each odd one fails."""

    def get_step_options(self) -> StepOptions:
        return StepOptions(execute_retry=RetryPolicy(initial_interval=timedelta(seconds=10)))

    def wait_for(self, context: Context, input: int) -> Wait:
        return Wait.until(box.for_one())

    def execute(self, context: Context, input: int) -> StepDecision:
        if input % 2 and context.attempt == 1:
            raise RuntimeError("once more")
        return go_to(Loop, input + 1)


class Looping(Made):
    def __init__(self) -> None:
        super().__init__(Loop(), has=(box,), name="Looping")


async def scheduled_as(world: World) -> dict[str, str]:
    """The durability that each method call was given, from the history."""
    found: dict[str, str] = {}
    for event in await events(world, "f", "StepScheduled", "ConditionsMet"):
        method = event.data.get("method", "execute")
        found[f"{event.step_execution_id} {method}"] = event.data["durability"]
    return found


ASYNC = FlowConfig(step_durability=StepDurability.ASYNC)


@pytest.mark.statement("B64", "B69", "B70", "B72", "C51")
@scenario()
async def test_a_new_durability_is_for_method_calls_that_become_pending_afterwards(world: World) -> None:
    flow = Looping()
    await world.deploy(flow)
    await world.start(flow, "f", 1)
    await world.publish("f", box, "go")
    await world.until_phase("f", "Loop-1", "backoff")
    await world.client.update_flow_config(world.id("f"), ASYNC)
    await world.advance(20)
    await world.publish("f", box, "go")
    await world.until_phase("f", "Loop-3", "waiting")
    assert await scheduled_as(world) == {
        "Loop-1 wait_for": "SYNC",
        "Loop-1 execute": "SYNC",  # its retry came after the change, and is of the same call
        "Loop-2 wait_for": "ASYNC",
        "Loop-2 execute": "ASYNC",
        "Loop-3 wait_for": "ASYNC",
    }


@pytest.mark.statement("B64", "B65", "B72")
@scenario()
async def test_an_update_is_durable_and_leaves_the_other_fields_alone(world: World) -> None:
    flow = Looping()
    await world.deploy(flow)
    await world.start(flow, "f", 0, StartFlowOptions(config_override=FlowConfig(step_durability=StepDurability.ASYNC)))
    await world.client.update_flow_config(world.id("f"), FlowConfig(continue_as_new_page_size_bytes=7))
    await world.client.update_flow_config(world.id("f"), FlowConfig(continue_as_new_threshold=5))
    await world.restart()
    await world.publish("f", box, "go")
    await world.until_phase("f", "Loop-2", "waiting")
    assert set((await scheduled_as(world)).values()) == {"ASYNC"}
    updates = [event.data["config"] for event in await events(world, "f", "FlowConfigUpdated")]
    assert updates == [{"continue_as_new_page_size_bytes": 7}, {"continue_as_new_threshold": 5}]


@pytest.mark.statement("B67")
@scenario()
async def test_a_negative_threshold_is_refused(world: World) -> None:
    await asleep(world)
    with pytest.raises(DexServiceError, match="continue_as_new_threshold -1 is negative") as caught:
        await world.client.update_flow_config(world.id("f"), FlowConfig(continue_as_new_threshold=-1))
    assert caught.value.code is StatusCode.INVALID_ARGUMENT


@pytest.mark.statement("B72")
@scenario()
async def test_an_update_is_done_once_for_its_request_id(world: World) -> None:
    await asleep(world)
    await world.client.update_flow_config(world.id("f"), ASYNC, request_id="mine")
    await world.client.update_flow_config(world.id("f"), FlowConfig(step_durability=StepDurability.SYNC))
    await world.client.update_flow_config(world.id("f"), ASYNC, request_id="mine")
    updates = [event.data["config"] for event in await events(world, "f", "FlowConfigUpdated")]
    assert updates == [{"step_durability": "ASYNC"}, {"step_durability": "SYNC"}]


@pytest.mark.statement("D3", "B68", "C81")
@scenario()
async def test_a_trigger_to_continue_as_new_is_accepted_and_does_nothing(world: World) -> None:
    await asleep(world)
    before = [event.number for event in await world.history("f")], (await world.describe("f")).run_id
    await world.client.trigger_continue_as_new(world.id("f"))
    assert ([event.number for event in await world.history("f")], (await world.describe("f")).run_id) == before


CALLS: list[tuple[str, Callable[[AsyncClient, str], Awaitable[Any]]]] = [
    ("skip_timer", lambda client, name: client.skip_timer(name, SLEEP, TimerId.by_condition_index(0))),
    ("update_flow_config", lambda client, name: client.update_flow_config(name, ASYNC)),
    ("trigger_continue_as_new", lambda client, name: client.trigger_continue_as_new(name)),
]


@pytest.mark.statement("C49", "B72")
@pytest.mark.parametrize(("operation", "call"), CALLS, ids=[name for name, _ in CALLS])
@scenario()
async def test_a_flow_that_is_unknown_or_closed_takes_no_changes(
    world: World, operation: str, call: Callable[[AsyncClient, str], Awaitable[Any]]
) -> None:
    await asleep(world)
    await world.client.stop_flow(world.id("f"))
    await asyncio.wait_for(world.result("f"), 5)
    for name in ("f", "unknown"):
        with pytest.raises(FlowNotActiveOrNotFoundError) as caught:
            await call(world.client, world.id(name))
        assert caught.value.operation == operation
