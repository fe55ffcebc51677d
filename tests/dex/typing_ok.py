"""What must type-check under mypy --strict. Checked by test_typing, never run."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import assert_type

from dex import (
    AsyncContext,
    Attribute,
    AttributeMap,
    Channel,
    ChannelMap,
    ChannelMessage,
    Context,
    Flow,
    FlowResult,
    RPCResult,
    StartFlowOptions,
    Step,
    StepDecision,
    StepList,
    StepMovement,
    StepOptions,
    StepOutput,
    Stream,
    SubFlow,
    Wait,
    dead_end,
    force_complete_if_channels_empty,
    go_to,
    go_to_many,
    heartbeat,
    rpc,
)

NUMBERS = Channel("numbers", int)
NOTIFY = Channel("notify", None)
LISTS = Channel("lists", list[int])
MAYBE: Channel[int | None] = Channel("maybe", int | None)
BY_KEY = ChannelMap("by key", str)
COUNT = Attribute("count", int)
RATE = Attribute("rate", float)
FLAG = Attribute("flag", bool)
NAME = Attribute("name", str)
STOCK = AttributeMap("stock", int)
NAMES = AttributeMap("names", str)
WORDS = Stream("words", str, 1000)


class Numbers(Step[int]):
    def wait_for(self, context: Context, input: int) -> Wait:
        return Wait.any_of(NUMBERS.for_one(), BY_KEY.at_least("x", 2))

    def execute(self, context: Context, input: int) -> StepDecision:
        assert_type(COUNT.get(context), int)
        assert_type(RATE.get(context), float)
        assert_type(FLAG.get(context), bool)
        assert_type(NAME.get(context), str | None)
        assert_type(STOCK.get(context, "a"), int)
        assert_type(NAMES.get(context, "a"), str | None)
        assert_type(NUMBERS.find_pending_message(context, "id"), ChannelMessage[int] | None)
        assert_type(context.get_step_execution_local("x", str), str | None)
        assert_type(context.get_last_heartbeat_value(int), int | None)
        assert_type(SubFlow.get_condition_results(context), FlowResult)
        assert_type(SubFlow.get_condition_results(context).single_output(str), str)
        for number in NUMBERS.results(context):
            assert_type(number, int)
        NUMBERS.publish(context, 5)
        NOTIFY.publish(context, None)
        LISTS.publish(context, [1])
        MAYBE.publish(context, None)
        BY_KEY.publish(context, "x", "y")
        NAME.set(context, None)
        STOCK.set(context, "a", 1)
        return go_to(Numbers, input + 1).with_canceling_steps(Maybe, Numbers())


class Maybe(Step[int | None]):
    async def execute(self, context: AsyncContext, input: int | None) -> StepDecision:
        await context.heartbeat(1)
        assert_type(WORDS.write(context, "x"), None)
        NUMBERS.publish(context, 1)
        return go_to_many(StepMovement.of(Maybe, 5), StepMovement.of(Maybe(), None, StepOptions()))


class NamesItsInput(Step[int]):
    def wait_for(self, context: Context, number: int) -> Wait:
        return Wait.until(NUMBERS.for_n(number))

    def execute(self, ctx: Context, number: int) -> StepDecision:
        return go_to(NamesItsInput, number)


class Yields(Step[None]):
    def execute(self, context: Context, input: None) -> Generator[StepOutput, None, StepDecision]:
        yield heartbeat()
        yield WORDS.write(context, "x")
        yield from WORDS.buffered_text(context).write("x")
        return force_complete_if_channels_empty(None, StepMovement.of(Numbers, 1, options=None), NUMBERS)


class Whole(Flow[int]):
    def get_steps(self) -> StepList[int]:
        return StepList.start_step(Numbers()).other_steps(Maybe(), Yields)

    @rpc
    def ask(self, context: Context, input: str) -> RPCResult[int]:
        return RPCResult(len(input))

    @rpc(name="other", lock_attributes=(COUNT.lock(), STOCK.lock("a")))
    def tell(self, context: Context) -> None:
        return None


class TimedOut(Flow[None]):
    async def handle_timeout(self, context: AsyncContext) -> StepDecision:
        await context.heartbeat()
        return dead_end()


class NoSteps(Flow[None]):
    def get_steps(self) -> StepList[None]:
        return StepList.without_start_step(Numbers())


ASK: Callable[[Context, str], RPCResult[int]] = Whole().ask
assert_type(StepList.start_step(Numbers), StepList[int])
assert_type(Channel("x", int), Channel[int])
assert_type(Channel("x", None), Channel[None])
CONDITION = SubFlow.run(Whole(), 5)
OPTIONS = StartFlowOptions().with_attribute(COUNT, 5).with_attribute(NAMES, "a", "b")
ROUTE = StepOptions().on_execute_failure_proceed_to(Numbers)
END = dead_end()
