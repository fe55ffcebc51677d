"""Resettable timer: an alarm that goes off when a machine has given no sign of life for a while.

A wait for a message or a Timer; a message starts the wait anew, and the Timer with it. All signs that are there count
as one (`at_least(1)` takes them all). For machines that chatter, see `inactivity_tracker.py`, where a sign costs no
Step.

If a process dies in the middle: the Timer goes on in the database, and is never early. When a sign and the Timer meet
while nothing could judge them, the Timer wins, as it does in every tie: the silence was too long.

Run it with `python -m examples.patterns.resettable_timer`.
"""

from __future__ import annotations

import time
from datetime import timedelta
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
    Timer,
    Wait,
    go_to,
    graceful_complete,
    rpc,
)

signs = Channel("signs", str)
last_sign = Attribute("last_sign", str)


class Guard(Step[timedelta]):
    """Input: how long a silence is borne."""

    def wait_for(self, context: Context, input: timedelta) -> Wait:
        return Wait.any_of(signs.at_least(1), Timer.by_duration(input))

    def execute(self, context: Context, input: timedelta) -> StepDecision:
        if context.has_timer_fired():
            return graceful_complete(f"silent since: {last_sign.get(context) or 'the beginning'}")
        last_sign.set(context, signs.results(context)[-1])
        return go_to(Guard, input)


class ResettableTimerFlow(Flow[timedelta]):
    def get_steps(self) -> StepList[timedelta]:
        return StepList.start_step(Guard)

    def get_persistence_schema(self) -> PersistenceSchema:
        return PersistenceSchema.of(signs, last_sign)

    @rpc
    def sign(self, context: Context, input: str) -> None:
        signs.publish(context, input)


flow = ResettableTimerFlow()
registry = Registry([flow])


def main() -> None:
    import dexray

    with dexray.connect(registry) as client:
        flow_id = f"machine-{uuid4()}"
        client.start_flow(flow, flow_id, timedelta(seconds=2))
        for number in range(1, 4):
            client.invoke_rpc(flow.sign, flow_id, f"sign {number}")
            time.sleep(1)
        print(client.wait_for_flow(flow_id).single_output(str))


if __name__ == "__main__":
    main()
