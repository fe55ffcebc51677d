"""What is let out, and when: SYNC after the commit, ASYNC ahead of it, and nothing to clients but what is durable."""

from __future__ import annotations

import asyncio

import pytest

from dex.values import detach
from tests.engine.faulty import give_up
from tests.engine.rig import Machine, Rig, by_step, code_of, done, settle, virtual
from tests.machine.build import flow, go_to, graceful_complete, method, movement, step

SOON = method(durability="ASYNC")
CHAIN = flow(step("A", SOON), step("B", SOON), step("C", SOON), step("D"))
SYNC_CHAIN = flow(step("A"), step("B"))
STEPS = by_step(A=done(go_to("B")), B=done(go_to("C")), C=done(go_to("D")), D=done(graceful_complete(b"\x01")))


def steps_run(host: Machine) -> list[str]:
    return [task.step_type for task in host.port.ran]


@pytest.mark.statement("B150", "B155")
@virtual
async def test_a_sync_attempt_runs_when_its_start_is_durable(rig: Rig) -> None:
    rig.script = by_step(A=done(go_to("B")))
    host = await rig.host(SYNC_CHAIN)
    host.lane.hold()
    start = asyncio.create_task(host.start("f", fresh=True))
    await asyncio.sleep(1)
    assert steps_run(host) == []
    assert not start.done()
    host.lane.free()
    run = await start
    host.lane.hold()
    await asyncio.sleep(1)
    assert steps_run(host) == ["A"]
    host.lane.free()
    await asyncio.sleep(0.001)
    assert steps_run(host) == ["A", "B"]
    assert rig.events(run, "AttemptStarted")[-1][1] == "B-1"


@pytest.mark.statement("B151")
@virtual
async def test_an_async_chain_runs_ahead_and_a_sync_step_behind_it_waits(rig: Rig) -> None:
    rig.script = STEPS
    host = await rig.host(CHAIN)
    host.port.seconds = 0.001
    run = await host.start("f")
    host.lane.hold()
    await asyncio.sleep(1)
    assert steps_run(host) == ["A", "B", "C"]
    assert rig.events(run, "StepCompleted") == []
    host.lane.free()
    assert (await host.result("f")).status == "COMPLETED"
    assert steps_run(host) == ["A", "B", "C", "D"]


@pytest.mark.statement("B151")
@virtual
async def test_an_async_step_behind_a_sync_completion_waits_for_it(rig: Rig) -> None:
    rig.script = STEPS
    host = await rig.host(flow(step("A"), step("B", SOON), step("C", SOON), step("D")))
    host.port.seconds = 0.001
    await host.start("f")
    host.lane.hold()
    await asyncio.sleep(1)
    assert steps_run(host) == ["A"]
    host.lane.free()
    await asyncio.sleep(0.0005)
    assert steps_run(host) == ["A", "B"]


@pytest.mark.statement("B151")
@virtual
async def test_an_async_branch_does_not_pass_a_sync_record_that_is_under_way(rig: Rig) -> None:
    """A SYNC completion of one branch is in flight: what an ASYNC branch does after it waits for it."""
    rig.script = by_step(A=done(go_to("S", "B")), S=None, B=None, C=None, T=None)
    host = await rig.host(flow(step("A"), step("B", SOON), step("C", SOON), step("S"), step("T")))
    await host.start("f")
    await asyncio.sleep(0.001)
    host.lane.hold()
    host.port.finish(host.port.only("S"), done(go_to("T")))
    await settle()
    host.port.finish(host.port.only("B"), done(go_to("C")))
    await asyncio.sleep(1)
    assert steps_run(host) == ["A", "S", "B"]
    host.lane.free()
    await asyncio.sleep(0.001)
    assert steps_run(host) == ["A", "S", "B", "T", "C"]


@pytest.mark.statement("B151")
@virtual
async def test_commits_of_an_async_chain_are_batched_within_about_twenty_milliseconds(rig: Rig) -> None:
    rig.script = STEPS
    host = await rig.host(flow(step("A", SOON), step("B", SOON), step("C", SOON), step("D", SOON)))
    host.port.seconds = 0.002
    await host.start("f")
    begun, batches = asyncio.get_running_loop().time(), len(host.journal.batches)
    await host.result("f")
    assert asyncio.get_running_loop().time() - begun <= 0.03
    assert len(host.journal.batches) - batches <= 2


@pytest.mark.statement("B157")
@virtual
async def test_the_end_of_an_async_chain_is_told_when_it_is_durable(rig: Rig) -> None:
    rig.script = by_step(A=done(go_to("B")), B=done(graceful_complete(b"\x07")))
    host = await rig.host(flow(step("A", SOON), step("B", SOON)), outage_patience=5.0)
    host.port.seconds = 0.001
    run = await host.start("f")
    host.lane.hold()
    waiting = [asyncio.create_task(host.result("f"))]
    await asyncio.sleep(0.5)
    waiting.append(asyncio.create_task(host.result("f")))  # it has closed in memory already
    assert code_of(await give_up(host.describe("f"))) == "UNAVAILABLE"
    assert not any(task.done() for task in waiting[:1])
    host.lane.free()
    assert (await waiting[0]).status == "COMPLETED"
    await asyncio.gather(*waiting, return_exceptions=True)
    assert rig.events(run, "FlowClosed") != []
    assert (await host.result("f")).completions[0].output == b"\x07"


@pytest.mark.statement("B152", "B153", "B154")
@virtual
async def test_a_crash_loses_recent_async_results_and_they_run_again_under_the_same_number(rig: Rig) -> None:
    rig.script = STEPS
    host = await rig.host(CHAIN)
    host.port.seconds = 0.001
    await host.start("f")
    host.lane.hold()
    await asyncio.sleep(1)
    assert steps_run(host) == ["A", "B", "C"]
    await host.crash()
    again = await rig.host(CHAIN)
    assert (await again.result("f")).status == "COMPLETED"
    assert [(task.step_type, task.key.attempt) for task in again.port.ran] == [("A", 2), ("B", 1), ("C", 1), ("D", 1)]


@pytest.mark.statement("B153")
@virtual
async def test_an_async_start_that_was_not_written_is_rolled_back_and_uses_no_retry(rig: Rig) -> None:
    rig.script = by_step(A=None)
    spec = flow(step("A", method(durability="ASYNC", attempts=1)), step("B"))
    host = await rig.host(spec, slots=0)
    await host.start("f")
    host.lane.hold()
    host.port.slots = 1
    host.host.slots_changed()
    await asyncio.sleep(1)
    assert steps_run(host) == ["A"]
    await host.crash()
    rig.script = by_step(A=done(graceful_complete()))
    again = await rig.host(spec)
    assert (await again.result("f")).status == "COMPLETED"
    assert [task.key.attempt for task in again.port.ran] == [1]


@pytest.mark.statement("B150", "C19")
@virtual
async def test_a_sync_start_that_was_written_counts_after_a_crash(rig: Rig) -> None:
    rig.script = by_step(A=None)
    spec = flow(step("A", method(attempts=1)))
    host = await rig.host(spec)
    run = await host.start("f")
    await host.crash()
    again = await rig.host(spec)
    assert (await again.result("f")).status == "FAILED"
    assert again.port.ran == []
    assert rig.events(run, "AttemptFailed")[0][3][2] == "STARTED_ATTEMPT_INTERRUPTED"


@pytest.mark.statement("D14", "B151")
@virtual
async def test_an_async_chain_does_not_run_far_ahead_of_a_database_that_is_away(rig: Rig) -> None:
    rig.script = by_step(A=done(go_to("A")))
    host = await rig.host(flow(step("A", SOON)))
    host.port.seconds = 0.001
    await host.start("f")
    host.journal.out_for(60)
    await asyncio.sleep(50)
    ran = len(host.port.ran)
    assert ran < 60
    await asyncio.sleep(20)
    assert len(host.port.ran) > ran + 100


@pytest.mark.statement("D12", "B151")
@pytest.mark.parametrize("durability", ["SYNC", "ASYNC"])
@virtual
async def test_a_large_value_travels_from_attempt_to_attempt_and_to_the_client(rig: Rig, durability: str) -> None:
    blobs: dict[str, bytes] = {}
    large = b"\xc6" + (30_000).to_bytes(4, "big") + bytes(30_000)
    reference = detach(large, blobs)
    (digest,) = blobs
    rig.script = by_step(
        A=done(go_to(movement("B", reference)), blobs=blobs),
        B=lambda task: done(graceful_complete(task.input)) if task.blobs == blobs else None,
    )
    how = method(durability=durability)
    host = await rig.host(flow(step("A", how), step("B", how)))
    host.port.seconds = 0.001
    run = await host.start("f")
    result = await host.result("f", timeout=5)
    assert rig.events(run, "AttemptFailed") == []  # no attempt was made before its values were there
    assert result.completions[0].output == reference
    assert result.blobs == blobs
    assert rig.rows("SELECT hash FROM blobs") == [(digest,)]


@virtual
async def test_an_attempt_that_is_cancelled_while_its_large_values_are_read_is_not_run(rig: Rig) -> None:
    blobs: dict[str, bytes] = {}
    reference = detach(bytes(30_000), blobs)
    rig.script = by_step(A=None)
    host = await rig.host(flow(step("A")), slots=1)
    host.lane.before = 0.01
    start = asyncio.create_task(host.start("f", input=reference, blobs=blobs, fresh=True))
    await asyncio.sleep(0.005)
    stop = asyncio.create_task(host.stop("f", fresh=True))
    await asyncio.gather(start, stop)
    await asyncio.sleep(1)
    assert host.port.ran == []
    assert host.port.taken == 0
