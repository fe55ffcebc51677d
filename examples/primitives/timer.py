"""Timer: a parcel is kept for a week, and the week can be cut short.

A Timer is a condition of a wait, kept with the Flow: nothing has to run while it does, and no restart moves it. A
client may **skip** it, by its condition_id or by its place among the Timers of the wait: it then counts as fired.

If a process dies in the middle: a Timer that fell due meanwhile fires when there is a process again.

Run it with `python -m examples.primitives.timer`.
"""

from __future__ import annotations

import time
from datetime import timedelta
from uuid import uuid4

from dex import (
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
    Timer,
    TimerId,
    Wait,
    graceful_complete,
)

collected = Channel("collected", str)
WEEK = timedelta(days=7)


class KeepParcel(Step[str]):
    def wait_for(self, context: Context, input: str) -> Wait:
        return Wait.any_of(collected.for_one(), Timer.by_duration(WEEK, condition_id="kept long enough"))

    def execute(self, context: Context, input: str) -> StepDecision:
        if context.has_timer_fired():
            return graceful_complete(f"{input} goes back to its sender")
        return graceful_complete(f"{input} was collected by {collected.results(context)[0]}")


class TimerFlow(Flow[str]):
    def get_steps(self) -> StepList[str]:
        return StepList.start_step(KeepParcel())

    def get_persistence_schema(self) -> PersistenceSchema:
        return PersistenceSchema.of(collected)


flow = TimerFlow()
registry = Registry([flow])


def is_kept(client: Client, flow_id: str) -> bool:
    """Whether the parcel lies on its shelf by now: the wait with the Timer has begun."""
    return any(step.phase == "waiting" for step in client.describe(flow_id).steps)


def send_back(client: Client, flow_id: str) -> str:
    """The week is over when the desk says so."""
    client.skip_timer(flow_id, StepExecutionId(KeepParcel), TimerId.by_condition_id("kept long enough"))
    return client.wait_for_flow(flow_id).single_output(str)


def main() -> None:
    import dexray

    flow_id = f"parcel-{uuid4()}"
    with dexray.connect(registry) as client:
        client.start_flow(flow, flow_id, "A small box")
        while not is_kept(client, flow_id):
            time.sleep(0.1)
        print(send_back(client, flow_id))


if __name__ == "__main__":
    main()
