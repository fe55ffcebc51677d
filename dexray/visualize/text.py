"""The report for people: one tree per Flow, in which each Step says what it waits for, decides and needs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from rich.console import RenderableType
from rich.text import Text
from rich.tree import Tree

from dexray.visualize.data import flow_data
from dexray.visualize.diagnostics import Diagnostic, Severity

if TYPE_CHECKING:
    from dexray.visualize import Report


def text_of(report: Report) -> Iterator[RenderableType]:
    """The Flows, then the diagnostics, each a line or two."""
    for graph in report.flows:
        yield _tree(flow_data(graph))
    for found in report.diagnostics:
        yield diagnostic_text(found)


def diagnostic_text(found: Diagnostic) -> Text:
    style = "bold red" if found.severity is Severity.ERROR else "bold yellow"
    return Text.assemble((f"{found.severity.value}: ", style), f"{found.where}: Flow {found.flow!r}, {found.message}")


def waits_text(step: dict[str, Any], length: int = 3) -> str:
    """What a Step waits for: `any_of approval.for_one, timer 2 d`. length: conditions that are named."""
    conditions = [
        *(f"{known['name']}.{known['condition']}" for known in step["channels"]),
        *(f"timer {span(known['seconds'])}".rstrip() for known in step["timers"]),
        *(f"SubFlow {known or '?'}" for known in step["subflows"]),
    ]
    more = [f"{len(conditions) - length} more"] if len(conditions) > length else []
    kinds = [kind for kind in step["waits"] if kind != "skip_immediately" or not conditions]
    named = ", ".join((*conditions[:length], *more))
    return f"{' or '.join(kinds)} {named}".strip()


def span(seconds: float | None) -> str:
    """A length of time as a person would say it; empty when it isn't known."""
    if seconds is None:
        return ""
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size and seconds % size == 0:
            return f"{seconds / size:g} {unit}"
    return f"{seconds:g} s"


def _tree(flow: dict[str, Any]) -> Tree:
    tree = Tree(Text(f"Flow {flow['type']}", "bold"))
    for step in flow["steps"]:
        head = Text.assemble(
            (step["name"], "bold"), f"({step['input']})", ("  start" if step["start"] else "", "green")
        )
        branch = tree.add(head)
        if waits := waits_text(step, 20):
            branch.add(f"waits  {waits}")
        if not step["waits_complete"]:
            branch.add("waits also for what the source does not tell")
        _add_does(branch, step)
        if step["failure_route"]:
            branch.add(f"fails  {step['failure_route']}")
        for method, loads in step["loads"].items():
            _add(branch, "loads", loads, f" in {method}")
        for method, locks in step["locks"].items():
            _add(branch, "locks", locks, f" in {method}")
    for rpc in flow["rpcs"]:
        answer = f" -> {rpc['output']}" if rpc["output"] else ""
        branch = tree.add(Text.assemble("RPC ", (rpc["name"], "bold"), f"({rpc['input'] or ''}){answer}"))
        _add_does(branch, rpc)
        _add(branch, "loads", rpc["loads"])
        _add(branch, "locks", rpc["locks"])
    if flow["timeout_handler"]:
        _add_does(tree.add("handle_timeout"), flow["timeout_handler"])
    for name in ("attributes", "channels", "streams"):
        _add(tree, name, [f"{found['name']}: {found['type']}{_map(found)}" for found in flow[name]])
    return tree


def _add_does(branch: Tree, does: dict[str, Any]) -> None:
    endings = [kind for kind in does.get("decisions", ()) if kind != "next"]
    _add(branch, "goes to", does["goes_to"])
    _add(branch, "ends with", endings)
    _add(branch, "cancels", does["cancels"])
    _add(branch, "publishes", does["publishes"])
    if not does["complete"]:
        branch.add("goes also where the source does not tell")


def _add(branch: Tree, what: str, names: list[str], where: str = "") -> None:
    if names:
        branch.add(f"{what}  {', '.join(names)}{where}")


def _map(found: dict[str, Any]) -> str:
    return " by instance" if found["kind"].endswith("Map") else ""
