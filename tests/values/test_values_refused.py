"""What can't be stored as it is, is refused at once, with its type and its place."""

from __future__ import annotations

import copy
import pickle
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable
from dataclasses import InitVar, dataclass
from datetime import datetime, timedelta, tzinfo
from decimal import Decimal
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple, TypedDict, TypeVar, cast

import msgpack
import numpy as np
import pytest

from dex.errors import ValueMappingError
from dex.values import DEFAULT_LIMIT, CodecRegistry, JsonCodec

from .models import Address, Color, Item, Line, Odd, Order, Paid, Pair, Point, Refused, Size, Tree


class SpecialItem(Item):
    pass


class Text(str):
    pass


class NowhereZone(tzinfo):
    def dst(self, moment: datetime | None) -> None:
        return None

    def tzname(self, moment: datetime | None) -> None:
        return None

    def utcoffset(self, moment: datetime | None) -> timedelta:
        return timedelta(0)


def unset_item() -> Item:
    item = Item("a", Decimal(1))
    del item.name
    return item


def again(cls: type) -> type:
    """A class of the same name and module: what a notebook makes when its cell runs again."""
    return type(cls.__name__, (), {"__module__": cls.__module__, "__qualname__": cls.__qualname__})


def itself() -> list[Any]:
    loop: list[Any] = []
    loop.append(loop)
    return loop


def nested(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth):
        value = [value]
    return value


REFUSED: list[tuple[Any, Any, str]] = [
    (True, int, "input: expected int, got bool"),
    (1, bool, "input: expected bool, got int"),
    (1, float, r"input: expected float, got int \(write 1.0"),
    (1.0, int, "input: expected int, got float"),
    (None, int, "input: expected int, got None"),
    (0, None, "input: expected None, got int"),
    ("a", bytes, "input: expected bytes, got str"),
    (bytearray(b"a"), bytes, "input: expected bytes, got bytearray"),
    (Text("a"), str, r"input: expected str, got .*Text \(a subclass"),
    (np.float64(1), float, r"input: expected float, got numpy.float64 \(a subclass"),
    (1.0, np.float64, "input: expected numpy.float64, got float"),
    (Size.SMALL, int, "input: expected int, got .*Size"),
    (1, Size, "input: expected .*Size, got int"),
    (Color.RED, Size, "input: expected .*Size, got .*Color"),
    (datetime(2026, 1, 1, tzinfo=NowhereZone()), datetime, r"input: time zone .* use zoneinfo.ZoneInfo"),
    (datetime(2026, 1, 1), __import__("datetime").date, r"input: expected date, got datetime.datetime \(a subclass"),
    ((1,), list[int], r"input: expected list\[int\], got tuple"),
    ([1], tuple[int, ...], r"input: expected tuple\[int, ...\], got list"),
    ((1, 2), tuple[int], r"input: expected tuple\[int\], got 2 items"),
    ((1, "a"), tuple[int, int], r"input\[1\]: expected int, got str"),
    ([1, 2, "a", 4], list[int], r"input\[2\]: expected int, got str"),
    ([1, 2**64], list[int], r"input\[1\]: int 18446744073709551616 does not fit into 64 bits \(OverflowError\)"),
    ({"a": {"b": [1, None]}}, dict[str, dict[str, list[int]]], r"input\['a'\]\['b'\]\[1\]: expected int, got None"),
    ({1: 2}, dict[str, int], r"input\[1\]: expected a key of type str, got int"),
    ({"a": 2}, dict[int, int], r"input\['a'\]: expected int, got str"),
    (OrderedDict(a=1), dict[str, int], r"input: expected dict\[str, int\], got collections.OrderedDict"),
    (frozenset(), set[int], r"input: expected set\[int\], got frozenset"),
    (
        Order("o", [Item("a", Decimal(1)), Item("b", cast(Any, 1.5))]),
        Order,
        r"input.items\[1\].price: expected Decimal, got float",
    ),
    (SpecialItem("a", Decimal(1)), Item, r"input: expected .*Item, got .*SpecialItem \(a subclass"),
    (again(Item)(), Item, "input: expected .*Item, got .*Item .another class of that name"),
    (unset_item(), Item, "input.name: this field of a .*Item was never set"),
    ({"name": "a"}, Item, "input: expected .*Item, got dict"),
    (Pair(cast(Any, "1")), Pair, "input.left: expected int, got str"),
    ((1, "r"), Pair, "input: expected .*Pair, got tuple"),
    ({"street": "s", "city": "c"}, Address, "input: .*Address has no key 'city'; it has street, zip"),
    ({"zip": 1}, Address, "input: .*Address needs the keys street"),
    (Line.model_construct(sku="a", price=1), Line, "input.price: expected float, got int"),
    (b"", str | int, r"input: expected str \| int, got bytes"),
    ([1.5], list[int] | list[str], r"input: expected list\[int\] \| list\[str\], got list"),
    (Point(1, 2), Paid | Refused, "input: expected .*Paid . .*Refused, got .*Point"),
    (2, __import__("typing").Literal[1, "a"], r"input: expected Literal\[1, 'a'\], got int 2"),
    (True, __import__("typing").Literal[1], r"input: expected Literal\[1\], got bool"),
    (1j, Any, "input: a value of type complex can't be stored: store a tuple of two floats"),
    ([object()], Any, r"input\[0\]: a value of type object can't be stored: store a dataclass.*register a Codec"),
    ({"a": deque()}, Any, r"input\['a'\]: a value of type collections.deque can't be stored"),
    (defaultdict(list), Any, "input: .*defaultdict can't be stored: types have to match exactly; store dict"),
    (msgpack.ExtType(127, b"\x00" * 40).__class__, Any, "input: a value of type type can't be stored"),
    (PurePosixPath("/a"), Path, "input: expected Path, got pathlib.PurePosixPath"),
    ("\ud800", str, "input: text with a lone surrogate"),
    ([("a", {"k": "\ud800"})], Any, r"input\[0\]\[1\].k: text with a lone surrogate"),
    (itself(), Any, "input: nested too deeply, or a value that contains itself"),
    (nested(5000), Any, "input: nested too deeply"),
]


@pytest.mark.statement("D11")
@pytest.mark.parametrize(("value", "hint", "message"), REFUSED, ids=[message[:60] for _, _, message in REFUSED])
def test_a_value_that_is_not_exactly_of_its_type_is_refused_naming_type_and_place(
    value: Any, hint: Any, message: str
) -> None:
    with pytest.raises(ValueMappingError, match=message) as caught:
        CodecRegistry().encode(value, hint, where="input")
    assert caught.value.operation == "encode"
    assert not caught.value.too_large


def test_an_int_of_more_than_64_bits_is_an_overflow_error_too() -> None:
    for value in (2**63, -(2**63) - 1, 10**5000):
        with pytest.raises(OverflowError, match=r"input: .* does not fit into 64 bits"):
            CodecRegistry().encode(value, int, where="input")
        with pytest.raises(OverflowError, match=r"input\[0\]"):
            CodecRegistry().encode_dynamic([value], where="input")


def test_a_refusal_can_be_pickled_and_copied() -> None:
    with pytest.raises(ValueMappingError) as caught:
        CodecRegistry().encode(2**63, int, where="input")
    for same in (pickle.loads(pickle.dumps(caught.value)), copy.copy(caught.value)):
        assert type(same) is type(caught.value)
        assert str(same) == str(caught.value)


def test_after_a_refusal_the_registry_goes_on_as_before() -> None:
    registry = CodecRegistry()
    with pytest.raises(ValueMappingError):
        registry.encode(["a" * 100, "\ud800"], list[str], where="input")
    assert registry.decode(registry.encode(["a"], list[str], where="input"), list[str], where="input") == ["a"]


def test_a_deep_value_that_can_be_stored_can_be_read() -> None:
    registry = CodecRegistry()
    for depth in (400, 900):
        try:
            payload = registry.encode(nested(depth), Any, where="input")
        except ValueMappingError:
            continue
        assert registry.decode(payload, Any, where="input") == nested(depth)


# The limit ------------------------------------------------------------------------------------------------------------


@pytest.mark.statement("D12")
def test_a_value_over_the_limit_is_refused_with_size_limit_and_name() -> None:
    registry = CodecRegistry()
    photo = b"x" * 1000

    def declared(limit: int) -> bytes:
        return registry.encode(photo, bytes, where="Attribute photo", limit=limit)

    def dynamic(limit: int) -> bytes:
        return registry.encode_dynamic(photo, where="Attribute photo", limit=limit)

    for encode in (declared, dynamic):
        assert len(encode(1003)) == 1003
        with pytest.raises(
            ValueMappingError, match="Attribute photo: 1,003 bytes is over the limit of 1,002"
        ) as caught:
            encode(1002)
        assert caught.value.too_large
        assert pickle.loads(pickle.dumps(caught.value)).too_large


@pytest.mark.statement("D12")
def test_the_limit_is_64_mib_unless_told_otherwise() -> None:
    assert DEFAULT_LIMIT == 64 * 1024 * 1024
    registry = CodecRegistry()
    with pytest.raises(ValueMappingError, match=r"input: .* is over the limit of 67,108,864") as caught:
        registry.encode(bytes(DEFAULT_LIMIT), bytes, where="input")
    assert caught.value.too_large


# Hints ----------------------------------------------------------------------------------------------------------------


class Plain:
    pass


class Renamed:
    @dataclass
    class Paid:
        amount: int


@dataclass
class HasPlain:
    inner: list[dict[str, Plain]]


@dataclass
class NeedsInitVar:
    x: int
    seed: InitVar[int]


@dataclass
class Unknown:
    x: Nowhere  # type: ignore[name-defined]  # noqa: F821


class Loose(TypedDict):
    street: str


class Other(NamedTuple):
    amount: int


T = TypeVar("T")

UNSUPPORTED: list[tuple[Any, str]] = [
    (Plain, "input: type hint .*Plain is not supported.*use a dataclass or plain data, or register a Codec"),
    (HasPlain, r"input.inner\[...\]\[...\]: type hint .*Plain is not supported"),
    (complex, "input: type hint complex"),
    (bytearray, "input: type hint bytearray"),
    (deque, "input: type hint collections.deque"),
    (defaultdict[str, int], "input: type hint collections.defaultdict"),
    (Callable[[], int], "input: type hint"),
    (type[int], "input: type hint"),
    (T, "input: .*a type variable that nothing fills in"),
    (list["Order"], r"input\[...\]: .*a name in quotes that could not be resolved"),
    (SpecialItem, "input: .*inherits from a dataclass and is none"),
    (NeedsInitVar, "input: .*InitVar seed"),
    (Unknown, "input: the annotations of .*Unknown use the name 'Nowhere'"),
    (3, "input: type hint 3"),
    ([int], "input: type hint .*not a type"),
    (Paid | Renamed.Paid, "input: two members of .* are called Paid"),
    (list[Paid] | list[Refused], r"input: data of list\[.*Paid\] and of list\[.*Refused\] can't be told apart"),
    (Address | Loose, "input: data of .*Address and of .*Loose can't be told apart"),
    (Address | dict[str, int], "input: data of .* can't be told apart"),
]


@pytest.mark.parametrize(("hint", "message"), UNSUPPORTED, ids=[message[:60] for _, message in UNSUPPORTED])
def test_a_type_that_can_not_be_stored_is_refused_when_it_is_resolved(hint: Any, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        CodecRegistry().resolve(hint, where="input")


def test_a_codec_makes_an_unsupported_type_supported() -> None:
    registry = CodecRegistry({Plain: JsonCodec("plain", lambda data: Plain(), lambda plain: None)})
    value = HasPlain([{"a": Plain()}])
    back = registry.decode(registry.encode(value, HasPlain, where="v"), HasPlain, where="v")
    assert type(back.inner[0]["a"]) is Plain


def test_an_object_with_an_unsupported_field_is_refused_where_there_is_no_hint_too() -> None:
    with pytest.raises(ValueMappingError, match=r"input\[0\]: .*HasPlain.inner.*Plain is not supported"):
        CodecRegistry().encode_dynamic([HasPlain([])], where="input")


def test_a_class_of_any_shape_of_its_module_can_be_resolved_from_a_function() -> None:
    @dataclass
    class Local:
        me: Local | None
        color: Odd

    registry = CodecRegistry()
    value = Local(Local(None, Odd.HUGE), Odd.LIST)
    assert registry.decode(registry.encode(value, Local, where="v"), Local, where="v") == value
    assert registry.resolve(Tree).type_name.endswith("Tree")
