"""Flows that stand in every phase when their owner is killed. Those that run do so until their gate is opened."""

from __future__ import annotations

import asyncio
import time
from datetime import timedelta
from pathlib import Path

from dex import (
    AsyncContext,
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
    SubFlow,
    Timer,
    Wait,
    graceful_complete,
    retry_after,
)

nudge = Channel("nudge", int)
"""What the Flows wait for that wait for a message."""

BACKOFF_SECONDS = 45


def _is_open(gate: str) -> bool:
    return Path(gate).exists()


class Held(Step[str]):
    """Holds a CPU until the gate is open: a few run, all others of the kind are ready and wait for a slot."""

    def get_step_options(self) -> StepOptions:
        return StepOptions(execute_retry=RetryPolicy(initial_interval=timedelta(seconds=1)))

    def execute(self, context: Context, input: str) -> StepDecision:
        while not _is_open(input) and not context.is_cancellation_requested():
            time.sleep(0.05)
        return graceful_complete(1)


class HeldHere(Step[str]):
    """The same, in process: its attempts share an event loop, and as many as there are slots run at once."""

    def get_step_options(self) -> StepOptions:
        return StepOptions(execute_retry=RetryPolicy(initial_interval=timedelta(seconds=1)))

    async def execute(self, context: AsyncContext, input: str) -> StepDecision:
        while not _is_open(input):  # noqa: ASYNC110  # another process opens it
            await asyncio.sleep(0.2)
        return graceful_complete(1)


class ForMessage(Step[None]):
    def wait_for(self, context: Context, input: None) -> Wait:
        return Wait.until(nudge.for_one())

    def execute(self, context: Context, input: None) -> StepDecision:
        return graceful_complete(1)


class ForTime(Step[float]):
    def wait_for(self, context: Context, input: float) -> Wait:
        return Wait.until(Timer.by_duration(timedelta(seconds=input)))

    def execute(self, context: Context, input: float) -> StepDecision:
        return graceful_complete(1)


class FailsFirst(Step[int]):
    """Fails once, and waits so many seconds for its second attempt."""

    def execute(self, context: Context, input: int) -> StepDecision:
        if context.attempt == 1:
            raise retry_after(input, RuntimeError("the first attempt fails"))
        return graceful_complete(1)


class ForChild(Step[float]):
    def wait_for(self, context: Context, input: float) -> Wait:
        return Wait.until(SubFlow.run(TIMED, input))

    def execute(self, context: Context, input: float) -> StepDecision:
        return graceful_complete(1)


class HeldFlow(Flow[str]):
    def get_steps(self) -> StepList[str]:
        return StepList.start_step(Held())


class HeldHereFlow(Flow[str]):
    def get_steps(self) -> StepList[str]:
        return StepList.start_step(HeldHere())


class MessageFlow(Flow[None]):
    def get_steps(self) -> StepList[None]:
        return StepList.start_step(ForMessage())

    def get_persistence_schema(self) -> PersistenceSchema:
        return PersistenceSchema.of(nudge)


class TimerFlow(Flow[float]):
    def get_steps(self) -> StepList[float]:
        return StepList.start_step(ForTime())


class BackoffFlow(Flow[int]):
    def get_steps(self) -> StepList[int]:
        return StepList.start_step(FailsFirst())


class ParentFlow(Flow[float]):
    def get_steps(self) -> StepList[float]:
        return StepList.start_step(ForChild())


HELD, HELD_HERE, MESSAGE, TIMED, BACKOFF, PARENT = (
    HeldFlow(),
    HeldHereFlow(),
    MessageFlow(),
    TimerFlow(),
    BackoffFlow(),
    ParentFlow(),
)
REGISTRY = Registry([HELD, HELD_HERE, MESSAGE, TIMED, BACKOFF, PARENT], allow_async_handlers=True)
