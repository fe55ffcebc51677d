"""What a Context tells of its attempt, and what it keeps for the next method."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from dex.context import AttemptProgress, RecoveryErrorInfo
from dex.decision import graceful_complete
from dex.wait import Wait
from dexray.protocol.attempts import RecoveryError
from tests.attempts import shop
from tests.attempts.build import RecordingReporter, executed, failed, payload, task_for, value_of, waited
from tests.attempts.shop import REGISTRY


def seen(body: Callable[[Any], object], reporter: RecordingReporter | None = None, **fields: Any) -> Any:
    """What `body` told when it was given the Context of an execute."""
    told: list[object] = []

    def execute(context: Any, _: object) -> Any:
        told.append(body(context))
        return graceful_complete()

    shop.Script.execute = staticmethod(execute)
    executed(REGISTRY, task_for("Shop", "Act", "input", **fields), reporter)
    return told[0]


@pytest.mark.statement("B134", "B225")
def test_a_context_names_its_execution_and_counts_its_attempts() -> None:
    def body(context: Any) -> object:
        return (
            context.flow_id,
            context.run_id,
            context.step_execution_id,
            context.from_step_execution_id,
            context.attempt,
        )

    assert seen(body) == ("flow", "run", "Act-1", "__start__", 1)
    assert seen(body, attempt=3, from_step_execution_id="Ship-2") == ("flow", "run", "Act-1", "Ship-2", 3)


def test_the_first_attempt_has_a_time_in_whole_seconds_utc() -> None:
    at = seen(lambda context: context.first_attempt_at, first_attempt_at=1_700_000_000.9, attempt=2)
    assert at == datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC)


@pytest.mark.statement("B139", "B141")
def test_the_failure_that_led_here_is_told_with_its_progress() -> None:
    recovery = RecoveryError("builtins.ValueError", "no money", "NOT_STARTED")
    error = seen(lambda context: context.recovery_error, recovery_error=recovery)
    assert (error.error_type, error.detail) == ("builtins.ValueError", "no money")
    assert error.attempt_progress is AttemptProgress.NOT_STARTED
    assert seen(lambda context: context.recovery_error) is None


@pytest.mark.statement("B218", "D4")
def test_progress_that_was_not_reported_is_unspecified() -> None:
    recovery = RecoveryError("builtins.ValueError", "no money", "UNSPECIFIED")
    error = seen(lambda context: context.recovery_error, recovery_error=recovery)
    assert error.attempt_progress is AttemptProgress.UNSPECIFIED
    assert RecoveryErrorInfo("no money", "builtins.ValueError").attempt_progress is AttemptProgress.UNSPECIFIED


@pytest.mark.statement("B139")
def test_execute_is_told_that_its_wait_for_failed() -> None:
    assert seen(lambda context: context.wait_for_method_failed(), wait_for_failed=True) is True
    assert seen(lambda context: context.wait_for_method_failed()) is False


@pytest.mark.statement("B100")
def test_a_local_set_in_wait_for_is_read_in_execute() -> None:
    def wait_for(context: Any, _: object) -> Wait:
        context.set_step_execution_local("order", {"n": 1})
        assert context.get_step_execution_local("order", dict[str, int]) == {"n": 1}
        return Wait.skip_immediately()

    shop.Script.wait_for = staticmethod(wait_for)
    kept = waited(REGISTRY, task_for("Shop", "Act", "x", method="wait_for")).writes.locals
    assert seen(lambda context: context.get_step_execution_local("order", dict[str, int]), locals=kept) == {"n": 1}


@pytest.mark.statement("B101", "B102")
def test_a_missing_local_reads_as_none() -> None:
    assert seen(lambda context: context.get_step_execution_local("missing", str)) is None


@pytest.mark.statement("B103")
def test_both_methods_get_the_input() -> None:
    given: list[object] = []
    shop.Script.wait_for = staticmethod(lambda context, value: given.append(value) or Wait.skip_immediately())
    shop.Script.execute = staticmethod(lambda context, value: given.append(value) or graceful_complete())
    waited(REGISTRY, task_for("Shop", "Act", "hello", method="wait_for"))
    executed(REGISTRY, task_for("Shop", "Act", "hello"))
    assert given == ["hello", "hello"]


@pytest.mark.statement("B175", "B180")
def test_a_retry_reads_the_stored_checkpoint() -> None:
    def body(context: Any) -> object:
        return context.has_last_heartbeat_value(), context.get_last_heartbeat_value(int)

    assert seen(body, has_heartbeat=True, heartbeat=payload(5), attempt=2) == (True, 5)


@pytest.mark.statement("B181")
def test_a_first_attempt_has_no_checkpoint() -> None:
    def body(context: Any) -> object:
        return context.has_last_heartbeat_value(), context.get_last_heartbeat_value(int)

    assert seen(body) == (False, None)


def test_none_is_a_checkpoint() -> None:
    def body(context: Any) -> object:
        return context.has_last_heartbeat_value(), context.get_last_heartbeat_value(type(None))

    assert seen(body, has_heartbeat=True, heartbeat=payload(None)) == (True, None)


def test_events_are_recorded_with_the_result() -> None:
    def execute(context: Any, _: object) -> Any:
        context.record_event("seen", [1, 2])
        context.record_event("other", None)
        return graceful_complete()

    shop.Script.execute = staticmethod(execute)
    events = executed(REGISTRY, task_for("Shop", "Act", "x")).writes.events
    assert [(name, value_of(value)) for name, value in events] == [("seen", [1, 2]), ("other", None)]


def test_an_event_of_the_same_name_is_refused() -> None:
    def execute(context: Any, _: object) -> Any:
        context.record_event("seen", 1)
        context.record_event("seen", 2)

    shop.Script.execute = staticmethod(execute)
    failure = failed(REGISTRY, task_for("Shop", "Act", "x"))
    assert failure.error_type == "builtins.ValueError"
    assert "'seen'" in failure.detail


@pytest.mark.statement("B120", "B121")
def test_a_handler_sees_that_it_should_stop_without_a_heartbeat_and_is_not_stopped() -> None:
    reporter = RecordingReporter()

    def body(context: Any) -> object:
        before = context.is_cancellation_requested()
        reporter.canceled = True
        return before, context.is_cancellation_requested()

    assert seen(body, reporter) == (False, True)
    assert reporter.heartbeats == []


@pytest.mark.statement("B119")
def test_the_deadline_is_a_request_to_stop() -> None:
    reporter = RecordingReporter()
    told: list[bool] = []

    def execute(context: Any, _: object) -> Any:
        told.append(context.is_cancellation_requested())
        reporter.time += 60
        told.append(context.is_cancellation_requested())
        return graceful_complete()

    shop.Script.execute = staticmethod(execute)
    failed(REGISTRY, task_for("Shop", "Act", "x", timeout=60.0), reporter)
    assert told == [False, True]
