"""RPCs between the journal, the workers and other owners: what is let out when, and what is given back."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from msgspec.structs import replace

from dex.wire import service as s
from dex.wire.service import ServiceError
from dex.wire.specs import FlowSpec, LoadSpec, RpcSpec
from dexray.protocol.attempts import AttemptReturned, AttemptTask, MovementSpec, RpcSucceeded, Writes
from tests.engine.faulty import give_up
from tests.engine.rig import Machine, Rig, by_step, code_of, failed, settle, virtual, with_channels
from tests.machine.build import flow, method, step

ASK, TELL, LOCKED, SLOW = "__rpc/ask", "__rpc/tell", "__rpc/locked", "__rpc/slow"
RPCS = {
    "ask": RpcSpec(name="ask", load=LoadSpec(channels=("box",))),
    "tell": RpcSpec(name="tell"),
    "locked": RpcSpec(name="locked", locks=("x",), transactional=True),
    "slow": RpcSpec(name="slow", timeout=600.0),
}
SPEC = replace(
    with_channels(flow(step("A", method(locks=["x"])), step("B"), start=None), "box"), rpcs=RPCS, attributes=("x", "y")
)
WROTE = RpcSucceeded(output=b"\x01", writes=Writes(attributes={"x": b"\x02"}))
READ = RpcSucceeded(output=b"\x01")
BEGAN = RpcSucceeded(movements=(MovementSpec("A", b"\xc0"),))


def invoke(host: Machine, rpc: str = "tell", flow_id: str = "f", **more: Any) -> asyncio.Task[s.RpcAnswer]:
    given: dict[str, Any] = {"request_id": f"rpc-{next(host.rig.numbers)}", "fresh": True} | more
    return asyncio.create_task(host.call(s.InvokeRpc(flow_id=flow_id, flow_type="Demo", rpc=rpc, **given)))


async def begun(rig: Rig, spec: FlowSpec = SPEC, **settings: Any) -> Machine:
    host = await rig.host(spec, **settings)
    await host.start("f")
    return host


async def write(host: Machine, name: str, value: bytes) -> None:
    await host.call(
        s.SetAttribute(flow_id="f", name=name, value=value, request_id=f"w-{next(host.rig.numbers)}", fresh=True)
    )


def failure_of(error: BaseException | None) -> s.ServiceFailure:
    assert isinstance(error, ServiceError), repr(error)
    return error.failure


# The journal ----------------------------------------------------------------------------------------------------------


@pytest.mark.statement("C38")
@virtual
async def test_a_handler_sees_only_what_is_durable(rig: Rig) -> None:
    host = await begun(rig)
    host.lane.hold()
    writing = asyncio.create_task(write(host, "x", b"\x07"))
    await settle()
    reading = invoke(host, "ask")
    await asyncio.sleep(1)
    assert host.port.ran == []
    host.lane.free()
    await settle()
    (task,) = host.port.ran
    assert task.attributes == {"x": b"\x07"}
    host.port.finish(task.key, READ)
    assert (await reading).output == b"\x01"
    await writing


@pytest.mark.statement("D8")
@virtual
async def test_a_call_that_comes_after_its_repeat_runs_no_handler_and_has_the_answer_of_the_repeat(rig: Rig) -> None:
    """Else the handler would run again over what it has done itself, and its outside effects would be there twice."""
    host = await begun(rig)
    repeat = invoke(host, request_id="r", fresh=False)
    await settle()
    (task,) = host.port.ran
    host.port.finish(task.key, WROTE)
    first = await repeat
    assert (await invoke(host, request_id="r", fresh=True)).output == first.output
    assert host.port.ran == [task]


@virtual
async def test_what_became_durable_while_a_snapshot_waited_is_not_in_it(rig: Rig) -> None:
    """A Flow that is written to all the time keeps no RPC waiting for a quiet moment."""
    host = await begun(rig)
    host.lane.before = 1.0
    writers = [asyncio.create_task(write(host, "x", bytes([number]))) for number in range(2)]
    await settle()
    reading = invoke(host, "ask")
    await settle()
    writers.append(asyncio.create_task(write(host, "x", b"\x09")))
    await asyncio.sleep(1.5)
    assert [task.attributes for task in host.port.ran] == [{"x": b"\x01"}]
    host.port.finish(host.port.only(ASK), READ)
    await asyncio.gather(reading, *writers)


@pytest.mark.statement("D8")
@virtual
async def test_the_answer_of_a_write_is_given_when_it_is_durable(rig: Rig) -> None:
    rig.script = by_step(**{TELL: WROTE})
    host = await begun(rig)
    host.lane.hold()
    telling = invoke(host)
    await asyncio.sleep(1)
    assert not telling.done()
    host.lane.free()
    assert (await telling).output == b"\x01"
    assert rig.rows("SELECT COUNT(*) FROM requests WHERE flow_id = 'f'") == [(2,)]


@pytest.mark.statement("C34")
@virtual
async def test_the_answer_of_a_read_needs_no_commit(rig: Rig) -> None:
    rig.script = by_step(**{ASK: READ})
    host = await begun(rig)
    host.lane.hold()
    assert (await invoke(host, "ask")).output == b"\x01"
    host.lane.free()
    assert rig.rows("SELECT COUNT(*) FROM requests WHERE flow_id = 'f'") == [(1,)]


@pytest.mark.statement("D8", "D14")
@virtual
async def test_a_write_that_an_outage_kept_waiting_has_its_effect_once(rig: Rig) -> None:
    rig.script = by_step(**{TELL: WROTE})
    host = await begun(rig)
    host.journal.out_for(15)
    first = await give_up(invoke(host, request_id="r"))
    assert code_of(first) == "UNAVAILABLE"
    assert not failure_of(first).is_final
    await asyncio.sleep(10)
    again = await invoke(host, request_id="r", fresh=False)
    assert again.output == b"\x01"
    assert len(host.port.runs_of(TELL)) == 1


@pytest.mark.statement("D8", "D9")
@virtual
async def test_a_call_that_a_crash_cut_off_runs_anew_under_its_id(rig: Rig) -> None:
    host = await begun(rig)
    lost = asyncio.create_task(give_up(invoke(host, request_id="r")))
    await settle()
    key = host.port.only(TELL)
    await host.crash()
    assert code_of(await lost) == "UNAVAILABLE"
    rig.script = by_step(**{TELL: WROTE})
    second = await rig.host(SPEC)
    second.host.attempt_finished(key, RpcSucceeded(writes=Writes(attributes={"x": b"\x66"})))
    assert (await invoke(second, request_id="r", fresh=False)).output == b"\x01"
    await invoke(second, request_id="r", fresh=False)
    assert len(second.port.runs_of(TELL)) == 1
    assert second.host.flows["f"].flow.state.attributes == {"x": b"\x02"}


@virtual
async def test_a_late_result_is_refused_and_counted(rig: Rig) -> None:
    host = await begun(rig)
    telling = asyncio.create_task(give_up(invoke(host, timeout=5.0)))
    await settle()
    key = host.port.only(TELL)
    host.host.attempt_running(key)
    assert failure_of(await telling).sub_status == "REQUEST_TIMEOUT"
    late = host.host.counters["late_results"]
    host.port.finish(key, WROTE)
    assert host.host.counters["late_results"] == late + 1
    assert host.host.flows["f"].flow.state.attributes == {}


# Owners ---------------------------------------------------------------------------------------------------------------


@virtual
async def test_calls_of_a_flow_that_another_owner_took_end_at_once_and_stop_their_handlers(rig: Rig) -> None:
    host = await begun(rig)
    waiting = asyncio.create_task(give_up(invoke(host, "slow")))
    await settle()
    assert host.journal.inner.reassign("one", "two", 10)
    rig.script = by_step(**{TELL: WROTE})
    began = asyncio.get_running_loop().time()
    assert code_of(await give_up(invoke(host))) == "UNAVAILABLE"
    ended = failure_of(await waiting)
    assert (ended.code, ended.is_final) == ("UNAVAILABLE", False), "the new owner serves it when it is repeated"
    assert asyncio.get_running_loop().time() - began < 1
    assert [key.step_execution_id.partition("#")[0] for key in host.port.canceled] == [SLOW]
    assert len(host.host.rpcs) == 0
    host.port.finish(host.port.only(SLOW), WROTE)


@virtual
async def test_calls_of_a_flow_that_has_stopped_are_told_why(rig: Rig) -> None:
    host = await begun(rig)
    waiting = asyncio.create_task(give_up(invoke(host, "slow")))
    await settle()
    host.host.park(host.host.flows["f"], RuntimeError("broken"))
    error = failure_of(await waiting)
    assert (error.code, "broken" in error.detail) == ("INTERNAL", True)
    assert code_of(await give_up(invoke(host))) == "INTERNAL"
    host.port.finish(host.port.only(SLOW), READ)


@virtual
async def test_a_flow_with_a_call_under_way_stays_in_memory(rig: Rig) -> None:
    host = await begun(rig, idle_flows=1)
    reading = invoke(host, "ask")
    await settle()
    for number in range(5):
        await host.start(f"other-{number}")
    assert "f" in host.host.flows
    host.port.finish(host.port.only(ASK), READ)
    await reading
    for number in range(5):
        await host.start(f"more-{number}")
    assert "f" not in host.host.flows
    rig.script = by_step(**{ASK: READ})
    assert (await invoke(host, "ask")).output == b"\x01"


@virtual
async def test_a_caller_that_leaves_takes_nothing_along(rig: Rig) -> None:
    host = await begun(rig)
    telling = invoke(host, request_id="r")
    await settle()
    telling.cancel()
    await settle()
    host.port.finish(host.port.only(TELL), WROTE)
    await settle()
    assert (await invoke(host, request_id="r", fresh=False)).output == b"\x01"
    assert len(host.port.runs_of(TELL)) == 1


# Workers --------------------------------------------------------------------------------------------------------------


@pytest.mark.statement("B214")
@virtual
async def test_an_attempt_that_no_worker_begins_is_taken_back_after_the_dispatch_wait(rig: Rig) -> None:
    host = await begun(rig)
    began = asyncio.get_running_loop().time()
    error = failure_of(await give_up(invoke(host)))
    assert (error.code, error.is_final) == ("UNAVAILABLE", True)
    assert "no worker took it within 10 s (no worker began it)" in error.detail
    assert asyncio.get_running_loop().time() - began == pytest.approx(10, abs=0.1)
    assert len(host.port.canceled) == 1
    host.port.finish(host.port.only(TELL), WROTE)
    assert host.host.flows["f"].flow.state.attributes == {}


@virtual
async def test_an_attempt_that_is_known_to_run_has_the_whole_timeout(rig: Rig) -> None:
    host = await begun(rig)
    telling = invoke(host, timeout=30.0)
    await settle()
    host.host.attempt_running(host.port.only(TELL))
    await asyncio.sleep(25)
    host.port.finish(host.port.only(TELL), WROTE)
    assert (await telling).output == b"\x01"


@pytest.mark.statement("B214")
@virtual
async def test_an_attempt_that_certainly_did_not_run_is_tried_elsewhere(rig: Rig) -> None:
    answers: list[Any] = [AttemptReturned(reason="no such code here"), AttemptReturned(reason="nor here"), WROTE]
    rig.script = lambda task: answers.pop(0)
    host = await begun(rig, returned_delay=2.0)
    assert (await invoke(host)).output == b"\x01"
    assert len(host.port.ran) == 3
    rig.script = lambda task: AttemptReturned(reason="no such code here")
    error = failure_of(await give_up(invoke(host)))
    assert (error.code, error.is_final) == ("UNAVAILABLE", True)
    assert "no such code here" in error.detail


@virtual
async def test_a_lost_worker_is_told_and_the_client_need_not_repeat(rig: Rig) -> None:
    rig.script = by_step(**{TELL: failed("it is gone", kind="WORKER_CRASHED")})
    host = await begun(rig)
    error = failure_of(await give_up(invoke(host)))
    assert (error.code, error.is_final) == ("UNAVAILABLE", True)
    assert "its worker was lost (ValueError: it is gone). Nothing was applied" in error.detail


@virtual
async def test_slots_are_given_back_when_nothing_was_run(rig: Rig) -> None:
    host = await begun(rig, slots=1)
    blocker = invoke(host, "slow")
    await settle()
    waiting = [asyncio.create_task(give_up(invoke(host, "ask"))) for _ in range(3)]
    await asyncio.sleep(1)
    assert len(host.port.ran) == 1
    await host.stop("f")
    assert host.journal.inner.reassign("one", "two", 10) == [], "it is closed"
    host.host.park(host.host.flows["f"], RuntimeError("broken"))
    assert {code_of(await one) for one in waiting} == {"INTERNAL"}
    host.port.finish(host.port.only(SLOW), READ)
    await give_up(blocker)
    await settle()
    host.check_slots()


@virtual
async def test_a_slot_that_came_in_the_moment_of_the_end_is_given_back(rig: Rig) -> None:
    host = await begun(rig, slots=1)
    blocker = invoke(host, "slow")
    await settle()
    waiting = asyncio.create_task(give_up(invoke(host, "ask")))
    await settle()
    host.port.slots = 2
    host.host.rpcs.pump()
    assert host.port.taken == 2
    host.host.park(host.host.flows["f"], RuntimeError("broken"))
    assert code_of(await waiting) == "INTERNAL"
    await give_up(blocker)
    host.check_slots()


@virtual
async def test_a_deployment_that_lost_a_step_meanwhile_refuses_and_applies_nothing(rig: Rig) -> None:
    host = await begun(rig)
    beginning = asyncio.create_task(give_up(invoke(host)))
    await settle()
    host.deploy(replace(SPEC, steps={"B": SPEC.steps["B"]}), name="d2")
    host.port.finish(host.port.only(TELL), BEGAN)
    error = failure_of(await beginning)
    assert (error.code, "lacks a Step it starts (A)" in error.detail) == ("ABORTED", True)
    assert (await host.describe("f")).steps == ()
    assert not host.host.flows["f"].problem


# Locks ----------------------------------------------------------------------------------------------------------------


@pytest.mark.statement("C27")
@virtual
async def test_a_held_lock_refuses_a_call_before_it_waits_for_a_slot(rig: Rig) -> None:
    rig.script = by_step(**{TELL: BEGAN})
    host = await begun(rig, slots=1)
    await invoke(host)
    await settle()
    assert host.port.taken == 1
    error = failure_of(await give_up(invoke(host, "locked")))
    assert (error.code, error.worker_code) == ("ABORTED", "ABORTED")
    assert "'x' is held by A-1" in error.detail


@pytest.mark.statement("C27")
@virtual
async def test_a_lock_that_was_taken_while_calls_waited_for_a_slot_refuses_them(rig: Rig) -> None:
    host = await begun(rig, slots=1)
    blocker = invoke(host, "slow")
    await settle()
    calls = [asyncio.create_task(give_up(invoke(host, "locked"))) for _ in range(2)]
    await settle()
    host.port.slots = 2
    host.port.finish(host.port.only(SLOW), READ)
    await blocker
    await settle()
    assert [one.done() for one in calls] == [False, True]
    assert failure_of(await calls[1]).worker_code == "ABORTED"
    host.port.finish(host.port.only(LOCKED), WROTE)
    assert await calls[0] is None


@pytest.mark.statement("C33")
@virtual
async def test_a_lock_of_the_call_isolates_a_plain_rpc(rig: Rig) -> None:
    host = await begun(rig)
    telling = invoke(host, locks=("y",))
    await settle()
    await write(host, "x", b"\x05")
    host.port.finish(host.port.only(TELL), WROTE)
    await settle()
    assert len(host.port.ran) == 2, "it runs again over what was written meanwhile"
    again: AttemptTask = host.port.ran[1]
    assert again.attributes == {"x": b"\x05"}
    held = failure_of(await give_up(invoke(host, "tell", locks=("y",))))
    assert held.worker_code == "ABORTED", "its locks are held all the time"
    host.port.finish(again.key, WROTE)
    await telling


@pytest.mark.statement("C33")
@virtual
async def test_an_isolated_read_is_answered_from_its_snapshot(rig: Rig) -> None:
    host = await begun(rig)
    reading = invoke(host, "locked")
    await settle()
    await write(host, "y", b"\x05")
    host.port.finish(host.port.only(LOCKED), READ)
    assert (await reading).output == b"\x01"
    assert len(host.port.ran) == 1
