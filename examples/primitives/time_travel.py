"""Time travel: a price list had a mistake, and the quotes that were made with it are made again.

`time_travel` begins a new run of a Flow at a point of its past: its beginning, a time, or a Step execution. What came
before the point is kept and does not run again; what came after it runs anew, with the code that is deployed by then.
Messages, Attributes and RPCs that came from outside after the point are applied again, so that nobody has to be asked
twice (`skip_writes_reapply` leaves them out). What Steps did outside is not undone: make it repeatable.

If a process dies in the middle: the new run is there or it is not, and a repeat with the same request id makes no
second one.

Run it with `python -m examples.primitives.time_travel`.
"""

from __future__ import annotations

from uuid import uuid4

from dex import (
    Attribute,
    Channel,
    Client,
    Context,
    Flow,
    PersistenceSchema,
    Registry,
    Step,
    StepDecision,
    StepExecutionId,
    StepList,
    TimeTravelOptions,
    TimeTravelStepMethod,
    TimeTravelType,
    Wait,
    go_to,
    graceful_complete,
)

price = Attribute("price", int)
answer = Channel("answer", str)


class Price(Step[str]):
    """The list is not part of the Flow: the Step reads it when it runs."""

    def __init__(self, prices: dict[str, int]) -> None:
        self.prices = prices

    def execute(self, context: Context, input: str) -> StepDecision:
        price.set(context, self.prices[input])
        return go_to(Ask, input)


class Ask(Step[str]):
    def wait_for(self, context: Context, input: str) -> Wait:
        return Wait.until(answer.for_one())

    def execute(self, context: Context, input: str) -> StepDecision:
        return graceful_complete(f"{answer.results(context)[0]} to {price.get(context)} for a {input}")


class QuoteFlow(Flow[str]):
    def __init__(self, prices: dict[str, int]) -> None:
        self.prices = prices

    def get_steps(self) -> StepList[str]:
        return StepList.start_step(Price(self.prices)).other_steps(Ask())

    def get_persistence_schema(self) -> PersistenceSchema:
        return PersistenceSchema.of(price, answer)


WRONG, RIGHT = QuoteFlow({"wheel": 400}), QuoteFlow({"wheel": 40})

PRICED_ANEW = TimeTravelOptions(
    TimeTravelType.STEP_EXECUTION_ID,
    step_execution_id=StepExecutionId(Price),
    step_method=TimeTravelStepMethod.EXECUTE,
    reason="the price list had a zero too many",
)


def quote(client: Client, flow_id: str) -> str:
    client.start_flow(WRONG, flow_id, "wheel")
    client.publish(flow_id, answer, "yes")
    return client.wait_for_flow(flow_id).single_output(str)


def quote_anew(client: Client, flow_id: str) -> str:
    """With the code that was put right deployed: the answer is not asked for a second time."""
    client.time_travel(flow_id, PRICED_ANEW)
    return client.wait_for_flow(flow_id).single_output(str)


def main() -> None:
    import dexray

    flow_id = f"quote-{uuid4()}"
    with dexray.connect(Registry([WRONG])) as client:
        print(quote(client, flow_id))
    with dexray.connect(Registry([RIGHT])) as client:
        print(quote_anew(client, flow_id))


if __name__ == "__main__":
    main()
