"""From a name to the object it stands for: as Python finds it, but without running anything.

Names are found in the function, in what it closes over, in its module and among the builtins; attributes in modules,
classes and instances. Properties and the like would run code, so they are handed back for the walk to follow.
"""

from __future__ import annotations

import ast
import builtins
import functools
import inspect
import sys
from dataclasses import dataclass, field
from types import FunctionType, GetSetDescriptorType, MemberDescriptorType, MethodType, ModuleType
from typing import Any, Final

from dexray.visualize.source import FunctionNode, own_nodes
from dexray.visualize.values import NO_VALUE, UNKNOWN, Super, Values, join, only

_ABSENT: Final = object()


class Unresolved(Exception):
    """A name or an attribute whose object can't be told."""


@dataclass(frozen=True, slots=True, eq=False)
class Property:
    """An attribute that a method computes."""

    method: MethodType


@dataclass(slots=True, eq=False)
class Scope:
    """The names of one running function, or of a comprehension in it.

    function: the real function whose closure and module stand behind. own: names that are local, bound or not.
    first: the first argument, which `super()` speaks for. returned, yielded: what has been so far. looped: the names
    that a loop binds, to one element after the other.
    """

    function: FunctionType
    own: frozenset[str]
    parent: Scope | None = None
    first: Values = NO_VALUE
    names: dict[str, Values] = field(default_factory=dict)
    returned: Values = NO_VALUE
    yielded: Values = NO_VALUE
    outer_names: set[str] = field(default_factory=set)
    looped: set[str] = field(default_factory=set)

    def find(self, name: str) -> Values:
        scope: Scope | None = self
        while scope is not None:
            if name in scope.names:
                return scope.names[name]
            if name in scope.own and name not in scope.outer_names:
                return UNKNOWN
            scope = scope.parent
        found = self._outside(name)
        return UNKNOWN if found is _ABSENT else only(found)

    def is_global(self, name: str) -> bool:
        """Whether the name is one of the module: its plain values may be others the next time it is loaded."""
        scope: Scope | None = self
        while scope is not None:
            if name in scope.names or name in scope.own:
                return False
            scope = scope.parent
        return name in self.function.__globals__

    def bind(self, name: str, values: Values) -> None:
        if name not in self.outer_names:
            self.names[name] = values
            return
        self.names[name] = UNKNOWN  # set in two places: what it is here and there isn't followed
        scope = self.parent
        while scope is not None:
            if name in scope.own:
                scope.names[name] = UNKNOWN
            scope = scope.parent

    def _outside(self, name: str) -> Any:
        closed_over = _closure(self.function)
        if name in closed_over:
            return closed_over[name]
        if name in self.function.__globals__:
            return self.function.__globals__[name]
        return getattr(builtins, name, _ABSENT)

    def super(self) -> Any:
        """What `super()` is here; Unresolved outside of a method."""
        scope = self
        while scope.parent is not None:
            scope = scope.parent
        owner = scope.first.single
        after = _closure(scope.function).get("__class__")
        if not isinstance(after, type) or not isinstance(owner, after if not isinstance(owner, type) else type):
            raise Unresolved("super()")
        return Super(after, owner)


def joined(one: dict[str, Values], other: dict[str, Values]) -> dict[str, Values]:
    """The names after one way or the other. One that a single way binds is what it is there, or an error of its own."""
    return {
        name: join((one[name], other[name]))
        if name in one and name in other
        else one.get(name, other.get(name, UNKNOWN))
        for name in {**one, **other}
    }


def local_names(node: FunctionNode) -> frozenset[str]:
    """The names that a nested function binds."""
    arguments = node.args
    every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg]
    bound = {argument.arg for argument in every if argument is not None}
    for found in own_nodes(node):
        match found:
            case ast.Name(id=name, ctx=ast.Store() | ast.Del()):
                bound.add(name)
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                bound.add(name)
            case ast.ExceptHandler(name=str(name)) | ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
                bound.add(name)
            case ast.Global(names=names) | ast.Nonlocal(names=names):
                bound.difference_update(names)
            case ast.Import(names=aliases) | ast.ImportFrom(names=aliases):
                bound.update((alias.asname or alias.name).partition(".")[0] for alias in aliases)
            case _:
                pass
    return frozenset(bound)


def attribute_of(owner: Any, name: str) -> Any:
    """The attribute of a real object: what `owner.name` gives, or a Property. Raises Unresolved."""
    if isinstance(owner, Super):
        return _behind(owner, name)
    if isinstance(owner, ModuleType):
        found = vars(owner).get(name, _ABSENT)
        found = sys.modules.get(f"{owner.__name__}.{name}", _ABSENT) if found is _ABSENT else found
        if found is _ABSENT:
            raise Unresolved(name)
        return found
    found = inspect.getattr_static(owner, name, _ABSENT)
    if found is _ABSENT:
        raise Unresolved(name)
    if not isinstance(owner, type) and name in getattr(owner, "__dict__", {}):
        return found
    return _bound(found, owner, owner if isinstance(owner, type) else type(owner))


def _behind(place: Super, name: str) -> Any:
    kind = place.owner if isinstance(place.owner, type) else type(place.owner)
    order = kind.__mro__
    for base in order[order.index(place.after) + 1 :]:
        if name in vars(base):
            return _bound(vars(base)[name], place.owner, kind)
    raise Unresolved(name)


def _bound(found: Any, owner: Any, kind: type) -> Any:
    """A class's attribute as it is seen through `owner`."""
    is_class = isinstance(owner, type)
    match found:
        case staticmethod():
            return found.__func__
        case classmethod():
            return MethodType(found.__func__, kind)
        case FunctionType():
            return found if is_class else MethodType(found, owner)
        case property() if not is_class and isinstance(found.fget, FunctionType):
            return Property(MethodType(found.fget, owner))
        case functools.cached_property() if not is_class and isinstance(found.func, FunctionType):
            return Property(MethodType(found.func, owner))
        case MemberDescriptorType() | GetSetDescriptorType() if not is_class:
            try:
                return found.__get__(owner)
            except (AttributeError, TypeError):
                raise Unresolved(str(found)) from None
        case _ if hasattr(type(found), "__get__") and not isinstance(found, type):
            raise Unresolved(str(found))
        case _:
            return found


def _closure(function: FunctionType) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=False):
        try:
            found[name] = cell.cell_contents
        except ValueError:
            continue  # not bound yet
    return found
