"""A method that reads state it does not select is reported, with the option to add."""

from __future__ import annotations

import inspect
from contextlib import suppress
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
    FlowErrorType,
    FlowStatus,
    RetryPolicy,
    RPCResult,
    Step,
    StepDecision,
    StepMovement,
    StepOptions,
    Wait,
    dead_end,
    go_to_many,
    graceful_complete,
    rpc,
)
from dexray.visualize import Severity
from tests.visualize.kit import Does, Made, Waits, errors, findings, reads, report_of
from tests.world import World, scenario

mood = Attribute("mood", str)
stock = AttributeMap("stock", int)
prices = AttributeMap("prices", int)
queue = Channel("queue", int)
inbox = Channel("inbox", int)
rooms = ChannelMap("rooms", int)
HAS = (mood, stock, prices, queue, inbox, rooms)


class ReadsMap(Does):
    def execute(self, context: Context, input: None) -> StepDecision:
        key = "".join(("pe", "ar"))
        return graceful_complete(stock.get(context, key))


class ReadsInstance(Does):
    def execute(self, context: Context, input: None) -> StepDecision:
        return graceful_complete(stock.get(context, "pear"))


class ReadsMessages(Does):
    def execute(self, context: Context, input: None) -> StepDecision:
        return graceful_complete(len(queue.pending_messages(context)))


class FindsMessage(Does):
    def execute(self, context: Context, input: None) -> StepDecision:
        return graceful_complete(queue.find_pending_message(context, "none") is None)


class ReadsRoom(Does):
    def execute(self, context: Context, input: None) -> StepDecision:
        return graceful_complete(len(rooms.pending_messages(context, instance="red")))


class ReadsRooms(Does):
    def execute(self, context: Context, input: None) -> StepDecision:
        found = {room: rooms.pending_messages(context, room) for room in ("".join(("r", "ed")), *[str(1)])}
        return graceful_complete(len(found))


class WaitReads(Waits):
    def wait_for(self, context: Context, input: None) -> Wait:
        context.set_step_execution_local("count", len(queue.pending_messages(context)))
        return Wait.skip_immediately()


OPTIONS: list[tuple[type[Does], str]] = [
    (ReadsMap, "execute_load_attribute_maps=(stock,)"),
    (ReadsInstance, "execute_load_attribute_map_instances=(stock.load('pear'),)"),
    (ReadsMessages, "execute_load_channels=(queue,)"),
    (FindsMessage, "execute_load_channels=(queue,)"),
    (ReadsRoom, "execute_load_channel_map_instances=(rooms.load_messages('red'),)"),
    (ReadsRooms, "execute_load_channel_maps=(rooms,)"),
    (WaitReads, "wait_for_load_channels=(queue,)"),
]


def with_options(step: type[Does], text: str, **more: Any) -> Does:
    made = step()
    made.options = StepOptions(**eval(f"dict({text})", globals()), **more)
    return made


@pytest.mark.statement("B193", "B183", "B189")
@pytest.mark.parametrize(("step", "option"), OPTIONS)
@scenario()
async def test_a_reported_read_fails_when_it_runs_and_the_option_it_names_mends_it(
    world: World, step: type[Does], option: str
) -> None:
    once = RetryPolicy(maximum_attempts=1)
    flow = Made(with_options(step, "", execute_retry=once, wait_for_retry=once), has=HAS)
    (found,) = errors(flow)
    assert (found.code, found.step, found.option) == ("unselected-read", step.__name__, option)
    await world.deploy(flow)
    await world.start(flow, "bad")
    result = await world.result("bad")
    assert result.error_type is FlowErrorType.WORKER_API_FAILED or result.status is FlowStatus.FAILED
    assert "is not loaded" in result.error_message or "are not loaded" in result.error_message

    mended = Made(with_options(step, option), has=HAS)
    assert findings(mended) == []
    await world.deploy(mended)
    await world.start(mended, "good")
    assert (await world.result("good")).status is FlowStatus.COMPLETED


@pytest.mark.statement("B193")
def test_a_finding_names_its_place_the_definition_and_what_to_add() -> None:
    (found,) = errors(Made(ReadsMap(), has=HAS))
    line = inspect.getsourcelines(ReadsMap.execute)[1] + 2
    assert (found.where.file, found.where.line) == ("tests/visualize/test_unselected_reads.py", line)
    assert (found.flow, found.step, found.method, found.definition) == ("Made", "ReadsMap", "execute", "stock")
    assert found.message == (
        "Step 'ReadsMap', execute: `stock.get(context, key)` reads a value of AttributeMap 'stock', which is not "
        "selected. Add to its StepOptions: execute_load_attribute_maps=(stock,)"
    )


class ReadsInBoth(Waits):
    def wait_for(self, context: Context, input: None) -> Wait:
        queue.pending_messages(context)
        return Wait.skip_immediately()

    def execute(self, context: Context, input: None) -> StepDecision:
        queue.pending_messages(context)
        return dead_end()


@pytest.mark.statement("B193", "B184")
def test_wait_for_and_execute_select_apart() -> None:
    both = [("ReadsInBoth", "wait_for", "queue"), ("ReadsInBoth", "execute", "queue")]
    assert reads(Made(ReadsInBoth(), has=HAS)) == both
    assert reads(Made(with_options(ReadsInBoth, "execute_load_channels=(queue,)"), has=HAS)) == both[:1]
    assert reads(Made(with_options(ReadsInBoth, "wait_for_load_channels=(queue,)"), has=HAS)) == both[1:]


class NeedsNoLoad(Does):
    def execute(self, context: Context, input: None) -> StepDecision:
        mood.set(context, mood.get(context))
        stock.set(context, "pear", stock.get_map_size(context))
        stock.delete(context, stock.get_all_instance_keys(context)[0])
        queue.publish(context, queue.size(context))
        rooms.publish(context, "red", rooms.size(context, "red") + rooms.get_map_size(context))
        return graceful_complete([list(rooms.get_all_instance_keys(context)), list(queue.results(context))])


@pytest.mark.statement("B193", "B182", "B191")
def test_writes_sizes_keys_and_plain_attributes_need_no_selection() -> None:
    assert findings(Made(NeedsNoLoad(), has=HAS)) == []


@pytest.mark.statement("B193", "B185", "B186")
@pytest.mark.parametrize(
    ("step", "options", "is_reported"),
    [
        (ReadsMap, "execute_load_attribute_maps=(stock,)", False),
        (ReadsMap, "execute_load_attribute_maps=(prices,)", True),
        (ReadsMap, "execute_load_attribute_map_instances=(stock.load('plum'),)", False),  # which key can't be told
        (ReadsMap, "execute_load_attribute_map_instances=(prices.load('pear'),)", True),
        (ReadsMap, "execute_lock_attributes=(stock.lock('pear'),)", True),
        (ReadsInstance, "execute_load_attribute_maps=(stock,)", False),
        (ReadsInstance, "execute_load_attribute_map_instances=(stock.load('pear'),)", False),
        (ReadsInstance, "execute_load_attribute_map_instances=(stock.load('plum'),)", True),
        (ReadsMessages, "execute_load_channels=(inbox,)", True),
        (ReadsMessages, "wait_for_load_channels=(queue,)", True),
        (ReadsRoom, "execute_load_channel_maps=(rooms,)", False),
        (ReadsRoom, "execute_load_channel_map_instances=(rooms.load_messages('blue'),)", True),
        (ReadsRooms, "execute_load_channel_map_instances=(rooms.load_messages('blue'),)", False),
    ],
)
def test_what_covers_a_read(step: type[Does], options: str, is_reported: bool) -> None:
    assert bool(errors(Made(with_options(step, options), has=HAS))) is is_reported


@pytest.mark.statement("B193")
def test_the_option_keeps_what_is_selected_already() -> None:
    (found,) = errors(Made(with_options(ReadsMessages, "execute_load_channels=(inbox,)"), has=HAS))
    assert found.option == "execute_load_channels=(inbox, queue)"
    loaded = "execute_load_attribute_map_instances=(stock.load('plum'),)"
    (found,) = errors(Made(with_options(ReadsInstance, loaded), has=HAS))
    assert found.option == "execute_load_attribute_map_instances=(stock.load('plum'), stock.load('pear'))"


class CatchesIt(Does):
    def execute(self, context: Context, input: None) -> StepDecision:
        with suppress(AttributeMapNotLoadedError, KeyError):
            stock.get(context, "pear")
        try:
            stock.get(context, "plum")
        except (AttributeMapNotLoadedError, KeyError):
            mood.set(context, "bad")
        try:
            queue.pending_messages(context)
        except ChannelMessagesNotLoadedError:
            return dead_end()
        return dead_end()


class CatchesOther(Does):
    def execute(self, context: Context, input: None) -> StepDecision:
        try:
            stock.get(context, "pear")
        except ChannelMessagesNotLoadedError:
            queue.pending_messages(context)
        return dead_end()


@pytest.mark.statement("B193")
def test_a_handler_that_expects_the_very_error_may_read() -> None:
    assert errors(Made(CatchesIt(), has=HAS)) == []
    assert [read[2] for read in reads(Made(CatchesOther(), has=HAS))] == ["stock", "queue"]


# RPCs and the timeout handler -----------------------------------------------------------------------------------------


class Desk(Made):
    @rpc
    def reads_channel(self, context: Context) -> RPCResult[int]:
        return RPCResult(len(queue.pending_messages(context)))

    @rpc
    def reads_map(self, context: Context, input: str) -> RPCResult[int]:
        return RPCResult(stock.get(context, input))

    @rpc(load_attribute_map_instances=(stock.load("pear"),), load_channel_maps=(rooms,))
    def reads_selected(self, context: Context, input: str) -> RPCResult[int]:
        return RPCResult(stock.get(context, input) + len(rooms.pending_messages(context, input)))

    @rpc(load_attribute_map_instances=(stock.load("pear"),))
    def reads_another(self, context: Context) -> RPCResult[int]:
        return RPCResult(stock.get(context, "plum"))

    def handle_timeout(self, context: Context) -> StepDecision:
        return graceful_complete(len(inbox.pending_messages(context)))


@pytest.mark.statement("B193")
def test_an_rpc_is_judged_by_its_decorator_and_what_calls_or_starts_may_add_is_a_warning() -> None:
    found = {finding.method: finding for finding in findings(Desk(has=HAS))}
    assert {name: (each.severity, each.option) for name, each in found.items()} == {
        "reads_channel": (Severity.ERROR, "load_channels=(queue,)"),
        "reads_map": (Severity.WARNING, "load_attribute_maps=(stock,)"),
        "handle_timeout": (Severity.WARNING, "load_channels=(inbox,)"),
    }
    assert "RPCInvokeOptions" in found["reads_map"].message
    assert "timeout_handler_options" in found["handle_timeout"].message


# Options of movements -------------------------------------------------------------------------------------------------

ON_THE_WAY = StepOptions(execute_load_channels=(queue,))


class Target(Does):
    def execute(self, context: Context, input: None) -> StepDecision:
        return graceful_complete(len(queue.pending_messages(context)))


class PlainMove(Does):
    def execute(self, context: Context, input: None) -> StepDecision:
        return go_to_many(StepMovement.of(Target, None))


class MovesWithConstant(Does):
    def execute(self, context: Context, input: None) -> StepDecision:
        return go_to_many(StepMovement.of(Target, None, ON_THE_WAY))


class MovesWithNew(Does):
    def execute(self, context: Context, input: None) -> StepDecision:
        loads = (queue,)
        return go_to_many(StepMovement.of(Target, None, options=StepOptions(execute_load_channels=loads)))


class MovesWithOther(Does):
    def execute(self, context: Context, input: None) -> StepDecision:
        options = StepOptions(wait_for_load_channels=(queue,), execute_load_channels=())
        return go_to_many(StepMovement.of(Target, None, options))


class MovesWithHelp(Does):
    def execute(self, context: Context, input: None) -> StepDecision:
        return go_to_many(StepMovement.of(Target, None, options=self.loading((queue,))))

    def loading(self, channels: tuple[Channel[int], ...]) -> StepOptions:
        return StepOptions().merged_with(StepOptions(execute_load_channels=channels))


class MovesWithUnknown(Does):
    def execute(self, context: Context, input: None) -> StepDecision:
        options: StepOptions = eval("ON_THE_WAY")
        return go_to_many(StepMovement.of(Target, None, options))


class RoutesToTarget(Does):
    options = StepOptions().on_execute_failure_proceed_to(Target, ON_THE_WAY)


@pytest.mark.statement("B193")
@pytest.mark.parametrize(
    ("first", "is_reported"),
    [
        (PlainMove, True),
        (MovesWithOther, True),
        (MovesWithConstant, False),
        (MovesWithNew, False),
        (MovesWithHelp, False),
        (MovesWithUnknown, False),
        (RoutesToTarget, False),
    ],
)
def test_options_on_the_way_to_a_step_count(first: type[Step[Any]], is_reported: bool) -> None:
    assert bool(errors(Made(first(), Target(), has=HAS))) is is_reported


@pytest.mark.statement("B193")
def test_options_on_the_way_count_for_all_ways_as_the_handler_may_know_how_it_was_entered() -> None:
    assert errors(Made(PlainMove(), MovesWithNew(), Target(), has=HAS)) == []


@pytest.mark.statement("B193")
def test_options_of_a_movement_replace_those_of_the_step() -> None:
    target = with_options(Target, "execute_load_channels=(queue,)")

    class Replaces(Does):
        def execute(self, context: Context, input: None) -> StepDecision:
            return go_to_many(StepMovement.of(Target, None, StepOptions(execute_load_channels=(inbox,))))

    assert reads(Made(Replaces(), target, has=HAS)) == [("Target", "execute", "queue")]
    assert reads(Made(MovesWithOther(), target, has=HAS)) == []  # an empty option is none


# Declared -------------------------------------------------------------------------------------------------------------

other_queue = Channel("queue", int)
stranger = Attribute("stranger", int)


class ExpectsStrangers(Does):
    def execute(self, context: Context, input: None) -> StepDecision:
        with suppress(ValueError):
            stranger.get(context)
        return dead_end()


def test_a_handler_that_expects_the_refusal_may_use_strangers() -> None:
    assert findings(Made(ExpectsStrangers(), has=HAS)) == []


class UsesStrangers(Waits):
    def wait_for(self, context: Context, input: None) -> Wait:
        return Wait.until(other_queue.for_one())

    def execute(self, context: Context, input: None) -> StepDecision:
        return graceful_complete(stranger.get(context))


def test_what_the_flow_does_not_declare_is_reported_by_the_very_object() -> None:
    wait_for, execute = errors(Made(UsesStrangers(), has=HAS))
    assert (wait_for.code, wait_for.method, wait_for.definition) == ("undeclared", "wait_for", "queue")
    assert "is not the one of this name that the Flow declares" in wait_for.message
    assert (execute.code, execute.method, execute.definition) == ("undeclared", "execute", "stranger")
    assert "add it to get_persistence_schema()" in execute.message


def test_a_flow_without_findings_has_an_empty_report() -> None:
    report = report_of(Made(Does()))
    assert (report.diagnostics, report.errors) == ((), ())
