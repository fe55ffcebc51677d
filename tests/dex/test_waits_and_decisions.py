"""Waits, conditions and decisions as values."""

from __future__ import annotations

import copy
import pickle
from datetime import timedelta
from typing import Any

import pytest

from dex import (
    Channel,
    ChannelMap,
    Condition,
    ConditionCombination,
    Context,
    Flow,
    RPCResult,
    Step,
    StepDecision,
    StepMovement,
    StepOptions,
    StepOutput,
    SubFlow,
    SubFlowOptions,
    Timer,
    Wait,
    dead_end,
    force_complete,
    force_complete_if_channels_empty,
    force_fail,
    go_to,
    go_to_many,
    graceful_complete,
    heartbeat,
)
from dex.decision import NO_OUTPUT, decision_problem
from dex.step import DecisionKind
from dex.wait import ChannelCondition, SubFlowCondition, TimerCondition, WaitKind, wait_problem

A = Channel("a", int)
B = ChannelMap("b", int)
HOUR = timedelta(hours=1)


class Next(Step[int]):
    def execute(self, context: Context, input: int) -> StepDecision:
        return dead_end()


class Other(Step[str]):
    def execute(self, context: Context, input: str) -> StepDecision:
        return dead_end()


class Child(Flow[int]):
    pass


def bounds(condition: Condition) -> tuple[int, int | None]:
    assert isinstance(condition, ChannelCondition)
    return condition.at_least, condition.at_most


# Conditions ---


@pytest.mark.statement("D1")
def test_channel_conditions_have_bounds() -> None:
    assert bounds(A.for_one()) == (1, 1)
    assert bounds(A.for_n(3)) == (3, 3)
    assert bounds(A.at_least(2)) == (2, None)
    assert bounds(A.at_most(4)) == (0, 4)
    assert bounds(A.at_most(0)) == (0, 0)
    assert bounds(A.for_range(at_least=1, at_most=3)) == (1, 3)
    assert bounds(A.for_range(at_most=3)) == (0, 3)
    assert bounds(A.for_range(at_least=3)) == (3, None)
    assert bounds(B.for_range("x", at_least=2, at_most=2)) == (2, 2)


@pytest.mark.statement("D1")
@pytest.mark.parametrize(
    "make",
    [
        lambda: A.for_n(-1),
        lambda: A.at_least(-1),
        lambda: A.at_most(-1),
        lambda: A.for_range(at_least=2, at_most=1),
        lambda: A.for_range(),
        lambda: B.for_n("x", -1),
        lambda: B.for_range("x"),
    ],
)
def test_negative_crossed_and_missing_bounds_are_refused(make: Any) -> None:
    with pytest.raises(ValueError, match=r"Channel '[ab]': "):
        make()


@pytest.mark.parametrize("count", [1.0, True, "1", None])
def test_a_number_of_messages_is_an_int(count: Any) -> None:
    with pytest.raises(TypeError, match="Channel 'a': a number of messages is an int"):
        A.for_n(count)
    with pytest.raises(TypeError, match="Channel 'b': a number of messages is an int"):
        B.at_most("x", count)


def test_a_map_s_condition_names_its_instance() -> None:
    condition = B.for_one("x y", condition_id="c")
    assert isinstance(condition, ChannelCondition)
    assert (condition.channel, condition.instance, condition.condition_id) == (B, "x y", "c")
    for instance in ("", "a/b", "a\nb"):
        with pytest.raises(ValueError, match="ChannelMap 'b'"):
            B.for_one(instance)


def test_a_timer_has_whole_non_negative_seconds() -> None:
    timer = Timer.by_duration(HOUR, condition_id="t")
    assert isinstance(timer, TimerCondition)
    assert (timer.duration, timer.condition_id) == (HOUR, "t")
    assert isinstance(Timer.by_duration(timedelta(0)), TimerCondition)
    for duration in (-HOUR, timedelta(milliseconds=1), timedelta(seconds=2**31)):
        with pytest.raises(ValueError, match=r"Timer.by_duration"):
            Timer.by_duration(duration)
    for other in (5, None):
        with pytest.raises(TypeError, match=r"Timer.by_duration"):
            Timer.by_duration(other)  # type: ignore[arg-type]


def test_a_subflow_condition_holds_the_flow_and_its_options() -> None:
    flow = Child()
    condition = SubFlow.run(flow, 5, SubFlowOptions(condition_id="child"))
    assert isinstance(condition, SubFlowCondition)
    assert (condition.flow, condition.input, condition.condition_id) == (flow, 5, "child")
    with pytest.raises(ValueError, match="got None"):
        SubFlow.run(None, 5)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="got ABCMeta"):
        SubFlow.run(Child, 5)  # type: ignore[arg-type]


# Waits ---


@pytest.mark.statement("B83", "B85")
def test_waits_combine_conditions() -> None:
    one, two = A.for_one(), Timer.by_duration(HOUR)
    assert Wait.until(one).kind is WaitKind.ALL_OF
    assert Wait.until(one).conditions == (one,)
    assert (Wait.all_of(one, two).kind, Wait.any_of(one, two).kind) == (WaitKind.ALL_OF, WaitKind.ANY_OF)
    skip = Wait.skip_immediately()
    assert (skip.kind, skip.conditions) == (WaitKind.SKIP_IMMEDIATELY, ())


@pytest.mark.statement("B97")
def test_a_combination_wait_is_an_or_of_and_groups_that_may_share_conditions() -> None:
    one, two, three = (A.for_one(condition_id=name) for name in "123")
    wait = Wait.any_combination_of(ConditionCombination.of(one, two), ConditionCombination.of(two, three))
    assert wait.conditions == (one, two, three)
    assert [group.conditions for group in wait.combinations] == [(one, two), (two, three)]
    assert wait_problem(wait) is None


@pytest.mark.statement("B84")
def test_plain_waits_need_no_condition_ids() -> None:
    assert wait_problem(Wait.any_of(A.for_one(), A.for_n(2))) is None


@pytest.mark.statement("B99")
def test_every_condition_in_a_combination_needs_an_id_of_its_own() -> None:
    named, unnamed = A.for_one(condition_id="x"), A.for_one()
    problem = wait_problem(Wait.any_combination_of(ConditionCombination.of(named, unnamed)))
    assert problem is not None
    assert "has no condition_id" in problem
    twice = Wait.any_combination_of(ConditionCombination.of(named, A.for_n(2, condition_id="x")))
    assert "'x' stands for two conditions" in str(wait_problem(twice))


def test_ids_are_never_empty_or_doubled() -> None:
    assert "empty condition_id" in str(wait_problem(Wait.until(A.for_one(condition_id=""))))
    doubled = Wait.any_of(A.for_one(condition_id="x"), Timer.by_duration(HOUR, condition_id="x"))
    assert "'x' stands for two" in str(wait_problem(doubled))
    number: Any = 5
    assert "must be a str" in str(wait_problem(Wait.until(A.for_one(condition_id=number))))


def test_a_wait_needs_conditions() -> None:
    for make in (Wait.any_of, Wait.all_of, Wait.any_combination_of, ConditionCombination.of):
        with pytest.raises(ValueError, match="needs at least one"):
            make()
    with pytest.raises(TypeError, match=r"Wait.until takes conditions"):
        Wait.until(HOUR)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"takes ConditionCombination.of"):
        Wait.any_combination_of(A.for_one())  # type: ignore[arg-type]


# Decisions ---


@pytest.mark.statement("B104")
def test_go_to_starts_one_step_and_go_to_many_several() -> None:
    decision = go_to(Next, 5)
    assert (decision.kind, decision.movements) == (DecisionKind.NEXT, (StepMovement(Next, 5),))
    options = StepOptions(execute_method_timeout=HOUR)
    positional = StepMovement.of(Next, 1, options)
    assert positional == StepMovement.of(Next, 1, options=options)
    assert go_to_many(positional, StepMovement.of(Other, "x")).movements == (positional, StepMovement(Other, "x"))


def test_steps_are_named_by_class_or_instance() -> None:
    instance = Next()
    decision = go_to(instance, 5).with_canceling_steps(Other, instance).with_canceling_sibling_steps(Other())
    assert decision.movements[0].step is instance
    assert decision.canceling_steps == (Other, instance)


@pytest.mark.statement("B110")
def test_an_output_of_none_is_an_output() -> None:
    assert not graceful_complete().has_output
    assert graceful_complete(None).has_output
    assert not force_complete().has_output
    assert force_complete(None).output is None
    assert pickle.loads(pickle.dumps(NO_OUTPUT)) is NO_OUTPUT
    assert copy.deepcopy(NO_OUTPUT) is NO_OUTPUT


def test_canceling_makes_copies_that_add_up() -> None:
    decision = dead_end()
    more = decision.with_canceling_steps(Next).with_canceling_steps(Other)
    assert decision.canceling_steps == ()
    assert more.canceling_steps == (Next, Other)
    assert RPCResult(1).with_canceling_steps(Next).canceling_steps == (Next,)


def test_force_fail_has_a_reason() -> None:
    assert force_fail("late").reason == "late"
    with pytest.raises(TypeError, match=r"force_fail\(reason\) takes a str"):
        force_fail(ValueError("x"))  # type: ignore[arg-type]


def test_decisions_that_cannot_be_committed_say_why() -> None:
    fallback = StepMovement.of(Next, 1)
    wrong: Any = B
    none: Any = None
    problems = {
        "requires a movement": go_to_many(),
        "requires static Channels, got ChannelMap 'b'": force_complete_if_channels_empty(None, fallback, wrong),
        "requires a fallback": force_complete_if_channels_empty(None, none, A),
        "requires a Channel": force_complete_if_channels_empty(None, fallback),
        "takes StepMovement.of": go_to_many(none),
    }
    for words, decision in problems.items():
        assert words in str(decision_problem(decision))
    for good in (go_to(Next, 1), dead_end(), force_complete_if_channels_empty(None, fallback, A)):
        assert decision_problem(good) is None


# Frames ---


@pytest.mark.statement("B175", "B176")
def test_a_heartbeat_has_a_value_or_clears_it() -> None:
    assert (heartbeat(3).has_value, heartbeat(3).value) == (True, 3)
    assert (heartbeat(None).has_value, heartbeat(None).value) == (True, None)
    assert (heartbeat().has_value, heartbeat().value) == (False, None)


def test_a_frame_is_not_made_by_its_class() -> None:
    with pytest.raises(TypeError, match="made by heartbeat"):
        StepOutput()
