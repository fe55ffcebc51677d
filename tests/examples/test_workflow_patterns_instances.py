"""The patterns of multiple instances: WCP-12 to 15, 26, 27 and 34 to 36. Times are virtual."""

from __future__ import annotations

from itertools import permutations

import pytest

from dex import AsyncClient, FlowNotActiveOrNotFoundError, RpcLockConflictError
from examples.workflow_patterns import (
    wcp_12_multiple_instances_without_synchronization,
    wcp_13_multiple_instances_known_at_design_time,
    wcp_14_multiple_instances_known_at_run_time,
    wcp_15_multiple_instances_without_knowledge,
    wcp_26_cancel_multiple_instance_activity,
    wcp_27_complete_multiple_instance_activity,
    wcp_34_static_partial_join,
    wcp_35_cancelling_partial_join_for_instances,
    wcp_36_dynamic_partial_join,
)
from examples.workflow_patterns.common import Task
from examples.workflow_patterns.wcp_15_multiple_instances_without_knowledge import Witness, hearing_flow, hearing_of
from examples.workflow_patterns.wcp_34_static_partial_join import Series
from examples.workflow_patterns.wcp_35_cancelling_partial_join_for_instances import Search
from tests.examples.pattern_story import Meanwhile, Stage, Story, at
from tests.world import World, scenario

SECONDS = (1.0, 2.0, 5.0)
ORDERS = ((1.0, 2.0, 5.0), (2.0, 5.0, 1.0), (5.0, 1.0, 2.0))


def tasks(*seconds: float) -> list[Task]:
    """Tasks that are called by how long they take."""
    return [Task(str(second), second) for second in seconds]


@scenario()
async def test_instances_without_synchronization_run_at_once_and_hold_up_nothing(world: World) -> None:
    stage = Stage(world, wcp_12_multiple_instances_without_synchronization.example)
    for seconds in ((), (3.0,), SECONDS, (1.0,) * 20):
        story = await stage.play(tasks(*seconds))
        assert story.ended("FileCase") == [0.0]
        assert story.began("SendLetter") == [0.0] * len(seconds)
        assert story.ended("SendLetter") == sorted(seconds)
        assert story.seconds == max(seconds, default=0.0)


@scenario()
async def test_instances_known_at_design_time_are_all_joined(world: World) -> None:
    stage = Stage(world, wcp_13_multiple_instances_known_at_design_time.example)
    for seconds in (*permutations(SECONDS), (2.0, 2.0, 2.0)):
        story = await stage.play(list(seconds))
        assert story.completed("Decide") == ["Decide-1"]
        assert story.ended("Decide") == [max(seconds)]
        assert story.outputs == [sorted(seconds)]


@scenario()
async def test_as_many_instances_as_the_data_ask_for_are_all_joined(world: World) -> None:
    stage = Stage(world, wcp_14_multiple_instances_known_at_run_time.example)
    for seconds in ((), (3.0,), SECONDS, tuple(reversed(SECONDS)), (1.0,) * 8):
        story = await stage.play(tasks(*seconds))
        assert story.began("Compare") == [max(seconds, default=0.0)]
        assert story.outputs == [[str(second) for second in seconds]]


@scenario()
async def test_an_instance_that_fails_is_joined_too(world: World) -> None:
    story = await Stage(world, wcp_14_multiple_instances_known_at_run_time.example).play([Task("", 9.0), *tasks(1.0)])
    assert story.began("Compare") == [9.0]
    assert story.outputs == [["1.0"]]


def hear_also(name: str, seconds: float, answers: list[bool]) -> Meanwhile:
    """Adds a witness from outside; notes down whether that was accepted."""

    async def add(client: AsyncClient, flow_id: str) -> None:
        try:
            answer = await client.invoke_rpc(hearing_flow.add, hearing_of(flow_id), Witness(name, seconds))
        except FlowNotActiveOrNotFoundError:
            answer = False
        answers.append(answer)

    return add


@scenario()
async def test_instances_that_others_bring_up_are_joined_too(world: World) -> None:
    stage = Stage(world, wcp_15_multiple_instances_without_knowledge.example)
    deep = Witness("a", 1.0, [Witness("b", 2.0, [Witness("c", 3.0)]), Witness("d", 1.0)])
    story = await stage.play(deep)
    assert story.began("Judge") == [6.0]
    assert sorted(story.outputs[0]) == ["a", "b", "c", "d"]


@scenario()
async def test_an_instance_added_before_the_last_has_completed_is_joined_and_a_later_one_is_refused(
    world: World,
) -> None:
    stage = Stage(world, wcp_15_multiple_instances_without_knowledge.example)
    answers: list[bool] = []
    adds = ((0.5, "early"), (2.9, "last moment"), (4.8, "in the added time"), (7.5, "late"))
    meanwhile = at(*((when, hear_also(name, 2.0, answers)) for when, name in adds))
    story = await stage.play(Witness("a", 3.0), meanwhile)
    assert answers == [True, True, True, False]
    assert story.completed("Judge") == ["Judge-1"]
    assert story.began("Judge") == [6.8]
    assert sorted(story.outputs[0]) == ["a", "early", "in the added time", "last moment"]


@pytest.mark.statement("B128")
@scenario()
async def test_an_instance_added_at_the_very_moment_of_the_end_is_joined_or_refused_never_lost(world: World) -> None:
    stage = Stage(world, wcp_15_multiple_instances_without_knowledge.example)
    outcomes = set()
    for hurry in range(-2, 3):
        answers: list[bool] = []
        story = await stage.play(Witness("a", 1.0), at((1.0 + hurry / 1_000_000, hear_also("b", 1.0, answers))))
        assert story.outputs[0] == (["a", "b"] if answers == [True] else ["a"])
        outcomes.add(answers[0])
    assert outcomes == {True, False}, "the moments that were tried lie on one side of the end"


async def abort(client: AsyncClient, flow_id: str) -> None:
    await client.publish(flow_id, wcp_26_cancel_multiple_instance_activity.abort, None)


@scenario()
async def test_cancelling_instances_withdraws_all_that_are_open_and_what_would_have_followed(world: World) -> None:
    stage = Stage(world, wcp_26_cancel_multiple_instance_activity.example)
    for when in (0.0, 0.5, 1.5, 4.5):
        story = await stage.play(tasks(*SECONDS), at((when, abort)))
        assert story.ended("Probe") == [second for second in SECONDS if second <= when]
        assert len(story.cancelled("Probe")) == sum(second > when for second in SECONDS)
        assert story.completed("Evaluate") == []
        assert (story.outputs, story.seconds) == (["aborted"], when)


@scenario()
async def test_instances_that_nobody_cancels_are_joined(world: World) -> None:
    story = await Stage(world, wcp_26_cancel_multiple_instance_activity.example).play(tasks(*SECONDS))
    assert (story.outputs, story.seconds, story.cancelled()) == (["evaluated"], 5.0, ["Abort-1"])


async def enough(client: AsyncClient, flow_id: str) -> None:
    await client.publish(flow_id, wcp_27_complete_multiple_instance_activity.enough, None)


@scenario()
async def test_completing_instances_withdraws_those_that_are_open_and_goes_on_once_with_what_there_is(
    world: World,
) -> None:
    stage = Stage(world, wcp_27_complete_multiple_instance_activity.example)
    for when in (0.0, 0.5, 1.5, 4.5):
        story = await stage.play(tasks(*SECONDS), at((when, enough)))
        done = [second for second in SECONDS if second <= when]
        assert story.began("Evaluate") == [when]
        assert story.outputs == [[str(second) for second in done]]
        assert len(story.cancelled("Probe")) == 3 - len(done)
        assert story.seconds == when


@scenario()
async def test_completing_instances_at_the_moment_when_the_last_completes_goes_on_once_with_all(world: World) -> None:
    stage = Stage(world, wcp_27_complete_multiple_instance_activity.example)
    left = await stage.play(tasks(*SECONDS))
    assert (left.began("Evaluate"), left.outputs) == ([5.0], [["1.0", "2.0", "5.0"]])
    for hurry in range(-2, 3):
        story = await stage.play(tasks(*SECONDS), at((5.0 + hurry / 1_000_000, swallowed(enough))))
        assert story.completed("Evaluate") == ["Evaluate-1"]
        assert story.outputs[0][:2] == ["1.0", "2.0"]


def swallowed(act: Meanwhile) -> Meanwhile:
    """The act, which may come after the end."""

    async def happen(client: AsyncClient, flow_id: str) -> None:
        try:
            await act(client, flow_id)
        except FlowNotActiveOrNotFoundError:
            return

    return happen


@scenario()
async def test_a_static_partial_join_goes_on_after_n_instances_ignores_the_rest_and_can_be_done_anew(
    world: World,
) -> None:
    stage = Stage(world, wcp_34_static_partial_join.example)
    for needed in (1, 2, 3):
        for order in ORDERS:
            story = await stage.play([Series(needed, tasks(*order)), Series(1, tasks(7.0, 6.0))])
            nth = SECONDS[needed - 1]
            assert story.began("Analyse") == [nth, 5.0 + 6.0]
            assert story.outputs == [[str(second) for second in SECONDS[:needed]], ["6.0"]]
            assert story.ended("TakeSample") == [*SECONDS, 5.0 + 6.0, 5.0 + 7.0]
            assert story.began("Begin") == [0.0, 5.0]


@scenario()
async def test_a_cancelling_partial_join_of_instances_goes_on_after_n_and_cancels_the_rest(world: World) -> None:
    stage = Stage(world, wcp_35_cancelling_partial_join_for_instances.example)
    for needed in (1, 2, 3):
        for order in ORDERS:
            story = await stage.play(Search(needed, tasks(*order)))
            assert story.began("Compare") == [SECONDS[needed - 1]]
            assert story.outputs == [[str(second) for second in SECONDS[:needed]]]
            assert len(story.cancelled("Train")) == 3 - needed
            assert story.seconds == SECONDS[needed - 1]


def one_more(gift: str, seconds: float, answers: list[bool | str]) -> Meanwhile:
    async def add(client: AsyncClient, flow_id: str) -> None:
        try:
            answer: bool | str = await client.invoke_rpc(
                wcp_36_dynamic_partial_join.flow.add, flow_id, Task(gift, seconds)
            )
        except RpcLockConflictError:
            answer = "locked"
        answers.append(answer)

    return add


async def dynamic(world: World, gifts: list[Task], *adds: tuple[float, str, float]) -> tuple[Story, list[bool | str]]:
    answers: list[bool | str] = []
    meanwhile = at(*((when, one_more(gift, seconds, answers)) for when, gift, seconds in adds))
    return await Stage(world, wcp_36_dynamic_partial_join.example).play(gifts, meanwhile), answers


@scenario()
async def test_a_dynamic_partial_join_goes_on_once_when_the_condition_holds_and_ignores_later_instances(
    world: World,
) -> None:
    story, _ = await dynamic(world, [Task("60", 1.0), Task("50", 2.0), Task("90", 3.0), Task("20", 9.0)])
    assert story.outputs == [110]
    assert story.began("Build") == [2.1]
    assert story.ended("AskDonor") == [1.0, 2.0, 3.0, 9.0]
    assert story.completed("Build") == ["Build-1"]


@scenario()
async def test_instances_can_be_added_to_a_dynamic_partial_join_until_its_condition_holds(world: World) -> None:
    adds = ((0.5, "60", 1.0), (2.05, "500", 0.0), (2.5, "500", 0.0))
    story, answers = await dynamic(world, [Task("20", 1.0), Task("10", 2.0), Task("1", 5.0)], *adds)
    assert answers == [True, "locked", True]
    assert story.outputs == [590]
    assert story.began("Build") == [2.6]


@scenario()
async def test_no_instance_can_be_added_to_a_dynamic_partial_join_while_it_decides_or_after(world: World) -> None:
    adds = ((1.05, "1", 1.0), (1.2, "1", 1.0), (3.0, "1", 1.0))
    story, answers = await dynamic(world, [Task("100", 1.0), Task("5", 4.0)], *adds)
    assert answers == ["locked", False, False]
    assert story.outputs == [100]
    assert len(story.completed("AskDonor")) == 2


@scenario()
async def test_a_dynamic_partial_join_judges_each_completion(world: World) -> None:
    story, _ = await dynamic(world, [Task("40", 1.0) for _ in range(5)])
    assert story.outputs == [120]
    assert [round(judged) for judged in story.inputs("Judge")] == [0, 40, 80]
