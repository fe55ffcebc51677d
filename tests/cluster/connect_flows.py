"""Flows of the tests of `connect`: one that answers, one that waits for a message, one that takes its time."""

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
    Registry,
    Step,
    StepDecision,
    StepList,
    Wait,
    graceful_complete,
)

go = Channel("go", str)


class Answer(Step[int]):
    def execute(self, context: Context, input: int) -> StepDecision:
        return graceful_complete(input + 1)


class Echo(Flow[int]):
    def get_steps(self) -> StepList[int]:
        return StepList.start_step(Answer())


class WaitForGo(Step[int]):
    def wait_for(self, context: Context, input: int) -> Wait:
        return Wait.until(go.for_one())

    def execute(self, context: Context, input: int) -> StepDecision:
        return graceful_complete(go.results(context)[0] * input)


class Gate(Flow[int]):
    def get_steps(self) -> StepList[int]:
        return StepList.start_step(WaitForGo())

    def get_persistence_schema(self) -> PersistenceSchema:
        return PersistenceSchema.of(go)


@dataclass(frozen=True)
class Work:
    seconds: float
    file: str = ""


class DoWork(Step[Work]):
    def execute(self, context: Context, input: Work) -> StepDecision:
        began = time.time()
        time.sleep(input.seconds)
        if input.file:
            with Path(input.file).open("a") as file:
                file.write(f"{context.flow_id} {began} {time.time()} {os.getpid()}\n")
        return graceful_complete(context.attempt)


class Slow(Flow[Work]):
    def get_steps(self) -> StepList[Work]:
        return StepList.start_step(DoWork())


echo, gate, slow = Echo(), Gate(), Slow()
registry = Registry([echo, gate, slow])
