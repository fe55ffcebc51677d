"""WCP-1: Sequence.

An activity begins once the one before it in the same Flow has completed.

Criterion: a construct that says "after this one, that one", without a condition on it.
Here: a Step returns `go_to(next)`. Its completion and the beginning of the next are one commit, so there is no
moment at which the Flow stands between two Steps and could forget the second.

Verdict: + `go_to` is the construct.
"""

from __future__ import annotations

import asyncio

from dex import AsyncContext, Flow, Step, StepDecision, StepList, go_to, graceful_complete
from examples.workflow_patterns.common import Example, show


class Pick(Step[str]):
    async def execute(self, context: AsyncContext, input: str) -> StepDecision:
        await asyncio.sleep(0.2)
        return go_to(Pack, f"{input}, picked")


class Pack(Step[str]):
    async def execute(self, context: AsyncContext, input: str) -> StepDecision:
        await asyncio.sleep(0.1)
        return go_to(Ship, f"{input}, packed")


class Ship(Step[str]):
    async def execute(self, context: AsyncContext, input: str) -> StepDecision:
        await asyncio.sleep(0.05)
        return graceful_complete(f"{input}, shipped")


class SequenceFlow(Flow[str]):
    def get_steps(self) -> StepList[str]:
        return StepList.start_step(Pick()).other_steps(Pack(), Ship())


example = Example(SequenceFlow(), "a lamp")

if __name__ == "__main__":
    show()
