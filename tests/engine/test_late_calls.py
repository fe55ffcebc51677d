"""Calls that come after their own repeat, lives of an owner that overlap, and answers that leave before they are true.

A client repeats a call that was not answered, under the same id, and the first one may still be on its way: in the
socket of a process that was frozen, behind a slow connection. Whenever it arrives, the call is done once.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from msgspec.structs import replace

from dex.wire import service as s
from dex.wire.service import ServiceError
from tests.engine.rig import NIL, Rig, by_step, code_of, done, settle, virtual, wait, with_channels
from tests.machine.build import flow, graceful_complete, one, step, until

ONE, TWO = b"\x01", b"\x02"


def asking(**more: Any) -> Any:
    return replace(with_channels(flow(step("Ask", wait_for=True)), "news"), attributes=("x",), **more)


def start(flow_id: str, **more: Any) -> s.StartFlow:
    return s.StartFlow(
        flow_id=flow_id, flow_type="Demo", input=NIL, request_id=f"r-{flow_id}", call_id="call-1", fresh=True, **more
    )


@pytest.mark.statement("D8")
@pytest.mark.parametrize("policy", ["ALLOW_IF_NOT_RUNNING", "ALLOW_TERMINATE_IF_RUNNING"])
@virtual
async def test_a_start_that_arrives_after_its_repeat_begins_no_second_run(rig: Rig, policy: str) -> None:
    rig.script = by_step(Ask_wait_for=wait(until(one("news"))), Ask=done(graceful_complete()))
    host = await rig.host(asking())
    request = start("f", id_reuse_policy=policy)
    first = await host.call(replace(request, fresh=False))  # the repeat
    if policy == "ALLOW_IF_NOT_RUNNING":
        await host.publish("f", "news", ONE)
        await host.result("f")
    assert await host.call(request) == first  # the original, at last
    assert [run_id for run_id, _, _ in rig.runs("f")] == [first.run_id]


@pytest.mark.statement("D8")
@virtual
async def test_a_time_travel_that_arrives_after_its_repeat_begins_no_second_run(rig: Rig) -> None:
    rig.script = by_step(Ask_wait_for=wait(until(one("news"))))
    host = await rig.host(asking())
    await host.start("f")
    travel = s.TimeTravel(flow_id="f", point="BEGINNING", request_id="back", fresh=True)
    first = await host.call(replace(travel, fresh=False))
    await settle()
    assert await host.call(travel) == first
    assert [status for _, status, _ in rig.runs("f")] == ["TERMINATED", "RUNNING"]


@pytest.mark.statement("D8")
@virtual
async def test_a_publish_in_the_socket_of_a_frozen_owner_is_not_done_again_when_it_thaws(rig: Rig) -> None:
    """The successor has done the repeat. The old process never had the Flow in memory, so its claim is a good one if it
    comes just before the successor's life begins; that the call was done it can't know, but the database does."""
    rig.script = by_step(Ask_wait_for=wait(until(one("other"))))
    spec = replace(asking(), channels=("news", "other"))
    first = await rig.host(spec)
    run = await first.start("f")
    await settle()
    await first.crash()
    frozen = await rig.host(spec)
    await settle()
    assert "f" not in frozen.host.flows, "a Flow that only waits is not loaded"
    successor = await rig.host(spec)
    publish = s.Publish(flow_id="f", channel="news", values=(ONE,), request_id="p", fresh=True)
    answer = await successor.call(replace(publish, fresh=False))
    frozen.is_overtaken()
    with pytest.raises(ServiceError) as late:
        await frozen.call(publish)
    assert code_of(late.value) == "UNAVAILABLE"
    assert await frozen.call(replace(publish, fresh=False)) == answer
    assert [event[3] for event in rig.events(run, "MessagePublished")] == [ONE]


@pytest.mark.statement("D8", "D10")
@pytest.mark.parametrize("look", ["get_attribute", "describe"])
@virtual
async def test_a_look_tells_what_was_there_when_it_came_and_nothing_that_is_not_durable_yet(
    rig: Rig, look: str
) -> None:
    rig.script = by_step(Ask_wait_for=wait(until(one("news"))))
    host = await rig.host(asking())
    run = await host.start("f")
    await settle()
    host.lane.before = 1.0

    def write(value: bytes) -> asyncio.Task[s.Done]:
        request = s.SetAttribute(flow_id="f", name="x", value=value, request_id=f"w{value!r}", fresh=True)
        return asyncio.ensure_future(host.call(request))

    first = write(ONE)
    await settle()
    request: Any = s.GetAttribute(flow_id="f", name="x") if look == "get_attribute" else s.DescribeFlow(flow_id="f")
    looking = asyncio.ensure_future(host.call(request))
    await settle()
    second = write(TWO)
    answer: Any = await looking
    durable = [event[1]["x"] for event in rig.events(run, "AttributesWritten")]
    assert durable == [ONE], "the second write must not be durable yet for this test to mean anything"
    assert (answer.value == ONE) if look == "get_attribute" else (answer.attributes == {"x": 1})
    await asyncio.gather(first, second)


@pytest.mark.statement("B152", "D14")
@virtual
async def test_a_flow_that_a_former_life_started_after_the_new_one_looked_is_taken_up_by_the_next_sweep(
    rig: Rig,
) -> None:
    """The old process is believed dead, takes one more start, and dies: its successor of the same name finds the Flow,
    although nobody calls."""
    rig.script = by_step(Ask_wait_for=wait(until(one("news"))), Ask=done(graceful_complete()))
    zombie = await rig.host(asking())
    successor = await rig.host(asking(), sweep_seconds=60.0)
    await successor.host.recovered()
    zombie.is_overtaken()
    await zombie.call(start("f"))
    await zombie.crash()
    assert "f" not in successor.host.flows
    await asyncio.sleep(61)
    assert "f" in successor.host.flows
    await asyncio.sleep(2)
    assert await successor.phases("f") == {"Ask-1": "waiting"}


@virtual
async def test_a_start_looks_at_the_end_of_the_run_before_only_when_that_is_durable(rig: Rig) -> None:
    """The run closes while the start waits for what was written before: the new run begins when the end is durable."""
    rig.script = by_step(Ask_wait_for=wait(until(one("news"))))
    host = await rig.host(asking())
    old = await host.start("f")
    await settle()
    host.lane.before = 1.0
    attribute = s.SetAttribute(flow_id="f", name="x", value=ONE, request_id="w", fresh=True)
    writing = asyncio.ensure_future(host.call(attribute))
    await settle()
    again = s.StartFlow(
        flow_id="f", flow_type="Demo", input=NIL, request_id="r2", id_reuse_policy="ALLOW_IF_NOT_RUNNING", fresh=True
    )
    starting = asyncio.ensure_future(host.call(again))
    await settle()
    stopping = asyncio.ensure_future(host.stop("f", "CANCEL"))
    started = await starting
    assert rig.runs("f")[0] == (old, "CANCELED", False)
    assert started.run_id != old
    records = rig.rows("SELECT run_id FROM events ORDER BY rowid")
    assert records.index((started.run_id,)) > max(place for place, row in enumerate(records) if row == (old,))
    await asyncio.gather(writing, stopping)


@pytest.mark.statement("D8")
@virtual
async def test_a_closed_run_in_memory_gives_way_to_the_new_one_that_another_life_of_its_owner_began(rig: Rig) -> None:
    """Nothing is written for a closed run, so the database refuses nothing that would tell its owner."""
    rig.script = by_step(Ask_wait_for=wait(until(one("news"))))
    thawed = await rig.host(asking())
    await settle()
    successor = await rig.host(asking())
    old = await successor.start("f")
    await successor.stop("f")
    assert (await successor.result("f")).run_id == old
    thawed.is_overtaken()
    again = replace(start("f", id_reuse_policy="ALLOW_IF_NOT_RUNNING"), call_id="call-2", request_id="r2")
    new = (await thawed.call(again)).run_id
    await thawed.crash()
    publish = s.Publish(flow_id="f", channel="news", values=(ONE,), request_id="p")
    with pytest.raises(ServiceError) as outdated:
        await successor.call(publish)
    assert code_of(outdated.value) == "UNAVAILABLE"
    await successor.call(publish)  # the client repeats
    assert [event[3] for event in rig.events(new, "MessagePublished")] == [ONE]


@virtual
async def test_the_end_of_a_flow_is_told_from_memory_for_a_moment_only(rig: Rig) -> None:
    rig.script = by_step(Ask_wait_for=wait(until(one("news"))))
    thawed = await rig.host(asking())
    await settle()
    successor = await rig.host(asking())
    await successor.start("f")
    await successor.stop("f")
    thawed.is_overtaken()
    again = replace(start("f", id_reuse_policy="ALLOW_IF_NOT_RUNNING"), call_id="call-2", request_id="r2")
    new = (await thawed.call(again)).run_id
    await thawed.crash()
    await asyncio.sleep(1.5)
    assert (await successor.describe("f")).run_id == new


@pytest.mark.statement("B47", "B48")
@virtual
async def test_an_owner_that_lost_a_flow_begins_no_run_beside_the_open_one_because_of_an_end_that_was_refused(
    rig: Rig,
) -> None:
    """The run ends in the memory of an owner that has lost it, while a start is looking whether it was made before."""
    rig.script = by_step(Ask_wait_for=wait(until(one("news"))))
    former = await rig.host(asking())
    run = await former.start("f")
    await settle()
    former.lane.before = 1.0
    again = replace(start("f", id_reuse_policy="ALLOW_IF_NOT_RUNNING"), call_id="call-2", request_id="r2")
    starting = asyncio.ensure_future(former.call(again))
    await settle()
    stopping = asyncio.ensure_future(former.call(s.StopFlow(flow_id="f", request_id="s", fresh=True)))
    await settle()
    successor = await rig.host(asking())
    await successor.describe("f")  # it is loaded, and so claimed
    outcome = await asyncio.gather(starting, stopping, return_exceptions=True)
    assert [code_of(error) for error in outcome if isinstance(error, ServiceError)] != []
    assert rig.runs("f") == [(run, "RUNNING", True)]


@virtual
async def test_the_sweep_finds_the_new_run_of_a_flow_whose_closed_one_is_in_memory(rig: Rig) -> None:
    rig.script = by_step(Ask_wait_for=wait(until(one("news"))))
    zombie = await rig.host(asking())
    await settle()
    successor = await rig.host(asking(), sweep_seconds=60.0)
    await successor.start("f")
    await successor.stop("f")
    zombie.is_overtaken()
    again = replace(start("f", id_reuse_policy="ALLOW_IF_NOT_RUNNING"), call_id="call-2", request_id="r2")
    rig.script = by_step()  # nothing comes of its attempts any more
    new = (await zombie.call(again)).run_id
    await zombie.crash()
    await asyncio.sleep(61)
    assert successor.host.flows["f"].run_id == new
