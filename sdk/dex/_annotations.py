"""The annotations of handlers, resolved: with forward references, classes local to a function, and type variables of
  generic bases.

An annotation may be text (`from __future__ import annotations`), and its names may be known to a type checker only.
It is resolved in the module of the function, then by what the function closes over, then by the names of `dex`
itself, so that `Context` may be imported under TYPE_CHECKING.
"""

from __future__ import annotations

import inspect
import sys
import types
import typing
from collections.abc import Callable, Generator, Mapping
from typing import Any, TypeVar, get_args, get_origin

from dex.context import AsyncContext, Context
from dex.decision import StepDecision
from dex.rpc import RPCResult
from dex.step import StepOutput
from dex.wait import Wait

_OWN_NAMES: Mapping[str, Any] = {
    "AsyncContext": AsyncContext,
    "Context": Context,
    "Generator": Generator,
    "RPCResult": RPCResult,
    "StepDecision": StepDecision,
    "StepOutput": StepOutput,
    "Wait": Wait,
}


class Unresolvable(Exception):
    """An annotation names something that is not there at run time; the message says what."""


def resolve(hint: Any, function: Callable[..., Any], owner: type) -> Any:
    """The type that an annotation of `function`, a method of `owner`, stands for. None becomes NoneType."""
    plain = inspect.unwrap(function)
    names: dict[str, Any] = getattr(plain, "__globals__", {})
    extra = {**_OWN_NAMES, owner.__name__: owner, **_closed_over(plain)}
    holder = types.SimpleNamespace(__annotations__={"hint": hint})
    local = {name: value for name, value in extra.items() if name not in names}
    try:
        return typing.get_type_hints(holder, names, local, include_extras=True)["hint"]
    except Exception as error:
        raise Unresolvable(str(error) or type(error).__name__) from error


def _closed_over(function: Callable[..., Any]) -> dict[str, Any]:
    code, cells = getattr(function, "__code__", None), getattr(function, "__closure__", None)
    found: dict[str, Any] = {}
    if code is not None:
        for name, cell in zip(code.co_freevars, cells or (), strict=False):
            try:
                found[name] = cell.cell_contents
            except ValueError:
                continue  # defined after the handler, and not yet
    return found


def bindings(cls: type) -> dict[type, dict[Any, Any]]:
    """For each class in the ancestry of `cls`, what its type variables stand for in `cls`."""
    found: dict[type, dict[Any, Any]] = {}

    def walk(current: type, bound: dict[Any, Any]) -> None:
        found.setdefault(current, bound)
        for base in vars(current).get("__orig_bases__", current.__bases__):
            origin = get_origin(base)
            if origin is None:
                if isinstance(base, type):
                    walk(base, {})
            elif origin is not typing.Generic:
                arguments = tuple(_bind_or_resolve(argument, bound, current) for argument in get_args(base))
                parameters = getattr(origin, "__parameters__", ())
                walk(origin, dict(zip(parameters, arguments, strict=False)))

    walk(cls, {})
    return found


def argument_of(cls: type, base: type, parameter: Any) -> Any:
    """What `cls` gives for a type variable of a generic base, None when it leaves it open or says Any."""
    argument = bindings(cls).get(base, {}).get(parameter)
    return None if argument is None or argument is Any or is_open(argument) else argument


def _bind_or_resolve(argument: Any, bound: Mapping[Any, Any], owner: type) -> Any:
    if isinstance(argument, str | typing.ForwardRef):
        text = argument if isinstance(argument, str) else argument.__forward_arg__
        module = sys.modules.get(owner.__module__)
        holder = types.SimpleNamespace(__annotations__={"hint": text})
        try:
            return typing.get_type_hints(holder, vars(module) if module else {}, {owner.__name__: owner})["hint"]
        except Exception:
            return argument
    return substitute(argument, bound)


def substitute(hint: Any, bound: Mapping[Any, Any]) -> Any:
    """The hint with its type variables replaced as far as they are bound."""
    if isinstance(hint, TypeVar):
        return bound.get(hint, hint)
    parameters = getattr(hint, "__parameters__", ())
    if not parameters or isinstance(hint, type):
        return hint
    return hint[tuple(bound.get(parameter, parameter) for parameter in parameters)]


def is_open(hint: Any) -> bool:
    """Whether type variables or unresolved names are left in it."""
    if isinstance(hint, TypeVar | str | typing.ForwardRef):
        return True
    return not isinstance(hint, type) and bool(getattr(hint, "__parameters__", ()))


def same_type(one: Any, other: Any) -> bool:
    """Whether two hints mean the same: `List[int]` and `list[int]`, `Optional[X]` and `X | None`, None and NoneType."""
    if one is other:
        return True
    one_origin, one_arguments = _taken_apart(one)
    other_origin, other_arguments = _taken_apart(other)
    if one_origin != other_origin or len(one_arguments) != len(other_arguments):
        return False
    if one_origin is typing.Union:
        return all(any(same_type(left, right) for right in other_arguments) for left in one_arguments)
    return all(same_type(left, right) for left, right in zip(one_arguments, other_arguments, strict=True))


def _taken_apart(hint: Any) -> tuple[Any, tuple[Any, ...]]:
    if hint is None:
        return type(None), ()
    origin = get_origin(hint)
    if origin is typing.Annotated:
        return _taken_apart(get_args(hint)[0])
    if origin is types.UnionType:
        origin = typing.Union
    return (hint, ()) if origin is None else (origin, get_args(hint))


def type_text(hint: Any) -> str:
    """A type as one would write it."""
    if hint is None or hint is type(None):
        return "None"
    if isinstance(hint, type) and not get_args(hint):
        return hint.__qualname__
    return str(hint).replace("typing.", "")
