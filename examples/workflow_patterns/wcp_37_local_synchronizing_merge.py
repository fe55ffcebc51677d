"""WCP-37: Local Synchronizing Merge.

Branches of earlier choices come together into one, which goes on when all that are active have arrived. The choices
need not be of one structure, but there is no cycle; what arrives at the merge itself tells it what to wait for.
(Later versions of the catalogue call it Acyclic Synchronizing Merge.)

Criterion: the merge decides by local knowledge, for example because branches not taken announce themselves.
Here: each arc into the merge has a Channel, on which comes True when its branch arrives and False when it was not
taken. Who decides not to take a branch says so on every arc that is thereby dead. The merge waits for `all_of` its
arcs.

    Begin ─┬?─> Survey ──?─> Drill ──(deep)──┐
           │           └──────────(shallow)──┼─> Merge
           └?─> Sample ────────────(sample)──┘

Verdict: +/- the merge is a Wait, but the author must tell it of each path that is dead.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from dex import (
    AsyncContext,
    ChannelMap,
    Context,
    Flow,
    PersistenceSchema,
    Step,
    StepDecision,
    StepList,
    StepMovement,
    Wait,
    dead_end,
    go_to,
    go_to_many,
    graceful_complete,
)
from examples.workflow_patterns.common import Example, show

ARCS = ("deep", "shallow", "sample")
alive = ChannelMap("alive", bool)


@dataclass(frozen=True)
class Plan:
    """Which branches to take, and the seconds of a survey, a drilling and a sample."""

    survey: bool
    drill: bool
    sample: bool
    seconds: tuple[float, float, float] = (0.1, 0.1, 0.1)


class Begin(Step[Plan]):
    def execute(self, context: Context, input: Plan) -> StepDecision:
        if not input.survey:
            alive.publish(context, "deep", False)
            alive.publish(context, "shallow", False)
        if not input.sample:
            alive.publish(context, "sample", False)
        chosen = [Survey] * input.survey + [Sample] * input.sample
        return go_to_many(*(StepMovement.of(step, input) for step in chosen), StepMovement.of(Merge, None))


class Branch(Step[Plan]): ...


class Survey(Branch):
    async def execute(self, context: AsyncContext, input: Plan) -> StepDecision:
        await asyncio.sleep(input.seconds[0])
        alive.publish(context, "shallow", not input.drill)
        if input.drill:
            return go_to(Drill, input)
        alive.publish(context, "deep", False)
        return dead_end()


class Drill(Branch):
    async def execute(self, context: AsyncContext, input: Plan) -> StepDecision:
        await asyncio.sleep(input.seconds[1])
        alive.publish(context, "deep", True)
        return dead_end()


class Sample(Branch):
    async def execute(self, context: AsyncContext, input: Plan) -> StepDecision:
        await asyncio.sleep(input.seconds[2])
        alive.publish(context, "sample", True)
        return dead_end()


class Merge(Step[None]):
    def wait_for(self, context: Context, input: None) -> Wait:
        return Wait.all_of(*(alive.for_one(arc) for arc in ARCS))

    def execute(self, context: Context, input: None) -> StepDecision:
        return graceful_complete([arc for arc in ARCS if alive.results(context, arc)[0]])


class LocalSynchronizingMergeFlow(Flow[Plan]):
    def get_steps(self) -> StepList[Plan]:
        return StepList.start_step(Begin()).other_steps(Survey(), Drill(), Sample(), Merge())

    def get_persistence_schema(self) -> PersistenceSchema:
        return PersistenceSchema.of(alive)


example = Example(LocalSynchronizingMergeFlow(), Plan(survey=True, drill=True, sample=False))

if __name__ == "__main__":
    show()
