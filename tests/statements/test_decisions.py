"""Step decisions: next Steps, their names, and how branches close a Flow."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from dex import (
    AsyncContext,
    Channel,
    ChannelMap,
    Context,
    FlowErrorType,
    FlowStatus,
    RetryPolicy,
    Step,
    StepDecision,
    StepMovement,
    StepOptions,
    Wait,
    dead_end,
    force_complete,
    force_complete_if_channels_empty,
    force_fail,
    go_to,
    go_to_many,
    graceful_complete,
)
from tests.statements.kit import Made, events, outputs, steps_of
from tests.world import World, scenario

news = Channel("news", int)
rooms = ChannelMap("rooms", int)

# How branches close a Flow --------------------------------------------------------------------------------------------


class Forks(Step[list[str]]):
    def execute(self, context: Context, input: list[str]) -> StepDecision:
        return go_to_many(*(StepMovement.of(Branch, how) for how in input))


class Branch(Step[str]):
    """`seconds decision [output]`: decides after so many seconds."""

    async def execute(self, context: AsyncContext, input: str) -> StepDecision:
        seconds, kind, *output = input.split()
        await asyncio.sleep(int(seconds))
        decide: dict[str, Callable[..., StepDecision]] = {
            "graceful": graceful_complete,
            "dead_end": dead_end,
            "complete": force_complete,
            "fail": force_fail,
        }
        return decide[kind](*output)


@dataclass(frozen=True)
class Close:
    """What comes of branches, and when (in seconds). outputs: (number of the Branch, its output)."""

    branches: list[str]
    status: str
    at: int
    outputs: tuple[tuple[int, str], ...] = ()
    error: str = ""


CLOSES = {
    # graceful_complete ends its branch, and the Flow when all branches have ended
    "graceful": Close(["0 graceful"], "COMPLETED", 0),
    "graceful-output": Close(["0 graceful x"], "COMPLETED", 0, ((1, "x"),)),
    "graceful-all": Close(["1 graceful x", "2 graceful y"], "COMPLETED", 2, ((1, "x"), (2, "y"))),
    "graceful-order-is-of-completion": Close(["2 graceful x", "1 graceful y"], "COMPLETED", 2, ((2, "y"), (1, "x"))),
    "graceful-then-dead-end": Close(["1 graceful x", "5 dead_end"], "COMPLETED", 5, ((1, "x"),)),
    "dead-end-then-graceful": Close(["1 dead_end", "5 graceful x"], "COMPLETED", 5, ((2, "x"),)),
    # dead_end ends its branch alone
    "dead-end": Close(["0 dead_end"], "RUNNING", 0),
    "dead-ends": Close(["0 dead_end", "1 dead_end"], "RUNNING", 1),
    # force_complete and force_fail end all branches at once
    "complete": Close(["0 complete"], "COMPLETED", 0),
    "complete-output": Close(["1 complete x", "9 graceful y"], "COMPLETED", 1, ((1, "x"),)),
    "complete-after-graceful": Close(
        ["1 graceful x", "2 complete y", "9 fail no"], "COMPLETED", 2, ((1, "x"), (2, "y"))
    ),
    "fail": Close(["1 fail because", "9 graceful y"], "FAILED", 1, error="because"),
    "fail-after-graceful": Close(["1 graceful x", "2 fail because"], "FAILED", 2, error="because"),
}


@pytest.mark.statement("B106", "B107", "B108", "B109", "B110", "B111", "B112", "B113", "B114", "C19", "C20", "C21")
@pytest.mark.parametrize("name", CLOSES)
@scenario()
async def test_how_branches_close_a_flow(world: World, name: str) -> None:
    case = CLOSES[name]
    flow = Made(Forks(), Branch(), has=(news,))
    await world.deploy(flow)
    await world.start(flow, "f", case.branches)
    if case.at:
        await world.advance(case.at - 0.5)
        assert (await world.describe("f")).status == "RUNNING"
    await world.advance(1)
    description = await world.describe("f")
    assert description.status == case.status
    assert not description.steps
    if case.status == "RUNNING":
        await world.advance(3600)
        assert (await world.describe("f")).status == "RUNNING"
        await world.publish("f", news, 1)  # it lives
        return
    result = await world.result("f")
    assert result.status is FlowStatus[case.status]
    assert result.error_message == case.error
    assert result.error_type is (FlowErrorType.STEP_DECISION_FAILED if case.error else None)
    assert tuple(outputs(result)) == tuple((f"Branch-{number}", output) for number, output in case.outputs)
    assert all(completion.step_type == "Branch" for completion in result.completions)
    await world.advance(20)
    late = [event for event in await world.history("f") if event.at > (description.closed_at or 0)]
    assert late == [], "results that come after the end are refused"


@pytest.mark.statement("B106", "B111")
@scenario(ray=True)
async def test_outputs_of_all_branches_come_back(world: World) -> None:
    flow = Made(Forks(), Branch(), name="ForksOnRay")
    await world.deploy(flow)
    await world.start(flow, "f", ["0 graceful x", "0 dead_end", "0 graceful y", "0 graceful"])
    result = await world.result("f")
    assert sorted(outputs(result), key=lambda pair: pair[0]) == [("Branch-1", "x"), ("Branch-3", "y")]


class WaitsForNews(Step[str]):
    def wait_for(self, context: Context, input: str) -> Wait:
        return Wait.until(news.for_one())

    def execute(self, context: Context, input: str) -> StepDecision:
        return dead_end()


class CompletesBesideAWait(Step[None]):
    def execute(self, context: Context, input: None) -> StepDecision:
        return go_to_many(StepMovement.of(WaitsForNews, ""), StepMovement.of(Branch, "0 graceful x"))


@pytest.mark.statement("B113", "B114", "C19")
@scenario()
async def test_a_step_that_waits_holds_up_a_graceful_completion_also_over_a_crash(world: World) -> None:
    flow = Made(CompletesBesideAWait(), WaitsForNews(), Branch(), has=(news,))
    await world.deploy(flow)
    await world.start(flow, "f")
    await world.advance(3600)
    assert (await world.describe("f")).status == "RUNNING"
    await world.restart()
    await world.publish("f", news, 1)
    assert (await world.result("f", timeout=1)).single_output(str) == "x"


# Next Steps -----------------------------------------------------------------------------------------------------------


class Plans(Step[None]):
    def execute(self, context: Context, input: None) -> StepDecision:
        many = RetryPolicy(maximum_attempts=7)
        return go_to_many(
            StepMovement.of(Works, "a"),
            StepMovement.of(Works, "b", StepOptions(execute_retry=many)),
            StepMovement.of(Rests, 3),
            StepMovement.of(Works, "c"),
        )


class Works(Step[str]):
    def execute(self, context: Context, input: str) -> StepDecision:
        return graceful_complete([context.step_execution_id, context.from_step_execution_id, input])


class Rests(Step[int]):
    def execute(self, context: Context, input: int) -> StepDecision:
        return go_to(Works, f"after {input}")


@pytest.mark.statement("B104", "B105", "C18")
@scenario(ray=True)
async def test_a_decision_starts_several_steps_numbered_by_type_in_the_order_of_their_movements(world: World) -> None:
    flow = Made(Plans(), Works(), Rests(), name="Plans")
    await world.deploy(flow)
    await world.start(flow, "f")
    found = sorted(value for _, value in outputs(await world.result("f"), list[str]))
    assert found == [
        ["Works-1", "Plans-1", "a"],
        ["Works-2", "Plans-1", "b"],
        ["Works-3", "Plans-1", "c"],
        ["Works-4", "Rests-1", "after 3"],
    ]
    scheduled = {event.step_execution_id: event for event in await events(world, "f", "StepScheduled")}
    assert [step for step, event in scheduled.items() if "override" in event.data] == ["Works-2"]
    assert scheduled["Works-2"].data["override"]["execute"]["retry"]["attempts"] == 7


class Repeats(Step[int]):
    def execute(self, context: Context, input: int) -> StepDecision:
        return go_to(Repeats, input - 1) if input else graceful_complete(context.step_execution_id)


@pytest.mark.statement("B104", "C18")
@scenario()
async def test_numbers_go_on_over_a_crash(world: World) -> None:
    flow = Made(WaitsAndRepeats(), Repeats(), has=(news,))
    await world.deploy(flow)
    await world.start(flow, "f", 3)
    await world.until_phase("f", "WaitsAndRepeats-2", "waiting")
    await world.restart()
    await world.publish("f", news, 1)
    assert (await world.result("f")).single_output(str) == "WaitsAndRepeats-3"


class WaitsAndRepeats(Step[int]):
    def wait_for(self, context: Context, input: int) -> Wait:
        return Wait.until(news.for_one()) if input == 2 else Wait.skip_immediately()

    def execute(self, context: Context, input: int) -> StepDecision:
        return go_to(WaitsAndRepeats, input - 1) if input > 1 else graceful_complete(context.step_execution_id)


# Decisions that can't be ----------------------------------------------------------------------------------------------


class Unregistered(Step[None]):
    def execute(self, context: Context, input: None) -> StepDecision:
        return dead_end()


WRONG: dict[str, tuple[Callable[[], Any], str]] = {
    "no movement": (lambda: go_to_many(), "requires a movement"),
    "an unregistered Step": (lambda: go_to(Unregistered, None), "no Step 'Unregistered'"),
    "an input of another type": (lambda: go_to(Works, 5), "Works"),  # type: ignore[misc]
    "cancels an unregistered Step": (lambda: dead_end().with_canceling_steps(Unregistered), "no Step 'Unregistered'"),
    "no fallback": (lambda: force_complete_if_channels_empty(1, None, news), "requires a fallback"),  # type: ignore[arg-type]
    "no Channel": (lambda: force_complete_if_channels_empty(1, StepMovement.of(Works, "x")), "requires a Channel"),
    "a ChannelMap": (
        lambda: force_complete_if_channels_empty(1, StepMovement.of(Works, "x"), rooms),  # type: ignore[arg-type]
        "requires static Channels",
    ),
    "nothing": (lambda: None, "expected a StepDecision"),
    "a Wait": (Wait.skip_immediately, "expected a StepDecision"),
}


class DecidesWrongly(Step[str]):
    def get_step_options(self) -> StepOptions:
        return StepOptions(execute_retry=RetryPolicy(maximum_attempts=2))

    def execute(self, context: Context, input: str) -> StepDecision:
        news.publish(context, 1)
        return WRONG[input][0]()  # type: ignore[no-any-return]


@pytest.mark.statement("C24", "C25")
@pytest.mark.parametrize("name", WRONG)
@scenario()
async def test_a_decision_that_breaks_a_rule_fails_its_attempts_and_then_the_flow(world: World, name: str) -> None:
    flow = Made(DecidesWrongly(), Works(), has=(news, rooms))
    await world.deploy(flow)
    await world.start(flow, "f", name)
    result = await world.result("f")
    assert (result.status, result.error_type) == (FlowStatus.FAILED, FlowErrorType.WORKER_API_FAILED)
    assert WRONG[name][1] in result.error_message
    assert await steps_of(world, "f", "StepScheduled") == ["DecidesWrongly-1"]
    failed = await events(world, "f", "AttemptFailed")
    assert [event.data["failure"]["kind"] for event in failed] == ["INVALID_RESULT"] * 2
    assert "MessagePublished" not in await world.kinds("f")
