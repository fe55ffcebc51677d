"""A Flow for people: what `dexray flow show` prints."""

from __future__ import annotations

import time
from collections.abc import Iterator

from msgspec.structs import replace
from rich.console import RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from dex.explain import explained
from dex.wire.service import FlowDescription, HistoryEvent, StepDescription
from dexray.cli.readable import compact, duration, moment
from dexray.cli.terminal import Terminal


def flow_picture(
    terminal: Terminal, flow: FlowDescription, events: list[HistoryEvent], now: float | None = None
) -> Iterator[RenderableType]:
    """The parts of the picture, top to bottom. What is empty is left out."""
    now = time.time() if now is None else now
    yield _head(flow, now)
    if flow.problem:
        yield Text.assemble(("parked: ", "bold red"), flow.problem)
    if flow.steps:
        yield _title("Open Steps")
        yield from _table(terminal, _steps(terminal, flow.steps, now))
        for sentence in explained(replace(flow, problem="")):  # it was told above
            yield Text(f"  {sentence}")
    if flow.channels:
        table = terminal.table("Channel", "messages")
        for name, count in sorted(flow.channels.items()):
            table.add_row(name, str(count))
        yield _title("Channels")
        yield from _table(terminal, table)
    if flow.attributes:
        table = terminal.table("Attribute", "value")
        for name, value in sorted(flow.attributes.items()):
            table.add_row(name, compact(value, 400))
        yield _title("Attributes")
        yield from _table(terminal, table)
    behind = [store for store in flow.attribute_stores if store.behind_since is not None or store.problem]
    if behind:
        table = terminal.table("Attribute store", "behind for", "why")
        for store in behind:
            since = "" if store.behind_since is None else duration(now - store.behind_since)
            table.add_row(store.name, since, store.problem)
        yield _title("Attribute stores that are behind")
        yield from _table(terminal, table)
    if events:
        table = terminal.table("#", "at", "event", "Step", "data")
        for event in events:
            data = compact(event.data) if event.data else ""
            table.add_row(str(event.number), moment(event.at), event.kind, event.step_execution_id, data)
        yield _title("Last events")
        yield from _table(terminal, table)


def _head(flow: FlowDescription, now: float) -> Text:
    end = now if flow.closed_at is None else flow.closed_at
    head = Text.assemble(
        (flow.flow_id, "bold"),
        f"  {flow.flow_type}  ",
        (flow.status, "bold"),
        f"\nrun {flow.run_id}, started {moment(flow.started_at)}",
        f", closed {moment(flow.closed_at)}" if flow.closed_at is not None else "",
        f" ({duration(end - flow.started_at)})",
    )
    if flow.error_type or flow.error_message:
        why = ": ".join(part for part in (flow.error_type, flow.error_message) if part)
        head.append(f"\n{why}", "red")
    if flow.owner:
        head.append(f"\nowner {flow.owner}", "dim")
    return head


def _steps(terminal: Terminal, steps: tuple[StepDescription, ...], now: float) -> Table:
    table = terminal.table("Step", "phase", "attempt", "for")
    for step in steps:
        table.add_row(
            step.step_execution_id, f"{step.phase} {step.method}", str(step.attempt), duration(now - step.since)
        )
    return table


def _title(text: str) -> Text:
    return Text(f"\n{text}", "bold")


def _table(terminal: Terminal, table: Table) -> Iterator[RenderableType]:
    yield table if terminal.out.is_terminal else Padding(table, (0, 0, 0, 2), expand=False)
