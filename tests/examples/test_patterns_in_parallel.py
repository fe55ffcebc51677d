"""Patterns of branches and of Flows that start others, under the virtual clock."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from dex import FlowStatus
from examples.patterns import (
    parallel,
    parallel_await,
    parallel_first_win,
    parallel_subflows,
    parent_child,
    resource_control,
    scalable_parallel,
)
from examples.patterns.parallel_first_win import Mirror
from examples.patterns.parallel_subflows import Juror
from examples.patterns.parent_child import Batch
from examples.patterns.scalable_parallel import Work
from tests.examples.kit import Dying, now, outputs, run
from tests.world import World, scenario


@scenario()
async def test_a_flow_is_complete_when_all_its_branches_are(world: World) -> None:
    await world.deploy(parallel.flow)
    said = await run(world, parallel.flow, ["The sun rose.", "It set."])
    assert sorted(said) == ["cover for 2 pages", "index of 5 words", "page of 2 words", "page of 3 words"]


@scenario()
async def test_the_join_has_each_part_once_in_order(world: World) -> None:
    await world.deploy(parallel_await.flow)
    assert await run(world, parallel_await.flow, "a b c. d. e f.", of=dict[int, int]) == [{1: 3, 2: 1, 3: 2}]
    assert await run(world, parallel_await.flow, "", name="empty", of=dict[int, int]) == [{}]


@scenario()
async def test_the_first_to_succeed_wins_and_the_others_are_cancelled(world: World) -> None:
    await world.deploy(parallel_first_win.flow)
    mirrors = [Mirror("Oslo", 60.0), Mirror("Rome", 1.0, is_broken=True), Mirror("Lima", 5.0)]
    assert await run(world, parallel_first_win.flow, mirrors) == ["the file came from Lima"]
    assert now() < 6
    cancelled = {e.step_execution_id for e in await world.history("flow") if e.kind == "StepCancelled"}
    assert cancelled == {"Download-1", "AllOut-1"}


@scenario()
async def test_a_dead_heat_has_one_winner(world: World) -> None:
    await world.deploy(parallel_first_win.flow)
    said = await run(world, parallel_first_win.flow, [Mirror(f"mirror {number}", 1.0) for number in range(20)])
    assert len(said) == 1
    unpacked = [e for e in await world.history("flow") if e.step_execution_id == "Unpack-2"]
    assert unpacked == []


@scenario()
async def test_when_all_have_dropped_out_the_flow_says_so(world: World) -> None:
    await world.deploy(parallel_first_win.flow)
    await world.start(parallel_first_win.flow, "flow", [Mirror("Rome", 1.0, True), Mirror("Bonn", 2.0, True)])
    result = await world.result("flow")
    assert (result.status, result.error_message) == (FlowStatus.FAILED, "no mirror has the file: Bonn, Rome")


@scenario()
async def test_no_more_children_run_at_once_than_there_are_tokens_and_a_failed_one_is_a_result(world: World) -> None:
    await world.deploy(parent_child.batch_flow, parent_child.photo_flow)
    photos = {f"photo {number}": 60 for number in range(6)} | {"bad": 100}
    await world.start(parent_child.batch_flow, "batch", Batch(photos, at_once=2))
    most = 0
    while (await world.client.describe_flow(world.id("batch"))).status is FlowStatus.RUNNING:
        running = (await world.client.list_flows(flow_type="PhotoFlow", status=FlowStatus.RUNNING)).flows
        most = max(most, len(running))
        await world.advance(5)
    (outcomes,) = outputs(await world.result("batch"), dict[str, str])
    assert outcomes.pop("bad") == "the chemicals ran out"
    assert set(outcomes.values()) == {"developed in 60 s"}
    assert len(outcomes) == 6
    assert most == 2


@pytest.mark.statement("B62")
@scenario()
async def test_each_child_is_started_once_however_often_the_parent_dies(world: World) -> None:
    await world.deploy(parent_child.batch_flow, parent_child.photo_flow)
    await world.start(parent_child.batch_flow, "batch", Batch({"sea": 30, "hill": 50}, at_once=1))
    for _ in range(6):
        await world.advance(9)
        await world.restart()
    await world.result("batch", 600)
    children = (await world.client.list_flows(flow_type="PhotoFlow")).flows
    assert Counter(child.flow_id for child in children) == {world.id("batch.sea"): 1, world.id("batch.hill"): 1}


@pytest.mark.statement("B62")
@scenario()
async def test_a_child_whose_start_was_not_committed_is_not_started_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    dying = Dying("start_flow")
    monkeypatch.setattr(parent_child, "AsyncClient", dying)
    await world.deploy(parent_child.batch_flow, parent_child.photo_flow)
    await world.start(parent_child.batch_flow, "batch", Batch({"sea": 1}, at_once=1))
    await dying.restart(world, 1)
    assert outputs(await world.result("batch"), dict[str, str]) == [{"sea": "developed in 1 s"}]


@pytest.mark.parametrize(
    ("verdicts", "said", "seconds"),
    [
        ([("a", 1), ("a", 2), ("b", 3000)], "a, with 2 of 3 votes", 3),
        ([("a", 1), ("b", 2), ("a", 3000)], "a, with 2 of 3 votes", 3001),
        ([("a", 1), ("b", 2), ("c", 3)], "no majority", 4),
        ([("a", 1), ("b", 2), ("a", 10**6)], "no majority", 3601),
    ],
)
@scenario()
async def test_the_verdict_is_given_with_the_majority(
    world: World, verdicts: list[tuple[str, int]], said: str, seconds: int
) -> None:
    await world.deploy(parallel_subflows.jury_flow, parallel_subflows.juror_flow)
    jury = [Juror(f"juror {number}", verdict, wait) for number, (verdict, wait) in enumerate(verdicts)]
    assert await run(world, parallel_subflows.jury_flow, jury, timeout=10**5) == [said]
    assert now() <= seconds
    if said.startswith("a"):
        await world.advance(2 * 3600)  # whoever was left has ended by a timeout of their own
    open_flows = (await world.client.list_flows(flow_type="JurorFlow", status=FlowStatus.RUNNING)).flows
    assert open_flows == ()


async def job(world: World, name: str, seconds: float) -> None:
    await world.start(resource_control.job_flow, name, (world.id("gpus"), seconds))


async def at_work(world: World, names: list[str]) -> list[str]:
    found = []
    for name in names:
        steps = (await world.describe(name)).steps
        if any(step.step_execution_id == "Work-1" and step.phase == "running" for step in steps):
            found.append(name)
    return found


@scenario()
async def test_no_more_jobs_work_at_once_than_there_are_slots_and_all_get_one(world: World) -> None:
    await world.deploy(resource_control.controller_flow, resource_control.job_flow)
    await world.start(resource_control.controller_flow, "gpus", 2)
    names = [f"job {number}" for number in range(6)]
    for number, name in enumerate(names):
        await job(world, name, -1.0 if number == 1 else 30.0)
    counts = []
    for _ in range(30):
        await world.advance(5)
        counts.append(len(await at_work(world, names)))
    assert max(counts) == 2
    assert [outputs(await world.result(name)) for name in names] == [["done"], ["failed"], *[["done"]] * 4]
    line = await world.client.invoke_rpc(resource_control.controller_flow.line, world.id("gpus"))
    assert line == (2, 0)


@scenario()
async def test_a_slot_is_granted_once_though_everything_dies_again_and_again(world: World) -> None:
    await world.deploy(resource_control.controller_flow, resource_control.job_flow)
    await world.start(resource_control.controller_flow, "gpus", 1)
    names = ["job 0", "job 1", "job 2"]
    for name in names:
        await job(world, name, 10.0)
    for _ in range(8):
        await world.advance(7)
        await world.restart()
        assert len(await at_work(world, names)) <= 1
    for name in names:
        await world.result(name, 600)
    await world.advance(5)
    line = await world.client.invoke_rpc(resource_control.controller_flow.line, world.id("gpus"))
    assert line == (1, 0)


@scenario()
async def test_what_was_asked_granted_and_given_back_counts_once_though_each_step_is_tried_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    await world.deploy(resource_control.controller_flow, resource_control.job_flow)
    await world.start(resource_control.controller_flow, "gpus", 1)
    dying = Dying("publish")
    monkeypatch.setattr(resource_control, "AsyncClient", dying)
    await job(world, "job", 1.0)
    for count in (1, 2, 3):  # it asks, is granted a slot, and gives it back
        await dying.restart(world, count)
    await world.result("job")
    await world.advance(10)
    assert (await world.kinds("job")).count("MessagePublished") == 1
    line = await world.client.invoke_rpc(resource_control.controller_flow.line, world.id("gpus"))
    assert line == (1, 0)


@scenario()
async def test_a_job_that_left_the_line_is_passed_over(world: World) -> None:
    await world.deploy(resource_control.controller_flow, resource_control.job_flow)
    await world.start(resource_control.controller_flow, "gpus", 1)
    for name in ("first", "second", "third"):
        await job(world, name, 30.0)
        await world.advance(1)
    await world.client.stop_flow(world.id("second"))
    assert outputs(await world.result("third", 120)) == ["done"]
    assert now() < 70


@scenario()
async def test_shards_together_have_handled_every_item_once(world: World) -> None:
    await world.deploy(scalable_parallel.root_flow, scalable_parallel.shard_flow)
    items = [f"item {number}" for number in range(60)]
    work = Work(items, shards=5, at_once=3)
    assert await run(world, scalable_parallel.root_flow, work, of=int) == [sum(map(len, items))]
    shards = (await world.client.list_flows(flow_type="ShardFlow")).flows
    assert 1 < len(shards) <= 5


@scenario()
async def test_a_shard_never_has_more_items_under_way_than_it_may_and_bears_a_crash(world: World) -> None:
    await world.deploy(scalable_parallel.root_flow, scalable_parallel.shard_flow, slots=2)
    items = [f"item {number}" for number in range(40)]
    await world.start(scalable_parallel.root_flow, "root", Work(items, shards=1, at_once=3))
    for _ in range(30):
        await asyncio.sleep(0)
    await world.restart()
    assert outputs(await world.result("root"), int) == [sum(map(len, items))]
    (shard,) = (await world.client.list_flows(flow_type="ShardFlow")).flows
    events = [event async for event in world.client.history(shard.flow_id)]
    under_way = most = 0
    for event in events:
        if event.step_execution_id.startswith("Measure-"):
            under_way += {"ConditionsMet": 1, "StepCompleted": -1}.get(event.kind, 0)
            most = max(most, under_way)
    assert most <= 3
