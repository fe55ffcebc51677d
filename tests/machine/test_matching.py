"""Which values satisfy a match."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dex.values import BLOB_THRESHOLD, CodecRegistry, detach
from dexray.machine.matching import OPERATORS, matches
from tests.machine.build import examples

CODECS = CodecRegistry()
NUMBERS = st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=True, allow_infinity=True)
PYTHON: dict[str, Any] = {
    "==": lambda a, b: a == b,
    "!=": lambda a, b: a != b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
}


def payload(value: Any) -> bytes:
    return detach(CODECS.encode(value, type(value), where=""), {})


@pytest.mark.statement("C45")
@examples(300)
@given(NUMBERS, st.sampled_from(sorted(OPERATORS)), st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False))
def test_numbers_compare_as_in_python(value: float, operator: str, operand: float) -> None:
    assert matches(payload(value), operator, payload(operand)) == PYTHON[operator](value, operand)


@examples(100)
@given(st.text() | st.booleans(), st.sampled_from(["==", "!="]), st.text() | st.booleans())
def test_texts_and_bools_are_equal_or_not(value: str | bool, operator: str, operand: str | bool) -> None:
    expected = type(value) is type(operand) and PYTHON[operator](value, operand)
    assert matches(payload(value), operator, payload(operand)) == expected


@pytest.mark.parametrize("operator", sorted(OPERATORS))
@pytest.mark.parametrize("operand", [0, 0.0, "", False])
def test_a_missing_value_satisfies_nothing(operator: str, operand: Any) -> None:
    assert not matches(None, operator, payload(operand))
    assert not matches(payload(None), operator, payload(operand))


@pytest.mark.parametrize("value", [True, "1", [1], {"a": 1}, b"1", None])
@pytest.mark.parametrize("operator", ["==", "!="])
def test_a_value_of_another_kind_than_a_number_satisfies_no_match_with_one(value: Any, operator: str) -> None:
    assert not matches(payload(value), operator, payload(1))


def test_large_texts_are_compared_by_their_content() -> None:
    text = "x" * (BLOB_THRESHOLD + 1)
    assert matches(payload(text), "==", payload(str(text)))
    assert not matches(payload(text), "==", payload(f"{text}y"))
    assert matches(payload(text), "!=", payload("x"))
