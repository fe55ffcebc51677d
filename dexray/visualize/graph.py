"""One Flow put together: what each handler does, which Steps it leads to, and in which ways each Step is entered."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from dex import FlowDefinitionError
from dex.definitions import FlowDefinition, RpcDefinition, StepDefinition
from dex.options import ExecuteFailureRoute
from dex.registry import Registry
from dex.wire.specs import FlowSpec
from dexray.visualize.facts import Facts, Movement
from dexray.visualize.options import Fields, fields_of
from dexray.visualize.source import Sources
from dexray.visualize.walk import handler_facts


@dataclass(frozen=True, slots=True, eq=False)
class Handler:
    """One handler with what was found in it. method: of the Step or the Flow. step, rpc: whose it is, if anyone's."""

    method: str
    facts: Facts
    step: StepDefinition | None = None
    rpc: RpcDefinition | None = None

    @property
    def place(self) -> str:
        if self.step is not None:
            return f"Step {self.step.step_type!r}, {self.method}"
        return f"RPC {self.rpc.name!r}" if self.rpc is not None else self.method


@dataclass(slots=True)
class Ways:
    """How a Step is entered. own: with its own options. given: the options that movements give. is_open: some of them
    can't be told.
    """

    own: bool = False
    given: list[Fields] = field(default_factory=list)
    is_open: bool = False

    @property
    def is_empty(self) -> bool:
        return not (self.own or self.given or self.is_open)

    def add(self, options: Any) -> None:
        fields = fields_of(options)
        if fields is None:
            self.is_open = True
        elif fields:
            self.given.append(fields)
        else:
            self.own = True


@dataclass(frozen=True, slots=True, eq=False)
class FlowGraph:
    """A Flow as its source tells it."""

    definition: FlowDefinition
    spec: FlowSpec
    handlers: tuple[Handler, ...]
    ways: dict[str, Ways]

    @property
    def flow_type(self) -> str:
        return self.definition.flow_type

    @property
    def has_unseen_movements(self) -> bool:
        """Whether a handler may make movements of which nothing is known."""
        return any(handler.facts.unseen_movements for handler in self.handlers if handler.method != "wait_for")

    @property
    def has_unseen_targets(self) -> bool:
        return any(handler.facts.unseen_targets for handler in self.handlers)

    def of_step(self, step_type: str) -> list[Handler]:
        """wait_for, if there is one, and execute."""
        return [handler for handler in self.handlers if handler.step and handler.step.step_type == step_type]

    def target(self, step: Any) -> str | None:
        """The Step that a movement names, None when the Flow has no such Step."""
        try:
            return self.definition.find_step(step).step_type
        except FlowDefinitionError:
            return None

    def targets(self, handler: Handler) -> list[str]:
        """The Steps that a handler moves to, in the order of its source."""
        return unique(self.target(movement.step) for movement in handler.facts.movements)

    def cancels(self, handler: Handler) -> list[str]:
        return unique(self.target(cancel.step) for cancel in handler.facts.cancels)

    def routes(self, handler: Handler) -> list[str]:
        """Where the failures of Steps lead that this handler moves to with options of their own, or of its own Step."""
        movements = (self.target(step) for movement in handler.facts.movements for step, _ in routes_of(movement))
        own = () if handler.step is None else (self.target(step) for step, _ in _routes(handler.step.options))
        return unique((*movements, *own))

    def reached(self) -> set[str]:
        """The Steps that the start, the RPCs and the timeout handler lead to, over any number of others."""
        start = self.definition.start_step
        pending = [] if start is None else [start.step_type]
        for handler in self.handlers:
            if handler.step is None:
                pending += [*self.targets(handler), *self.routes(handler)]
        if self.definition.has_timeout_handler:  # its failure route is given at the start, and takes None
            pending += [name for name, step in self.definition.steps.items() if step.input_type in (None, type(None))]
        found: set[str] = set()
        while pending:
            name = pending.pop()
            if name not in found:
                found.add(name)
                for handler in self.of_step(name):
                    pending += [*self.targets(handler), *self.routes(handler)]
        return found


def flow_graph(registry: Registry, flow_type: str, sources: Sources) -> FlowGraph:
    """Reads the source of a registered Flow."""
    definition = registry.definition(flow_type)
    graph = FlowGraph(
        definition,
        registry.describe("").flows[flow_type],
        tuple(_handlers(definition, sources)),
        {step_type: Ways() for step_type in definition.steps},
    )
    for step, options in _entries(graph):
        name = graph.target(step)
        if name is not None:
            graph.ways[name].add(options)
    return graph


def unique(names: Iterable[str | None]) -> list[str]:
    return list(dict.fromkeys(name for name in names if name is not None))


def _handlers(definition: FlowDefinition, sources: Sources) -> Iterator[Handler]:
    for step in definition.steps.values():
        for method in ("wait_for", "execute"):
            if method == "execute" or step.wait_for is not None:
                yield Handler(method, handler_facts(sources, step.step, method), step=step)
    for rpc in definition.rpcs.values():
        yield Handler(rpc.method_name, handler_facts(sources, definition.flow, rpc.method_name), rpc=rpc)
    if definition.has_timeout_handler:
        yield Handler("handle_timeout", handler_facts(sources, definition.flow, "handle_timeout"))


def _entries(graph: FlowGraph) -> Iterator[tuple[Any, Any]]:
    """Each way into a Step: the Step, and the options over its own; None without, `_UNTOLD` when they can't be told."""
    start = graph.definition.start_step
    if start is not None:
        yield start.step, None
    for step in graph.definition.steps.values():
        yield from _routes(step.options)
    for handler in graph.handlers:
        for movement in handler.facts.movements:
            if movement.options is None:
                yield movement.step, None
                continue
            for options in movement.options.known:
                yield movement.step, options
            if movement.options.is_open:
                yield movement.step, _UNTOLD
            yield from routes_of(movement)


def routes_of(movement: Movement) -> Iterator[tuple[Any, Any]]:
    for options in () if movement.options is None else movement.options.known:
        yield from _routes(options)


def _routes(options: Any) -> Iterator[tuple[Any, Any]]:
    """The failure route of options, and those of the options that it gives."""
    route = (fields_of(options) or {}).get("execute_failure")
    for found in () if route is None else route.known:
        if isinstance(found, ExecuteFailureRoute):
            yield found.step, found.options
            yield from _routes(found.options)


_UNTOLD = object()
"""Options that can't be told: no options at all, as `fields_of` says."""
