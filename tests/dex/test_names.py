"""What may be a Flow ID, and how physical names are made."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dex.names import check_flow_id, physical_name, split_physical_name


@pytest.mark.statement("D13")
@pytest.mark.parametrize(
    "flow_id",
    ["order-17", "a/b:c#d?e%f@g", "\"quoted\" 'id'", " ", "日本語", "😀", "x" * 1000, "SubFlow:parent-Step-1-0", "a$b"],
)
def test_any_text_is_a_flow_id(flow_id: str) -> None:
    assert check_flow_id(flow_id) == flow_id


@pytest.mark.statement("D13")
@pytest.mark.parametrize(
    ("flow_id", "words"),
    [
        ("", "must not be empty"),
        ("x" * 1001, "at most 1000 characters, got 1001"),
        ("a\x00b", "control characters: '\\\\x00' at position 1"),
        ("a\nb", "control characters"),
        ("a\x7f", "control characters"),
        ("a\x85", "control characters"),
        ("\ud800", "control characters"),
    ],
)
def test_a_flow_id_is_neither_empty_nor_long_nor_unprintable(flow_id: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        check_flow_id(flow_id)


def test_a_flow_id_is_text() -> None:
    with pytest.raises(TypeError, match="a Flow ID is a str, got int: 5"):
        check_flow_id(5)


@given(st.text(min_size=1).filter(lambda text: "/" not in text and not any(0xD800 <= ord(c) < 0xE000 for c in text)))
def test_an_instance_is_read_back_from_its_physical_name(instance: str) -> None:
    physical = physical_name("name", instance)
    assert physical.isascii()
    assert split_physical_name(physical) == ("name", instance)


def test_a_plain_definition_s_physical_name_is_its_name() -> None:
    assert split_physical_name(physical_name("name with % in it")) == ("name with % in it", None)
