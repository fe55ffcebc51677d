"""WCP-36: Dynamic Partial Join for Multiple Instances.

Instances can be added while others run. Each completion is judged by a condition; when it holds, what follows
begins, once. Later completions have no effect, and no more instances can be added.

Criterion: a completion condition on data, evaluated at each completion, and additions that are possible until then.
Here: Judge takes one result at a time, and goes back to waiting or on. `funded` says that it has gone on; the RPC
that adds an instance looks at it. Both lock it, so an addition is either before the decision, or refused.

Verdict: +/- the loop, the flag and its lock are the author's work.
"""

from __future__ import annotations

import asyncio

from dex import (
    AsyncClient,
    AsyncContext,
    Attribute,
    Channel,
    Context,
    Flow,
    PersistenceSchema,
    RpcLockConflictError,
    RPCResult,
    Step,
    StepDecision,
    StepList,
    StepMovement,
    StepOptions,
    Wait,
    dead_end,
    go_to,
    go_to_many,
    graceful_complete,
    rpc,
)
from examples.workflow_patterns.common import Example, Task, show

GOAL, JUDGE_SECONDS = 100, 0.1
funded = Attribute("funded", bool)
pledges = Channel("pledges", int)


class Begin(Step[list[Task]]):
    def execute(self, context: Context, input: list[Task]) -> StepDecision:
        return go_to_many(*(StepMovement.of(AskDonor, task) for task in input), StepMovement.of(Judge, 0))


class AskDonor(Step[Task]):
    """An instance. The task's name is what the donor will give."""

    async def execute(self, context: AsyncContext, input: Task) -> StepDecision:
        await asyncio.sleep(input.seconds)
        pledges.publish(context, int(input.name))
        return dead_end()


class Judge(Step[int]):
    """The input: the sum so far."""

    def get_step_options(self) -> StepOptions:
        return StepOptions(execute_lock_attributes=(funded.lock(),))

    def wait_for(self, context: Context, input: int) -> Wait:
        return Wait.until(pledges.for_one())

    async def execute(self, context: AsyncContext, input: int) -> StepDecision:
        await asyncio.sleep(JUDGE_SECONDS)
        total = input + pledges.results(context)[0]
        if total < GOAL:
            return go_to(Judge, total)
        funded.set(context, True)
        return go_to(Build, total)


class Build(Step[int]):
    def execute(self, context: Context, input: int) -> StepDecision:
        return graceful_complete(input)


class DynamicPartialJoinFlow(Flow[list[Task]]):
    def get_steps(self) -> StepList[list[Task]]:
        return StepList.start_step(Begin()).other_steps(AskDonor(), Judge(), Build())

    def get_persistence_schema(self) -> PersistenceSchema:
        return PersistenceSchema.of(funded, pledges)

    @rpc(lock_attributes=(funded.lock(),))
    def add(self, context: Context, input: Task) -> RPCResult[bool]:
        if funded.get(context):
            return RPCResult(False)
        return RPCResult(True, (StepMovement.of(AskDonor, input),))


flow = DynamicPartialJoinFlow()


async def one_more(client: AsyncClient, flow_id: str) -> None:
    while True:
        try:
            await client.invoke_rpc(flow.add, flow_id, Task("60", 0.1))
        except RpcLockConflictError:
            await asyncio.sleep(0.05)  # it is being decided
        else:
            return


example = Example(flow, [Task("50", 0.2), Task("30", 3.0)], drive=one_more)

if __name__ == "__main__":
    show()
