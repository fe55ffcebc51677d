"""Designing for redelivery: what is stable over attempts, and what an attempt's failure does not tell."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import pytest

from dex import (
    AsyncClient,
    AsyncContext,
    AttemptProgress,
    Channel,
    Context,
    FlowErrorType,
    FlowStatus,
    IdReusePolicy,
    Registry,
    RetryPolicy,
    StartFlowOptions,
    Step,
    StepDecision,
    StepOptions,
    ValueMappingError,
    Wait,
    dead_end,
    go_to,
    graceful_complete,
)
from tests.statements.kit import Made, events, note_down, outputs
from tests.world import World, scenario

go = Channel("go", None)

# Starting another Flow from a Step ------------------------------------------------------------------------------------


class Shipment(Step[str]):
    def execute(self, context: Context, input: str) -> StepDecision:
        return graceful_complete(f"shipped {input}")


SHIPPING = Made(Shipment(), name="Shipping")
SAFE = StartFlowOptions(request_id="ship-order", id_reuse_policy=IdReusePolicy.DISALLOW, ignore_already_started=True)


class Ships(Step[str]):
    """Starts a Flow of its own kind; its first worker dies when that is accepted and nothing of it is committed."""

    def __init__(self, die: Callable[[], Awaitable[None]]) -> None:
        self.die = die

    async def execute(self, context: AsyncContext, input: str) -> StepDecision:
        async with AsyncClient(Registry([SHIPPING])) as client:
            run_id = await client.start_flow(SHIPPING, input, context.flow_id, SAFE)
        if context.attempt == 1:
            await self.die()
        return graceful_complete([run_id, context.attempt])


@pytest.mark.statement("B62", "B225")
@scenario(ray=True)
async def test_a_flow_started_from_a_step_is_started_once_though_its_worker_dies(world: World) -> None:
    orders = Made(Ships(die_at_once if world.on_ray else hang), name="Orders")
    await world.deploy(orders, SHIPPING)
    await world.start(orders, "order", world.id("shipment"))
    if not world.on_ray:
        await world.until_phase("order", "Ships-1", "running")
        await world.advance(1)
        await world.restart()
    run_id, attempt = (await world.result("order")).single_output(list[Any])
    assert attempt == 2
    assert (await world.result("shipment")).single_output(str) == f"shipped {world.id('order')}"
    assert (await world.describe("shipment")).run_id == run_id
    assert (await world.kinds("shipment")).count("FlowStarted") == 1


async def die_at_once() -> None:
    os._exit(1)


async def hang() -> None:
    await asyncio.sleep(1000)


# Keys -----------------------------------------------------------------------------------------------------------------


class Pays(Step[str]):
    """Fails twice in each method, and notes the key of each attempt in a file."""

    def get_step_options(self) -> StepOptions:
        retry = RetryPolicy(initial_interval=timedelta(seconds=1), backoff_coefficient=1.0, maximum_attempts=3)
        return StepOptions(wait_for_retry=retry, execute_retry=retry)

    def wait_for(self, context: Context, input: str) -> Wait:
        self.note(context, input)
        return Wait.until(go.for_one())

    def execute(self, context: Context, input: str) -> StepDecision:
        self.note(context, input)
        return go_to(Pays, input) if context.step_execution_id == "Pays-1" else graceful_complete()

    def note(self, context: Context, file: str) -> None:
        key = f"{context.flow_id}/{context.step_execution_id}"
        note_down(file, f"{key} {context.run_id} {context.first_attempt_at.isoformat()}")
        if context.attempt < 3:
            raise RuntimeError("on purpose")


@pytest.mark.statement("B225")
@scenario()
async def test_flow_id_and_step_execution_id_are_one_key_for_all_attempts(world: World) -> None:
    flow = Made(Pays(), has=(go,))
    await world.deploy(flow)
    file = world.file("notes")
    run_id = await world.start(flow, "f", str(file))
    await world.advance(0.5)
    await world.restart()  # in the pause between two attempts
    await world.publish("f", go, None, None)
    await world.result("f")
    notes = [line.split() for line in file.read_text().splitlines()]
    flow_id = world.id("f")
    assert [key for key, _, _ in notes] == [f"{flow_id}/Pays-1"] * 6 + [f"{flow_id}/Pays-2"] * 6
    assert {run for _, run, _ in notes} == {run_id}
    calls = [{first for _, _, first in notes[start : start + 3]} for start in (0, 3, 6, 9)]
    assert all(len(firsts) == 1 for firsts in calls), "first_attempt_at is the same in all attempts of a method"


# At most once, within limits ------------------------------------------------------------------------------------------


class Charges(Step[str]):
    """Does its work at once, and takes a while to say so."""

    def get_step_options(self) -> StepOptions:
        options = StepOptions(execute_retry=RetryPolicy(maximum_attempts=1))
        return options.on_execute_failure_proceed_to(Reconciles)

    async def execute(self, context: AsyncContext, input: str) -> StepDecision:
        note_down(input, "charged")
        await asyncio.sleep(20)
        return graceful_complete("charged")


class Reconciles(Step[str]):
    def execute(self, context: Context, input: str) -> StepDecision:
        error = context.recovery_error
        assert error is not None
        with open(input) as ledger:
            found = ledger.read()
        return graceful_complete([found.strip(), error.attempt_progress.name])


@pytest.mark.statement("B226", "B202", "B221")
@scenario()
async def test_a_step_of_one_attempt_runs_once_and_its_route_may_run_although_the_work_was_done(world: World) -> None:
    flow = Made(Charges(), Reconciles())
    await world.deploy(flow)
    ledger = world.file("ledger")
    await world.start(flow, "f", str(ledger))
    await world.advance(5)
    await world.restart()
    result = await world.result("f")
    assert outputs(result) == [("Reconciles-1", ["charged", AttemptProgress.NOT_COMPLETED.name])]
    assert ledger.read_text() == "charged\n"
    failed = (await events(world, "f", "AttemptFailed"))[0]
    assert failed.data["failure"]["kind"] == "STARTED_ATTEMPT_INTERRUPTED"


# What a failure does not tell -----------------------------------------------------------------------------------------


class Takes(Step[int]):
    def wait_for(self, context: Context, input: int) -> Wait:
        return Wait.until(go.for_one())

    def execute(self, context: Context, input: int) -> StepDecision:
        raise ValueMappingError("input of Step 'Takes'", "expected str, got int")


class TakesText(Step[str]):
    """The same Step in newer code, which takes another type."""

    def get_step_type(self) -> str:
        return "Takes"

    def get_step_options(self) -> StepOptions:
        return StepOptions(execute_retry=RetryPolicy(maximum_attempts=2)).on_execute_failure_proceed_to(TellsText)

    def wait_for(self, context: Context, input: str) -> Wait:
        return Wait.until(go.for_one())

    def execute(self, context: Context, input: str) -> StepDecision:
        raise AssertionError("its input can't be decoded")


class TellsText(Step[str]):
    def execute(self, context: Context, input: str) -> StepDecision:
        return dead_end()


@pytest.mark.statement("B222", "B223")
@scenario()
async def test_an_input_that_can_not_be_decoded_fails_like_an_error_of_the_handler(world: World) -> None:
    old = Made(Takes(), has=(go,))
    await world.deploy(old)
    await world.start(old, "f", 5)
    await world.until_phase("f", "Takes-1", "waiting")
    await world.deploy(Made(TakesText(), TellsText(), has=(go,)))
    await world.publish("f", go, None)
    await world.until_phase("f", "TellsText-1", "backoff")  # its input is that of the Step that failed
    failed = await events(world, "f", "AttemptFailed")
    unrun = [event.data["failure"] for event in failed if event.step_execution_id == "Takes-1"]
    assert [(failure["attempt"], failure["kind"]) for failure in unrun] == [(1, "HANDLER_ERROR"), (2, "HANDLER_ERROR")]
    recovery = next(
        event for event in await events(world, "f", "StepScheduled") if event.step_execution_id == "TellsText-1"
    ).data["recovery"]

    await world.deploy(old)  # here the handler runs, and raises an error of the same kind
    await world.start(old, "g", 5)
    await world.publish("g", go, None)
    await world.until_phase("g", "Takes-1", "backoff")
    run = (await events(world, "g", "AttemptFailed"))[0].data["failure"]
    assert (run["error_type"], run["kind"]) == (unrun[1]["error_type"], unrun[1]["kind"])
    assert recovery["error_type"] == run["error_type"]
    # Only attempt_progress could tell that nothing ran, and it is careful: the attempt was handed out.
    assert recovery.get("attempt_progress") == "NOT_COMPLETED"


class Expires(Step[None]):
    def get_step_options(self) -> StepOptions:
        return StepOptions(execute_retry=RetryPolicy(total_duration=timedelta(seconds=5)))

    def execute(self, context: Context, input: None) -> StepDecision:
        raise RuntimeError(f"attempt {context.attempt}")


@pytest.mark.statement("B229", "B162")
@scenario()
async def test_when_the_total_duration_is_over_the_failure_is_that_of_the_last_attempt(world: World) -> None:
    flow = Made(Expires())
    await world.deploy(flow)
    await world.start(flow, "f")
    result = await world.result("f")
    assert (result.status, result.error_type) == (FlowStatus.FAILED, FlowErrorType.WORKER_API_FAILED)
    assert "attempt 4" in result.error_message  # at 0, 1, 3 and 7 s
    kinds = {event.data["failure"]["kind"] for event in await events(world, "f", "AttemptFailed", "StepExecuteFailed")}
    assert kinds == {"HANDLER_ERROR"}, "no failure is of the kind RETRY_DEADLINE"
