"""Resource control: a Flow that hands out a few slots (GPUs, licences) to many, and keeps the others waiting in line.

A job asks the controller for a slot, and waits for the grant as a message. The controller grants while it has slots,
then waits for one to come back. A job gives its slot back when its work has ended, well or badly, and a job that was
stopped while it stood in line is passed over. (One that holds a slot must not be stopped from outside: send it a
message, as in `interruptible.py`, so that it gives the slot back.) Ray's own resources bound what one cluster runs at a
time; a controller bounds what the outside world can bear.

If a process dies in the middle: what was asked, granted and given back are messages with request ids of their own, so a
repeat counts once. A job keeps its slot while its worker is replaced.

Run it with `python -m examples.patterns.resource_control`.
"""

from __future__ import annotations

import asyncio
from datetime import timedelta
from uuid import uuid4

from dex import (
    AsyncClient,
    AsyncContext,
    Attribute,
    Channel,
    Context,
    Flow,
    FlowNotActiveOrNotFoundError,
    PersistenceSchema,
    Registry,
    RetryPolicy,
    RPCResult,
    Step,
    StepDecision,
    StepList,
    StepOptions,
    StopFlowOptions,
    Wait,
    go_to,
    graceful_complete,
    rpc,
)

# The controller -------------------------------------------------------------------------------------------------------

asked = Channel("asked", str)
"""The Flow ID of a job that wants a slot."""
given_back = Channel("given_back", str)
free = Attribute("free", int)


class Open(Step[int]):
    def execute(self, context: Context, input: int) -> StepDecision:
        free.set(context, input)
        return go_to(Grant, None)


class Grant(Step[None]):
    def wait_for(self, context: Context, input: None) -> Wait:
        if free.get(context):
            return Wait.any_of(given_back.for_one(), asked.for_one())
        return Wait.until(given_back.for_one())

    async def execute(self, context: AsyncContext, input: None) -> StepDecision:
        if given_back.results(context):
            free.set(context, free.get(context) + 1)
            return go_to(Grant, None)
        (job,) = asked.results(context)
        try:
            async with AsyncClient(registry) as client:
                await client.publish(job, granted, None, request_id=f"grant by {context.flow_id}")
            free.set(context, free.get(context) - 1)
        except FlowNotActiveOrNotFoundError:
            pass  # it has left the line
        return go_to(Grant, None)


class ControllerFlow(Flow[int]):
    """Started with the number of slots; runs until it is stopped."""

    def get_steps(self) -> StepList[int]:
        return StepList.start_step(Open).other_steps(Grant)

    def get_persistence_schema(self) -> PersistenceSchema:
        return PersistenceSchema.of(asked, given_back, free)

    @rpc
    def line(self, context: Context) -> RPCResult[tuple[int, int]]:
        """How many slots are free, and how many jobs stand in line."""
        return RPCResult((free.get(context), asked.size(context)))


# A job ----------------------------------------------------------------------------------------------------------------

granted = Channel("granted", None)
Job = tuple[str, float]
"""The Flow ID of the controller, and the seconds that the work takes; a negative number breaks."""


class AskForSlot(Step[Job]):
    async def execute(self, context: AsyncContext, input: Job) -> StepDecision:
        async with AsyncClient(registry) as client:
            await client.publish(input[0], asked, context.flow_id, request_id=f"{context.flow_id} asks")
        return go_to(Work, input)


class Work(Step[Job]):
    def get_step_options(self) -> StepOptions:
        retry = RetryPolicy(initial_interval=timedelta(seconds=1), maximum_attempts=2)
        return StepOptions(execute_retry=retry).on_execute_failure_proceed_to(GiveSlotBack)

    def wait_for(self, context: Context, input: Job) -> Wait:
        return Wait.until(granted.for_one())

    async def execute(self, context: AsyncContext, input: Job) -> StepDecision:
        if input[1] < 0:
            raise RuntimeError("the work can't be done")
        await asyncio.sleep(input[1])
        return go_to(GiveSlotBack, input)


class GiveSlotBack(Step[Job]):
    async def execute(self, context: AsyncContext, input: Job) -> StepDecision:
        async with AsyncClient(registry) as client:
            await client.publish(input[0], given_back, context.flow_id, request_id=f"{context.flow_id} is through")
        return graceful_complete("failed" if context.recovery_error else "done")


class JobFlow(Flow[Job]):
    def get_steps(self) -> StepList[Job]:
        return StepList.start_step(AskForSlot).other_steps(Work, GiveSlotBack)

    def get_persistence_schema(self) -> PersistenceSchema:
        return PersistenceSchema.of(granted)


controller_flow, job_flow = ControllerFlow(), JobFlow()
registry = Registry([controller_flow, job_flow], allow_async_handlers=True)


def main() -> None:
    import dexray

    with dexray.connect(registry) as client:
        controller = f"gpus-{uuid4()}"
        client.start_flow(controller_flow, controller, 2)
        jobs = [f"{controller}.job-{number}" for number in range(6)]
        for job in jobs:
            client.start_flow(job_flow, job, (controller, 1.0))
        print("(free, in line):", client.invoke_rpc(controller_flow.line, controller))
        for job in jobs:
            print(job[-5:], client.wait_for_flow(job).single_output(str))
        client.stop_flow(controller, StopFlowOptions(reason="closing time"))


if __name__ == "__main__":
    main()
