"""WCP-20: Cancel Case.

A whole Flow is withdrawn: what runs, what waits, what would have come, and its sub-processes with it. It is on
record as not having completed.

Criterion: one operation ends a running case with all that belongs to it, and the record tells it from a completion.
Here: `client.stop_flow` ends all Steps of a Flow, which is CANCELED from then on. SubFlows go on: they are stopped
one by one, after the parent, so that it doesn't act on their end. Their Flow IDs follow from the parent's.

Verdict: +/- a Flow is cancelled by one call, its SubFlows are not: who stops the case must stop each of them.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress

from dex import (
    AsyncClient,
    AsyncContext,
    Context,
    Flow,
    FlowNotActiveOrNotFoundError,
    Step,
    StepDecision,
    StepList,
    StepMovement,
    SubFlow,
    Wait,
    go_to,
    go_to_many,
    graceful_complete,
)
from examples.workflow_patterns.common import Example, appear, show

SECONDS = 30.0


class Open(Step[None]):
    def execute(self, context: Context, input: None) -> StepDecision:
        return go_to_many(StepMovement.of(Search, None), StepMovement.of(Inspect, None))


class Search(Step[None]):
    async def execute(self, context: AsyncContext, input: None) -> StepDecision:
        await asyncio.sleep(SECONDS)
        return go_to(Report, None)


class Report(Step[None]):
    def execute(self, context: Context, input: None) -> StepDecision:
        return graceful_complete("reported")


class Inspect(Step[None]):
    def wait_for(self, context: Context, input: None) -> Wait:
        return Wait.until(SubFlow.run(inspection_flow, None))

    def execute(self, context: Context, input: None) -> StepDecision:
        return go_to(Report, None)


class CancelCaseFlow(Flow[None]):
    def get_steps(self) -> StepList[None]:
        return StepList.start_step(Open()).other_steps(Search(), Report(), Inspect())


class InspectionFlow(Flow[None]):
    """The sub-process."""

    def get_steps(self) -> StepList[None]:
        return StepList.start_step(Search()).other_steps(Report())


inspection_flow = InspectionFlow()


def inspection_of(flow_id: str) -> str:
    return f"SubFlow:{flow_id}-Inspect-1-0"


async def cancel_case(client: AsyncClient, flow_id: str) -> None:
    """Cancels the Flow, and its SubFlow unless that has ended by itself."""
    await appear(client, inspection_of(flow_id))
    await client.stop_flow(flow_id)
    with suppress(FlowNotActiveOrNotFoundError):
        await client.stop_flow(inspection_of(flow_id))


example = Example(CancelCaseFlow(), children=(inspection_flow,), drive=cancel_case)

if __name__ == "__main__":
    show()
