"""Every type that can be stored comes back as it was, with a declared type and without one."""

from __future__ import annotations

import math
import pickle
import subprocess
import sys
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Any, Literal, NewType
from uuid import UUID
from zoneinfo import ZoneInfo

import cloudpickle
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from pydantic import HttpUrl

from dex.errors import ValueMappingError
from dex.values import BYTES, STRING, Codec, CodecRegistry, JsonCodec, Value, WireKind

from .models import (
    Address,
    Box,
    Color,
    Extensible,
    IntBox,
    Invoice,
    Item,
    KeywordOnly,
    Level,
    Line,
    Names,
    Odd,
    Order,
    Paid,
    Pair,
    Permission,
    Point,
    Refused,
    Size,
    Tree,
)

BERLIN = ZoneInfo("Europe/Berlin")
UserId = NewType("UserId", int)
ITEM = Item("pen", Decimal("1.20"))

PLAIN: list[tuple[Any, Any]] = [
    (None, None),
    (None, type(None)),
    (True, bool),
    (0, int),
    (-(2**63), int),
    (2**63 - 1, int),
    (1.5, float),
    (-0.0, float),
    (math.inf, float),
    ("grüße\x00\n", str),
    ("", str),
    (b"\x00\xff", bytes),
    (Decimal("1.20"), Decimal),
    (Decimal("-Infinity"), Decimal),
    (Decimal("1E-400"), Decimal),
    (datetime(2026, 5, 1, 12, 0, 0, 7), datetime),
    (datetime(2026, 10, 25, 2, 30, fold=1), datetime),
    (datetime(2026, 10, 25, 2, 30, tzinfo=BERLIN, fold=1), datetime),
    (datetime(2026, 5, 1, tzinfo=UTC), datetime),
    (datetime(2026, 5, 1, tzinfo=ZoneInfo("UTC")), datetime),
    (datetime(2026, 5, 1, tzinfo=timezone(timedelta(hours=-3, microseconds=5))), datetime),
    (datetime(2026, 5, 1, tzinfo=timezone(timedelta(hours=1), "here~|there")), datetime),
    (datetime.min, datetime),
    (date(2026, 5, 1), date),
    (time(1, 2, 3, 4, tzinfo=BERLIN, fold=1), time),
    (time(1, 2), time),
    (timedelta(days=-3, microseconds=1), timedelta),
    (timedelta.max, timedelta),
    (UUID(int=5), UUID),
    (Path("/a/../b c"), Path),
    (Path("/bad\udcff"), Path),
    ([], list[int]),
    ([1, 2], list[int]),
    ([1, "a", None, [2.0]], list),
    ([1, None], list[int | None]),
    ((), tuple[()]),
    ((1, "a"), tuple[int, str]),
    ((1, 2, 3), tuple[int, ...]),
    ((1, (2, [3])), tuple),
    ({1, 2}, set[int]),
    (frozenset({(1, 2), (3,)}), frozenset[tuple[int, ...]]),
    ({"a": 1}, dict[str, int]),
    ({}, dict[int, int]),
    ({1: "a", -2: "b"}, dict[int, str]),
    ({(1, 2): {"x"}}, dict[tuple[int, int], set[str]]),
    ({None: 1, "a": 2, 3: 4, date(2026, 1, 1): 5}, dict),
    ({"$bytes": "no tag"}, dict[str, str]),
    ([1], Sequence[int]),
    ((1,), Sequence[int]),
    ({"a": [1]}, Mapping[str, list[int]]),
    ({1}, AbstractSet[int]),
    (5, UserId),
    (5, Annotated[int, {"not": "hashable"}]),
    ("a", Literal["a", 1, None]),
    (1, Literal["a", 1, True]),
    (True, Literal["a", 1, True]),
    ({"street": "s"}, Address),
    ({"street": "s", "zip": 1}, Address),
    (3, Any),
    ({"a": [(1, {2})]}, object),
]

OBJECTS: list[tuple[Any, Any]] = [
    (Color.RED, Color),
    (Size.LARGE, Size),
    (Level.HIGH, Level),
    (Permission.READ | Permission.WRITE, Permission),
    (Permission(0), Permission),
    (Odd.LIST, Odd),
    (Odd.HUGE, Odd),
    (Color.GREEN, Literal[Color.GREEN]),
    (ITEM, Item),
    (Order("o", [ITEM, ITEM], Color.RED, {Size.SMALL: 1}), Order),
    (Tree(1, [Tree(2, [Tree(3)])], Tree(0)), Tree),
    (KeywordOnly(3, second="x", scale=5), KeywordOnly),
    (Box([1], [[2]]), Box[list[int]]),
    (Box(1, ["any"]), Box),
    (IntBox(1, [2], "l"), IntBox),
    (Pair(1), Pair),
    (Paid(1), Paid | Refused),
    (Refused(1), Paid | Refused),
    ([Paid(1), Refused(2), None], list[Paid | Refused | None]),
    (Paid(1), Paid | int),
    ({Point(1, 2): {Point(3, 4)}}, dict[Point, set[Point]]),
    (Line(sku="a", price=1.0), Line),
    (Invoice(no=3, lines=[Line(sku="a", price=2.5)], homepage=HttpUrl("https://example.org/")), Invoice),
    (Extensible.model_validate({"known": 1, "more": [1, (2,)]}), Extensible),
    (Names(["a"]), Names),
    (Line(sku="a", price=1.0), Line | Invoice | str),
    (datetime(2026, 5, 1), datetime | str | None),
    ([1], list[int] | list[str]),
    (["a"], list[int] | list[str]),
    (Color.RED, Color | Size),
]


def identical(a: Any, b: Any) -> bool:
    """Equal, of the same types at every depth; NaN is equal to itself."""
    if type(a) is not type(b):
        return False
    if isinstance(a, float):
        return repr(a) == repr(b)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(identical, a, b))
    if isinstance(a, (set, frozenset)):
        return sorted(map(repr, a)) == sorted(map(repr, b))
    if isinstance(a, dict):
        return len(a) == len(b) and all(identical(x, y) for x, y in zip(a.items(), b.items(), strict=True))
    if isinstance(a, (datetime, time)):
        return (a.replace(tzinfo=None), a.fold, repr(a.tzinfo)) == (b.replace(tzinfo=None), b.fold, repr(b.tzinfo))
    return bool(a == b) and repr(a) == repr(b)


@pytest.mark.statement("D11")
@pytest.mark.parametrize(("value", "hint"), PLAIN + OBJECTS, ids=lambda part: str(part)[:50].encode("ascii", "replace"))
def test_a_value_of_a_declared_type_comes_back_as_it_was(value: Any, hint: Any) -> None:
    registry = CodecRegistry()
    payload = registry.encode(value, hint, where="value")
    assert identical(registry.decode(payload, hint, where="value"), value)


@pytest.mark.statement("D11")
@pytest.mark.parametrize(("value", "hint"), PLAIN + OBJECTS, ids=lambda part: str(part)[:50].encode("ascii", "replace"))
def test_a_value_written_without_a_type_can_be_read_with_one(value: Any, hint: Any) -> None:
    registry = CodecRegistry()
    assert identical(registry.decode(registry.encode_dynamic(value, where="v"), hint, where="v"), value)


@pytest.mark.parametrize(("value", "hint"), PLAIN, ids=lambda part: str(part)[:50].encode("ascii", "replace"))
def test_plain_data_needs_no_type_at_all(value: Any, hint: Any) -> None:
    registry = CodecRegistry()
    assert identical(registry.decode(registry.encode(value, hint, where="v"), Any, where="v"), value)


def test_nan_stays_nan() -> None:
    registry = CodecRegistry()
    assert math.isnan(registry.decode(registry.encode([math.nan], list[float], where="v"), list[float], where="v")[0])
    assert registry.decode(registry.encode(Decimal("NaN"), Decimal, where="v"), Decimal, where="v").is_nan()


def test_objects_under_any_are_read_as_dicts_and_enums_as_values() -> None:
    registry = CodecRegistry()
    payload = registry.encode({"o": Order("o", [ITEM], Color.RED), "p": Pair(1), "odd": Odd.LIST}, Any, where="v")
    item = {"name": "pen", "price": Decimal("1.20"), "count": 1}
    assert registry.decode(payload, Any, where="v") == {
        "o": {"id": "o", "items": [item], "color": "red", "sizes": {}},
        "p": {"left": 1, "right": "r"},
        "odd": "LIST",
    }


def test_a_set_of_objects_can_be_read_with_a_type_only() -> None:
    registry = CodecRegistry()
    payload = registry.encode_dynamic({Point(1, 2)}, where="v")
    assert registry.decode(payload, set[Point], where="v") == {Point(1, 2)}
    with pytest.raises(ValueMappingError, match="type hint that names their class"):
        registry.decode(payload, Any, where="v")


# numpy ----------------------------------------------------------------------------------------------------------------


@pytest.mark.statement("D11")
@pytest.mark.parametrize(
    "array",
    [
        np.arange(6, dtype=">i4").reshape(2, 3),
        np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        np.arange(10)[::3],
        np.array(3.5),
        np.empty((0, 4), dtype=np.float32),
        np.array([True, False]),
        np.array([1 + 2j]),
        np.array(["a", "bcd"]),
        np.array([b"xy"]),
        np.array(["2026-05-01"], dtype="M8[D]"),
        np.array([5], dtype="m8[ms]"),
        np.array([1.5], dtype=np.float16),
        np.array([(1, b"x"), (2, b"y")], dtype=[("a", "<i8"), ("b", "S1")]),
        np.zeros(3, dtype=np.dtype([("a", "u1"), ("b", "<f8", (2, 2))], align=True)),
        np.zeros((4, 4), dtype=[("a", [("x", "<i2"), ("y", "<i2")])])[::2, 1:],
    ],
    ids=lambda array: f"{array.dtype}{array.shape}",
)
def test_a_numpy_array_keeps_dtype_shape_and_items_and_is_writable(array: Any) -> None:
    registry = CodecRegistry()
    for payload in (registry.encode(array, np.ndarray, where="v"), registry.encode_dynamic(array, where="v")):
        for hint in (np.ndarray, Any):
            back = registry.decode(payload, hint, where="v")
            assert (type(back), back.dtype, back.shape) == (np.ndarray, array.dtype, array.shape)
            assert np.array_equal(back, array)
            assert back.flags.writeable


@pytest.mark.statement("D11")
@pytest.mark.parametrize(
    "scalar",
    [np.float64(1.5), np.int8(-3), np.bool_(True), np.str_("ab"), np.datetime64("2026-05-01"), np.complex64(1j)],
)
def test_a_numpy_scalar_keeps_its_type(scalar: Any) -> None:
    registry = CodecRegistry()
    for hint in (type(scalar), Any, np.generic):
        back = registry.decode(registry.encode(scalar, hint, where="v"), hint, where="v")
        assert type(back) is type(scalar)
        assert back == scalar


def test_a_declared_dtype_is_checked() -> None:
    registry = CodecRegistry()
    registry.encode(np.zeros(2), NDArray[np.float64], where="v")
    registry.encode(np.zeros(2, dtype=np.float32), NDArray[np.floating[Any]], where="v")
    with pytest.raises(ValueMappingError, match=r"v: expected .*float64.*, got an array of int64"):
        registry.encode(np.zeros(2, dtype=np.int64), NDArray[np.float64], where="v")


@pytest.mark.parametrize(
    "array",
    [np.array([object()]), np.zeros(2, dtype=[("a", object)]), np.ma.masked_array([1]), np.zeros(2).view(np.recarray)],
)
def test_numpy_arrays_whose_bytes_are_not_their_values_are_refused(array: Any) -> None:
    with pytest.raises(ValueMappingError, match="v: "):
        CodecRegistry().encode(array, np.ndarray, where="v")


# Codecs ---------------------------------------------------------------------------------------------------------------


class FractionCodec:
    type_name = "fraction"
    wire_kind = WireKind.STRING

    def encode(self, value: Any) -> Value:
        return Value(WireKind.STRING, str(value))

    def decode(self, value: Value) -> Any:
        return Fraction(value.data)


class PickleCodec:
    type_name = "pickled complex"
    wire_kind = WireKind.BYTES

    def encode(self, value: Any) -> Value:
        return Value(WireKind.BYTES, pickle.dumps(value))

    def decode(self, value: Value) -> Any:
        return pickle.loads(value.data)


CUSTOM: dict[Any, Codec] = {
    Fraction: FractionCodec(),
    complex: PickleCodec(),
    Point: JsonCodec("point", lambda data: Point(*data), lambda point: [point.x, point.y], Point),
}


@pytest.mark.statement("D11")
@pytest.mark.parametrize(
    ("value", "hint"),
    [
        (Fraction(1, 3), Fraction),
        ([Fraction(1, 3), None], list[Fraction | None]),
        ({"a": (1j, "x")}, dict[str, tuple[complex, str]]),
        (Box(Point(1, 2), []), Box[Point]),
        (Fraction(1, 2), Fraction | str),
        ("1/2", Fraction | str),
        ([Point(1, 2), Paid(3), 1j], list[Point | Paid | complex]),
    ],
)
def test_a_custom_codec_replaces_the_walk_for_its_type_at_any_depth(value: Any, hint: Any) -> None:
    registry = CodecRegistry(CUSTOM)
    for sent in (registry, cloudpickle.loads(cloudpickle.dumps(registry))):
        assert sent.decode(registry.encode(value, hint, where="v"), hint, where="v") == value
        assert sent.decode(registry.encode_dynamic(value, where="v"), hint, where="v") == value


def test_a_class_whose_hints_are_text_can_be_used_in_a_process_that_has_not_its_module() -> None:
    source = """
from __future__ import annotations
import sys, cloudpickle
from dataclasses import dataclass
from dex.values import CodecRegistry
@dataclass
class Inner:
    x: int
@dataclass
class Outer:
    inner: Inner
registry = CodecRegistry()
payload = registry.encode(Outer(Inner(1)), Outer, where="v")
sys.stdout.buffer.write(cloudpickle.dumps((registry, Outer, payload)))
"""
    sent = subprocess.run([sys.executable, "-c", source], capture_output=True, check=True).stdout
    registry, outer, payload = cloudpickle.loads(sent)
    assert registry.decode(payload, outer, where="v").inner.x == 1


def test_what_a_codec_encodes_to_is_read_without_it_as_plain_data() -> None:
    payload = CodecRegistry(CUSTOM).encode_dynamic([Fraction(1, 3), Point(1, 2)], where="v")
    assert CodecRegistry().decode(payload, Any, where="v") == ["1/3", [1, 2]]


def test_a_codec_that_fails_refuses_the_value_with_its_place_and_cause() -> None:
    registry = CodecRegistry({Point: JsonCodec("point", lambda data: 1 / 0, lambda point: {1: 2})})
    with pytest.raises(ValueMappingError, match=r"encode: v\[0\]: codec point encoded to dict, which is no JSON data"):
        registry.encode([Point(1, 2)], list[Point], where="v")
    with pytest.raises(
        ValueMappingError, match=r"decode: v\[0\]: codec point refused the data: ZeroDivisionError"
    ) as caught:
        registry.decode(registry.encode([[1]], Any, where="v"), list[Point], where="v")
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


def test_the_codec_of_a_type_can_be_resolved_and_tells_its_wire_kind() -> None:
    registry = CodecRegistry()
    assert [registry.resolve(hint).wire_kind for hint in (str, bool, int, float, bytes, list[int])] == [
        WireKind.STRING,
        WireKind.BOOL,
        WireKind.INT64,
        WireKind.DOUBLE,
        WireKind.BYTES,
        WireKind.JSON,
    ]
    codec = registry.resolve(Item)
    assert codec.encode(ITEM) == Value(WireKind.JSON, {"name": "pen", "price": {"$decimal": "1.20"}, "count": 1})
    assert codec.decode(codec.encode(ITEM)) == ITEM
    assert STRING.decode(STRING.encode("a")) == "a"
    assert BYTES.encode(b"a") == Value(WireKind.BYTES, b"a")


# Everything at once ---------------------------------------------------------------------------------------------------

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats()
    | st.text()
    | st.binary()
    | st.decimals(allow_nan=False)
    | st.datetimes(timezones=st.none() | st.timezones())
    | st.dates()
    | st.times()
    | st.timedeltas()
    | st.uuids()
)
KEYS = (
    st.text(max_size=5) | st.integers(-(2**63), 2**63 - 1) | st.dates() | st.tuples(st.booleans(), st.text(max_size=2))
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(KEYS, inner, max_size=4)
        | st.frozensets(KEYS, max_size=4)
        | st.sets(KEYS, max_size=4)
    ),
    max_leaves=12,
)


@pytest.mark.statement("D11")
@settings(max_examples=300, deadline=None)
@given(VALUES)
def test_any_nesting_of_plain_data_comes_back_with_identical_types(value: Any) -> None:
    registry = CodecRegistry()
    payload = registry.encode(value, Any, where="v")
    assert registry.encode_dynamic(value, where="v") == payload
    assert identical(registry.decode(payload, Any, where="v"), value)


ITEMS = st.builds(Item, st.text(max_size=5), st.decimals(allow_nan=False), st.integers(-9, 9))
ORDERS = st.builds(
    Order,
    st.text(max_size=5),
    st.lists(ITEMS, max_size=3),
    st.none() | st.sampled_from(Color),
    st.dictionaries(st.sampled_from(Size), st.integers(0, 9)),
)
TREES = st.recursive(
    st.builds(Tree, st.integers(0, 9)),
    lambda inner: st.builds(Tree, st.integers(0, 9), st.lists(inner, max_size=3), st.none() | inner),
    max_leaves=8,
)
TYPED = {
    dict[int, list[Order | Tree | None]]: st.dictionaries(
        st.integers(0, 9), st.lists(ORDERS | TREES | st.none(), max_size=4), max_size=3
    ),
    tuple[Paid | Refused, ...]: st.lists(
        st.builds(Paid, st.integers(0, 9)) | st.builds(Refused, st.integers(0, 9))
    ).map(tuple),
}


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_any_nesting_of_objects_comes_back_equal(data: st.DataObject) -> None:
    registry = CodecRegistry()
    for hint, values in TYPED.items():
        value = data.draw(values)
        assert identical(registry.decode(registry.encode(value, hint, where="v"), hint, where="v"), value)
        assert identical(registry.decode(registry.encode_dynamic(value, where="v"), hint, where="v"), value)
