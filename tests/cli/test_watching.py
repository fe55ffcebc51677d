"""Watching a Flow: rows from its history, and how they are shown."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from dex.wire.service import FailureDescription, FlowDescription, HistoryEvent, StepDescription
from dexray.cli import watch as watching
from dexray.cli.board import Board
from tests.cli.conftest import Shell

MODULE = "tests.cli.flows"


class Story:
    """A history, told event by event."""

    def __init__(self) -> None:
        self.board = Board()
        self.at = 100.0
        self.number = 0
        self.lines: list[str] = []
        self("FlowStarted", flow_type="Shop")

    def __call__(self, kind: str, step: str = "", **data: Any) -> Story:
        self.number += 1
        self.at += 1.0
        event = HistoryEvent(number=self.number, kind=kind, at=self.at, step_execution_id=step, data=data)
        self.lines += self.board.take([event])
        return self

    def row(self, step: str) -> tuple[str, int, str]:
        row = self.board.rows[step]
        return row.state, row.attempt, row.note


def test_a_step_goes_from_ready_over_waiting_and_running_to_done() -> None:
    story = Story()
    seen = []
    for kind, data in (
        ("StepScheduled", {"method": "wait_for"}),
        ("AttemptStarted", {"method": "wait_for", "attempt": 1}),
        ("WaitStarted", {}),
        ("ConditionsMet", {}),
        ("AttemptStarted", {"method": "execute", "attempt": 1}),
        ("StepCompleted", {"decision": "next"}),
    ):
        story(kind, "Buy-1", **data)
        seen.append(story.row("Buy-1")[0])
    assert seen == ["ready", "running", "waiting", "ready", "running", "done"]
    assert not story.board.rows["Buy-1"].is_open


def test_a_failure_shows_its_error_and_the_next_attempt_its_number() -> None:
    story = Story()("StepScheduled", "Buy-1", method="execute")("AttemptStarted", "Buy-1", method="execute", attempt=1)
    story(
        "AttemptFailed",
        "Buy-1",
        method="execute",
        retry_at=200.0,
        failure={"error_type": "shop.Closed", "detail": "no"},
    )
    assert story.row("Buy-1") == ("backoff", 1, "shop.Closed: no")
    story("AttemptStarted", "Buy-1", method="execute", attempt=2)
    assert story.row("Buy-1")[:2] == ("running", 2)
    story("StepExecuteFailed", "Buy-1", method="execute", route="Refund")
    assert story.row("Buy-1") == ("failed", 2, "failed, Refund takes over")
    assert any("attempt 1 of execute failed: shop.Closed: no" in line for line in story.lines)


def test_a_cancelled_step_names_who_cancelled_it() -> None:
    story = Story()("StepScheduled", "Buy-1", method="execute")("StepCancelled", "Buy-1", by="Stop-1")
    assert story.row("Buy-1") == ("canceled", 1, "canceled by Stop-1")


def test_the_end_of_the_flow_ends_what_was_open_and_nothing_else() -> None:
    story = Story()("StepScheduled", "Buy-1", method="execute")("StepScheduled", "Pay-1", method="execute")
    story("StepCompleted", "Buy-1", decision="force_fail")("FlowClosed", status="FAILED", error_message="broke")
    assert (story.row("Buy-1")[0], story.row("Pay-1")[0]) == ("done", "ended")
    assert story.board.status == "FAILED"
    assert "FAILED: broke" in story.lines[-1]


def test_events_of_a_later_version_change_nothing() -> None:
    story = Story()("StepScheduled", "Buy-1", method="execute")
    story("StepTeleported", "Buy-1", to="Mars")("AttemptStarted", "Unknown-1", attempt=1)
    assert story.row("Buy-1") == ("ready", 1, "")
    assert list(story.board.rows) == ["Buy-1"]
    assert story.board.last_event == 4


def test_the_live_state_adds_what_a_step_waits_for_and_its_last_failure() -> None:
    story = Story()("StepScheduled", "Buy-1", method="execute")("StepScheduled", "Pay-1", method="wait_for")

    def described(step: str, **fields: Any) -> StepDescription:
        return StepDescription(
            step_type=step, step_execution_id=f"{step}-1", from_step_execution_id="", attempt=2, since=3.0, **fields
        )

    failure = FailureDescription("shop.Closed", "no")
    story.board.look(
        FlowDescription(
            flow_id="f",
            run_id="r",
            flow_type="Shop",
            status="RUNNING",
            started_at=1.0,
            steps=(
                described("Buy", method="execute", phase="backoff", waits_for="attempt 3", last_failure=failure),
                described("Pay", method="wait_for", phase="waiting", waits_for="1 message on paid"),
                described("New", method="execute", phase="running"),
            ),
        )
    )
    assert story.row("Buy-1") == ("backoff", 2, "shop.Closed: no")
    assert story.row("Pay-1") == ("waiting", 2, "1 message on paid")
    assert "New-1" not in story.board.rows


def picture(board: Board, height: int = 40) -> str:
    console = Console(file=io.StringIO(), width=100, height=height)
    console.print(watching._picture(board, "shop-1", height))
    text = console.file.getvalue()  # type: ignore[attr-defined]
    return str(text)


def test_the_picture_has_a_head_and_a_row_for_each_step() -> None:
    story = Story()("StepScheduled", "Buy-1", method="execute")("StepCompleted", "Buy-1", decision="next")
    story("StepScheduled", "Pay-1", method="wait_for")
    shown = picture(story.board)
    assert "shop-1  RUNNING" in shown
    assert "1 open, 1 ended" in shown
    assert "ready wait_for" in shown
    assert "went on" in shown


def test_a_picture_of_many_steps_fits_the_terminal_and_keeps_the_open_ones() -> None:
    story = Story()("StepScheduled", "Old-1", method="wait_for")
    for number in range(50):
        story("StepScheduled", f"Buy-{number}", method="execute")("StepCompleted", f"Buy-{number}", decision="next")
    shown = picture(story.board, height=20)
    assert len(shown.splitlines()) <= 20
    assert "Old-1" in shown
    assert "Buy-49" in shown
    assert "Buy-1 " not in shown
    assert "37 not shown" in shown


def test_a_terminal_gets_a_live_table_and_the_result_after_it(dexray: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dexray.cli.terminal.Terminal.is_live", True)
    outcome = dexray("run", f"{MODULE}:PriceFlow", "--id", "p", "--input", '{"item": "hat"}', "--watch")
    assert outcome.code == 0
    assert "p  COMPLETED" in outcome.err
    assert "Price-1" in outcome.err
    assert '"item": "hat"' in outcome.out


def test_a_live_table_times_out_and_ends_cleanly(dexray: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dexray.cli.terminal.Terminal.is_live", True)
    target = (f"{MODULE}:approval_flow", "--id", "a", "--input", '{"item": "hat"}', "--timeout", "0.6", "--watch")
    outcome = dexray("run", *target)
    assert outcome.code == 3
    assert "1 message on approvals" in outcome.err
    assert "error: Flow 'a' is still running after 0.6 s" in outcome.err


def test_the_demo_runs_the_example_and_ends_with_its_records(dexray: Shell) -> None:
    outcome = dexray("demo", "--json")
    assert (outcome.code, outcome.err) == (0, "")
    outcomes = {record["reviewer"]: record["outcome"] for record in outcome.data["records"]}
    assert outcomes == {
        "Ada": "canceled",
        "Ben": "saved",
        "Cleo": "failed",
        "Dan": "withdrawn",
        "Eve": "failed",
        "Finn": "saved",
    }
    (place,) = dexray.places
    assert place.address == "local"
    assert place.database is not None
    assert not Path(place.database).parent.exists()
