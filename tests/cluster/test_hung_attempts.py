"""Handlers that hang, in real processes: what the owner does about them, and what it costs the others.

Handlers write to files of the test's folder; the test never waits for a time where it can wait for a file.
"""

from __future__ import annotations

import asyncio
import os
import signal
import statistics
import time
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pytest
import ray

from dex import (
    AsyncContext,
    Attribute,
    Channel,
    Context,
    RetryPolicy,
    Step,
    StepDecision,
    StepMovement,
    StepOptions,
    StepOutput,
    Wait,
    dead_end,
    force_complete,
    go_to_many,
    graceful_complete,
    heartbeat,
)
from tests.statements.kit import Made, events
from tests.statements.test_timeouts import ONCE, every, seconds
from tests.world import World, scenario

pytestmark = pytest.mark.ray

stop = Channel("stop", str)
note = Attribute("note", str)


def write(path: str, text: str) -> None:
    """So that a reader sees all of it or nothing."""
    temporary = f"{path}.{os.getpid()}"
    Path(temporary).write_text(text)
    os.rename(temporary, path)


def content(path: Path) -> str | None:
    return path.read_text() if path.exists() else None


async def text_of(world: World, path: Path) -> str:
    async def there() -> bool:
        return content(path) is not None

    await world.until(there)
    return content(path) or ""


def is_alive(pid: int) -> bool:
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False


async def all_cpus_are_free(world: World) -> None:
    untyped: Any = ray

    async def free() -> bool:
        return bool(untyped.available_resources().get("CPU", 0) == untyped.cluster_resources()["CPU"])

    await world.until(free)


class Recovers(Step[str]):
    def execute(self, context: Context, input: str) -> StepDecision:
        error = context.recovery_error
        assert error is not None
        return force_complete([error.error_type, error.attempt_progress.name])


# Hung handlers --------------------------------------------------------------------------------------------------------


class Hung(Step[str]):
    """Hangs for `lasts` seconds, then writes when that was and returns: a zombie by then. Its input is a folder."""

    lasts = 6.0

    def get_step_options(self) -> StepOptions:
        options = StepOptions(execute_method_timeout=seconds(1), execute_retry=ONCE)
        return options.on_execute_failure_proceed_to(Recovers)

    def execute(self, context: Context, input: str) -> StepDecision:
        self.hang()
        return self.end(context, input)

    def end(self, context: Context, input: str) -> StepDecision:
        note.set(context, "by a zombie")
        write(f"{input}/{type(self).__name__}", str(time.time()))
        return graceful_complete("by a zombie")

    def hang(self) -> None:
        time.sleep(self.lasts)


class Sleeps(Hung):
    pass


class SwallowsAll(Hung):
    def hang(self) -> None:
        ends = time.monotonic() + self.lasts
        while time.monotonic() < ends:
            try:
                time.sleep(0.1)
                raise RuntimeError("never mind")
            except Exception:
                pass


class HoldsTheGil(Hung):
    def hang(self) -> None:
        ends = time.monotonic() + self.lasts
        while time.monotonic() < ends:
            sum(range(20_000_000))  # one call into native code, which no other thread can interrupt


class BlocksTheLoop(Hung):
    async def execute(self, context: AsyncContext, input: str) -> StepDecision:
        return super().execute(context, input)


class IgnoresCancelledError(Hung):
    async def execute(self, context: AsyncContext, input: str) -> StepDecision:
        ends = time.monotonic() + self.lasts
        while time.monotonic() < ends:
            try:
                await asyncio.sleep(0.1)
            except asyncio.CancelledError:
                continue
        return self.end(context, input)


@pytest.mark.statement("B118", "B121", "B122", "B132", "B161", "B163", "B172", "D9")
@scenario(ray=True, in_process=False)
async def test_a_handler_that_hangs_is_out_of_time_and_its_late_result_is_refused(world: World) -> None:
    kinds = (Sleeps(), SwallowsAll(), HoldsTheGil(), BlocksTheLoop(), IgnoresCancelledError())
    flows = {
        type(step).__name__: Made(step, Recovers(), has=(note,), name=f"Hung{type(step).__name__}") for step in kinds
    }
    await world.deploy(*flows.values())
    for name, flow in flows.items():
        await world.start(flow, name, str(world.folder))
    for name in flows:
        result = await world.result(name)
        assert (name, result.single_output(list)) == (name, ["METHOD_TIMEOUT", "NOT_COMPLETED"])
    for name in flows:  # the owner did not wait for the handler to come back
        (failed,) = await events(world, name, "AttemptFailed")
        assert failed.at < float(await text_of(world, world.file(name))), name
    await all_cpus_are_free(world)
    for name in flows:
        assert await world.client.get_attribute(world.id(name), note) is None
        assert (await world.result(name)).single_output(list) == ["METHOD_TIMEOUT", "NOT_COMPLETED"]


class Stopped(Step[str]):
    """Attempt 1 writes its process to a file, and beats until its process is stopped."""

    def get_step_options(self) -> StepOptions:
        return StepOptions(execute_retry=every(1, maximum_attempts=2))

    def execute(self, context: Context, input: str) -> Generator[StepOutput, None, StepDecision]:
        if context.attempt == 2:
            return graceful_complete(context.get_last_heartbeat_value(str))
        yield heartbeat("checkpoint")
        write(f"{input}/pid", str(os.getpid()))
        while not Path(f"{input}/thawed").exists():
            yield heartbeat("checkpoint")
            time.sleep(0.02)
        note.set(context, "by a zombie")
        write(f"{input}/ended", "")
        return graceful_complete("by a zombie")


@pytest.mark.statement("B173", "B175", "B200", "B201", "D9")
@scenario(ray=True, in_process=False)
async def test_a_frozen_process_is_silent_and_what_it_says_when_thawed_is_refused(world: World) -> None:
    flow = Made(Stopped(), has=(note,), name="Freezes")
    await world.deploy(flow, heartbeat_timeout=1.0)
    await world.start(flow, "f", str(world.folder))
    pid = int(await text_of(world, world.file("pid")))
    await world.advance(0.5)
    os.kill(pid, signal.SIGSTOP)
    try:
        assert (await world.result("f")).single_output(str) == "checkpoint"
    finally:
        world.file("thawed").touch()
        os.kill(pid, signal.SIGCONT)
    await text_of(world, world.file("ended"))
    await all_cpus_are_free(world)
    (failed,) = await events(world, "f", "AttemptFailed")
    assert failed.data["failure"]["kind"] == "HEARTBEAT_TIMEOUT"
    assert await world.client.get_attribute(world.id("f"), note) is None
    assert (await world.result("f")).single_output(str) == "checkpoint"


class Works(Step[str]):
    """Lasts three times as long as its silence may, in ways that let no other thread or task run."""

    def get_step_options(self) -> StepOptions:
        return StepOptions(execute_retry=ONCE)

    def execute(self, context: Context, input: str) -> Generator[StepOutput, None, StepDecision]:
        for number in range(4):
            spin(1.0)
            yield heartbeat(number)
        return graceful_complete("alive")


class WorksAsync(Works):
    async def execute(self, context: AsyncContext, input: str) -> StepDecision:
        for number in range(4):
            spin(1.0)
            await context.heartbeat(number)
        return graceful_complete("alive")


def spin(lasts: float) -> None:
    ends = time.monotonic() + lasts
    while time.monotonic() < ends:
        sum(range(2_000_000))


@pytest.mark.statement("B173")
@scenario(ray=True, in_process=False)
async def test_a_handler_that_blocks_all_else_but_shows_signs_of_life_is_not_lost(world: World) -> None:
    flows = [Made(Works(), name="Works"), Made(WorksAsync(), name="WorksAsync")]
    await world.deploy(*flows, heartbeat_timeout=3.0)
    for flow in flows:
        await world.start(flow, flow.name, "")
    for flow in flows:
        assert (await world.result(flow.name)).single_output(str) == "alive"


class Dies(Step[str]):
    def get_step_options(self) -> StepOptions:
        return StepOptions(execute_retry=every(1, maximum_attempts=2))

    def execute(self, context: Context, input: str) -> StepDecision:
        if context.attempt == 1:
            if input == "os._exit":
                os._exit(1)
            os.kill(os.getpid(), signal.SIGKILL)
        return graceful_complete(context.attempt)


@pytest.mark.statement("B134", "B200")
@scenario(ray=True, in_process=False)
async def test_a_process_that_ends_takes_a_retry_and_no_more(world: World) -> None:
    flow = Made(Dies(), name="Dies")
    await world.deploy(flow)
    for way in ("os._exit", "SIGKILL"):
        await world.start(flow, way, way)
    for way in ("os._exit", "SIGKILL"):
        assert (await world.result(way)).single_output(int) == 2
        (failed,) = await events(world, way, "AttemptFailed")
        assert failed.data["failure"]["kind"] == "WORKER_CRASHED"


# Cancellation ---------------------------------------------------------------------------------------------------------


class Listens(Step[str]):
    """Ends when it is asked to stop, and writes when that was. wait_for listens if the input says so."""

    def wait_for(self, context: Context, input: str) -> Wait:
        if input.endswith("/wait_for"):
            listen(context, input)
        return Wait.skip_immediately()

    def execute(self, context: Context, input: str) -> StepDecision:
        listen(context, input)
        return dead_end()


class Yields(Listens):
    def execute(self, context: Context, input: str) -> Generator[StepOutput, None, StepDecision]:
        write(f"{input}.begun", "")
        ends = time.monotonic() + 20
        while time.monotonic() < ends and not context.is_cancellation_requested():
            yield heartbeat()
            time.sleep(0.005)
        write(input, str(time.time()))
        return dead_end()


class Awaits(Listens):
    async def wait_for(self, context: AsyncContext, input: str) -> Wait:
        if input.endswith("/wait_for"):
            await listen_async(context, input)
        return Wait.skip_immediately()

    async def execute(self, context: AsyncContext, input: str) -> StepDecision:
        await listen_async(context, input)
        return dead_end()


def listen(context: Context, path: str) -> None:
    write(f"{path}.begun", "")
    ends = time.monotonic() + 20
    while time.monotonic() < ends and not context.is_cancellation_requested():
        time.sleep(0.005)
    write(path, str(time.time()))


async def listen_async(context: AsyncContext, path: str) -> None:
    write(f"{path}.begun", "")
    try:
        await asyncio.sleep(20)
    except asyncio.CancelledError:
        assert context.is_cancellation_requested()
        write(path, str(time.time()))
        raise


class Stops(Step[str]):
    async def wait_for(self, context: AsyncContext, input: str) -> Wait:
        return Wait.until(stop.for_one())

    async def execute(self, context: AsyncContext, input: str) -> StepDecision:
        return graceful_complete("all others are gone").with_canceling_steps(Listens, Yields, Awaits, Deaf, DeafInC)


class Forks(Step[list[list[str]]]):
    async def execute(self, context: AsyncContext, input: list[list[str]]) -> StepDecision:
        kinds: dict[str, type[Step[Any]]] = {kind.__name__: kind for kind in (Listens, Yields, Awaits, Deaf, DeafInC)}
        return go_to_many(StepMovement.of(Stops, ""), *(StepMovement.of(kinds[kind], path) for kind, path in input))


class Cancels(Made):
    def __init__(self) -> None:
        super().__init__(
            Forks(), Stops(), Listens(), Yields(), Awaits(), Deaf(), DeafInC(), has=(stop,), name="CancelsOnRay"
        )


@pytest.mark.statement("B117", "B120", "B121")
@scenario(ray=True, in_process=False)
async def test_every_kind_of_handler_hears_of_its_cancellation_in_a_tenth_of_a_second(world: World) -> None:
    flow = Cancels()
    await world.deploy(flow)
    paths = []
    for kind, method in [
        ("Listens", "wait_for"),
        ("Listens", "execute"),
        ("Yields", "execute"),
        ("Awaits", "wait_for"),
        ("Awaits", "execute"),
    ]:
        world.file(kind).mkdir(exist_ok=True)
        paths.append((kind, str(world.file(kind) / method)))
    await world.start(flow, "f", [list(pair) for pair in paths])
    for _, path in paths:
        await text_of(world, Path(f"{path}.begun"))
    await world.publish("f", stop, "now")
    assert (await world.result("f")).single_output(str) == "all others are gone"
    (canceled_at,) = {event.at for event in await events(world, "f", "StepCancelled")}
    delays = {path: float(await text_of(world, Path(path))) - canceled_at for _, path in paths}
    assert statistics.median(delays.values()) < 0.1, delays
    assert max(delays.values()) < 2.0, delays  # a machine that is busy with other things
    await all_cpus_are_free(world)


class Deaf(Step[str]):
    def get_step_options(self) -> StepOptions:
        return StepOptions(kill_after=seconds(1), execute_retry=ONCE)

    def execute(self, context: Context, input: str) -> StepDecision:
        write(input, str(os.getpid()))
        self.hang()
        return dead_end()

    def hang(self) -> None:
        time.sleep(60)


class DeafInC(Deaf):
    def hang(self) -> None:
        ends = time.monotonic() + 60
        while time.monotonic() < ends:
            sum(range(1_000_000_000))


@scenario(ray=True, in_process=False)
async def test_a_handler_that_does_not_stop_is_killed_when_its_options_say_so_and_no_other_is(world: World) -> None:
    flow = Cancels()
    bystander = Made(Patient(), name="Bystander")
    await world.deploy(flow, bystander)
    kinds = ["Deaf", "DeafInC"]
    await world.start(bystander, "b", str(world.folder))
    await world.start(flow, "f", [[kind, str(world.file(kind))] for kind in kinds])
    pids = {kind: int(await text_of(world, world.file(kind))) for kind in kinds}
    assert all(map(is_alive, pids.values()))
    await world.publish("f", stop, "now")
    assert (await world.result("f")).single_output(str) == "all others are gone"
    assert all(map(is_alive, pids.values()))
    for kind in kinds:
        await world.until(dead(pids[kind]), timeout=15)
    world.file("end").touch()
    assert (await world.result("b")).single_output(int) == 1
    await all_cpus_are_free(world)


def dead(pid: int) -> Callable[[], Any]:
    async def check() -> bool:
        return not is_alive(pid)

    return check


class Patient(Step[str]):
    def execute(self, context: Context, input: str) -> StepDecision:
        while not Path(f"{input}/end").exists():
            time.sleep(0.05)
        return graceful_complete(context.attempt)


class OverTime(Deaf):
    def get_step_options(self) -> StepOptions:
        options = StepOptions(kill_after=seconds(1), execute_retry=ONCE, execute_method_timeout=seconds(1))
        return options.on_execute_failure_proceed_to(Recovers)


@scenario(ray=True, in_process=False)
async def test_a_kill_after_a_timeout_leaves_the_timeout_as_the_reason(world: World) -> None:
    flow = Made(OverTime(), Recovers(), name="OverTime")
    await world.deploy(flow)
    await world.start(flow, "f", str(world.file("pid")))
    assert (await world.result("f")).single_output(list) == ["METHOD_TIMEOUT", "NOT_COMPLETED"]
    await world.until(dead(int(world.file("pid").read_text())), timeout=10)
    await all_cpus_are_free(world)
    assert len(await events(world, "f", "AttemptFailed")) == 1


class Unkilled(Step[str]):
    """Without kill_after, a handler that does not listen is left alone."""

    def get_step_options(self) -> StepOptions:
        return StepOptions(execute_method_timeout=seconds(1), execute_retry=RetryPolicy(maximum_attempts=1))

    def execute(self, context: Context, input: str) -> StepDecision:
        write(input, str(os.getpid()))
        time.sleep(4)
        write(f"{input}.ended", "")
        return dead_end()


@pytest.mark.statement("B121")
@scenario(ray=True, in_process=False)
async def test_nobody_is_killed_who_did_not_ask_for_it(world: World) -> None:
    flow = Made(Unkilled(), name="Unkilled")
    await world.deploy(flow)
    await world.start(flow, "f", str(world.file("pid")))
    assert (await world.result("f")).status.name == "FAILED"
    await text_of(world, world.file("pid.ended"))
