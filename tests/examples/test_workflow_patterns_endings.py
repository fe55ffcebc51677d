"""The patterns of cancellation and termination: WCP-11, 19, 20, 25 and 43. Times are virtual."""

from __future__ import annotations

import asyncio

import pytest

from dex import AsyncClient, FlowStatus
from examples.workflow_patterns import (
    wcp_11_implicit_termination,
    wcp_19_cancel_task,
    wcp_20_cancel_case,
    wcp_25_cancel_region,
    wcp_43_explicit_termination,
)
from examples.workflow_patterns.common import Task
from examples.workflow_patterns.wcp_11_implicit_termination import Job
from tests.examples.pattern_story import Stage, at
from tests.world import World, scenario


def longest(job: Job) -> float:
    return job.seconds + max(map(longest, job.then), default=0.0)


def count(job: Job) -> int:
    return 1 + sum(map(count, job.then))


@pytest.mark.statement("B106", "B113")
@scenario()
async def test_a_flow_terminates_implicitly_when_the_last_of_its_work_is_done_whichever_that_is(world: World) -> None:
    stage = Stage(world, wcp_11_implicit_termination.example)
    pair = Job(1.0, [Job(2.0), Job(5.0)])
    for job in (Job(1.0), pair, Job(1.0, [Job(9.0), pair]), Job(0.5, [pair, Job(0.5, [pair, Job(0.5, [pair])])])):
        story = await stage.play(job)
        assert story.result.status is FlowStatus.COMPLETED
        assert story.seconds == longest(job)
        assert len(story.completed("Do")) == count(job)
        assert story.cancelled() == []


@pytest.mark.statement("B115", "B117")
@scenario()
async def test_a_cancelled_task_does_not_complete_be_it_waiting_or_at_work_and_nothing_follows_from_it(
    world: World,
) -> None:
    async def withdraw(client: AsyncClient, flow_id: str) -> None:
        await client.publish(flow_id, wcp_19_cancel_task.withdrawn, "found")

    stage = Stage(world, wcp_19_cancel_task.example)
    for when in (0.0, 1.9, 2.1, 4.9):
        story = await stage.play(None, at((when, withdraw)))
        assert story.cancelled() == ["Assess-1"]
        assert story.completed() == ["Claim-1", "Withdraw-1", "CloseClaim-1"]
        assert story.outputs == ["withdrawn: found"]
        assert story.seconds == when
    left_alone = await stage.play()
    assert left_alone.completed("Assess", "Pay") == ["Assess-1", "Pay-1"]
    assert (left_alone.outputs, left_alone.seconds) == (["paid"], 5.0)


@pytest.mark.statement("B115")
@scenario()
async def test_a_cancelled_region_ends_at_once_and_what_is_outside_of_it_goes_on(world: World) -> None:
    async def call_off(client: AsyncClient, flow_id: str) -> None:
        await client.publish(flow_id, wcp_25_cancel_region.called_off, "no holidays")

    stage = Stage(world, wcp_25_cancel_region.example)
    region = [step.__name__ for step in wcp_25_cancel_region.REGION]
    for when, done in ((0.0, 0), (0.5, 0), (1.5, 2), (2.5, 4)):
        story = await stage.play(None, at((when, call_off)), timeout=60)
        assert len(story.completed(*region)) == done
        assert len(story.cancelled()) == (2 if done < 4 else 0)
        assert all(ended <= when for ended in story.ended(*region))
        assert story.completed("ApplyForVisa", "ReceiveVisa") == ["ApplyForVisa-1", "ReceiveVisa-1"]
        assert "called off" in story.outputs
        assert story.seconds == max(2.0, when)


@pytest.mark.statement("B243")
@scenario()
async def test_a_cancelled_case_ends_with_all_that_belongs_to_it_and_is_on_record_as_cancelled(world: World) -> None:
    stage = Stage(world, wcp_20_cancel_case.example)
    for when in (0.0, 1.0, 29.9):
        story = await stage.play(None, at((when, wcp_20_cancel_case.cancel_case)), status=FlowStatus.CANCELED)
        inspection = await stage.story(wcp_20_cancel_case.inspection_of(story.flow_id))
        assert story.result.status is inspection.result.status is FlowStatus.CANCELED
        assert story.completed("Search", "Inspect", "Report") == inspection.completed() == []
        await asyncio.sleep(60)
        assert len((await stage.story(story.flow_id)).events) == len(story.events)
        assert len((await stage.story(inspection.flow_id)).events) == len(inspection.events)


@scenario()
async def test_a_subflow_goes_on_when_its_parent_alone_is_stopped_which_is_the_limit_of_the_verdict(
    world: World,
) -> None:
    async def stop(client: AsyncClient, flow_id: str) -> None:
        await client.stop_flow(flow_id)

    stage = Stage(world, wcp_20_cancel_case.example)
    story = await stage.play(None, at((1.0, stop)), status=FlowStatus.CANCELED)
    inspection = await stage.story(wcp_20_cancel_case.inspection_of(story.flow_id))
    assert inspection.result.status is FlowStatus.COMPLETED
    assert inspection.outputs == ["reported"]


@pytest.mark.statement("B108", "B243")
@scenario()
async def test_a_flow_terminates_explicitly_at_its_end_and_what_is_left_is_withdrawn(world: World) -> None:
    stage = Stage(world, wcp_43_explicit_termination.example)
    for found_at in (0.5, 1.5, 6.0):
        searches = [Task("1", 1.0), Task("found", found_at), Task("5", 5.0), Task("20", 20.0)]
        story = await stage.play(searches)
        done = [task for task in searches if task.seconds <= found_at]
        assert story.seconds == found_at
        assert len(story.completed("Search")) == len(done)
        assert story.outputs == [*(task.name for task in done if task.name != "found"), "the end"]
        assert story.completed("Wonder") == []
