"""Manual intervention: when a Step fails for good, a person decides whether to try again or to leave it out.

Failures that time does not heal (an account is blocked, a file is broken) do not deserve a failed Flow at night, nor
endless retries. The failed Step's route leads to one that keeps what went wrong where it can be seen, and waits for a
word: `retry` comes back to the Step with attempts of its own, `skip` goes on without.

If a process dies in the middle: the question stands until it is answered, for days if need be, and costs nothing.

Run it with `python -m examples.patterns.manual_intervention`.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Protocol
from uuid import uuid4

from dex import (
    Attribute,
    AttributeMatch,
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
    go_to,
    graceful_complete,
)

needs_help = Attribute("needs_help", bool)
trouble = Attribute("trouble", str)
retry = Channel("retry", None)
skip = Channel("skip", str)


class Payroll(Protocol):
    def pay(self, employee: str, key: str) -> str:
        """Pays and gives a receipt; the same key again: the same receipt."""
        ...


class StrictPayroll:
    def pay(self, employee: str, key: str) -> str:
        if employee == "Ben":
            raise ValueError("the account of Ben is blocked")
        return f"{employee} is paid"


class Pay(Step[str]):
    def __init__(self, payroll: Payroll) -> None:
        self.payroll = payroll

    def get_step_options(self) -> StepOptions:
        policy = RetryPolicy(initial_interval=timedelta(seconds=1), maximum_attempts=2)
        return StepOptions(execute_retry=policy).on_execute_failure_proceed_to(AskSomebody)

    def execute(self, context: Context, input: str) -> StepDecision:
        return graceful_complete(self.payroll.pay(input, context.flow_id))


class AskSomebody(Step[str]):
    def wait_for(self, context: Context, input: str) -> Wait:
        error = context.recovery_error
        trouble.set(context, error.detail if error else "")
        needs_help.set(context, True)
        return Wait.any_of(retry.for_one(), skip.for_one())

    def execute(self, context: Context, input: str) -> StepDecision:
        needs_help.set(context, False)
        if retry.results(context):
            return go_to(Pay, input)
        return graceful_complete(f"{input} is not paid: {skip.results(context)[0]}")


class ManualInterventionFlow(Flow[str]):
    def __init__(self, payroll: Payroll) -> None:
        self.payroll = payroll

    def get_steps(self) -> StepList[str]:
        return StepList.start_step(Pay(self.payroll)).other_steps(AskSomebody)

    def get_persistence_schema(self) -> PersistenceSchema:
        return PersistenceSchema.of(needs_help, trouble, retry, skip)


flow = ManualInterventionFlow(StrictPayroll())
registry = Registry([flow])


def main() -> None:
    import dexray

    with dexray.connect(registry) as client:
        flow_id = f"pay-{uuid4()}"
        client.start_flow(flow, flow_id, "Ben")
        client.wait_for_attribute_match(flow_id, needs_help, AttributeMatch.equal_to(True))
        print("trouble:", client.get_attribute(flow_id, trouble))
        client.publish(flow_id, skip, "he has left")
        print(client.wait_for_flow(flow_id).single_output(str))


if __name__ == "__main__":
    main()
