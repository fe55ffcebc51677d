"""The Flow that most tests of attempts run: each Step does one thing that a test looks at."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from dex.attribute import Attribute, AttributeMap
from dex.channel import Channel, ChannelMap
from dex.context import Context
from dex.decision import StepDecision, dead_end
from dex.flow import Flow, PersistenceSchema, StepList
from dex.registry import Registry
from dex.step import Step
from dex.wait import Wait


@dataclass
class Order:
    name: str
    amount: int


total = Attribute("total", int)
tags = Attribute("tags", list[str])
note = Attribute("note", str)
stock = AttributeMap("stock", int)
paid = Channel("paid", str)
notify = Channel("notify", None)
carriers = ChannelMap("carriers", str)
undeclared_channel = Channel("undeclared", str)
undeclared_attribute = Attribute("undeclared", str)
twin_channel = Channel("paid", str)
twin_attribute = Attribute("total", int)

Handler = Callable[[Any, Any], Any]


class Script:
    """What the Step does is set by the test."""

    wait_for: Handler = staticmethod(lambda context, value: Wait.skip_immediately())
    execute: Handler = staticmethod(lambda context, value: dead_end())


class Act(Step[str]):
    """Runs the script of the test, for a text."""

    def wait_for(self, context: Context, input: str) -> Wait:
        return Script.wait_for(context, input)  # type: ignore[no-any-return]

    def execute(self, context: Context, input: str) -> StepDecision:
        return Script.execute(context, input)  # type: ignore[no-any-return]


class Ship(Step[Order]):
    def execute(self, context: Context, input: Order) -> StepDecision:
        return dead_end()


class Stranger(Step[str]):
    """A Step of no Flow."""

    def execute(self, context: Context, input: str) -> StepDecision:
        return dead_end()


class Shop(Flow[str]):
    def get_steps(self) -> StepList[str]:
        return StepList.start_step(Act()).other_steps(Ship())

    def get_persistence_schema(self) -> PersistenceSchema:
        return PersistenceSchema.of(total, tags, note, stock, paid, notify, carriers)

    def handle_timeout(self, context: Context) -> StepDecision:
        return Script.execute(context, None)  # type: ignore[no-any-return]


REGISTRY = Registry([Shop()])
