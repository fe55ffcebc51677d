"""Detached attempts, as the owner of their Flow sees them: adopted by the next one, settled when they are durable."""

from __future__ import annotations

import asyncio

import pytest

from dex.wire.service import ServiceError
from dex.wire.specs import MethodSpec
from dexray.engine.live import Lost
from dexray.protocol.attempts import DecisionSpec
from tests.engine.faulty import AFTER
from tests.engine.rig import Machine, Rig, by_step, done, settle, virtual
from tests.machine.build import flow, go_to, step

DETACHED = flow(step("Train", MethodSpec(detached=True, heartbeat_timeout=600.0)))
PLAIN = flow(step("Train"))
END = done(DecisionSpec(kind="graceful_complete", output=b"\x2a"))


async def out(rig: Rig, spec: object = DETACHED) -> tuple[Machine, str]:
    """A host with one attempt of Train that is out, and its run."""
    machine = await rig.host(spec)  # type: ignore[arg-type]
    run_id = await machine.start("f")
    await settle()
    assert [task.key.attempt for task in machine.port.runs_of("Train")] == [1]
    assert machine.port.runs_of("Train")[0].detached is (spec is DETACHED)
    return machine, run_id


async def next_owner(rig: Rig, former: Machine, *, survives: bool, spec: object = DETACHED) -> Machine:
    key = former.port.only("Train")
    await former.crash()
    machine = await rig.host()
    machine.port.surviving = {key} if survives else set()
    machine.deploy(spec)  # type: ignore[arg-type]
    await settle()
    return machine


@virtual
async def test_the_next_owner_adopts_the_attempt_and_its_result_counts(rig: Rig) -> None:
    one, run_id = await out(rig)
    key = one.port.only("Train")
    two = await next_owner(rig, one, survives=True)
    assert two.port.adopted == [key]
    assert two.port.ran == []
    two.port.finish(key, END)
    assert (await two.result("f")).status == "COMPLETED"
    assert rig.events(run_id, "AttemptFailed") == []
    assert len(rig.events(run_id, "AttemptStarted")) == 1


@virtual
async def test_it_is_settled_when_its_outcome_is_durable_and_not_before(rig: Rig) -> None:
    one, _ = await out(rig)
    key = one.port.only("Train")
    one.lane.hold()
    one.port.finish(key, END)
    await settle()
    assert one.port.settled_keys == []
    one.lane.free()
    await one.result("f")
    assert one.port.settled_keys == [key]


@virtual
async def test_an_owner_that_is_not_sure_of_its_commit_settles_nothing(rig: Rig) -> None:
    """The reply to the commit is lost and the owner dies: the next one finds the outcome in the journal."""
    one, _ = await out(rig)
    key = one.port.only("Train")
    one.journal.fail("append", AFTER)
    one.journal.down = False
    one.port.finish(key, END)
    await settle(3)
    await one.crash()
    assert one.port.settled_keys == []
    two = await rig.host(DETACHED)
    assert (await two.result("f")).status == "COMPLETED"
    assert not await two.host.is_wanted(key)


@virtual
async def test_one_that_is_gone_is_an_interrupted_attempt(rig: Rig) -> None:
    one, run_id = await out(rig)
    two = await next_owner(rig, one, survives=False)
    await settle()
    assert "STARTED_ATTEMPT_INTERRUPTED" in str(rig.events(run_id, "AttemptFailed"))
    rig.script = lambda task: END
    assert (await two.result("f", 600.0)).status == "COMPLETED"
    assert [task.key.attempt for task in two.port.runs_of("Train")] == [2]


@pytest.mark.statement("B202")
@virtual
async def test_an_attempt_that_was_not_detached_is_interrupted_even_where_others_survive(rig: Rig) -> None:
    one, run_id = await out(rig, PLAIN)
    two = await next_owner(rig, one, survives=True, spec=DETACHED)
    assert two.port.adopted == []
    assert len(rig.events(run_id, "AttemptFailed")) == 1


@virtual
async def test_its_timeout_counts_on_under_the_next_owner(rig: Rig) -> None:
    one, run_id = await out(rig)
    key = one.port.only("Train")
    two = await next_owner(rig, one, survives=True)
    two.host.attempt_running(key)
    rig.script = lambda task: END
    await asyncio.sleep(700.0)
    assert key in two.port.canceled
    assert "HEARTBEAT_TIMEOUT" in str(rig.events(run_id, "AttemptFailed"))
    two.port.finish(key, END)  # the handler has stopped, too late
    assert (await two.result("f", 600.0)).status == "COMPLETED"


@virtual
async def test_it_is_wanted_while_it_is_the_running_attempt_and_not_afterwards(rig: Rig) -> None:
    one, _ = await out(rig)
    key = one.port.only("Train")
    assert await one.host.is_wanted(key)
    await one.stop("f")
    await settle()
    assert not await one.host.is_wanted(key)
    one.port.finish(key, END)


@virtual
async def test_one_that_came_too_late_is_let_go_when_its_timeout_is_durable_and_not_before(rig: Rig) -> None:
    """If the timeout never is, the next owner wants the result."""
    one, run_id = await out(rig)
    key = one.port.only("Train")
    one.host.attempt_running(key)
    one.lane.hold()
    await asyncio.sleep(602.0)
    assert key in one.port.canceled
    wanted = asyncio.ensure_future(one.host.is_wanted(key))
    one.port.finish(key, END)
    await settle()
    assert one.port.settled_keys == []
    assert not wanted.done()
    await one.crash()
    assert one.port.settled_keys == []
    with pytest.raises((Lost, ServiceError)):
        await wanted
    two = await rig.host()
    two.port.surviving = {key}
    two.deploy(DETACHED)
    await settle()
    assert two.port.adopted == [key]
    two.port.finish(key, END)
    assert (await two.result("f")).status == "COMPLETED"
    assert rig.events(run_id, "AttemptFailed") == []


@virtual
async def test_one_that_came_too_late_is_let_go(rig: Rig) -> None:
    one, _ = await out(rig)
    key = one.port.only("Train")
    one.host.attempt_running(key)
    one.lane.hold()
    await asyncio.sleep(602.0)
    one.port.finish(key, END)
    await settle()
    assert one.port.settled_keys == []
    one.lane.free()
    await settle()
    assert set(one.port.settled_keys) == {key}
    assert not await one.host.is_wanted(key)


@virtual
async def test_it_does_not_run_ahead_of_its_record(rig: Rig) -> None:
    """It would outlive an owner whose record is refused, and stand in the way of the attempt that the journal knows."""
    soon = MethodSpec(durability="ASYNC")
    train = MethodSpec(durability="ASYNC", detached=True)
    rig.script = by_step(A=done(go_to("B")), B=done(go_to("Train")))
    one = await rig.host(flow(step("A", soon), step("B", soon), step("Train", train)))
    one.port.seconds = 0.001
    await one.start("f")
    one.lane.hold()
    await asyncio.sleep(1)
    assert [task.step_type for task in one.port.ran] == ["A", "B"]
    one.lane.free()
    await settle()
    assert [task.step_type for task in one.port.ran] == ["A", "B", "Train"]
