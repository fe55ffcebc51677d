"""An owner that finds very many Flows to go on with: all come to their end, in lots and at a pace, and one that can't
be read, or whose code is gone, holds up nobody.

The invariants: every open Flow that is due is loaded, whatever becomes of the others; a lot costs as many statements as
one Flow; what a request is about goes first; memory holds what there are slots for and some more, not all that is due.
"""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import pytest

from dex.wire.specs import RetrySpec
from dexray.engine import HostSettings, NotMine, loading
from dexray.journal import open_journal
from dexray.journal.interface import Append, NewRun, Outcome
from dexray.protocol.attempts import ConditionSpec, WaitForSucceeded
from dexray.protocol.subflows import SubFlowSpec
from dexray.stores import StoreTable
from tests.engine.faulty import give_up
from tests.engine.rig import NIL, Machine, Rig, by_step, done, failed, virtual, wait, with_channels
from tests.machine.build import any_of, flow, graceful_complete, method, one, step, timer, until

HOUR = 3600.0
ASK = with_channels(flow(step("Ask", wait_for=True)), "news")


def a_flow_of(flow_type: str, *steps: Any, channels: Sequence[str] = ()) -> Any:
    return msgspec.structs.replace(flow(*steps), flow_type=flow_type, channels=tuple(channels))


def subflow(flow_type: str) -> WaitForSucceeded:
    spec = SubFlowSpec(flow_type=flow_type, input=NIL, reuse_policy="ATTACH")
    return wait(until(ConditionSpec(kind="subflow", subflow=spec)))


WORK = a_flow_of("Work", step("Work"))
MAIL = a_flow_of("Mail", step("Mail", wait_for=True), channels=["news"])
TIMED = a_flow_of("Timed", step("Timed", wait_for=True))
RETRIED = a_flow_of("Retried", step("Retried", execute=method(retry=RetrySpec(initial=600.0))))
PARENT = a_flow_of("Parent", step("Parent", wait_for=True))
GONE = a_flow_of("Gone", step("Gone"))
ALL = (WORK, MAIL, TIMED, RETRIED, PARENT, GONE)


class Lots:
    """Notes how many Flows a host loads at a time."""

    def __init__(self, host: Machine) -> None:
        self.sizes: list[int] = []
        load_all = host.journal.inner.load_all

        def noted(run_ids: Sequence[str]) -> Any:
            self.sizes.append(len(run_ids))
            return load_all(run_ids)

        host.journal.inner.load_all = noted


def most_of(place: Any, method: str, count: Callable[[], int]) -> Callable[[], int]:
    """The largest `count` after any call of a method from now on."""
    most, call = 0, getattr(place, method)

    def counted(*arguments: Any) -> Any:
        nonlocal most
        answer = call(*arguments)
        most = max(most, count())
        return answer

    setattr(place, method, counted)
    return lambda: most


def counts(rig: Rig, question: str) -> int:
    return int(rig.rows(f"SELECT count(*) FROM runs WHERE {question}")[0][0])


@pytest.mark.parametrize(("slots", "places"), [(3, 0), (1_000, 3)])
@virtual
async def test_flows_in_every_phase_come_to_their_end_through_a_handful_of_slots(
    rig: Rig, slots: int, places: int, caplog: pytest.LogCaptureFixture
) -> None:
    each = 30
    first = await rig.host(*ALL)
    rig.script = by_step(
        Mail_wait_for=wait(until(one("news"))),
        Timed_wait_for=wait(until(timer(HOUR))),
        Retried=failed(),
        Parent_wait_for=subflow("Timed"),
    )  # the attempts of Work and Gone stay out
    for number in range(each):
        for spec in (WORK, MAIL, TIMED, RETRIED, PARENT):
            await first.start(f"{spec.flow_type}-{number}", spec.flow_type, fresh=True)
    gone = await first.start("gone", "Gone")
    damaged = await first.start("damaged", "Work")
    await asyncio.sleep(1)
    assert {
        phase
        for name in ("Work", "Mail", "Timed", "Retried", "Parent")
        for phase in (await first.phases(f"{name}-7")).values()
    } == {"running", "waiting", "backoff"}
    await first.crash()
    with sqlite3.connect(rig.path) as damage:
        damage.execute("UPDATE events SET body = x'00' WHERE run_id = ? AND seq = 1", (damaged,))

    rig.script = by_step(
        **{spec.flow_type: done(graceful_complete()) for spec in (WORK, RETRIED)},
        **{f"{spec.flow_type}_execute": done(graceful_complete()) for spec in (MAIL, TIMED, PARENT)},
        Timed_wait_for=wait(until(timer(HOUR))),
    )
    second = await rig.host(*ALL[:-1], slots=slots, active_flows=places, recovery_width=16)
    second.port.seconds = 0.01
    lots = Lots(second)
    at_work = most_of(second.port, "run", lambda: len({key.flow_id for key in second.port.out}))
    await second.host.recovered()
    due = sum(lots.sizes)
    assert due >= 3 * each
    assert max(lots.sizes) == 16
    asked = sum(second.journal.calls[operation] for operation in ("current_runs", "claim", "load_all"))
    assert asked <= 3 * (due / 16 + 3), "a lot costs more than one Flow"
    for number in range(each):
        await second.publish(f"Mail-{number}", "news", NIL, fresh=True)
    await asyncio.sleep(2 * HOUR)
    assert counts(rig, "status = 'COMPLETED'") == 6 * each
    assert at_work() == 3
    assert rig.rows("SELECT flow_id FROM runs WHERE closed_at IS NULL ORDER BY flow_id") == [("damaged",), ("gone",)]
    assert "can't be read after record 0" in (await second.describe("damaged")).problem
    assert f"the journal of its run {damaged} can't be read" in caplog.text
    assert "no code is deployed for Flow type Gone" in (await second.describe("gone")).problem
    assert len(rig.events(gone, "AttemptFailed")) == 1, "the loss of its owner is all that has happened to it"


@virtual
async def test_timers_that_fall_due_at_the_same_time_come_in_lots(rig: Rig) -> None:
    rig.script = by_step(Ask_wait_for=wait(any_of(timer(HOUR), one("news"))), Ask_execute=done(graceful_complete()))
    host = await rig.host(ASK, idle_flows=5, recovery_width=20)
    await asyncio.gather(*(host.start(f"f{number}", fresh=True) for number in range(200)))
    await asyncio.sleep(10)
    assert len(host.host.flows) < 10
    lots = Lots(host)
    before = sum(host.journal.calls.values()) - host.journal.calls["append"]
    await asyncio.sleep(2 * HOUR)
    assert counts(rig, "status = 'COMPLETED'") == 200
    assert max(lots.sizes) == 20
    reads = sum(host.journal.calls.values()) - host.journal.calls["append"] - before
    assert reads <= 2 * (200 / 20 + 1), "two looks a lot"


@virtual
async def test_flows_that_are_due_come_as_there_is_work_for_them(rig: Rig) -> None:
    """With slots for a thousand a second, memory holds a few of those that are due, and never very many."""
    rig.script = by_step(Ask_wait_for=wait(any_of(timer(HOUR), one("news"))), Ask_execute=done(graceful_complete()))
    host = await rig.host(ASK, idle_flows=50, recovery_width=10, slots=1_000)
    await asyncio.gather(*(host.start(f"f{number}", fresh=True) for number in range(500)))
    await asyncio.sleep(10)
    host.port.slots, host.port.seconds = 10, 0.01
    most = most_of(
        host.host.residents, "add", lambda: sum(not live.flow.is_closed for live in host.host.flows.values())
    )
    await asyncio.sleep(2 * HOUR)
    assert counts(rig, "status = 'COMPLETED'") == 500
    assert 50 < most() < 100


@virtual
async def test_flows_that_wait_for_a_slot_in_vain_hold_up_no_others(rig: Rig) -> None:
    stuck, ready = a_flow_of("Stuck", step("Stuck")), a_flow_of("Ready", step("Ready"))
    first = await rig.host(stuck, ready, slots=0)
    for number in range(200):
        await first.start(f"stuck-{number}", "Stuck", fresh=True)
    for number in range(50):
        await first.start(f"ready-{number}", "Ready", fresh=True)
    await first.crash()
    rig.script = by_step(Ready=done(graceful_complete()))
    second = await rig.host(stuck, ready, idle_flows=10, recovery_width=10)
    reserve = second.port.reserve
    second.port.reserve = lambda flow_type, *kind: flow_type == "Ready" and reserve(flow_type, *kind)  # type: ignore[method-assign]
    await asyncio.sleep(250 / loading.PACE + 1)
    assert counts(rig, "status = 'COMPLETED'") == 50
    assert len(second.host.flows) >= 200


@virtual
async def test_what_a_request_is_about_is_loaded_before_what_is_due(rig: Rig) -> None:
    first = await rig.host(WORK, MAIL)
    rig.script = by_step(Mail_wait_for=wait(until(one("news"))))
    for number in range(200):
        await first.start(f"w{number}", "Work", fresh=True)
    await first.start("parked", "Mail")
    await asyncio.sleep(1)
    await first.crash()
    second = await rig.host(WORK, MAIL, recovery_width=10)
    second.lane.before = 0.1
    await asyncio.sleep(1)
    assert len(second.host.flows) < 50
    assert await second.phases("parked") == {"Mail-1": "waiting"}
    assert await second.phases("w199") == {"Work-1": "backoff"}, "it stood in the queue already, and comes sooner"
    assert len(second.host.flows) < 100
    await second.host.recovered()
    assert len(second.host.flows) == 201
    second.lane.before = 0.0
    await asyncio.sleep(10)


@virtual
async def test_a_flow_that_spoils_its_lot_is_left_aside_and_named(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    first = await rig.host(WORK)
    runs = [await first.start(f"w{number}", "Work", fresh=True) for number in range(40)]
    await first.crash()
    rig.script = by_step(Work=done(graceful_complete()))
    second = with_a_spoiled_run(rig, runs[7])
    second.begin(WORK)
    await second.host.recovered()
    await asyncio.sleep(10)
    assert counts(rig, "status = 'COMPLETED'") == 39
    spoiled = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert [record.getMessage() for record in spoiled] == ["Flow 'w7' can't be resumed; the others go on"]
    assert "a page of the file" in str(spoiled[0].exc_info)
    assert "a page of the file" in str(await give_up(second.describe("w7")))


def with_a_spoiled_run(rig: Rig, run_id: str) -> Machine:
    machine = Machine(rig, "one", HostSettings(), 1_000, None, StoreTable)
    rig.machines.append(machine)
    load_all = machine.journal.inner.load_all

    def spoiled(run_ids: Sequence[str]) -> Any:
        if run_id in run_ids:
            raise ValueError("a page of the file can't be read")
        return load_all(run_ids)

    machine.journal.inner.load_all = spoiled
    return machine


@virtual
async def test_a_run_that_was_replaced_while_it_was_loaded_is_not_taken_for_the_current_one(rig: Rig) -> None:
    rig.script = by_step(Work=done(graceful_complete()))
    first = await rig.host(WORK)
    old = await first.start("f", "Work")
    await first.end()
    second = await rig.host(WORK)
    await second.host.recovered()
    look = second.journal.inner.current_runs

    def then_replaced(flow_ids: Sequence[str]) -> Any:
        rows = look(flow_ids)
        second.journal.inner.current_runs = look
        other = open_journal(rig.path)
        new = NewRun("f", "Work", "another", "q", rig.clock.now(), replaces=old)
        outcomes = other.append([Append("new", 1, 1, rig.clock.now(), b"", new_run=new)])
        other.close()
        assert outcomes == [Outcome.DURABLE]
        return rows

    second.journal.inner.current_runs = then_replaced
    elsewhere = await give_up(second.describe("f"))
    assert isinstance(elsewhere, NotMine)
    assert elsewhere.owner == "another"
