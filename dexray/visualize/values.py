"""What an expression may stand for, as far as that can be told without running it.

`Values` are the objects that an expression may have. Most are real ones: the very Channel, Step class or function that
the name stands for. What would only come to be when the handler runs has a stand-in here: the Context, a decision,
options with fields, a list with elements.
"""

from __future__ import annotations

import ast
import datetime
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum
from types import MethodType
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from dexray.visualize.scope import Scope

_MOST: Final = 100
"""Objects that one expression may have; with more, nothing is known of it."""

PLAIN: Final = (bool, int, float, str, bytes, type(None), datetime.timedelta)
"""Types whose values are the same when they are equal."""


@dataclass(frozen=True, slots=True, eq=False)
class Values:
    """The objects that an expression may have.

    is_open: it may also have others, of which nothing is known. is_sure: each of the known ones can be met; it is not
    where one of many is taken by a key that isn't known.
    """

    known: tuple[Any, ...] = ()
    is_open: bool = False
    is_sure: bool = True

    @property
    def single(self) -> Any:
        """The one object that it surely is, or `NOTHING`."""
        return self.known[0] if len(self.known) == 1 and not self.is_open else NOTHING

    def unsure(self) -> Values:
        return Values(self.known, self.is_open, False)


class _Mark(Enum):
    CONTEXT = "the Context of the handler"
    NOTHING = "no single object"


CONTEXT: Final = _Mark.CONTEXT
NOTHING: Final = _Mark.NOTHING
UNKNOWN: Final = Values((), is_open=True)
NO_VALUE: Final = Values()
"""Of what never has a value, such as the elements of an empty list."""


def only(*objects: Any) -> Values:
    return Values(objects)


def join(many: Iterable[Values]) -> Values:
    """What may be one of many."""
    known: list[Any] = []
    is_open, is_sure = False, True
    for values in many:
        is_open |= values.is_open
        is_sure &= values.is_sure
        known.extend(value for value in values.known if not any(same(value, other) for other in known))
    return UNKNOWN if len(known) > _MOST else Values(tuple(known), is_open, is_sure)


def same(one: object, other: object) -> bool:
    if one is other:
        return True
    if isinstance(one, (*PLAIN, MethodType)) and type(one) is type(other):
        return one == other
    return False


class Items:
    """A list, tuple or iterator that a handler makes. It only grows: elements are joined in, from wherever they come.

    exact: the elements in their order, while that is known. returned: what a generator returns in the end.
    """

    def __init__(
        self, exact: tuple[Values, ...] | None = None, element: Values | None = None, returned: Values = UNKNOWN
    ) -> None:
        self.exact = exact
        self.element = join(exact or ()) if element is None else element
        self.returned = returned

    def add(self, value: Values) -> None:
        self.exact = None
        self.element = join((self.element, value))


class Table:
    """A dict that a handler makes: values by those keys that are known, and the others. It only grows, as Items do."""

    def __init__(self) -> None:
        self.by_key: dict[Any, Values] = {}
        self.others = NO_VALUE

    def add(self, key: Values, value: Values) -> None:
        name = key.single
        if isinstance(name, PLAIN):
            self.by_key[name] = join((self.by_key.get(name, NO_VALUE), value))
        else:
            self.others = join((self.others, value))

    def get(self, key: Values, missing: Values = NO_VALUE) -> Values:
        """The value at a key; `missing` where there may be none."""
        name = key.single
        if isinstance(name, PLAIN) and name in self.by_key:
            return join((self.by_key[name], self.others))
        if isinstance(name, PLAIN):
            return join((self.others, missing))
        return join((*self.by_key.values(), self.others, missing)).unsure()


@dataclass(frozen=True, slots=True, eq=False)
class LocalFunction:
    """A function or a lambda inside a handler."""

    node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
    scope: Scope


@dataclass(frozen=True, slots=True)
class ContextMethod:
    """A method of the Context."""

    name: str


@dataclass(frozen=True, slots=True, eq=False)
class Super:
    """`super()` in a method: looks behind `after` in the order of the classes of `owner`."""

    after: type
    owner: Any


class Kind(Enum):
    """What a call of dex makes, where its contents have been noted already."""

    DECISION = "decision"
    MOVEMENT = "movement"
    RPC_RESULT = "RPC result"
    WAIT = "wait"
    CONDITION = "condition"


@dataclass(frozen=True, slots=True, eq=False)
class Made:
    """Something that a handler makes by a call of dex. has_unseen: not all that is in it could be told."""

    kind: Kind
    has_unseen: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class MadeMethod:
    """A method of something that the handler has made."""

    owner: Made | Items | Table | MadeOptions
    name: str


@dataclass(frozen=True, slots=True, eq=False)
class MadeOptions:
    """StepOptions that a handler makes: the fields that it gives."""

    fields: dict[str, Values] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, eq=False)
class MadeLoad:
    """A load of an instance of a map, by a key that isn't known."""

    definition: Any


STAND_INS: Final = (Items, Table, LocalFunction, ContextMethod, Super, Made, MadeMethod, MadeOptions, MadeLoad)
