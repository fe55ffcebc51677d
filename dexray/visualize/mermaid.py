"""The report as a Mermaid flowchart: one subgraph per Flow. Names are quoted and escaped, whatever is in them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from dexray.visualize.data import flow_data
from dexray.visualize.text import waits_text

if TYPE_CHECKING:
    from dexray.visualize import Report

_UNSAFE: Final = re.compile(r"[^\w .,:;()/?+*=…-]")
_ENDINGS: Final = {
    "graceful_complete": "complete",
    "force_complete": "complete",
    "force_complete_if_channels_empty": "complete",
    "force_fail": "fail",
}


def mermaid_of(report: Report) -> str:
    """The flowchart. Arrows: a movement; dotted, where a failed execute goes on; with a cross, a cancellation."""
    lines = ["flowchart TD"]
    for index, graph in enumerate(report.flows):
        lines += _flow(f"f{index}", flow_data(graph))
    return "\n".join(lines) + "\n"


def _flow(prefix: str, flow: dict[str, Any]) -> Iterator[str]:
    ids = {step["name"]: f"{prefix}s{index}" for index, step in enumerate(flow["steps"])}
    yield f'  subgraph {prefix}["{_escaped(flow["type"])}"]'
    actors: list[tuple[str, dict[str, Any]]] = []
    for step in flow["steps"]:
        waits = waits_text(step)
        label = _escaped(step["name"]) + (f"<br/>{_escaped(waits)}" if waits else "")
        yield f'    {ids[step["name"]]}["{label}"]'
        actors.append((ids[step["name"]], step))
        if step["start"]:
            yield f'    {prefix}start(["{_escaped(step["input"])}"]) --> {ids[step["name"]]}'
    for index, rpc in enumerate(flow["rpcs"]):
        yield f'    {prefix}r{index}[/"RPC {_escaped(rpc["name"])}"/]'
        actors.append((f"{prefix}r{index}", rpc))
    if flow["timeout_handler"]:
        yield f'    {prefix}timeout{{{{"handle_timeout"}}}}'
        actors.append((f"{prefix}timeout", flow["timeout_handler"]))
    for actor, does in actors:
        yield from (f"    {actor} --> {ids[name]}" for name in does["goes_to"])
        if does.get("failure_route"):
            yield f"    {actor} -. fails .-> {ids[does['failure_route']]}"
        yield from (f"    {actor} --x {ids[name]}" for name in does["cancels"])
        endings = (_ENDINGS.get(kind) for kind in does.get("decisions", ()))
        for ending in dict.fromkeys(found for found in endings if found is not None):
            yield f'    {actor} --> {prefix}{ending}(["{ending}"])'
        if not does["complete"]:
            yield f'    {actor} -.-> {prefix}unseen(["?"])'
    yield "  end"


def _escaped(text: str) -> str:
    """Text for a quoted label: anything that could mean something is written as a code."""
    return _UNSAFE.sub(lambda found: f"#{ord(found.group())};", text)
