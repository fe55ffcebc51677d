"""WCP-38: General Synchronizing Merge.

Branches come together into one, which goes on when all active ones have arrived, or when those still active can't
arrive any more. The branches may come from anywhere, and run in cycles.

Criterion: the merge judges by the state of the whole case whether another arrival is possible, without deadlock.
Here: all that can lead to the merge is put into a SubFlow, which completes when nothing in it is active: its end is
the merge. Cycles, late splits and branches that die on the way need no bookkeeping.

Verdict: +/- exact for a region of its own; a branch that can't reach the merge any more holds it up while it is in
there.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from dex import (
    AsyncContext,
    Context,
    Flow,
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
from examples.workflow_patterns.common import Example, show


@dataclass(frozen=True)
class Turn:
    """One visit of a Step: "write" or "test", for some seconds, and the visits to which it leads, all at once."""

    step: str
    seconds: float
    then: list[Turn] = field(default_factory=list)


class Visit(Step[Turn]):
    async def execute(self, context: AsyncContext, input: Turn) -> StepDecision:
        await asyncio.sleep(input.seconds)
        if not input.then:
            return graceful_complete()
        return go_to_many(*(StepMovement.of(Write if turn.step == "write" else Test, turn) for turn in input.then))


class Write(Visit): ...


class Test(Visit): ...


class RegionFlow(Flow[Turn]):
    """The region: Write leads to Test, and Test back to Write, as often as it takes, in several branches."""

    def get_steps(self) -> StepList[Turn]:
        return StepList.start_step(Write()).other_steps(Test())


class Develop(Step[Turn]):
    """The merge."""

    def wait_for(self, context: Context, input: Turn) -> Wait:
        return Wait.until(SubFlow.run(region_flow, input))

    def execute(self, context: Context, input: Turn) -> StepDecision:
        return go_to(Release, None)


class Release(Step[None]):
    def execute(self, context: Context, input: None) -> StepDecision:
        return graceful_complete("released")


class GeneralSynchronizingMergeFlow(Flow[Turn]):
    def get_steps(self) -> StepList[Turn]:
        return StepList.start_step(Develop()).other_steps(Release())


region_flow = RegionFlow()
example = Example(
    GeneralSynchronizingMergeFlow(),
    Turn("write", 0.1, [Turn("test", 0.1, [Turn("write", 0.2, [Turn("test", 0.1)])]), Turn("test", 0.3)]),
    children=(region_flow,),
)

if __name__ == "__main__":
    show()
