"""What becomes of closed Flows: kept for a time, or deleted; and what may not go."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from dex import (
    Attribute,
    Channel,
    Context,
    DexServiceError,
    FlowNotFoundError,
    StartFlowOptions,
    StatusCode,
    Step,
    StepDecision,
    Stream,
    SubFlow,
    TimeTravelOptions,
    TimeTravelType,
    Wait,
    graceful_complete,
)
from dex.values import BLOB_THRESHOLD
from dex.wire import service as s
from dex.wire.service import ServiceError
from tests.engine.rig import Rig, by_step, code_of, done, virtual
from tests.machine.build import flow, step
from tests.machine.build import graceful_complete as complete
from tests.statements.kit import Made
from tests.world import InProcessWorld, World, scenario

HOUR = 3600.0
DAY = 24 * HOUR
LARGE = "x" * (BLOB_THRESHOLD + 1)

words = Attribute("words", str)
letters = Channel("letters", str)
news = Stream("news", str, 10_000)


class Remember(Step[str]):
    def execute(self, context: Context, input: str) -> StepDecision:
        words.set(context, input)
        return graceful_complete(input)


class Await(Step[str]):
    def wait_for(self, context: Context, input: str) -> Wait:
        return Wait.until(letters.for_one())

    def execute(self, context: Context, input: str) -> StepDecision:
        return graceful_complete(letters.results(context)[0])


REMEMBER = Made(Remember(), has=(words, news), name="Remember")
AWAIT = Made(Await(), has=(letters,), name="Await")


async def is_there(world: World, name: str) -> bool:
    try:
        await world.describe(name)
    except FlowNotFoundError:
        return False
    return True


def rows(world: World, *tables: str) -> dict[str, int]:
    """How many rows tables have."""
    import sqlite3

    connection = sqlite3.connect(world.folder / "flows.db")
    try:
        return {table: connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0] for table in tables}
    finally:
        connection.close()


OF_RUNS = ("runs", "events", "checkpoints", "requests", "blob_refs", "blobs", "removed_runs")


async def cleaned(world: World) -> None:
    assert isinstance(world, InProcessWorld)
    assert world.engine is not None
    await world.engine.host.retention.cleaned()


# Retention ------------------------------------------------------------------------------------------------------------


@pytest.mark.statement("C65")
@scenario()
async def test_a_closed_flow_stays_readable_until_its_time_is_over_and_then_nothing_of_it_is_left(world: World) -> None:
    await world.deploy(REMEMBER, retention=DAY, removes_runs=True)
    await world.start(REMEMBER, "f", LARGE)
    await world.result("f")
    await world.client.write_stream(world.id("f"), news, "test", "hello")
    await world.advance(DAY - HOUR)
    assert (await world.result("f")).single_output(str) == LARGE
    assert len(await world.history("f")) > 2
    await world.advance(2 * HOUR)
    assert not await is_there(world, "f")
    await cleaned(world)
    assert set(rows(world, *OF_RUNS, "streams", "stream_messages").values()) == {0}
    await world.start(REMEMBER, "f", "again")
    assert (await world.result("f")).single_output(str) == "again"


@pytest.mark.statement("C65")
@scenario()
async def test_an_open_flow_outlives_any_retention(world: World) -> None:
    await world.deploy(AWAIT, retention=HOUR, removes_runs=True)
    await world.start(AWAIT, "f", "")
    await world.advance(2 * DAY)
    await world.publish("f", letters, "late")
    assert (await world.result("f")).single_output(str) == "late"


@scenario()
async def test_without_retention_closed_flows_are_kept(world: World) -> None:
    await world.deploy(REMEMBER, removes_runs=True)
    await world.start(REMEMBER, "f", "x")
    await world.result("f")
    await world.advance(1000 * DAY)
    assert await is_there(world, "f")


@scenario()
async def test_the_time_of_a_run_counts_from_its_own_end(world: World) -> None:
    await world.deploy(REMEMBER, AWAIT, retention=DAY, removes_runs=True)
    await world.start(REMEMBER, "f", LARGE)
    await world.result("f")
    await world.advance(DAY - HOUR)
    new = await world.client.time_travel(world.id("f"), TimeTravelOptions(TimeTravelType.BEGINNING))
    await world.result("f")
    await world.advance(2 * HOUR)
    await cleaned(world)
    assert rows(world, "runs", "blobs") == {"runs": 1, "blobs": 1}
    assert (await world.describe("f")).run_id == new
    assert (await world.result("f")).single_output(str) == LARGE
    await world.advance(DAY)
    assert not await is_there(world, "f")


@scenario()
async def test_what_was_removed_just_before_a_crash_is_cleared_away_by_the_next_owner(world: World) -> None:
    assert isinstance(world, InProcessWorld)
    await world.deploy(REMEMBER, removes_runs=True)
    await world.start(REMEMBER, "f", LARGE)
    await world.result("f")
    await world.client.delete_flow(world.id("f"))
    left = rows(world, *OF_RUNS)
    assert left["removed_runs"] == 1
    assert left["events"] > 0
    await world.restart()
    await world.advance(60)
    await cleaned(world)
    assert set(rows(world, *OF_RUNS).values()) == {0}


class AskAChild(Step[str]):
    """Waits for a child and for a letter."""

    def wait_for(self, context: Context, input: str) -> Wait:
        return Wait.all_of(SubFlow.run(REMEMBER, input), letters.for_one())

    def execute(self, context: Context, input: str) -> StepDecision:
        return graceful_complete(SubFlow.get_condition_results(context).single_output(str))


PARENT = Made(AskAChild(), has=(letters,), name="Parent")


@pytest.mark.statement("C54")
@scenario()
async def test_a_subflow_stays_while_its_parent_waits_and_goes_after_that(world: World) -> None:
    await world.deploy(PARENT, REMEMBER, retention=DAY, removes_runs=True)
    await world.start(PARENT, "p", "child")
    await world.advance(5 * DAY)
    child = f"SubFlow:{world.id('p')}-AskAChild-1-0"
    assert (await world.client.describe(child)).status == "COMPLETED"
    with pytest.raises(DexServiceError, match="still waits for it") as refused:
        await world.client.delete_flow(child)
    assert refused.value.code is StatusCode.FAILED_PRECONDITION
    await world.publish("p", letters, "go")
    assert (await world.result("p")).single_output(str) == "child"
    await world.advance(HOUR)
    assert await is_there(world, "p")
    with pytest.raises(FlowNotFoundError):
        await world.client.describe(child)


@virtual
async def test_another_owner_does_not_speak_of_a_run_that_was_removed(rig: Rig) -> None:
    rig.script = by_step(First=lambda task: done(complete()))
    one = await rig.host(flow(step("First")), owner="one", retention=DAY)
    await rig.host(flow(step("First")), owner="two", retention=DAY, removes_runs=True)
    run_id = await one.start("f")
    await one.result("f")
    assert (await one.describe("f")).run_id == run_id
    await asyncio.sleep(DAY + HOUR)
    assert rig.rows("SELECT count(*) FROM runs") == [(0,)]
    with pytest.raises(ServiceError, match="there is no Flow 'f'"):
        await one.describe("f")
    assert await one.start("f") != run_id


@virtual
async def test_an_outage_while_runs_are_removed_is_waited_for(rig: Rig) -> None:
    rig.script = by_step(First=lambda task: done(complete()))
    one = await rig.host(flow(step("First")), retention=DAY, removes_runs=True)
    for number in range(5):
        await one.start(f"f{number}")
        await one.result(f"f{number}")
    one.journal.fail("remove_run", "before", "after", "before")
    one.journal.fail("clear_removed", "after", "before")
    one.journal.fail("free_blobs", "before")
    await asyncio.sleep(2 * DAY)
    assert one.journal.faults == 6
    for table in OF_RUNS:
        assert rig.rows(f"SELECT count(*) FROM {table}") == [(0,)], table


@virtual
async def test_a_flow_goes_on_while_a_long_run_is_cleared_away(rig: Rig) -> None:
    """No call of the journal takes more than a batch."""
    rig.script = by_step(First=lambda task: done(complete()))
    one = await rig.host(flow(step("First")))
    run_id = await one.start("long")
    await one.result("long")
    connection_rows = [(run_id, seq, 1, 1.0, b"\x90") for seq in range(100, 5_100)]
    import sqlite3

    connection = sqlite3.connect(rig.path)
    connection.executemany("INSERT INTO events VALUES (?, ?, ?, ?, ?)", connection_rows)
    connection.commit()
    connection.close()
    await one.call(s.DeleteFlow(flow_id="long"))
    started = 0
    while rig.rows("SELECT count(*) FROM removed_runs") == [(1,)]:
        await one.start(f"f{started}")
        await one.result(f"f{started}")
        started += 1
        await asyncio.sleep(0.001)
    assert started >= 5
    assert one.journal.calls["clear_removed"] > 10


# Deletion by hand -----------------------------------------------------------------------------------------------------


@scenario(ray=True)
async def test_a_closed_flow_is_deleted_and_an_open_one_is_not(world: World) -> None:
    await world.deploy(AWAIT)
    await world.start(AWAIT, "f", "")
    with pytest.raises(DexServiceError, match="Stop it first") as refused:
        await world.client.delete_flow(world.id("f"))
    assert refused.value.code is StatusCode.FAILED_PRECONDITION
    await world.publish("f", letters, "end")
    await world.result("f")
    await world.client.delete_flow(world.id("f"))
    assert not await is_there(world, "f")
    with pytest.raises(FlowNotFoundError):
        await world.history("f")
    with pytest.raises(FlowNotFoundError):
        await world.client.delete_flow(world.id("f"))
    await world.start(AWAIT, "f", "")
    assert (await world.describe("f")).status == "RUNNING"


@scenario()
async def test_deleting_one_run_keeps_the_others_with_the_values_they_share(world: World) -> None:
    await world.deploy(REMEMBER)
    await world.start(REMEMBER, "f", LARGE)
    await world.result("f")
    old = (await world.describe("f")).run_id
    new = await world.client.time_travel(world.id("f"), TimeTravelOptions(TimeTravelType.BEGINNING))
    await world.result("f")
    again = await world.client.time_travel(world.id("f"), TimeTravelOptions(TimeTravelType.BEGINNING))
    await world.result("f")
    await world.client.delete_flow(world.id("f"), old)
    await cleaned(world)
    assert (await world.describe("f")).run_id == again
    await world.client.delete_flow(world.id("f"), again)
    await cleaned(world)
    assert (await world.describe("f")).run_id == new
    assert await world.client.get_attribute(world.id("f"), words) == LARGE
    with pytest.raises(FlowNotFoundError):
        [event async for event in world.client.history(world.id("f"), run_id=old)]
    assert (await world.result("f")).single_output(str) == LARGE
    await world.client.delete_flow(world.id("f"))
    await cleaned(world)
    assert set(rows(world, *OF_RUNS).values()) == {0}


@scenario()
async def test_a_repeated_deletion_is_answered_like_the_first(world: World) -> None:
    assert isinstance(world, InProcessWorld)
    await world.deploy(REMEMBER)
    await world.start(REMEMBER, "f", "x")
    await world.result("f")
    assert world.engine is not None
    request = s.DeleteFlow(flow_id=world.id("f"), fresh=True)
    assert await world.engine.call(request) == s.Done()
    with pytest.raises(ServiceError) as unknown:
        await world.engine.call(request)
    assert code_of(unknown.value) == "NOT_FOUND"
    assert await world.engine.call(s.DeleteFlow(flow_id=world.id("f"))) == s.Done()


@scenario()
async def test_a_request_id_of_a_deleted_flow_is_new_again(world: World) -> None:
    await world.deploy(REMEMBER)
    options = StartFlowOptions(request_id="r-1")
    first = await world.start(REMEMBER, "f", "x", options)
    await world.result("f")
    await world.client.delete_flow(world.id("f"))
    second = await world.start(REMEMBER, "f", "y", options)
    assert second != first
    assert (await world.result("f")).single_output(str) == "y"


@scenario()
async def test_who_reads_a_history_while_it_is_deleted_is_told(world: World) -> None:
    await world.deploy(REMEMBER)
    await world.start(REMEMBER, "f", "x")
    await world.result("f")
    run_id = (await world.describe("f")).run_id
    events = world.client.history(world.id("f"), run_id=run_id, page_size=1)
    assert (await anext(events)).number == 1
    await world.client.delete_flow(world.id("f"))
    with pytest.raises(FlowNotFoundError):
        [event async for event in events]


@virtual
async def test_a_deletion_between_the_look_and_the_load_of_a_flow_finds_none(rig: Rig) -> None:
    rig.script = by_step(First=lambda task: done(complete()))
    one = await rig.host(flow(step("First")))
    await one.start("f")
    await one.result("f")
    two = await rig.host(flow(step("First")), owner="one")
    two.journal.calls.clear()
    original = two.journal.inner.claim

    def claim(*arguments: Any) -> Any:
        claimed = original(*arguments)
        one.journal.inner.remove_run(arguments[0][0])
        return claimed

    two.journal.inner.claim = claim
    with pytest.raises(ServiceError, match="there is no Flow 'f'"):
        await two.describe("f")


@virtual
async def test_a_fork_whose_past_is_removed_meanwhile_does_not_begin(rig: Rig) -> None:
    rig.script = by_step(First=lambda task: done(complete()))
    one = await rig.host(flow(step("First")))
    run_id = await one.start("f")
    await one.result("f")
    original = one.journal.inner.append

    def append(batch: Any) -> Any:
        one.journal.inner.append = original
        assert one.journal.inner.remove_run(run_id)
        return original(batch)

    one.journal.inner.append = append
    request = s.TimeTravel(flow_id="f", point="BEGINNING", request_id="t", fresh=True)
    with pytest.raises(ServiceError) as refused:
        await one.call(request)
    assert code_of(refused.value) == "NOT_FOUND"
    assert rig.runs("f") == []


@virtual
async def test_a_history_that_is_removed_before_its_page_is_read_is_no_empty_one(rig: Rig) -> None:
    rig.script = by_step(First=lambda task: done(complete()))
    one = await rig.host(flow(step("First")))
    run_id = await one.start("f")
    await one.result("f")
    original = one.journal.inner.records

    def records(*arguments: Any) -> Any:
        one.journal.inner.remove_run(run_id)
        return original(*arguments)

    one.journal.inner.records = records
    with pytest.raises(ServiceError) as gone:
        await one.history("f", run_id=run_id)
    assert code_of(gone.value) == "NOT_FOUND"
