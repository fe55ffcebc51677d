"""How annotations of handlers are read: strings, names known to type checkers only, generic bases, equal types
written differently.
"""

from __future__ import annotations

import typing
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, Generic, Optional, TypeVar

import pytest

from dex import Flow, Registry, Step, StepDecision, StepList, dead_end
from dex._annotations import argument_of, same_type
from dex.step import InputT

if TYPE_CHECKING:
    from dex import Context

T = TypeVar("T")
U = TypeVar("U")


class Middle(Step[dict[U, T]], Generic[T, U]):
    pass


class Bottom(Middle[int, str]):
    def execute(self, context: Context, input: dict[str, int]) -> StepDecision:
        return dead_end()


class Other:
    def execute(self, context: Context, input: Forward) -> StepDecision:
        return dead_end()


class ByName(Other, Step["Forward"]):
    pass


class Forward(typing.NamedTuple):
    x: int


class BottomFlow(Flow[dict[str, int]]):
    def get_steps(self) -> StepList[dict[str, int]]:
        return StepList.start_step(Bottom())


class ForwardFlow(Flow[Any]):
    def get_steps(self) -> StepList[Any]:
        return StepList.start_step(ByName())


def test_the_context_may_be_imported_for_type_checkers_only() -> None:
    assert Registry([BottomFlow()]).find_step("BottomFlow", Bottom).input_type == dict[str, int]


def test_type_variables_are_followed_through_bases() -> None:
    assert argument_of(Bottom, Step, InputT) == dict[str, int]
    assert argument_of(Middle, Step, InputT) is None


def test_forward_references_and_inherited_handlers_are_resolved() -> None:
    assert Registry([ForwardFlow()]).find_step("ForwardFlow", "ByName").input_type is Forward


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (list[int], typing.List[int]),  # noqa: UP006
        (Optional[int], int | None),  # noqa: UP045
        (int | str, str | int),
        (None, type(None)),
        (Annotated[int, "note"], int),
        (dict[str, list[int | None]], typing.Dict[str, typing.List[Optional[int]]]),  # noqa: UP006, UP045
    ],
)
def test_types_that_mean_the_same_are_the_same(one: Any, other: Any) -> None:
    assert same_type(one, other)
    assert same_type(other, one)


@pytest.mark.parametrize(
    ("one", "other"),
    [(int, str), (list[int], list[str]), (list[int], list), (int | None, int), (list[int], Sequence[int]), (bool, int)],
)
def test_types_that_differ_are_not(one: Any, other: Any) -> None:
    assert not same_type(one, other)
    assert not same_type(other, one)
