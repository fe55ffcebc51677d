"""Values in the form that columns take, apart from any database."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sqlalchemy import JSON, BigInteger, Boolean, Date, DateTime, Integer, SmallInteger, String, Text, types
from sqlalchemy.types import NullType

from dex.values import CodecRegistry
from dexray.stores.values import Misfit, fit, jsonable, read


def payload(value: Any, kind: Any) -> bytes:
    return CodecRegistry().encode(value, kind, where="a test")


def test_arrays_have_no_form_in_a_column() -> None:
    array = payload(np.arange(100), np.ndarray)
    with pytest.raises(Misfit, match="arrays of numpy"):
        read(array)
    nested = read(payload({"a": np.arange(100)}, dict[str, Any]))
    with pytest.raises(Misfit, match="arrays of numpy"):
        fit(nested, JSON(), "sqlite")


def test_sets_maps_and_numbers_that_json_lacks_are_plain_json() -> None:
    assert jsonable(read(payload({1, 2}, set[int]))) == [1, 2]
    assert jsonable(read(payload({1: "a"}, dict[int, str]))) == [[1, "a"]]
    assert jsonable([float("nan"), 1.5, b"hi"]) == [None, 1.5, "aGk="]


@pytest.mark.parametrize(
    ("value", "column", "dialect"),
    [
        (True, Text(), "sqlite"),
        (5, BigInteger(), "postgresql"),
        (2**40, Integer(), "sqlite"),
        ("x" * 10, String(3), "sqlite"),
    ],
)
def test_it_fits(value: Any, column: types.TypeEngine[Any], dialect: str) -> None:
    assert fit(value, column, dialect) == ("true" if value is True else value)


@pytest.mark.parametrize(
    ("value", "column", "what"),
    [
        (1, Boolean(), "bool, not int"),
        (2**40, Integer(), "32 bits"),
        (70_000, SmallInteger(), "16 bits"),
        (1.0, Integer(), "int, not float"),
        ("2026-05-01", Date(), "date, not str"),
        (5, DateTime(), "datetime, not int"),
        ("x" * 10, String(3), "3 characters"),
        (b"x", Text(), "bytes are no text"),
        ("\ud800", Text(), "half a surrogate pair"),
    ],
)
def test_it_does_not_fit(value: Any, column: types.TypeEngine[Any], what: str) -> None:
    with pytest.raises(Misfit, match=what):
        fit(value, column, "postgresql")


def test_a_column_without_a_type_keeps_what_sqlite_can_keep() -> None:
    assert [fit(value, NullType(), "sqlite") for value in (5, 1.5, b"x", "x", [1])] == [5, 1.5, b"x", "x", "[1]"]
