"""Inactivity tracker: a session ends when its user has done nothing for a while, however much was done before.

Each action of the user only sets an Attribute, by an RPC: no Step runs for it. A Timer runs all the time, and when it
fires, the Step looks how long ago the last action was: too long, then the session ends; else it waits for what is left.
So a thousand actions a minute cost a thousand small writes and one Timer. (`resettable_timer.py` is simpler, and runs
a Step for each.)

If a process dies in the middle: the last action and the Timer are in the database. A Timer that fired late ends no
session that was used meanwhile, because it looks.

Run it with `python -m examples.patterns.inactivity_tracker`.
"""

from __future__ import annotations

import time
from datetime import datetime, timedelta
from uuid import uuid4

from dex import (
    Attribute,
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

last_action = Attribute("last_action", datetime)
actions = Attribute("actions", int)


class Watch(Step[tuple[timedelta, timedelta]]):
    """Input: how long a user may do nothing, and how long to wait now."""

    def wait_for(self, context: Context, input: tuple[timedelta, timedelta]) -> Wait:
        return Wait.until(Timer.by_duration(input[1]))

    def execute(self, context: Context, input: tuple[timedelta, timedelta]) -> StepDecision:
        allowed, waited = input
        now = context.first_attempt_at
        idle = now - (last_action.get(context) or now - waited)
        if idle >= allowed:
            return graceful_complete(f"ended after {actions.get(context)} actions")
        return go_to(Watch, (allowed, allowed - idle))


class SessionFlow(Flow[tuple[timedelta, timedelta]]):
    def get_steps(self) -> StepList[tuple[timedelta, timedelta]]:
        return StepList.start_step(Watch)

    def get_persistence_schema(self) -> PersistenceSchema:
        return PersistenceSchema.of(last_action, actions)

    @rpc
    def act(self, context: Context) -> None:
        last_action.set(context, context.first_attempt_at)
        actions.set(context, actions.get(context) + 1)


flow = SessionFlow()
registry = Registry([flow])


def main() -> None:
    import dexray

    allowed = timedelta(seconds=2)
    with dexray.connect(registry) as client:
        flow_id = f"session-{uuid4()}"
        client.start_flow(flow, flow_id, (allowed, allowed))
        for _ in range(6):
            client.invoke_rpc(flow.act, flow_id)
            time.sleep(0.5)
        print(client.wait_for_flow(flow_id).single_output(str))


if __name__ == "__main__":
    main()
