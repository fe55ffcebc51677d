"""Options for one execution: the same Step is patient with most customers, and hurries with one.

A Step's own options (`get_step_options`) apply to all its executions. A movement may bring options of its own, which
apply to the one execution that it starts: fields that it gives win, the others stay as they are.

If a process dies in the middle: the options of an execution are stored with it.

Run it with `python -m examples.primitives.options_override`.
"""

from __future__ import annotations

from datetime import timedelta
from uuid import uuid4

from dex import (
    Context,
    Flow,
    Registry,
    RetryPolicy,
    Step,
    StepDecision,
    StepList,
    StepMovement,
    StepOptions,
    Wait,
    WaitForFailurePolicy,
    go_to_many,
    graceful_complete,
)

HURRY = StepOptions(
    wait_for_retry=RetryPolicy(initial_interval=timedelta(seconds=1), maximum_attempts=2),
    wait_for_failure=WaitForFailurePolicy.PROCEED,
)


class Begin(Step[None]):
    def execute(self, context: Context, input: None) -> StepDecision:
        return go_to_many(
            StepMovement.of(AskForAddress, "Ada"),
            StepMovement.of(AskForAddress, "Ben", HURRY),
        )


class AskForAddress(Step[str]):
    """The address book is closed for the first three attempts."""

    def get_step_options(self) -> StepOptions:
        return StepOptions(wait_for_retry=RetryPolicy(initial_interval=timedelta(seconds=1), maximum_attempts=9))

    def wait_for(self, context: Context, input: str) -> Wait:
        if context.attempt <= 3:
            raise RuntimeError("the address book is closed")
        return Wait.skip_immediately()

    def execute(self, context: Context, input: str) -> StepDecision:
        found = "without an address" if context.wait_for_method_failed() else "by the book"
        return graceful_complete(f"{input}: delivered {found}")


class OptionsOverrideFlow(Flow[None]):
    def get_steps(self) -> StepList[None]:
        return StepList.start_step(Begin).other_steps(AskForAddress)


flow = OptionsOverrideFlow()
registry = Registry([flow])


def main() -> None:
    import dexray

    with dexray.connect(registry) as client:
        flow_id = f"deliveries-{uuid4()}"
        client.start_flow(flow, flow_id)
        for completion in client.wait_for_flow(flow_id).completions:
            print(completion.decode(str))


if __name__ == "__main__":
    main()
