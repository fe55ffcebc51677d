"""Classes change; what was stored before can still be read."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field, make_dataclass
from typing import Any, NamedTuple

import pydantic
import pytest

from dex.errors import ValueMappingError
from dex.values import CodecRegistry

from .models import Color, Item, Paid, Refused


def reread(value: Any, before: Any, after: Any) -> Any:
    registry = CodecRegistry()
    return registry.decode(registry.encode(value, before, where="value"), after, where="value")


enum_of: Any = enum.Enum


def test_a_new_field_takes_its_default_in_old_data() -> None:
    old = make_dataclass("Customer", [("name", str)])
    new = make_dataclass("Customer", [("name", str), ("tags", list[str], field(default_factory=list)), ("age", int, 3)])
    assert reread(old("a"), old, new) == new("a", [], 3)


def test_a_field_that_is_gone_is_ignored() -> None:
    old = make_dataclass("Customer", [("name", str), ("age", int)])
    new = make_dataclass("Customer", [("name", str)])
    assert reread(old("a", 3), old, new) == new("a")


def test_a_new_field_without_a_default_is_named_in_the_error() -> None:
    old = make_dataclass("Customer", [("name", str)])
    new = make_dataclass("Customer", [("name", str), ("age", int)])
    with pytest.raises(ValueMappingError, match=r"decode: value\[0\].age: a .*Customer needs this field"):
        reread([old("a")], list[old], list[new])  # type: ignore[valid-type]


def test_a_field_that_changed_its_type_is_named_in_the_error() -> None:
    old = make_dataclass("Customer", [("age", int)])
    new = make_dataclass("Customer", [("age", str)])
    with pytest.raises(ValueMappingError, match=r"decode: value.age: expected str, got int 3"):
        reread(old(3), old, new)


def test_a_type_can_be_widened() -> None:
    assert reread(3, int, int | None) == 3
    assert reread(3, int, int | str) == 3
    assert reread(Paid(1), Paid, Paid | Refused) == Paid(1)
    assert reread(Refused(1, "r"), Refused, Paid | Refused | None) == Refused(1, "r")
    assert reread([1], list[int], Any) == [1]


def test_an_old_member_of_a_union_that_is_gone_is_named_in_the_error() -> None:
    with pytest.raises(
        ValueMappingError, match=r"value: the data is of class Refused, which is none of .*Paid . .*Item"
    ):
        reread(Refused(1), Paid | Refused, Paid | Item)


def test_the_one_class_of_a_union_can_be_renamed() -> None:
    renamed = make_dataclass("Settled", [("amount", int)])
    registry = CodecRegistry()
    assert registry.decode(registry.encode_dynamic(Paid(1), where="v"), renamed | int, where="v") == renamed(1)


def test_an_enum_member_is_found_by_its_name_and_else_by_its_value() -> None:
    renumbered: Any = enum_of("Color", {"BLUE": 1, "RED": 2})
    renamed: Any = enum_of("Color", {"SCARLET": "red"})
    gone: Any = enum_of("Color", {"BLUE": "blue"})
    assert reread(Color.RED, Color, renumbered) is renumbered["RED"]
    assert reread(Color.RED, Color, renamed) is renamed["SCARLET"]
    with pytest.raises(ValueMappingError, match="no member named 'RED' and none of value 'red'; it has BLUE"):
        reread(Color.RED, Color, gone)


def test_a_named_tuple_and_a_pydantic_model_take_defaults_too() -> None:
    class Before(pydantic.BaseModel):
        name: str
        gone: int = 0

    class After(pydantic.BaseModel):
        name: str
        added: list[int] = pydantic.Field(default_factory=lambda: [1])

    class Wide(NamedTuple):
        name: str
        added: int = 7

    assert reread(Before(name="a"), Before, After) == After(name="a")
    assert reread(Before(name="a"), Before, Wide) == Wide("a")


def test_a_validator_that_refuses_old_data_says_so_with_the_place() -> None:
    @dataclass
    class Positive:
        amount: int

        def __post_init__(self) -> None:
            if self.amount < 0:
                raise ValueError("amount is negative")

    with pytest.raises(
        ValueMappingError, match=r"value\[1\]: .*Positive refused its fields: ValueError: amount is neg"
    ):
        reread([Paid(1), Paid(-1)], list[Paid], list[Positive])


def test_a_dataclass_with_an_init_of_its_own_is_rebuilt_field_by_field() -> None:
    @dataclass(init=False)
    class Own:
        a: int
        b: int = 2

        def __init__(self, text: str) -> None:
            self.a = len(text)

    assert reread(Own("abc"), Own, Own) == Own("abc")


def test_what_a_dataclass_computed_for_itself_is_kept_and_computed_where_it_is_missing() -> None:
    @dataclass
    class Counted:
        text: str
        size: int = field(init=False)

        def __post_init__(self) -> None:
            self.size = len(self.text)

    changed = Counted("abc")
    changed.size = 99
    assert reread(changed, Counted, Counted).size == 99
    assert reread({"text": "abc"}, dict[str, str], Counted).size == 3
