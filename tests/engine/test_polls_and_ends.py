"""Long polls end when they said they would; a host that ends leaves no task, no timer and no thread."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from dex.wire import service as s
from dexray.engine import FlowHost, LoopClock
from dexray.engine.clock import BlockingThread
from dexray.journal import open_journal
from tests.engine.faulty import ScriptedPort, give_up
from tests.engine.rig import NIL, Machine, Rig, by_step, code_of, done, settle, virtual, wait, with_channels
from tests.machine.build import flow, graceful_complete, method, one, step, until

ASK = with_channels(flow(step("Ask", wait_for=method(timeout=100.0))), "news")
FOR_NEWS = by_step(Ask_wait_for=wait(until(one("news"))), Ask_execute=done(graceful_complete()))


async def waiting_flow(rig: Rig, **settings: float) -> Machine:
    rig.script = FOR_NEWS
    host = await rig.host(ASK, **settings)  # type: ignore[arg-type]
    await host.start("f")
    await settle()
    await host.describe("f")
    return host


@pytest.mark.statement("C64")
@virtual
async def test_a_long_poll_for_the_end_of_a_flow_ends_on_time(rig: Rig) -> None:
    host = await waiting_flow(rig)
    loop = asyncio.get_running_loop()
    for asked, meant in ((0.5, 0.5), (30.0, 30.0), (1000.0, 60.0)):
        begin = loop.time()
        error = await give_up(host.result("f", timeout=asked))
        assert code_of(error) == "DEADLINE_EXCEEDED"
        assert error.failure.sub_status == "LONG_POLL_TIMEOUT"  # type: ignore[union-attr]
        assert loop.time() - begin == pytest.approx(meant, abs=0.01)
    assert not host.host.flows["f"].closed_waiters


@pytest.mark.statement("C64")
@virtual
async def test_history_is_told_as_it_is_made(rig: Rig) -> None:
    host = await waiting_flow(rig)
    page = await host.history("f")
    assert [event.number for event in page.events] == list(range(1, len(page.events) + 1))
    last = page.events[-1].number
    loop = asyncio.get_running_loop()
    begin = loop.time()
    empty = await host.history("f", after=last, wait=7)
    assert (empty.events, empty.closed) == ((), False)
    assert loop.time() - begin == pytest.approx(7, abs=0.01)
    polling = asyncio.create_task(host.history("f", after=last, wait=50))
    await asyncio.sleep(5)
    assert not polling.done()
    await host.publish("f", "news", NIL)
    page = await polling
    assert page.events[0].number == last + 1
    assert page.events[0].kind == "MessagePublished"
    seen = list(page.events)
    while not page.closed:
        page = await host.history("f", after=seen[-1].number, wait=5)
        seen += page.events
    assert seen[-1].kind == "FlowClosed"
    assert [event.number for event in seen] == list(range(last + 1, last + 1 + len(seen)))
    begin = loop.time()
    assert (await host.history("f", after=seen[-1].number, wait=50)).closed
    assert loop.time() == begin


@virtual
async def test_a_history_poll_is_not_ended_by_a_record_without_events(rig: Rig) -> None:
    host = await waiting_flow(rig)
    polling = asyncio.create_task(host.history("f", after=100, wait=10))
    await asyncio.sleep(1)
    await host.publish("f", "news")  # no message, only an answer to remember
    begin = asyncio.get_running_loop().time()
    await polling
    assert asyncio.get_running_loop().time() - begin >= 8.9


@virtual
async def test_pages_of_a_long_history_join(rig: Rig) -> None:
    rig.script = by_step(Ask_wait_for=wait(until(one("never"))))
    host = await rig.host(ASK)
    await host.start("f")
    for number in range(600):
        await host.publish("f", "news", bytes([number % 100]), fresh=True)
    seen: list[s.HistoryEvent] = []
    while True:
        page = await host.history("f", after=len(seen), limit=250)
        seen += page.events
        if not page.more:
            break
        assert len(page.events) == 250
    assert [event.number for event in seen] == list(range(1, 605))


@pytest.mark.statement("B161", "B118")
@virtual
async def test_a_silent_attempt_is_given_up_and_asked_to_stop(rig: Rig) -> None:
    rig.script = by_step(Ask_wait_for=None)
    host = await rig.host(ASK)
    run = await host.start("f")
    key = host.port.only("Ask")
    await asyncio.sleep(5000)  # it waits for a worker: that counts toward nothing
    host.host.attempt_running(key)
    await asyncio.sleep(59)
    host.host.attempt_heartbeat(key, None)
    await asyncio.sleep(41)
    assert host.port.canceled == []
    await asyncio.sleep(2)
    assert host.port.canceled == [key]
    assert rig.events(run, "AttemptFailed")[0][3][2] == "METHOD_TIMEOUT"
    await asyncio.sleep(2)
    (again,) = [other for other in host.port.out if other != key]
    host.host.attempt_running(again)
    await asyncio.sleep(61)
    assert rig.events(run, "AttemptFailed")[1][3][2] == "HEARTBEAT_TIMEOUT"


# Ends -----------------------------------------------------------------------------------------------------------------


def timers() -> list[object]:
    return [handle for handle in asyncio.get_running_loop()._scheduled if not handle.cancelled()]  # type: ignore[attr-defined]


@pytest.mark.parametrize("way", ["end", "crash"])
@virtual
async def test_a_host_that_ends_leaves_no_task_and_no_timer(rig: Rig, way: str) -> None:
    rig.script = by_step(Ask_wait_for=lambda task: None if task.input == NIL else wait(until(one("news"))))
    host = await rig.host(ASK, idle_flows=1)
    for number in range(5):
        await host.start(f"f{number}")
    await host.start("w", input=b"\x01", timeout=500.0)
    for key in host.port.out:
        host.host.attempt_running(key)
    await settle()
    calls = [
        asyncio.create_task(give_up(host.result("w"))),
        asyncio.create_task(give_up(host.history("w", after=100, wait=30))),
    ]
    await settle()
    await (host.end() if way == "end" else host.crash())
    assert [code_of(await call) for call in calls] == ["UNAVAILABLE"] * 2
    assert asyncio.all_tasks() == {asyncio.current_task()}
    assert timers() == []
    assert code_of(await give_up(host.describe("w"))) == "UNAVAILABLE"


@virtual
async def test_an_orderly_end_writes_what_was_decided_and_hands_out_nothing_more(rig: Rig) -> None:
    rig.script = by_step(Ask_wait_for=None)
    host = await rig.host(ASK, slots=1)
    await host.start("f", fresh=True)
    await host.start("waits", fresh=True)
    run = await host.start("g", fresh=True)
    host.lane.before = 0.01
    publishing = asyncio.create_task(host.publish("g", "news", NIL, fresh=True))
    await settle(1)
    host.port.finish(host.port.only("Ask"), wait(until(one("news"))))
    ran = len(host.port.ran)
    await host.end()
    assert await publishing
    assert len(rig.events(run, "MessagePublished")) == 1
    assert len(host.port.ran) == ran
    again = await rig.host(ASK)
    await asyncio.sleep(5)
    assert {task.key.attempt for task in again.port.ran} == {1}


@virtual
async def test_calls_that_are_cut_off_by_the_end_of_the_host_are_answered_at_once(rig: Rig) -> None:
    host = await rig.host(ASK, outage_patience=3.0)
    host.lane.hold()
    starting = asyncio.create_task(give_up(host.start("f", fresh=True)))
    await settle()
    publishing = asyncio.create_task(give_up(host.publish("f", "news", NIL, fresh=True)))
    await settle()
    await host.crash()
    begin = asyncio.get_running_loop().time()
    assert [code_of(await call) for call in (starting, publishing)] == ["UNAVAILABLE"] * 2
    assert asyncio.get_running_loop().time() == begin
    assert host.port.taken == 0


def test_with_a_real_thread_and_clock_nothing_is_left_behind(tmp_path: Path) -> None:
    before = set(threading.enumerate())

    async def main() -> None:
        journal = open_journal(str(tmp_path / "flows.db"))
        journal.migrate()
        blocking = BlockingThread("journal-of-a-test")
        port = ScriptedPort(FOR_NEWS)
        numbers = iter(range(1_000))
        host = FlowHost(
            owner="one",
            journal=journal,
            attempts=port,
            clock=LoopClock(),
            blocking=blocking,
            new_id=lambda: f"id-{next(numbers)}",
        )
        port.sink = host
        machine = Machine.__new__(Machine)
        machine.host = host
        machine.deploy(ASK)
        host.start()
        await host.call(s.StartFlow(flow_id="f", flow_type="Demo", input=NIL, request_id="r", fresh=True))
        await host.call(s.Publish(flow_id="f", channel="news", values=(NIL,), request_id="p", fresh=True))
        outcome = await host.call(s.WaitForFlow(flow_id="f", timeout=10))
        assert isinstance(outcome, s.FlowOutcome)
        assert outcome.status == "COMPLETED"
        await host.stop()
        assert asyncio.all_tasks() == {asyncio.current_task()}
        blocking.close()
        journal.close()

    asyncio.run(main())
    assert set(threading.enumerate()) == before
