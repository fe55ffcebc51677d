"""WCP-11: Implicit Termination.

A Flow ends when nothing is left to do, now or later, and nothing is stuck; no Step is marked as the last one.

Criterion: a case completes successfully by itself when no work remains, without a designated final node.
Here: every branch ends with `graceful_complete`, and the Flow completes when the last of them has ended, whichever
that is. A Step that waits counts as work to come. (Branches that all end with `dead_end` leave the Flow open, for
RPCs: that is another wish.)

Verdict: + `graceful_complete` ends a branch, and the Flow when no other is left.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from dex import AsyncContext, Flow, Step, StepDecision, StepList, StepMovement, go_to_many, graceful_complete
from examples.workflow_patterns.common import Example, show


@dataclass(frozen=True)
class Job:
    """Work that takes some seconds and leads to further jobs, all at once."""

    seconds: float
    then: list[Job] = field(default_factory=list)


class Do(Step[Job]):
    async def execute(self, context: AsyncContext, input: Job) -> StepDecision:
        await asyncio.sleep(input.seconds)
        if input.then:
            return go_to_many(*(StepMovement.of(Do, job) for job in input.then))
        return graceful_complete()


class ImplicitTerminationFlow(Flow[Job]):
    def get_steps(self) -> StepList[Job]:
        return StepList.start_step(Do())


example = Example(ImplicitTerminationFlow(), Job(0.1, [Job(0.1), Job(0.2, [Job(0.1), Job(0.3)])]))

if __name__ == "__main__":
    show()
