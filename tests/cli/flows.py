"""Flows that the tests of the command run and look at."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from dex import (
    Attribute,
    AttributeIndex,
    Channel,
    ChannelMap,
    Context,
    Flow,
    IndexType,
    PersistenceSchema,
    RetryPolicy,
    Step,
    StepDecision,
    StepList,
    StepOptions,
    Timer,
    Wait,
    force_fail,
    graceful_complete,
)


@dataclass(frozen=True, slots=True)
class Order:
    item: str
    count: int = 1


@dataclass(frozen=True, slots=True)
class Approval:
    by: str
    granted: bool


APPROVALS = Channel("approvals", Approval)
NOTES = ChannelMap("notes", str)
STATE = Attribute("state", str, index=AttributeIndex(IndexType.KEYWORD))


class Price(Step[Order]):
    def execute(self, context: Context, input: Order) -> StepDecision:
        return graceful_complete({"item": input.item, "price": 7.5 * input.count})


class PriceFlow(Flow[Order]):
    """Completes at once."""

    def get_steps(self) -> StepList[Order]:
        return StepList.start_step(Price())


class Refuse(Step[str]):
    def execute(self, context: Context, input: str) -> StepDecision:
        return force_fail(input)


class RefusingFlow(Flow[str]):
    """Fails with its input as the reason."""

    def get_steps(self) -> StepList[str]:
        return StepList.start_step(Refuse())


class AwaitApproval(Step[Order]):
    def wait_for(self, context: Context, input: Order) -> Wait:
        STATE.set(context, "asked")
        return Wait.any_of(APPROVALS.for_one(), Timer.by_duration(timedelta(hours=1)))

    def execute(self, context: Context, input: Order) -> StepDecision:
        return graceful_complete(f"{input.item}: {APPROVALS.results(context)[0].by}")


class ApprovalFlow(Flow[Order]):
    """Waits for an approval."""

    def get_steps(self) -> StepList[Order]:
        return StepList.start_step(AwaitApproval())

    def get_persistence_schema(self) -> PersistenceSchema:
        return PersistenceSchema.of(APPROVALS, NOTES, STATE)


class Fragile(Step[None]):
    def get_step_options(self) -> StepOptions:
        return StepOptions(execute_retry=RetryPolicy(initial_interval=timedelta(hours=1)))

    def execute(self, context: Context, input: None) -> StepDecision:
        raise ConnectionError("the shop is closed")


class FragileFlow(Flow[None]):
    """Fails its first attempt and waits for the next."""

    def get_steps(self) -> StepList[None]:
        return StepList.start_step(Fragile())


approval_flow = ApprovalFlow()
not_a_flow = 7


class NeedsArguments(Flow[str]):
    def __init__(self, name: str) -> None:
        self.name = name
