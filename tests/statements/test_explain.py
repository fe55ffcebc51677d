"""Why a Flow is where it is: `explain`, and failures that are there to see while attempts go on and afterwards."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from dex import (
    AsyncContext,
    Attribute,
    Channel,
    Context,
    FlowNotFoundError,
    FlowStatus,
    RetryPolicy,
    Step,
    StepDecision,
    StepMovement,
    StepOptions,
    StepResources,
    SubFlow,
    Timer,
    Wait,
    go_to_many,
    graceful_complete,
)
from tests.statements.kit import Made, events
from tests.world import InProcessWorld, World, scenario

parts = Channel("parts", int)
till = Attribute("till", int)


async def explained(world: World, name: str = "f") -> list[str]:
    return list(await world.client.explain(world.id(name)))


class Waits(Step[None]):
    def wait_for(self, context: Context, input: None) -> Wait:
        return Wait.any_of(parts.for_n(3), Timer.by_duration(timedelta(hours=1)))

    def execute(self, context: Context, input: None) -> StepDecision:
        return graceful_complete()


@scenario()
async def test_a_wait_is_explained_with_what_it_has_and_needs_and_when_its_timer_is_due(world: World) -> None:
    flow = Made(Waits(), has=[parts])
    await world.deploy(flow)
    await world.start(flow, "f")
    await world.until_phase("f", "Waits-1", "waiting")
    await world.publish("f", parts, 1, 2)
    (step,) = (await world.describe("f")).steps
    since, due = moment(step.since), moment(step.since + 3600)
    assert await explained(world) == [
        f"Waits-1 waits for 3 messages on parts (has 2) or Timer until {due}, since {since}."
    ]
    await world.publish("f", parts, 3)
    await world.result("f")
    assert await explained(world) == [], "a closed Flow waits for nothing"
    with pytest.raises(FlowNotFoundError):
        await explained(world, "nobody")


def moment(seconds: float) -> str:
    from datetime import UTC, datetime

    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")


class Runs(Step[float]):
    def get_step_options(self) -> StepOptions:
        return StepOptions(execute_lock_attributes=(till.lock(),))

    async def execute(self, context: AsyncContext, input: float) -> StepDecision:
        await asyncio.sleep(input)
        return graceful_complete()


class Forks(Step[None]):
    def execute(self, context: Context, input: None) -> StepDecision:
        return go_to_many(StepMovement.of(Runs, 20.0), StepMovement.of(Runs, 1.0))


@scenario()
async def test_a_running_attempt_and_a_step_that_waits_for_its_lock_are_explained(world: World) -> None:
    flow = Made(Forks(), Runs(), has=[till])
    await world.deploy(flow)
    await world.start(flow, "f")
    await world.until_phase("f", "Runs-1", "running")
    await world.advance(1)
    running, blocked = await explained(world)
    assert running.startswith("Runs-1 runs attempt 1 of execute, since 20")
    assert blocked.startswith("Runs-2 waits for a lock on till that Step Runs-1 holds, since 20")


class Parent(Step[None]):
    def wait_for(self, context: Context, input: None) -> Wait:
        return Wait.until(SubFlow.run(CHILD, None))

    def execute(self, context: Context, input: None) -> StepDecision:
        return graceful_complete()


CHILD = Made(Waits(), has=[parts], name="Child")


@scenario()
async def test_a_subflow_and_code_that_is_not_deployed_are_explained(world: World) -> None:
    flow = Made(Parent(), name="Family")
    await world.deploy(flow, CHILD)
    await world.start(flow, "f")
    await world.until_phase("f", "Parent-1", "waiting")
    await world.advance(1)
    (sentence,) = await explained(world)
    child = f"SubFlow:{world.id('f')}-Parent-1-0"
    assert sentence.startswith(f"Parent-1 waits for SubFlow {child} of type Child, since 20")
    assert isinstance(world, InProcessWorld)
    assert world.engine is not None
    del world.engine.host.specs["Family"]
    problem, _ = await explained(world)
    assert problem.startswith(f"Flow {world.id('f')} does not go on: no code is deployed for Flow type Family")


class Greedy(Step[None]):
    def get_step_options(self) -> StepOptions:
        return StepOptions(resources=StepResources(resources={"unobtainium": 1}))

    def execute(self, context: Context, input: None) -> StepDecision:
        return graceful_complete()


@scenario(ray=True, in_process=False)
async def test_resources_that_the_cluster_lacks_are_explained(world: World) -> None:
    flow = Made(Greedy(), name="Greedy")
    await world.deploy(flow)
    await world.start(flow, "f")

    async def is_told() -> bool:
        return any("unobtainium" in sentence for sentence in await explained(world))

    await world.until(is_told, timeout=60)
    (sentence,) = await explained(world)
    assert sentence.startswith("Greedy-1 waits for attempt 1 of execute to begin")
    await world.client.stop_flow(world.id("f"))


# Failures -------------------------------------------------------------------------------------------------------------


class Odd(RuntimeError):
    pass


class Fails(Step[str]):
    """Fails in one of its methods, twice at most."""

    def get_step_options(self) -> StepOptions:
        policy = RetryPolicy(initial_interval=timedelta(seconds=2), maximum_attempts=2)
        return StepOptions(wait_for_retry=policy, execute_retry=policy)

    def wait_for(self, context: Context, input: str) -> Wait:
        if input == "wait_for":
            raise Odd(f"no luck at\nattempt {context.attempt}")
        return Wait.skip_immediately()

    def execute(self, context: Context, input: str) -> StepDecision:
        raise Odd(f"no luck at\nattempt {context.attempt}")


@pytest.mark.statement("B142", "B143", "B144")
@pytest.mark.parametrize(("method", "kind"), [("wait_for", "StepWaitForFailed"), ("execute", "StepExecuteFailed")])
@scenario(ray=True)
async def test_the_last_failure_is_there_to_see_while_attempts_go_on_and_afterwards(
    world: World, method: str, kind: str
) -> None:
    flow = Made(Fails(), name="Fails")
    await world.deploy(flow)
    await world.start(flow, "f", method)
    await world.until_phase("f", "Fails-1", "backoff")
    (step,) = (await world.describe("f")).steps
    assert (step.method, step.attempt) == (method, 2)
    assert step.last_failure is not None
    assert (step.last_failure.attempt, step.last_failure.detail) == (1, "no luck at\nattempt 1")
    assert step.last_failure.error_type.endswith("Odd")
    assert step.last_failure.worker
    (sentence,) = await explained(world)
    assert sentence.startswith(f"Fails-1 waits for attempt 2 of {method} at 20")
    assert "(backoff), since 20" in sentence
    assert sentence.endswith(f"; attempt 1 failed with {step.last_failure.error_type}: no luck at attempt 1.")
    (failed,) = await failures(world, "AttemptFailed")
    assert (failed["attempt"], failed["detail"], bool(failed["worker"])) == (1, "no luck at\nattempt 1", True)

    result = await world.result("f")
    assert result.status is FlowStatus.FAILED
    description = await world.describe("f")
    assert "no luck at\nattempt 2" in description.error_message
    assert [failure["attempt"] for failure in await failures(world, "AttemptFailed")] == [1, 2]
    (final,) = await failures(world, kind)
    assert (final["attempt"], final["detail"]) == (2, "no luck at\nattempt 2")
    assert final["error_type"].endswith("Odd")
    assert "StepFailed" not in await world.kinds("f")


async def failures(world: World, kind: str) -> list[dict[str, Any]]:
    return [event.data["failure"] for event in await events(world, "f", kind)]
