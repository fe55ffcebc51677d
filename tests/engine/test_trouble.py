"""One Flow's trouble stops that Flow alone, says why, and ends when its cause does."""

from __future__ import annotations

import asyncio
import sqlite3
from typing import Any

import pytest
from msgspec.structs import replace

from dex.wire import service as s
from dex.wire.specs import FailureRoute
from dexray.engine import hand_outs
from dexray.protocol.attempts import AttemptReturned
from tests.engine.faulty import give_up
from tests.engine.rig import NIL, Machine, Rig, by_step, code_of, done, failed, settle, virtual, wait, with_channels
from tests.machine.build import complete_if_empty, flow, go_to, graceful_complete, method, one, step, until

WORK = replace(with_channels(flow(step("A"), step("B")), "news"), attributes=("color",))
BROKEN = replace(
    complete_if_empty("news", fallback="B"), fallback=None
)  # the machine can't follow it: a violated assert


async def in_trouble(rig: Rig, **settings: Any) -> tuple[Machine, str]:
    host = await rig.host(WORK, **settings)
    run = await host.start("f")
    await host.start("sound")
    await host.publish("f", "news", NIL)
    (key,) = [key for key in host.port.out if key.flow_id == "f"]
    host.port.finish(key, done(BROKEN))
    await settle()
    return host, run


@virtual
async def test_a_violated_invariant_stops_one_flow_and_says_why(rig: Rig) -> None:
    host, run = await in_trouble(rig)
    before = rig.records(run)
    description = await host.describe("f")
    assert description.status == "RUNNING"
    assert "AssertionError" in description.problem
    for call in (host.publish("f", "news", NIL), host.stop("f"), host.result("f")):
        error = await give_up(call)
        assert code_of(error) == "INTERNAL"
        assert "AssertionError" in str(error)
    host.port.finish(host.port.only("A"), done(graceful_complete()))
    assert (await host.result("sound")).status == "COMPLETED"
    await asyncio.sleep(3600)
    assert rig.records(run) == before


@virtual
async def test_who_waits_for_a_flow_that_gets_into_trouble_is_told(rig: Rig) -> None:
    host = await rig.host(WORK)
    await host.start("f")
    await host.publish("f", "news", NIL)
    waiting = asyncio.create_task(give_up(host.result("f")))
    await settle()
    host.lane.hold()
    publishing = asyncio.create_task(give_up(host.publish("f", "news", NIL, fresh=True)))
    await settle(2)
    host.port.finish(host.port.only("A"), done(BROKEN))
    begin = asyncio.get_running_loop().time()
    assert code_of(await waiting) == "INTERNAL"
    host.lane.free()
    assert await publishing is None or code_of(await publishing) == "INTERNAL"
    assert asyncio.get_running_loop().time() - begin < 1


@virtual
async def test_of_a_flow_in_trouble_nothing_is_told_that_is_not_durable(rig: Rig) -> None:
    """What it came to in memory before it stopped is lost: neither its end nor its Attributes are told."""
    host = await rig.host(WORK)
    run = await host.start("f")
    live = host.host.flows["f"]
    result = done(graceful_complete(b"\x01"), attributes={"color": b"\x01"})
    host.lane.hold()
    host.port.finish(host.port.only("A"), result)
    host.host.park(live, AssertionError("found right after"))
    await settle()
    host.lane.free()
    assert live.flow.is_closed
    assert code_of(await give_up(host.result("f"))) == "INTERNAL"
    assert code_of(await give_up(host.call(s.GetAttribute(flow_id="f", name="color")))) == "INTERNAL"
    error = await give_up(host.start("f", id_reuse_policy="ALLOW_IF_NOT_RUNNING"))
    assert code_of(error) == "ALREADY_EXISTS"
    assert rig.events(run, "FlowClosed") == []


@pytest.mark.statement("D16")
@virtual
async def test_a_deploy_lets_a_flow_in_trouble_try_again(rig: Rig) -> None:
    host, run = await in_trouble(rig)
    host.deploy(WORK, name="d2")
    await settle()
    assert (await host.describe("f")).problem == ""
    await asyncio.sleep(5)
    (key,) = [key for key in host.port.out if key.flow_id == "f"]
    assert key.attempt == 2
    host.port.finish(key, done(graceful_complete()))
    assert (await host.result("f")).status == "COMPLETED"
    assert rig.events(run, "AttemptStarted")[-1][4] == "d2"


@pytest.mark.statement("D16")
@virtual
async def test_a_route_to_a_step_that_is_not_deployed_is_healed_by_a_deploy(rig: Rig) -> None:
    spec = flow(step("A", method(attempts=1), route=FailureRoute(step_type="Rescue")), step("B"))
    rig.script = by_step(A=failed(), Rescue=done(graceful_complete()))
    host = await rig.host(spec)
    await host.start("f")
    await asyncio.sleep(1)
    assert "Rescue" in (await host.describe("f")).problem
    rescued = flow(step("A", method(attempts=2), route=FailureRoute(step_type="Rescue")), step("B"), step("Rescue"))
    host.deploy(rescued, name="d2")
    assert (await host.result("f")).status == "COMPLETED"


def damage(rig: Rig, table: str, run: str, where: str = "1") -> None:
    connection = sqlite3.connect(rig.path)
    changed = connection.execute(f"UPDATE {table} SET body = x'c1c1' WHERE run_id = ? AND {where}", (run,))
    assert changed.rowcount == 1
    connection.commit()
    connection.close()


@pytest.mark.parametrize("what", ["first record", "later record", "checkpoint"])
@virtual
async def test_a_journal_that_cannot_be_read_stops_one_flow(rig: Rig, what: str) -> None:
    first = await rig.host(WORK, checkpoint_records=1 if what == "checkpoint" else 1000)
    run = await first.start("f")
    await first.publish("f", "news", bytes(5000))
    await first.start("sound")
    await first.crash()
    if what == "checkpoint":
        damage(rig, "checkpoints", run)
    else:
        damage(rig, "events", run, "seq = 1" if what == "first record" else "seq = 2")
    rig.script = by_step(A=done(graceful_complete()))
    second = await rig.host(WORK)
    assert (await second.result("sound")).status == "COMPLETED"
    description = await second.describe("f")
    assert (description.flow_id, description.run_id, description.status) == ("f", run, "RUNNING")
    assert "can't be read" in description.problem
    for call in (second.publish("f", "news", NIL), second.result("f"), second.stop("f")):
        assert code_of(await give_up(call)) == "INTERNAL"
    if what != "checkpoint":
        assert code_of(await give_up(second.history("f"))) == "INTERNAL"
    second.deploy(WORK)
    await settle()
    assert "can't be read" in (await second.describe("f")).problem


@virtual
async def test_a_record_that_the_database_cannot_take_stops_its_flow_alone(rig: Rig) -> None:
    host = await rig.host(WORK)
    run = await host.start("f")
    await host.start("sound")
    host.journal.poison = lambda record: record.run_id == run
    errors = await asyncio.gather(
        give_up(host.publish("f", "news", NIL, fresh=True)), give_up(host.publish("sound", "news", NIL, fresh=True))
    )
    assert errors[1] is None
    assert code_of(errors[0]) == "UNAVAILABLE"
    assert "can't take" in (await host.describe("f")).problem
    (key,) = [key for key in host.port.out if key.flow_id == "sound"]
    host.port.finish(key, done(graceful_complete()))
    assert (await host.result("sound")).status == "COMPLETED"
    host.journal.poison = None
    host.deploy(WORK)
    await settle()
    assert (await host.describe("f")).problem == ""


@virtual
async def test_slots_that_a_flow_had_reserved_are_free_when_it_stops(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """The start of one Step is decided and not yet written when another Step of the Flow can't be handed out."""
    rig.script = by_step(A=done(go_to("B", "C")))
    host = await rig.host(flow(step("A"), step("B"), step("C"), step("D")), flow(step("D")), slots=2)
    spec = replace(flow(step("D")), flow_type="Other")
    host.deploy(spec)
    make = hand_outs.attempt_task

    def unwilling(state: Any, step_: Any, spec_: Any) -> Any:
        if step_.step_type == "C":
            raise RuntimeError("no task can be made of it")
        return make(state, step_, spec_)

    monkeypatch.setattr(hand_outs, "attempt_task", unwilling)
    host.deploy(flow(step("A"), step("B"), step("C")))
    host.deploy(spec)
    await host.start("f", fresh=True)
    await host.start("g", "Other", fresh=True)
    await host.start("h", "Other", fresh=True)
    await asyncio.sleep(1)
    assert "no task" in (await host.describe("f")).problem
    assert {key.flow_id for key in host.port.out} == {"g", "h"}
    assert host.port.taken == 2


# Code that is not deployed --------------------------------------------------------------------------------------------


@pytest.mark.statement("B213", "D7", "D16", "B23")
@virtual
async def test_a_step_whose_code_is_not_deployed_waits_and_uses_no_retry(rig: Rig) -> None:
    rig.script = by_step(A=None, B=done(graceful_complete()))
    host = await rig.host(flow(step("A"), step("B", method(attempts=1))))
    await host.start("f")
    host.port.finish(host.port.only("A"), done(go_to("B")))
    host.deploy(flow(step("A")), name="d2")
    await asyncio.sleep(10 * 3600)
    description = await host.describe("f")
    (waiting,) = description.steps
    assert (waiting.step_execution_id, waiting.phase, waiting.attempt) == ("B-1", "ready", 1)
    assert "B" in description.problem
    assert "deploy" in waiting.waits_for
    host.deploy(flow(step("A"), step("B", method(attempts=1))), name="d3")
    assert (await host.result("f")).status == "COMPLETED"
    assert host.port.runs_of("B")[0].key.attempt == 1
    assert host.port.runs_of("B")[0].deployment_id == "d3"


@pytest.mark.statement("B213", "D7", "D16")
@virtual
async def test_flows_of_a_former_life_wait_for_their_code(rig: Rig) -> None:
    first = await rig.host(WORK)
    await first.start("f")
    await first.crash()
    rig.script = by_step(A=done(graceful_complete()))
    second = await rig.host()
    await second.host.recovered()
    await asyncio.sleep(3600)
    assert second.port.ran == []
    assert "no code is deployed" in (await second.describe("f")).problem
    assert code_of(await give_up(second.start("g"))) == "FAILED_PRECONDITION"
    second.deploy(WORK)
    assert (await second.result("f")).status == "COMPLETED"


@pytest.mark.statement("D16")
@virtual
async def test_the_newest_code_runs_the_next_attempt_and_history_says_which_ran(rig: Rig) -> None:
    rig.script = by_step(A=lambda task: failed() if task.key.attempt == 1 else done(graceful_complete()))
    host = await rig.host(WORK)
    run = await host.start("f")
    await settle()
    host.deploy(WORK, name="d2")
    assert (await host.result("f")).status == "COMPLETED"
    assert [event[4] for event in rig.events(run, "AttemptStarted")] == ["d1", "d2"]


@pytest.mark.statement("B166", "D16")
@virtual
async def test_an_attempt_that_a_worker_gave_back_is_handed_out_again_under_its_number(rig: Rig) -> None:
    given_back = iter([True, True, False])
    rig.script = by_step(
        A=lambda task: AttemptReturned(reason="no such code") if next(given_back) else done(graceful_complete())
    )
    host = await rig.host(flow(step("A", method(attempts=1))))
    await host.start("f")
    await asyncio.sleep(1)
    assert "no such code" in (await host.describe("f")).steps[0].waits_for
    assert (await host.result("f")).status == "COMPLETED"
    assert [task.key.attempt for task in host.port.ran] == [1, 1, 1]


@virtual
async def test_a_step_that_takes_over_in_the_moment_of_a_hand_out_is_handed_out_too(rig: Rig) -> None:
    """A retry turns out to be one too many when its code comes back: its route takes over, in the same flush."""
    rig.script = by_step(A=None, Rescue=done(graceful_complete()))
    spec = flow(step("A", method(attempts=1), route="Rescue"), step("Rescue"))
    host = await rig.host(spec)
    await host.start("f")
    await settle()
    host.deploy(flow(step("Rescue"), start=None))
    host.port.finish(host.port.only("A"), failed())
    await asyncio.sleep(60)
    host.deploy(spec)
    assert (await host.result("f", timeout=5)).status == "COMPLETED"


@pytest.mark.statement("D9")
@virtual
async def test_late_and_repeated_results_are_refused_and_counted(rig: Rig) -> None:
    rig.script = by_step(A=None, Ask_wait_for=wait(until(one("news"))))
    host = await rig.host(with_channels(flow(step("A"), step("Ask", wait_for=True)), "news"))
    run = await host.start("f")
    key = host.port.only("A")
    host.port.finish(key, done(go_to("Ask"), publications=(("news", "m1", NIL),)))
    await settle()
    before = rig.records(run)
    for _ in range(3):
        host.port.finish(key, done(go_to("Ask"), publications=(("news", "m2", NIL),)))
        host.port.finish(key, failed())
        host.host.attempt_heartbeat(key, None)
        host.host.attempt_running(key)
    await settle()
    assert host.host.counters["late_results"] == 6
    assert len(rig.events(run, "MessagePublished")) == 1
    assert rig.records(run)[: len(before)] == before
