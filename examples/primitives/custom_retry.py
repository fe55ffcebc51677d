"""Retry when the Step says so: a parcel service answers "come back in 7 seconds".

`retry_after(seconds, cause)` sets the pause before the next attempt, in place of the one that the RetryPolicy has for
it. The attempt counts like any other: `maximum_attempts` and `total_duration` still end the retries. The cause is what
history and `describe` show as the failure.

If a process dies in the middle: the time of the next attempt is in the database, and is kept.

Run it with `python -m examples.primitives.custom_retry`.
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
    StepOptions,
    graceful_complete,
    retry_after,
)


class Collect(Step[int]):
    """The parcel is ready at attempt number `input`."""

    def get_step_options(self) -> StepOptions:
        return StepOptions(execute_retry=RetryPolicy(initial_interval=timedelta(hours=1), maximum_attempts=5))

    def execute(self, context: Context, input: int) -> StepDecision:
        if context.attempt < input:
            raise retry_after(7, RuntimeError("the parcel is still being sorted"))
        return graceful_complete(f"collected at attempt {context.attempt}")


class CustomRetryFlow(Flow[int]):
    def get_steps(self) -> StepList[int]:
        return StepList.start_step(Collect)


flow = CustomRetryFlow()
registry = Registry([flow])


def main() -> None:
    import dexray

    with dexray.connect(registry) as client:
        flow_id = f"parcel-{uuid4()}"
        client.start_flow(flow, flow_id, 2)
        print("waiting 7 seconds …")
        print(client.wait_for_flow(flow_id).single_output(str))


if __name__ == "__main__":
    main()
