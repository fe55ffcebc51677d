"""WCP-40: Interleaved Routing.

Each activity of a set is done once, in any order, but no two at the same time. What follows begins when all are
done.

Criterion: mutual exclusion over the set, without an order being laid down.
Here: one `go_to_many` starts them all, and each asks for the lock of the same Attribute: they take turns as they get
it.

Verdict: + a lock of a shared Attribute is the construct; it covers one method, so an activity is one Step.
"""

from __future__ import annotations

import asyncio

from dex import (
    AsyncContext,
    Attribute,
    Channel,
    Context,
    Flow,
    PersistenceSchema,
    Step,
    StepDecision,
    StepList,
    StepMovement,
    StepOptions,
    Wait,
    dead_end,
    go_to_many,
    graceful_complete,
)
from examples.workflow_patterns.common import Example, show

machine = Attribute("machine", str)
checked = Channel("checked", str)


class Begin(Step[list[float]]):
    """The input: how long each of the three checks takes."""

    def execute(self, context: Context, input: list[float]) -> StepDecision:
        checks = zip((CheckOil, CheckBelt, CheckFilter), input, strict=True)
        return go_to_many(*(StepMovement.of(step, seconds) for step, seconds in checks), StepMovement.of(Start, None))


class Check(Step[float]):
    def get_step_options(self) -> StepOptions:
        return StepOptions(execute_lock_attributes=(machine.lock(),))

    async def execute(self, context: AsyncContext, input: float) -> StepDecision:
        await asyncio.sleep(input)
        checked.publish(context, self.get_step_type())
        return dead_end()


class CheckOil(Check): ...


class CheckBelt(Check): ...


class CheckFilter(Check): ...


class Start(Step[None]):
    def wait_for(self, context: Context, input: None) -> Wait:
        return Wait.until(checked.for_n(3))

    def execute(self, context: Context, input: None) -> StepDecision:
        return graceful_complete(list(checked.results(context)))


class InterleavedRoutingFlow(Flow[list[float]]):
    def get_steps(self) -> StepList[list[float]]:
        return StepList.start_step(Begin()).other_steps(CheckOil(), CheckBelt(), CheckFilter(), Start())

    def get_persistence_schema(self) -> PersistenceSchema:
        return PersistenceSchema.of(machine, checked)


example = Example(InterleavedRoutingFlow(), [0.2, 0.1, 0.1])

if __name__ == "__main__":
    show()
