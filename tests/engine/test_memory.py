"""Flows that only wait leave memory and come back; what was down comes back lazily; loads stay bounded."""

from __future__ import annotations

import asyncio

import pytest

from dex.wire import service as s
from dexray.engine import records as engine_records
from tests.engine.rig import NIL, Rig, by_step, done, settle, virtual, wait, with_channels
from tests.machine.build import any_of, flow, go_to, graceful_complete, one, step, timer, until

ASK = with_channels(flow(step("Ask", wait_for=True)), "news")
FOR_NEWS = by_step(Ask_wait_for=wait(until(one("news"))), Ask_execute=done(graceful_complete()))
HOUR = 3600.0


def for_time(seconds: float) -> object:
    return by_step(
        Ask_wait_for=wait(any_of(timer(seconds), one("news"))),
        Ask_execute=lambda task: done(graceful_complete(b"\xc3" if task.conditions[0].fired else b"\xc2")),
    )


@virtual
async def test_flows_that_only_wait_leave_memory_and_come_back_when_asked(rig: Rig) -> None:
    rig.script = FOR_NEWS
    host = await rig.host(ASK, idle_flows=5)
    for number in range(60):
        await host.start(f"f{number}", fresh=True)
        await settle()
    assert len(host.host.flows) <= 7
    for number in range(60):
        assert (await host.phases(f"f{number}")) == {"Ask-1": "waiting"}
        assert len(host.host.flows) <= 7
    await asyncio.gather(*(host.publish(f"f{number}", "news", NIL) for number in range(60)))
    for number in range(60):
        assert (await host.result(f"f{number}")).status == "COMPLETED"
    assert host.journal.calls["claim"] <= 60  # of closed ones only: this owner knew its epochs


@virtual
async def test_an_eviction_and_a_reload_leave_no_mark_in_the_journal(rig: Rig) -> None:
    rig.script = FOR_NEWS
    host = await rig.host(ASK)
    run = await host.start("f")
    await settle()
    await host.describe("f")
    before = rig.records(run)
    for _ in range(3):
        host.host.residents.evict(host.host.flows["f"])
        assert (await host.phases("f")) == {"Ask-1": "waiting"}
    assert rig.records(run) == before
    assert host.journal.calls["claim"] == 0


@virtual
async def test_who_waits_for_a_flow_keeps_it_in_memory(rig: Rig) -> None:
    rig.script = FOR_NEWS
    host = await rig.host(ASK, idle_flows=1)
    await host.start("f")
    await settle()
    waiting = asyncio.create_task(host.result("f"))
    await settle()
    for number in range(10):
        await host.start(f"g{number}")
        await settle()
    assert "f" in host.host.flows
    await host.publish("f", "news", NIL)
    assert (await waiting).status == "COMPLETED"


@virtual
async def test_a_flow_that_comes_is_not_the_one_that_leaves(rig: Rig) -> None:
    """All others are busy, so the newcomer is the only one that could go."""
    rig.script = by_step(Ask_wait_for=lambda task: wait(until(one("news"))) if task.input == NIL else None)
    host = await rig.host(ASK, idle_flows=1)
    await host.start("f")
    await settle()
    await host.describe("f")
    host.host.residents.evict(host.host.flows["f"])
    for number in range(4):
        await host.start(f"busy{number}", input=b"\x01")
    host.host.residents._trim_above = 0
    assert (await host.phases("f")) == {"Ask-1": "waiting"}
    assert await host.publish("f", "news", NIL, fresh=True)


@virtual
async def test_a_crowd_that_comes_to_rest_leaves_memory_without_being_asked(rig: Rig) -> None:
    rig.script = by_step(Ask_wait_for=None)
    host = await rig.host(ASK, idle_flows=10)
    await asyncio.gather(*(host.start(f"f{number}", fresh=True) for number in range(200)))
    assert len(host.host.flows) == 200
    for key in list(host.port.out):
        host.port.finish(key, wait(until(one("news"))))
    await asyncio.sleep(10)
    assert len(host.host.flows) <= 12
    assert await host.phases("f100") == {"Ask-1": "waiting"}


@virtual
async def test_timers_of_flows_that_left_memory_fire_in_time(rig: Rig) -> None:
    rig.script = for_time(HOUR)
    host = await rig.host(ASK, idle_flows=2)
    for number in range(30):
        await host.start(f"f{number}")
        await settle()
    assert len(host.host.flows) <= 3
    await asyncio.sleep(HOUR - 1)
    assert rig.rows("SELECT count(*) FROM runs WHERE status = 'COMPLETED'") == [(0,)]
    await asyncio.sleep(2)
    assert rig.rows("SELECT count(*) FROM runs WHERE status = 'COMPLETED'") == [(30,)]


@virtual
async def test_what_fell_due_while_everything_was_down_is_due_once_at_the_start(rig: Rig) -> None:
    rig.script = for_time(HOUR)
    first = await rig.host(ASK)
    runs = [await first.start(f"f{number}") for number in range(10)]
    await asyncio.sleep(1)
    await first.end()
    await asyncio.sleep(30 * 24 * HOUR)
    for _ in range(2):
        again = await rig.host(ASK)
        await again.host.recovered()
        await asyncio.sleep(1)
        await again.end()
    for run in runs:
        assert len(rig.events(run, "TimerFired")) == 1
        assert len(rig.events(run, "FlowClosed")) == 1


@pytest.mark.timeout(60)
@virtual
async def test_ten_thousand_parked_flows_are_not_loaded_at_a_restart(rig: Rig) -> None:
    rig.script = for_time(HOUR)
    first = await rig.host(ASK, slots=20_000)
    await asyncio.gather(*(first.start(f"f{number}", fresh=True, input=NIL) for number in range(10_000)))
    await asyncio.sleep(1)
    await first.end()
    second = await rig.host(ASK)
    await second.host.recovered()
    assert second.journal.calls["load_all"] == 0
    assert second.host.flows == {}
    assert second.journal.calls["open_runs"] <= 22
    assert await second.publish("f7777", "news", NIL)
    assert (await second.result("f7777")).status == "COMPLETED"
    assert len(second.host.flows) == 1


@pytest.mark.parametrize("step_of_the_clock", [HOUR, -HOUR])
@virtual
async def test_a_wall_clock_that_is_set_moves_nothing(rig: Rig, step_of_the_clock: float) -> None:
    """Timers, what a call waits and how long an attempt may run are durations."""
    rig.script = lambda task: wait(until(timer(600.0))) if task.key.method == "wait_for" and task.input == NIL else None
    host = await rig.host(ASK)
    run = await host.start("timer")
    await host.start("busy", input=b"\x01")
    await asyncio.sleep(1)
    host.port.sink.attempt_running(host.port.only("Ask"))
    loop = asyncio.get_running_loop()
    begin = loop.time()
    waiting = asyncio.create_task(host.history("timer", after=100, wait=30))
    polling = asyncio.create_task(host.call(s.WaitForFlow(flow_id="busy", timeout=20)))
    await asyncio.sleep(1)
    rig.clock.wall_offset += step_of_the_clock
    await asyncio.sleep(1)
    await asyncio.wait({waiting, polling})
    assert loop.time() - begin <= 30.1
    assert polling.exception() is not None
    await asyncio.sleep(15)
    assert await host.phases("busy") == {"Ask-1": "running"}
    assert host.port.canceled == []
    assert rig.events(run, "TimerFired") == []
    await asyncio.sleep(begin + 590 - loop.time())  # at 1 % off
    assert rig.events(run, "TimerFired") == []
    await asyncio.sleep(20)
    assert len(rig.events(run, "TimerFired")) == 1


@virtual
async def test_a_retry_that_is_not_due_any_more_when_it_gets_a_slot_comes_due_again(rig: Rig) -> None:
    from tests.engine.rig import failed

    rig.script = by_step(Ask_wait_for=lambda task: failed() if task.key.attempt == 1 else wait(until(one("news"))))
    host = await rig.host(ASK, slots=1)
    await host.start("f")
    await asyncio.sleep(0.5)
    host.port.slots = 0
    await asyncio.sleep(1)  # the retry is due, and has no slot
    rig.clock.offset -= 60  # as an owner with another clock would see it
    host.port.slots = 1
    host.host.slots_changed()
    await asyncio.sleep(1)
    assert len(host.port.ran) == 1
    await asyncio.sleep(70)
    assert len(host.port.ran) == 2


# Checkpoints ----------------------------------------------------------------------------------------------------------


@pytest.mark.timeout(60)
@virtual
async def test_a_flow_of_three_thousand_steps_loads_from_a_checkpoint_and_a_short_tail(rig: Rig) -> None:
    rig.script = by_step(A=lambda task: done(go_to("A")) if task.key.step_execution_id != "A-3000" else None)
    spec = flow(step("A"))
    first = await rig.host(spec)
    run = await first.start("f")
    await asyncio.sleep(1)
    assert first.port.only("A").step_execution_id == "A-3000"
    await first.crash()
    loaded = first.journal.inner.load(run)
    assert loaded.checkpoint is not None
    assert len(loaded.tail) <= 200
    assert loaded.checkpoint_seq + len(loaded.tail) == 3000
    rig.script = by_step(A=done(graceful_complete(b"\x01")))
    second = await rig.host(spec)
    result = await second.result("f")
    assert result.completions[0].step_execution_id == "A-3000"
    assert len(rig.events(run, "StepCompleted")) == 3000
    assert len(rig.events(run, "StepScheduled")) == 3000
    assert rig.rows("SELECT count(*) FROM checkpoints WHERE run_id = ?", run) == [(1,)]


@virtual
async def test_a_checkpoint_is_the_sum_of_the_records_up_to_its_own(rig: Rig) -> None:
    """Loading from the checkpoint and from all records gives the same Flow, at every record."""
    from dexray.machine.state import as_plain, decode_checkpoint
    from tests.machine.build import replay

    rig.script = by_step(Ask_wait_for=wait(until(one("never"))))
    host = await rig.host(with_channels(flow(step("Ask", wait_for=True)), "news"), checkpoint_records=3)
    run = await host.start("f")
    for number in range(20):
        await host.publish("f", "news", bytes([number]), fresh=True)
        loaded = host.journal.inner.load(run)
        if loaded.checkpoint is None:
            continue
        all_records = host.journal.inner.records(run, 0, 1000)
        flow_then = replay([(record.at, record.body) for record in all_records if record.seq <= loaded.checkpoint_seq])
        assert as_plain(decode_checkpoint(loaded.checkpoint)) == as_plain(flow_then)
    assert rig.rows("SELECT count(*) FROM checkpoints") == [(1,)]


@virtual
async def test_a_large_state_is_not_encoded_for_every_record(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    rig.script = by_step(Ask_wait_for=wait(until(one("never"))))
    encoded = 0
    encode = engine_records.encode_checkpoint

    def counted(flow_: object) -> bytes:
        nonlocal encoded
        encoded += 1
        return encode(flow_)  # type: ignore[arg-type]

    monkeypatch.setattr(engine_records, "encode_checkpoint", counted)
    host = await rig.host(ASK, checkpoint_records=20)
    await host.start("f")
    for number in range(40):  # a state of 600 kB
        await host.publish("f", "news", bytes([number]) * 15_000, fresh=True)
    encoded = 0
    for _ in range(300):
        await host.publish("f", "news", NIL, fresh=True)
    assert encoded <= 16
