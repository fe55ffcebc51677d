"""What is wrong with a Flow, as far as its source shows it for certain.

An ERROR is a call that fails whenever it is reached: the read of state that its method does not select, the results of
a wait outside of execute, a movement to a Step that the Flow has not, the use of a definition that it does not declare.
Nothing that can't be told is an error. A WARNING may be meant so: an RPC whose callers must load what it reads, a
timeout handler whose start must, a Step that nothing leads to.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from dex import (
    Attribute,
    AttributeMap,
    AttributeMapNotLoadedError,
    ChannelMap,
    ChannelMessagesNotLoadedError,
    FlowTimeoutHandlerOptions,
    Stream,
)
from dexray.visualize.facts import Cancel, Doing, Movement, Use
from dexray.visualize.graph import FlowGraph, Handler, routes_of
from dexray.visualize.naming import key_text, option_text
from dexray.visualize.options import Covers, Selection, best
from dexray.visualize.source import Where


class Severity(StrEnum):
    ERROR = "error"
    WARNING = "warning"


@dataclass(frozen=True, slots=True)
class Diagnostic:
    """One finding. code: of which kind. step, method, definition: empty where there is none. option: the text to add
    to the method's options.
    """

    severity: Severity
    code: str
    message: str
    where: Where
    flow: str
    step: str = ""
    method: str = ""
    definition: str = ""
    option: str = ""


def diagnose(graph: FlowGraph) -> list[Diagnostic]:
    """The findings of one Flow, in the order of its handlers; each is there once."""
    found: list[Diagnostic] = []
    for handler in graph.handlers:
        found += _undeclared(graph, handler)
        found += _unselected(graph, handler)
        found += _results(graph, handler)
        found += _unregistered(graph, handler)
    return list(dict.fromkeys([*found, *_unreachable(graph)]))


def _finding(
    graph: FlowGraph,
    handler: Handler,
    code: str,
    message: str,
    where: Where,
    *,
    severity: Severity = Severity.ERROR,
    definition: str = "",
    option: str = "",
) -> Diagnostic:
    return Diagnostic(
        severity=severity,
        code=code,
        message=f"{handler.place}: {message}",
        where=where,
        flow=graph.flow_type,
        step="" if handler.step is None else handler.step.step_type,
        method=handler.method,
        definition=definition,
        option=option,
    )


# State ----------------------------------------------------------------------------------------------------------------


def _is_declared(graph: FlowGraph, definition: Any) -> bool:
    known = graph.definition
    if isinstance(definition, Stream):
        return known.streams.get(definition.name) is definition
    if isinstance(definition, Attribute | AttributeMap):
        return known.attributes.get(definition.name) is definition
    return known.channels.get(definition.name) is definition


def _undeclared(graph: FlowGraph, handler: Handler) -> Iterator[Diagnostic]:
    for use in handler.facts.uses:
        if not use.is_sure or ValueError in use.caught or _is_declared(graph, use.definition):
            continue
        kind, name = type(use.definition).__name__, use.definition.name
        known = {**graph.definition.attributes, **graph.definition.channels, **graph.definition.streams}
        reason = (
            "which is not the one of this name that the Flow declares: use the very object of get_persistence_schema()"
            if type(known.get(name)) is type(use.definition)
            else "which the Flow does not declare: add it to get_persistence_schema()"
        )
        yield _finding(
            graph, handler, "undeclared", f"`{use.text}` uses {kind} {name!r}, {reason}", use.where, definition=name
        )


def _unselected(graph: FlowGraph, handler: Handler) -> Iterator[Diagnostic]:
    for use in handler.facts.uses:
        is_read = use.doing is Doing.READ_MESSAGES or (
            use.doing is Doing.READ_VALUE and isinstance(use.definition, AttributeMap)
        )
        error = ChannelMessagesNotLoadedError if use.doing is Doing.READ_MESSAGES else AttributeMapNotLoadedError
        if not is_read or not use.is_sure or error in use.caught or not _is_declared(graph, use.definition):
            continue
        selections = list(_selections(graph, handler))
        if not selections or best(selections, use.definition, use.instance) is not Covers.NO:
            continue
        severity, note = Severity.ERROR, ""
        is_map = isinstance(use.definition, AttributeMap | ChannelMap)
        if handler.rpc is not None and is_map:
            if any(selection.selects_some(use.definition) for selection in selections):
                continue
            severity = Severity.WARNING
            note = ", unless each call adds its instance with RPCInvokeOptions"
        elif handler.rpc is None and handler.step is None:
            severity = Severity.WARNING
            note = ", unless the start of the Flow selects it in timeout_handler_options"
        prefix = f"{handler.method}_" if handler.step is not None else ""
        option = option_text(graph.definition, handler, use, prefix, selections)
        what = "the pending messages of" if use.doing is Doing.READ_MESSAGES else "a value of"
        yield _finding(
            graph,
            handler,
            "unselected-read",
            f"`{use.text}` reads {what} {_named(use)}, which is not selected{note}. {_where_to_add(handler)}: {option}",
            use.where,
            severity=severity,
            definition=use.definition.name,
            option=option,
        )


def _selections(graph: FlowGraph, handler: Handler) -> Iterator[Selection]:
    """What each way into the handler selects; nothing when that can't be told."""
    if handler.rpc is not None:
        yield Selection.of(handler.rpc.options)
    elif handler.step is None:
        yield Selection.of(FlowTimeoutHandlerOptions())
    else:
        ways = graph.ways[handler.step.step_type]
        if ways.is_open or (ways.is_empty and graph.has_unseen_movements):
            return
        prefix = f"{handler.method}_"
        if ways.own or not ways.given:
            yield Selection.of(handler.step.options, prefix)
        for fields in ways.given:
            yield Selection.of(handler.step.options, prefix, over=fields)


def _named(use: Use) -> str:
    return f"{type(use.definition).__name__} {use.definition.name!r}{key_text(use.instance)}"


def _where_to_add(handler: Handler) -> str:
    if handler.step is not None:
        return "Add to its StepOptions"
    return "Add to @rpc" if handler.rpc is not None else "Add to FlowTimeoutHandlerOptions"


def _results(graph: FlowGraph, handler: Handler) -> Iterator[Diagnostic]:
    if handler.step is not None and handler.method == "execute":
        return
    advice = "read them in execute" if handler.step is not None else "a Step's execute reads them"
    why = f"the results of a wait are there in execute only, not in {handler.method}: {advice}"
    for use in handler.facts.uses:
        if use.doing is Doing.READ_RESULTS and use.is_sure and ValueError not in use.caught:
            name = use.definition.name
            yield _finding(graph, handler, "results", f"`{use.text}`: {why}", use.where, definition=name)
    for read in handler.facts.result_reads:
        if read.is_sure and ValueError not in read.caught:
            yield _finding(graph, handler, "results", f"`{read.text}`: {why}", read.where)


# Steps ----------------------------------------------------------------------------------------------------------------


def _unregistered(graph: FlowGraph, handler: Handler) -> Iterator[Diagnostic]:
    registered = ", ".join(graph.definition.steps) or "none"
    named: list[tuple[str, Any, Movement | Cancel]] = []
    for movement in handler.facts.movements:
        named.append(("moves to", movement.step, movement))
        if movement.options is not None and not movement.options.is_open and len(movement.options.known) == 1:
            named += [("gives a failure route to", step, movement) for step, _ in routes_of(movement)]
    named += [("cancels", cancel.step, cancel) for cancel in handler.facts.cancels]
    for verb, step, made in named:
        if made.is_sure and graph.target(step) is None:
            name = step_name(step)
            message = (
                f"`{made.text}` {verb} {name}, which is not registered: add it to get_steps(). Registered: {registered}"
            )
            yield _finding(graph, handler, "unregistered-step", message, made.where, definition=name)


def step_name(step: Any) -> str:
    return step.__name__ if isinstance(step, type) else step if isinstance(step, str) else type(step).__name__


def _unreachable(graph: FlowGraph) -> Iterator[Diagnostic]:
    if graph.has_unseen_movements or graph.has_unseen_targets:
        return
    reached = graph.reached()
    for name in graph.definition.steps:
        if name not in reached:
            execute = graph.of_step(name)[-1]
            message = (
                f"Step {name!r}: nothing leads to it: no movement, failure route or RPC, from the start on. "
                "Move to it, or take it out of get_steps()"
            )
            yield Diagnostic(
                Severity.WARNING, "unreachable-step", message, execute.facts.where, graph.flow_type, step=name
            )
