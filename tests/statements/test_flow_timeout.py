"""The timeout of a Flow: one timer for the whole run, three policies, and a handler that works like an execute."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from dex import (
    AsyncContext,
    Attribute,
    AttributeMap,
    AttributeMapNotLoadedError,
    Channel,
    ChannelMessagesNotLoadedError,
    Context,
    Flow,
    FlowResult,
    FlowStatus,
    FlowTimeoutHandlerOptions,
    FlowTimeoutPolicy,
    RetryPolicy,
    StartFlowOptions,
    Step,
    StepDecision,
    StepDurability,
    StepMovement,
    StepOptions,
    Wait,
    dead_end,
    force_complete,
    force_fail,
    go_to,
    go_to_many,
    graceful_complete,
)
from tests.statements.kit import Made, events, steps_of
from tests.world import World, scenario

go = Channel("go", int)
mail = Channel("mail", str)
outbox = Channel("outbox", str)
note = Attribute("note", str)
notes = AttributeMap("notes", str)

LIMIT = 60
HANDLER = "sys:timeout_handler-1"
PAST = LIMIT + 5.0


def limited(**options: Any) -> StartFlowOptions:
    return StartFlowOptions(timeout=timedelta(seconds=LIMIT), **options)


def handled(**options: Any) -> StartFlowOptions:
    return limited(timeout_handler_options=FlowTimeoutHandlerOptions(**options))


class Waits(Step[str]):
    """Does what its input says until `go` ends it, or for an hour."""

    def get_step_options(self) -> StepOptions:
        return StepOptions(heartbeat_timeout=timedelta(hours=2))

    def wait_for(self, context: Context, input: str) -> Wait:
        return Wait.until(go.for_one()) if input == "waits" else Wait.skip_immediately()

    async def execute(self, context: AsyncContext, input: str) -> StepDecision:
        if input != "waits":
            await asyncio.sleep(3600)
        return graceful_complete("in time")


class Recovers(Step[None]):
    def execute(self, context: Context, input: None) -> StepDecision:
        error = context.recovery_error
        assert error is not None
        return force_complete([input, error.error_type, error.detail, context.from_step_execution_id])


class Plain(Made):
    def __init__(self) -> None:
        super().__init__(Waits(), Recovers(), has=(go, mail, outbox, note, notes), name="Plain")


class Handling(Made):
    """A Flow with a handler; `act` is what it does."""

    def __init__(self, act: Any = None) -> None:
        super().__init__(Waits(), Recovers(), has=(go, mail, outbox, note, notes), name="Handling")
        self.act: Any = act or (lambda context: force_complete("handled"))

    def handle_timeout(self, context: Context) -> StepDecision:
        decision: StepDecision = self.act(context)
        return decision


class HandlingLater(Handling):
    async def handle_timeout(self, context: AsyncContext) -> StepDecision:
        decision: StepDecision = await self.act(context)
        return decision


def outcome(result: FlowResult) -> tuple[str, str]:
    return result.status.name, str(result.error_type.name if result.error_type else "")


FAILED, CANCELED, COMPLETED = ("FAILED", "FLOW_TIMEOUT"), ("CANCELED", ""), ("COMPLETED", "")


@pytest.mark.statement("B16", "B18", "B19", "B20", "B21", "B23", "B24", "C22")
@pytest.mark.parametrize("doing", ["waits", "runs", "is queued"])
@pytest.mark.parametrize(
    ("make", "policy", "expected"),
    [
        (Plain, FlowTimeoutPolicy.DEFAULT, FAILED),
        (Plain, FlowTimeoutPolicy.FAIL, FAILED),
        (Plain, FlowTimeoutPolicy.CANCEL, CANCELED),
        (Handling, FlowTimeoutPolicy.DEFAULT, COMPLETED),
        (Handling, FlowTimeoutPolicy.HANDLER, COMPLETED),
        (Handling, FlowTimeoutPolicy.FAIL, FAILED),
        (Handling, FlowTimeoutPolicy.CANCEL, CANCELED),
    ],
)
@scenario()
async def test_what_the_timeout_does_is_said_by_its_policy_whatever_the_flow_is_doing(
    world: World, make: type[Flow[Any]], policy: FlowTimeoutPolicy, expected: tuple[str, str], doing: str
) -> None:
    flow = make()
    await world.deploy(flow, slots=1 if doing == "is queued" else 100)
    if doing == "is queued":
        await world.start(flow, "holds the only slot", "runs")
        await world.until_phase("holds the only slot", "Waits-1", "running")
    await world.start(flow, "f", doing, limited(timeout_policy=policy))
    await world.advance(LIMIT - 1)
    assert (await world.describe("f")).status == "RUNNING"
    await world.advance(2)
    if doing == "is queued" and expected == COMPLETED:
        assert (await world.describe("f")).status == "RUNNING"  # the handler needs a worker, too
        await world.client.stop_flow(world.id("holds the only slot"))
    result = await world.result("f", timeout=20)
    assert outcome(result) == expected
    if expected == FAILED:
        assert result.error_message == f"Flow timed out after {LIMIT} seconds"
    elif expected == COMPLETED:
        assert result.single_output(str) == "handled"
    assert len(await events(world, "f", "FlowTimedOut")) == 1


@pytest.mark.statement("B17", "B22", "B25")
@pytest.mark.parametrize(
    ("make", "options", "reason"),
    [
        (Plain, StartFlowOptions(timeout_policy=FlowTimeoutPolicy.CANCEL), "requires a positive timeout"),
        (Plain, limited(timeout_policy=FlowTimeoutPolicy.HANDLER), "no handle_timeout override"),
        (
            Handling,
            StartFlowOptions(timeout_handler_options=FlowTimeoutHandlerOptions()),
            "requires a positive timeout",
        ),
        (Plain, handled(), "need the timeout policy HANDLER"),
        (
            Handling,
            limited(timeout_policy=FlowTimeoutPolicy.FAIL, timeout_handler_options=FlowTimeoutHandlerOptions()),
            "need the timeout policy HANDLER",
        ),
    ],
)
@scenario()
async def test_options_that_do_not_go_together_are_refused_at_the_start(
    world: World, make: type[Flow[Any]], options: StartFlowOptions, reason: str
) -> None:
    flow = make()
    await world.deploy(flow)
    with pytest.raises(ValueError, match=reason):
        await world.start(flow, "f", "waits", options)


@pytest.mark.statement("B9", "B23")
@pytest.mark.parametrize("timeout", [None, timedelta(0)])
@scenario()
async def test_without_a_timeout_a_flow_waits_for_ever(world: World, timeout: timedelta | None) -> None:
    flow = Handling()
    await world.deploy(flow)
    await world.start(flow, "f", "waits", StartFlowOptions(timeout=timeout))
    await world.advance(400 * 24 * 3600)
    assert (await world.describe("f")).status == "RUNNING"
    await world.publish("f", go, 1)
    assert (await world.result("f")).single_output(str) == "in time"


@pytest.mark.statement("B16")
@scenario()
async def test_the_timer_of_a_flow_survives_a_crash_and_is_not_begun_anew_by_its_steps(world: World) -> None:
    flow = Plain()
    await world.deploy(flow)
    await world.start(flow, "f", "waits", limited())
    await world.advance(LIMIT - 10)
    await world.restart()
    await world.advance(9)
    assert (await world.describe("f")).status == "RUNNING"
    assert outcome(await world.result("f", timeout=5)) == FAILED


@pytest.mark.statement("B16")
@scenario()
async def test_a_flow_that_ends_in_time_hears_nothing_of_its_timeout(world: World) -> None:
    flow = Handling()
    await world.deploy(flow)
    await world.start(flow, "f", "waits", limited())
    await world.publish("f", go, 1)
    assert (await world.result("f")).single_output(str) == "in time"
    await world.advance(2 * LIMIT)
    assert not await events(world, "f", "FlowTimedOut")
    assert await steps_of(world, "f", "AttemptStarted") == ["Waits-1", "Waits-1"]


@pytest.mark.statement("B20", "B33", "B34")
@scenario(ray=True)
async def test_the_handler_writes_with_its_decision(world: World) -> None:
    def act(context: Context) -> StepDecision:
        note.set(context, "late")
        return force_fail("too slow")

    flow = Handling(act)
    await world.deploy(flow)
    await world.start(flow, "f", "waits", StartFlowOptions(timeout=timedelta(seconds=1)))
    result = await world.result("f")
    assert outcome(result) == ("FAILED", "STEP_DECISION_FAILED")
    assert result.error_message == "too slow"
    assert await world.client.get_attribute(world.id("f"), note) == "late"
    assert await steps_of(world, "f", "StepCompleted") == [HANDLER]


@pytest.mark.statement("B20", "B33")
@scenario()
async def test_the_handler_deletes_and_publishes_and_lets_the_other_steps_go_on(world: World) -> None:
    def act(context: Context) -> StepDecision:
        first = mail.pending_messages(context)[0]
        mail.delete(context, first.message_id)
        outbox.publish(context, first.value)
        go.publish(context, 1)
        return dead_end()

    flow = Handling(act)
    await world.deploy(flow)
    await world.start(flow, "f", "waits", handled(load_channels=(mail,)))
    await world.publish("f", mail, "a", "b")
    await world.advance(LIMIT - 1)
    assert (await world.describe("f")).channels == {"mail": 2}
    result = await world.result("f", timeout=5)
    assert result.single_output(str) == "in time"
    published = [event.data["channel"] for event in await events(world, "f", "MessagePublished")]
    assert published == ["mail", "mail", "outbox", "go"]
    assert [event.data["by"] for event in await events(world, "f", "MessageDeleted")] == [HANDLER]


@pytest.mark.statement("B32")
@scenario()
async def test_the_handler_sees_attributes_and_sizes_and_what_it_selects(world: World) -> None:
    def act(context: Context) -> StepDecision:
        seen: list[Any] = [note.get(context), mail.size(context), notes.get_all_instance_keys(context)]
        try:
            seen.append(notes.get(context, "a"))
        except AttributeMapNotLoadedError:
            seen.append("value not loaded")
        try:
            seen.append([message.value for message in mail.pending_messages(context)])
        except ChannelMessagesNotLoadedError:
            seen.append("messages not loaded")
        return force_complete(seen)

    flow = Handling(act)
    await world.deploy(flow)
    for name, options in [
        ("bare", limited()),
        ("loaded", handled(load_attribute_maps=(notes,), load_channels=(mail,))),
    ]:
        options = options.with_attribute(note, "n").with_attribute(notes, "a", "A")
        await world.start(flow, name, "waits", options)
        await world.publish(name, mail, "m")
    bare = (await world.result("bare", timeout=PAST)).single_output(list)
    assert bare == ["n", 1, ("a",), "value not loaded", "messages not loaded"]
    loaded = (await world.result("loaded", timeout=PAST)).single_output(list)
    assert loaded == ["n", 1, ("a",), "A", ["m"]]


@pytest.mark.statement("B15", "B26", "B30", "B31")
@scenario()
async def test_attempts_of_the_handler_have_their_own_timeout_and_retries_past_the_deadline(world: World) -> None:
    async def act(context: AsyncContext) -> StepDecision:
        if context.attempt == 1:
            raise RuntimeError("once")
        if context.attempt == 2:
            await asyncio.sleep(3600)  # over the method timeout
        if context.attempt == 3:
            await asyncio.sleep(25)  # over the heartbeat timeout
        return force_complete(context.attempt)

    flow = HandlingLater(act)
    await world.deploy(flow)
    options = handled(
        method_timeout=timedelta(seconds=30),
        heartbeat_timeout=timedelta(seconds=20),
        retry=RetryPolicy(initial_interval=timedelta(seconds=7), backoff_coefficient=1.0),
    )
    await world.start(flow, "f", "waits", options)
    assert (await world.result("f", timeout=3600)).single_output(int) == 4
    kinds = [event.data["failure"]["kind"] for event in await events(world, "f", "AttemptFailed")]
    assert kinds == ["HANDLER_ERROR", "HEARTBEAT_TIMEOUT", "HEARTBEAT_TIMEOUT"]
    assert len(await events(world, "f", "FlowTimedOut")) == 1


@pytest.mark.statement("B26", "B30")
@scenario()
async def test_a_handler_over_its_method_timeout_is_out_of_time(world: World) -> None:
    async def act(context: AsyncContext) -> StepDecision:
        await asyncio.sleep(3600)
        return force_complete()

    flow = HandlingLater(act)
    await world.deploy(flow)
    options = handled(method_timeout=timedelta(seconds=30), retry=RetryPolicy(maximum_attempts=2))
    await world.start(flow, "f", "waits", options)
    result = await world.result("f", timeout=3600)
    assert outcome(result) == ("FAILED", "WORKER_API_FAILED")
    failed = await events(world, "f", "AttemptFailed")
    started = await events(world, "f", "AttemptStarted")
    assert [event.data["failure"]["kind"] for event in failed] == ["METHOD_TIMEOUT"] * 2
    lasted = [end.at - begin.at for begin, end in zip(started[-2:], failed, strict=True)]
    assert lasted == pytest.approx([30, 30], abs=1.1)


@pytest.mark.statement("B30")
@scenario()
async def test_the_total_duration_of_the_handler_begins_at_its_first_hand_out(world: World) -> None:
    def act(context: Context) -> StepDecision:
        raise RuntimeError("always")

    flow = Handling(act)
    await world.deploy(flow)
    retry = RetryPolicy(
        initial_interval=timedelta(seconds=10), backoff_coefficient=1.0, total_duration=timedelta(seconds=35)
    )
    await world.start(flow, "f", "waits", handled(retry=retry))
    await world.result("f", timeout=3600)
    failed = await events(world, "f", "AttemptFailed")
    assert [round(event.at - failed[0].at) for event in failed] == [0, 10, 20, 30, 40]


@pytest.mark.statement("B26", "B27", "B28")
@pytest.mark.parametrize("has_route", [True, False])
@scenario(ray=True)
async def test_an_exhausted_handler_goes_on_at_its_route_or_fails_the_flow(world: World, has_route: bool) -> None:
    def act(context: Context) -> StepDecision:
        raise KeyError("lost")

    flow = Handling(act)
    await world.deploy(flow)
    handler = FlowTimeoutHandlerOptions(retry=RetryPolicy(maximum_attempts=1))
    if has_route:
        handler = handler.on_failure_proceed_to(Recovers)
    options = StartFlowOptions(timeout=timedelta(seconds=1), timeout_handler_options=handler)
    await world.start(flow, "f", "waits", options)
    result = await world.result("f")
    if has_route:
        assert result.single_output(list) == [None, "builtins.KeyError", "'lost'", HANDLER]
    else:
        assert outcome(result) == ("FAILED", "WORKER_API_FAILED")
        assert "KeyError" in result.error_message


@pytest.mark.statement("B29")
@scenario()
async def test_the_handler_waits_for_a_worker_and_goes_before_other_steps(world: World) -> None:
    class Fans(Step[None]):
        def execute(self, context: Context, input: None) -> StepDecision:
            return go_to_many(*(StepMovement.of(Lasts, number) for number in range(8)))

    class Lasts(Step[int]):
        def get_step_options(self) -> StepOptions:
            return StepOptions(heartbeat_timeout=timedelta(hours=1))

        async def execute(self, context: AsyncContext, input: int) -> StepDecision:
            await asyncio.sleep(50)
            return dead_end()

    class Crowded(Made):
        def __init__(self) -> None:
            super().__init__(Fans(), Lasts(), name="Crowded")

        def handle_timeout(self, context: Context) -> StepDecision:
            return force_complete("handled")

    flow = Crowded()
    await world.deploy(flow, slots=1)
    await world.start(flow, "f", None, limited())
    await world.advance(LIMIT + 1)
    assert (await world.describe("f")).status == "RUNNING"
    assert (await world.result("f", timeout=60)).single_output(str) == "handled"
    assert len(await events(world, "f", "StepCompleted")) == 1 + 2 + 1


@pytest.mark.statement("B26")
@scenario()
async def test_the_handler_queues_for_its_locks(world: World) -> None:
    class Holds(Step[str]):
        def get_step_options(self) -> StepOptions:
            return StepOptions(execute_lock_attributes=(note.lock(),), heartbeat_timeout=timedelta(hours=1))

        async def execute(self, context: AsyncContext, input: str) -> StepDecision:
            await asyncio.sleep(2 * LIMIT)
            note.set(context, "held")
            return dead_end()

    class Locking(Made):
        def __init__(self) -> None:
            super().__init__(Holds(), has=(note,), name="Locking")

        def handle_timeout(self, context: Context) -> StepDecision:
            return force_complete(note.get(context))

    flow = Locking()
    await world.deploy(flow)
    await world.start(flow, "f", "x", handled(lock_attributes=(note.lock(),)))
    assert (await world.result("f", timeout=3 * LIMIT)).single_output(str) == "held"


@pytest.mark.statement("B27")
@scenario()
async def test_the_routes_step_goes_on_like_any_other(world: World) -> None:
    class Reports(Step[None]):
        def execute(self, context: Context, input: None) -> StepDecision:
            return go_to(Recovers, None) if context.recovery_error is None else graceful_complete("by route")

    class Routed(Handling):
        def __init__(self) -> None:
            super().__init__(self.fail)
            self.steps = (Waits(), Recovers(), Reports())

        @staticmethod
        def fail(context: Context) -> StepDecision:
            raise RuntimeError("no")

    flow = Routed()
    await world.deploy(flow)
    handler = FlowTimeoutHandlerOptions(
        retry=RetryPolicy(maximum_attempts=1), durability=StepDurability.ASYNC
    ).on_failure_proceed_to(Reports)
    await world.start(flow, "f", "waits", limited(timeout_handler_options=handler))
    await world.advance(LIMIT + 1)
    scheduled = await events(world, "f", "StepScheduled")
    assert [event.data["durability"] for event in scheduled if event.step_execution_id == HANDLER] == ["ASYNC"]
    await world.publish("f", go, 1)
    assert {completion.decode(str) for completion in (await world.result("f")).completions} == {"by route", "in time"}


@pytest.mark.statement("B31")
@scenario()
async def test_a_handler_that_lasts_longer_than_the_flow_had_is_let_to_its_end(world: World) -> None:
    async def act(context: AsyncContext) -> StepDecision:
        for _ in range(20):
            await asyncio.sleep(LIMIT / 2)
            await context.heartbeat()
        return force_complete("at last")

    flow = HandlingLater(act)
    await world.deploy(flow)
    await world.start(flow, "f", "waits", limited())
    assert (await world.result("f", timeout=12 * LIMIT)).single_output(str) == "at last"
    assert (await world.describe("f")).status == FlowStatus.COMPLETED.name
