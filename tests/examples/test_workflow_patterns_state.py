"""The state-based patterns: WCP-16 to 18, 39 and 40. Times are virtual."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import permutations

import pytest

from dex import AsyncClient, Channel, FlowNotActiveOrNotFoundError
from examples.workflow_patterns import (
    wcp_16_deferred_choice,
    wcp_17_interleaved_parallel_routing,
    wcp_18_milestone,
    wcp_39_critical_section,
    wcp_40_interleaved_routing,
)
from examples.workflow_patterns.common import Task
from examples.workflow_patterns.wcp_16_deferred_choice import accepted, declined
from examples.workflow_patterns.wcp_18_milestone import wish
from tests.examples.pattern_story import Meanwhile, Stage, at, overlapping
from tests.world import World, scenario

DAY = 86_400.0


def says(channel: Channel[str], *values: str) -> Meanwhile:
    """Publishes; a Flow that has ended hears nothing."""

    async def publish(client: AsyncClient, flow_id: str) -> None:
        try:
            await client.publish(flow_id, channel, *values)
        except FlowNotActiveOrNotFoundError:
            return

    return publish


@pytest.mark.statement("B83", "B88")
@scenario()
async def test_a_deferred_choice_is_made_by_the_first_event_and_withdraws_the_others(world: World) -> None:
    stage = Stage(world, wcp_16_deferred_choice.example)
    yes, no = says(accepted, "Ada"), says(declined, "Ada")
    stories = {
        "accepted": await stage.play(2, at((DAY, yes))),
        "declined": await stage.play(2, at((DAY, no))),
        "declined first": await stage.play(2, at((DAY, no), (DAY + 0.001, yes))),
        "too late": await stage.play(2, at((2 * DAY + 1, yes)), timeout=9 * DAY),
    }
    assert {name: story.outputs for name, story in stories.items()} == {
        "accepted": ["Ada is hired"],
        "declined": ["Ada declined"],
        "declined first": ["Ada declined"],
        "too late": ["nobody answered"],
    }
    assert {name: story.seconds / DAY for name, story in stories.items()} == {
        "accepted": 1.0,
        "declined": 1.0,
        "declined first": 1.0,
        "too late": 2.0,
    }
    assert all(len(story.completed()) == 2 for story in stories.values()), "more than one alternative was taken"


@scenario()
async def test_a_deferred_choice_takes_one_alternative_when_the_events_come_at_one_moment(world: World) -> None:
    stage = Stage(world, wcp_16_deferred_choice.example)
    for first, second in permutations((says(accepted, "Ada"), says(declined, "Ada"))):
        story = await stage.play(2, at((2 * DAY, first), (2 * DAY, second)), timeout=9 * DAY)
        assert len(story.completed("Hire", "OfferToNext")) == 1


def in_order(names: Iterable[str], *pairs: tuple[str, str]) -> bool:
    places = {name: place for place, name in enumerate(names)}
    return all(places[one] < places[other] for one, other in pairs)


@pytest.mark.statement("B194", "B196")
@scenario()
async def test_interleaved_parallel_routing_keeps_the_order_of_each_branch_and_never_does_two_things_at_once(
    world: World,
) -> None:
    stage = Stage(world, wcp_17_interleaved_parallel_routing.example)
    examinations = ("TakeBlood", "Transfuse", "XRay", "SetBone")
    for seconds in permutations((0.5, 1.0, 2.0, 4.0)):
        story = await stage.play(list(seconds))
        done = story.completed(*examinations)
        assert sorted(done) == sorted(f"{name}-1" for name in examinations)
        assert in_order(done, ("TakeBlood-1", "Transfuse-1"), ("XRay-1", "SetBone-1"))
        assert overlapping(story.spans(*examinations)) == []
        assert story.seconds == sum(seconds)


@pytest.mark.statement("B194", "B196")
@scenario()
async def test_interleaved_routing_does_each_thing_once_never_two_at_once_and_then_goes_on(world: World) -> None:
    stage = Stage(world, wcp_40_interleaved_routing.example)
    checks = ("CheckOil", "CheckBelt", "CheckFilter")
    for seconds in permutations((1.0, 2.0, 5.0)):
        story = await stage.play(list(seconds))
        assert sorted(story.outputs[0]) == sorted(checks)
        assert overlapping(story.spans(*checks)) == []
        assert story.ended("Start") == [sum(seconds)]


@scenario()
async def test_at_a_milestone_the_activity_is_possible_while_the_state_lasts_and_only_then(world: World) -> None:
    stage = Stage(world, wcp_18_milestone.example)
    for when, changed in ((0.5, [2.0]), (2.5, [2.5]), (4.2, [4.2]), (6.5, []), (60.0, [])):
        story = await stage.play(None, at((when, says(wish, "a red one"))))
        assert [began for began, _ in story.spans("Change")] == changed
        assert story.completed("Ship") == ["Ship-1"]
        assert story.seconds == 6.0


@scenario()
async def test_a_milestone_does_not_pass_in_the_middle_of_the_activity(world: World) -> None:
    stage = Stage(world, wcp_18_milestone.example)
    for when in (4.6, 5.0, 5.9, 5.999999):
        story = await stage.play(None, at((when, says(wish, "a red one"))))
        change, ship = story.spans("Change"), story.spans("Ship")
        assert len(change) == len(ship) == 1
        assert story.cancelled() == ["Change-2"]
        assert ship[0][0] == change[0][1] == round(when + wcp_18_milestone.CHANGE_SECONDS, 3)


@scenario()
async def test_the_activity_is_possible_again_and_again_while_the_milestone_lasts(world: World) -> None:
    wishes = at((2.1, says(wish, "red", "blue")), (5.95, says(wish, "green")))
    story = await Stage(world, wcp_18_milestone.example).play(None, wishes)
    assert story.spans("Change") == [(2.1, 3.6), (3.6, 5.1), (5.95, 7.45)]
    assert story.seconds == 7.45


@pytest.mark.statement("B231", "B233")
@scenario()
async def test_who_has_begun_a_critical_section_ends_it_before_another_begins(world: World) -> None:
    stage = Stage(world, wcp_39_critical_section.example)
    for seconds in permutations((1.0, 2.0, 5.0)):
        story = await stage.play([Task(str(second), second) for second in seconds])
        assert sorted(story.outputs) == ["1.0", "2.0", "5.0"]
        began = [span[0] for span in story.spans("Remove")]
        ended = [span[1] for span in story.spans("Insert")]
        assert overlapping(list(zip(began, ended, strict=True))) == []
        assert story.seconds == 2 * sum(seconds)


@pytest.mark.statement("B236")
@scenario()
async def test_who_fails_in_a_critical_section_lets_the_next_one_in(world: World) -> None:
    story = await Stage(world, wcp_39_critical_section.example).play(
        [Task("broken", 1.0), Task("lamp", 2.0), Task("broken", 1.0), Task("fuse", 1.0)]
    )
    assert sorted(story.outputs) == ["broken: released", "broken: released", "fuse", "lamp"]
    assert overlapping(story.spans("Remove", "Insert")) == []
    assert story.seconds == 2 * 5.0
