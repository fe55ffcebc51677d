"""Go on although waiting failed: a price is asked for, and a list price taken when nobody can be asked.

When the attempts of `wait_for` are used up, a Flow fails: `WaitForFailurePolicy.FAIL_FLOW`. With PROCEED, `execute` of
the same Step runs all the same, with its input, and sees by `wait_for_method_failed()` and `recovery_error` what
happened. For a failed `execute` there is another way: see `patterns/recovery.py`.

If a process dies in the middle: attempts are counted in the database, and are not given twice.

Run it with `python -m examples.primitives.proceed_on_wait_failure`.
"""

from __future__ import annotations

from datetime import timedelta
from uuid import uuid4

from dex import (
    Channel,
    Context,
    Flow,
    PersistenceSchema,
    Registry,
    RetryPolicy,
    Step,
    StepDecision,
    StepList,
    StepOptions,
    Wait,
    WaitForFailurePolicy,
    graceful_complete,
)

quotes = Channel("quotes", int)
LIST_PRICE = 100


class Quote(Step[str]):
    def get_step_options(self) -> StepOptions:
        return StepOptions(
            wait_for_retry=RetryPolicy(initial_interval=timedelta(seconds=1), maximum_attempts=2),
            wait_for_failure=WaitForFailurePolicy.PROCEED,
        )

    def wait_for(self, context: Context, input: str) -> Wait:
        """Asks the supplier for a quote, which comes as a message."""
        if input == "nobody":
            raise ConnectionError("no supplier of that name")
        return Wait.until(quotes.for_one())

    def execute(self, context: Context, input: str) -> StepDecision:
        if context.wait_for_method_failed():
            error = context.recovery_error
            return graceful_complete(f"{LIST_PRICE}, the list price: {error.detail if error else 'unknown'}")
        return graceful_complete(f"{quotes.results(context)[0]}, says {input}")


class ProceedOnWaitFailureFlow(Flow[str]):
    def get_steps(self) -> StepList[str]:
        return StepList.start_step(Quote)

    def get_persistence_schema(self) -> PersistenceSchema:
        return PersistenceSchema.of(quotes)


flow = ProceedOnWaitFailureFlow()
registry = Registry([flow])


def main() -> None:
    import dexray

    with dexray.connect(registry) as client:
        for supplier in ("Ada", "nobody"):
            flow_id = f"quote-{uuid4()}"
            client.start_flow(flow, flow_id, supplier)
            client.publish(flow_id, quotes, 80)
            print(client.wait_for_flow(flow_id).single_output(str))


if __name__ == "__main__":
    main()
