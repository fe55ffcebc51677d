"""Attribute locks: one holder at a time, for one method attempt."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from datetime import timedelta

import pytest

from dex import (
    AsyncContext,
    Attribute,
    AttributeLock,
    AttributeMap,
    Channel,
    Context,
    FlowDefinitionError,
    Registry,
    RetryPolicy,
    StartFlowOptions,
    Step,
    StepDecision,
    StepMovement,
    StepOptions,
    Timer,
    Wait,
    dead_end,
    go_to_many,
    graceful_complete,
)
from tests.statements.kit import Made, events, outputs, steps_of
from tests.statements.test_loading import returned_attempt
from tests.world import World, scenario

count = Attribute("count", int)
x = Attribute("x", int)
y = Attribute("y", int)
stock = AttributeMap("stock", int)
go = Channel("go", int)
HAS = (count, x, y, stock, go)
LOCKS = {"x": x.lock(), "y": y.lock(), "pear": stock.lock("pear"), "plum": stock.lock("plum")}


# Lost updates ---------------------------------------------------------------------------------------------------------


class Increments(Step[float]):
    """Reads, takes its time, writes."""

    def __init__(self, *locks: AttributeLock) -> None:
        self.locks = locks

    def get_step_options(self) -> StepOptions:
        return StepOptions(execute_lock_attributes=self.locks, execute_retry=RetryPolicy(maximum_attempts=2))

    async def execute(self, context: AsyncContext, input: float) -> StepDecision:
        before = count.get(context)
        await asyncio.sleep(input)
        count.set(context, before + 1)
        return graceful_complete()


class Forks(Step[float]):
    def execute(self, context: Context, input: float) -> StepDecision:
        return go_to_many(*(StepMovement.of(Increments, input) for _ in range(5)))


@pytest.mark.statement("B194", "C28")
@pytest.mark.parametrize(("locks", "counted"), [((), 1), ((count.lock(),), 5), ((x.lock(),), 5)])
@scenario()
async def test_without_a_common_lock_updates_are_lost(
    world: World, locks: tuple[AttributeLock, ...], counted: int
) -> None:
    flow = Made(Forks(), Increments(*locks), has=HAS)
    await world.deploy(flow)
    await world.start(flow, "f", 1.0)
    await world.result("f")
    assert await world.client.get_attribute(world.id("f"), count) == counted


@pytest.mark.statement("B194")
@scenario(ray=True)
async def test_with_a_lock_steps_take_turns(world: World) -> None:
    flow = Made(Forks(), Increments(count.lock()), has=HAS, name="Counter")
    await world.deploy(flow)
    await world.start(flow, "f", 0.02)
    await world.result("f")
    assert await world.client.get_attribute(world.id("f"), count) == 5


# Who waits for whom ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Job:
    """A Step execution that locks these for so many seconds; `fails` so many times first."""

    locks: str = ""
    seconds: float = 10.0
    fails: int = 0
    options: StepOptions = field(default_factory=StepOptions)


class Holds(Step[tuple[float, int]]):
    async def execute(self, context: AsyncContext, input: tuple[float, int]) -> StepDecision:
        seconds, fails = input
        await asyncio.sleep(seconds)
        if context.attempt <= fails:
            raise RuntimeError("on purpose")
        return graceful_complete(context.attempt)


class ForksJobs(Step[None]):
    def __init__(self, jobs: Iterable[Job]) -> None:
        self.jobs = tuple(jobs)

    def execute(self, context: Context, input: None) -> StepDecision:
        movements = []
        for job in self.jobs:
            locks = tuple(LOCKS[lock] for lock in job.locks.split())
            options = replace(job.options, execute_lock_attributes=locks)
            movements.append(StepMovement.of(Holds, (job.seconds, job.fails), options))
        return go_to_many(*movements)


async def start_jobs(world: World, *jobs: Job) -> None:
    flow = Made(ForksJobs(jobs), Holds(), has=HAS)
    await world.deploy(flow)
    await world.start(flow, "f")


async def spans(world: World, **jobs: Job) -> dict[str, tuple[int, int]]:
    """Starts these at once; from when to when each of them ran, in seconds of the Flow."""
    await start_jobs(world, *jobs.values())
    await world.result("f", timeout=3600)
    begun = (await world.describe("f")).started_at
    times: dict[str, list[int]] = {}
    for event in await events(world, "f", "AttemptStarted", "StepCompleted"):
        times.setdefault(event.step_execution_id, []).append(round(event.at - begun))
    return {
        name: (times[f"Holds-{number}"][0], times[f"Holds-{number}"][-1]) for number, name in enumerate(jobs, start=1)
    }


@pytest.mark.statement("B194", "C28", "C29")
@scenario()
async def test_a_lock_keeps_out_who_locks_the_same_and_nobody_else(world: World) -> None:
    jobs = {"A": Job("x"), "B": Job("x"), "C": Job("y"), "D": Job(), "E": Job("pear"), "F": Job("plum")}
    assert await spans(world, **jobs) == {
        "A": (0, 10),
        "B": (10, 20),
        "C": (0, 10),
        "D": (0, 10),
        "E": (0, 10),
        "F": (0, 10),
    }


@pytest.mark.statement("C26", "C27")
@scenario()
async def test_all_locks_are_taken_together_and_none_while_one_is_missing(world: World) -> None:
    jobs = {"A": Job("x"), "B": Job("x y"), "C": Job("y", seconds=25.0), "D": Job("x", seconds=5.0)}
    assert await spans(world, **jobs) == {
        "A": (0, 10),
        "C": (0, 25),  # B is waiting for x, and holds no y meanwhile
        "D": (10, 15),
        "B": (25, 35),
    }


@pytest.mark.statement("B196", "B163")
@scenario()
async def test_waiting_for_a_lock_counts_toward_no_timeout(world: World) -> None:
    short = StepOptions(
        execute_method_timeout=timedelta(seconds=7),
        execute_retry=RetryPolicy(maximum_attempts=1, total_duration=timedelta(seconds=7)),
    )
    jobs = {"A": Job("x", seconds=50.0), "B": Job("x", seconds=5.0, options=short)}
    assert await spans(world, **jobs) == {"A": (0, 50), "B": (50, 55)}
    assert await steps_of(world, "f", "AttemptFailed") == []


@pytest.mark.statement("C31")
@scenario()
async def test_a_failed_attempt_gives_its_locks_back_and_its_retry_takes_them_again(world: World) -> None:
    assert await spans(world, A=Job("x", seconds=5.0, fails=1), B=Job("x", seconds=20.0)) == {
        "A": (0, 30),
        "B": (5, 25),
    }
    started = [event for event in await events(world, "f", "AttemptStarted") if event.step_execution_id == "Holds-1"]
    assert [event.data["attempt"] for event in started] == [1, 2]
    assert all(event.data["locks"] == ["x"] for event in started)


@pytest.mark.statement("C31", "B204")
@scenario()
async def test_an_attempt_that_came_back_unrun_keeps_its_locks(world: World) -> None:
    world = await returned_attempt(world)
    assert (await events(world, "f", "AttemptReturned"))[0].data["again_at"]
    live = world.engine.host.flows[world.id("f")]  # type: ignore[union-attr]
    assert live.flow.index.locks == {"mood": "ReadsMood-1"}
    await world.result("f")


# wait_for and execute -------------------------------------------------------------------------------------------------


class LocksBoth(Step[None]):
    """Locks x in wait_for and y in execute, each for 10 s, and waits 30 s between."""

    def get_step_options(self) -> StepOptions:
        return StepOptions(wait_for_lock_attributes=(x.lock(),), execute_lock_attributes=(y.lock(),))

    async def wait_for(self, context: AsyncContext, input: None) -> Wait:
        await asyncio.sleep(10)
        return Wait.until(Timer.by_duration(timedelta(seconds=30)))

    async def execute(self, context: AsyncContext, input: None) -> StepDecision:
        await asyncio.sleep(10)
        return dead_end()


class Probes(Step[int]):
    """Asks for the lock that its movement names, after so many seconds."""

    def wait_for(self, context: Context, input: int) -> Wait:
        return Wait.until(Timer.by_duration(timedelta(seconds=input)))

    def execute(self, context: Context, input: int) -> StepDecision:
        return dead_end()


PROBES = [(lock, seconds) for lock in ("x", "y") for seconds in (5, 20, 45)]


class Probing(Step[None]):
    def execute(self, context: Context, input: None) -> StepDecision:
        probes = [
            StepMovement.of(Probes, seconds, StepOptions(execute_lock_attributes=(LOCKS[lock],)))
            for lock, seconds in PROBES
        ]
        return go_to_many(StepMovement.of(LocksBoth, None), *probes)


@pytest.mark.statement("B195", "C26")
@scenario()
async def test_wait_for_and_execute_lock_for_themselves_and_a_wait_holds_nothing(world: World) -> None:
    flow = Made(Probing(), LocksBoth(), Probes(), has=HAS)
    await world.deploy(flow)
    await world.start(flow, "f")
    await world.advance(100)
    begun = (await world.describe("f")).started_at
    done = {event.step_execution_id: round(event.at - begun) for event in await events(world, "f", "StepCompleted")}
    assert {probe: done[f"Probes-{number}"] for number, probe in enumerate(PROBES, start=1)} == {
        ("x", 5): 10,  # wait_for holds x
        ("y", 5): 5,
        ("x", 20): 20,  # while the Step waits it holds nothing
        ("y", 20): 20,
        ("x", 45): 45,
        ("y", 45): 50,  # execute holds y
    }


@pytest.mark.statement("C31")
@scenario()
async def test_a_crash_gives_all_locks_back(world: World) -> None:
    await start_jobs(world, Job("x"), Job("x"))
    await world.advance(5)
    await world.restart()
    assert sorted(outputs(await world.result("f"), int)) == [("Holds-1", 2), ("Holds-2", 1)]


# Definitions ----------------------------------------------------------------------------------------------------------


@pytest.mark.statement("C29")
@pytest.mark.parametrize("locks", [(x.lock(), x.lock()), (stock.lock("pear"), stock.lock("pear"))])
def test_the_same_lock_twice_is_refused_by_the_registry(locks: tuple[AttributeLock, ...]) -> None:
    flow = Made(Forks(), Increments(*locks), has=HAS)
    with pytest.raises(FlowDefinitionError, match="twice"):
        Registry([flow], allow_async_handlers=True)


@pytest.mark.statement("C29")
def test_a_lock_of_a_map_names_one_instance() -> None:
    flow = Made(Forks(), Increments(AttributeLock(stock)), has=HAS)
    with pytest.raises(FlowDefinitionError, match="one instance"):
        Registry([flow], allow_async_handlers=True)


# Snapshots ------------------------------------------------------------------------------------------------------------


class ReadsLocked(Step[None]):
    def get_step_options(self) -> StepOptions:
        return StepOptions(execute_lock_attributes=(count.lock(),), execute_retry=RetryPolicy(maximum_attempts=2))

    def execute(self, context: Context, input: None) -> StepDecision:
        if context.attempt == 1:
            raise RuntimeError("on purpose")
        return graceful_complete(count.get(context))


@pytest.mark.statement("C30", "B188")
@scenario()
async def test_taking_a_lock_again_does_not_refresh_what_a_retry_sees(world: World) -> None:
    flow = Made(ReadsLocked(), has=HAS)
    await world.deploy(flow)
    await world.start(flow, "f", None, StartFlowOptions().with_attribute(count, 1))
    await world.until_phase("f", "ReadsLocked-1", "backoff")
    await world.client.set_attribute(world.id("f"), count, 2)
    assert (await world.result("f")).single_output(int) == 1
