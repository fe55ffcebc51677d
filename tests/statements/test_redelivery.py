"""What a failure means: attempts that were interrupted, attempts that never ran, Steps that nobody can run, and what
the failure route is told."""

from __future__ import annotations

import asyncio
import sqlite3
from typing import Any

import pytest

from dex import (
    AsyncContext,
    Attribute,
    Channel,
    Context,
    Registry,
    RetryPolicy,
    Step,
    StepDecision,
    StepDurability,
    StepMovement,
    StepOptions,
    StepResources,
    Wait,
    dead_end,
    force_complete,
    go_to,
    go_to_many,
    graceful_complete,
)
from dexray.machine.events import AttemptStarted, decode_record
from dexray.protocol.attempts import AttemptTask
from tests.statements.kit import Made, events, steps_of
from tests.statements.test_timeouts import DAY, A, B, Does, every, seconds
from tests.world import InProcessWorld, World, scenario

SYNC, ASYNC = StepDurability.SYNC, StepDurability.ASYNC
go = Channel("go", int)
big = Channel("big", str)
note = Attribute("note", str)


def lose_the_code(world: World) -> Registry:
    """From now on the worker has other code than the engine thinks, and gives attempts back. Returns the right code."""
    assert isinstance(world, InProcessWorld)
    assert world.engine is not None
    right = world.engine.registry
    world.engine.registry = Registry([Made(A(), name="Other")], allow_async_handlers=True)
    return right


def find_the_code(world: World, code: Registry) -> None:
    assert isinstance(world, InProcessWorld)
    assert world.engine is not None
    world.engine.registry = code


# Hand-out ------------------------------------------------------------------------------------------------------------


@pytest.mark.statement("B197", "B198")
@scenario()
async def test_a_slot_is_reserved_then_the_start_is_recorded_then_the_task_is_sent(world: World) -> None:
    """The record of the start pins the snapshot and takes the locks."""
    log: list[tuple[str, bool, bool, bool]] = []
    locked: dict[str, Any] = {"execute_lock_attributes": (note.lock(),)}
    flow = Made(Does(None, **locked), has=(note,), name="HandsOut")
    await world.deploy(flow)
    assert isinstance(world, InProcessWorld)
    assert world.engine is not None
    host, attempts = world.engine.host, world.engine.attempts
    reserve, run = attempts.reserve, attempts.run

    def look(what: str) -> None:
        live = host.flows[world.id("f")]
        step = live.flow.state.steps["Does-1"]
        recorded = [
            event
            for record in host.journal.records(live.run_id, 0, 100)
            for event in decode_record(record.body)
            if isinstance(event, AttemptStarted)
        ]
        log.append((what, step.snapshot is not None, bool(step.locks), bool(recorded)))

    def looks_and_reserves(*kind: Any) -> bool:
        look("reserve")
        return reserve(*kind)

    def looks_and_runs(task: AttemptTask) -> None:
        look("run")
        run(task)

    attempts.reserve = looks_and_reserves  # type: ignore[method-assign, assignment]
    attempts.run = looks_and_runs  # type: ignore[method-assign]
    await world.start(flow, "f", None)
    await world.result("f")
    assert log == [("reserve", False, False, False), ("run", True, True, True)]


# Returned attempts ----------------------------------------------------------------------------------------------------


@pytest.mark.statement("B188", "B204", "B205", "B213", "C31")
@pytest.mark.parametrize("durability", [SYNC, ASYNC])
@scenario()
async def test_an_attempt_that_did_not_run_keeps_its_number_snapshot_and_locks(
    world: World, durability: StepDurability
) -> None:
    order: list[str] = []

    forked = asyncio.Event()

    async def fork(context: AsyncContext, input: None) -> StepDecision:
        forked.set()
        await asyncio.sleep(1)
        return go_to_many(StepMovement.of(A, None), StepMovement.of(B, None))

    async def returned(context: AsyncContext, input: None) -> StepDecision:
        order.append(f"A {context.attempt} {note.get(context)}")
        return dead_end()

    async def other(context: AsyncContext, input: None) -> StepDecision:
        order.append("B")
        return dead_end()

    locked: dict[str, Any] = {
        "execute_lock_attributes": (note.lock(),),
        "execute_retry": RetryPolicy(maximum_attempts=1),
        "execute_durability": durability,
    }
    flow = Made(Does(fork), A(returned, **locked), B(other, **locked), has=(note,), name="Returned")
    await world.deploy(flow)
    await world.start(flow, "f", None)
    await forked.wait()
    code = lose_the_code(world)
    await world.advance(30)
    (first, second) = (await world.describe("f")).steps
    assert (first.step_execution_id, first.attempt, first.last_failure) == ("A-1", 1, None)
    assert "has no Flow 'Returned'" in first.waits_for
    assert "a lock" in second.waits_for
    await world.client.set_attribute(world.id("f"), note, "written meanwhile")
    find_the_code(world, code)
    await world.advance(30)
    assert order == ["A 1 None", "B"]
    started = await events(world, "f", "AttemptStarted")
    assert {event.data["attempt"] for event in started if event.step_execution_id == "A-1"} == {1}
    assert len(await events(world, "f", "AttemptReturned")) > 5
    assert not await events(world, "f", "AttemptFailed")


@pytest.mark.statement("B166")
@scenario()
async def test_the_total_duration_begins_anew_when_attempt_one_did_not_run(world: World) -> None:
    async def act(context: AsyncContext, input: None) -> StepDecision:
        if context.attempt <= 3:
            raise RuntimeError("again")
        return graceful_complete(context.attempt)

    flow = Made(Does(act, execute_retry=every(5, total_duration=seconds(20))), name="Resets")
    await world.deploy(flow)
    code = lose_the_code(world)
    await world.start(flow, "f", None)
    await world.advance(300)
    find_the_code(world, code)
    assert (await world.result("f")).single_output(int) == 4


# Interrupted attempts -------------------------------------------------------------------------------------------------


@pytest.mark.statement("B202", "B203", "B215", "B217", "B219", "B220", "B228")
@pytest.mark.parametrize("durability", [SYNC, ASYNC])
@pytest.mark.parametrize("attempts", [1, 2])
@scenario()
async def test_a_crash_fails_what_was_handed_out_and_takes_a_retry(
    world: World, durability: StepDurability, attempts: int
) -> None:
    async def act(context: AsyncContext, input: None) -> StepDecision:
        if context.attempt < 3:
            await asyncio.sleep(50)
        return graceful_complete("an attempt too many")

    step = Does(act, execute_retry=every(10, maximum_attempts=attempts), execute_durability=durability)
    step.options = step.options.on_execute_failure_proceed_to(Recovers)
    flow = Made(step, Recovers(), name="Interrupts")
    await world.deploy(flow)
    await world.start(flow, "f", None)
    for _ in range(attempts):
        await world.until_phase("f", "Does-1", "running")
        await world.advance(5)
        await world.restart()
        await world.advance(1)
    kind = "STARTED_ATTEMPT_INTERRUPTED"
    assert (await world.result("f")).single_output(list) == [kind, "NOT_COMPLETED"]
    failed = await events(world, "f", "AttemptFailed")
    assert [event.data["failure"]["kind"] for event in failed] == [kind] * attempts
    started = [event for event in await events(world, "f", "AttemptStarted") if event.step_execution_id == "Does-1"]
    assert [event.data["attempt"] for event in started] == list(range(1, attempts + 1))
    if attempts == 2:
        assert started[1].at - failed[0].at == pytest.approx(10, abs=0.1)


@pytest.mark.statement("B143", "B202")
@scenario()
async def test_the_interruption_is_there_to_see_while_the_next_attempt_waits(world: World) -> None:
    async def act(context: AsyncContext, input: None) -> StepDecision:
        await asyncio.sleep(50)
        return graceful_complete()

    flow = Made(Does(act, execute_retry=every(100)), name="SeesInterrupted")
    await world.deploy(flow)
    await world.start(flow, "f", None)
    await world.until_phase("f", "Does-1", "running")
    await world.restart()
    (open_step,) = (await world.describe("f")).steps
    assert (open_step.phase, open_step.attempt) == ("backoff", 2)
    assert open_step.last_failure is not None
    assert open_step.last_failure.kind == "STARTED_ATTEMPT_INTERRUPTED"


# attempt_progress -----------------------------------------------------------------------------------------------------


class Recovers(Step[Any]):
    def execute(self, context: Context, input: Any) -> StepDecision:
        error = context.recovery_error
        assert error is not None
        return force_complete([error.error_type, error.attempt_progress.name])


class Reads(Step[int]):
    """Waits for a message of `big`. Its first attempts fail, as many as its input says; it has two attempts."""

    def __init__(self, durability: StepDurability) -> None:
        self.durability = durability

    def get_step_options(self) -> StepOptions:
        return StepOptions(
            execute_durability=self.durability, execute_retry=every(10, maximum_attempts=2)
        ).on_execute_failure_proceed_to(RecoversReads)

    def wait_for(self, context: Context, input: int) -> Wait:
        return Wait.until(big.for_one())

    def execute(self, context: Context, input: int) -> StepDecision:
        if context.attempt <= input:
            raise KeyError("ran")
        return graceful_complete(len(big.results(context)[0]))


class RecoversReads(Step[int]):
    def execute(self, context: Context, input: int) -> StepDecision:
        error = context.recovery_error
        assert error is not None
        return force_complete([error.error_type, error.attempt_progress.name])


@pytest.mark.statement("B213", "B215", "B216", "B217", "B219", "B220", "B223")
@pytest.mark.parametrize(
    ("durability", "ran", "expected"),
    [
        (SYNC, 0, ["VALUES_LOST", "NOT_STARTED"]),
        (ASYNC, 0, ["VALUES_LOST", "NOT_COMPLETED"]),
        (SYNC, 1, ["VALUES_LOST", "NOT_COMPLETED"]),
        (SYNC, 2, ["builtins.KeyError", "NOT_COMPLETED"]),
        (ASYNC, 2, ["builtins.KeyError", "NOT_COMPLETED"]),
    ],
)
@scenario()
async def test_the_route_is_told_the_furthest_progress_of_all_attempts(
    world: World, durability: StepDurability, ran: int, expected: list[str]
) -> None:
    """A large value that was lost keeps an attempt from ever reaching a worker."""
    flow = Made(Reads(durability), RecoversReads(), has=(big,), name="Progress")
    await world.deploy(flow)
    await world.start(flow, "f", ran)
    if ran == 0:  # the message is taken at once, but its attempt finds no slot before the value is lost
        await world.until_phase("f", "Reads-1", "waiting")
        set_slots(world, 0)
    await world.publish("f", big, "x" * 100_000)
    if ran == 1:
        await world.until_phase("f", "Reads-1", "backoff")
    if ran < 2:
        lose_the_blobs(world)
    set_slots(world, 100)
    result = await world.result("f", timeout=200)
    assert result.single_output(list) == expected


def set_slots(world: World, slots: int) -> None:
    assert isinstance(world, InProcessWorld)
    assert world.engine is not None
    world.engine.attempts._slots = slots
    world.engine.host.slots_changed()


def lose_the_blobs(world: World) -> None:
    assert isinstance(world, InProcessWorld)
    with sqlite3.connect(world._journal_path) as database:
        database.execute("delete from blobs")


@pytest.mark.statement("B221", "B222", "B217")
@scenario()
async def test_an_input_that_can_not_be_decoded_fails_the_attempt_like_an_error_of_the_handler(world: World) -> None:
    class Reading(Step[int]):
        def wait_for(self, context: Context, input: int) -> Wait:
            return Wait.until(go.for_one())

        def execute(self, context: Context, input: int) -> StepDecision:
            return graceful_complete()

    before = Made(Reading(), has=(go,), name="Decodes")

    class Reading(Step[str]):  # type: ignore[no-redef]
        def get_step_options(self) -> StepOptions:
            return StepOptions(execute_retry=RetryPolicy(maximum_attempts=1))

        def wait_for(self, context: Context, input: str) -> Wait:
            return Wait.until(go.for_one())

        def execute(self, context: Context, input: str) -> StepDecision:
            return graceful_complete()

    after = Made(Reading(), has=(go,), name="Decodes")
    await world.deploy(before)
    await world.start(before, "f", 1)
    await world.until_phase("f", "Reading-1", "waiting")
    await world.deploy(after)
    await world.publish("f", go, 1)
    result = await world.result("f")
    assert result.status.name == "FAILED"
    assert "ValueMappingError" in result.error_message
    (failed,) = await events(world, "f", "AttemptFailed")
    assert failed.data["failure"]["kind"] == "HANDLER_ERROR"
    assert failed.data["failure"]["may_have_run"] is True


# Steps that nobody can run --------------------------------------------------------------------------------------------


@pytest.mark.statement("B213", "D7", "D16")
@scenario()
async def test_a_step_whose_code_is_not_deployed_waits_and_says_so(world: World) -> None:
    async def first(context: AsyncContext, input: None) -> StepDecision:
        await asyncio.sleep(10)
        return go_to(A, None)

    async def second(context: AsyncContext, input: None) -> StepDecision:
        return graceful_complete(context.attempt)

    async def third(context: AsyncContext, input: None) -> StepDecision:
        raise AssertionError("not this one")

    flow = Made(Does(first), A(second, execute_retry=RetryPolicy(maximum_attempts=1)), name="Undeployed")
    without = Made(B(third), name="Undeployed")
    await world.deploy(flow)
    await world.start(flow, "f", None)
    await world.until_phase("f", "Does-1", "running")
    set_slots(world, 0)
    await world.until_phase("f", "A-1", "ready")
    await world.deploy(without)
    set_slots(world, 100)
    await world.advance(DAY)
    described = await world.describe("f")
    (open_step,) = described.steps
    assert "has no Step" in described.problem
    assert open_step.phase in ("ready", "backoff")
    await world.deploy(flow)
    assert (await world.result("f", timeout=300)).status.name == "COMPLETED"


@pytest.mark.statement("B213", "D7", "D16")
@scenario()
async def test_a_step_that_becomes_ready_without_its_code_waits_for_it(world: World) -> None:
    class Asks(Step[None]):
        def wait_for(self, context: Context, input: None) -> Wait:
            return Wait.until(go.for_one())

        def execute(self, context: Context, input: None) -> StepDecision:
            return graceful_complete(context.attempt)

    flow = Made(Asks(), has=(go,), name="Asking")
    await world.deploy(flow)
    await world.start(flow, "f", None)
    await world.until_phase("f", "Asks-1", "waiting")
    await world.deploy(Made(A(), has=(go,), name="Asking"))
    await world.publish("f", go, 1)
    await world.advance(DAY)
    described = await world.describe("f")
    assert "the deployed code of Asking has no Step Asks" in described.problem
    assert described.steps[0].waits_for.startswith("code of Flow type Asking that has Step Asks")
    await world.deploy(flow)
    assert (await world.result("f")).single_output(int) == 1


class Needs(Step[str]):
    def __init__(self, **resources: Any) -> None:
        self.resources = StepResources(**resources)

    def get_step_options(self) -> StepOptions:
        return StepOptions(resources=self.resources)

    def execute(self, context: Context, input: str) -> StepDecision:
        return graceful_complete(input)


@pytest.mark.statement("B213", "B23")
@scenario(ray=True, in_process=False)
async def test_a_step_whose_resources_the_cluster_lacks_waits_and_says_so(world: World) -> None:
    there = Made(Needs(num_cpus=0.5, resources={"bench": 1}), name="There")
    absent = Made(Needs(num_gpus=1), name="Absent")
    too_much = Made(Needs(resources={"bench": 3}), name="TooMuch")
    await world.deploy(there, absent, too_much)
    for flow in (absent, too_much, there):
        await world.start(flow, flow.get_flow_type(), "ran")
    assert (await world.result("There")).single_output(str) == "ran"
    for name, expected in [
        ("Absent", "attempt 1 of execute to begin: waiting for resources {'num_gpus': 1}: the cluster has no GPU"),
        ("TooMuch", "waiting for resources {'resources': {'bench': 3}}: the cluster has 2 bench"),
    ]:
        described = await world.describe(name)
        assert described.status == "RUNNING"
        assert expected in described.steps[0].waits_for
        await world.client.stop_flow(world.id(name))
        assert (await world.result(name)).status.name == "CANCELED"
    assert await steps_of(world, "Absent", "AttemptFailed") == []
