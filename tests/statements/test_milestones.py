"""Waiting for a milestone of a Flow: the end of a Step execution, or the value of an Attribute."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest

from dex import (
    AsyncContext,
    Attribute,
    AttributeMap,
    AttributeMatch,
    Channel,
    Context,
    DexServiceError,
    FlowNotActiveOrNotFoundError,
    FlowStatus,
    IdReusePolicy,
    LongPollTimeoutError,
    RequestTimeoutError,
    RetryPolicy,
    RPCResult,
    StartFlowOptions,
    StatusCode,
    Step,
    StepDecision,
    StepExecutionId,
    StepMovement,
    StepOptions,
    StopFlowOptions,
    StopType,
    Wait,
    WaitForAttributeOptions,
    WaitForStepCompletionOptions,
    dead_end,
    force_complete,
    force_fail,
    go_to,
    go_to_many,
    rpc,
)
from dex.values import BLOB_THRESHOLD
from dexray.engine.waiters import LINGER
from tests.statements.kit import Made
from tests.world import InProcessWorld, World, scenario

orders = Channel("orders", str)
level = Attribute("level", int)
ratio = Attribute("ratio", float)
state = Attribute("state", str)
is_ready = Attribute("is_ready", bool)
stock = AttributeMap("stock", int)


class Work(Step[str]):
    """Takes orders, one by one."""

    def wait_for(self, context: Context, input: str) -> Wait:
        return Wait.until(orders.for_one())

    async def execute(self, context: AsyncContext, input: str) -> StepDecision:
        (order,) = orders.results(context)
        match order.partition(" "):
            case "go", _, _:
                return go_to(Work, "")
            case "sleep", _, seconds:
                await asyncio.sleep(float(seconds))
                return go_to(Work, "")
            case "cancel", _, _:
                return go_to(Work, "").with_canceling_steps(Idle)
            case "split", _, _:
                return go_to_many(StepMovement.of(Work, ""), StepMovement.of(Idle, ""))
            case "sweep", _, _:
                return force_complete().with_canceling_steps(Idle)
            case "fail", _, _:
                return go_to_many(StepMovement.of(Work, ""), StepMovement.of(Fails, ""))
            case "set", _, number:
                level.set(context, int(number))
                return go_to(Work, "")
            case "level", _, number:
                level.set(context, int(number))
                return force_complete()
            case "complete", _, _:
                return force_complete()
        return force_fail(order)


class Idle(Step[str]):
    def wait_for(self, context: Context, input: str) -> Wait:
        return Wait.until(never.for_one())

    def execute(self, context: Context, input: str) -> StepDecision:
        return dead_end()


class Fails(Step[str]):
    def get_step_options(self) -> StepOptions:
        return StepOptions(execute_retry=RetryPolicy(maximum_attempts=1)).on_execute_failure_proceed_to(Recovers)

    def execute(self, context: Context, input: str) -> StepDecision:
        raise RuntimeError("broken")


class Recovers(Step[str]):
    def execute(self, context: Context, input: str) -> StepDecision:
        return dead_end()


never = Channel("never", str)


class Shop(Made):
    def __init__(self) -> None:
        super().__init__(
            Work(),
            Idle(),
            Fails(),
            Recovers(),
            has=(orders, never, level, ratio, state, is_ready, stock),
            name="Shop",
        )

    @rpc
    def twice(self, context: Context, input: int) -> RPCResult[None]:
        """Two values in one commit: the first is never seen."""
        level.set(context, input)
        level.set(context, 0)
        return RPCResult(None)


FIRST = StepExecutionId(Work)


async def open_shop(world: World, **settings: Any) -> None:
    flow = Shop()
    await world.deploy(flow, **settings)
    await world.start(flow, "f", "")


def step_wait(
    world: World, name: str, step: StepExecutionId, *, request_id: str = "", timeout: float = 0, limit: float = 0
) -> Awaitable[None]:
    options = WaitForStepCompletionOptions(request_id, timedelta(seconds=timeout), timedelta(seconds=limit))
    return world.client.wait_for_step_completion(world.id(name), step, options)


def attribute_options(*, request_id: str = "", timeout: float = 0, limit: float = 0) -> WaitForAttributeOptions:
    return WaitForAttributeOptions(request_id, timedelta(seconds=timeout), timedelta(seconds=limit))


@contextmanager
def under_way(call: Awaitable[Any]) -> Iterator[asyncio.Future[Any]]:
    task = asyncio.ensure_future(call)
    try:
        yield task
    finally:
        task.cancel()


async def settle(world: World) -> None:
    """Lets what can happen now happen."""
    await world.advance(0.5)


# Step executions ------------------------------------------------------------------------------------------------------


@pytest.mark.statement("B58", "B59", "C44", "C80")
@scenario(ray=True)
async def test_the_wait_ends_with_the_step_while_the_flow_goes_on(world: World) -> None:
    await open_shop(world)
    with under_way(step_wait(world, "f", FIRST)) as waiting:
        await world.until_phase("f", "Work-1", "waiting")
        assert not waiting.done()
        await world.publish("f", orders, "go")
        assert await asyncio.wait_for(waiting, 30) is None
    assert (await world.describe("f")).status == "RUNNING"


@pytest.mark.statement("C44")
@scenario()
async def test_an_execution_that_is_over_already_is_told_at_once(world: World) -> None:
    await open_shop(world)
    await world.publish("f", orders, "go", "go")
    await world.until_phase("f", "Work-3", "waiting")
    for number in (1, 2):
        await asyncio.wait_for(step_wait(world, "f", StepExecutionId(Work, number)), 1)


@pytest.mark.statement("C44")
@scenario()
async def test_an_execution_need_not_have_begun(world: World) -> None:
    await open_shop(world)
    with under_way(step_wait(world, "f", StepExecutionId(Work, 3))) as waiting:
        await world.publish("f", orders, "go", "go")
        await world.until_phase("f", "Work-3", "waiting")
        assert not waiting.done()
        await world.publish("f", orders, "go")
        await waiting


@pytest.mark.statement("C44", "C16")
@scenario()
async def test_an_execution_that_was_canceled_is_over(world: World) -> None:
    await open_shop(world)
    await world.publish("f", orders, "split")
    with under_way(step_wait(world, "f", StepExecutionId(Idle))) as waiting:
        await world.until_phase("f", "Idle-1", "waiting")
        assert not waiting.done()
        await world.publish("f", orders, "cancel")
        await waiting
    await asyncio.wait_for(step_wait(world, "f", StepExecutionId(Idle)), 1)


@pytest.mark.statement("C44")
@scenario()
async def test_an_execution_that_failed_for_good_is_over_when_its_recovery_takes_over(world: World) -> None:
    await open_shop(world)
    with under_way(step_wait(world, "f", StepExecutionId(Fails))) as waiting:
        await world.publish("f", orders, "fail")
        await waiting


@pytest.mark.statement("C44")
@scenario()
async def test_the_last_step_is_told_although_its_flow_closes_with_it(world: World) -> None:
    await open_shop(world)
    with under_way(step_wait(world, "f", FIRST)) as waiting:
        await settle(world)
        await world.publish("f", orders, "complete")
        await waiting
    assert (await world.result("f")).status is FlowStatus.COMPLETED


@pytest.mark.statement("C44", "C46")
@scenario()
async def test_a_step_that_was_canceled_by_the_last_one_is_over(world: World) -> None:
    await open_shop(world)
    await world.publish("f", orders, "split")
    with under_way(step_wait(world, "f", StepExecutionId(Idle))) as waiting:
        await world.until_phase("f", "Idle-1", "waiting")
        await world.publish("f", orders, "sweep")
        await waiting
    assert (await world.result("f")).status is FlowStatus.COMPLETED


@pytest.mark.statement("C46", "C20")
@scenario()
async def test_a_step_that_the_end_of_its_flow_swept_away_did_not_complete(world: World) -> None:
    await open_shop(world)
    await world.publish("f", orders, "split")
    with under_way(step_wait(world, "f", StepExecutionId(Idle))) as waiting:
        await world.until_phase("f", "Idle-1", "waiting")
        await world.publish("f", orders, "complete")
        with pytest.raises(FlowNotActiveOrNotFoundError):
            await waiting


ENDS: list[tuple[str, Callable[[World], Awaitable[Any]]]] = [
    ("completed", lambda world: world.publish("f", orders, "complete")),
    ("failed", lambda world: world.publish("f", orders, "no such order")),
    ("terminated", lambda world: world.client.stop_flow(world.id("f"), StopFlowOptions(StopType.TERMINATE))),
    (
        "replaced",
        lambda world: world.start(
            Shop.here, "f", "", StartFlowOptions(id_reuse_policy=IdReusePolicy.ALLOW_TERMINATE_IF_RUNNING)
        ),
    ),
]


@pytest.mark.statement("C46")
@pytest.mark.parametrize(("end", "act"), ENDS, ids=[name for name, _ in ENDS])
@scenario()
async def test_waits_end_with_an_error_when_the_flow_closes(
    world: World, end: str, act: Callable[[World], Awaitable[Any]]
) -> None:
    flow = Shop.here = Shop()  # type: ignore[attr-defined]
    await world.deploy(flow)
    await world.start(flow, "f", "")
    attribute_wait = world.client.wait_for_attribute_match(world.id("f"), level, AttributeMatch.equal_to(1))
    with under_way(step_wait(world, "f", StepExecutionId(Work, 2))) as one, under_way(attribute_wait) as other:
        await settle(world)
        await act(world)
        for waiting in (one, other):
            with pytest.raises(FlowNotActiveOrNotFoundError, match=r"is .*, not active"):
                await asyncio.wait_for(waiting, 1)


@pytest.mark.statement("B60", "C44", "C49")
@scenario()
async def test_a_wait_for_an_unknown_or_closed_flow_is_an_error_at_once(world: World) -> None:
    await open_shop(world)
    await world.publish("f", orders, "go", "complete")
    await world.result("f")
    for name in ("f", "unknown"):
        with pytest.raises(FlowNotActiveOrNotFoundError):
            await step_wait(world, name, FIRST)
        with pytest.raises(FlowNotActiveOrNotFoundError):
            await world.client.wait_for_attribute_match(world.id(name), level, AttributeMatch.equal_to(0))


# Timeouts -------------------------------------------------------------------------------------------------------------


@pytest.mark.statement("B61", "C42")
@pytest.mark.parametrize("timeout", [3, 90, 60])
@scenario()
async def test_the_call_gives_up_when_its_time_is_over_and_nothing_is_undone(world: World, timeout: float) -> None:
    await open_shop(world)
    began = asyncio.get_running_loop().time()
    with pytest.raises(LongPollTimeoutError):
        await step_wait(world, "f", FIRST, timeout=timeout)
    assert asyncio.get_running_loop().time() - began == pytest.approx(timeout, abs=0.5)
    await world.publish("f", orders, "go")
    await asyncio.wait_for(step_wait(world, "f", FIRST), 1)


@pytest.mark.statement("C42", "C44")
@scenario()
async def test_without_a_timeout_the_call_waits_for_as_long_as_it_takes(world: World) -> None:
    await open_shop(world)
    with under_way(step_wait(world, "f", FIRST)) as waiting:
        await world.advance(24 * 3600)
        assert not waiting.done()
        await world.publish("f", orders, "go")
        await waiting


@pytest.mark.statement("B61")
@scenario()
async def test_the_wait_itself_gives_up_after_its_own_limit(world: World) -> None:
    await open_shop(world)
    with under_way(step_wait(world, "f", FIRST, limit=90)) as waiting:
        await world.advance(89)
        assert not waiting.done()
        await world.advance(2)
        with pytest.raises(RequestTimeoutError):
            await waiting
    with under_way(step_wait(world, "f", FIRST, limit=90)) as again:  # a new wait with a limit of its own
        await world.advance(89)
        await world.publish("f", orders, "go")
        await again


# Attributes -----------------------------------------------------------------------------------------------------------


@pytest.mark.statement("B58", "C45")
@scenario(ray=True)
async def test_the_value_that_fits_is_returned_when_it_is_committed(world: World) -> None:
    await open_shop(world)
    call = world.client.wait_for_attribute_match(world.id("f"), level, AttributeMatch.greater_than(5))
    with under_way(call) as waiting:
        await world.publish("f", orders, "set 3", "set 5")
        await world.until_phase("f", "Work-3", "waiting")
        assert not waiting.done()
        await world.publish("f", orders, "set 8")
        assert await asyncio.wait_for(waiting, 30) == 8


@pytest.mark.statement("C45")
@scenario()
async def test_a_value_that_fits_already_is_returned_at_once(world: World) -> None:
    await open_shop(world)
    await world.client.set_attribute(world.id("f"), level, 7)
    flow_id = world.id("f")
    for match in (AttributeMatch.equal_to(7), AttributeMatch.less_than(7.5), AttributeMatch.not_equal_to(0)):
        assert await asyncio.wait_for(world.client.wait_for_attribute_match(flow_id, level, match), 1) == 7


@pytest.mark.statement("C45")
@scenario()
async def test_every_type_and_every_map_instance_can_be_waited_for(world: World) -> None:
    await open_shop(world)
    client, flow_id = world.client, world.id("f")
    text = "x" * (BLOB_THRESHOLD + 1)
    waits: list[tuple[Awaitable[Any], Any]] = [
        (client.wait_for_attribute_match(flow_id, state, AttributeMatch.equal_to(text)), text),
        (client.wait_for_attribute_match(flow_id, is_ready, AttributeMatch.equal_to(False)), False),
        (client.wait_for_attribute_match(flow_id, ratio, AttributeMatch.greater_than_or_equal(1)), 1.5),
        (client.wait_for_attribute_match(flow_id, stock, "left wheel", AttributeMatch.less_than(3)), 2),
    ]
    tasks = [asyncio.ensure_future(call) for call, _ in waits]
    await settle(world)
    assert not any(task.done() for task in tasks), "a missing value satisfies nothing"
    await client.set_attribute(flow_id, stock, "right wheel", 2)
    await client.set_attribute(flow_id, state, "y" * (BLOB_THRESHOLD + 1))
    await settle(world)
    assert not any(task.done() for task in tasks)
    await client.set_attribute(flow_id, state, text)
    await client.set_attribute(flow_id, is_ready, False)
    await client.set_attribute(flow_id, ratio, 1.5)
    await client.set_attribute(flow_id, stock, "left wheel", 2)
    assert [await task for task in tasks] == [value for _, value in waits]


@pytest.mark.statement("C45")
@scenario()
async def test_a_deleted_value_satisfies_no_match(world: World) -> None:
    await open_shop(world)
    client, flow_id = world.client, world.id("f")
    await client.set_attribute(flow_id, state, "new")
    with under_way(client.wait_for_attribute_match(flow_id, state, AttributeMatch.not_equal_to("new"))) as waiting:
        await client.set_attribute(flow_id, state, None)
        await settle(world)
        assert not waiting.done()
        await client.set_attribute(flow_id, state, "old")
        assert await waiting == "old"


@pytest.mark.statement("C45")
@scenario()
async def test_a_value_that_is_gone_when_its_commit_ends_is_not_seen(world: World) -> None:
    flow = Shop()
    await world.deploy(flow)
    await world.start(flow, "f", "")
    call = world.client.wait_for_attribute_match(world.id("f"), level, AttributeMatch.equal_to(5))
    with under_way(call) as waiting:
        await world.client.invoke_rpc(flow.twice, world.id("f"), 5)
        await settle(world)
        assert not waiting.done()


@pytest.mark.statement("C45", "C46")
@scenario()
async def test_a_value_of_the_last_commit_is_returned_although_the_flow_closes_with_it(world: World) -> None:
    await open_shop(world)
    call = world.client.wait_for_attribute_match(world.id("f"), level, AttributeMatch.equal_to(4))
    with under_way(call) as waiting:
        await settle(world)
        await world.publish("f", orders, "level 4")
        assert await waiting == 4


@pytest.mark.statement("B5")
@scenario()
async def test_an_attribute_of_another_flow_is_refused(world: World) -> None:
    flow, foreign = Shop(), Attribute("foreign", int)
    await world.deploy(flow, Made(Recovers(), has=(foreign,), name="Other"))
    await world.start(flow, "f", "")
    with pytest.raises(DexServiceError, match="declares no Attribute 'foreign'") as caught:
        await world.client.wait_for_attribute_match(world.id("f"), foreign, AttributeMatch.equal_to(1))
    assert caught.value.code is StatusCode.INVALID_ARGUMENT


# One wait, several calls ----------------------------------------------------------------------------------------------


@pytest.mark.statement("C47")
@scenario()
async def test_a_value_that_came_while_the_client_was_away_is_told_when_it_is_back(world: World) -> None:
    await open_shop(world)
    client, flow_id, fits = world.client, world.id("f"), AttributeMatch.equal_to(5)
    with pytest.raises(LongPollTimeoutError):
        await client.wait_for_attribute_match(flow_id, level, fits, attribute_options(request_id="mine", timeout=1))
    await client.set_attribute(flow_id, level, 5)
    await client.set_attribute(flow_id, level, 6)
    for _ in range(2):  # the second one's answer was lost, say
        again = client.wait_for_attribute_match(flow_id, level, fits, attribute_options(request_id="mine", timeout=1))
        assert await again == 5
    with pytest.raises(LongPollTimeoutError):
        await client.wait_for_attribute_match(flow_id, level, fits, attribute_options(request_id="other", timeout=1))


@pytest.mark.statement("C47")
@scenario()
async def test_a_wait_that_somebody_came_back_to_is_kept_for_as_long_as_they_stay(world: World) -> None:
    await open_shop(world)
    client, flow_id, fits = world.client, world.id("f"), AttributeMatch.equal_to(5)
    with pytest.raises(LongPollTimeoutError):
        await client.wait_for_attribute_match(flow_id, level, fits, attribute_options(request_id="mine", timeout=1))
    await world.advance(LINGER - 10)
    with under_way(
        client.wait_for_attribute_match(flow_id, level, fits, attribute_options(request_id="mine"))
    ) as waiting:
        await world.advance(20)
        await client.set_attribute(flow_id, level, 5)
        await client.set_attribute(flow_id, level, 6)
        assert await asyncio.wait_for(waiting, 1) == 5


@pytest.mark.statement("C47")
@scenario()
async def test_without_an_id_a_new_call_is_not_told_what_an_earlier_one_was(world: World) -> None:
    await open_shop(world)
    client, flow_id, fits = world.client, world.id("f"), AttributeMatch.equal_to(5)
    await client.set_attribute(flow_id, level, 5)
    assert await client.wait_for_attribute_match(flow_id, level, fits) == 5
    await client.set_attribute(flow_id, level, 6)
    with pytest.raises(LongPollTimeoutError):
        await client.wait_for_attribute_match(flow_id, level, fits, attribute_options(timeout=1))


@pytest.mark.statement("C47")
@scenario()
async def test_a_wait_that_nobody_comes_back_to_is_forgotten(world: World) -> None:
    assert isinstance(world, InProcessWorld)
    await open_shop(world)
    with pytest.raises(LongPollTimeoutError):
        await step_wait(world, "f", FIRST, request_id="mine", timeout=1)
    assert world.engine is not None
    (live,) = world.engine.host.flows.values()
    assert not live.is_idle
    await world.advance(LINGER + 1)
    assert live.is_idle


@pytest.mark.statement("C47")
@scenario()
async def test_many_clients_may_share_a_wait(world: World) -> None:
    await open_shop(world)
    waiting = [asyncio.ensure_future(step_wait(world, "f", FIRST, request_id="ours")) for _ in range(20)]
    await settle(world)
    waiting.pop().cancel()
    await world.publish("f", orders, "go")
    await asyncio.gather(*waiting)


@pytest.mark.statement("C47")
@scenario()
async def test_one_id_is_not_for_two_waits(world: World) -> None:
    await open_shop(world)
    with under_way(step_wait(world, "f", FIRST, request_id="mine")):
        await settle(world)
        with pytest.raises(DexServiceError, match="is that of another wait") as caught:
            await step_wait(world, "f", StepExecutionId(Work, 2), request_id="mine")
        assert caught.value.code is StatusCode.INVALID_ARGUMENT


@pytest.mark.statement("C47")
@scenario()
async def test_the_limit_of_a_wait_counts_from_its_first_call(world: World) -> None:
    await open_shop(world)
    for _ in range(2):
        with pytest.raises(LongPollTimeoutError):
            await step_wait(world, "f", FIRST, request_id="mine", timeout=40, limit=100)
    with pytest.raises(RequestTimeoutError):
        await step_wait(world, "f", FIRST, request_id="mine", timeout=40, limit=100)


# Durability -----------------------------------------------------------------------------------------------------------


@pytest.mark.statement("B58", "C44")
@scenario()
async def test_a_wait_goes_on_over_a_crash_of_the_engine(world: World) -> None:
    await open_shop(world)
    await world.publish("f", orders, "go")
    await world.until_phase("f", "Work-2", "waiting")
    await world.restart()
    await asyncio.wait_for(step_wait(world, "f", FIRST), 5)
    with under_way(step_wait(world, "f", StepExecutionId(Work, 2))) as waiting:
        await settle(world)
        await world.publish("f", orders, "go")
        await waiting


@pytest.mark.statement("C44", "C47")
@scenario()
async def test_a_flow_that_somebody_waits_for_stays_in_memory(world: World) -> None:
    flow = Shop()
    await world.deploy(flow, idle_flows=2)
    await world.start(flow, "f", "")
    with under_way(step_wait(world, "f", FIRST)) as waiting:
        for number in range(10):
            await world.start(flow, f"other {number}", "")
        await settle(world)
        await world.publish("f", orders, "go")
        await waiting


@pytest.mark.statement("B57", "B58")
@scenario()
async def test_a_start_that_was_repeated_can_be_waited_on_at_once(world: World) -> None:
    flow = Shop()
    await world.deploy(flow)
    options = StartFlowOptions(request_id="same", ignore_already_started=True)
    run_id = await world.start(flow, "f", "", options)
    assert await world.start(flow, "f", "", options) == run_id
    with pytest.raises(LongPollTimeoutError):
        await step_wait(world, "f", FIRST, timeout=1)
