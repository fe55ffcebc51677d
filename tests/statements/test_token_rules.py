"""Why a Critical Section takes a token: what a lock and a flag do not do, and what the token asks for."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import Any

import pytest

from dex import (
    AsyncContext,
    Attribute,
    Channel,
    Context,
    Step,
    StepDecision,
    StepMovement,
    StepOptions,
    Wait,
    dead_end,
    go_to,
    go_to_many,
    graceful_complete,
)
from tests.statements.kit import Made, events
from tests.world import World, scenario

token: Channel[Any] = Channel("token", str | int | None)
done = Channel("done", str)
contract = Attribute("contract", str)
editing = Attribute("editing", bool)
HAS = (token, done, contract, editing)


class Ends(Step[int]):
    """Waits for so many branches, and returns the contract."""

    def wait_for(self, context: Context, input: int) -> Wait:
        return Wait.until(done.for_n(input))

    def execute(self, context: Context, input: int) -> StepDecision:
        return graceful_complete([list(done.results(context)), contract.get(context)])


async def overlaps(world: World, first: str, last: str) -> int:
    """How many branches were between their first Step and the end of their last while another one was."""
    history = await events(world, "f", "AttemptStarted", "StepCompleted")
    starts = [
        event.at
        for event in history
        if event.step_execution_id.startswith(first) and event.data.get("method") == "execute"
    ]
    ends = [event.at for event in history if event.step_execution_id.startswith(last) and event.kind == "StepCompleted"]
    assert len(starts) == len(ends)
    return sum(1 for (_, end), (start, _) in pairwise(sorted(zip(starts, ends, strict=True))) if start < end)


# A lock ---------------------------------------------------------------------------------------------------------------


class StartsLocked(Step[int]):
    def execute(self, context: Context, input: int) -> StepDecision:
        branches = [StepMovement.of(First, f"b{number}") for number in range(input)]
        return go_to_many(*branches, StepMovement.of(Ends, input))


class First(Step[str]):
    def get_step_options(self) -> StepOptions:
        return StepOptions(wait_for_lock_attributes=(contract.lock(),), execute_lock_attributes=(contract.lock(),))

    def wait_for(self, context: Context, input: str) -> Wait:
        return Wait.until(token.for_one())  # each has a message of its own here: nobody is kept out by it

    async def execute(self, context: AsyncContext, input: str) -> StepDecision:
        await asyncio.sleep(1)
        return go_to(Second, input)


class Second(Step[str]):
    def get_step_options(self) -> StepOptions:
        return StepOptions(execute_lock_attributes=(contract.lock(),))

    async def execute(self, context: AsyncContext, input: str) -> StepDecision:
        await asyncio.sleep(1)
        done.publish(context, input)
        return dead_end()


@pytest.mark.statement("B230")
@scenario()
async def test_a_lock_covers_neither_a_wait_nor_a_sequence_of_steps(world: World) -> None:
    flow = Made(StartsLocked(), First(), Second(), Ends(), has=HAS)
    await world.deploy(flow)
    await world.start(flow, "f", 3)
    await world.until_phase("f", "First-3", "waiting")  # all three wait at once, although their wait_for locks
    await world.publish("f", token, 1, 2, 3)
    await world.result("f")
    assert await overlaps(world, "First", "Second") > 0, "another branch came in between two Steps of one branch"


# A flag ---------------------------------------------------------------------------------------------------------------


class StartsFlagged(Step[int]):
    def execute(self, context: Context, input: int) -> StepDecision:
        branches = [StepMovement.of(Guarded, f"b{number}") for number in range(input)]
        return go_to_many(*branches, StepMovement.of(Ends, input))


class Guarded(Step[str]):
    """Enters when nobody is editing, as far as it can see."""

    async def execute(self, context: AsyncContext, input: str) -> StepDecision:
        entered = not editing.get(context)
        editing.set(context, True)
        await asyncio.sleep(1)
        done.publish(context, f"{input} {'entered' if entered else 'kept out'}")
        return dead_end()


@pytest.mark.statement("B254")
@scenario()
async def test_two_branches_can_both_see_a_flag_clear(world: World) -> None:
    flow = Made(StartsFlagged(), Guarded(), Ends(), has=HAS)
    await world.deploy(flow)
    await world.start(flow, "f", 2)
    reports, _ = (await world.result("f")).single_output(list[Any])
    assert sorted(reports) == ["b0 entered", "b1 entered"]


# The token ------------------------------------------------------------------------------------------------------------


class StartsWithToken(Step[list[Any]]):
    """`input`: the values that the token has, one for each branch that gives it back, and the first."""

    def execute(self, context: Context, input: list[Any]) -> StepDecision:
        token.publish(context, input[0])
        branches = [StepMovement.of(Enters, [f"b{number}", value]) for number, value in enumerate(input[1:])]
        return go_to_many(*branches, StepMovement.of(Ends, len(branches)))


class Enters(Step[list[Any]]):
    def wait_for(self, context: Context, input: list[Any]) -> Wait:
        return Wait.until(token.for_one())

    def execute(self, context: Context, input: list[Any]) -> StepDecision:
        return go_to(Edits, input)


class Edits(Step[list[Any]]):
    """Reads the contract, takes its time, and writes it with its own name added."""

    async def execute(self, context: AsyncContext, input: list[Any]) -> StepDecision:
        before = contract.get(context)
        await asyncio.sleep(1)
        contract.set(context, f"{before},{input[0]}" if before else input[0])
        return go_to(Saves, input)


class Saves(Step[list[Any]]):
    async def execute(self, context: AsyncContext, input: list[Any]) -> StepDecision:
        await asyncio.sleep(1)
        done.publish(context, input[0])
        token.publish(context, input[1])
        return dead_end()


@pytest.mark.statement("B231", "B232", "B233", "B247", "B253")
@pytest.mark.parametrize("values", [["contract"] * 5, ["a", "b", "c", "d", "e"], [None, 1, None, "x", 2]], ids=str)
@scenario()
async def test_one_branch_at_a_time_is_inside_whatever_the_tokens_value(world: World, values: list[Any]) -> None:
    flow = Made(StartsWithToken(), Enters(), Edits(), Saves(), Ends(), has=HAS)
    await world.deploy(flow)
    await world.start(flow, "f", values)
    reports, edited = (await world.result("f")).single_output(list[Any])
    # Each of them once; in which order they enter is not promised.
    assert sorted(reports) == ["b0", "b1", "b2", "b3"]
    assert sorted(edited.split(",")) == ["b0", "b1", "b2", "b3"], "no edit is lost: the state is in an Attribute"
    assert await overlaps(world, "Edits", "Saves") == 0
