"""The Flows of the kill tests: five Steps that leave a line for every execute, and one message in the middle that must
not get lost."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

from dex import (
    Channel,
    Context,
    Flow,
    PersistenceSchema,
    Step,
    StepDecision,
    StepList,
    Wait,
    go_to,
    graceful_complete,
)

STEPS = 5
token = Channel("token", str)


@dataclass(frozen=True)
class Job:
    folder: str
    step: int
    seconds: float
    got: tuple[str, ...] = ()
    hangs: float = 0.0
    """Seconds for which the first attempt of the first Step stays, to be killed."""


def leave_line(context: Context, job: Job) -> None:
    """One line, appended in one write: who ran, as which attempt, in which process."""
    line = f"{context.step_execution_id} {context.attempt} {os.getpid()}\n"
    handle = os.open(Path(job.folder) / context.flow_id, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    try:
        os.write(handle, line.encode())
    finally:
        os.close(handle)


class Work(Step[Job]):
    """Steps 1 to 5; the third waits for a message and hands it on."""

    def wait_for(self, context: Context, input: Job) -> Wait:
        return Wait.until(token.for_one()) if input.step == 3 else Wait.skip_immediately()

    def execute(self, context: Context, input: Job) -> StepDecision:
        leave_line(context, input)
        time.sleep(input.hangs if context.attempt == 1 and input.hangs else input.seconds)
        got = input.got + tuple(token.results(context))
        if input.step == STEPS:
            return graceful_complete(list(got))
        return go_to(Work, Job(input.folder, input.step + 1, input.seconds, got))


class KillFlow(Flow[Job]):
    def get_steps(self) -> StepList[Job]:
        return StepList.start_step(Work())

    def get_persistence_schema(self) -> PersistenceSchema:
        return PersistenceSchema.of(token)
