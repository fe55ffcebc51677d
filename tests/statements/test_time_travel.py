"""Time travel: a new run of a Flow, from a point of its past."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from dex import (
    AsyncContext,
    Attribute,
    Channel,
    Context,
    DexServiceError,
    FlowErrorType,
    FlowNotActiveOrNotFoundError,
    FlowNotFoundError,
    FlowStatus,
    IdReusePolicy,
    RPCResult,
    StartFlowOptions,
    StatusCode,
    Step,
    StepDecision,
    StepExecutionId,
    StepMovement,
    StopFlowOptions,
    StopType,
    SubFlow,
    SubFlowOptions,
    SubFlowReusePolicy,
    Timer,
    TimeTravelOptions,
    TimeTravelStepMethod,
    TimeTravelType,
    Wait,
    dead_end,
    force_complete,
    force_fail,
    go_to,
    go_to_many,
    graceful_complete,
    rpc,
)
from dex.values import BLOB_THRESHOLD
from tests.statements.kit import Made, events, note_down, noted_down, outputs
from tests.world import InProcessWorld, World, scenario

box = Channel("box", str)
seen = Attribute("seen", str)
given = Attribute("given", str)
secret = Attribute("secret", str, hard_delete_on_null=True)

BEGINNING = TimeTravelOptions(TimeTravelType.BEGINNING)
SKIPPING = TimeTravelOptions(TimeTravelType.BEGINNING, skip_writes_reapply=True)


def of_type(step: type[Step[Any]], **more: Any) -> TimeTravelOptions:
    return TimeTravelOptions(TimeTravelType.STEP_TYPE, step_type=step.__name__, **more)


def before(step: type[Step[Any]], number: int = 1, method: str = "EXECUTE", **more: Any) -> TimeTravelOptions:
    return TimeTravelOptions(
        TimeTravelType.STEP_EXECUTION_ID,
        step_execution_id=StepExecutionId(step, number),
        step_method=TimeTravelStepMethod[method],
        **more,
    )


class First(Step[str]):
    def execute(self, context: Context, input: str) -> StepDecision:
        seen.set(context, "first")
        return go_to(Second, input)


class Second(Step[str]):
    """Waits for a message, or for a minute."""

    def wait_for(self, context: Context, input: str) -> Wait:
        context.set_step_execution_local("mark", f"{context.run_id}")
        return Wait.any_of(box.for_one(), Timer.by_duration(timedelta(minutes=1)))

    def execute(self, context: Context, input: str) -> StepDecision:
        message = "nothing" if context.has_timer_fired() else box.results(context)[0]
        seen.set(context, message)
        return go_to(Third, f"{input}:{message}")


class Third(Step[str]):
    def execute(self, context: Context, input: str) -> StepDecision:
        return graceful_complete(f"{input}:{given.get(context)}")


class Journey(Made):
    def __init__(self) -> None:
        super().__init__(First(), Second(), Third(), has=(box, seen, given, secret), name="Journey")

    @rpc
    def tell(self, context: Context, input: str) -> RPCResult[str]:
        given.set(context, input)
        box.publish(context, f"from {input}")
        return RPCResult(input)


async def travelled(world: World, options: TimeTravelOptions, name: str = "f", **more: Any) -> str:
    return await world.client.time_travel(world.id(name), options, **more)


async def journey(world: World, *messages: str) -> str:
    """A Flow that has completed with its messages, or waits for one; its first run."""
    flow = Journey()
    await world.deploy(flow)
    run_id = await world.start(flow, "f", "in")
    await world.until_phase("f", "Second-1", "waiting")
    for message in messages:
        await world.publish("f", box, message)
    if messages:
        await world.result("f")
    return run_id


# Points ---------------------------------------------------------------------------------------------------------------


@pytest.mark.statement("C52", "C53", "C56")
@scenario(ray=True)
async def test_a_completed_flow_runs_again_from_its_beginning(world: World) -> None:
    old = await journey(world, "m")
    assert (await world.result("f")).single_output(str) == "in:m:None"
    new = await travelled(world, BEGINNING)
    result = await world.result("f")
    assert result.single_output(str) == "in:m:None", "the message comes again"
    described = await world.describe("f")
    assert (described.run_id, described.status) == (new, "COMPLETED")
    assert new != old


@pytest.mark.statement("C52")
@pytest.mark.parametrize(
    ("options", "attempts"),
    [
        (BEGINNING, ["First-1 execute", "Second-1 wait_for", "Second-1 execute", "Third-1 execute"]),
        (of_type(Second), ["Second-1 wait_for", "Second-1 execute", "Third-1 execute"]),
        (before(Second, method="WAIT_FOR"), ["Second-1 wait_for", "Second-1 execute", "Third-1 execute"]),
        (before(Second), ["Second-1 execute", "Third-1 execute"]),
        (of_type(Third), ["Third-1 execute"]),
    ],
    ids=["beginning", "type", "wait_for", "execute", "last"],
)
@scenario()
async def test_what_comes_after_the_point_runs_again_and_what_came_before_does_not(
    world: World, options: TimeTravelOptions, attempts: list[str]
) -> None:
    await journey(world, "m")
    await travelled(world, options)
    assert outputs(await world.result("f"), str) == [("Third-1", "in:m:None")]
    started = await events(world, "f", "AttemptStarted")
    assert [f"{event.step_execution_id} {event.data['method']}" for event in started] == attempts


@pytest.mark.statement("C52")
@scenario()
async def test_a_flow_goes_back_to_the_time_of_an_event_of_its_history(world: World) -> None:
    await journey(world)
    await world.advance(10)
    await world.publish("f", box, "m")
    await world.result("f")
    taken = next(event for event in await world.history("f") if event.kind == "ConditionsMet")
    moment = datetime.fromtimestamp(taken.at, UTC)
    options = TimeTravelOptions(TimeTravelType.HISTORY_EVENT_TIME, history_event_time=moment, skip_writes_reapply=True)
    await travelled(world, options)
    await world.until_phase("f", "Second-1", "waiting")
    assert await world.client.get_attribute(world.id("f"), seen) == "first"
    await world.publish("f", box, "n")
    assert (await world.result("f")).single_output(str) == "in:n:None"


@pytest.mark.statement("C52")
@scenario()
async def test_an_open_run_is_terminated_and_the_new_one_takes_its_place(world: World) -> None:
    old = await journey(world)
    waiting = asyncio.ensure_future(world.result("f"))
    await world.advance(1)
    new = await travelled(world, before(Second, method="WAIT_FOR", reason="it was wrong"))
    assert (await waiting).status is FlowStatus.TERMINATED
    history = [event async for event in world.client.history(world.id("f"), run_id=old)]
    assert history[-1].kind == "FlowClosed"
    assert history[-1].data == {
        "status": "TERMINATED",
        "error_message": "time travel to STEP_EXECUTION_ID Second-1 wait_for: it was wrong",
    }
    assert (await world.describe("f")).run_id == new
    await world.publish("f", box, "m")
    assert (await world.result("f")).single_output(str) == "in:m:None"


@pytest.mark.statement("C52")
@scenario()
async def test_the_history_of_the_new_run_begins_with_the_fork(world: World) -> None:
    old = await journey(world, "m")
    await travelled(world, of_type(Third, reason="again"))
    (fork,) = await events(world, "f", "FlowForked")
    assert fork.number == 1
    assert {name: fork.data[name] for name in ("from_run", "base_run", "point", "reason")} == {
        "from_run": old,
        "base_run": old,
        "point": "STEP_TYPE Third",
        "reason": "again",
    }
    assert "checkpoint" not in fork.data
    past = [event async for event in world.client.history(world.id("f"), run_id=old)]
    assert past[-1].kind == "FlowClosed", "the old run's history stays as it was"


@pytest.mark.statement("C52")
@pytest.mark.parametrize(
    ("options", "why"),
    [
        (before(Third, 2), "execute of Step execution Third-2 was never pending"),
        (before(Third, method="WAIT_FOR"), "wait_for of Step execution Third-1 was never pending"),
        (TimeTravelOptions(TimeTravelType.STEP_TYPE, step_type="Fourth"), "no Step of type Fourth"),
        (
            TimeTravelOptions(TimeTravelType.HISTORY_EVENT_TIME, history_event_time=datetime(2200, 1, 1, tzinfo=UTC)),
            "nothing happened",
        ),
    ],
    ids=["number", "method", "type", "time"],
)
@scenario()
async def test_a_point_that_is_not_in_the_past_is_refused_and_nothing_is_ended(
    world: World, options: TimeTravelOptions, why: str
) -> None:
    run_id = await journey(world)
    with pytest.raises(DexServiceError, match=why) as caught:
        await travelled(world, options)
    assert caught.value.code is StatusCode.NOT_FOUND
    described = await world.describe("f")
    assert (described.run_id, described.status) == (run_id, "RUNNING")


@pytest.mark.statement("C52", "C49")
@scenario()
async def test_an_unknown_flow_has_no_past(world: World) -> None:
    await world.deploy(Journey())
    with pytest.raises(FlowNotFoundError):
        await travelled(world, BEGINNING)


@pytest.mark.statement("C52")
@scenario()
async def test_a_flow_can_travel_again_and_again_and_back_beyond_an_earlier_fork(world: World) -> None:
    await journey(world, "m")
    second = await travelled(world, before(Second))
    await world.result("f")
    await travelled(world, before(Second))
    await world.result("f")
    (fork,) = await events(world, "f", "FlowForked")
    assert fork.data["base_run"] == second, "what the second run undid of the first is not in its past"
    third = await travelled(world, BEGINNING)
    await world.result("f")
    assert (await events(world, "f", "AttemptStarted"))[0].step_execution_id == "First-1"
    await travelled(world, before(Third))
    assert outputs(await world.result("f"), str) == [("Third-1", "in:m:None")]
    (fork,) = await events(world, "f", "FlowForked")
    assert (fork.data["from_run"], fork.data["base_run"]) == (third, third)


class Breaks(Step[str]):
    def execute(self, context: Context, input: str) -> StepDecision:
        return force_fail("a mistake")


class Mended(Step[str]):
    def get_step_type(self) -> str:
        return "Breaks"

    def execute(self, context: Context, input: str) -> StepDecision:
        return graceful_complete(f"mended {input}")


@pytest.mark.statement("C77", "C52")
@scenario()
async def test_a_failed_flow_goes_on_with_code_that_was_put_right(world: World) -> None:
    flow = Made(Breaks())
    await world.deploy(flow)
    await world.start(flow, "f", "in")
    assert (await world.result("f")).status is FlowStatus.FAILED
    await world.deploy(Made(Mended()))
    await travelled(world, TimeTravelOptions(TimeTravelType.STEP_TYPE, step_type="Breaks"))
    assert (await world.result("f")).single_output(str) == "mended in"


# Writes from outside --------------------------------------------------------------------------------------------------


class Waits(Step[str]):
    """Completes with what it was told."""

    def wait_for(self, context: Context, input: str) -> Wait:
        return Wait.until(box.for_one())

    def execute(self, context: Context, input: str) -> StepDecision:
        return graceful_complete([box.results(context)[0], given.get(context)])


class Told(Journey):
    def __init__(self) -> None:
        Made.__init__(self, Waits(), has=(box, seen, given, secret), name="Told")


async def told(world: World) -> None:
    """A Flow with a timeout that an RPC has completed."""
    flow = Told()
    await world.deploy(flow)
    await world.start(flow, "f", "", StartFlowOptions(timeout=timedelta(minutes=5)))
    await world.until_phase("f", "Waits-1", "waiting")
    assert await world.client.invoke_rpc(flow.tell, world.id("f"), "Ada") == "Ada"
    assert (await world.result("f")).single_output(list[str]) == ["from Ada", "Ada"]


@pytest.mark.statement("C53", "C56")
@scenario()
async def test_with_its_writes_the_new_run_completes_as_the_old_one_did(world: World) -> None:
    await told(world)
    await travelled(world, BEGINNING)
    assert (await world.result("f")).single_output(list[str]) == ["from Ada", "Ada"]
    (applied,) = await events(world, "f", "RpcApplied")
    assert applied.data["name"] == "tell"


@pytest.mark.statement("C53", "C56", "B16")
@scenario()
async def test_without_them_the_new_run_waits_and_times_out_in_its_own_time(world: World) -> None:
    await told(world)
    await world.advance(3600)
    await travelled(world, SKIPPING)
    await world.until_phase("f", "Waits-1", "waiting")
    assert await world.client.get_attribute(world.id("f"), given) is None
    await world.advance(290)
    assert (await world.describe("f")).status == "RUNNING"
    result = await world.result("f", timeout=30)
    assert (result.status, result.error_type) == (FlowStatus.FAILED, FlowErrorType.FLOW_TIMEOUT)


@pytest.mark.statement("C53")
@scenario()
async def test_writes_of_clients_that_came_after_the_point_are_there_and_their_ids_with_them(world: World) -> None:
    await journey(world)
    (early,) = await world.publish("f", box, "early")
    await world.result("f")
    flow_id = world.id("f")
    await travelled(world, of_type(Second, skip_writes_reapply=True))
    await world.until_phase("f", "Second-1", "waiting")
    await world.client.set_attribute(flow_id, given, "later")
    await travelled(world, before(Second, method="WAIT_FOR"))
    await world.until_phase("f", "Second-1", "waiting")
    assert await world.client.get_attribute(flow_id, given) == "later"
    assert early not in [event.data["message_id"] for event in await events(world, "f", "MessagePublished")]


@pytest.mark.statement("C53", "D8")
@scenario()
async def test_what_a_client_was_told_while_the_flow_travelled_is_not_lost(world: World) -> None:
    await journey(world)
    flow_id = world.id("f")
    travel = asyncio.ensure_future(travelled(world, before(Second, method="WAIT_FOR")))
    told: list[str] = []
    number = 0
    while not travel.done():
        number += 1
        try:
            await world.client.set_attribute(flow_id, given, f"{number}")
            told.append(f"{number}")
        except FlowNotActiveOrNotFoundError:
            await asyncio.sleep(0)
    await travel
    assert await world.client.get_attribute(flow_id, given) == told[-1]


@pytest.mark.statement("C53", "D8")
@scenario()
async def test_a_repeated_write_is_not_done_twice_in_the_new_run(world: World) -> None:
    await journey(world)
    flow_id = world.id("f")
    ids = await world.client.publish(flow_id, box, "m", request_id="mine")
    await world.result("f")
    await travelled(world, of_type(Second))
    assert await world.client.publish(flow_id, box, "m", request_id="mine") == ids
    await world.result("f")
    assert len(await events(world, "f", "MessagePublished")) == 1


class Spawn(Journey):
    def __init__(self, *others: Step[Any]) -> None:
        Made.__init__(self, Waits(), *others, has=(box, seen, given, secret), name="Spawn")

    @rpc
    def spawn(self, context: Context) -> RPCResult[None]:
        return RPCResult(None, next_steps=(StepMovement.of(Extra, ""),))


class Extra(Step[str]):
    def execute(self, context: Context, input: str) -> StepDecision:
        return dead_end()


class Without(Made):
    def __init__(self) -> None:
        super().__init__(Waits(), has=(box, seen, given, secret), name="Spawn")


@pytest.mark.statement("C53", "D16")
@scenario()
async def test_an_rpc_that_started_a_step_unknown_by_now_stands_in_the_way_and_says_so(world: World) -> None:
    flow = Spawn(Extra())
    await world.deploy(flow)
    await world.start(flow, "f", "")
    await world.client.invoke_rpc(flow.spawn, world.id("f"))
    await world.deploy(Without())
    with pytest.raises(DexServiceError, match="started Extra, which the deployed code of Spawn lacks") as caught:
        await travelled(world, BEGINNING)
    assert caught.value.code is StatusCode.FAILED_PRECONDITION
    assert (await world.describe("f")).status == "RUNNING"
    await travelled(world, SKIPPING)
    await world.publish("f", box, "m")
    assert (await world.result("f")).status is FlowStatus.COMPLETED


@pytest.mark.statement("C55")
@scenario()
async def test_a_value_that_was_deleted_for_good_is_not_restored(world: World) -> None:
    flow = Journey()
    await world.deploy(flow)
    await world.start(flow, "f", "in", StartFlowOptions().with_attribute(secret, "s").with_attribute(given, "g"))
    await world.until_phase("f", "Second-1", "waiting")
    await world.client.set_attribute(world.id("f"), secret, None)
    await world.client.set_attribute(world.id("f"), given, None)
    await travelled(world, SKIPPING)
    await world.until_phase("f", "Second-1", "waiting")
    assert await world.client.get_attribute(world.id("f"), secret) is None
    assert await world.client.get_attribute(world.id("f"), given) == "g"


# What the new run keeps -----------------------------------------------------------------------------------------------


class Heavy(Step[str]):
    async def execute(self, context: AsyncContext, input: str) -> StepDecision:
        note_down(input, f"attempt {context.attempt} checkpoint {context.has_last_heartbeat_value()}")
        await context.heartbeat("half")
        await asyncio.sleep(30)
        return dead_end()


class Both(Step[str]):
    def execute(self, context: Context, input: str) -> StepDecision:
        return go_to_many(StepMovement.of(Heavy, input), StepMovement.of(Second, "in"))


@pytest.mark.statement("C52")
@scenario()
async def test_an_attempt_that_was_out_begins_anew_and_its_old_result_is_refused(world: World) -> None:
    flow = Made(Both(), Heavy(), Second(), Third(), has=(box, seen, given), name="Both")
    await world.deploy(flow)
    path = world.file("notes")
    await world.start(flow, "f", str(path))
    await world.until_phase("f", "Second-1", "waiting")
    await world.publish("f", box, "m")
    await noted_down(world, path, "attempt 1 checkpoint False")
    await travelled(world, before(Third))
    await noted_down(world, path, *["attempt 1 checkpoint False"] * 2)
    await world.advance(40)
    assert [event.step_execution_id for event in await events(world, "f", "StepCompleted")] == ["Third-1", "Heavy-1"]
    assert (await world.result("f")).single_output(str) == "in:m:None"


@pytest.mark.statement("C52", "D12")
@scenario()
async def test_large_values_come_along(world: World) -> None:
    large = "x" * (BLOB_THRESHOLD + 1)
    flow = Journey()
    await world.deploy(flow)
    await world.start(flow, "f", large, StartFlowOptions().with_attribute(given, large))
    await world.until_phase("f", "Second-1", "waiting")
    await world.publish("f", box, large)
    expected = f"{large}:{large}:{large}"
    assert (await world.result("f")).single_output(str) == expected
    await travelled(world, BEGINNING)
    assert (await world.result("f")).single_output(str) == expected


@pytest.mark.statement("C52", "B53")
@scenario()
async def test_the_new_run_is_the_same_flow_as_far_as_starts_are_concerned(world: World) -> None:
    flow = Journey()
    await world.deploy(flow)
    options = StartFlowOptions(request_id="same", id_reuse_policy=IdReusePolicy.DISALLOW, ignore_already_started=True)
    await world.start(flow, "f", "in", options)
    new = await travelled(world, BEGINNING)
    assert await world.start(flow, "f", "in", options) == new
    assert isinstance(world, InProcessWorld)
    row = world.journal().current_run(world.id("f"))
    assert row is not None
    assert (row.run_id, row.request_id) == (new, "same")


# Once, and durable ----------------------------------------------------------------------------------------------------


@pytest.mark.statement("C52", "D8")
@scenario()
async def test_a_repeat_of_the_same_request_gets_the_same_run(world: World) -> None:
    await journey(world, "m")
    new = await travelled(world, BEGINNING, request_id="mine")
    await world.result("f")
    assert await travelled(world, BEGINNING, request_id="mine") == new
    await world.restart()
    assert await travelled(world, SKIPPING, request_id="mine") == new
    both = await asyncio.gather(*(travelled(world, BEGINNING, request_id="other") for _ in range(2)))
    assert len({*both, new}) == 2
    assert (await world.describe("f")).run_id == both[0]


@pytest.mark.statement("C52", "D8")
@scenario()
async def test_the_new_run_survives_a_crash(world: World) -> None:
    await journey(world)
    new = await travelled(world, before(Second, method="WAIT_FOR"))
    await world.until_phase("f", "Second-1", "waiting")
    await world.restart()
    assert (await world.describe("f")).run_id == new
    await world.publish("f", box, "m")
    assert outputs(await world.result("f"), str) == [("Third-1", "in:m:None")]


@pytest.mark.statement("C52")
@scenario()
async def test_a_crash_between_the_end_of_the_old_run_and_the_new_one_is_made_good_by_the_repeat(world: World) -> None:
    assert isinstance(world, InProcessWorld)
    await journey(world)
    await world.client.set_attribute(world.id("f"), given, "kept")
    await world.client.stop_flow(world.id("f"), StopFlowOptions(StopType.TERMINATE, "time travel, interrupted"))
    await world.restart()
    await travelled(world, before(Second, method="WAIT_FOR"), request_id="mine")
    await world.until_phase("f", "Second-1", "waiting")
    assert await world.client.get_attribute(world.id("f"), given) == "kept"


@pytest.mark.statement("C52", "C41")
@scenario()
async def test_the_old_run_takes_no_more_writes(world: World) -> None:
    flow = Journey()
    await world.deploy(flow)
    old = await world.start(flow, "f", "in")
    await travelled(world, SKIPPING)
    with pytest.raises(FlowNotActiveOrNotFoundError):
        await world.client.invoke_rpc(flow.tell, world.id("f"), "x", run_id=old)
    await world.client.invoke_rpc(flow.tell, world.id("f"), "x")


@pytest.mark.statement("C52")
@scenario()
async def test_a_long_past_is_read_page_by_page(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    from dexray.engine import travel

    monkeypatch.setattr(travel, "PAGE", 3)
    await journey(world)
    for number in range(10):
        await world.client.set_attribute(world.id("f"), given, f"{number}")
    await travelled(world, before(Second, method="WAIT_FOR"))
    await world.publish("f", box, "m")
    assert (await world.result("f")).single_output(str) == "in:m:9"
    await travelled(world, BEGINNING)
    assert (await world.result("f")).single_output(str) == "in:m:9"


# SubFlows -------------------------------------------------------------------------------------------------------------


class Count(Step[str]):
    def execute(self, context: Context, input: str) -> StepDecision:
        note_down(input, "ran")
        return graceful_complete("counted")


class Parent(Step[str]):
    def __init__(self, policy: SubFlowReusePolicy) -> None:
        self.policy = policy
        self.child = Made(Count(), name="Child")

    def wait_for(self, context: Context, input: str) -> Wait:
        return Wait.until(SubFlow.run(self.child, input, SubFlowOptions(reuse_policy=self.policy)))

    def execute(self, context: Context, input: str) -> StepDecision:
        return force_complete(SubFlow.get_condition_results(context).single_output(str))


@pytest.mark.statement("C54", "C52")
@pytest.mark.parametrize(
    ("policy", "runs"),
    [
        (SubFlowReusePolicy.ATTACH, 1),
        (SubFlowReusePolicy.RESTART_IF_PREVIOUS_EXITS_ABNORMALLY, 1),
        (SubFlowReusePolicy.ALWAYS_RESTART, 2),
    ],
)
@scenario()
async def test_the_reuse_policy_decides_on_the_child_of_a_step_that_is_entered_again(
    world: World, policy: SubFlowReusePolicy, runs: int
) -> None:
    step = Parent(policy)
    flow = Made(step, name="Parent")
    await world.deploy(flow, step.child)
    path = world.file("notes")
    await world.start(flow, "f", str(path))
    assert (await world.result("f")).single_output(str) == "counted"
    await travelled(world, of_type(Parent))
    assert (await world.result("f")).single_output(str) == "counted"
    await noted_down(world, path, *["ran"] * runs)
