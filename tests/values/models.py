"""The types of users that the tests of values store."""

from __future__ import annotations

import enum
from dataclasses import KW_ONLY, InitVar, dataclass, field
from decimal import Decimal
from typing import Generic, NamedTuple, NotRequired, TypedDict, TypeVar

import pydantic

T = TypeVar("T")


class Color(enum.Enum):
    RED = "red"
    GREEN = "green"


class Size(enum.IntEnum):
    SMALL = 1
    LARGE = 2


class Level(enum.StrEnum):
    LOW = enum.auto()
    HIGH = enum.auto()


class Permission(enum.Flag):
    READ = enum.auto()
    WRITE = enum.auto()


class Odd(enum.Enum):
    """Values that have no stored form of their own."""

    LIST = (1, 2)
    HUGE = 1 << 80


@dataclass
class Item:
    name: str
    price: Decimal
    count: int = 1


@dataclass(frozen=True, slots=True)
class Order:
    id: str
    items: list[Item]
    color: Color | None = None
    sizes: dict[Size, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Point:
    x: int
    y: int


@dataclass
class Tree:
    value: int
    children: list[Tree] = field(default_factory=list)
    parent: Tree | None = None


@dataclass
class KeywordOnly:
    first: int
    _: KW_ONLY
    second: str = "s"
    doubled: int = field(init=False)
    scale: InitVar[int] = 2

    def __post_init__(self, scale: int) -> None:
        self.doubled = self.first * scale


@dataclass
class Box(Generic[T]):
    content: T
    more: list[T]


@dataclass
class IntBox(Box[int]):
    label: str


@dataclass
class Paid:
    amount: int


@dataclass
class Refused:
    amount: int
    reason: str = ""


class Pair(NamedTuple):
    left: int
    right: str = "r"


class Address(TypedDict):
    street: str
    zip: NotRequired[int]


class Line(pydantic.BaseModel):
    sku: str
    price: float


class Invoice(pydantic.BaseModel):
    number: int = pydantic.Field(alias="no", gt=0)
    lines: list[Line]
    color: Color = Color.RED
    homepage: pydantic.HttpUrl | None = None
    note: str = "-"


class Extensible(pydantic.BaseModel, extra="allow"):
    known: int


class Names(pydantic.RootModel[list[str]]):
    pass
