"""StepOptions: of a Step, of its two methods, and of one movement."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta

import pytest

from dex import (
    AsyncContext,
    Context,
    FlowStatus,
    RetryPolicy,
    Step,
    StepDecision,
    StepMovement,
    StepOptions,
    Wait,
    WaitForFailurePolicy,
    dead_end,
    go_to_many,
    graceful_complete,
)
from tests.statements.kit import Made, events, outputs
from tests.world import World, scenario


def attempts(count: int) -> RetryPolicy:
    return RetryPolicy(timedelta(seconds=1), 1.0, maximum_attempts=count)


async def failures(world: World, name: str = "f") -> list[tuple[str, str, int]]:
    """The failed attempts: Step execution, method, attempt."""
    failed = await events(world, name, "AttemptFailed")
    return [(event.step_execution_id, event.data["method"], event.data["failure"]["attempt"]) for event in failed]


class Fails(Step[int]):
    """Both of its methods fail."""

    def get_step_options(self) -> StepOptions:
        return StepOptions(
            wait_for_retry=attempts(2), execute_retry=attempts(3), wait_for_failure=WaitForFailurePolicy.PROCEED
        ).on_execute_failure_proceed_to(Rescue)

    def wait_for(self, context: Context, input: int) -> Wait:
        raise RuntimeError("wait_for")

    def execute(self, context: Context, input: int) -> StepDecision:
        raise RuntimeError("execute")


class Rescue(Step[int]):
    def execute(self, context: Context, input: int) -> StepDecision:
        assert context.recovery_error is not None
        return graceful_complete(context.recovery_error.detail)


@pytest.mark.statement("B129")
@scenario()
async def test_wait_for_and_execute_have_retry_and_failure_policies_of_their_own(world: World) -> None:
    flow = Made(Fails(), Rescue())
    await world.deploy(flow)
    await world.start(flow, "f", 1)
    assert outputs(await world.result("f")) == [("Rescue-1", "execute")]
    assert [(method, attempt) for _, method, attempt in await failures(world)] == [
        ("wait_for", 1),
        ("wait_for", 2),
        ("execute", 1),
        ("execute", 2),
        ("execute", 3),
    ]


class TakesTen(Step[int]):
    def get_step_options(self) -> StepOptions:
        return StepOptions(
            wait_for_method_timeout=timedelta(seconds=20),
            execute_method_timeout=timedelta(seconds=5),
            wait_for_retry=attempts(1),
            execute_retry=attempts(1),
        )

    async def wait_for(self, context: AsyncContext, input: int) -> Wait:
        await asyncio.sleep(10)
        return Wait.skip_immediately()

    async def execute(self, context: AsyncContext, input: int) -> StepDecision:
        await asyncio.sleep(10)
        return dead_end()


@pytest.mark.statement("B129")
@scenario()
async def test_wait_for_and_execute_have_timeouts_of_their_own(world: World) -> None:
    flow = Made(TakesTen())
    await world.deploy(flow)
    await world.start(flow, "f", 1)
    assert (await world.result("f")).status is FlowStatus.FAILED
    failed = (await events(world, "f", "AttemptFailed"))[0]
    assert (failed.data["method"], failed.data["failure"]["kind"]) == ("execute", "METHOD_TIMEOUT")
    assert round(failed.at - (await world.describe("f")).started_at) == 15


# Overrides ------------------------------------------------------------------------------------------------------------

OVERRIDES: dict[str, Callable[[], StepOptions | None]] = {
    "own": lambda: None,
    "more attempts": lambda: StepOptions(execute_retry=attempts(5)),
    "one wait_for": lambda: StepOptions(wait_for_retry=attempts(1)),
    "one execute": lambda: StepOptions(execute_retry=attempts(1)),
}


class Forks(Step[list[str]]):
    def execute(self, context: Context, input: list[str]) -> StepDecision:
        return go_to_many(
            *(StepMovement.of(Fails, number, OVERRIDES[how]()) for number, how in enumerate(input, start=1))
        )


@pytest.mark.statement("B130", "B131")
@scenario(ray=True)
async def test_options_of_a_movement_apply_to_that_step_execution_and_leave_out_no_other(world: World) -> None:
    flow = Made(Forks(), Fails(), Rescue(), name="Overrides")
    await world.deploy(flow)
    for name in ("f", "g"):  # what a movement said in one Flow is not there in the next
        await world.start(flow, name, ["own", "one execute", "one wait_for"] if name == "f" else ["own"])
    for name in ("f", "g"):
        await world.result(name)
    counted = [(step, method) for step, method, _ in await failures(world)]
    assert {pair: counted.count(pair) for pair in counted} == {
        ("Fails-1", "wait_for"): 2,
        ("Fails-1", "execute"): 3,
        ("Fails-2", "wait_for"): 2,  # what the movement does not give stays the Step's own
        ("Fails-2", "execute"): 1,
        ("Fails-3", "wait_for"): 1,
        ("Fails-3", "execute"): 3,
    }
    assert len(await failures(world, "g")) == 5


@pytest.mark.statement("B131")
@scenario()
async def test_options_of_a_movement_survive_a_crash(world: World) -> None:
    flow = Made(Forks(), Fails(), Rescue())
    await world.deploy(flow, checkpoint_records=3)
    await world.start(flow, "f", ["more attempts", "own"])
    await world.advance(2)
    await world.restart()
    await world.result("f")
    last = {step: attempt for step, method, attempt in await failures(world) if method == "execute"}
    assert last == {"Fails-1": 5, "Fails-2": 3}
