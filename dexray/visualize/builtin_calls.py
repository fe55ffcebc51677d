"""Calls of Python itself that handlers make with Steps, Channels and movements in their hands."""

from __future__ import annotations

import dataclasses
from datetime import timedelta
from typing import Any, Final

from dexray.visualize.arguments import Arguments
from dexray.visualize.evaluate import Expressions
from dexray.visualize.operations import items_of
from dexray.visualize.options import fields_of
from dexray.visualize.scope import Property, Unresolved, attribute_of
from dexray.visualize.values import (
    CONTEXT,
    NO_VALUE,
    NOTHING,
    STAND_INS,
    UNKNOWN,
    Items,
    Made,
    MadeMethod,
    MadeOptions,
    Table,
    Values,
    join,
    only,
)

_SAME_ELEMENTS: Final = (list, tuple, iter)
_OTHER_ORDER: Final = (set, frozenset, sorted, reversed)
_ONE_ELEMENT: Final = (min, max, next)
_HARMLESS: Final = (len, print, repr, sum, any, all, range, str, int, float, bool, abs, round, id, hash, type(None))


def answer(walk: Expressions, callee: Any, arguments: Arguments) -> Values | None:
    """What the call gives, None when it is no such call."""
    if isinstance(callee, MadeMethod):
        return _method(walk, callee.owner, callee.name, arguments)
    if not callable(callee):
        return None
    first = arguments.get(0, "")
    if any(callee is known for known in _SAME_ELEMENTS):
        return only(Items(())) if first is None else only(_copy(items_of(first)))
    if any(callee is known for known in _OTHER_ORDER):
        return only(Items(element=NO_VALUE if first is None else items_of(first).element))
    if any(callee is known for known in _ONE_ELEMENT):
        given = arguments.positional
        return UNKNOWN if first is None else join((items_of(first).element, *given[1:])).unsure()
    if (callee is map or callee is filter) and first is not None:
        return _mapped(walk, callee, first, arguments)
    if callee is zip:
        parts = tuple(items_of(values).element for values in arguments.positional)
        return only(Items(element=UNKNOWN if arguments.is_open else only(Items(parts))))
    if callee is enumerate and first is not None:
        return only(Items(element=only(Items((UNKNOWN, items_of(first).element)))))
    if callee is isinstance:
        return _isinstance(first, arguments.get(1, ""))
    if callee is getattr and first is not None:
        return _getattr(walk, first, arguments)
    if callee is super and not arguments.positional:
        try:
            return only(walk.scope.super())
        except Unresolved:
            return UNKNOWN
    if callee is type and first is not None and len(arguments.positional) == 1:
        owner = first.single
        return only(type(owner)) if _is_real(owner) else UNKNOWN
    if callee is timedelta:
        return _timedelta(arguments)
    if callee is dict:
        return _dict(arguments)
    if callee is dataclasses.replace and first is not None:
        return _replaced(first, arguments)
    if any(callee is known for known in _HARMLESS):
        return UNKNOWN
    return None


def _is_real(owner: Any) -> bool:
    return owner is not NOTHING and owner is not CONTEXT and not isinstance(owner, STAND_INS)


def _copy(items: Items) -> Items:
    return Items(items.exact, items.element)


def _method(walk: Expressions, owner: Any, name: str, arguments: Arguments) -> Values | None:
    first = arguments.get(0, "")
    match owner, name:
        case Items(), "append" | "add" | "appendleft":
            owner.add(UNKNOWN if first is None else first)
            return only(None)
        case Items(), "extend" | "update" | "extendleft":
            owner.add(UNKNOWN if first is None else items_of(first).element)
            return only(None)
        case Items(), "insert":
            owner.add(arguments.get(1, "") or UNKNOWN)
            return only(None)
        case Items(), "copy":
            return only(_copy(owner))
        case Items(), "pop":
            return owner.element.unsure()
        case Items(), _:
            return UNKNOWN
        case Table(), "get":
            missing = arguments.get(1, "default")
            return owner.get(UNKNOWN if first is None else first, only(None) if missing is None else missing)
        case Table(), "values":
            return only(Items(element=join((*owner.by_key.values(), owner.others))))
        case Table(), "items":
            value = join((*owner.by_key.values(), owner.others))
            return only(Items(element=only(Items((UNKNOWN, value)))))
        case Table(), "setdefault":
            value = only(None) if (given := arguments.get(1, "default")) is None else given
            owner.add(UNKNOWN if first is None else first, value)
            return join((owner.get(UNKNOWN if first is None else first), value))
        case Table(), "keys" | "copy" | "__contains__":
            return UNKNOWN
        case Table(), _:
            owner.add(UNKNOWN, UNKNOWN)
            return UNKNOWN
        case _:
            return None


def _mapped(walk: Expressions, callee: Any, first: Values, arguments: Arguments) -> Values:
    elements = [items_of(values).element for values in arguments.positional[1:]]
    answers = [
        walk.call(function, Arguments(elements, {}, arguments.is_open, arguments.rest), None)
        for function in first.known
    ]
    if callee is filter:
        return only(Items(element=join(elements)))
    return only(Items(element=join([*answers, UNKNOWN] if first.is_open else answers)))


def _isinstance(first: Values | None, classes: Values | None) -> Values:
    owner: Any = NOTHING if first is None else first.single
    wanted: Any = NOTHING if classes is None else classes.single
    if isinstance(wanted, Items) and wanted.exact is not None:
        wanted = tuple(part.single for part in wanted.exact)
    is_class = isinstance(wanted, type) or (isinstance(wanted, tuple) and all(isinstance(one, type) for one in wanted))
    if not _is_real(owner) or not is_class:
        return UNKNOWN
    return only(isinstance(owner, wanted))


def _getattr(walk: Expressions, first: Values, arguments: Arguments) -> Values:
    owner, name = first.single, (arguments.get(1, "") or UNKNOWN).single
    if not _is_real(owner) or not isinstance(name, str):
        return UNKNOWN
    try:
        found = attribute_of(owner, name)
    except Unresolved:
        return arguments.positional[2] if len(arguments.positional) > 2 else UNKNOWN
    return walk.call(found.method, Arguments(), None) if isinstance(found, Property) else only(found)


def _timedelta(arguments: Arguments) -> Values:
    given = [values.single for values in arguments.positional]
    named = {name: values.single for name, values in arguments.keywords.items()}
    if arguments.is_open or not all(isinstance(value, int | float) for value in (*given, *named.values())):
        return UNKNOWN
    try:
        return only(timedelta(*given, **named))
    except (TypeError, OverflowError, ValueError):
        return UNKNOWN


def _dict(arguments: Arguments) -> Values:
    if arguments.positional or arguments.is_open:
        return UNKNOWN
    table = Table()
    for name, value in arguments.keywords.items():
        table.add(only(name), value)
    return only(table)


def _replaced(first: Values, arguments: Arguments) -> Values:
    """A copy of a decision or of options with other fields."""
    found: list[Values] = [UNKNOWN] if first.is_open else []
    for owner in first.known:
        fields = fields_of(owner)
        if isinstance(owner, Made):
            adds_steps = any(name in arguments.keywords for name in ("movements", "next_steps", "fallback"))
            found.append(only(Made(owner.kind, owner.has_unseen or adds_steps or arguments.is_open)))
        elif fields is None or owner is None or arguments.is_open:
            found.append(UNKNOWN)
        else:
            found.append(only(MadeOptions(dict(fields) | arguments.keywords)))
    return join(found)
