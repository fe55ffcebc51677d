"""A Flow that hands a large array on, through synchronous and asynchronous handlers. Its module is a file of the tests,
and so travels with the code."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dex import (
    AsyncContext,
    Attribute,
    Channel,
    Context,
    Flow,
    PersistenceSchema,
    RetryPolicy,
    Step,
    StepDecision,
    StepList,
    StepOptions,
    Wait,
    go_to,
    graceful_complete,
)

Array = NDArray[np.float64]

go = Channel("go", bool)
seen = Attribute("seen", Array)
table = Attribute("table", bytes)


class Make(Step[int]):
    def execute(self, context: Context, input: int) -> StepDecision:
        return go_to(Hold, np.arange(float(input)))


class Hold(Step[Array]):
    """Waits with the array at hand."""

    def get_step_options(self) -> StepOptions:
        return StepOptions(execute_retry=RetryPolicy(maximum_attempts=1))

    def wait_for(self, context: Context, input: Array) -> Wait:
        return Wait.until(go.for_one())

    def execute(self, context: Context, input: Array) -> StepDecision:
        seen.set(context, input)
        table.set(context, input.tobytes())
        return go_to(Add, input + 1)


class Add(Step[Array]):
    async def execute(self, context: AsyncContext, input: Array) -> StepDecision:
        before = seen.get(context)
        assert before is not None
        return go_to(Sum, input + before)


class Sum(Step[Array]):
    def execute(self, context: Context, input: Array) -> StepDecision:
        raw = table.get(context)
        assert raw is not None
        return graceful_complete(float(input.sum()) + len(raw))


class Freight(Flow[int]):
    def get_steps(self) -> StepList[int]:
        return StepList.start_step(Make()).other_steps(Hold(), Add(), Sum())

    def get_persistence_schema(self) -> PersistenceSchema:
        return PersistenceSchema.of(go, seen, table)


FREIGHT = Freight()


def expected(count: int) -> float:
    """The result for an array of so many items."""
    return float((2 * np.arange(float(count)) + 1).sum()) + 8 * count
