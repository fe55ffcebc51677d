"""The report as JSON data. Fields are added, never changed, while the schema's major version is 1."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from dex._annotations import type_text
from dex.definitions import StepDefinition
from dex.wire.specs import LoadSpec, MethodSpec, RpcSpec
from dexray.visualize.diagnostics import Diagnostic
from dexray.visualize.facts import Doing, Facts
from dexray.visualize.graph import FlowGraph, Handler, unique

if TYPE_CHECKING:
    from dexray.visualize import Report

SCHEMA_VERSION: Final = "1.0"


def data_of(report: Report) -> dict[str, Any]:
    """All Flows with their Steps, and the diagnostics."""
    return {
        "schema_version": SCHEMA_VERSION,
        "flows": [flow_data(graph) for graph in report.flows],
        "diagnostics": [diagnostic_data(found) for found in report.diagnostics],
    }


def flow_data(graph: FlowGraph) -> dict[str, Any]:
    known = graph.definition
    timeout = [handler for handler in graph.handlers if handler.method == "handle_timeout" and handler.step is None]
    return {
        "type": graph.flow_type,
        "steps": [_step(graph, step) for step in known.steps.values()],
        "rpcs": [_rpc(graph, handler) for handler in graph.handlers if handler.rpc is not None],
        "timeout_handler": {**_does(graph, timeout), "loads": [], "locks": []} if timeout else None,
        "channels": [_definition(found) for found in known.channels.values()],
        "attributes": [_definition(found) for found in known.attributes.values()],
        "streams": [_definition(found) for found in known.streams.values()],
    }


def diagnostic_data(found: Diagnostic) -> dict[str, Any]:
    return {
        "severity": found.severity.value,
        "code": found.code,
        "message": found.message,
        "file": found.where.file,
        "line": found.where.line,
        "flow": found.flow,
        "step": found.step or None,
        "method": found.method or None,
        "definition": found.definition or None,
        "option": found.option or None,
    }


def _step(graph: FlowGraph, step: StepDefinition) -> dict[str, Any]:
    handlers = graph.of_step(step.step_type)
    spec = graph.spec.steps[step.step_type]
    start = graph.definition.start_step
    methods: dict[str, MethodSpec] = {"execute": spec.execute}
    waits: dict[str, Any] = {"waits": [], "channels": [], "timers": [], "subflows": [], "waits_complete": True}
    if spec.wait_for is not None:
        methods = {"wait_for": spec.wait_for, **methods}
        waits = _waits(handlers[0].facts)
    route = spec.failure_route
    return {
        "name": step.step_type,
        "start": start is not None and start.step_type == step.step_type,
        "input": type_name(step.input_type),
        **waits,
        **_does(graph, handlers),
        "failure_route": None if route is None else route.step_type,
        "loads": {method: loads(known.load) for method, known in methods.items()},
        "locks": {method: list(known.locks) for method, known in methods.items()},
    }


def _waits(facts: Facts) -> dict[str, Any]:
    kinds = {kind: [known for known in facts.conditions if known.kind == kind] for kind in _KINDS}
    return {
        "waits": list(facts.waits),
        "channels": [{"name": known.channel, "condition": known.operation} for known in kinds["channel"]],
        "timers": [{"seconds": known.seconds} for known in kinds["timer"]],
        "subflows": [known.subflow for known in kinds["subflow"]],
        "waits_complete": not facts.unseen_movements,
    }


def _does(graph: FlowGraph, handlers: list[Handler]) -> dict[str, Any]:
    """What handlers decide and publish, and where they are. complete: whether all of it could be told."""
    acts = [handler for handler in handlers if handler.method != "wait_for"]
    facts = acts[-1].facts
    return {
        "decisions": list(facts.decisions),
        "goes_to": unique(name for handler in acts for name in graph.targets(handler)),
        "cancels": unique(name for handler in acts for name in graph.cancels(handler)),
        "publishes": unique(
            use.definition.name for handler in handlers for use in handler.facts.uses if use.doing is Doing.PUBLISH
        ),
        "complete": not any(handler.facts.unseen_movements or handler.facts.unseen_targets for handler in acts),
        "file": facts.where.file,
        "line": facts.where.line,
    }


def _rpc(graph: FlowGraph, handler: Handler) -> dict[str, Any]:
    known = handler.rpc
    assert known is not None
    spec: RpcSpec = graph.spec.rpcs[known.name]
    does = _does(graph, [handler])
    del does["decisions"]
    return {
        "name": known.name,
        "method": known.method_name,
        "input": type_name(known.input_type) if known.has_input else None,
        "output": None if known.is_procedure else type_name(known.output_type),
        **does,
        "loads": loads(spec.load),
        "locks": list(spec.locks),
    }


def loads(spec: LoadSpec) -> list[str]:
    """What is selected: names of maps and Channels, and `map/instance`."""
    return [
        *spec.attribute_maps,
        *spec.attribute_map_instances,
        *spec.channels,
        *spec.channel_maps,
        *spec.channel_map_instances,
    ]


def _definition(found: Any) -> dict[str, Any]:
    return {"name": found.name, "kind": type(found).__name__, "type": type_name(found.value_type)}


def type_name(hint: Any) -> str:
    """A type as its module writes it: without the names of modules."""
    return re.sub(r"(?:[\w<>]+\.)+(?=\w)", "", type_text(hint))


_KINDS: Final = ("channel", "timer", "subflow")
