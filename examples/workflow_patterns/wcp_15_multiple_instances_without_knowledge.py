"""WCP-15: Multiple Instances without a priori Run-Time Knowledge.

Instances can be added while others run; nobody knows how many there will be. What follows begins when all that were
started have completed.

Criterion: instances may be added until the last has completed, and all are synchronized, the added ones too.
Here: the instances are the Steps of a SubFlow, which completes when none is left (`graceful_complete`). An instance
adds more with its decision, and the outside world by an RPC. An addition that comes too late finds the SubFlow
closed, and is told so: it never slips between the last completion and what follows.

Verdict: + the end of a SubFlow is the join of whatever was started in it.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass, field

from dex import (
    AsyncClient,
    AsyncContext,
    Context,
    Flow,
    FlowNotActiveOrNotFoundError,
    RPCResult,
    Step,
    StepDecision,
    StepList,
    StepMovement,
    SubFlow,
    Wait,
    go_to,
    go_to_many,
    graceful_complete,
    rpc,
)
from examples.workflow_patterns.common import Example, appear, show


@dataclass(frozen=True)
class Witness:
    """Who is heard, for how long, and which other witnesses that brings up."""

    name: str
    seconds: float
    names: list[Witness] = field(default_factory=list)


class Hear(Step[Witness]):
    """An instance."""

    async def execute(self, context: AsyncContext, input: Witness) -> StepDecision:
        await asyncio.sleep(input.seconds)
        context.record_event("heard", input.name)
        others = [StepMovement.of(Hear, witness) for witness in input.names]
        return go_to_many(*others, StepMovement.of(Note, input.name)) if others else go_to(Note, input.name)


class Note(Step[str]):
    def execute(self, context: Context, input: str) -> StepDecision:
        return graceful_complete(input)


class HearingFlow(Flow[Witness]):
    def get_steps(self) -> StepList[Witness]:
        return StepList.start_step(Hear()).other_steps(Note())

    @rpc
    def add(self, context: Context, input: Witness) -> RPCResult[bool]:
        return RPCResult(True, (StepMovement.of(Hear, input),))


class HearAll(Step[Witness]):
    def wait_for(self, context: Context, input: Witness) -> Wait:
        return Wait.until(SubFlow.run(hearing_flow, input))

    def execute(self, context: Context, input: Witness) -> StepDecision:
        notes = SubFlow.get_condition_results(context).completions
        return go_to(Judge, [note.decode(str) for note in notes])


class Judge(Step[list[str]]):
    def execute(self, context: Context, input: list[str]) -> StepDecision:
        return graceful_complete(input)


class InstancesWithoutKnowledgeFlow(Flow[Witness]):
    def get_steps(self) -> StepList[Witness]:
        return StepList.start_step(HearAll()).other_steps(Judge())


hearing_flow = HearingFlow()


def hearing_of(flow_id: str) -> str:
    """The Flow ID of the SubFlow in which the witnesses are heard."""
    return f"SubFlow:{flow_id}-HearAll-1-0"


async def one_more(client: AsyncClient, flow_id: str) -> None:
    await appear(client, hearing_of(flow_id))
    with suppress(FlowNotActiveOrNotFoundError):  # too late, and refused
        await client.invoke_rpc(hearing_flow.add, hearing_of(flow_id), Witness("Eve", 0.1))


FIRST = Witness("Ada", 3.0, [Witness("Ben", 0.1), Witness("Cleo", 0.2, [Witness("Dan", 0.1)])])
example = Example(InstancesWithoutKnowledgeFlow(), FIRST, children=(hearing_flow,), drive=one_more)

if __name__ == "__main__":
    show()
