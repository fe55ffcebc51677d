"""Retries, the failure policies that follow them, and what is told of failures."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from itertools import pairwise
from typing import Any

import pytest

from dex import (
    AsyncContext,
    AttemptProgress,
    Attribute,
    Channel,
    Context,
    DexServiceError,
    FlowErrorType,
    FlowStatus,
    RetryPolicy,
    StatusCode,
    Step,
    StepDecision,
    StepOptions,
    Wait,
    WaitForFailurePolicy,
    go_to,
    graceful_complete,
    retry_after,
)
from tests.statements.kit import Made, events, outputs, steps_of
from tests.world import World, scenario

go = Channel("go", None)
mood = Attribute("mood", str)

# When attempts come ---------------------------------------------------------------------------------------------------


class Odd(RuntimeError):
    pass


class FailsUntil(Step[int]):
    """Fails until attempt `input`."""

    def __init__(self, policy: RetryPolicy | None = None) -> None:
        self.policy = policy

    def get_step_options(self) -> StepOptions:
        return StepOptions(execute_retry=self.policy)

    def execute(self, context: Context, input: int) -> StepDecision:
        if context.attempt < input:
            raise Odd(f"not ready in attempt {context.attempt} of {context.step_execution_id}")
        return graceful_complete(context.attempt)


async def delays(world: World, name: str = "f") -> list[float]:
    """The seconds from each failure to the next attempt."""
    found = await events(world, name, "AttemptFailed", "AttemptStarted")
    return [
        round(after.at - before.at, 3)
        for before, after in pairwise(found)
        if before.kind == "AttemptFailed" and after.kind == "AttemptStarted"
    ]


def policy(initial: int = 0, coefficient: float = 0.0, maximum: int = 0, **rest: Any) -> RetryPolicy:
    return RetryPolicy(timedelta(seconds=initial), coefficient, timedelta(seconds=maximum), **rest)


@pytest.mark.statement("B132", "B134", "B136")
@pytest.mark.parametrize(
    ("retry", "expected"),
    [
        (None, [1, 2, 4, 8, 16, 32, 64, 100, 100]),
        (RetryPolicy(), [1, 2, 4, 8, 16, 32, 64, 100, 100]),
        (policy(3, 1.0), [3, 3, 3, 3]),
        (policy(1, 3.0, 10), [1, 3, 9, 10, 10]),
        (policy(2, 1.5), [2, 3, 4.5, 6.75]),
        (policy(200), [200, 200, 200]),  # an initial interval above the default maximum is the maximum
        (policy(5, 10.0, 5), [5, 5]),
    ],
)
@scenario()
async def test_the_pause_grows_by_the_coefficient_up_to_the_maximum(
    world: World, retry: RetryPolicy | None, expected: list[float]
) -> None:
    flow = Made(FailsUntil(retry))
    await world.deploy(flow)
    await world.start(flow, "f", len(expected) + 1)
    result = await world.result("f", timeout=3600)
    assert result.single_output(int) == len(expected) + 1
    assert await delays(world) == expected
    assert {event.step_execution_id for event in await events(world, "f", "AttemptStarted")} == {"FailsUntil-1"}
    numbers = [event.data["attempt"] for event in await events(world, "f", "AttemptStarted")]
    assert numbers == list(range(1, len(expected) + 2))


async def gives_up(world: World, attempts: int) -> None:
    flow = Made(FailsUntil(policy(1, maximum_attempts=attempts)), name="GivesUp")
    await world.deploy(flow)
    await world.start(flow, "f", 99)
    result = await world.result("f")
    assert (result.status, result.error_type) == (FlowStatus.FAILED, FlowErrorType.WORKER_API_FAILED)
    assert "Odd" in result.error_message
    assert f"not ready in attempt {attempts} of FailsUntil-1" in result.error_message
    assert result.completions == ()
    assert len(await steps_of(world, "f", "AttemptStarted")) == attempts
    *_, last, closed = await events(world, "f", "AttemptFailed", "FlowClosed")
    assert closed.at == last.at, "nothing is waited for when no attempt is left"


@pytest.mark.statement("B133", "B134", "B135", "C23")
@pytest.mark.parametrize("attempts", [1, 4])
@scenario()
async def test_after_the_last_attempt_the_flow_fails_with_the_last_error(world: World, attempts: int) -> None:
    await gives_up(world, attempts)


@pytest.mark.statement("B133", "B134", "B135", "C23")
@scenario(ray=True)
async def test_errors_of_workers_arrive(world: World) -> None:
    await gives_up(world, 2)


class Hangs(Step[int]):
    """Attempts before `input` hang."""

    def get_step_options(self) -> StepOptions:
        return StepOptions(execute_method_timeout=timedelta(seconds=5))

    async def execute(self, context: AsyncContext, input: int) -> StepDecision:
        await asyncio.sleep(1000 if context.attempt < input else 3)
        return graceful_complete(context.attempt)


@pytest.mark.statement("B132")
@scenario()
async def test_a_timeout_limits_one_attempt_and_the_next_has_its_own(world: World) -> None:
    flow = Made(Hangs())
    await world.deploy(flow)
    await world.start(flow, "f", 3)
    assert (await world.result("f")).single_output(int) == 3
    assert await delays(world) == [1, 2]
    started, closed = (await world.describe("f")).started_at, (await events(world, "f", "FlowClosed"))[0].at
    assert round(closed - started) == 5 + 1 + 5 + 2 + 3


# Failure policies -----------------------------------------------------------------------------------------------------


class WaitFails(Step[dict[str, int]]):
    def __init__(self, failure: WaitForFailurePolicy) -> None:
        self.failure = failure

    def get_step_options(self) -> StepOptions:
        options = StepOptions(wait_for_retry=policy(1, maximum_attempts=2), wait_for_failure=self.failure)
        return options.on_execute_failure_proceed_to(Recover)

    def wait_for(self, context: Context, input: dict[str, int]) -> Wait:
        raise Odd(f"wait_for, attempt {context.attempt}")

    def execute(self, context: Context, input: dict[str, int]) -> StepDecision:
        error = context.recovery_error
        assert context.wait_for_method_failed()
        assert error is not None
        return graceful_complete([input, context.attempt, error.error_type.rpartition(".")[2], error.detail])


class Recover(Step[dict[str, int]]):
    def execute(self, context: Context, input: dict[str, int]) -> StepDecision:
        error = context.recovery_error
        assert error is not None
        assert not context.wait_for_method_failed()
        assert error.attempt_progress is AttemptProgress.NOT_COMPLETED
        found = [input, context.from_step_execution_id, error.error_type.rpartition(".")[2], error.detail]
        return graceful_complete(found)


@pytest.mark.statement("B137")
@scenario()
async def test_a_wait_for_that_fails_for_good_fails_the_flow(world: World) -> None:
    flow = Made(WaitFails(WaitForFailurePolicy.FAIL_FLOW), Recover())
    await world.deploy(flow)
    await world.start(flow, "f", {"a": 1})
    result = await world.result("f")
    assert (result.status, result.error_type) == (FlowStatus.FAILED, FlowErrorType.WORKER_API_FAILED)
    assert "wait_for, attempt 2" in result.error_message
    failed = (await events(world, "f", "StepWaitForFailed"))[0]
    assert (failed.step_execution_id, failed.data["method"]) == ("WaitFails-1", "wait_for")
    assert failed.data["failure"]["detail"] == "wait_for, attempt 2"


@pytest.mark.statement("B138", "B139")
@scenario(ray=True)
async def test_a_wait_for_that_proceeds_runs_execute_with_the_same_input(world: World) -> None:
    flow = Made(WaitFails(WaitForFailurePolicy.PROCEED), Recover(), name="Proceeds")
    await world.deploy(flow)
    await world.start(flow, "f", {"a": 1})
    assert outputs(await world.result("f")) == [("WaitFails-1", [{"a": 1}, 1, "Odd", "wait_for, attempt 2"])]
    recorded = (await events(world, "f", "WaitForAbandoned"))[0]
    assert recorded.data["recovery"]["detail"] == "wait_for, attempt 2"


class NeverWorks(Step[dict[str, int]]):
    def get_step_options(self) -> StepOptions:
        return StepOptions(execute_retry=policy(1, maximum_attempts=2)).on_execute_failure_proceed_to(Recover)

    def wait_for(self, context: Context, input: dict[str, int]) -> Wait:
        assert not context.wait_for_method_failed()
        assert context.recovery_error is None
        return Wait.skip_immediately()

    def execute(self, context: Context, input: dict[str, int]) -> StepDecision:
        assert not context.wait_for_method_failed()
        assert context.recovery_error is None
        raise Odd(f"execute, attempt {context.attempt}")


@pytest.mark.statement("B140", "B141", "B142")
@scenario(ray=True)
async def test_an_execute_that_fails_for_good_goes_on_where_its_route_leads(world: World) -> None:
    flow = Made(NeverWorks(), Recover(), name="Recovers")
    await world.deploy(flow)
    await world.start(flow, "f", {"a": 1})
    expected = [{"a": 1}, "NeverWorks-1", "Odd", "execute, attempt 2"]
    assert outputs(await world.result("f")) == [("Recover-1", expected)]
    failed = (await events(world, "f", "StepExecuteFailed"))[0]
    assert (failed.data["method"], failed.data["route"]) == ("execute", "Recover")
    assert failed.data["failure"]["detail"] == "execute, attempt 2"


@pytest.mark.statement("B140", "B141")
@scenario()
async def test_a_recovery_step_keeps_its_error_over_a_crash(world: World) -> None:
    flow = Made(NeverWorks(), WaitsToRecover(), Recover())
    flow.steps[0].get_step_options = lambda: StepOptions(  # type: ignore[method-assign]
        execute_retry=policy(1, maximum_attempts=1)
    ).on_execute_failure_proceed_to(WaitsToRecover)
    flow.has = (go,)
    await world.deploy(flow)
    await world.start(flow, "f", {"a": 1})
    await world.until_phase("f", "WaitsToRecover-1", "waiting")
    await world.restart()
    await world.publish("f", go, None)
    assert (await world.result("f")).single_output(str) == "execute, attempt 1"


class WaitsToRecover(Step[dict[str, int]]):
    def wait_for(self, context: Context, input: dict[str, int]) -> Wait:
        assert context.recovery_error is not None
        return Wait.until(go.for_one())

    def execute(self, context: Context, input: dict[str, int]) -> StepDecision:
        assert context.recovery_error is not None
        return graceful_complete(context.recovery_error.detail)


class Lacks(Step[int]):
    """Uses what this version has not."""

    def execute(self, context: Context, input: int) -> StepDecision:
        raise DexServiceError(StatusCode.UNIMPLEMENTED, "no such feature", operation="fly", flow_id=context.flow_id)


@pytest.mark.statement("C23")
@scenario()
async def test_what_this_version_does_not_have_is_not_tried_for_hours(world: World) -> None:
    flow = Made(Lacks())
    await world.deploy(flow)
    await world.start(flow, "f", 1)
    result = await world.result("f", timeout=1)
    assert result.status is FlowStatus.FAILED
    assert "no such feature" in result.error_message


# The last failure -----------------------------------------------------------------------------------------------------


@pytest.mark.statement("B143")
@scenario(ray=True)
async def test_the_last_failure_is_told_while_retries_are_under_way(world: World) -> None:
    flow = Made(FailsUntil(policy(1, 1.0 if world.on_ray else 60.0)), name="TellsItsFailures")
    await world.deploy(flow)
    await world.start(flow, "f", 3)
    seen = set()

    async def both_failures_seen() -> bool:
        for step in (await world.describe("f")).steps:
            failure = step.last_failure
            if failure is not None:
                assert failure.error_type.endswith("Odd")
                assert failure.detail == f"not ready in attempt {failure.attempt} of FailsUntil-1"
                assert ", in execute" in failure.trace
                assert failure.worker
                assert failure.at > 0
                assert step.phase != "backoff" or step.attempt == failure.attempt + 1
                seen.add(failure.attempt)
        return seen == {1, 2}

    await world.until(both_failures_seen, timeout=100)
    await world.result("f", timeout=200)
    failed = [event.data["failure"] for event in await events(world, "f", "AttemptFailed")]
    assert [failure["attempt"] for failure in failed] == [1, 2]
    assert all(failure["worker"] and failure["error_type"].endswith("Odd") for failure in failed)
    assert all(event.data["retry_at"] for event in await events(world, "f", "AttemptFailed"))


# RetryAfter -----------------------------------------------------------------------------------------------------------


class Asks(Step[list[int]]):
    """Fails once for each number, and asks to be tried again after so many seconds; 0: by the policy."""

    def get_step_options(self) -> StepOptions:
        return StepOptions(execute_retry=policy(3, 1.0, maximum_attempts=4))

    def execute(self, context: Context, input: list[int]) -> StepDecision:
        if context.attempt > len(input):
            return graceful_complete(context.attempt)
        seconds = input[context.attempt - 1]
        cause = Odd(f"not ready on attempt {context.attempt}")
        raise retry_after(seconds, cause) if seconds else cause


@pytest.mark.statement("B145", "B146", "B147")
@pytest.mark.parametrize(
    ("asked", "expected"),
    [([7], [7]), ([1], [1]), ([0, 50, 0], [3, 50, 3]), ([500, 1], [500, 1])],
)
@scenario()
async def test_retry_after_sets_the_next_delay_alone_and_consumes_an_attempt(
    world: World, asked: list[int], expected: list[int]
) -> None:
    flow = Made(Asks())
    await world.deploy(flow)
    await world.start(flow, "f", asked)
    assert (await world.result("f", timeout=1000)).single_output(int) == len(asked) + 1
    assert await delays(world) == expected
    failed = [event.data["failure"] for event in await events(world, "f", "AttemptFailed")]
    assert [failure["detail"] for failure in failed] == [f"not ready on attempt {n + 1}" for n in range(len(asked))]
    assert all(failure["error_type"].endswith("Odd") for failure in failed), "the cause is what is reported"


@pytest.mark.statement("B147")
@scenario()
async def test_retry_after_does_not_lift_the_limit_of_attempts(world: World) -> None:
    flow = Made(Asks())
    await world.deploy(flow)
    await world.start(flow, "f", [5] * 9)
    assert (await world.result("f")).status is FlowStatus.FAILED
    assert await delays(world) == [5, 5, 5]
    *_, last, closed = await events(world, "f", "AttemptFailed", "FlowClosed")
    assert closed.at == last.at


@pytest.mark.statement("B146")
@pytest.mark.parametrize("seconds", [0, -1, 1.5, True, None, "7"])
def test_retry_after_takes_a_positive_whole_number(seconds: Any) -> None:
    with pytest.raises((TypeError, ValueError), match="retry_after"):
        retry_after(seconds, Odd("cause"))
    with pytest.raises(TypeError, match="cause"):
        retry_after(1, "cause")  # type: ignore[arg-type]


# What retries see -----------------------------------------------------------------------------------------------------


class ReadsMood(Step[int]):
    def get_step_options(self) -> StepOptions:
        return StepOptions(execute_retry=policy(30, 1.0))

    def execute(self, context: Context, input: int) -> StepDecision:
        if mood.get(context) == "new":
            return graceful_complete("a retry saw it")
        if context.attempt < input:
            raise Odd("not yet")
        return go_to(WaitsForMood, f"{context.attempt} attempts saw {mood.get(context)}")


class WaitsForMood(Step[str]):
    def wait_for(self, context: Context, input: str) -> Wait:
        return Wait.until(go.for_one())

    def execute(self, context: Context, input: str) -> StepDecision:
        return graceful_complete(f"{input}, then {mood.get(context)}")


@pytest.mark.statement("B148", "B149", "B188", "C30")
@pytest.mark.parametrize("crash", [False, True])
@scenario()
async def test_retries_see_what_attempt_1_saw_and_the_next_step_sees_what_is_new(world: World, crash: bool) -> None:
    flow = Made(ReadsMood(), WaitsForMood(), has=(go, mood))
    await world.deploy(flow, checkpoint_records=1 if crash else 200)
    await world.start(flow, "f", 3)
    await world.until_phase("f", "ReadsMood-1", "backoff")
    await world.client.set_attribute(world.id("f"), mood, "new")
    await world.publish("f", go, None)
    if crash:
        await world.restart()
    result = await world.result("f", timeout=100)
    assert result.single_output(str) == "3 attempts saw None, then new"
