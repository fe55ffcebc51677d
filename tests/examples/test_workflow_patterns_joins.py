"""The discriminators and partial joins: WCP-9 and 28 to 32. Times are virtual."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate, permutations

import pytest

from examples.workflow_patterns import (
    wcp_09_structured_discriminator,
    wcp_28_blocking_discriminator,
    wcp_29_cancelling_discriminator,
    wcp_30_structured_partial_join,
    wcp_31_blocking_partial_join,
    wcp_32_cancelling_partial_join,
)
from examples.workflow_patterns.common import Example, Task
from tests.examples.pattern_story import Stage
from tests.world import World, scenario

SECONDS = (1.0, 2.0, 5.0)
ORDERS = tuple(zip(permutations(SECONDS), reversed(list(permutations(SECONDS))), strict=True))[::2]
"""Of two rounds: each of the branches is the first, the second and the last in one of them."""

PACES = (
    [[1.0, 1.0, 1.0], [3.0, 3.0, 3.0], [5.0, 5.0, 5.0]],  # one line far ahead of the others
    [[1.0, 9.0, 1.0], [3.0, 1.0, 9.0], [5.0, 1.0, 1.0]],  # another is first in each round
    [[2.0, 2.0], [2.0, 2.0], [2.0, 2.0]],  # all at the same moment
    [[6.0, 1.0], [1.0, 1.0], [1.0, 1.0]],  # two lines are blocked by the third
)


def round_of(number: int, seconds: tuple[float, ...]) -> list[Task]:
    """The branches of a round; the name of each says its round and how long it takes."""
    return [Task(f"{number}: {second}", second) for second in seconds]


def firings(paces: list[list[float]], needed: int) -> Iterator[tuple[float, set[str]]]:
    """When a blocking join fires in each round, and on which lines, by its rule: a round begins when the one before has
    had an arrival of each line; the n-th arrival of a round that has begun fires; who is early waits for the round."""
    lines = ("left", "middle", "right")
    arrivals = {line: list(accumulate(pauses)) for line, pauses in zip(lines, paces, strict=True)}
    begins = 0.0
    for number in range(len(paces[0])):
        enabled = {line: max(begins, arrivals[line][number]) for line in lines}
        fires = sorted(enabled.values())[needed - 1]
        yield fires, {line for line in lines if enabled[line] <= fires}
        begins = max(enabled.values())


@pytest.mark.parametrize(
    ("example", "needed", "fires", "follows", "branch"),
    [
        (wcp_09_structured_discriminator.example, 1, "First", "Use", "Reply"),
        (wcp_30_structured_partial_join.example, 2, "Quorum", "Act", "CastVote"),
    ],
    ids=["discriminator", "partial join"],
)
@scenario()
async def test_a_structured_join_fires_once_a_round_on_the_first_and_begins_the_next_round_when_all_are_in(
    world: World, example: Example, needed: int, fires: str, follows: str, branch: str
) -> None:
    stage = Stage(world, example)
    for orders in ORDERS:
        rounds = [round_of(number, seconds) for number, seconds in enumerate(orders)]
        story = await stage.play(rounds)
        nth = sorted(SECONDS)[needed - 1]
        assert story.began(follows) == [nth, max(SECONDS) + nth]
        assert story.began("Ask") == [0.0, max(SECONDS)]
        assert len(story.completed(fires)) == 2
        first = [[f"{number}: {second}" for second in sorted(SECONDS)[:needed]] for number in (0, 1)]
        assert story.outputs == (first if needed > 1 else [one for (one,) in first])
        assert len(story.completed(branch)) == 6
        assert story.cancelled() == []


@pytest.mark.parametrize(
    ("example", "needed"),
    [(wcp_09_structured_discriminator.example, 1), (wcp_30_structured_partial_join.example, 2)],
    ids=["discriminator", "partial join"],
)
@scenario()
async def test_a_structured_join_takes_no_more_than_it_needs_when_all_have_arrived_before_it_waits(
    world: World, example: Example, needed: int
) -> None:
    rounds = [round_of(number, (1.0, 1.0, 1.0)) for number in (0, 1)]
    story = await Stage(world, example, slots=1).play(rounds)
    assert [len(taken) if isinstance(taken, list) else 1 for taken in story.outputs] == [needed, needed]


@pytest.mark.parametrize(
    ("example", "needed"),
    [(wcp_28_blocking_discriminator.example, 1), (wcp_31_blocking_partial_join.example, 2)],
    ids=["discriminator", "partial join"],
)
@scenario()
async def test_a_blocking_join_fires_once_a_round_and_holds_early_arrivals_back_until_their_round(
    world: World, example: Example, needed: int
) -> None:
    stage = Stage(world, example)
    for paces in PACES:
        story = await stage.play(paces)
        expected = list(firings(paces, needed))
        assert story.began("Use") == [fires for fires, _ in expected]
        for chosen, (_, enabled) in zip(story.outputs, expected, strict=True):
            lines = set(chosen if isinstance(chosen, list) else [chosen])
            assert len(lines) == needed
            assert lines <= enabled


@pytest.mark.statement("B115")
@scenario()
async def test_a_cancelling_discriminator_goes_on_with_the_first_and_cancels_the_others_of_the_same_split(
    world: World,
) -> None:
    stage = Stage(world, wcp_29_cancelling_discriminator.example)
    for orders in ORDERS:
        later = [tuple(second + 10 for second in orders[1])]
        rounds = [round_of(number, seconds) for number, seconds in enumerate([orders[0], *later])]
        story = await stage.play(rounds)
        assert story.outputs == ["0: 1.0", "1: 11.0"]
        assert story.began("Use") == [1.0, 11.0]
        assert (len(story.completed("Search")), len(story.cancelled("Search"))) == (2, 4)
        assert story.seconds == 11.0


@scenario()
async def test_a_cancelling_discriminator_has_one_winner_when_all_end_at_the_same_moment(world: World) -> None:
    story = await Stage(world, wcp_29_cancelling_discriminator.example).play([round_of(0, (1.0, 1.0, 1.0))])
    assert (len(story.completed("Use")), len(story.cancelled("Search"))) == (1, 2)


@pytest.mark.statement("B115")
@scenario()
async def test_a_cancelling_partial_join_goes_on_with_the_first_two_and_cancels_the_others_of_the_same_split(
    world: World,
) -> None:
    stage = Stage(world, wcp_32_cancelling_partial_join.example)
    for orders in ORDERS:
        later = tuple(second + 10 for second in orders[1])
        story = await stage.play([round_of(0, orders[0]), round_of(1, later)])
        assert story.outputs == [["0: 1.0", "0: 2.0"], ["1: 11.0", "1: 12.0"]]
        assert story.began("Compare") == [2.0, 12.0]
        assert len(story.cancelled("MakeOffer")) == 2
        assert story.seconds == 12.0


@scenario()
async def test_a_cancelling_partial_join_fires_once_when_all_arrive_at_the_same_moment(world: World) -> None:
    tasks = [round_of(number, (1.0, 1.0, 1.0)) for number in (0, 1)]
    story = await Stage(world, wcp_32_cancelling_partial_join.example).play(tasks)
    assert [len(chosen) for chosen in story.outputs] == [2, 2]
    assert [sorted({name[0] for name in chosen}) for chosen in story.outputs] in ([["0"], ["1"]], [["1"], ["0"]])
