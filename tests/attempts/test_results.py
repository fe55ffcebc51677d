"""What a handler may return, and what is said of everything else."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from dex.channel import Channel
from dex.decision import (
    StepDecision,
    StepMovement,
    dead_end,
    force_complete,
    force_complete_if_channels_empty,
    force_fail,
    go_to,
    go_to_many,
    graceful_complete,
)
from dex.options import StepOptions
from dex.wait import ConditionCombination, Timer, Wait, WaitKind
from dexray.protocol.attempts import (
    INVALID_RESULT,
    AttemptFailed,
    ConditionSpec,
    DecisionSpec,
    WaitForSucceeded,
    WaitSpec,
)
from tests.attempts import shop
from tests.attempts.build import executed, failed, run, task_for, value_of, waited
from tests.attempts.shop import REGISTRY, Act, Order, Ship, Stranger, carriers, notify, paid

HOUR = timedelta(hours=1)


def decided(decision: object) -> DecisionSpec:
    shop.Script.execute = staticmethod(lambda context, _: decision)
    return executed(REGISTRY, task_for("Shop", "Act", "x")).decision


def refused(decision: object) -> str:
    shop.Script.execute = staticmethod(lambda context, _: decision)
    return invalid(failed(REGISTRY, task_for("Shop", "Act", "x")))


def wait_of(wait: object) -> WaitSpec:
    shop.Script.wait_for = staticmethod(lambda context, _: wait)
    return waited(REGISTRY, task_for("Shop", "Act", "x", method="wait_for")).wait


def refused_wait(wait: object) -> str:
    shop.Script.wait_for = staticmethod(lambda context, _: wait)
    return invalid(failed(REGISTRY, task_for("Shop", "Act", "x", method="wait_for")))


def invalid(failure: AttemptFailed) -> str:
    assert failure.kind == INVALID_RESULT, failure
    assert failure.error_type == "dex.errors.InvalidStepResultError"
    assert "Flow 'Shop', Step 'Act'" in failure.detail
    return failure.detail


# Decisions ------------------------------------------------------------------------------------------------------------


@pytest.mark.statement("B104", "B105")
def test_movements_carry_the_input_of_their_steps() -> None:
    decision = decided(
        go_to_many(
            StepMovement.of(Act, "a"), StepMovement.of(Ship, Order("x", 2)), StepMovement.of(Ship(), Order("y", 3))
        )
    )
    assert decision.kind == "next"
    assert [movement.step_type for movement in decision.movements] == ["Act", "Ship", "Ship"]
    assert value_of(decision.movements[0].input) == "a"
    assert value_of(decision.movements[2].input, Order) == Order("y", 3)
    assert all(movement.override is None for movement in decision.movements)


@pytest.mark.statement("B131")
def test_options_of_a_movement_become_the_spec_of_that_execution() -> None:
    decision = decided(go_to_many(StepMovement.of(Act, "a", StepOptions(execute_method_timeout=HOUR))))
    override = decision.movements[0].override
    assert override is not None
    assert override.step_type == "Act"
    assert override.execute.timeout == 3600
    assert override.wait_for is not None


@pytest.mark.statement("B106", "B107", "B108", "B109", "B110")
@pytest.mark.parametrize(
    ("decision", "kind", "has_output"),
    [
        (graceful_complete(), "graceful_complete", False),
        (graceful_complete(None), "graceful_complete", True),
        (force_complete({"a": 1}), "force_complete", True),
        (force_complete(), "force_complete", False),
        (dead_end(), "dead_end", False),
    ],
)
def test_closing_decisions_keep_whether_there_is_an_output(decision: StepDecision, kind: str, has_output: bool) -> None:
    spec = decided(decision)
    assert spec.kind == kind
    assert (spec.output is not None) is has_output
    if has_output:
        assert value_of(spec.output) == decision.output


@pytest.mark.statement("B109")
def test_a_forced_failure_keeps_its_reason() -> None:
    spec = decided(force_fail("out of stock"))
    assert (spec.kind, spec.reason) == ("force_fail", "out of stock")


@pytest.mark.statement("B125")
def test_a_conditional_completion_names_its_channels_and_its_fallback() -> None:
    spec = decided(force_complete_if_channels_empty(None, StepMovement.of(Act, "again"), paid, notify))
    assert spec.kind == "force_complete_if_channels_empty"
    assert spec.channels == ("paid", "notify")
    assert value_of(spec.output) is None
    assert spec.fallback is not None
    assert value_of(spec.fallback.input) == "again"


@pytest.mark.statement("B115", "B123")
def test_a_step_selected_in_the_whole_flow_and_among_siblings_counts_once() -> None:
    spec = decided(go_to(Act, "x").with_canceling_steps(Ship, Ship()).with_canceling_sibling_steps(Ship, Act, Act))
    assert spec.canceling == ("Ship",)
    assert spec.canceling_siblings == ("Act",)


@pytest.mark.statement("B74")
@pytest.mark.parametrize(
    ("decision", "words"),
    [
        (None, "expected a StepDecision, got NoneType: is a return missing?"),
        (Wait.skip_immediately(), "expected a StepDecision, got Wait"),
        ("done", "expected a StepDecision, got str"),
        (go_to_many(), "requires a movement"),
        (go_to(Stranger, "x"), "Stranger"),
        (go_to(Act, 7), "Act"),  # type: ignore[arg-type]
        (go_to(Ship, "order"), "Ship"),  # type: ignore[arg-type]
        (dead_end().with_canceling_steps(Stranger), "Stranger"),
        (dead_end().with_canceling_sibling_steps(Stranger), "Stranger"),
        (force_complete_if_channels_empty(1, None, paid), "fallback"),  # type: ignore[arg-type]
        (force_complete_if_channels_empty(1, StepMovement.of(Act, "x"), carriers), "static Channels"),  # type: ignore[arg-type]
        (force_complete_if_channels_empty(1, StepMovement.of(Act, "x")), "requires a Channel"),
        (force_complete_if_channels_empty(1, StepMovement.of(Stranger, "x"), paid), "Stranger"),
        (force_complete_if_channels_empty(1, StepMovement.of(Act, "x"), Channel("paid", str)), "'paid' is not the one"),
        (force_complete_if_channels_empty(1, StepMovement.of(Act, "x"), Channel("new", str)), "not declared"),
    ],
)
def test_a_decision_that_cannot_be_committed_fails_the_attempt_and_says_why(decision: object, words: str) -> None:
    assert words in refused(decision)


@pytest.mark.statement("D11")
def test_an_output_that_cannot_be_stored_is_refused_by_name() -> None:
    shop.Script.execute = staticmethod(lambda context, _: graceful_complete(object()))
    failure = failed(REGISTRY, task_for("Shop", "Act", "x"))
    assert failure.error_type == "dex.errors.ValueMappingError"
    assert "output of Step 'Act'" in failure.detail


# Waits ----------------------------------------------------------------------------------------------------------------


@pytest.mark.statement("B85", "B86")
def test_a_wait_can_be_for_nothing() -> None:
    assert wait_of(Wait.skip_immediately()) == WaitSpec("skip_immediately")


@pytest.mark.statement("B83", "B84")
def test_conditions_keep_their_order_and_bounds() -> None:
    spec = wait_of(
        Wait.any_of(
            Timer.by_duration(HOUR),
            paid.for_one(),
            carriers.at_least("a b", 2),
            paid.at_most(3, condition_id="few"),
        )
    )
    assert spec == WaitSpec(
        "any_of",
        (
            ConditionSpec("timer", duration=3600.0),
            ConditionSpec("channel", channel="paid", at_least=1, at_most=1),
            ConditionSpec("channel", channel="carriers/a%20b", at_least=2),
            ConditionSpec("channel", condition_id="few", channel="paid", at_least=0, at_most=3),
        ),
    )
    assert wait_of(Wait.until(paid.for_one())).kind == "all_of"


@pytest.mark.statement("B97", "B99")
def test_combinations_name_shared_conditions_by_position() -> None:
    shared = paid.for_one(condition_id="paid")
    spec = wait_of(
        Wait.any_combination_of(
            ConditionCombination.of(shared, Timer.by_duration(HOUR, condition_id="late")),
            ConditionCombination.of(notify.for_one(condition_id="told"), shared),
        )
    )
    assert [condition.condition_id for condition in spec.conditions] == ["paid", "late", "told"]
    assert spec.combinations == ((0, 1), (2, 0))


ID = "condition_id"


@pytest.mark.statement("B99")
@pytest.mark.parametrize(
    ("wait", "words"),
    [
        (None, "expected a Wait, got NoneType: is a return missing?"),
        (dead_end(), "expected a Wait, got StepDecision"),
        (Wait.all_of(paid.for_one(condition_id="a"), notify.for_one(condition_id="a")), "'a'"),
        (Wait.until(paid.for_one(condition_id="")), "empty condition_id"),
        (Wait.any_combination_of(ConditionCombination.of(paid.for_one())), ID),
        (Wait(WaitKind.ALL_OF), "a Wait needs a condition"),
        (Wait(WaitKind.ANY_COMBINATION_OF), "needs a combination"),
        (Wait(WaitKind.ANY_OF, ("soon",)), "not str"),  # type: ignore[arg-type]
        (Wait.until(Channel("paid", str).for_one()), "'paid' is not the one"),
        (Wait.until(Channel("new", str).for_one()), "'new' is not declared"),
    ],
)
def test_a_wait_that_cannot_be_committed_fails_the_attempt_and_says_why(wait: Any, words: str) -> None:
    assert words in refused_wait(wait)


def test_a_combination_with_one_condition_twice_is_refused() -> None:
    condition = paid.for_one(condition_id="paid")
    assert "twice" in refused_wait(Wait.any_combination_of(ConditionCombination.of(condition, condition)))


# Large values ---------------------------------------------------------------------------------------------------------


@pytest.mark.statement("D12")
def test_large_values_travel_apart_and_come_back_as_inputs() -> None:
    large = "x" * 20_000

    def execute(context: Any, _: object) -> StepDecision:
        shop.note.set(context, large)
        paid.publish(context, large + "1")
        context.record_event("event", large + "2")
        context.set_step_execution_local("local", large + "3")
        return go_to_many(StepMovement.of(Act, large), StepMovement.of(Act, "small"))

    shop.Script.execute = staticmethod(execute)
    result = executed(REGISTRY, task_for("Shop", "Act", "x"))
    assert len(result.blobs) == 4  # the Attribute and the input are the same bytes
    assert len(result.decision.movements[0].input) < 100

    given: list[object] = []
    shop.Script.execute = staticmethod(
        lambda context, value: given.append([value, shop.note.get(context)]) or dead_end()
    )
    executed(
        REGISTRY,
        task_for(
            "Shop",
            "Act",
            raw_input=result.decision.movements[0].input,
            attributes=dict(result.writes.attributes),
            blobs=result.blobs,
        ),
    )
    assert given == [[large, large]]


def test_an_output_over_the_threshold_and_a_fallback_travel_apart_too() -> None:
    large = "x" * 20_000
    spec = decided(force_complete_if_channels_empty(large, StepMovement.of(Act, large + "1"), paid))
    assert spec.output is not None
    assert len(spec.output) < 100
    assert spec.fallback is not None
    assert len(spec.fallback.input) < 100


def test_a_result_of_wait_for_carries_its_writes() -> None:
    def wait_for(context: Any, _: object) -> Wait:
        paid.publish(context, "x" * 20_000)
        return Wait.until(paid.for_one())

    shop.Script.wait_for = staticmethod(wait_for)
    result = run(REGISTRY, task_for("Shop", "Act", "x", method="wait_for"))
    assert isinstance(result, WaitForSucceeded)
    assert len(result.blobs) == 1
