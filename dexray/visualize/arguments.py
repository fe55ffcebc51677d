"""What a call is given, and the parameters that take it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from dexray.visualize.scope import Scope
from dexray.visualize.source import FunctionNode
from dexray.visualize.values import NO_VALUE, UNKNOWN, Items, Values, join, only


@dataclass(slots=True)
class Arguments:
    """What a call is given. is_open: more follow, how many isn't known; `rest` is what each of them may be."""

    positional: list[Values] = field(default_factory=list)
    keywords: dict[str, Values] = field(default_factory=dict)
    is_open: bool = False
    rest: Values = NO_VALUE

    def get(self, position: int, name: str) -> Values | None:
        """An argument by its place or its name, None when it isn't given."""
        if name in self.keywords:
            return self.keywords[name]
        if position < len(self.positional):
            return self.positional[position]
        return UNKNOWN if self.is_open else None

    def all(self) -> Iterator[Values]:
        yield from self.positional
        yield from self.keywords.values()
        yield self.rest

    def behind(self, first: Values) -> Arguments:
        """These with one argument before them."""
        return Arguments([first, *self.positional], self.keywords, self.is_open, self.rest)


def positional(node: FunctionNode) -> list[str]:
    """The names of the parameters that may be given by their place."""
    return [argument.arg for argument in (*node.args.posonlyargs, *node.args.args)]


def bind(scope: Scope, node: FunctionNode, arguments: Arguments, defaults: dict[str, Values]) -> None:
    """Binds the parameters of a function to what a call gives. One that is not given has its default."""
    names = positional(node)
    for index, name in enumerate(names):
        given = arguments.get(index, name)
        scope.names[name] = defaults.get(name, UNKNOWN) if given is None else given
    for argument in node.args.kwonlyargs:
        missing = UNKNOWN if arguments.is_open else defaults.get(argument.arg, UNKNOWN)
        scope.names[argument.arg] = arguments.keywords.get(argument.arg, missing)
    if node.args.vararg is not None:
        rest = tuple(arguments.positional[len(names) :])
        items = Items(element=join((*rest, arguments.rest))) if arguments.is_open else Items(rest)
        scope.names[node.args.vararg.arg] = only(items)
    if node.args.kwarg is not None:
        scope.names[node.args.kwarg.arg] = UNKNOWN
    scope.first = scope.names[names[0]] if names else NO_VALUE
