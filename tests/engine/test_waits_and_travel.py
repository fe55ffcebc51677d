"""Milestones and time travel when the journal is slow, away, or another owner's."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest
from msgspec.structs import replace

from dex.wire import service as s
from dex.wire.service import FlowConfigSpec, ServiceError
from dexray.engine import NotMine, requests, travel
from tests.engine.faulty import Plan, give_up
from tests.engine.rig import NIL, Machine, Rig, by_step, code_of, done, settle, virtual, wait, with_channels
from tests.machine.build import flow, go_to, one, step, until

SPEC = with_channels(flow(step("A"), step("B"), step("Ask", wait_for=True)), "news")
ASKING = by_step(A=done(go_to("Ask")), Ask_wait_for=wait(until(one("never"))))
ONE = b"\x01"
WITH_ATTRIBUTE = replace(SPEC, attributes=("x",))


async def a_wait(host: Machine, step_id: str = "A-1", **more: Any) -> s.Done:
    more.setdefault("request_id", "wait")
    return await host.call(s.WaitForStep(flow_id="f", step=step_id, **more))


async def a_travel(host: Machine, point: str = "BEGINNING", **more: Any) -> str:
    more.setdefault("request_id", "travel")
    return (await host.call(s.TimeTravel(flow_id="f", point=point, **more))).run_id


# Waits ----------------------------------------------------------------------------------------------------------------


@pytest.mark.statement("C44", "B58")
@virtual
async def test_a_milestone_is_told_when_it_is_durable_and_not_before(rig: Rig) -> None:
    host = await rig.host(SPEC)
    await host.start("f")
    waiting = asyncio.create_task(a_wait(host))
    await settle()
    host.lane.hold()
    host.port.finish(host.port.only("A"), done(go_to("B")))
    late = asyncio.create_task(a_wait(host, request_id="late"))
    await settle()
    assert host.host.flows["f"].flow.state.counters == {"A": 1, "B": 1}
    assert not waiting.done()
    assert not late.done(), "one that comes now is told no sooner"
    host.lane.free()
    await waiting
    await late


@pytest.mark.statement("C45")
@virtual
async def test_a_value_is_told_when_it_is_durable_even_if_it_has_changed_by_then(rig: Rig) -> None:
    host = await rig.host(WITH_ATTRIBUTE)
    await host.start("f")
    match = s.WaitForAttribute(flow_id="f", name="x", operator="==", operand=ONE, request_id="w")
    waiting = asyncio.create_task(host.call(match))
    await settle()
    host.lane.hold()
    writes = []
    for number in (1, 2):
        request = s.SetAttribute(flow_id="f", name="x", value=bytes([number]), request_id=f"{number}", fresh=True)
        writes.append(asyncio.create_task(host.call(request)))
        await asyncio.sleep(0.001)
        await settle()
    assert not waiting.done()
    host.lane.free()
    assert (await waiting).value == ONE
    await asyncio.gather(*writes)


@virtual
async def test_whoever_waits_at_an_owner_that_lost_the_flow_is_told_to_ask_again(rig: Rig) -> None:
    host = await rig.host(SPEC)
    await host.start("f")
    waiting = asyncio.create_task(give_up(a_wait(host)))
    await settle()
    host.journal.inner.reassign("one", "two", 10)
    host.port.finish(host.port.only("A"), done(go_to("B")))
    assert code_of(await waiting) == "UNAVAILABLE"
    assert "f" not in host.host.flows


@virtual
async def test_whoever_waits_for_a_flow_that_gets_into_trouble_is_told(rig: Rig) -> None:
    host = await rig.host(SPEC)
    await host.start("f")
    waiting = asyncio.create_task(give_up(a_wait(host)))
    await settle()
    host.journal.poison = lambda record: record.seq > 1
    host.port.finish(host.port.only("A"), done(go_to("B")))
    assert code_of(await waiting) == "INTERNAL"
    assert code_of(await give_up(a_wait(host))) == "INTERNAL"


@virtual
async def test_a_wait_ends_with_its_host_and_leaves_no_timer(rig: Rig) -> None:
    host = await rig.host(SPEC)
    await host.start("f")
    waiting = asyncio.create_task(give_up(a_wait(host, limit=300)))
    await settle()
    await host.crash()
    assert code_of(await waiting) == "UNAVAILABLE"


@pytest.mark.parametrize("step_id", ["", "A", "A-0", "A-x", "-1"])
@virtual
async def test_what_is_no_step_execution_is_refused(rig: Rig, step_id: str) -> None:
    host = await rig.host(SPEC)
    await host.start("f")
    assert code_of(await give_up(a_wait(host, step_id))) == "INVALID_ARGUMENT"


@virtual
async def test_an_unknown_operator_is_refused(rig: Rig) -> None:
    host = await rig.host(WITH_ATTRIBUTE)
    await host.start("f")
    match = s.WaitForAttribute(flow_id="f", name="x", operator="~", operand=ONE, request_id="w")
    assert code_of(await give_up(host.call(match))) == "INVALID_ARGUMENT"


@pytest.mark.statement("B72")
@virtual
async def test_a_change_of_the_config_is_acknowledged_when_it_is_durable(rig: Rig) -> None:
    host = await rig.host(SPEC)
    run = await host.start("f")
    host.lane.hold()
    config = FlowConfigSpec(step_durability="ASYNC")
    update = asyncio.create_task(host.call(s.UpdateFlowConfig(flow_id="f", config=config, request_id="u")))
    await settle()
    assert not update.done()
    host.lane.free()
    await update
    assert len(rig.events(run, "FlowConfigUpdated")) == 1


# Time travel ----------------------------------------------------------------------------------------------------------


@pytest.mark.statement("C53", "D8")
@virtual
async def test_a_message_that_comes_while_the_past_is_read_is_in_the_new_run(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig.script = ASKING
    host = await rig.host(SPEC)
    await host.start("f")
    await settle()
    read = travel._Past.read

    async def and_a_message(past: Any, run_id: str) -> None:
        await read(past, run_id)
        await host.publish("f", "news", b"\x07", request_id="between")

    monkeypatch.setattr(travel._Past, "read", and_a_message)
    await a_travel(host)
    assert (await host.describe("f")).channels == {"news": 1}


@pytest.mark.statement("C53", "D8")
@virtual
async def test_a_message_that_is_on_its_way_when_the_old_run_ends_is_in_the_new_run(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig.script = ASKING
    host = await rig.host(SPEC)
    await host.start("f")
    await settle()
    read = travel._Past.read
    on_its_way: list[asyncio.Task[Any]] = []

    async def and_a_message(past: Any, run_id: str) -> None:
        await read(past, run_id)
        on_its_way.append(asyncio.create_task(host.publish("f", "news", b"\x07", request_id="late", fresh=True)))
        await asyncio.sleep(0)
        assert not host.host.flows["f"].pending.is_empty

    monkeypatch.setattr(travel._Past, "read", and_a_message)
    await a_travel(host)
    await on_its_way[0]
    assert (await host.describe("f")).channels == {"news": 1}


@pytest.mark.statement("C52")
@virtual
async def test_a_new_run_that_was_not_written_was_never_there(rig: Rig) -> None:
    rig.script = ASKING
    host = await rig.host(SPEC)
    old = await host.start("f")
    await settle()
    host.lane.hold()
    waiting = asyncio.create_task(give_up(a_travel(host, fresh=True)))
    await settle()
    host.journal.inner.reassign("one", "two", 10)
    host.lane.free()
    assert isinstance(await waiting, NotMine)
    assert [run_id for run_id, _, current in rig.runs("f") if current] == [old]
    two = await rig.host(SPEC, owner="two")
    await two.host.recovered()
    assert (await two.describe("f")).status == "RUNNING"


@pytest.mark.statement("C52", "D8")
@virtual
async def test_an_answer_that_was_lost_is_given_to_the_repeat(rig: Rig) -> None:
    rig.script = ASKING
    host = await rig.host(SPEC)
    await host.start("f")
    await settle()
    first = asyncio.create_task(give_up(a_travel(host, fresh=True)))
    await settle(4)
    await host.crash()
    await first
    again = await rig.host(SPEC)
    run = await a_travel(again)
    assert await a_travel(again) == run
    assert [run_id for run_id, _, current in rig.runs("f") if current] == [run]


@pytest.mark.statement("C52", "D14")
@virtual
async def test_an_outage_is_told_and_the_repeat_goes_on(rig: Rig) -> None:
    rig.script = ASKING
    host = await rig.host(SPEC, outage_patience=2.0)
    old = await host.start("f")
    await settle()
    host.journal.out_for(30)
    assert code_of(await give_up(a_travel(host, fresh=True))) == "UNAVAILABLE"
    await asyncio.sleep(60)
    new = await a_travel(host)
    assert [(run, current) for run, _, current in rig.runs("f")] == [(old, False), (new, True)]


@pytest.mark.statement("C52", "C53", "D8")
@pytest.mark.parametrize("seed", range(12))
@virtual
async def test_journeys_writes_and_faults_in_any_order_lose_nothing_and_double_nothing(rig: Rig, seed: int) -> None:
    """Clients repeat until they are answered, while calls to the journal are cut off and the host crashes."""
    dice = random.Random(seed)
    rig.script = ASKING
    plan = Plan(seed, before=0.05, after=0.05)
    hosts = [await rig.host(SPEC, plan=plan, outage_patience=1.0)]

    async def until_answered(make: Any) -> Any:
        while True:
            try:
                return await make(hosts[-1])
            except ServiceError as error:
                if error.failure.code not in ("UNAVAILABLE", "FAILED_PRECONDITION"):
                    raise
            await asyncio.sleep(dice.random())

    await until_answered(lambda host: host.start("f", request_id="start", ignore_already_started=True))
    acknowledged: list[str] = []
    runs: list[str] = []

    async def publish(number: int) -> None:
        await asyncio.sleep(dice.random() * 20)
        ids = await until_answered(lambda host: host.publish("f", "news", NIL, request_id=f"p{number}"))
        acknowledged.extend(ids)

    async def journey(number: int) -> None:
        await asyncio.sleep(dice.random() * 20)
        point = dice.choice([{"point": "BEGINNING"}, {"point": "STEP_TYPE", "step_type": "A"}])
        runs.append(await until_answered(lambda host: a_travel(host, request_id=f"t{number}", **point)))

    async def crashes() -> None:
        for _ in range(2):
            await asyncio.sleep(dice.random() * 12)
            await hosts[-1].crash()
            hosts.append(await rig.host(SPEC, plan=plan, outage_patience=1.0))

    await asyncio.gather(
        *(publish(number) for number in range(15)), *(journey(number) for number in range(4)), crashes()
    )
    for host in hosts:
        host.journal.calm()
    await asyncio.sleep(30)
    described = await hosts[-1].describe("f")
    live = hosts[-1].host.flows["f"]
    await requests.settled(hosts[-1].host, live)
    there = [message.id for message in live.flow.state.channels["news"]]
    assert sorted(there) == sorted(acknowledged)
    assert len(set(runs)) == 4
    assert [run_id for run_id, _, current in rig.runs("f") if current] == [described.run_id]
    assert described.run_id in runs
    assert len(rig.runs("f")) == 5
