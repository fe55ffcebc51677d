"""A request that is repeated with the same id has the first one's effect and answer, whatever has happened between."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import pytest
from msgspec.structs import replace

from dex.wire import service as s
from tests.engine.faulty import AFTER, BEFORE, give_up
from tests.engine.rig import NIL, Machine, Rig, by_step, code_of, done, settle, virtual, wait, with_channels
from tests.machine.build import flow, graceful_complete, one, step, until

ASK = replace(with_channels(flow(step("Ask", wait_for=True)), "news", "end"), attributes=("color",))
STEPS = by_step(Ask_wait_for=wait(until(one("end"))), Ask_execute=done(graceful_complete()))


@dataclass(frozen=True)
class Kind:
    """A request that writes, and the events that tell its effect."""

    request: s.Request[Any]
    events: tuple[str, ...]
    closes: bool = False


KINDS = {
    "start": Kind(
        s.StartFlow(flow_id="g", flow_type="Demo", input=NIL, request_id="r", call_id="c", fresh=True), ("FlowStarted",)
    ),
    "publish": Kind(
        s.Publish(flow_id="f", channel="news", values=(b"\x01", b"\x02"), request_id="r", fresh=True),
        ("MessagePublished", "MessagePublished"),
    ),
    "set_attribute": Kind(
        s.SetAttribute(flow_id="f", name="color", value=b"\x01", request_id="r", fresh=True), ("AttributesWritten",)
    ),
    "stop_flow": Kind(s.StopFlow(flow_id="f", request_id="r", fresh=True), ("FlowClosed",), closes=True),
}
every_kind = pytest.mark.parametrize("kind", list(KINDS))


def effect(rig: Rig, kind: Kind) -> list[str]:
    """What the journal holds of the effect, over all runs of the Flow."""
    runs = [run for run, _, _ in rig.runs(kind.request.flow_id)]
    events = [event for run in runs for event in rig.events(run, *kind.events) if event[1] != "end"]
    return [event[0].split("/")[0] for event in events]


async def again(host: Machine, kind: Kind) -> Any:
    return await host.call(replace(kind.request, fresh=False))  # type: ignore[type-var]


async def ready(rig: Rig) -> Machine:
    rig.script = STEPS
    host = await rig.host(ASK)
    await host.start("f", fresh=True)
    await settle()
    await host.describe("f")
    return host


async def stay(rig: Rig, host: Machine, kind: Kind) -> Machine:
    return host


async def evict(rig: Rig, host: Machine, kind: Kind) -> Machine:
    await settle()
    live = host.host.flows[kind.request.flow_id]
    assert live.is_idle
    host.host.residents.evict(live)
    return host


async def crash(rig: Rig, host: Machine, kind: Kind) -> Machine:
    await host.crash()
    return await rig.host(ASK)


async def close(rig: Rig, host: Machine, kind: Kind) -> Machine:
    if not kind.closes:
        await host.publish(kind.request.flow_id, "end", NIL)
    assert (await host.result(kind.request.flow_id)).status in ("COMPLETED", "CANCELED")
    return host


async def close_and_crash(rig: Rig, host: Machine, kind: Kind) -> Machine:
    return await crash(rig, await close(rig, host, kind), kind)


async def hand_over(rig: Rig, host: Machine, kind: Kind) -> Machine:
    if kind.closes:
        return await crash(rig, host, kind)  # a run that has closed stays with its owner
    host.journal.inner.reassign("one", "two", 10)
    return await rig.host(ASK, owner="two")


async def forget_recent_answers(rig: Rig, host: Machine, kind: Kind) -> Machine:
    host.host.flows[kind.request.flow_id].answers.clear()
    return host


@pytest.mark.statement("D8")
@every_kind
@pytest.mark.parametrize("meanwhile", [stay, evict, crash, close, close_and_crash, hand_over, forget_recent_answers])
@virtual
async def test_a_repeat_gets_the_first_ones_answer(
    rig: Rig, kind: str, meanwhile: Callable[[Rig, Machine, Kind], Awaitable[Machine]]
) -> None:
    what = KINDS[kind]
    host = await ready(rig)
    first = await host.call(what.request)
    await settle()
    host = await meanwhile(rig, host, what)
    for _ in range(3):
        assert await again(host, what) == first
    assert effect(rig, what) == list(what.events)


@pytest.mark.statement("D8")
@every_kind
@virtual
async def test_repeats_of_a_request_that_is_under_way_wait_for_it(rig: Rig, kind: str) -> None:
    what = KINDS[kind]
    host = await ready(rig)
    host.lane.before = 0.01
    first = asyncio.create_task(host.call(what.request))
    await settle(3)
    repeats = [asyncio.create_task(again(host, what)) for _ in range(5)]
    await asyncio.sleep(0.005)
    repeats += [asyncio.create_task(again(host, what)) for _ in range(5)]
    answers = [await task for task in (first, *repeats)]
    assert all(answer == answers[0] for answer in answers)
    assert effect(rig, what) == list(what.events)


@pytest.mark.statement("D8")
@every_kind
@virtual
async def test_repeats_that_arrive_before_the_first_one_have_one_effect(rig: Rig, kind: str) -> None:
    what = KINDS[kind]
    host = await ready(rig)
    host.lane.before = 0.01
    answers = await asyncio.gather(*(again(host, what) for _ in range(5)))
    assert all(answer == answers[0] for answer in answers)
    assert effect(rig, what) == list(what.events)


@pytest.mark.statement("D8", "D14")
@every_kind
@pytest.mark.parametrize("when", [BEFORE, AFTER])
@virtual
async def test_a_crash_between_commit_and_answer_doubles_nothing(rig: Rig, kind: str, when: str) -> None:
    what = KINDS[kind]
    host = await ready(rig)
    host.lane.before = host.lane.after = 0.01
    first = asyncio.create_task(give_up(host.call(what.request)))
    await asyncio.sleep(0.005 if when == BEFORE else 0.015)
    assert effect(rig, what) == ([] if when == BEFORE else list(what.events))
    await host.crash()
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    second = await rig.host(ASK)
    answer = await again(second, what)
    assert await again(second, what) == answer
    assert effect(rig, what) == list(what.events)


@pytest.mark.statement("D8")
@virtual
async def test_a_request_id_is_scoped_to_its_flow(rig: Rig) -> None:
    host = await ready(rig)
    await host.start("other")
    await settle()
    one_ = await host.publish("f", "news", NIL, request_id="r")
    two = await host.publish("other", "news", NIL, request_id="r")
    assert one_ != two


@pytest.mark.statement("D8", "B128")
@virtual
async def test_another_request_to_a_closed_flow_is_refused(rig: Rig) -> None:
    host = await ready(rig)
    await host.stop("f")
    for fresh in (True, False):
        error = await give_up(host.publish("f", "news", NIL, fresh=fresh))
        assert code_of(error) == "FAILED_PRECONDITION"


@pytest.mark.statement("D8")
@virtual
async def test_many_writes_do_not_pile_up_in_memory(rig: Rig) -> None:
    host = await ready(rig)
    for number in range(400):
        await host.publish("f", "news", NIL, request_id=f"p{number}", fresh=True)
    assert len(host.host.flows["f"].answers) <= 129
    assert await host.publish("f", "news", NIL, request_id="p0") == await host.publish(
        "f", "news", NIL, request_id="p0"
    )
    assert (await host.describe("f")).channels == {"news": 400}
