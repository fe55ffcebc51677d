"""Waits: until one thing, any of several, all of them, or one of several groups; here a ship that wants to leave port.

    Wait.until(pilot)                                         one condition
    Wait.any_of(pilot, tug)                                   the first that is met; Timers before Channels in a tie
    Wait.all_of(pilot, tug)                                   all of them
    Wait.any_combination_of(pilot and tug, or calm weather)   the first group that is met as a whole
    Wait.skip_immediately()                                   nothing

Only the conditions that end a wait take their messages: when a ship left with the tug, the pilot's message is still
there for the next Step.

If a process dies in the middle: the wait is in the database, and is judged anew at each message, Timer and end of a
SubFlow. A Timer that fell due while nothing ran fires when something does.

Run it with `python -m examples.primitives.wait_types`.
"""

from __future__ import annotations

from datetime import timedelta
from uuid import uuid4

from dex import (
    Channel,
    ConditionCombination,
    Context,
    Flow,
    PersistenceSchema,
    Registry,
    Step,
    StepDecision,
    StepList,
    Timer,
    Wait,
    graceful_complete,
)

pilot = Channel("pilot", str)
tug = Channel("tug", str)


class Leave(Step[str]):
    def wait_for(self, context: Context, input: str) -> Wait:
        calm = timedelta(seconds=2)
        match input:
            case "until":
                return Wait.until(pilot.for_one())
            case "any":
                return Wait.any_of(pilot.for_one(), tug.for_one(), Timer.by_duration(calm))
            case "all":
                return Wait.all_of(pilot.for_one(), tug.for_n(2))
            case "combination":
                return Wait.any_combination_of(
                    ConditionCombination.of(pilot.for_one(condition_id="pilot"), tug.for_one(condition_id="tug")),
                    ConditionCombination.of(Timer.by_duration(calm, condition_id="calm weather")),
                )
            case _:
                return Wait.skip_immediately()

    def execute(self, context: Context, input: str) -> StepDecision:
        by = [*pilot.results(context), *tug.results(context)]
        if input in ("any", "combination") and context.has_timer_fired():
            by.append("calm weather")
        left = pilot.size(context) + tug.size(context)
        return graceful_complete(f"left with {' and '.join(by) or 'nobody'}; {left} still there")


class WaitTypesFlow(Flow[str]):
    def get_steps(self) -> StepList[str]:
        return StepList.start_step(Leave)

    def get_persistence_schema(self) -> PersistenceSchema:
        return PersistenceSchema.of(pilot, tug)


flow = WaitTypesFlow()
registry = Registry([flow])


def main() -> None:
    import dexray

    with dexray.connect(registry) as client:
        for kind, arrivals in {"until": [pilot], "any": [tug], "all": [pilot, tug, tug], "combination": []}.items():
            flow_id = f"ship-{uuid4()}"
            client.start_flow(flow, flow_id, kind)
            for arrival in arrivals:
                client.publish(flow_id, arrival, arrival.name)
            print(f"{kind:11} {client.wait_for_flow(flow_id).single_output(str)}")


if __name__ == "__main__":
    main()
