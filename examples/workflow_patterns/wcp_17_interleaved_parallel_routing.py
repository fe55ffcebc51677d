"""WCP-17: Interleaved Parallel Routing.

A set of activities with a partial order among them: each runs once, the order is kept, and no two run at the same
time. Among those that may run next, any may be first.

Criterion: a partial order can be given, and mutual exclusion holds over the whole set, across its branches.
Here: the order is `go_to` along each branch. Exclusion is a lock of one Attribute, which every Step of the set asks
for: an attempt is not handed out before it has the lock. The lock covers one method, which is what an activity is
here.

Verdict: + a lock of a shared Attribute is the construct; it covers one method, so an activity is one Step.
"""

from __future__ import annotations

import asyncio

from dex import (
    AsyncContext,
    Attribute,
    Context,
    Flow,
    PersistenceSchema,
    Step,
    StepDecision,
    StepList,
    StepMovement,
    StepOptions,
    go_to,
    go_to_many,
    graceful_complete,
)
from examples.workflow_patterns.common import Example, show

patient = Attribute("patient", str)


class Admit(Step[list[float]]):
    """The input: how long each of the four examinations takes."""

    def execute(self, context: Context, input: list[float]) -> StepDecision:
        return go_to_many(StepMovement.of(TakeBlood, input[:2]), StepMovement.of(XRay, input[2:]))


class Examination(Step[list[float]]):
    """Needs the patient, who can't be in two places."""

    follows: type[Step[list[float]]] | None = None

    def get_step_options(self) -> StepOptions:
        return StepOptions(execute_lock_attributes=(patient.lock(),))

    async def execute(self, context: AsyncContext, input: list[float]) -> StepDecision:
        await asyncio.sleep(input[0])
        return graceful_complete() if self.follows is None else go_to(self.follows, input[1:])


class Transfuse(Examination): ...


class TakeBlood(Examination):
    follows = Transfuse


class SetBone(Examination): ...


class XRay(Examination):
    follows = SetBone


class InterleavedParallelRoutingFlow(Flow[list[float]]):
    def get_steps(self) -> StepList[list[float]]:
        return StepList.start_step(Admit()).other_steps(TakeBlood(), Transfuse(), XRay(), SetBone())

    def get_persistence_schema(self) -> PersistenceSchema:
        return PersistenceSchema.of(patient)


example = Example(InterleavedParallelRoutingFlow(), [0.2, 0.1, 0.1, 0.2])

if __name__ == "__main__":
    show()
