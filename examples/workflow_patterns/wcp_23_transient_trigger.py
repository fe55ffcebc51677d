"""WCP-23: Transient Trigger.

A signal from outside starts an activity, if the Flow is waiting for it at that moment. Otherwise it is lost.

Criterion: a signal that nobody waits for is not kept.
Here: a Channel keeps its messages, so the Step that begins to wait first throws away what is there: `wait_for` loads
the pending messages and deletes them, in the commit that begins the wait. Only a later one lets it go on.

Verdict: +/- messages are persistent; the waiting Step makes them transient by hand.
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
    StepOptions,
    Timer,
    Wait,
    go_to,
    graceful_complete,
)
from examples.workflow_patterns.common import Example, show

OPEN_DOOR_SECONDS, PATIENCE = 2.0, timedelta(seconds=5)

bell = Channel("bell", str)


class Listen(Step[int]):
    """The input: how often the door was opened so far."""

    def get_step_options(self) -> StepOptions:
        return StepOptions(wait_for_load_channels=(bell,))

    def wait_for(self, context: Context, input: int) -> Wait:
        for missed in bell.pending_messages(context):
            bell.delete(context, missed.message_id)
        return Wait.any_of(bell.for_one(), Timer.by_duration(PATIENCE))

    def execute(self, context: Context, input: int) -> StepDecision:
        return graceful_complete(input) if context.has_timer_fired() else go_to(OpenDoor, input)


class OpenDoor(Step[int]):
    """The activity; nobody hears the bell meanwhile."""

    async def execute(self, context: AsyncContext, input: int) -> StepDecision:
        await asyncio.sleep(OPEN_DOOR_SECONDS)
        return go_to(Listen, input + 1)


class TransientTriggerFlow(Flow[int]):
    def get_steps(self) -> StepList[int]:
        return StepList.start_step(OpenDoor()).other_steps(Listen())

    def get_persistence_schema(self) -> PersistenceSchema:
        return PersistenceSchema.of(bell)


async def ring_too_early(client: AsyncClient, flow_id: str) -> None:
    await client.publish(flow_id, bell, "nobody hears it")


example = Example(TransientTriggerFlow(), -1, drive=ring_too_early)

if __name__ == "__main__":
    show()
