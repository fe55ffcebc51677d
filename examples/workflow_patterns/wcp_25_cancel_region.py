"""WCP-25: Cancel Region.

A set of activities, anywhere in the Flow, is withdrawn together; activities outside of it are not touched.

Criterion: any set can be named, connected or not, and whatever of it is waiting or running is cancelled at once.
Here: `.with_canceling_steps(*REGION)` names Step types; all their executions are cancelled in one commit. Messages
that the region left in Channels stay, as any published message does.

Verdict: + `with_canceling_steps` takes any set of Steps.
"""

from __future__ import annotations

import asyncio

from dex import (
    AsyncClient,
    AsyncContext,
    Channel,
    Context,
    Flow,
    PersistenceSchema,
    Step,
    StepDecision,
    StepList,
    StepMovement,
    Wait,
    go_to,
    go_to_many,
    graceful_complete,
)
from examples.workflow_patterns.common import Example, show

SECONDS = 1.0

called_off = Channel("called off", str)


class PlanTrip(Step[None]):
    def execute(self, context: Context, input: None) -> StepDecision:
        branches = (SearchFlight, SearchHotel, ApplyForVisa, CallOff)
        return go_to_many(*(StepMovement.of(step, None) for step in branches))


class Work(Step[None]):
    follows: type[Step[None]] | None = None

    async def execute(self, context: AsyncContext, input: None) -> StepDecision:
        await asyncio.sleep(SECONDS)
        return graceful_complete(self.get_step_type()) if self.follows is None else go_to(self.follows, None)


class BookFlight(Work): ...


class SearchFlight(Work):
    follows = BookFlight


class BookHotel(Work): ...


class SearchHotel(Work):
    follows = BookHotel


class ReceiveVisa(Work):
    """Outside of the region, as ApplyForVisa is."""


class ApplyForVisa(Work):
    follows = ReceiveVisa


REGION = (SearchFlight, BookFlight, SearchHotel, BookHotel)


class CallOff(Step[None]):
    def wait_for(self, context: Context, input: None) -> Wait:
        return Wait.until(called_off.for_one())

    def execute(self, context: Context, input: None) -> StepDecision:
        return graceful_complete("called off").with_canceling_steps(*REGION)


class CancelRegionFlow(Flow[None]):
    def get_steps(self) -> StepList[None]:
        visa = (ApplyForVisa(), ReceiveVisa())
        return StepList.start_step(PlanTrip()).other_steps(*(step() for step in REGION), *visa, CallOff())

    def get_persistence_schema(self) -> PersistenceSchema:
        return PersistenceSchema.of(called_off)


async def call_off(client: AsyncClient, flow_id: str) -> None:
    await client.publish(flow_id, called_off, "no holidays")


example = Example(CancelRegionFlow(), drive=call_off)

if __name__ == "__main__":
    show()
