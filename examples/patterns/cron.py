"""Cron: a job that runs at an interval, a number of times, and can be run at once or left out once.

There is no cron option on the start of a Flow, and none is needed: a Step waits for the time that the next run is due,
or for a message. Each run is a Step of its own, beside the clock: a slow one delays none, and one that fails for good
fails the schedule. Due times are counted from the first, so the clock does not drift by what the Steps take.

If a process dies in the middle: due times are in the database. Runs that fell due while nothing was there to run them
are caught up with, one at once after the other; a job that was running is tried again.

Run it with `python -m examples.patterns.cron`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
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
    StepMovement,
    StepOptions,
    Timer,
    Wait,
    force_fail,
    go_to,
    go_to_many,
    graceful_complete,
)

Job = Callable[[int], str]
"""Does run number so and so, and tells what came of it."""

run_now = Channel("run_now", None)
skip_next = Channel("skip_next", None)


@dataclass(frozen=True)
class Schedule:
    """every: whole seconds. runs: how many there shall be; number, due: of the next."""

    every: timedelta
    runs: int
    number: int = 1
    due: datetime | None = None


class Tick(Step[Schedule]):
    def wait_for(self, context: Context, input: Schedule) -> Wait:
        now = context.first_attempt_at
        due = input.due or now + input.every
        context.set_step_execution_local("due", due)
        return Wait.any_of(Timer.by_duration(max(due - now, timedelta())), run_now.for_one(), skip_next.for_one())

    def execute(self, context: Context, input: Schedule) -> StepDecision:
        due = context.get_step_execution_local("due", datetime)
        assert due is not None
        if skip_next.results(context):
            context.record_event("skipped", due)
            return go_to(Tick, replace(input, due=due + input.every))
        run = StepMovement.of(RunJob, input.number)
        if input.number == input.runs:
            return go_to_many(run)
        if not run_now.results(context):
            due += input.every
        return go_to_many(run, StepMovement.of(Tick, replace(input, number=input.number + 1, due=due)))


class RunJob(Step[int]):
    def __init__(self, job: Job) -> None:
        self.job = job

    def get_step_options(self) -> StepOptions:
        retry = RetryPolicy(initial_interval=timedelta(seconds=1), maximum_attempts=3)
        return StepOptions(execute_retry=retry).on_execute_failure_proceed_to(GiveUp)

    def execute(self, context: Context, input: int) -> StepDecision:
        return graceful_complete(self.job(input))


class GiveUp(Step[int]):
    def execute(self, context: Context, input: int) -> StepDecision:
        error = context.recovery_error
        return force_fail(f"run {input} failed: {error.detail if error else 'unknown'}")


class CronFlow(Flow[Schedule]):
    def __init__(self, job: Job) -> None:
        self.job = job

    def get_steps(self) -> StepList[Schedule]:
        return StepList.start_step(Tick).other_steps(RunJob(self.job), GiveUp)

    def get_persistence_schema(self) -> PersistenceSchema:
        return PersistenceSchema.of(run_now, skip_next)


def water_plants(number: int) -> str:
    return f"plants watered, time {number}"


flow = CronFlow(water_plants)
registry = Registry([flow])


def main() -> None:
    import dexray

    with dexray.connect(registry) as client:
        flow_id = f"plants-{uuid4()}"
        client.start_flow(flow, flow_id, Schedule(timedelta(seconds=1), runs=3))
        client.publish(flow_id, run_now, None)
        for completion in client.wait_for_flow(flow_id).completions:
            print(completion.decode(str))


if __name__ == "__main__":
    main()
