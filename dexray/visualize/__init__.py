"""The picture of Flows and what is wrong with them, from their source: `dexray visualize`.

    report = analyse(registry)
    report.diagnostics         # what is certainly wrong, and what may be
    data_of(report)            # the same, and the graph, as JSON data

A Flow's handlers are code, and where a Flow goes is known when they run. But most handlers say it plainly: they name
Steps, Channels and AttributeMaps that exist when the module has been loaded. So the module is loaded, the registered
objects are taken as they are, and the source of each handler is walked with these objects for its names. No handler
runs, and no engine is started.

From the outside in:

- `source` finds the syntax tree of a function, `scope` the object behind a name or an attribute, and `values` says
  what an expression may be: real objects, stand-ins for what a handler will make, or something unknown.
- `evaluate` (expressions), `statements` and `walk` (helpers) go through a handler; `dex_calls` and `builtin_calls` know
  what the calls of dex and of Python mean. What comes out are the `facts` of one handler.
- `graph` puts a Flow together, `options` says what a method selects, `diagnostics` compares.
- `data`, `text` and `mermaid` show it.

**What can't be told is silent.** A Channel that comes out of a function without a source, a Step chosen by data, a
movement made by code that isn't there: none of them gives an error, and a Flow that has such movements has no Steps
that "nothing leads to". An error therefore means a call that fails whenever it is reached. The converse does not hold:
a Flow without errors may still read what it has not selected, and learns it when it runs.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from dex import Registry
from dexray.visualize.data import SCHEMA_VERSION, data_of
from dexray.visualize.diagnostics import Diagnostic, Severity, diagnose
from dexray.visualize.graph import FlowGraph, flow_graph
from dexray.visualize.mermaid import mermaid_of
from dexray.visualize.source import Sources
from dexray.visualize.text import text_of


@dataclass(frozen=True, slots=True)
class Report:
    """Flows, read, and what was found in them."""

    flows: tuple[FlowGraph, ...]
    diagnostics: tuple[Diagnostic, ...]

    @property
    def errors(self) -> tuple[Diagnostic, ...]:
        return tuple(found for found in self.diagnostics if found.severity is Severity.ERROR)


def analyse(registry: Registry, flow_types: Iterable[str] | None = None) -> Report:
    """Reads the source of Flows of a Registry; None: of all.

    Raises FlowDefinitionError for a type that is not registered.
    """
    sources = Sources()
    types = registry.flows if flow_types is None else flow_types
    graphs = tuple(flow_graph(registry, flow_type, sources) for flow_type in types)
    return Report(graphs, tuple(found for graph in graphs for found in diagnose(graph)))


__all__ = [
    "SCHEMA_VERSION",
    "Diagnostic",
    "FlowGraph",
    "Report",
    "Severity",
    "analyse",
    "data_of",
    "mermaid_of",
    "text_of",
]
