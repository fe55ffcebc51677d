"""What type hints say: aliases taken off, forward references resolved, type variables filled in."""

from __future__ import annotations

import typing
from collections.abc import Mapping
from typing import Any, Final, TypeAlias, TypeVar, get_args, get_origin

ResolvedHints: TypeAlias = dict[Any, dict[str, Any]]

QUALIFIERS: Final = frozenset({"Required", "NotRequired", "ReadOnly", "Final"})


def bare(hint: Any) -> Any:
    """A hint without Annotated, NewType and qualifiers. (`type X = ...` is left: it can be recursive.)"""
    while True:
        origin = get_origin(hint)
        if origin is typing.Annotated or getattr(origin, "_name", None) in QUALIFIERS:
            hint = get_args(hint)[0]
        elif isinstance(hint, typing.NewType):
            hint = hint.__supertype__
        else:
            return hint


def field_hints(cls: Any, arguments: tuple[Any, ...], resolved: ResolvedHints) -> dict[str, Any]:
    """The hints of a class, by field, with its type variables replaced. NameError for an unknown name.

    Hints that are text in the class are kept in `resolved` once they are understood. It travels with the registry:
    where a class arrives by value there is no module that would know the names.
    """
    hints = resolved.get(cls)
    if hints is None:
        hints = typing.get_type_hints(cls, localns=_names(cls), include_extras=True)
        if any(type(note) is str for base in cls.__mro__ for note in vars(base).get("__annotations__", {}).values()):
            resolved[cls] = hints
    variables = _variables(cls, arguments)
    return {name: filled(hint, variables) for name, hint in hints.items()}


def _names(cls: Any) -> dict[str, Any]:
    """The class and its bases by name, which their own hints may use although no module has them (local classes)."""
    return {base.__name__: base for base in reversed(cls.__mro__)}


def _variables(cls: Any, arguments: tuple[Any, ...]) -> dict[Any, Any]:
    """Type variables of a generic class and of its generic bases, with what they stand for."""
    variables: dict[Any, Any] = dict(zip(getattr(cls, "__parameters__", ()), arguments, strict=False))
    for base in getattr(cls, "__orig_bases__", ()):
        origin = get_origin(base)
        if origin is not None and origin not in (typing.Generic, typing.Protocol):
            variables = _variables(origin, tuple(filled(a, variables) for a in get_args(base))) | variables
    return variables


def filled(hint: Any, variables: Mapping[Any, Any]) -> Any:
    """A hint with its type variables replaced; one that nothing is known of stands for its bound, or Any."""
    if isinstance(hint, TypeVar):
        if hint in variables:
            return variables[hint]
        return hint.__bound__ if hint.__bound__ is not None else Any
    parameters = getattr(hint, "__parameters__", ())
    if parameters and get_origin(hint) is not None:
        return hint[tuple(filled(parameter, variables) for parameter in parameters)]
    return hint
