"""Step execution local: what `wait_for` found out is kept for `execute` of the same Step execution.

The two methods of a Step may run in different processes, days apart. A local carries what belongs to this execution
only, such as an offer's number; an Attribute would be shared. Nobody else sees it, and it ends with the execution.

If a process dies in the middle: the local was committed together with the wait.

Run it with `python -m examples.primitives.step_execution_local`.
"""

from __future__ import annotations

from uuid import uuid4

from dex import (
    ChannelMap,
    Context,
    Flow,
    PersistenceSchema,
    Registry,
    Step,
    StepDecision,
    StepList,
    StepMovement,
    Wait,
    go_to_many,
    graceful_complete,
)

answers = ChannelMap("answers", str)


class AskAll(Step[list[str]]):
    def execute(self, context: Context, input: list[str]) -> StepDecision:
        return go_to_many(*(StepMovement.of(Offer, guest) for guest in input))


class Offer(Step[str]):
    def wait_for(self, context: Context, input: str) -> Wait:
        number = f"offer {context.step_execution_id.rpartition('-')[2]} to {input}"
        context.set_step_execution_local("number", number)
        return Wait.until(answers.for_one(input))

    def execute(self, context: Context, input: str) -> StepDecision:
        number = context.get_step_execution_local("number", str)
        return graceful_complete(f"{number}: {answers.results(context, input)[0]}")


class StepExecutionLocalFlow(Flow[list[str]]):
    def get_steps(self) -> StepList[list[str]]:
        return StepList.start_step(AskAll).other_steps(Offer)

    def get_persistence_schema(self) -> PersistenceSchema:
        return PersistenceSchema.of(answers)


flow = StepExecutionLocalFlow()
registry = Registry([flow])


def main() -> None:
    import dexray

    with dexray.connect(registry) as client:
        flow_id = f"offers-{uuid4()}"
        client.start_flow(flow, flow_id, ["Ada", "Ben"])
        client.publish(flow_id, answers, "Ben", "no, thank you")
        client.publish(flow_id, answers, "Ada", "gladly")
        for completion in client.wait_for_flow(flow_id).completions:
            print(completion.decode(str))


if __name__ == "__main__":
    main()
