"""What must not type-check: each line marked `# error` is reported. Checked by test_typing, never run."""

from __future__ import annotations

from dex import (
    AsyncContext,
    Attribute,
    AttributeMap,
    Channel,
    ChannelMap,
    Context,
    Flow,
    FlowTimeoutHandlerOptions,
    StartFlowOptions,
    Step,
    StepDecision,
    StepList,
    StepMovement,
    StepOptions,
    SubFlow,
    Timer,
    Wait,
    dead_end,
    force_complete_if_channels_empty,
    force_fail,
    go_to,
)

NUMBERS = Channel("numbers", int)
NOTIFY = Channel("notify", None)
BY_KEY = ChannelMap("by key", str)
COUNT = Attribute("count", int)
STOCK = AttributeMap("stock", int)


class Numbers(Step[int]):
    def execute(self, context: Context, input: int) -> StepDecision:
        go_to(Numbers, "x")  # error
        go_to(Numbers(), None)  # error
        StepMovement.of(Numbers, "x")  # error
        StepMovement.of(Numbers, 5, 7)  # error
        go_to(Whole, 5)  # error
        NUMBERS.publish(context, "x")  # error
        NOTIFY.publish(context, 5)  # error
        BY_KEY.publish(context, "x", 5)  # error
        COUNT.set(context, "x")  # error
        STOCK.set(context, "a", "x")  # error
        COUNT.get()  # error
        context.flow_id = "x"  # error
        Wait.until(NUMBERS)  # error
        Wait.any_of(Timer.by_duration(5))  # error
        force_complete_if_channels_empty(None, StepMovement.of(Numbers, 1), BY_KEY)  # error
        force_fail(ValueError())  # error
        SubFlow.run(Whole(), "x")  # error
        StartFlowOptions().with_attribute(COUNT, "x")  # error
        StartFlowOptions().with_attribute(STOCK, 5)  # error
        StepOptions(execute_retry=5)  # error
        FlowTimeoutHandlerOptions().on_failure_proceed_to(Numbers)  # error
        return dead_end()


class WrongReturn(Step[int]):
    def execute(self, context: Context, input: int) -> Wait:  # error
        return Wait.skip_immediately()


class WrongAsyncReturn(Step[int]):
    async def execute(self, context: AsyncContext, input: int) -> Wait:  # error
        return Wait.skip_immediately()


class WrongInput(Step[int]):
    def execute(self, context: Context, input: str) -> StepDecision:  # error
        return dead_end()


class Whole(Flow[int]):
    def get_steps(self) -> StepList[int]:
        return StepList.start_step(Numbers())


class WrongStart(Flow[str]):
    def get_steps(self) -> StepList[str]:
        return StepList.start_step(Numbers())  # error
