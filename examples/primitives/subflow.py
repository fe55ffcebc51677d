"""SubFlow: a parcel asks several carriers for a price, each in a Flow of its own, and takes the best in time.

A Step starts its children with the Wait that it returns, and goes on when the Wait is met. Each child is a Flow like
any other, with a history, a timeout and Steps of its own; its Flow ID follows from the parent, so all can find it.

A child that fails does not fail its parent, which reads how it ended. And a child that the parent did not wait for is
not stopped: here, a carrier who takes too long is canceled by the timeout that its SubFlow was started with.

If a process dies in the middle: a child is started once, because its Flow ID follows from its parent's Step. Parent and
child may live in different processes, and each goes on when its own is back.

Run it with `python -m examples.primitives.subflow`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import timedelta
from uuid import uuid4

from dex import (
    Client,
    ConditionCombination,
    Context,
    Flow,
    FlowStatus,
    FlowTimeoutPolicy,
    Registry,
    Step,
    StepDecision,
    StepList,
    SubFlow,
    SubFlowOptions,
    Timer,
    Wait,
    force_fail,
    graceful_complete,
)


@dataclass(frozen=True)
class Carrier:
    """Answers after some seconds; a price of 0 declines."""

    name: str
    price: int
    seconds: int


@dataclass(frozen=True)
class Parcel:
    carriers: list[Carrier]
    seconds: int  # to wait for answers


PATIENCE = SubFlowOptions(timeout=timedelta(days=1), timeout_policy=FlowTimeoutPolicy.CANCEL)


class Answer(Step[Carrier]):
    def wait_for(self, context: Context, input: Carrier) -> Wait:
        return Wait.until(Timer.by_duration(timedelta(seconds=input.seconds)))

    def execute(self, context: Context, input: Carrier) -> StepDecision:
        return graceful_complete(input.price) if input.price else force_fail(f"{input.name} declined")


class CarrierFlow(Flow[Carrier]):
    """The child."""

    def get_steps(self) -> StepList[Carrier]:
        return StepList.start_step(Answer())


class CompareAnswers(Step[Parcel]):
    def wait_for(self, context: Context, input: Parcel) -> Wait:
        """All carriers have answered, or the time is over."""
        answers = [
            SubFlow.run(carrier_flow, carrier, replace(PATIENCE, condition_id=carrier.name))
            for carrier in input.carriers
        ]
        late = Timer.by_duration(timedelta(seconds=input.seconds), condition_id="late")
        return Wait.any_combination_of(ConditionCombination.of(*answers), ConditionCombination.of(late))

    def execute(self, context: Context, input: Parcel) -> StepDecision:
        said: list[str] = []
        prices: dict[str, int] = {}
        for index, carrier in enumerate(input.carriers):
            answer = SubFlow.get_condition_results(context, index)
            said.append(f"{SubFlow.get_flow_id(context, index)} is {answer.status.name} {answer.error_message}".strip())
            if answer.status is FlowStatus.COMPLETED:
                prices[carrier.name] = answer.single_output(int)
        best = min(prices, key=prices.__getitem__) if prices else "nobody"
        return graceful_complete([*said, f"{best} carries it"])


class ParcelFlow(Flow[Parcel]):
    """The parent. Its output tells how each child stood, and who carries the parcel."""

    def get_steps(self) -> StepList[Parcel]:
        return StepList.start_step(CompareAnswers())


carrier_flow, parcel_flow = CarrierFlow(), ParcelFlow()
registry = Registry([parcel_flow, carrier_flow])

DEMO = Parcel([Carrier("Snail", 5, 1), Carrier("Swift", 40, 0), Carrier("Rock", 0, 0), Carrier("Sloth", 1, 99999)], 3)


def compare(client: Client, flow_id: str, parcel: Parcel) -> list[str]:
    client.start_flow(parcel_flow, flow_id, parcel)
    return client.wait_for_flow(flow_id).single_output(list[str])


def main() -> None:
    import dexray

    with dexray.connect(registry) as client:
        print(*compare(client, f"parcel-{uuid4()}", DEMO), sep="\n")


if __name__ == "__main__":
    main()
