"""Results of Flows, and the options of client calls."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from dex import (
    AttributeMatch,
    CodecRegistry,
    FlowErrorType,
    FlowResult,
    FlowStatus,
    StepCompletion,
    StepExecutionId,
    StopFlowOptions,
    StopType,
    TimerId,
    TimeTravelOptions,
    TimeTravelStepMethod,
    TimeTravelType,
    ValueMappingError,
)
from dex.results import flow_result_of
from dex.values import detach
from dex.wire.service import Completion, FlowOutcome
from tests.dex.sample import Charge

CODECS = CodecRegistry()


def payload(value: Any) -> bytes:
    return CODECS.encode_dynamic(value, where="test")


def outcome(status: str, *outputs: bytes | None, **more: Any) -> FlowResult:
    completions = tuple(Completion("S", f"S-{number}", output) for number, output in enumerate(outputs, 1))
    return flow_result_of(FlowOutcome(flow_id="f", run_id="r", status=status, completions=completions, **more), CODECS)


@pytest.mark.statement("B111")
def test_a_result_lists_each_output_with_its_step() -> None:
    result = outcome("COMPLETED", payload("a"), None, payload(2))
    assert [(c.step_type, c.step_execution_id, c.has_output) for c in result.completions] == [
        ("S", "S-1", True),
        ("S", "S-2", False),
        ("S", "S-3", True),
    ]
    assert result.completions[2].decode(int) == 2
    with pytest.raises(ValueError, match="S-2 completed without an output"):
        result.completions[1].decode(int)


def test_a_single_output_is_the_only_one() -> None:
    assert outcome("COMPLETED", None, payload("a")).single_output(str) == "a"
    assert outcome("COMPLETED", payload(None)).single_output(type(None)) is None
    with pytest.raises(ValueError, match="COMPLETED with 2 outputs, not one"):
        outcome("COMPLETED", payload(1), payload(2)).single_output(int)
    with pytest.raises(ValueError, match="it is RUNNING"):
        outcome("RUNNING", payload(1)).single_output(int)
    with pytest.raises(ValueMappingError):
        outcome("COMPLETED", payload("a")).single_output(int)


def test_a_failed_result_says_why() -> None:
    result = outcome("FAILED", error_type="STEP_DECISION_FAILED", error_message="late")
    assert (result.status, result.error_type) == (FlowStatus.FAILED, FlowErrorType.STEP_DECISION_FAILED)
    with pytest.raises(ValueError, match=r"FAILED \(STEP_DECISION_FAILED: late\) with 0 outputs"):
        result.single_output(int)
    assert outcome("FAILED", error_type="SOMETHING_NEW").error_type is FlowErrorType.INTERNAL
    assert outcome("COMPLETED").error_type is None


def test_terminal_is_everything_but_running_and_continued() -> None:
    open_ones = {status for status in FlowStatus if not FlowResult(status).is_terminal}
    assert open_ones == {FlowStatus.RUNNING, FlowStatus.CONTINUED_AS_NEW}


def test_a_big_output_is_put_together_again() -> None:
    blobs: dict[str, bytes] = {}
    light = detach(payload("x" * 100_000), blobs)
    assert outcome("COMPLETED", light, blobs=blobs).single_output(str) == "x" * 100_000


def test_a_completion_without_codecs_uses_the_usual_ones() -> None:
    assert StepCompletion("S", "S-1", payload(5)).decode(int) == 5


def test_a_step_execution_id_is_type_and_number() -> None:
    assert str(StepExecutionId("Charge")) == "Charge-1"
    assert str(StepExecutionId(Charge, 3)) == str(StepExecutionId(Charge(), 3)) == "Charge-3"
    assert StepExecutionId(Charge) == StepExecutionId("Charge")

    class Renamed(Charge):
        def get_step_type(self) -> str:
            return "other"

    assert str(StepExecutionId(Renamed())) == "other-1"
    with pytest.raises(TypeError, match=r"Renamed overrides get_step_type\(\)"):
        StepExecutionId(Renamed)
    for number in (0, -1, True, 1.0):
        with pytest.raises(ValueError, match="counts from 1"):
            StepExecutionId("Charge", number)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="Step type 'a/b'"):
        StepExecutionId("a/b")


def test_a_timer_id_has_one_selector() -> None:
    assert TimerId.by_condition_id("t").condition_id == "t"
    assert TimerId.by_condition_index(0).condition_index == 0
    for selectors in ({}, {"condition_id": "t", "condition_index": 1}, {"condition_id": ""}, {"condition_index": -1}):
        with pytest.raises(ValueError, match="TimerId"):
            TimerId(**selectors)


def test_texts_and_bools_match_for_equality_only() -> None:
    assert str(AttributeMatch.equal_to("a")) == "=='a'"
    assert str(AttributeMatch.less_than_or_equal(5)) == "<=5"
    for operand in ("a", True):
        with pytest.raises(ValueError, match="has no order"):
            AttributeMatch.greater_than(operand)  # type: ignore[arg-type]
    for wrong in (None, b"x", [1], float("nan"), float("inf")):
        with pytest.raises(ValueError, match="AttributeMatch compares with"):
            AttributeMatch.equal_to(wrong)  # type: ignore[arg-type]


def test_time_travel_takes_what_its_type_needs_and_nothing_else() -> None:
    now = datetime(2026, 1, 1, tzinfo=UTC)
    TimeTravelOptions(TimeTravelType.BEGINNING)
    TimeTravelOptions(TimeTravelType.HISTORY_EVENT_TIME, history_event_time=now)
    TimeTravelOptions(TimeTravelType.STEP_TYPE, step_type="Charge")
    TimeTravelOptions(
        TimeTravelType.STEP_EXECUTION_ID,
        step_execution_id=StepExecutionId("Charge"),
        step_method=TimeTravelStepMethod.EXECUTE,
    )
    wrong: list[tuple[TimeTravelType, dict[str, Any], str]] = [
        (TimeTravelType.BEGINNING, {"step_type": "Charge"}, "does not take step_type"),
        (TimeTravelType.HISTORY_EVENT_TIME, {}, "needs history_event_time"),
        (TimeTravelType.HISTORY_EVENT_TIME, {"history_event_time": now.replace(tzinfo=None)}, "needs a time zone"),
        (TimeTravelType.STEP_EXECUTION_ID, {"step_execution_id": "Charge-1"}, "needs step_method"),
    ]
    for kind, fields, words in wrong:
        with pytest.raises(ValueError, match=words):
            TimeTravelOptions(kind, **fields)


def test_stopping_cancels_unless_told_otherwise() -> None:
    assert StopFlowOptions().type is StopType.CANCEL
    with pytest.raises(TypeError, match="takes a StopType"):
        StopFlowOptions("FAIL")  # type: ignore[arg-type]
