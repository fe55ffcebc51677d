"""The basic patterns, and those that branch and merge: WCP-1 to 8, 33, 37, 38, 41 and 42. Times are virtual."""

from __future__ import annotations

from itertools import chain, combinations, permutations, product

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from examples.workflow_patterns import (
    wcp_01_sequence,
    wcp_02_parallel_split,
    wcp_03_synchronization,
    wcp_04_exclusive_choice,
    wcp_05_simple_merge,
    wcp_06_multi_choice,
    wcp_07_structured_synchronizing_merge,
    wcp_08_multi_merge,
    wcp_33_generalised_and_join,
    wcp_37_local_synchronizing_merge,
    wcp_38_general_synchronizing_merge,
    wcp_41_thread_merge,
    wcp_42_thread_split,
)
from examples.workflow_patterns.common import Task
from examples.workflow_patterns.wcp_37_local_synchronizing_merge import Plan
from examples.workflow_patterns.wcp_38_general_synchronizing_merge import Turn
from tests.examples.pattern_story import Stage
from tests.world import World, scenario

SECONDS = (1.0, 2.0, 5.0)
"""Durations of three branches; tests take them in every order."""


@scenario()
async def test_a_sequence_begins_each_step_when_the_one_before_has_completed(world: World) -> None:
    story = await Stage(world, wcp_01_sequence.example).play("a lamp")
    assert story.completed() == ["Pick-1", "Pack-1", "Ship-1"]
    assert story.outputs == ["a lamp, picked, packed, shipped"]
    assert story.began() == [0.0, *story.ended("Pick", "Pack")]


@scenario()
async def test_a_parallel_split_takes_every_branch_and_all_at_once(world: World) -> None:
    story = await Stage(world, wcp_02_parallel_split.example).play()
    assert sorted(story.completed()) == ["Invoice-1", "Pack-1", "TakeOrder-1", "TellCustomer-1"]
    branches = story.spans("Pack", "Invoice", "TellCustomer")
    assert [began for began, _ in branches] == [0.0, 0.0, 0.0]
    assert story.seconds == wcp_02_parallel_split.SECONDS


@scenario()
async def test_a_synchronization_goes_on_once_when_both_branches_have_completed(world: World) -> None:
    stage = Stage(world, wcp_03_synchronization.example)
    for seconds in ([1.0, 3.0], [3.0, 1.0], [2.0, 2.0]):
        story = await stage.play(seconds)
        assert story.completed("Ship") == ["Ship-1"]
        assert story.spans("Ship") == [(max(seconds), max(seconds))]
        assert story.outputs == ["shipped"]


@scenario()
async def test_an_exclusive_choice_takes_exactly_one_branch(world: World) -> None:
    stage = Stage(world, wcp_04_exclusive_choice.example)
    for amount, branch in ((0, "PayOut-1"), (99, "PayOut-1"), (100, "AskManager-1"), (999, "AskManager-1")):
        assert (await stage.play(amount)).completed() == ["Judge-1", branch]
    assert (await stage.play(1000)).completed() == ["Judge-1", "SendInspector-1"]


@scenario()
async def test_a_simple_merge_does_what_follows_once_whichever_branch_was_taken(world: World) -> None:
    stage = Stage(world, wcp_05_simple_merge.example)
    cash, card = await stage.play("cash"), await stage.play("card")
    assert cash.completed() == ["Choose-1", "TakeCash-1", "Receipt-1"]
    assert card.completed() == ["Choose-1", "ChargeCard-1", "Receipt-1"]
    assert cash.outputs + card.outputs == ["received 10 in cash", "received 10 by card"]


@scenario()
async def test_a_multi_choice_takes_exactly_the_branches_whose_conditions_hold_and_a_default_without_any(
    world: World,
) -> None:
    stage = Stage(world, wcp_06_multi_choice.example)
    crews = {"fire": "SendEngine", "injury": "SendAmbulance", "theft": "SendPolice"}
    for troubles in chain.from_iterable(combinations(crews, size) for size in range(4)):
        story = await stage.play([*troubles, "noise"])
        assert sorted(story.outputs) == sorted(crews[trouble] for trouble in troubles) or story.outputs == ["CallBack"]
        assert len(story.outputs) == max(1, len(troubles))


@scenario()
async def test_a_structured_synchronizing_merge_waits_for_the_branches_that_were_taken_and_for_no_other(
    world: World,
) -> None:
    stage = Stage(world, wcp_07_structured_synchronizing_merge.example)
    crews = [Task("engine", 1.0), Task("ambulance", 2.0), Task("police", 5.0)]
    for chosen in chain(*(combinations(crews, size) for size in (1, 2, 3)), [(crews[2], crews[0], crews[1])]):
        story = await stage.play(list(chosen))
        assert story.completed() == ["Dispatch-1", "CloseCall-1"]
        assert story.began("CloseCall") == [max(crew.seconds for crew in chosen)]
        assert story.outputs == [[f"{crew.name} is back" for crew in chosen]]


@pytest.mark.statement("B105")
@scenario()
async def test_a_multi_merge_does_what_follows_once_for_each_branch_without_waiting_for_the_others(
    world: World,
) -> None:
    stage = Stage(world, wcp_08_multi_merge.example)
    for seconds in (*permutations(SECONDS), (1.0, 1.0, 1.0)):
        story = await stage.play([Task(str(second), second) for second in seconds])
        assert len(story.completed("Audit")) == 3
        assert story.began("Audit") == sorted(seconds)
        assert sorted(story.outputs) == sorted(str(second) for second in seconds)


@scenario()
async def test_a_generalised_and_join_keeps_arrivals_that_are_early_and_fires_for_each_complete_set(
    world: World,
) -> None:
    stage = Stage(world, wcp_33_generalised_and_join.example)
    for pauses in ([[1.0, 1.0, 1.0], [5.0, 1.0, 1.0]], [[4.0, 4.0], [1.0, 1.0, 1.0]], [[1.0, 7.0], [3.0, 2.0]]):
        frames, wheels = ([sum(line[: number + 1]) for number in range(len(line))] for line in pauses)
        story = await stage.play(pauses)
        assert story.ended("Assemble") == [max(pair) for pair in zip(frames, wheels, strict=False)]
        assert story.outputs == ["all assembled"]


@scenario()
async def test_a_local_synchronizing_merge_waits_for_all_paths_that_are_alive_and_for_none_that_is_dead(
    world: World,
) -> None:
    stage = Stage(world, wcp_37_local_synchronizing_merge.example)
    for survey, drill, sample in product((True, False), repeat=3):
        for seconds in ((1.0, 2.0, 5.0), (1.0, 5.0, 2.0), (5.0, 1.0, 2.0)):
            story = await stage.play(Plan(survey, drill, sample, seconds))
            surveyed = ["deep" if drill else "shallow"] if survey else []
            assert story.completed("Merge") == ["Merge-1"]
            assert story.outputs == [surveyed + ["sample"] * sample]
            survey_seconds = (seconds[0] + seconds[1] * drill) * survey
            assert story.ended("Merge") == [max(survey_seconds, seconds[2] * sample)]


turns = st.recursive(
    st.builds(Turn, st.sampled_from(["write", "test"]), st.sampled_from(SECONDS)),
    lambda inner: st.builds(
        Turn, st.sampled_from(["write", "test"]), st.sampled_from(SECONDS), st.lists(inner, max_size=3)
    ),
    max_leaves=8,
)


def longest(turn: Turn) -> float:
    return turn.seconds + max(map(longest, turn.then), default=0.0)


@scenario()
async def test_a_general_synchronizing_merge_waits_until_nothing_can_arrive_any_more(world: World) -> None:
    stage = Stage(world, wcp_38_general_synchronizing_merge.example)
    around = Turn("write", 1.0, [Turn("test", 1.0, [Turn("write", 1.0, [Turn("test", 2.0)])])])
    several = Turn("write", 1.0, [around, Turn("test", 1.0, [Turn("test", 5.0), Turn("write", 1.0)])])
    for way in (Turn("write", 1.0), around, several, Turn("write", 2.0, [several, several])):
        story = await stage.play(way)
        assert story.completed() == ["Develop-1", "Release-1"]
        assert story.began("Release") == [longest(way)]


def test_a_general_synchronizing_merge_fires_once_for_any_branches_and_cycles(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    @settings(max_examples=10, deadline=None, suppress_health_check=list(HealthCheck))
    @given(turns)
    def holds(way: Turn) -> None:
        @scenario()
        async def once(world: World) -> None:
            story = await Stage(world, wcp_38_general_synchronizing_merge.example).play(way)
            assert story.completed() == ["Develop-1", "Release-1"]
            assert story.began("Release") == [longest(way)]

        once(where="in-process", tmp_path=tmp_path_factory.mktemp("merge"))

    holds()


@scenario()
async def test_a_thread_merge_makes_one_thread_of_each_three(world: World) -> None:
    stage = Stage(world, wcp_41_thread_merge.example)
    for order in permutations((1.0, 2.0, 4.0)):
        eggs = [*order, *(seconds + 10 for seconds in order)]
        story = await stage.play([Task(str(seconds), seconds) for seconds in eggs])
        assert story.began("SellBox") == [4.0, 14.0]
        assert story.outputs == [["1.0", "2.0", "4.0"], ["11.0", "12.0", "14.0"]]


@scenario()
async def test_a_thread_merge_takes_no_more_than_three_when_all_threads_are_there_before_it(world: World) -> None:
    story = await Stage(world, wcp_41_thread_merge.example, slots=1).play([Task(str(egg), 1.0) for egg in range(6)])
    assert story.outputs == [["0", "1", "2"], ["3", "4", "5"]]


@scenario()
async def test_a_thread_split_starts_the_given_number_of_threads_and_each_goes_its_whole_way(world: World) -> None:
    stage = Stage(world, wcp_42_thread_split.example)
    for number in (1, 2, 7):
        story = await stage.play(number)
        assert len(story.completed("Draw")) == len(story.completed("Cut")) == number
        assert sorted(story.outputs) == list(range(number))
