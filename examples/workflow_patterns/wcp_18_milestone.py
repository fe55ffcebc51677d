"""WCP-18: Milestone.

An activity is possible only while the Flow is in a certain state: after one thing has happened, and before another.

Criterion: enabling is bound to the state of another branch, and ends with that state, without a race.
Here: the state is a message in a Channel. An order may be changed between Place and Ship: Change waits for a wish
and for the state; Ship waits for the state and takes it away for good, cancelling Change. As Change takes the
message too, and puts it back with its result, the state can't end in the middle of a change.

Verdict: +/- a Wait can't look at a state without taking it: who is let in must put the message back.
"""

from __future__ import annotations

import asyncio
from datetime import timedelta

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
    Timer,
    Wait,
    go_to,
    go_to_many,
    graceful_complete,
)
from examples.workflow_patterns.common import Example, show

PLACE_SECONDS, CHANGE_SECONDS, SHIP_AFTER = 2.0, 1.5, timedelta(seconds=4)

changeable = Channel("changeable", None)
wish = Channel("wish", str)


class Begin(Step[None]):
    def execute(self, context: Context, input: None) -> StepDecision:
        return go_to_many(StepMovement.of(Place, None), StepMovement.of(Change, None))


class Place(Step[None]):
    async def execute(self, context: AsyncContext, input: None) -> StepDecision:
        await asyncio.sleep(PLACE_SECONDS)
        changeable.publish(context, None)
        return go_to(Ship, None)


class Change(Step[None]):
    """The activity that the milestone is for."""

    def wait_for(self, context: Context, input: None) -> Wait:
        return Wait.all_of(wish.for_one(), changeable.for_one())

    async def execute(self, context: AsyncContext, input: None) -> StepDecision:
        await asyncio.sleep(CHANGE_SECONDS)
        changeable.publish(context, None)
        return go_to(Change, None)


class Ship(Step[None]):
    def wait_for(self, context: Context, input: None) -> Wait:
        return Wait.all_of(Timer.by_duration(SHIP_AFTER), changeable.for_one())

    def execute(self, context: Context, input: None) -> StepDecision:
        return graceful_complete("shipped").with_canceling_steps(Change)


class MilestoneFlow(Flow[None]):
    def get_steps(self) -> StepList[None]:
        return StepList.start_step(Begin()).other_steps(Place(), Change(), Ship())

    def get_persistence_schema(self) -> PersistenceSchema:
        return PersistenceSchema.of(changeable, wish)


async def two_wishes(client: AsyncClient, flow_id: str) -> None:
    await client.publish(flow_id, wish, "a red one", "with a bow")


example = Example(MilestoneFlow(), drive=two_wishes)

if __name__ == "__main__":
    show()
