"""Starting a Flow: request ids, reuse policies, what a start may set, and what it does not promise."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import pytest

from dex import (
    AsyncContext,
    Attribute,
    AttributeMap,
    Channel,
    Context,
    DexServiceError,
    FlowAlreadyStartedError,
    FlowConfig,
    FlowErrorType,
    FlowStatus,
    IdReusePolicy,
    RetryPolicy,
    StartFlowOptions,
    StatusCode,
    Step,
    StepDecision,
    StepDurability,
    StopFlowOptions,
    StopType,
    Timer,
    Wait,
    dead_end,
    force_fail,
    go_to,
    graceful_complete,
)
from dex.wire.service import ServiceError, StartFlow
from tests.statements.kit import Made, events, outputs
from tests.world import InProcessWorld, World, scenario

ending = Channel("ending", str)
note = Attribute("note", str)
count = Attribute("count", int)
stock = AttributeMap("stock", int)

P = IdReusePolicy


class Lives(Step[str]):
    """Runs until it is told how to end."""

    def wait_for(self, context: Context, input: str) -> Wait:
        return Wait.until(ending.for_one())

    def execute(self, context: Context, input: str) -> StepDecision:
        how = ending.results(context)[0]
        return force_fail("as told") if how == "fail" else graceful_complete(input)


LIFE = Made(Lives(), has=(ending, note, count, stock), name="Life")


async def start(world: World, name: str, input: str = "", **options: Any) -> str:
    return await world.start(LIFE, name, input, StartFlowOptions(**options))


# The table of reuse policies ------------------------------------------------------------------------------------------


async def leave_open(world: World, name: str) -> None:
    await world.until_phase(name, "Lives-1", "waiting")


async def complete(world: World, name: str) -> None:
    await world.publish(name, ending, "complete")
    assert (await world.result(name)).status is FlowStatus.COMPLETED


async def fail(world: World, name: str) -> None:
    await world.publish(name, ending, "fail")
    assert (await world.result(name)).status is FlowStatus.FAILED


def stop(stop_type: StopType, status: FlowStatus) -> Callable[[World, str], Awaitable[None]]:
    async def stopped(world: World, name: str) -> None:
        await world.client.stop_flow(world.id(name), StopFlowOptions(stop_type))
        assert (await world.result(name)).status is status

    return stopped


STATES: dict[str, Callable[[World, str], Awaitable[None]]] = {
    "active": leave_open,
    "completed": complete,
    "failed": fail,
    "canceled": stop(StopType.CANCEL, FlowStatus.CANCELED),
    "terminated": stop(StopType.TERMINATE, FlowStatus.TERMINATED),
}

REUSE = {
    # policy: what it says of an (active, completed, failed, canceled, terminated) run of the same Flow ID
    P.DEFAULT: ("rejects", "rejects", "rejects", "rejects", "rejects"),
    P.DISALLOW: ("rejects", "rejects", "rejects", "rejects", "rejects"),
    P.ALLOW_IF_PREVIOUS_FAILED: ("rejects", "rejects", "starts", "rejects", "rejects"),
    P.ALLOW_IF_NOT_RUNNING: ("rejects", "starts", "starts", "starts", "starts"),
    P.ALLOW_TERMINATE_IF_RUNNING: ("replaces", "starts", "starts", "starts", "starts"),
}

REPEATS = {
    # (request id of the repeat, ignore_already_started): what comes of it where the policy rejects
    (None, False): "error",
    (None, True): "error",
    ("other", False): "error",
    ("other", True): "error",
    ("same", False): "error",
    ("same", True): "existing run",
}

TABLE = [
    pytest.param(policy, state, verdict, id=f"{policy.name.lower()}-{state}")
    for policy, verdicts in REUSE.items()
    for state, verdict in zip(STATES, verdicts, strict=True)
]


@pytest.mark.statement("B35", "B38", "B39", "B40", "B41", "B42", "B43", "B44", "B45", "B46", "B47", "B48", "B49")
@pytest.mark.statement("B50", "B51", "B52", "B56", "B63")
@pytest.mark.parametrize(("policy", "state", "verdict"), TABLE)
@scenario()
async def test_reuse_policies_over_active_and_closed_runs(
    world: World, policy: IdReusePolicy, state: str, verdict: str
) -> None:
    await world.deploy(LIFE)
    for number, ((request_id, ignore), when_rejected) in enumerate(REPEATS.items()):
        name = f"f{number}"
        first = await start(world, name, "first", request_id="same")
        await STATES[state](world, name)
        before = await world.describe(name)

        again = start(
            world, name, "second", id_reuse_policy=policy, request_id=request_id, ignore_already_started=ignore
        )
        if verdict == "rejects":
            if when_rejected == "error":
                with pytest.raises(FlowAlreadyStartedError):
                    await again
            else:
                assert await again == first, "the request id says that it is the same start, whatever its input"
            after = await world.describe(name)
            assert (after.run_id, after.status) == (first, before.status), "nothing has changed"
        else:
            second = await again
            assert second != first, "a policy that permits another run does not ask for the request id"
            assert (await world.describe(name)).run_id == second
            if verdict == "replaces":
                old = [event async for event in world.client.history(world.id(name), run_id=first)]
                assert old[-1].kind == "FlowClosed"
                assert old[-1].data["status"] == "TERMINATED"
            await world.publish(name, ending, "complete")
            assert (await world.result(name)).single_output(str) == "second"


# Request ids ----------------------------------------------------------------------------------------------------------

SAFE: dict[str, Any] = {"request_id": "start-17", "id_reuse_policy": P.DISALLOW, "ignore_already_started": True}


@pytest.mark.statement("B42", "B54", "B55", "B57")
@scenario(ray=True)
async def test_a_start_that_is_safe_to_repeat_gives_the_same_run_open_or_closed(world: World) -> None:
    await world.deploy(LIFE)
    run_id = await start(world, "f", "once", **SAFE)
    assert await start(world, "f", "once", **SAFE) == run_id
    assert (await world.describe("f")).status == "RUNNING", "a de-duplicated start says nothing of the work"
    await complete(world, "f")
    assert await start(world, "f", "once", **SAFE) == run_id
    with pytest.raises(FlowAlreadyStartedError):
        await start(world, "f", "once", **{**SAFE, "request_id": "start-18"})
    assert (await world.kinds("f")).count("StepScheduled") == 1


@pytest.mark.statement("B53", "B54", "D8")
@scenario()
async def test_the_request_id_is_recorded_with_the_run_and_survives_a_crash(world: World) -> None:
    await world.deploy(LIFE)
    run_id = await start(world, "f", **SAFE)
    await world.restart()
    assert await start(world, "f", **SAFE) == run_id
    await complete(world, "f")
    await world.restart()
    assert await start(world, "f", **SAFE) == run_id


@pytest.mark.statement("B53")
@scenario()
async def test_the_request_id_of_an_earlier_run_is_not_that_of_the_existing_run(world: World) -> None:
    await world.deploy(LIFE)
    await start(world, "f", request_id="first")
    await complete(world, "f")
    second = await start(world, "f", request_id="second", id_reuse_policy=P.ALLOW_IF_NOT_RUNNING)
    with pytest.raises(FlowAlreadyStartedError):
        await start(world, "f", request_id="first", ignore_already_started=True)
    assert await start(world, "f", request_id="second", ignore_already_started=True) == second


@pytest.mark.statement("B37")
@scenario()
async def test_an_empty_request_id_is_refused(world: World) -> None:
    await world.deploy(LIFE)
    assert isinstance(world, InProcessWorld)
    assert world.engine is not None
    with pytest.raises(ServiceError, match="INVALID_ARGUMENT"):
        await world.engine.call(StartFlow(flow_id="f", flow_type="Life", input=b"", request_id=""))
    with pytest.raises(ValueError, match="request_id"):
        await start(world, "f", request_id="")


@pytest.mark.statement("B36", "B63")
@scenario()
async def test_without_a_request_id_every_call_is_a_new_request(world: World) -> None:
    await world.deploy(LIFE)
    await start(world, "f", ignore_already_started=True)
    with pytest.raises(FlowAlreadyStartedError):
        await start(world, "f", ignore_already_started=True)


@pytest.mark.statement("B54")
@scenario()
async def test_of_many_starts_at_once_one_starts_a_run_and_all_get_it(world: World) -> None:
    await world.deploy(LIFE)
    run_ids = await asyncio.gather(*(start(world, "f", **SAFE) for _ in range(20)))
    assert len(set(run_ids)) == 1
    assert (await world.kinds("f")).count("FlowStarted") == 1


@pytest.mark.statement("B57")
@scenario()
async def test_a_start_is_accepted_before_any_work_is_done(world: World) -> None:
    await world.deploy(LIFE, slots=0)  # nobody works
    await start(world, "f", **SAFE)
    await start(world, "f", **SAFE)
    await world.advance(60)
    assert "AttemptStarted" not in await world.kinds("f")
    assert (await world.describe("f")).status == "RUNNING"


# Replacing ------------------------------------------------------------------------------------------------------------


class Slow(Step[str]):
    """Writes when it is done, in 50 s."""

    async def execute(self, context: AsyncContext, input: str) -> StepDecision:
        try:
            await asyncio.sleep(50)
        except asyncio.CancelledError:
            await asyncio.sleep(1)  # it does not stop at once, and then goes on as if nothing had been
        note.set(context, input)
        return go_to(Lives, input)


@pytest.mark.statement("B51", "C20", "D9")
@scenario()
async def test_nothing_of_a_replaced_run_leaks_into_its_replacement(world: World) -> None:
    flow = Made(Slow(), Lives(), has=(ending, note, count, stock), name="Life")
    await world.deploy(flow)
    options = StartFlowOptions(id_reuse_policy=P.ALLOW_TERMINATE_IF_RUNNING)
    old = await world.start(flow, "f", "old", options.with_attribute(count, 7))
    await world.until_phase("f", "Slow-1", "running")
    await world.publish("f", ending, "fail")
    first_result = asyncio.ensure_future(world.result("f"))
    await asyncio.sleep(1)

    new = await world.start(flow, "f", "new", options)
    assert (await first_result).status is FlowStatus.TERMINATED, "who waited for the old run hears of its end"
    await world.advance(30)
    assert await world.client.get_attribute(world.id("f"), note) is None, "the old handler returned, and was refused"
    assert await world.client.get_attribute(world.id("f"), count) == 0
    assert (await world.describe("f")).channels == {}
    await world.until_phase("f", "Lives-1", "waiting", timeout=100)
    assert await world.client.get_attribute(world.id("f"), note) == "new"
    await world.publish("f", ending, "complete")
    result = await world.result("f")
    assert outputs(result, str) == [("Lives-1", "new")]
    started = (await events(world, "f", "FlowStarted"))[0]
    assert (started.data["run_id"], started.data["replaces"]) == (new, old)


@pytest.mark.statement("B51")
@scenario(ray=True)
async def test_a_start_that_terminates_is_never_refused(world: World) -> None:
    await world.deploy(LIFE)
    options: dict[str, Any] = {"id_reuse_policy": P.ALLOW_TERMINATE_IF_RUNNING}
    run_ids = [await start(world, "f", f"{number}", **options) for number in range(3)]
    assert len(set(run_ids)) == 3
    await complete(world, "f")
    assert (await world.result("f")).single_output(str) == "2"


# What a start may set -------------------------------------------------------------------------------------------------


class Reads(Step[None]):
    def execute(self, context: Context, input: None) -> StepDecision:
        return graceful_complete([note.get(context), count.get(context), list(stock.get_all_instance_keys(context))])


@pytest.mark.statement("B13")
@scenario(ray=True)
async def test_initial_attributes_are_there_for_the_first_step(world: World) -> None:
    flow = Made(Reads(), has=(note, count, stock), name="Reader")
    await world.deploy(flow)
    options = StartFlowOptions().with_attribute(note, "hello").with_attribute(stock, "pear", 3)
    await world.start(flow, "f", None, options)
    assert (await world.result("f")).single_output(list[Any]) == ["hello", 0, ["pear"]]


@pytest.mark.statement("B13")
@scenario()
async def test_an_initial_attribute_that_the_schema_lacks_starts_nothing(world: World) -> None:
    await world.deploy(LIFE)
    stranger = Attribute("stranger", str)
    with pytest.raises(ValueError, match="stranger"):
        await world.start(LIFE, "f", "", StartFlowOptions().with_attribute(stranger, "x"))
    assert isinstance(world, InProcessWorld)
    assert world.engine is not None
    for name in ("stranger", "note/instance", "stock"):
        request = StartFlow(
            flow_id=world.id("f"), flow_type="Life", input=b"\xc0", request_id="r", attributes={name: b"\x01"}
        )
        with pytest.raises(ServiceError, match="INVALID_ARGUMENT"):
            await world.engine.call(request)
    await start(world, "f")


@pytest.mark.statement("B10", "B11")
@pytest.mark.parametrize(
    "options", [{"retry_policy": RetryPolicy()}, {"start_delay": timedelta(seconds=1)}], ids=["retry", "delay"]
)
@scenario()
async def test_a_retry_policy_and_a_start_delay_are_refused(world: World, options: dict[str, Any]) -> None:
    await world.deploy(LIFE)
    with pytest.raises(DexServiceError) as caught:
        await start(world, "f", **options)
    assert caught.value.code is StatusCode.INVALID_ARGUMENT
    await start(world, "f", start_delay=timedelta(0))


class Delayed(Step[int]):
    def wait_for(self, context: Context, input: int) -> Wait:
        return Wait.until(Timer.by_duration(timedelta(seconds=input)))

    def execute(self, context: Context, input: int) -> StepDecision:
        return graceful_complete("late")


@pytest.mark.statement("B12")
@scenario()
async def test_a_flow_begins_late_by_a_timer_of_its_start_step(world: World) -> None:
    flow = Made(Delayed())
    await world.deploy(flow)
    await world.start(flow, "f", 3600)
    await world.advance(3590)
    assert (await world.describe("f")).status == "RUNNING"
    await world.advance(20)
    assert (await world.describe("f")).status == "COMPLETED"


@pytest.mark.statement("B14", "B65", "B69")
@pytest.mark.parametrize(
    ("config", "durability"),
    [
        (None, "SYNC"),
        (FlowConfig(continue_as_new_threshold=5), "SYNC"),  # what is not given keeps its default
        (FlowConfig(step_durability=StepDurability.DEFAULT), "SYNC"),
        (FlowConfig(step_durability=StepDurability.ASYNC), "ASYNC"),
    ],
)
@scenario()
async def test_a_config_at_the_start_overrides_the_fields_that_it_gives(
    world: World, config: FlowConfig | None, durability: str
) -> None:
    await world.deploy(LIFE)
    await start(world, "f", config_override=config)
    started, scheduled = await events(world, "f", "FlowStarted", "StepScheduled")
    assert scheduled.data["durability"] == durability
    given = {} if config is None else {"continue_as_new_threshold": config.continue_as_new_threshold}
    assert started.data.get("config", {}).get("continue_as_new_threshold") == given.get("continue_as_new_threshold")


class Again(Step[str]):
    def wait_for(self, context: Context, input: str) -> Wait:
        return Wait.until(ending.for_one())

    def execute(self, context: Context, input: str) -> StepDecision:
        return go_to(Again, input)


@pytest.mark.statement("B64", "B70")
@scenario()
async def test_a_config_can_be_changed_while_the_flow_runs(world: World) -> None:
    flow = Made(Again(), has=(ending,))
    await world.deploy(flow)
    await world.start(flow, "f", "", StartFlowOptions(config_override=FlowConfig(continue_as_new_threshold=5)))
    await world.until_phase("f", "Again-1", "waiting")
    await world.client.update_flow_config(world.id("f"), FlowConfig(step_durability=StepDurability.ASYNC))
    await world.publish("f", ending, "go on")
    await world.until_phase("f", "Again-2", "waiting")
    scheduled = await events(world, "f", "StepScheduled")
    assert [event.data["durability"] for event in scheduled] == ["SYNC", "ASYNC"]


@pytest.mark.statement("B67")
@pytest.mark.parametrize("field", ["continue_as_new_threshold", "continue_as_new_page_size_bytes"])
@scenario()
async def test_negative_numbers_for_continue_as_new_are_refused_and_others_stored(world: World, field: str) -> None:
    await world.deploy(LIFE)
    with pytest.raises(DexServiceError, match=field) as caught:
        await start(world, "f", config_override=FlowConfig(**{field: -1}))  # type: ignore[arg-type]
    assert caught.value.code is StatusCode.INVALID_ARGUMENT
    await start(world, "f", config_override=FlowConfig(**{field: 1}))  # type: ignore[arg-type]
    assert (await events(world, "f", "FlowStarted"))[0].data["config"] == {field: 1}


class Counts(Step[int]):
    def execute(self, context: Context, input: int) -> StepDecision:
        return go_to(Counts, input - 1) if input else graceful_complete(context.run_id)


@pytest.mark.statement("B67", "B68")
@scenario()
async def test_a_long_flow_is_one_run_whatever_its_threshold(world: World) -> None:
    flow = Made(Counts())
    await world.deploy(flow)
    options = StartFlowOptions(
        config_override=FlowConfig(continue_as_new_threshold=1, continue_as_new_page_size_bytes=1)
    )
    run_id = await world.start(flow, "f", 300, options)
    result = await world.result("f")
    assert result.status is FlowStatus.COMPLETED
    assert result.single_output(str) == run_id
    assert (await world.describe("f")).run_id == run_id
    assert outputs(result) == [("Counts-301", run_id)]


# Beside the rules -----------------------------------------------------------------------------------------------------


class Stops(Step[None]):
    def execute(self, context: Context, input: None) -> StepDecision:
        return dead_end()


@pytest.mark.statement("B46")
@scenario()
async def test_a_flow_that_timed_out_has_failed(world: World) -> None:
    flow = Made(Stops())
    await world.deploy(flow)
    first = await world.start(flow, "f", None, StartFlowOptions(timeout=timedelta(seconds=5)))
    assert (await world.result("f")).error_type is FlowErrorType.FLOW_TIMEOUT
    second = await world.start(flow, "f", None, StartFlowOptions(id_reuse_policy=P.ALLOW_IF_PREVIOUS_FAILED))
    assert second != first
