"""How a value is refused: deep inside it, without knowing where that is.

The functions that walk a value know nothing of the place they are at; keeping track would cost every value
what only a refused one needs. They raise `Refused`, and every container on the way out adds its own piece of
the path.
"""

from __future__ import annotations

from typing import Any

from dex.errors import ValueMappingError


class Refused(Exception):
    """Internal: becomes a ValueMappingError at the border of the package."""

    def __init__(self, detail: str, *, overflow: bool = False) -> None:
        super().__init__(detail)
        self.detail = detail
        self.overflow = overflow
        self.pieces: list[str] = []

    def inside(self, piece: str) -> Refused:
        """Adds one piece of the path, from the inside to the outside."""
        self.pieces.append(piece)
        return self

    def place(self, where: str) -> str:
        return where + "".join(reversed(self.pieces))


class ValueOverflowError(ValueMappingError, OverflowError):
    """An int outside of 64 bits."""


def type_name(kind: Any) -> str:
    """A class or type hint as people write it: `int`, `list[shop.Order]`."""
    if kind is None or kind is type(None):
        return "None"
    if isinstance(kind, type) and not hasattr(kind, "__origin__"):
        return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    return str(kind).replace("typing.", "")


def shown(value: Any) -> str:
    """A value in an error message: its repr, cut, and never an exception of its own."""
    try:
        text = repr(value)
    except Exception:
        text = f"<{type_name(type(value))}>"
    return text if len(text) <= 80 else text[:77] + "..."


def wrong_type(expected: str, value: Any, declared: type | None = None) -> Refused:
    """The refusal of a value whose type is not exactly the declared one; says more where that surprises."""
    actual = type(value)
    got = type_name(actual)
    why = ""
    if declared is not None:
        if issubclass(actual, declared):
            why = " (a subclass: types have to match exactly)"
        elif actual.__qualname__ == declared.__qualname__ and actual.__module__ == declared.__module__:
            why = " (another class of that name: it was defined again after the value was made)"
        elif declared is float and actual is int:
            why = f" (write {shown(value)}.0 or float(...))"
    return Refused(f"expected {expected}, got {got}{why}")


def bad_data(expected: str, data: Any) -> Refused:
    """The refusal of stored data or JSON that has not the form of the declared type."""
    return Refused(f"expected {expected}, got {type_name(type(data))} {shown(data)}")


def failure(operation: str, where: str, error: BaseException) -> ValueMappingError:
    """What users get for an exception raised while a value was walked."""
    match error:
        case Refused():
            kind = ValueOverflowError if error.overflow else ValueMappingError
            return kind(operation, f"{error.place(where)}: {error.detail}")
        case RecursionError():
            return ValueMappingError(
                operation, f"{where}: nested too deeply, or a value that contains itself: store a flat form of it"
            )
        case MemoryError():
            return ValueMappingError(operation, f"{where}: not enough memory")
        case _:
            return ValueMappingError(operation, f"{where}: {type_name(type(error))}: {shown(str(error))}")
