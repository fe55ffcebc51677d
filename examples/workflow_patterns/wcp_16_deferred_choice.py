"""WCP-16: Deferred Choice.

One of several branches is taken, and it is the environment that chooses: all are on offer until the first of their
events comes. Then the others are withdrawn.

Criterion: the choice is made by interaction at the latest possible moment, atomically, and the alternatives are
gone.
Here: `any_of` over two Channels and a Timer. One commit takes one message and decides; a message for an alternative
that comes after is not taken by anybody.

Verdict: + `Wait.any_of` is the construct.
"""

from __future__ import annotations

from datetime import timedelta

from dex import (
    AsyncClient,
    Channel,
    Context,
    Flow,
    PersistenceSchema,
    Step,
    StepDecision,
    StepList,
    Timer,
    Wait,
    go_to,
    graceful_complete,
)
from examples.workflow_patterns.common import Example, show

accepted = Channel("accepted", str)
declined = Channel("declined", str)


class Offer(Step[int]):
    """Offers a job, for some days."""

    def wait_for(self, context: Context, input: int) -> Wait:
        return Wait.any_of(accepted.for_one(), declined.for_one(), Timer.by_duration(timedelta(days=input)))

    def execute(self, context: Context, input: int) -> StepDecision:
        if context.has_timer_fired():
            return go_to(OfferToNext, "nobody answered")
        for who in accepted.results(context):
            return go_to(Hire, who)
        return go_to(OfferToNext, f"{declined.results(context)[0]} declined")


class Hire(Step[str]):
    def execute(self, context: Context, input: str) -> StepDecision:
        return graceful_complete(f"{input} is hired")


class OfferToNext(Step[str]):
    def execute(self, context: Context, input: str) -> StepDecision:
        return graceful_complete(input)


class DeferredChoiceFlow(Flow[int]):
    def get_steps(self) -> StepList[int]:
        return StepList.start_step(Offer()).other_steps(Hire(), OfferToNext())

    def get_persistence_schema(self) -> PersistenceSchema:
        return PersistenceSchema.of(accepted, declined)


async def accept(client: AsyncClient, flow_id: str) -> None:
    await client.publish(flow_id, accepted, "Ada")


example = Example(DeferredChoiceFlow(), 2, drive=accept)

if __name__ == "__main__":
    show()
