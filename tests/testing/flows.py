"""The Flows that the tests of `dexray.testing` run."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from dex import (
    AsyncContext,
    Attribute,
    Channel,
    Context,
    Flow,
    PersistenceSchema,
    Registry,
    RetryPolicy,
    Step,
    StepDecision,
    StepList,
    StepOptions,
    Timer,
    Wait,
    dead_end,
    go_to,
    graceful_complete,
)

MONTH = timedelta(days=30)
HOUR = timedelta(hours=1)

approval = Channel("approval", str)
remarks = Channel("remarks", str)
price = Attribute("price", int)


@dataclass
class Item:
    name: str
    count: int


class Quote(Step[Item]):
    def execute(self, context: Context, input: Item) -> StepDecision:
        price.set(context, input.count * 3)
        return go_to(Approve, input.count * 3)


class Approve(Step[int]):
    """Waits for a month."""

    def wait_for(self, context: Context, input: int) -> Wait:
        return Wait.any_of(approval.for_one(), Timer.by_duration(MONTH, condition_id="patience"))

    def execute(self, context: Context, input: int) -> StepDecision:
        who = "nobody" if context.has_timer_fired() else approval.results(context)[0]
        return graceful_complete(f"{who} agreed to {input}")


class Order(Flow[Item]):
    def get_steps(self) -> StepList[Item]:
        return StepList.start_step(Quote()).other_steps(Approve())

    def get_persistence_schema(self) -> PersistenceSchema:
        return PersistenceSchema.of(approval, remarks, price)


order = Order()
ORDERS = Registry([order])
SHOES = Item("shoes", 14)


class Act(Step[Any]):
    """Does what the test says."""

    def __init__(self, act: Callable[[Context, Any], Any], retry: RetryPolicy | None = None) -> None:
        self.act = act
        self.retry = retry

    def get_step_options(self) -> StepOptions:
        return StepOptions(execute_retry=self.retry)

    def execute(self, context: Context, input: Any) -> StepDecision:
        decision = self.act(context, input)
        return decision if isinstance(decision, StepDecision) else graceful_complete(decision)


class AsyncAct(Step[Any]):
    def __init__(self, act: Callable[[AsyncContext, Any], Any]) -> None:
        self.act = act

    async def execute(self, context: AsyncContext, input: Any) -> StepDecision:
        decision = await self.act(context, input)
        return decision if isinstance(decision, StepDecision) else graceful_complete(decision)


class Acting(Flow[Any]):
    """A Flow of one Step."""

    def __init__(self, step: Step[Any]) -> None:
        self.step = step

    def get_steps(self) -> StepList[Any]:
        return StepList.start_step(self.step)

    def get_persistence_schema(self) -> PersistenceSchema:
        return PersistenceSchema.of(remarks)


def acting(act: Callable[[Any, Any], Any], retry: RetryPolicy | None = None) -> Acting:
    return Acting(AsyncAct(act) if asyncio.iscoroutinefunction(act) else Act(act, retry))


class Sleep(Step[timedelta]):
    def wait_for(self, context: Context, input: timedelta) -> Wait:
        return Wait.until(Timer.by_duration(input))

    def execute(self, context: Context, input: timedelta) -> StepDecision:
        return graceful_complete(None)


class Sleeper(Flow[timedelta]):
    def get_steps(self) -> StepList[timedelta]:
        return StepList.start_step(Sleep())


sleeper = Sleeper()


class Tick(Step[int]):
    """Goes on for ever, once an hour."""

    def wait_for(self, context: Context, input: int) -> Wait:
        return Wait.until(Timer.by_duration(HOUR))

    def execute(self, context: Context, input: int) -> StepDecision:
        return go_to(Tick, input + 1)


class Cron(Flow[int]):
    def get_steps(self) -> StepList[int]:
        return StepList.start_step(Tick())


class Spin(Step[int]):
    def execute(self, context: Context, input: int) -> StepDecision:
        return go_to(Spin, input + 1)


class Spinning(Flow[int]):
    def get_steps(self) -> StepList[int]:
        return StepList.start_step(Spin())


class Stop(Step[None]):
    def execute(self, context: Context, input: None) -> StepDecision:
        return dead_end()
