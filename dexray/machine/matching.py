"""Whether an Attribute's value satisfies a match. Values are payloads: only those of numbers are opened.

A text and a bool are equal when their payloads are; numbers are compared as numbers, an int with a float too. What is
of another kind than the operand satisfies nothing, and neither does a missing value: not even `!=`.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import msgspec

from dex.values import reference_of

_COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "==": operator.eq,
    "!=": operator.ne,
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
}
OPERATORS = frozenset(_COMPARE)


def matches(value: bytes | None, compare: str, operand: bytes) -> bool:
    """`operand` is the payload of a str, bool, int or float, kept apart under its hash when it is large."""
    if value is None:
        return False
    kind = _kind(operand)
    if kind is None or _kind(value) is not kind:
        return False
    if kind is float:
        return _COMPARE[compare](msgspec.msgpack.decode(value), msgspec.msgpack.decode(operand))
    return _COMPARE[compare](value, operand)


def _kind(payload: bytes) -> type | None:
    """str, bool, or float for any number; None for what can't be compared. Looks at the first byte alone."""
    first = payload[0] if payload else 0xC1
    if first <= 0x7F or first >= 0xE0 or 0xCA <= first <= 0xD3:
        return float
    if first in (0xC2, 0xC3):
        return bool
    if 0xA0 <= first <= 0xBF or 0xD9 <= first <= 0xDB or reference_of(payload) is not None:
        return str
    return None
