"""Step decisions: all that `execute` can say about what happens next, in one delivery.

    go_to, go_to_many                   the next Step, or several at once
    dead_end                            this branch is over, the Flow is not
    graceful_complete                   this branch is over, and the Flow completes when all branches are
    force_complete, force_fail          the Flow is over now, whatever else runs
    force_complete_if_channels_empty    over now, unless a message has come meanwhile (see patterns/drain_external.py)
    .with_canceling_steps(...)          besides, ends other Steps of these types
    .with_canceling_sibling_steps(...)  the same, among the Steps that the same decision started

Two carriers race, and a clerk writes a letter meanwhile. The winner ends the race, and leaves the clerk in peace.

If a process dies in the middle: a decision is committed with all its consequences or not at all. There is no moment in
which the race is decided and the loser not yet canceled.

Run it with `python -m examples.primitives.step_decision`.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from uuid import uuid4

from dex import (
    Context,
    Flow,
    Registry,
    Step,
    StepDecision,
    StepList,
    StepMovement,
    Timer,
    Wait,
    dead_end,
    force_complete,
    force_fail,
    go_to,
    go_to_many,
    graceful_complete,
)


@dataclass(frozen=True)
class Delivery:
    """train, truck: the seconds that each takes. end: what becomes of the parcel on arrival."""

    train: int
    truck: int
    end: str = "delivered"


class Send(Step[Delivery]):
    def execute(self, context: Context, input: Delivery) -> StepDecision:
        return go_to_many(
            StepMovement.of(ByTrain, input), StepMovement.of(ByTruck, input), StepMovement.of(WriteLetter, None)
        )


class ByTrain(Step[Delivery]):
    def wait_for(self, context: Context, input: Delivery) -> Wait:
        return Wait.until(Timer.by_duration(timedelta(seconds=input.train)))

    def execute(self, context: Context, input: Delivery) -> StepDecision:
        return go_to(Arrive, f"{input.end} by train").with_canceling_sibling_steps(ByTruck)


class ByTruck(Step[Delivery]):
    def wait_for(self, context: Context, input: Delivery) -> Wait:
        return Wait.until(Timer.by_duration(timedelta(seconds=input.truck)))

    def execute(self, context: Context, input: Delivery) -> StepDecision:
        return go_to(Arrive, f"{input.end} by truck").with_canceling_steps(ByTrain)


class WriteLetter(Step[None]):
    def wait_for(self, context: Context, input: None) -> Wait:
        return Wait.until(Timer.by_duration(timedelta(seconds=2)))

    def execute(self, context: Context, input: None) -> StepDecision:
        return graceful_complete("a letter follows")


class Arrive(Step[str]):
    def execute(self, context: Context, input: str) -> StepDecision:
        match input.partition(" ")[0]:
            case "delivered":
                return graceful_complete(input)  # and the letter is waited for
            case "urgent":
                return force_complete(input)  # the letter is not
            case "broken":
                return force_fail(f"the parcel came {input}")
            case _:
                return dead_end()  # nobody says how it ended: the Flow stays open after the letter, if there is no end


class StepDecisionFlow(Flow[Delivery]):
    def get_steps(self) -> StepList[Delivery]:
        return StepList.start_step(Send).other_steps(ByTrain, ByTruck, WriteLetter, Arrive)


flow = StepDecisionFlow()
registry = Registry([flow])


def main() -> None:
    import dexray

    with dexray.connect(registry) as client:
        for delivery in (Delivery(1, 9), Delivery(9, 1, "urgent"), Delivery(9, 1, "broken")):
            flow_id = f"delivery-{uuid4()}"
            client.start_flow(flow, flow_id, delivery)
            result = client.wait_for_flow(flow_id)
            outputs = [completion.decode(str) for completion in result.completions]
            print(result.status.name, *outputs, result.error_message, sep=" | ")


if __name__ == "__main__":
    main()
