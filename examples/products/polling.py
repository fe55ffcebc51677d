"""Three tasks, of which two report and one has to be asked: a house is handed over when all three are done.

The painter and the plumber send a message when they are through. The office tells nothing by itself, so a branch asks
it now and then, and when it says yes, publishes what the others publish. The Step that waits for all three does not
know the difference.

If a process dies in the middle: reports wait in their Channels. The next question is asked when there is a process
again, and no answer of before is needed.

Run it with `python -m examples.products.polling`.
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
    Step,
    StepDecision,
    StepList,
    StepMovement,
    Timer,
    Wait,
    dead_end,
    go_to,
    go_to_many,
    graceful_complete,
)


class Office(Protocol):
    def has_approved(self, house: str, question: int) -> bool:
        """question: how many times it was asked, this one included."""
        ...


class SlowOffice:
    def has_approved(self, house: str, question: int) -> bool:
        return question >= 3


painted = Channel("painted", str)
plumbed = Channel("plumbed", str)
approved = Channel("approved", None)
asked = Attribute("asked", int)


class Initialize(Step[str]):
    def execute(self, context: Context, input: str) -> StepDecision:
        return go_to_many(StepMovement.of(Poll, input), StepMovement.of(WaitForTasks, input))


class Poll(Step[str]):
    def __init__(self, office: Office, pause: timedelta) -> None:
        self.office, self.pause = office, pause

    def wait_for(self, context: Context, input: str) -> Wait:
        return Wait.until(Timer.by_duration(self.pause))

    def execute(self, context: Context, input: str) -> StepDecision:
        question = asked.get(context) + 1
        asked.set(context, question)
        if not self.office.has_approved(input, question):
            return go_to(Poll, input)
        approved.publish(context, None)
        return dead_end()


class WaitForTasks(Step[str]):
    def wait_for(self, context: Context, input: str) -> Wait:
        return Wait.all_of(painted.for_one(), plumbed.for_one(), approved.for_one())

    def execute(self, context: Context, input: str) -> StepDecision:
        painter, plumber = painted.results(context)[0], plumbed.results(context)[0]
        questions = asked.get(context)
        return graceful_complete(
            f"{input}: painted by {painter}, plumbed by {plumber}, approved at question {questions}"
        )


class PollingFlow(Flow[str]):
    def __init__(self, office: Office, pause: timedelta) -> None:
        self.office, self.pause = office, pause

    def get_steps(self) -> StepList[str]:
        return StepList.start_step(Initialize).other_steps(Poll(self.office, self.pause), WaitForTasks)

    def get_persistence_schema(self) -> PersistenceSchema:
        return PersistenceSchema.of(painted, plumbed, approved, asked)


flow = PollingFlow(SlowOffice(), timedelta(seconds=1))
registry = Registry([flow])


def main() -> None:
    import dexray

    with dexray.connect(registry) as client:
        flow_id = f"house-{uuid4()}"
        client.start_flow(flow, flow_id, "12 High Street")
        client.publish(flow_id, plumbed, "Ben")
        client.publish(flow_id, painted, "Ada")
        print(client.wait_for_flow(flow_id).single_output(str))


if __name__ == "__main__":
    main()
