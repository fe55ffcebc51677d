"""The patterns of repetition and of triggers: WCP-10 and 21 to 24. Times are virtual."""

from __future__ import annotations

from random import Random

import pytest

from dex import AsyncClient, Channel
from examples.workflow_patterns import (
    wcp_10_arbitrary_cycles,
    wcp_21_structured_loop,
    wcp_22_recursion,
    wcp_23_transient_trigger,
    wcp_24_persistent_trigger,
)
from examples.workflow_patterns.wcp_23_transient_trigger import bell
from examples.workflow_patterns.wcp_24_persistent_trigger import orders
from tests.examples.pattern_story import Meanwhile, Stage, at
from tests.world import World, scenario


def visits(way: list[str]) -> list[str]:
    """Which Steps are passed, by the drawing of the Flow."""
    here, passed, turns = "Begin", list[str](), iter(way)
    while True:
        passed.append(here)
        match here:
            case "Begin":
                here = next(turns).capitalize()
            case "Draft":
                here = "Review"
            case "Review" | "Edit":
                here = next(turns).capitalize()
            case _:
                return passed


def random_way(random: Random) -> list[str]:
    way = [random.choice(["draft", "review"])]
    while way[-1] not in ("publish", "withdraw"):
        way.append(random.choice(["publish", "edit", "edit"]))
        if way[-1] == "edit":
            way.append(random.choice(["draft", "review", "withdraw"]))
    return way


@scenario()
async def test_a_cycle_is_entered_and_left_at_several_places_and_taken_as_often_as_wanted(world: World) -> None:
    stage = Stage(world, wcp_10_arbitrary_cycles.example)
    random = Random(10)
    for way in (["draft", "publish"], ["review", "edit", "withdraw"], *(random_way(random) for _ in range(20))):
        story = await stage.play(way)
        assert [execution.rpartition("-")[0] for execution in story.completed()] == visits(way)
        assert story.outputs == ["published" if way[-1] == "publish" else "withdrawn"]


@scenario()
async def test_a_loop_tests_before_each_turn_or_after_it(world: World) -> None:
    stage = Stage(world, wcp_21_structured_loop.example)
    for boxes in (0, 1, 5):
        story = await stage.play(boxes)
        assert len(story.completed("LoadBox")) == boxes
        assert len(story.completed("WhileBoxesLeft")) == boxes + 1
        assert story.completed("Knock", "Deliver") == ["Knock-1", "Knock-2", "Knock-3", "Deliver-1"]
    once = await stage.play(-1)
    assert once.completed("LoadBox") == []


@scenario()
async def test_a_flow_that_starts_itself_ends_with_the_whole_result(world: World) -> None:
    stage = Stage(world, wcp_22_recursion.example)
    random = Random(22)
    for size in (0, 1, 2, 3, 7, 12):
        numbers = [random.randint(-9, 9) for _ in range(size)]
        story = await stage.play(numbers)
        assert story.outputs == [sorted(numbers)]
    assert await flows_under(world.client, story.flow_id) == 2 * 12 - 1, "each halving starts two Flows"


async def flows_under(client: AsyncClient, flow_id: str) -> int:
    """How many Flows a run consists of, itself included."""
    events = [event async for event in client.history(flow_id) if event.kind == "SubFlowEnded"]
    return 1 + sum([await flows_under(client, event.data["flow_id"]) for event in events])


def send(channel: Channel[str], *values: str) -> Meanwhile:
    async def publish(client: AsyncClient, flow_id: str) -> None:
        await client.publish(flow_id, channel, *values)

    return publish


@pytest.mark.statement("B192")
@scenario()
async def test_a_transient_trigger_is_lost_unless_it_comes_while_the_flow_waits_for_it(world: World) -> None:
    """The Flow is busy until 2, then listens for 5 seconds, and is busy for 2 seconds after each ring it hears."""
    stage = Stage(world, wcp_23_transient_trigger.example)
    ring = send(bell, "ding")
    for rings, opened in (
        ((), 0),
        ((0.0,), 0),
        ((1.999999,), 0),
        ((2.000001,), 1),
        ((6.9,), 1),
        ((0.5, 1.0, 3.0), 1),
        ((3.0, 4.0, 4.9), 1),
        ((3.0, 3.5, 5.1), 2),
        ((3.0, 6.0, 7.0, 9.0), 3),
    ):
        story = await stage.play(-1, at(*((when, ring) for when in rings)))
        assert story.outputs == [opened], f"rung at {rings}"


@pytest.mark.statement("B192")
@scenario()
async def test_several_transient_triggers_at_one_moment_act_once(world: World) -> None:
    story = await Stage(world, wcp_23_transient_trigger.example).play(-1, at((3.0, send(bell, "ding", "ding", "ding"))))
    assert story.outputs == [1]


@scenario()
async def test_a_persistent_trigger_is_kept_until_the_flow_can_act_on_it(world: World) -> None:
    stage = Stage(world, wcp_24_persistent_trigger.example)
    early = at((0.0, send(orders, "soup", "fish", "cake", "the bill")))
    busy = at((1.0, send(orders, "soup")), (1.5, send(orders, "fish", "cake")), (2.0, send(orders, "the bill")))
    late = at((60.0, send(orders, "soup", "fish")), (90.0, send(orders, "cake", "the bill")))
    for meanwhile, seconds in ((early, 6.0), (busy, 7.0), (late, 92.0)):
        story = await stage.play([], meanwhile)
        assert story.outputs == [["soup", "fish", "cake"]]
        assert story.seconds == seconds


@scenario()
async def test_a_persistent_trigger_survives_a_crash(world: World) -> None:
    await world.deploy(wcp_24_persistent_trigger.example.flow)
    await world.start(wcp_24_persistent_trigger.example.flow, "kitchen", [])
    await world.publish("kitchen", orders, "soup", "fish", "the bill")
    await world.until_phase("kitchen", "Cook-1", "running")
    await world.restart()
    assert (await world.result("kitchen")).single_output(list[str]) == ["soup", "fish"]
