"""Watching a Flow until it closes: as a live table in a terminal, else as one line for each event."""

from __future__ import annotations

import time
from datetime import timedelta

from rich.console import Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from dex import Client, FlowResult, LongPollTimeoutError
from dexray.cli.board import Board, Row
from dexray.cli.problems import TimedOut
from dexray.cli.readable import duration
from dexray.cli.terminal import Terminal

_TICK = 0.25  # seconds between two looks

_STYLES = {
    "running": "bold cyan",
    "waiting": "blue",
    "ready": "cyan",
    "backoff": "yellow",
    "done": "green",
    "failed": "red",
    "canceled": "magenta",
    "ended": "dim",
}


def wait(client: Client, flow_id: str, *, timeout: float | None) -> FlowResult:
    """The result of a Flow. Raises TimedOut after `timeout` seconds."""
    try:
        return client.wait_for_flow(flow_id, None if timeout is None else timedelta(seconds=timeout))
    except LongPollTimeoutError:
        raise _timed_out(flow_id, timeout) from None


def watch(client: Client, flow_id: str, terminal: Terminal, *, timeout: float | None) -> FlowResult:
    """As `wait`, showing on stderr what the Steps do."""
    board = Board()
    end = None if timeout is None else time.monotonic() + timeout
    if not terminal.is_live:
        return _follow(client, flow_id, board, terminal, timeout, end)
    with Live(console=terminal.err, auto_refresh=False, transient=False) as live:

        def show() -> None:
            live.update(_picture(board, flow_id, live.console.height), refresh=True)

        while True:
            result = _tick(client, flow_id, timeout, end)
            board.take(client.history(flow_id, after=board.last_event))
            if result is not None:
                show()
                return result
            board.look(client.describe(flow_id))
            show()


def _follow(
    client: Client, flow_id: str, board: Board, terminal: Terminal, timeout: float | None, end: float | None
) -> FlowResult:
    while True:
        result = _tick(client, flow_id, timeout, end)
        for line in board.take(client.history(flow_id, after=board.last_event)):
            terminal.remark(line)
        if result is not None:
            return result


def _tick(client: Client, flow_id: str, timeout: float | None, end: float | None) -> FlowResult | None:
    """Waits for a moment: the result, or None while the Flow goes on."""
    left = _TICK if end is None else min(_TICK, end - time.monotonic())
    try:
        return client.wait_for_flow(flow_id, timedelta(seconds=max(left, 0.0)))
    except LongPollTimeoutError:
        if end is not None and time.monotonic() >= end:
            raise _timed_out(flow_id, timeout) from None
        return None


def _timed_out(flow_id: str, timeout: float | None) -> TimedOut:
    return TimedOut(
        f"Flow {flow_id!r} is still running after {timeout:g} s. It is kept: see `dexray flow show {flow_id}`"
    )


def _picture(board: Board, flow_id: str, height: int) -> RenderableType:
    rows = _chosen(list(board.rows.values()), max(height - 6, 5))
    table = Table(box=None, pad_edge=False, header_style="bold", expand=True)
    table.add_column("Step", no_wrap=True)
    table.add_column("state", no_wrap=True)
    table.add_column("attempt", justify="right")
    table.add_column("for", justify="right", no_wrap=True)
    table.add_column("", no_wrap=True, ratio=1)
    for row in rows:
        state = f"{row.state} {row.method}" if row.is_open else row.state
        age = duration(time.time() - row.since) if row.is_open else ""
        attempt = str(row.attempt) if row.attempt > 1 else ""
        table.add_row(row.step, Text(state, _STYLES.get(row.state, "")), attempt, age, row.note)
    still_open = sum(row.is_open for row in board.rows.values())
    hidden = len(board.rows) - len(rows)
    seconds = (board.last_at if board.status != "RUNNING" else time.time()) - board.started_at
    head = Text.assemble(
        (flow_id, "bold"),
        f"  {board.status}  {duration(seconds)}  {still_open} open, {len(board.rows) - still_open} ended",
        f", {hidden} not shown" if hidden else "",
    )
    return Group(head, table)


def _chosen(rows: list[Row], room: int) -> list[Row]:
    """What fits: open Steps first, then those that ended last; in the order of the run."""
    if len(rows) <= room:
        return rows
    ranked = sorted(rows, key=lambda row: (not row.is_open, -row.since))[:room]
    kept = {row.step for row in ranked}
    return [row for row in rows if row.step in kept]
