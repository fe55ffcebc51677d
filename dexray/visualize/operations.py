"""Operations on what expressions may be: comparisons, arithmetic, elements of collections."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Iterable, Iterator
from datetime import timedelta
from typing import Any, Final

from dexray.visualize.values import NOTHING, PLAIN, STAND_INS, UNKNOWN, Items, Table, Values, join, only

_ARITHMETIC: Final[dict[type[ast.operator], Callable[[Any, Any], Any]]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}
_ORDER: Final[dict[type[ast.cmpop], Callable[[Any, Any], Any]]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}


def compared(comparison: ast.cmpop, one: Values, other: Values) -> Values:
    """Whether a comparison holds, as far as the two sides are known."""
    left, right = one.single, other.single
    if left is NOTHING or right is NOTHING:
        return UNKNOWN
    if isinstance(comparison, ast.Is | ast.IsNot) and (left is None or right is None or _both_real(left, right)):
        return only((left is right) == isinstance(comparison, ast.Is))
    if isinstance(left, PLAIN) and isinstance(right, PLAIN) and type(comparison) in _ORDER:
        return _computed(_ORDER[type(comparison)], left, right)
    return UNKNOWN


def combined(operation: ast.operator, one: Values, other: Values) -> Values:
    """The sum, difference, … of numbers and lengths of time, or a list of two."""
    left, right = one.single, other.single
    if isinstance(operation, ast.Add) and (isinstance(left, Items) or isinstance(right, Items)):
        first, second = items_of(one), items_of(other)
        exact = None if first.exact is None or second.exact is None else (*first.exact, *second.exact)
        return only(Items(exact, join((first.element, second.element))))
    numbers = (int, float, timedelta)
    if isinstance(left, numbers) and isinstance(right, numbers) and type(operation) in _ARITHMETIC:
        return _computed(_ARITHMETIC[type(operation)], left, right)
    return UNKNOWN


def items_of(values: Values) -> Items:
    """What an iterable has in it."""
    single = values.single
    if isinstance(single, Items):
        return single
    if isinstance(single, tuple | list) and type(single) in (tuple, list):
        return Items(tuple(map(only, single)))
    found = [_elements(value) for value in values.known]
    return Items(element=join([*found, UNKNOWN] if values.is_open else found))


def _elements(value: Any) -> Values:
    match value:
        case Items():
            return value.element
        case Table():
            return UNKNOWN
        case tuple() | list() | set() | frozenset() | dict():
            return join(map(only, value))
        case _:
            return UNKNOWN


def at(owner: Any, key: Values) -> Values:
    """What is in a collection at a key."""
    name = key.single
    match owner:
        case Table():
            return owner.get(key)
        case dict() if type(owner) is dict:
            if isinstance(name, PLAIN):
                return only(owner[name]) if name in owner else UNKNOWN
            return join(map(only, owner.values())).unsure()
        case tuple() | list() if type(owner) in (tuple, list):
            if type(name) is int:
                return only(owner[name]) if -len(owner) <= name < len(owner) else UNKNOWN
            return UNKNOWN if isinstance(name, PLAIN) else join(map(only, owner)).unsure()
        case Items():
            exact = owner.exact
            if exact is not None and type(name) is int and -len(exact) <= name < len(exact):
                return exact[name]
            return owner.element.unsure()
        case _:
            return UNKNOWN


def each(values: Values) -> Iterator[Any]:
    """The known objects, and NOTHING where there may be others."""
    yield from values.known
    if values.is_open:
        yield NOTHING


def table_of(mapping: dict[Any, Any]) -> Table:
    """A dict that is there already, as one that a handler makes."""
    table = Table()
    for key, value in mapping.items():
        table.add(only(key), only(value))
    return table


def as_sure_as(origin: Values, many: Iterable[Values]) -> Values:
    """What comes of each of several objects; no more certain than they are."""
    found = join(many)
    return found if origin.is_sure else found.unsure()


def _both_real(left: Any, right: Any) -> bool:
    return not isinstance(left, STAND_INS) and not isinstance(right, STAND_INS)


def _computed(compute: Callable[[Any, Any], Any], left: Any, right: Any) -> Values:
    try:
        return only(compute(left, right))
    except (TypeError, ZeroDivisionError, OverflowError):
        return UNKNOWN
