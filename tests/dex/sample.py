"""A Flow with one of everything, for the tests of definitions."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from datetime import timedelta

from dex import (
    AsyncContext,
    Attribute,
    AttributeIndex,
    AttributeMap,
    Channel,
    ChannelMap,
    Context,
    Flow,
    IndexType,
    PersistenceSchema,
    RetryPolicy,
    RPCResult,
    Step,
    StepDecision,
    StepDurability,
    StepList,
    StepMovement,
    StepOptions,
    StepOutput,
    StepResources,
    Stream,
    Wait,
    WaitForFailurePolicy,
    dead_end,
    go_to,
    graceful_complete,
    heartbeat,
    rpc,
)


@dataclass(frozen=True)
class Order:
    id: str
    items: int


STATUS = Attribute("status", str, index=AttributeIndex(IndexType.KEYWORD))
STOCK = AttributeMap("stock", int)
PAID = Channel("paid", bool)
PARTS = ChannelMap("parts", int)
WORDS = Stream("words", str, 10_000)


class Charge(Step[Order]):
    def get_step_options(self) -> StepOptions:
        return StepOptions(
            wait_for_method_timeout=timedelta(seconds=5),
            execute_method_timeout=timedelta(seconds=60),
            heartbeat_timeout=timedelta(seconds=10),
            execute_retry=RetryPolicy(
                initial_interval=timedelta(seconds=3), backoff_coefficient=1.5, maximum_attempts=4
            ),
            wait_for_failure=WaitForFailurePolicy.PROCEED,
            execute_durability=StepDurability.ASYNC,
            execute_lock_attributes=(STATUS.lock(), STOCK.lock("a b")),
            wait_for_load_channels=(PAID,),
            execute_load_attribute_maps=(STOCK,),
            execute_load_channel_map_instances=(PARTS.load_messages("wheel"),),
            resources=StepResources(num_cpus=2, memory=10**9),
        ).on_execute_failure_proceed_to(Refund)

    def wait_for(self, context: Context, input: Order) -> Wait:
        return Wait.until(PAID.for_one())

    def execute(self, context: Context, input: Order) -> StepDecision:
        return go_to(Ship, input)


class Ship(Step[Order]):
    async def execute(self, context: AsyncContext, order: Order) -> StepDecision:
        await context.heartbeat(order.items)
        return graceful_complete(order.id)


class Refund(Step[Order]):
    def execute(self, context: Context, input: Order) -> Generator[StepOutput, None, StepDecision]:
        yield heartbeat(input.items)
        return dead_end()


class Cleanup(Step[None]):
    def execute(self, context: Context, input: None) -> StepDecision:
        return dead_end()


class OrderFlow(Flow[Order]):
    def get_steps(self) -> StepList[Order]:
        return StepList.start_step(Charge()).other_steps(Ship(), Refund(), Cleanup())

    def get_persistence_schema(self) -> PersistenceSchema:
        return PersistenceSchema.of(STATUS, STOCK, PAID, PARTS, WORDS)

    def handle_timeout(self, context: Context) -> StepDecision:
        return dead_end()

    @rpc
    def status(self, context: Context) -> RPCResult[str]:
        return RPCResult(STATUS.get(context) or "")

    @rpc(name="cancel", lock_attributes=(STATUS.lock(),))
    async def cancel_order(self, context: AsyncContext, input: int) -> None:
        PARTS.publish(context, "wheel", input)

    @rpc(is_transactional=True, load_channels=(PAID,), timeout=timedelta(seconds=7))
    def clean(self, context: Context, input: str) -> RPCResult[int]:
        return RPCResult(1, next_steps=(StepMovement.of(Cleanup, None),))
