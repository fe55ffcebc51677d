"""A history is read page by page, each from where the one before ended."""

from __future__ import annotations

import pytest

from dex import AsyncContext, Flow, Step, StepDecision, StepList, go_to, graceful_complete
from dex.wire.service import GetHistory
from dexray.journal.interface import Record
from tests.world import InProcessWorld, World, scenario


class Down(Step[int]):
    async def execute(self, context: AsyncContext, input: int) -> StepDecision:
        return go_to(Down, input - 1) if input else graceful_complete()


class Countdown(Flow[int]):
    def get_steps(self) -> StepList[int]:
        return StepList.start_step(Down())


@pytest.mark.statement("B224")
@scenario()
async def test_pages_of_any_size_add_up_and_read_each_record_about_once(world: World) -> None:
    assert isinstance(world, InProcessWorld)
    flow = Countdown()
    await world.deploy(flow)
    await world.start(flow, "f", 400)
    await world.result("f")
    whole = await world.history("f")
    assert [event.number for event in whole] == list(range(1, len(whole) + 1))
    assert world.engine is not None
    journal, read = world.engine.host.journal, 0

    original = journal.records

    def counted(run_id: str, after_seq: int, limit: int) -> list[Record]:
        nonlocal read
        found = original(run_id, after_seq, limit)
        read += len(found)
        return found

    journal.records = counted  # type: ignore[method-assign]
    pages = [event async for event in world.client.history(world.id("f"), page_size=100)]
    assert pages == whole
    assert len(whole) > 1000
    assert read <= len(pages) + 100 * 13  # and not 13 times the whole


@scenario()
async def test_a_place_of_another_run_is_not_believed(world: World) -> None:
    assert isinstance(world, InProcessWorld)
    flow = Countdown()
    await world.deploy(flow)
    await world.start(flow, "f", 3)
    await world.result("f")
    whole = await world.history("f")
    assert world.engine is not None
    page = await world.engine.call(GetHistory(flow_id=world.id("f"), run_id="", after=2, place=(9, 2)))
    assert page.events == tuple(whole[2:])
