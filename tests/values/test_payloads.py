"""Payloads as bytes: kept apart when large, shown to people, and harmless when damaged."""

from __future__ import annotations

import hashlib
import json
import tracemalloc
from contextlib import suppress
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any, Literal
from uuid import UUID
from zoneinfo import ZoneInfo

import msgpack
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dex.errors import ValueMappingError
from dex.values import (
    BLOB_THRESHOLD,
    CodecRegistry,
    attach,
    detach,
    reference_of,
    referenced_size,
    to_readable,
)

from .models import Address, Color, Invoice, Item, Order, Paid, Pair, Permission, Point, Refused, Size, Tree

REGISTRY = CodecRegistry()


def encoded(value: Any) -> bytes:
    return REGISTRY.encode_dynamic(value, where="v")


# Kept apart -----------------------------------------------------------------------------------------------------------


@pytest.mark.statement("D12")
def test_a_payload_over_16_kib_is_kept_apart_once_by_its_content() -> None:
    blobs: dict[str, bytes] = {}
    large = encoded(b"x" * BLOB_THRESHOLD)
    reference = detach(large, blobs)
    assert detach(bytes(large), blobs) == reference
    assert blobs == {hashlib.sha256(large).hexdigest(): large}
    assert len(reference) < 50
    assert reference_of(reference) == hashlib.sha256(large).hexdigest()
    assert referenced_size(reference) == len(large)
    assert attach(reference, blobs) == large


def test_a_payload_up_to_16_kib_stays_in_its_place() -> None:
    blobs: dict[str, bytes] = {}
    payload = encoded(b"x" * (BLOB_THRESHOLD - 3))
    assert len(payload) == BLOB_THRESHOLD
    assert detach(payload, blobs) is payload
    assert attach(payload, blobs) is payload
    assert blobs == {}


def test_a_blob_that_is_not_at_hand_is_an_error_that_names_it() -> None:
    blobs: dict[str, bytes] = {}
    reference = detach(encoded("x" * 20_000), blobs)
    name = next(iter(blobs))
    with pytest.raises(
        ValueMappingError, match=f"the blob {name} of a value of 20,?003 bytes is not among the 0 at hand"
    ):
        attach(reference, {})
    with pytest.raises(ValueMappingError, match="v: the value was stored apart and its bytes are not here"):
        REGISTRY.decode(reference, Any, where="v")


def test_no_value_of_a_user_encodes_to_a_reference() -> None:
    reference = detach(encoded("x" * 20_000), {})
    for forged in (reference, msgpack.unpackb(reference), reference.decode("latin-1"), [reference], np.void(b"")):
        try:
            payload = encoded(forged)
        except ValueMappingError:
            continue
        assert reference_of(payload) is None


# Shown ----------------------------------------------------------------------------------------------------------------

READABLE: list[tuple[Any, Any]] = [
    (None, None),
    ([1, "a", True, 1.5, None], [1, "a", True, 1.5, None]),
    ({"a": (1, 2)}, {"a": [1, 2]}),
    (b"hi", {"$bytes": "aGk="}),
    (Decimal("1.20"), {"$decimal": "1.20"}),
    (float("nan"), {"$float": "NaN"}),
    (float("-inf"), {"$float": "-Infinity"}),
    (datetime(2026, 5, 1, tzinfo=UTC), {"$datetime": "2026-05-01T00:00:00+00:00"}),
    (datetime(2026, 5, 1, tzinfo=ZoneInfo("Europe/Berlin")), {"$datetime": "2026-05-01T00:00:00+02:00[Europe/Berlin]"}),
    (date(2026, 5, 1), {"$date": "2026-05-01"}),
    (time(1, 2), {"$time": "01:02:00"}),
    (timedelta(minutes=1.5), {"$timedelta": 90.0}),
    (UUID(int=1), {"$uuid": "00000000-0000-0000-0000-000000000001"}),
    (Path("/a"), {"$path": "/a"}),
    ({1}, {"$set": [1]}),
    (frozenset({1}), {"$frozenset": [1]}),
    ({1: "a"}, {"$map": [[1, "a"]]}),
    (Color.RED, "red"),
    (Item("a", Decimal(1)), {"name": "a", "price": {"$decimal": "1"}, "count": 1}),
    (np.arange(100), {"$ndarray": {"dtype": "<i8", "shape": [100], "items": [0, 1, 2, 3, 4, 5, 6, 7]}}),
    (np.float32(1.5), {"$numpy": {"dtype": "<f4", "value": 1.5}}),
    (np.datetime64("2026-05-01"), {"$numpy": {"dtype": "<M8[D]", "value": {"$date": "2026-05-01"}}}),
]


@pytest.mark.parametrize(("value", "readable"), READABLE, ids=lambda part: str(part)[:40])
def test_a_payload_is_shown_as_json_data(value: Any, readable: Any) -> None:
    assert to_readable(encoded(value)) == readable
    json.dumps(readable, allow_nan=False)


def test_a_reference_is_shown_by_hash_and_size() -> None:
    blobs: dict[str, bytes] = {}
    reference = detach(encoded("x" * 20_000), blobs)
    assert to_readable(reference) == {"$blob": next(iter(blobs)), "size": 20_003}


# Given as JSON --------------------------------------------------------------------------------------------------------

GIVEN: list[tuple[str, Any, Any]] = [
    ("3", int, 3),
    ("3", float, 3.0),
    ('"NaN"', float | None, "nan"),
    ("null", int | None, None),
    ('"3"', int | str, "3"),
    ("3", float | int, 3),
    ("1.10", Decimal, Decimal("1.10")),
    ('"1.10"', Decimal, Decimal("1.10")),
    ('"2026-05-01T12:00:00Z"', datetime, datetime(2026, 5, 1, 12, tzinfo=UTC)),
    ('"2026-05-01"', date, date(2026, 5, 1)),
    ("90", timedelta, timedelta(seconds=90)),
    ('"aGk="', bytes, b"hi"),
    ('"red"', Color, Color.RED),
    ('"RED"', Color, Color.RED),
    ("1", Size, Size.SMALL),
    ("3", Permission, Permission.READ | Permission.WRITE),
    ("[1, [2]]", tuple[int, list[int]], (1, [2])),
    ("[1, 2, 1]", set[int], {1, 2}),
    ('{"1": "a"}', dict[int, str], {1: "a"}),
    ('{"true": 1.5}', dict[bool, float], {True: 1.5}),
    ('{"name": "a", "price": 1.20}', Item, Item("a", Decimal("1.20"))),
    ('{"id": "o", "items": [{"name": "a", "price": "2"}]}', Order, Order("o", [Item("a", Decimal(2))])),
    ('{"value": 1, "children": [{"value": 2}]}', Tree, Tree(1, [Tree(2)])),
    ('{"left": 1}', Pair, Pair(1)),
    ('{"street": "s"}', Address, {"street": "s"}),
    ('{"no": 1, "lines": []}', Invoice, Invoice(no=1, lines=[])),
    ('{"amount": 1, "reason": "r"}', Paid | Refused, Refused(1, "r")),
    ('{"amount": 1, "$type": "Paid"}', Paid | Refused, Paid(1)),
    ('"2026-05-01"', datetime | str, datetime(2026, 5, 1)),
    ('"soon"', str | datetime, "soon"),
    ('"b"', Literal["a", "b"], "b"),
    ('{"a": [1.5, {"$decimal": "1"}]}', Any, {"a": [1.5, Decimal(1)]}),
]


@pytest.mark.parametrize(("text", "hint", "value"), GIVEN, ids=lambda part: str(part)[:40])
def test_a_typed_value_can_be_given_as_json(text: str, hint: Any, value: Any) -> None:
    built = REGISTRY.decode_json(text, hint, "input")
    if value == "nan":
        assert built != built
        return
    assert built == value
    assert type(built) is type(value)


@pytest.mark.parametrize(
    ("text", "hint", "message"),
    [
        ("{", Item, "input: not JSON"),
        ("hello", str, "input: not JSON: .*text needs quotes"),
        ('{"name": "a", "prize": 1}', Item, r"input: .*Item has no field prize; it has count, name, price"),
        ('{"name": "a"}', Item, "input.price: a .*Item needs this field"),
        ('{"id": "o", "items": [{"name": 1, "price": 1}]}', Order, r"input.items\[0\].name: expected str, got int 1"),
        ("true", int, "input: expected int, got bool"),
        ("1.5", int, "input: expected int, got"),
        ("99999999999999999999", int, "input: int 99999999999999999999 does not fit"),
        ('"blue"', Color, "input: .*Color has no member named 'blue'.* it has RED, GREEN"),
        ('"*"', bytes, "input: expected bytes as base64 text"),
        ('"yesterday"', datetime, "input: expected a date and time as text, got 'yesterday'"),
        (
            '{"amount": 1}',
            Paid | Refused,
            r"input: it fits several of .*: say which with ..type., one of Paid, Refused",
        ),
        ('{"x": 1}', Paid | Refused, "input: it fits none of .*Paid has no field x"),
        ('{"no": 0, "lines": []}', Invoice, r"input: .*Invoice: no: Input should be greater than 0$"),
        ("[1]", tuple[int, int], r"input: expected tuple\[int, int\], got 1 items"),
    ],
)
def test_json_that_does_not_fit_is_refused_with_its_place(text: str, hint: Any, message: str) -> None:
    with pytest.raises(ValueMappingError, match=message):
        REGISTRY.decode_json(text, hint, "input")


@pytest.mark.parametrize(
    ("value", "hint"),
    [
        ({1: datetime(2026, 10, 25, 2, 30, tzinfo=ZoneInfo("Europe/Berlin"), fold=1)}, dict[int, datetime]),
        ({Point(1, 2): {1, 2}}, dict[Point, set[int]]),
        ([b"a", Decimal("1.10"), timedelta(seconds=3)], list[bytes | Decimal | timedelta]),
        (Order("o", [Item("a", Decimal(1))], Color.RED, {Size.LARGE: 1}), Order),
    ],
)
def test_what_is_shown_can_be_given_back(value: Any, hint: Any) -> None:
    assert REGISTRY.decode_json(json.dumps(to_readable(REGISTRY.encode(value, hint, where="v"))), hint, "v") == value


# Damaged --------------------------------------------------------------------------------------------------------------

HINTS = [
    Any,
    int,
    list[int],
    dict[str, Any],
    dict[Any, Any],
    tuple[int, ...],
    set[str],
    Order,
    Tree,
    Paid | Refused | list[Color],
    Literal["a", 1],
    np.ndarray,
    np.generic,
    Pair,
    Address,
    Invoice,
    datetime,
]


def survives(payload: bytes) -> None:
    """Whatever the bytes are, a reader gets a value or a ValueMappingError."""
    for hint in HINTS:
        with suppress(ValueMappingError):
            REGISTRY.decode(payload, hint, where="v")
    with suppress(ValueMappingError):
        json.dumps(to_readable(payload), allow_nan=False)


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=60))
@example(b"")
@example(b"\xc1")
@example(b"\xdd\xff\xff\xff\xff")
@example(b"\xdf\xff\xff\xff\xff")
@example(b"\xc6\xff\xff\xff\xff")
@example(b"\x91" * 5000)
@example(b"\x81\xc4\x01a\x01")
@example(b"\xd6\xff\x00\x00\x00\x01")
def test_random_bytes_are_refused_and_nothing_else_happens(payload: bytes) -> None:
    survives(payload)


EXTENSIONS = st.builds(
    msgpack.ExtType,
    st.integers(0, 30) | st.just(127),
    st.just(b"") | st.binary(max_size=20) | st.text(max_size=20).map(str.encode),
)
HOSTILE = st.recursive(
    EXTENSIONS | st.integers(-5, 5) | st.sampled_from(["<i4", "O", "U99999999", "a", "RED", "Paid", b"", b"\x00" * 8]),
    lambda inner: (
        st.lists(inner, max_size=5)
        | st.dictionaries(st.sampled_from(["amount", "id", "items", "value", "children"]), inner, max_size=3)
        | st.tuples(st.integers(16, 23).map(lambda code: msgpack.ExtType(code, b"")), inner, inner, inner).map(list)
    ),
    max_leaves=12,
)


@settings(max_examples=400, deadline=None)
@given(HOSTILE)
@example([msgpack.ExtType(22, b""), "<i4", [2**40, 2**40, 0], b""])
@example([msgpack.ExtType(22, b""), "S0", [2**40], b""])
@example([msgpack.ExtType(1, b""), msgpack.ExtType(1, b"1E999999999999999999999")])
@example([msgpack.ExtType(21, b""), [], {}, []])
def test_well_formed_data_that_we_never_wrote_is_refused_and_nothing_else_happens(tree: Any) -> None:
    survives(msgpack.packb(tree))


@pytest.mark.parametrize(
    ("dtype", "shape", "data"),
    [
        ("<i4", [1000], b""),
        ("<i4", [2], b"\x00" * 4),
        ("<i4", [-1], b"\x00" * 4),
        ("O", [1], b"\x00" * 8),
        ("<i4", 1, b""),
    ],
)
def test_an_array_whose_bytes_do_not_fill_its_shape_is_refused(dtype: str, shape: Any, data: bytes) -> None:
    with pytest.raises(ValueMappingError, match="v: "):
        REGISTRY.decode(msgpack.packb([msgpack.ExtType(22, b""), dtype, shape, data]), np.ndarray, where="v")


def test_every_truncation_of_a_payload_is_refused() -> None:
    value = Order("o", [Item("a", Decimal(1))], Color.RED, {Size.LARGE: 1})
    payload = REGISTRY.encode(value, Order, where="v")
    for end in range(len(payload)):
        with pytest.raises(ValueMappingError, match="decode: v: "):
            REGISTRY.decode(payload[:end], Order, where="v")
    with pytest.raises(ValueMappingError):
        REGISTRY.decode(payload + b"\x00", Order, where="v")


def test_a_small_payload_that_claims_to_be_huge_allocates_little() -> None:
    tracemalloc.start()
    for claim in (
        b"\xdd\x7f\xff\xff\xff",
        b"\xdf\x7f\xff\xff\xff",
        b"\xdb\x7f\xff\xff\xff",
        b"\xc9\x7f\xff\xff\xff\x16",
    ):
        survives(claim)
        survives(claim * 50)
    array = [msgpack.ExtType(22, b""), "<f8", [2**27], b"\x00" * 8]
    survives(msgpack.packb(array))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 4 << 20
