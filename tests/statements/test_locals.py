"""Step execution locals: from wait_for to execute of one Step execution."""

from __future__ import annotations

from typing import Any

import pytest

from dex import (
    Channel,
    Context,
    RetryPolicy,
    Step,
    StepDecision,
    StepMovement,
    StepOptions,
    Wait,
    dead_end,
    go_to_many,
    graceful_complete,
)
from tests.statements.kit import Made, outputs
from tests.world import World, scenario

go = Channel("go", int)


class Notes(Step[int]):
    def get_step_options(self) -> StepOptions:
        return StepOptions(execute_retry=RetryPolicy(maximum_attempts=2))

    def wait_for(self, context: Context, input: int) -> Wait:
        context.set_step_execution_local("note", f"approval:{input}")
        context.set_step_execution_local("own read", context.get_step_execution_local("note", str))
        return Wait.until(go.for_one())

    def execute(self, context: Context, input: int) -> StepDecision:
        if context.attempt == 1 and input == 1:
            context.set_step_execution_local("note", "changed by an attempt that fails")
            raise RuntimeError("on purpose")
        found = [context.get_step_execution_local(key, str) for key in ("note", "own read", "absent")]
        return graceful_complete([input, *found])


class Forks(Step[int]):
    def execute(self, context: Context, input: int) -> StepDecision:
        return go_to_many(*(StepMovement.of(Notes, number) for number in range(input)))


@pytest.mark.statement("B100", "B101", "B102", "B103")
@scenario(ray=True)
async def test_each_step_execution_finds_its_own_locals_in_execute(world: World) -> None:
    flow = Made(Forks(), Notes(), has=(go,), name="Locals")
    await world.deploy(flow)
    await world.start(flow, "f", 3)
    await world.until_phase("f", "Notes-3", "waiting")
    await world.publish("f", go, 1, 2, 3)
    found = sorted(value for _, value in outputs(await world.result("f"), list[Any]))
    assert found == [[number, f"approval:{number}", f"approval:{number}", None] for number in range(3)]


@pytest.mark.statement("B100")
@scenario()
async def test_locals_survive_a_crash_while_the_step_waits(world: World) -> None:
    flow = Made(Notes(), has=(go,))
    await world.deploy(flow)
    await world.start(flow, "f", 1)
    await world.until_phase("f", "Notes-1", "waiting")
    await world.restart()
    await world.publish("f", go, 1)
    assert (await world.result("f")).single_output(list[Any]) == [1, "approval:1", "approval:1", None]


class Looks(Step[str]):
    """Its executions come one after another."""

    def wait_for(self, context: Context, input: str) -> Wait:
        if input == "first":
            context.set_step_execution_local("note", "of the first")
        return Wait.skip_immediately()

    def execute(self, context: Context, input: str) -> StepDecision:
        if input == "first":
            return go_to_many(StepMovement.of(Looks, "second"), StepMovement.of(Ends, context.step_execution_id))
        return graceful_complete(context.get_step_execution_local("note", str))


class Ends(Step[str]):
    def execute(self, context: Context, input: str) -> StepDecision:
        assert context.get_step_execution_local("note", str) is None
        return dead_end()


@pytest.mark.statement("B101", "B102")
@scenario()
async def test_a_local_is_not_seen_by_the_next_step_executions(world: World) -> None:
    flow = Made(Looks(), Ends())
    await world.deploy(flow)
    await world.start(flow, "f", "first")
    assert outputs(await world.result("f")) == [("Looks-2", None)]
