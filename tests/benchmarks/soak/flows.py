"""The Flows of the soak. Each gives an output that can be told beforehand, whatever happens on the way.

Every execute leaves two traces: a line in the effects file as soon as it runs, and an event in the history with the
number of its attempt, committed with its decision. By these an auditor sees which attempts ran, and whose decision
was taken.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Generator
from dataclasses import dataclass
from datetime import timedelta

from dex import (
    AsyncContext,
    Attribute,
    AttributeIndex,
    Channel,
    Context,
    Flow,
    FlowStatus,
    IndexType,
    PersistenceSchema,
    Registry,
    RetryPolicy,
    RPCResult,
    Step,
    StepDecision,
    StepDurability,
    StepList,
    StepMovement,
    StepOptions,
    Stream,
    SubFlow,
    Timer,
    Wait,
    dead_end,
    force_fail,
    go_to,
    go_to_many,
    graceful_complete,
    rpc,
)
from dex.step import StepOutput, heartbeat

EFFECTS = "SOAK_EFFECTS"
SOON = RetryPolicy(initial_interval=timedelta(seconds=1), backoff_coefficient=1.0)


def leave_traces(context: Context) -> None:
    attempt = f"{context.flow_id} {context.step_execution_id} {context.attempt}"
    line = f"{attempt} {os.getpid()} {time.time():.3f} {context.run_id}\n"
    handle = os.open(os.environ[EFFECTS], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        os.write(handle, line.encode())
    finally:
        os.close(handle)
    context.record_event("attempt", context.attempt)


# Letters: messages of several producers, in order ---------------------------------------------------------------------

letter = Channel("letter", str)


@dataclass(frozen=True)
class Letters:
    wanted: int
    got: tuple[str, ...] = ()


class Collect(Step[Letters]):
    """Takes one to three letters at a time, until it has as many as it wants."""

    def wait_for(self, context: Context, input: Letters) -> Wait:
        return Wait.until(letter.for_range(at_least=1, at_most=min(3, input.wanted - len(input.got))))

    def execute(self, context: Context, input: Letters) -> StepDecision:
        leave_traces(context)
        got = input.got + tuple(letter.results(context))
        return graceful_complete(list(got)) if len(got) >= input.wanted else go_to(Collect, Letters(input.wanted, got))

    def get_step_options(self) -> StepOptions:
        return StepOptions(execute_retry=SOON)


class LetterFlow(Flow[Letters]):
    def get_steps(self) -> StepList[Letters]:
        return StepList.start_step(Collect())

    def get_persistence_schema(self) -> PersistenceSchema:
        return PersistenceSchema.of(letter)

    @rpc
    def post(self, context: Context, input: str) -> RPCResult[str]:
        """A producer that goes another way."""
        letter.publish(context, input)
        return RPCResult(input)


# Timers ---------------------------------------------------------------------------------------------------------------

wake = Channel("wake", str)


@dataclass(frozen=True)
class Naps:
    seconds: tuple[int, ...]
    slept: tuple[tuple[int, float, str], ...] = ()


class Nap(Step[Naps]):
    """Sleeps for each of its durations; a message wakes it early. Measures by the wall how long it was."""

    def wait_for(self, context: Context, input: Naps) -> Wait:
        context.set_step_execution_local("began", time.time())
        duration = timedelta(seconds=input.seconds[len(input.slept)])
        return Wait.any_of(Timer.by_duration(duration), wake.for_one())

    def execute(self, context: Context, input: Naps) -> StepDecision:
        took = time.time() - (context.get_step_execution_local("began", float) or 0.0)
        leave_traces(context)
        why = "timer" if context.has_timer_fired() else "message"
        slept = (*input.slept, (input.seconds[len(input.slept)], took, why))
        if len(slept) == len(input.seconds):
            return graceful_complete([list(nap) for nap in slept])
        return go_to(Nap, Naps(input.seconds, slept))

    def get_step_options(self) -> StepOptions:
        return StepOptions(execute_retry=SOON)


class NapFlow(Flow[Naps]):
    def get_steps(self) -> StepList[Naps]:
        return StepList.start_step(Nap())

    def get_persistence_schema(self) -> PersistenceSchema:
        return PersistenceSchema.of(wake)


# Fan-out --------------------------------------------------------------------------------------------------------------

part = Channel("part", int)


class Split(Step[int]):
    def execute(self, context: Context, input: int) -> StepDecision:
        leave_traces(context)
        kinds = (Branch, AsyncBranch, RelaxedBranch)
        branches = [StepMovement.of(kinds[number % 3], number) for number in range(input)]
        return go_to_many(*branches, StepMovement.of(Join, input))


class Branch(Step[int]):
    def execute(self, context: Context, input: int) -> StepDecision:
        leave_traces(context)
        time.sleep(0.02 * (input % 4))
        part.publish(context, input)
        return dead_end()

    def get_step_options(self) -> StepOptions:
        return StepOptions(execute_retry=SOON)


class AsyncBranch(Step[int]):
    async def execute(self, context: AsyncContext, input: int) -> StepDecision:
        leave_traces(context)
        await asyncio.sleep(0.05 * (input % 4))
        part.publish(context, input)
        return dead_end()

    def get_step_options(self) -> StepOptions:
        return StepOptions(execute_retry=SOON)


class RelaxedBranch(Step[int]):
    """Its commit comes later than what follows from it; an attempt may run twice under one number."""

    def execute(self, context: Context, input: int) -> StepDecision:
        leave_traces(context)
        part.publish(context, input)
        return dead_end()

    def get_step_options(self) -> StepOptions:
        return StepOptions(execute_retry=SOON, execute_durability=StepDurability.ASYNC)


class Join(Step[int]):
    def wait_for(self, context: Context, input: int) -> Wait:
        return Wait.until(part.for_n(input))

    def execute(self, context: Context, input: int) -> StepDecision:
        leave_traces(context)
        return graceful_complete(sorted(part.results(context)))

    def get_step_options(self) -> StepOptions:
        return StepOptions(execute_retry=SOON)


class FanFlow(Flow[int]):
    def get_steps(self) -> StepList[int]:
        return StepList.start_step(Split()).other_steps(Branch(), AsyncBranch(), RelaxedBranch(), Join())

    def get_persistence_schema(self) -> PersistenceSchema:
        return PersistenceSchema.of(part)


# Counter: RPCs --------------------------------------------------------------------------------------------------------

total = Attribute("total", int)
mark = Attribute("mark", int, index=AttributeIndex(IndexType.INT))


class Close(Step[int]):
    def execute(self, context: Context, input: int) -> StepDecision:
        leave_traces(context)
        return graceful_complete([total.get(context), mark.get(context)])

    def get_step_options(self) -> StepOptions:
        return StepOptions(execute_retry=SOON)


class CounterFlow(Flow[None]):
    def get_persistence_schema(self) -> PersistenceSchema:
        return PersistenceSchema.of(total, mark)

    def get_steps(self) -> StepList[None]:
        return StepList.without_start_step(Close())

    @rpc(lock_attributes=(total.lock(),))
    def add(self, context: Context, input: int) -> RPCResult[int]:
        total.set(context, total.get(context) + input)
        return RPCResult(total.get(context))

    @rpc
    def read(self, context: Context) -> RPCResult[int]:
        return RPCResult(total.get(context))

    @rpc
    def finish(self, context: Context) -> RPCResult[bool]:
        return RPCResult(True, next_steps=(StepMovement.of(Close, 0),))


# Parents and children -------------------------------------------------------------------------------------------------


class Leaf(Step[int]):
    """A child; a negative one fails."""

    def wait_for(self, context: Context, input: int) -> Wait:
        return Wait.until(Timer.by_duration(timedelta(seconds=1))) if input % 2 else Wait.skip_immediately()

    def execute(self, context: Context, input: int) -> StepDecision:
        leave_traces(context)
        return force_fail("as planned") if input < 0 else graceful_complete(input * 10)

    def get_step_options(self) -> StepOptions:
        return StepOptions(execute_retry=SOON)


class LeafFlow(Flow[int]):
    def get_steps(self) -> StepList[int]:
        return StepList.start_step(Leaf())


LEAF = LeafFlow()


class Trunk(Step[list[int]]):
    def wait_for(self, context: Context, input: list[int]) -> Wait:
        return Wait.all_of(*(SubFlow.run(LEAF, number) for number in input))

    def execute(self, context: Context, input: list[int]) -> StepDecision:
        leave_traces(context)
        results = [SubFlow.get_condition_results(context, index) for index in range(len(input))]
        done = [result.single_output(int) if result.status is FlowStatus.COMPLETED else -1 for result in results]
        return graceful_complete(done)

    def get_step_options(self) -> StepOptions:
        return StepOptions(execute_retry=SOON)


class ParentFlow(Flow[list[int]]):
    def get_steps(self) -> StepList[list[int]]:
        return StepList.start_step(Trunk())


# Failures -------------------------------------------------------------------------------------------------------------


class Flaky(Step[int]):
    """Fails as often as its input says, then goes on to a Step that never succeeds, and to its recovery."""

    def execute(self, context: Context, input: int) -> StepDecision:
        leave_traces(context)
        if context.attempt <= input:
            raise RuntimeError(f"attempt {context.attempt} of {input} that fail")
        return go_to(Hopeless, input)

    def get_step_options(self) -> StepOptions:
        return StepOptions(execute_retry=SOON)


class Hopeless(Step[int]):
    def execute(self, context: Context, input: int) -> StepDecision:
        leave_traces(context)
        raise RuntimeError("never")

    def get_step_options(self) -> StepOptions:
        policy = RetryPolicy(initial_interval=timedelta(seconds=1), maximum_attempts=2)
        return StepOptions(execute_retry=policy).on_execute_failure_proceed_to(Recover)


class Recover(Step[int]):
    def execute(self, context: Context, input: int) -> StepDecision:
        leave_traces(context)
        return graceful_complete("recovered") if input else force_fail("as planned")

    def get_step_options(self) -> StepOptions:
        return StepOptions(execute_retry=SOON)


class FlakyFlow(Flow[int]):
    def get_steps(self) -> StepList[int]:
        return StepList.start_step(Flaky()).other_steps(Hopeless(), Recover())


# Detached attempts ----------------------------------------------------------------------------------------------------


class Train(Step[int]):
    """Works for seconds in a process of its own, which outlives the owner of the Flow."""

    def execute(self, context: Context, input: int) -> Generator[StepOutput, None, StepDecision]:
        leave_traces(context)
        for number in range(input * 4):
            time.sleep(0.25)
            yield heartbeat(number)
        return graceful_complete(input)

    def get_step_options(self) -> StepOptions:
        return StepOptions(execute_retry=SOON, detached=True)


class TrainFlow(Flow[int]):
    def get_steps(self) -> StepList[int]:
        return StepList.start_step(Train())


# Streams --------------------------------------------------------------------------------------------------------------

news = Stream("news", str, 1_000_000)


class Tell(Step[int]):
    async def execute(self, context: AsyncContext, input: int) -> StepDecision:
        leave_traces(context)
        for number in range(input):
            news.write(context, f"{context.attempt}:{number}")
            await asyncio.sleep(0.02)
        return graceful_complete(input)

    def get_step_options(self) -> StepOptions:
        return StepOptions(execute_retry=SOON)


class StreamFlow(Flow[int]):
    def get_steps(self) -> StepList[int]:
        return StepList.start_step(Tell())

    def get_persistence_schema(self) -> PersistenceSchema:
        return PersistenceSchema.of(news)


# Flows that go back in time -------------------------------------------------------------------------------------------

stop = Channel("stop", int)


class Pack(Step[int]):
    def execute(self, context: Context, input: int) -> StepDecision:
        leave_traces(context)
        return go_to(Ride, input)

    def get_step_options(self) -> StepOptions:
        return StepOptions(execute_retry=SOON)


class Ride(Step[int]):
    def wait_for(self, context: Context, input: int) -> Wait:
        return Wait.until(stop.for_n(input))

    def execute(self, context: Context, input: int) -> StepDecision:
        leave_traces(context)
        return graceful_complete(list(stop.results(context)))

    def get_step_options(self) -> StepOptions:
        return StepOptions(execute_retry=SOON)


class TripFlow(Flow[int]):
    def get_steps(self) -> StepList[int]:
        return StepList.start_step(Pack()).other_steps(Ride())

    def get_persistence_schema(self) -> PersistenceSchema:
        return PersistenceSchema.of(stop)


# Flows that are deleted when they are over ----------------------------------------------------------------------------


class Pass(Step[int]):
    def execute(self, context: Context, input: int) -> StepDecision:
        leave_traces(context)
        return graceful_complete(input) if input == 0 else go_to(Pass, input - 1)

    def get_step_options(self) -> StepOptions:
        return StepOptions(execute_retry=SOON)


class BriefFlow(Flow[int]):
    def get_steps(self) -> StepList[int]:
        return StepList.start_step(Pass())


# Flows that are stopped -----------------------------------------------------------------------------------------------

never = Channel("never", str)


class Stay(Step[None]):
    def wait_for(self, context: Context, input: None) -> Wait:
        return Wait.until(never.for_one())

    def execute(self, context: Context, input: None) -> StepDecision:
        return force_fail("nobody publishes this")


class StayFlow(Flow[None]):
    def get_steps(self) -> StepList[None]:
        return StepList.start_step(Stay())

    def get_persistence_schema(self) -> PersistenceSchema:
        return PersistenceSchema.of(never)


LETTERS, NAPS, FAN, COUNTER, PARENT = LetterFlow(), NapFlow(), FanFlow(), CounterFlow(), ParentFlow()
FLAKY, TRAIN, STREAMS, STAY = FlakyFlow(), TrainFlow(), StreamFlow(), StayFlow()
TRIP, BRIEF = TripFlow(), BriefFlow()

REGISTRY = Registry(
    [LETTERS, NAPS, FAN, COUNTER, LEAF, PARENT, FLAKY, TRAIN, STREAMS, STAY, TRIP, BRIEF], allow_async_handlers=True
)
