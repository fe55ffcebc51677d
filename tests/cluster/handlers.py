"""A Flow whose Steps do what tests of attempts want to see: end, last, fail, die, listen to cancellation."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import Generator

from dex.context import AsyncContext, Context
from dex.decision import StepDecision, graceful_complete
from dex.flow import Flow, StepList
from dex.registry import Registry
from dex.step import Step, StepOutput, heartbeat

PATIENCE = 20.0  # seconds after which a handler that waits to be canceled gives up


class Quick(Step[int]):
    def execute(self, context: Context, input: int) -> StepDecision:
        return graceful_complete(input + 1)


class Sleeps(Step[float]):
    def execute(self, context: Context, input: float) -> StepDecision:
        time.sleep(input)
        return graceful_complete(os.getpid())


class SleepsIfLong(Step[float]):
    """Short, until it is not."""

    def execute(self, context: Context, input: float) -> StepDecision:
        if input:
            time.sleep(input)
        return graceful_complete(os.getpid())


class Listens(Step[float]):
    """Ends when it is canceled, with the time at which it saw that. Input 0 does not listen at all."""

    def execute(self, context: Context, input: float) -> StepDecision:
        ends = time.monotonic() + input
        while time.monotonic() < ends:
            if context.is_cancellation_requested():
                return graceful_complete(time.time())
            time.sleep(0.002)
        return graceful_complete(0.0)


class IgnoresCancel(Step[float]):
    def execute(self, context: Context, input: float) -> StepDecision:
        time.sleep(input)
        return graceful_complete(0.0)


class Beats(Step[int]):
    """Sends so many heartbeats, then ends; a negative number fails after them."""

    def execute(self, context: Context, input: int) -> Generator[StepOutput, None, StepDecision]:
        for number in range(abs(input)):
            yield heartbeat(number)
            time.sleep(0.03)
        if input < 0:
            raise ValueError("after the heartbeats")
        return graceful_complete(input)


class HoldsTheGil(Step[int]):
    """Native code that lets no other thread of its process run."""

    def execute(self, context: Context, input: int) -> StepDecision:
        return graceful_complete(sum(range(input)))


class Dies(Step[str]):
    def execute(self, context: Context, input: str) -> StepDecision:
        if input == "os._exit":
            os._exit(3)
        if input == "sys.exit":
            sys.exit(3)
        if input == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if input == "raise":
            raise ValueError("as asked for")
        return graceful_complete(input)


class Interrupted(Step[str]):
    """Tells whether SIGINT would reach it."""

    def execute(self, context: Context, input: str) -> StepDecision:
        return graceful_complete(signal.getsignal(signal.SIGINT) == signal.SIG_IGN)


class Big(Step[int]):
    """Has an output of so many bytes."""

    def execute(self, context: Context, input: int) -> StepDecision:
        return graceful_complete("x" * input)


class Measures(Step[str]):
    def execute(self, context: Context, input: str) -> StepDecision:
        return graceful_complete(len(input))


class AsyncMeasures(Step[str]):
    async def execute(self, context: AsyncContext, input: str) -> StepDecision:
        return graceful_complete(len(input))


class AsyncEcho(Step[float]):
    async def execute(self, context: AsyncContext, input: float) -> StepDecision:
        await asyncio.sleep(input)
        return graceful_complete(os.getpid())


class AsyncListens(Step[float]):
    async def execute(self, context: AsyncContext, input: float) -> StepDecision:
        try:
            await asyncio.sleep(input)
        except asyncio.CancelledError:
            return graceful_complete(time.time())
        return graceful_complete(0.0)


class AsyncBeats(Step[int]):
    async def execute(self, context: AsyncContext, input: int) -> StepDecision:
        for number in range(input):
            await context.heartbeat(number)
            await asyncio.sleep(0.03)
        return graceful_complete(input)


class AsyncDies(Step[str]):
    async def execute(self, context: AsyncContext, input: str) -> StepDecision:
        await asyncio.sleep(0)
        if input == "os._exit":
            os._exit(3)
        sys.exit(3)


class Handlers(Flow[int]):
    def get_steps(self) -> StepList[int]:
        return StepList.start_step(Quick()).other_steps(
            Sleeps(),
            SleepsIfLong(),
            Listens(),
            IgnoresCancel(),
            Beats(),
            HoldsTheGil(),
            Dies(),
            Interrupted(),
            Big(),
            Measures(),
            AsyncMeasures(),
            AsyncEcho(),
            AsyncListens(),
            AsyncBeats(),
            AsyncDies(),
        )


def make_registry() -> Registry:
    return Registry([Handlers()], allow_async_handlers=True)
