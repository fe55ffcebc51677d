"""The Steps of a run as rows, built from its history.

A history tells what happened, event by event; people who watch a Flow want to see where its Steps are. The board
keeps one row for each Step execution and moves it as the events say. It is as tolerant as a reader must be: an event
that it does not know changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from dex.wire.service import FlowDescription, HistoryEvent
from dexray.cli.readable import compact

OPEN = frozenset({"ready", "running", "backoff", "waiting"})

_DECISIONS = {
    "next": "went on",
    "dead_end": "ended its branch",
    "graceful_complete": "completed",
    "force_complete": "completed the Flow",
    "force_complete_if_channels_empty": "asked to complete the Flow",
    "force_fail": "failed the Flow",
}


@dataclass(slots=True)
class Row:
    """One Step execution.

    state: ready, running, backoff, waiting, done, failed, canceled or ended (with the Flow). since: when that began.
    """

    step: str
    state: str
    since: float
    method: str = ""
    attempt: int = 1
    note: str = ""

    @property
    def is_open(self) -> bool:
        return self.state in OPEN


@dataclass(slots=True)
class Board:
    """All rows of a run, in the order in which the Steps were scheduled.

    `last_event` is the number of the last event taken in.
    """

    rows: dict[str, Row] = field(default_factory=dict)
    last_event: int = 0
    started_at: float = 0.0
    last_at: float = 0.0
    status: str = "RUNNING"

    def take(self, events: Iterable[HistoryEvent]) -> list[str]:
        """Moves the rows, and returns a line for each event that people care for."""
        lines = []
        for event in events:
            self.last_event, self.last_at = event.number, event.at
            self.started_at = self.started_at or event.at
            line = self._apply(event, event.data)
            if line:
                subject = event.step_execution_id or "Flow"
                lines.append(f"{event.at - self.started_at:8.2f} s  {subject:32} {line}")
        return lines

    def look(self, description: FlowDescription) -> None:
        """Adds what only the live state knows: what an open Step waits for."""
        for step in description.steps:
            row = self.rows.get(step.step_execution_id)
            if row is not None and row.is_open:
                row.state, row.method, row.attempt, row.since = step.phase, step.method, step.attempt, step.since
                row.note = "" if step.phase == "running" else step.waits_for
                if step.phase == "backoff" and step.last_failure is not None:
                    row.note = f"{step.last_failure.error_type}: {step.last_failure.detail}"

    def _apply(self, event: HistoryEvent, data: dict[str, Any]) -> str:
        if event.kind == "FlowStarted":
            return f"started as {data.get('flow_type', '?')}"
        if event.kind == "FlowClosed":
            self.status = str(data.get("status", "?"))
            for open_row in [row for row in self.rows.values() if row.is_open]:
                open_row.state, open_row.since, open_row.note = "ended", event.at, ""
            message = data.get("error_message")
            return f"{self.status}: {compact(message)}" if message else self.status
        if event.kind == "StepScheduled":
            method = str(data.get("method", ""))
            self.rows[event.step_execution_id] = Row(event.step_execution_id, "ready", event.at, method)
            return ""
        row = self.rows.get(event.step_execution_id)
        return "" if row is None else _move(row, event, data)


def _move(row: Row, event: HistoryEvent, data: dict[str, Any]) -> str:
    """One event in the life of a Step execution; returns the line for it."""
    state, line = row.state, ""
    match event.kind:
        case "AttemptStarted":
            row.method, row.attempt = str(data.get("method", row.method)), int(data.get("attempt", row.attempt))
            state = "running"
            line = f"{row.method}, attempt {row.attempt}" if row.attempt > 1 else ""
        case "AttemptFailed":
            failure = data.get("failure") or {}
            row.note = f"{failure.get('error_type', 'error')}: {compact(failure.get('detail', ''))}"
            state = "backoff" if data.get("retry_at") is not None else "failed"
            line = f"attempt {row.attempt} of {row.method} failed: {row.note}"
        case "WaitStarted":
            state, line = "waiting", "waits"
        case "ConditionsMet" | "WaitForAbandoned":
            state, row.attempt, row.note, row.method = "ready", 1, "", "execute"
        case "StepCompleted":
            decision = str(data.get("decision", ""))
            row.note = _DECISIONS.get(decision, decision)
            state, line = "done", row.note
        case "StepExecuteFailed" | "StepWaitForFailed":
            route = data.get("route")
            row.note = f"failed, {route} takes over" if route else "failed for good"
            state, line = "failed", row.note
        case "StepCancelled":
            row.note = f"canceled by {data.get('by', '?')}"
            state, line = "canceled", row.note
        case _:
            return ""
    row.state, row.since = state, event.at
    return line
