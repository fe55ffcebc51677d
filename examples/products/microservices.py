"""Orchestration of microservices: one call, then two side by side, of which one waits for somebody to be ready.

    CallAPI1 ─┬─> CallAPI2
              └─> CallAPI3     waits for `ready`, or for a day
                     └─> CallAPI4     when nobody was ready in a day

Each call is a Step with retries of its own, so a service that is down for an hour delays its own branch only. The data
that the calls use can be looked at and swapped by an RPC while they run.

If a process dies in the middle: calls that had returned are not made again; one under way is, so services should know
a repeat by the key that they are given.

Run it with `python -m examples.products.microservices`.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Protocol
from uuid import uuid4

from dex import (
    Attribute,
    Channel,
    Context,
    Flow,
    PersistenceSchema,
    Registry,
    RPCResult,
    Step,
    StepDecision,
    StepExecutionId,
    StepList,
    StepMovement,
    Timer,
    Wait,
    go_to,
    go_to_many,
    graceful_complete,
    rpc,
)


class Services(Protocol):
    def call(self, number: int, data: str, key: str) -> str: ...


class DemoServices:
    def call(self, number: int, data: str, key: str) -> str:
        return f"API {number} got {data!r}"


data = Attribute("data", str)
ready = Channel("ready", None)


class CallAPI(Step[None]):
    number: int

    def __init__(self, services: Services) -> None:
        self.services = services

    def call(self, context: Context) -> str:
        return self.services.call(
            self.number, data.get(context) or "", f"{context.flow_id}/{context.step_execution_id}"
        )


class CallAPI1(Step[str]):
    def __init__(self, services: Services) -> None:
        self.services = services

    def execute(self, context: Context, input: str) -> StepDecision:
        self.services.call(1, input, f"{context.flow_id}/{context.step_execution_id}")
        data.set(context, input)
        return go_to_many(StepMovement.of(CallAPI2, None), StepMovement.of(CallAPI3, None))


class CallAPI2(CallAPI):
    number = 2

    def execute(self, context: Context, input: None) -> StepDecision:
        return graceful_complete(self.call(context))


class CallAPI3(CallAPI):
    number = 3

    def wait_for(self, context: Context, input: None) -> Wait:
        return Wait.any_of(ready.for_one(), Timer.by_duration(timedelta(hours=24)))

    def execute(self, context: Context, input: None) -> StepDecision:
        if context.has_timer_fired():
            return go_to(CallAPI4, None)
        return graceful_complete(self.call(context))


class CallAPI4(CallAPI):
    number = 4

    def execute(self, context: Context, input: None) -> StepDecision:
        return graceful_complete(self.call(context))


class OrchestrationFlow(Flow[str]):
    def __init__(self, services: Services) -> None:
        self.services = services

    def get_steps(self) -> StepList[str]:
        others = (CallAPI2, CallAPI3, CallAPI4)
        return StepList.start_step(CallAPI1(self.services)).other_steps(*(step(self.services) for step in others))

    def get_persistence_schema(self) -> PersistenceSchema:
        return PersistenceSchema.of(data, ready)

    @rpc(is_transactional=True)
    def swap(self, context: Context, input: str) -> RPCResult[str | None]:
        """Replaces the data, and returns what it was. Of two that swap at once, each gets what the other left."""
        old = data.get(context)
        data.set(context, input)
        return RPCResult(old)


flow = OrchestrationFlow(DemoServices())
registry = Registry([flow])


def main() -> None:
    import dexray

    with dexray.connect(registry) as client:
        flow_id = f"orchestration-{uuid4()}"
        client.start_flow(flow, flow_id, "apples")
        client.wait_for_step_completion(flow_id, StepExecutionId(CallAPI1))
        print("was:", client.invoke_rpc(flow.swap, flow_id, "pears"))
        client.publish(flow_id, ready, None)
        for completion in client.wait_for_flow(flow_id).completions:
            print(completion.decode(str))


if __name__ == "__main__":
    main()
