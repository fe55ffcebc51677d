"""What a method is given to see: always, by selection, and from which moment."""

from __future__ import annotations

from typing import Any

import pytest

from dex import (
    Attribute,
    AttributeMap,
    AttributeMapNotLoadedError,
    Channel,
    ChannelMap,
    ChannelMessagesNotLoadedError,
    Context,
    Registry,
    RetryPolicy,
    StartFlowOptions,
    Step,
    StepDecision,
    StepOptions,
    Wait,
    WaitForFailurePolicy,
    go_to,
    graceful_complete,
)
from tests.statements.kit import Made, events
from tests.world import InProcessWorld, World, scenario

mood = Attribute("mood", str)
count = Attribute("count", int)
stock = AttributeMap("stock", int)
queue = Channel("queue", int)
empty = Channel("empty", int)
rooms = ChannelMap("rooms", int)
go = Channel("go", int)
HAS = (mood, count, stock, queue, empty, rooms, go)


def look(context: Context) -> dict[str, Any]:
    """Everything that a method may be given; "not loaded" where it is not."""

    def values(instance: str) -> Any:
        try:
            return stock.get(context, instance)
        except AttributeMapNotLoadedError:
            return "not loaded"

    def messages(channel: Any, *instance: str) -> Any:
        try:
            return [message.value for message in channel.pending_messages(context, *instance)]
        except ChannelMessagesNotLoadedError:
            return "not loaded"

    return {
        "attributes": [mood.get(context), count.get(context)],
        "sizes": [queue.size(context), empty.size(context), rooms.size(context, "red"), rooms.size(context, "blue")],
        "keys": [list(stock.get_all_instance_keys(context)), stock.get_map_size(context)],
        "rooms": [list(rooms.get_all_instance_keys(context)), rooms.get_map_size(context)],
        "pear": values("pear"),
        "plum": values("plum"),
        "queue": messages(queue),
        "empty": messages(empty),
        "red": messages(rooms, "red"),
        "blue": messages(rooms, "blue"),
    }


ALWAYS = {
    "attributes": ["good", 0],
    "sizes": [2, 0, 1, 1],
    "keys": [["pear", "plum"], 2],
    "rooms": [["blue", "red"], 2],
}
NOT_LOADED = dict.fromkeys(("pear", "plum", "queue", "empty", "red", "blue"), "not loaded")

# Of each method: an option without its prefix, and what it loads.
SELECTIONS: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {
    "load_attribute_maps": ((stock,), {"pear": 3, "plum": 4}),
    "load_attribute_map_instances": ((stock.load("pear"),), {"pear": 3}),
    "load_channels": ((queue, empty), {"queue": [1, 2], "empty": []}),
    "load_channel_maps": ((rooms,), {"red": [8], "blue": [9]}),
    "load_channel_map_instances": ((rooms.load_messages("red"),), {"red": [8]}),
    "lock_attributes": ((stock.lock("pear"), mood.lock()), {}),  # a lock loads nothing
}


class Fills(Step[None]):
    def execute(self, context: Context, input: None) -> StepDecision:
        mood.set(context, "good")
        stock.set(context, "pear", 3)
        stock.set(context, "plum", 4)
        for value in (1, 2):
            queue.publish(context, value)
        rooms.publish(context, "red", 8)
        rooms.publish(context, "blue", 9)
        return go_to(Looks, None)


class Looks(Step[None]):
    def __init__(self, options: StepOptions) -> None:
        self.options = options

    def get_step_options(self) -> StepOptions:
        return self.options

    def wait_for(self, context: Context, input: None) -> Wait:
        context.set_step_execution_local("seen", look(context))
        return Wait.skip_immediately()

    def execute(self, context: Context, input: None) -> StepDecision:
        return graceful_complete([context.get_step_execution_local("seen", dict[str, Any]), look(context)])


@pytest.mark.statement("B182", "B183", "B184", "B185", "B186", "B189", "B190", "B191", "D2", "C30")
@pytest.mark.parametrize("method", ["wait_for", "execute", None])
@pytest.mark.parametrize("selection", SELECTIONS)
@scenario()
async def test_what_each_method_is_given(world: World, method: str | None, selection: str) -> None:
    selected, loaded = SELECTIONS[selection]
    options = StepOptions(**({f"{method}_{selection}": selected} if method else {}))  # type: ignore[arg-type]
    flow = Made(Fills(), Looks(options), has=HAS)
    await world.deploy(flow)
    await world.start(flow, "f")
    seen = dict(zip(("wait_for", "execute"), (await world.result("f")).single_output(list[Any]), strict=True))
    for each, what in seen.items():
        assert what == ALWAYS | NOT_LOADED | (loaded if each == method else {}), each


@pytest.mark.statement("B182", "B183", "B190", "B191")
@scenario(ray=True)
async def test_loads_reach_workers(world: World) -> None:
    options = StepOptions(
        execute_load_channels=(queue, empty), execute_load_attribute_map_instances=(stock.load("pear"),)
    )
    flow = Made(Fills(), Looks(options), has=HAS, name="Loads")
    await world.deploy(flow)
    await world.start(flow, "f")
    wait_for, execute = (await world.result("f")).single_output(list[Any])
    assert wait_for == ALWAYS | NOT_LOADED
    assert execute == ALWAYS | NOT_LOADED | {"pear": 3, "queue": [1, 2], "empty": []}


# From which moment ----------------------------------------------------------------------------------------------------


class Consumes(Step[None]):
    def get_step_options(self) -> StepOptions:
        return StepOptions(wait_for_load_channels=(queue,), execute_load_channels=(queue,))

    def wait_for(self, context: Context, input: None) -> Wait:
        context.set_step_execution_local("seen", self.seen(context))
        return Wait.all_of(queue.for_n(2), go.for_one())

    def execute(self, context: Context, input: None) -> StepDecision:
        before = context.get_step_execution_local("seen", list[Any])
        return graceful_complete([before, self.seen(context), list(queue.results(context))])

    def seen(self, context: Context) -> list[Any]:
        return [mood.get(context), queue.size(context), [found.value for found in queue.pending_messages(context)]]


@pytest.mark.statement("B184", "B187")
@scenario()
async def test_execute_has_a_snapshot_of_its_own_without_what_its_wait_consumed(world: World) -> None:
    flow = Made(Consumes(), has=HAS)
    await world.deploy(flow)
    await world.start(flow, "f", None, StartFlowOptions().with_attribute(mood, "before"))
    await world.until_phase("f", "Consumes-1", "waiting")
    await world.publish("f", queue, 1, 2, 3)
    await world.client.set_attribute(world.id("f"), mood, "after")
    await world.publish("f", go, 1)
    assert (await world.result("f")).single_output(list[Any]) == [["before", 0, []], ["after", 1, [3]], [1, 2]]


class Proceeds(Step[None]):
    def get_step_options(self) -> StepOptions:
        return StepOptions(
            wait_for_retry=RetryPolicy(maximum_attempts=2), wait_for_failure=WaitForFailurePolicy.PROCEED
        )

    def wait_for(self, context: Context, input: None) -> Wait:
        raise RuntimeError(f"saw {mood.get(context)}")

    def execute(self, context: Context, input: None) -> StepDecision:
        assert context.recovery_error is not None
        return graceful_complete(f"{context.recovery_error.detail}, sees {mood.get(context)}")


@pytest.mark.statement("B184")
@scenario()
async def test_execute_has_a_snapshot_of_its_own_also_after_a_wait_for_that_failed(world: World) -> None:
    flow = Made(Proceeds(), has=HAS)
    await world.deploy(flow)
    await world.start(flow, "f", None, StartFlowOptions().with_attribute(mood, "old"))
    await world.until_phase("f", "Proceeds-1", "backoff")
    await world.client.set_attribute(world.id("f"), mood, "new")
    assert (await world.result("f")).single_output(str) == "saw old, sees new"


class Retries(Step[None]):
    def get_step_options(self) -> StepOptions:
        return StepOptions(
            execute_load_channels=(queue,),
            execute_load_attribute_maps=(stock,),
            execute_retry=RetryPolicy(maximum_attempts=3),
        )

    def execute(self, context: Context, input: None) -> StepDecision:
        if context.attempt < 3:
            raise RuntimeError("on purpose")
        pending = [found.value for found in queue.pending_messages(context)]
        return graceful_complete([mood.get(context), pending, stock.get(context, "pear"), queue.size(context)])


@pytest.mark.statement("B188", "B148")
@pytest.mark.parametrize("crash", [False, True])
@scenario()
async def test_retries_reuse_the_snapshot_of_attempt_1(world: World, crash: bool) -> None:
    flow = Made(Retries(), has=HAS)
    await world.deploy(flow)
    await world.start(flow, "f", None, StartFlowOptions().with_attribute(stock, "pear", 3))
    await world.until_phase("f", "Retries-1", "backoff")
    await world.publish("f", queue, 1)
    await world.client.set_attribute(world.id("f"), mood, "new")
    await world.client.set_attribute(world.id("f"), stock, "pear", 99)
    if crash:
        await world.restart()
    assert (await world.result("f")).single_output(list[Any]) == [None, [], 3, 0]


@pytest.mark.statement("B188")
@scenario()
async def test_the_snapshot_is_taken_at_the_hand_out(world: World) -> None:
    flow = Made(ReadsMood(), has=HAS)
    await world.deploy(flow, slots=0)  # nobody takes the attempt yet
    await world.start(flow, "f")
    await world.client.set_attribute(world.id("f"), mood, "new")
    assert isinstance(world, InProcessWorld)
    world._slots = 1
    await world.restart()
    assert (await world.result("f")).single_output(str) == "new"


class ReadsMood(Step[None]):
    def get_step_options(self) -> StepOptions:
        return StepOptions(execute_lock_attributes=(mood.lock(),))

    def execute(self, context: Context, input: None) -> StepDecision:
        return graceful_complete(mood.get(context))


class Elsewhere(Step[None]):
    def execute(self, context: Context, input: None) -> StepDecision:
        return graceful_complete("elsewhere")


async def returned_attempt(world: World) -> InProcessWorld:
    """A Flow `f` whose attempt of ReadsMood came back unrun, because its worker has no such Step."""
    assert isinstance(world, InProcessWorld)
    flow = Made(ReadsMood(), has=HAS)
    await world.deploy(flow)
    assert world.engine is not None
    whole = world.engine.registry
    world.engine.registry = Registry([Made(Elsewhere(), has=HAS)])
    await world.start(flow, "f", None, StartFlowOptions().with_attribute(mood, "old"))
    await world.until_phase("f", "ReadsMood-1", "backoff")
    world.engine.registry = whole
    return world


@pytest.mark.statement("B188", "B204", "B205")
@scenario()
async def test_an_attempt_that_came_back_unrun_keeps_its_snapshot_and_number(world: World) -> None:
    world = await returned_attempt(world)
    step = (await world.describe("f")).steps[0]
    assert (step.phase, step.attempt) == ("backoff", 1)
    assert "has no Step 'ReadsMood'" in step.waits_for
    await world.client.set_attribute(world.id("f"), mood, "new")
    assert (await world.result("f")).single_output(str) == "old"
    assert [event.data["attempt"] for event in await events(world, "f", "AttemptStarted")] == [1, 1]


# Deleting -------------------------------------------------------------------------------------------------------------


class Deletes(Step[str]):
    def get_step_options(self) -> StepOptions:
        return StepOptions(execute_load_channels=(queue,), execute_retry=RetryPolicy(maximum_attempts=1))

    def wait_for(self, context: Context, input: str) -> Wait:
        return Wait.until(go.for_one())

    def execute(self, context: Context, input: str) -> StepDecision:
        first = queue.pending_messages(context)[0]
        queue.delete(context, first.message_id)
        assert queue.size(context) == 2
        assert len(queue.pending_messages(context)) == 3, "staged operations do not show in what is loaded"
        if input == "fails":
            raise RuntimeError("on purpose")
        return go_to(Waits, "")


class Waits(Step[str]):
    def wait_for(self, context: Context, input: str) -> Wait:
        return Wait.until(go.for_n(9))

    def execute(self, context: Context, input: str) -> StepDecision:
        return graceful_complete()


class DeletesAndGoesOn(Deletes):
    def get_step_options(self) -> StepOptions:
        return super().get_step_options().on_execute_failure_proceed_to(Waits)


@pytest.mark.statement("B192", "B76")
@pytest.mark.parametrize(("how", "left"), [("returns", 2), ("fails", 3)])
@scenario()
async def test_a_loaded_message_is_deleted_with_the_result_or_not_at_all(world: World, how: str, left: int) -> None:
    flow = Made(DeletesAndGoesOn(), Waits(), has=HAS)
    await world.deploy(flow)
    await world.start(flow, "f", how)
    await world.publish("f", queue, 1, 2, 3)
    await world.publish("f", go, 1)
    await world.until_phase("f", "Waits-1", "waiting")
    assert (await world.describe("f")).channels["queue"] == left
    assert len(await events(world, "f", "MessageDeleted")) == 3 - left
