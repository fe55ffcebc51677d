"""Group commit: what waits goes together, in order, and nothing waits long."""

from __future__ import annotations

import asyncio

import pytest

from dexray.engine.committer import GroupCommitter
from dexray.journal.interface import Append, NewRun, Outcome
from tests.engine.faulty import AFTER, BEFORE, FaultyJournal, Lane
from tests.engine.rig import Rig, by_step, failed, settle, virtual, wait, with_channels
from tests.machine.build import flow, one, step, until

SIMPLE = flow(step("First"))
ASKING = with_channels(flow(step("Ask", wait_for=True)), "news")


def first_record(number: int, body: bytes = b"\x90") -> Append:
    new = NewRun(f"flow-{number}", "Demo", "one", f"r-{number}", 0.0)
    return Append(f"run-{number}", 1, 1, 0.0, body, new_run=new)


def committer(rig: Rig, lane: Lane, **options: float) -> tuple[GroupCommitter, FaultyJournal]:
    from dexray.journal import open_journal

    journal = FaultyJournal(open_journal(rig.path))
    group = GroupCommitter(journal, lane, **options)  # type: ignore[arg-type]
    group.start()
    return group, journal


@virtual
async def test_what_comes_in_one_turn_is_one_transaction(rig: Rig) -> None:
    rig.script = by_step(First=None)
    host = await rig.host(SIMPLE)
    await asyncio.gather(*(host.start(f"f{number}", fresh=True) for number in range(50)))
    assert [len(batch) for batch in host.journal.batches] == [50]


@virtual
async def test_while_one_batch_is_written_the_next_collects(rig: Rig) -> None:
    rig.script = by_step(First=None)
    host = await rig.host(SIMPLE)
    host.lane.before = 0.01

    async def start_later(number: int) -> None:
        await asyncio.sleep(number * 0.0001)
        await host.start(f"f{number}", fresh=True)

    await asyncio.gather(*(start_later(number) for number in range(100)))
    assert [len(batch) for batch in host.journal.batches] == [1, 99]


@virtual
async def test_records_of_a_run_are_written_in_the_order_of_its_commands(rig: Rig) -> None:
    rig.script = by_step(Ask=wait(until(one("other"))))
    host = await rig.host(ASKING)
    run = await host.start("f")
    host.lane.before = 0.001

    async def publish(number: int) -> None:
        await asyncio.sleep(number * 0.0003)
        await host.publish("f", "news", bytes([number]), fresh=True)

    await asyncio.gather(*(publish(number) for number in range(40)))
    assert [event[3] for event in rig.events(run, "MessagePublished")] == [bytes([number]) for number in range(40)]
    assert [seq for seq, _, _ in rig.records(run)] == list(range(1, len(rig.records(run)) + 1))
    assert len(host.journal.batches) < 30


@virtual
async def test_a_batch_has_a_bound(rig: Rig) -> None:
    group, journal = committer(rig, Lane(), max_batch=10)
    fates: list[object] = []
    for number in range(25):
        group.submit(first_record(number), fates.append)
    await group.drained()
    assert [len(batch) for batch in journal.batches] == [10, 10, 5]
    assert fates == [Outcome.DURABLE] * 25
    await group.close()


@pytest.mark.statement("B151")
@virtual
async def test_a_lazy_record_waits_twenty_milliseconds_for_company_and_not_longer(rig: Rig) -> None:
    group, journal = committer(rig, Lane())
    loop = asyncio.get_running_loop()
    written: dict[int, float] = {}
    begin = loop.time()
    group.submit(first_record(1), lambda fate: written.update({1: loop.time() - begin}), lazy=True)
    await asyncio.sleep(0.015)
    assert not journal.batches
    group.submit(first_record(2), lambda fate: written.update({2: loop.time() - begin}), lazy=True)
    await group.drained()
    assert [len(batch) for batch in journal.batches] == [2]
    assert written == pytest.approx({1: 0.02, 2: 0.02})
    await group.close()


@virtual
async def test_a_record_in_a_hurry_takes_the_lazy_ones_along(rig: Rig) -> None:
    group, journal = committer(rig, Lane())
    begin = asyncio.get_running_loop().time()
    group.submit(first_record(1), lambda fate: None, lazy=True)
    await asyncio.sleep(0.005)
    group.submit(first_record(2), lambda fate: None)
    await group.drained()
    assert asyncio.get_running_loop().time() - begin == pytest.approx(0.005)
    assert [len(batch) for batch in journal.batches] == [2]
    await group.close()


@pytest.mark.statement("D14")
@pytest.mark.parametrize("when", [BEFORE, AFTER])
@virtual
async def test_after_an_unknown_outcome_only_what_is_missing_is_written(rig: Rig, when: str) -> None:
    group, journal = committer(rig, Lane())
    journal.fail("append", when)
    journal.fail("read_back", BEFORE, AFTER)
    fates: list[object] = []
    for number in range(3):
        group.submit(first_record(number), fates.append)
    await asyncio.sleep(0.01)
    assert group.unavailable is not None
    assert fates == []
    await group.drained()
    assert group.unavailable is None
    assert fates == [Outcome.DURABLE] * 3
    assert [len(batch) for batch in journal.batches] == ([3, 3] if when == BEFORE else [3])
    assert len(rig.rows("SELECT * FROM events")) == 3
    await group.close()


@virtual
async def test_one_record_that_the_database_cannot_take_spoils_no_other(rig: Rig) -> None:
    group, journal = committer(rig, Lane())
    journal.poison = lambda record: record.run_id == "run-1"
    fates: dict[int, object] = {}
    for number in range(3):
        group.submit(first_record(number), lambda fate, number=number: fates.update({number: fate}))
    await group.drained()
    assert fates[0] is fates[2] is Outcome.DURABLE
    assert isinstance(fates[1], ValueError)
    group.submit(first_record(7), lambda fate: fates.update({7: fate}))
    await group.drained()
    assert fates[7] is Outcome.DURABLE
    await group.close()


@virtual
async def test_what_goes_wrong_after_a_commit_ends_no_committer(rig: Rig) -> None:
    group, _ = committer(rig, Lane())
    fates: list[object] = []

    def stumble(fate: object) -> None:
        raise LookupError("in what follows a commit")

    group.submit(first_record(1), stumble)
    group.submit(first_record(2), fates.append)
    await group.drained()
    group.submit(first_record(3), fates.append)
    await group.drained()
    assert fates == [Outcome.DURABLE] * 2
    await group.close()


@virtual
async def test_completion_the_next_step_and_its_start_are_one_record(rig: Rig) -> None:
    rig.script = by_step(First=lambda task: None)
    host = await rig.host(SIMPLE)
    run = await host.start("f")
    await settle()
    kinds = [[event[0] for event in events] for _, _, events in rig.records(run)]
    assert kinds == [["FlowStarted/1", "StepScheduled/1", "AttemptStarted/1"]]
    host.port.finish(host.port.only("First"), failed(retryable=False))
    assert (await host.result("f")).status == "FAILED"
