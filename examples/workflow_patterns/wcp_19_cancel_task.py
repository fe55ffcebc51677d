"""WCP-19: Cancel Task.

One activity is withdrawn before it begins, or while it runs: it doesn't complete, and nothing follows from it. The
rest of the Flow goes on.

Criterion: a waiting and a running activity can both be cancelled, and it isn't marked as completed.
Here: another Step returns its decision `.with_canceling_steps(Assess)`. A Step that waits is gone at once. The
handler of one that runs is told, and whatever it still returns is refused; `StepOptions(kill_after=…)` ends a deaf
one.

Verdict: + `with_canceling_steps` is the construct; a handler at work is asked to stop, and its result refused.
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

QUEUE_SECONDS, ASSESS_SECONDS = 2, 3.0

withdrawn = Channel("withdrawn", str)


class Claim(Step[None]):
    def execute(self, context: Context, input: None) -> StepDecision:
        return go_to_many(StepMovement.of(Assess, None), StepMovement.of(Withdraw, None))


class Assess(Step[None]):
    """The activity. First it stands in a queue, then it is at work."""

    def wait_for(self, context: Context, input: None) -> Wait:
        return Wait.until(Timer.by_duration(timedelta(seconds=QUEUE_SECONDS)))

    async def execute(self, context: AsyncContext, input: None) -> StepDecision:
        await asyncio.sleep(ASSESS_SECONDS)
        return go_to(Pay, None)


class Withdraw(Step[None]):
    def wait_for(self, context: Context, input: None) -> Wait:
        return Wait.until(withdrawn.for_one())

    def execute(self, context: Context, input: None) -> StepDecision:
        return go_to(CloseClaim, f"withdrawn: {withdrawn.results(context)[0]}").with_canceling_steps(Assess)


class Pay(Step[None]):
    def execute(self, context: Context, input: None) -> StepDecision:
        return go_to(CloseClaim, "paid").with_canceling_steps(Withdraw)


class CloseClaim(Step[str]):
    def execute(self, context: Context, input: str) -> StepDecision:
        return graceful_complete(input)


class CancelTaskFlow(Flow[None]):
    def get_steps(self) -> StepList[None]:
        return StepList.start_step(Claim()).other_steps(Assess(), Withdraw(), Pay(), CloseClaim())

    def get_persistence_schema(self) -> PersistenceSchema:
        return PersistenceSchema.of(withdrawn)


async def withdraw(client: AsyncClient, flow_id: str) -> None:
    await client.publish(flow_id, withdrawn, "found it again")


example = Example(CancelTaskFlow(), drive=withdraw)

if __name__ == "__main__":
    show()
