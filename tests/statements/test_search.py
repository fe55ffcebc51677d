"""Search: what a Flow's indexed Attributes and open Steps make findable, and when."""

from __future__ import annotations

import asyncio
from datetime import UTC, date, datetime
from enum import Enum
from typing import Any

import pytest

from dex import (
    ActiveStepSearchMode,
    AsyncContext,
    Attribute,
    AttributeIndex,
    AttributeMap,
    Channel,
    Context,
    DexServiceError,
    Flow,
    FlowConfig,
    FlowStatus,
    IdReusePolicy,
    IndexType,
    PersistenceSchema,
    SearchFlowsPage,
    StartFlowOptions,
    StatusCode,
    Step,
    StepDecision,
    StepList,
    StepMovement,
    SubFlow,
    TimeTravelOptions,
    TimeTravelType,
    Value,
    Wait,
    WireKind,
    go_to_many,
    graceful_complete,
    quoted,
    rpc,
)
from tests.statements.kit import Made
from tests.world import InProcessWorld, World, scenario


class Size(Enum):
    SMALL = "small"
    LARGE = "large"


def indexed(name: str, kind: Any, type: IndexType, key: str = "") -> Attribute[Any]:
    return Attribute(name, kind, index=AttributeIndex(type, key))


city = indexed("city", str, IndexType.KEYWORD)
size = indexed("size", Size, IndexType.KEYWORD)
tags = indexed("tags", list[str], IndexType.KEYWORD_ARRAY, "labels")
notes = indexed("notes", str, IndexType.FULL_TEXT)
age = indexed("age", int, IndexType.INT)
price = indexed("price", float, IndexType.DOUBLE)
paid = indexed("paid", bool, IndexType.BOOL)
due = indexed("due", datetime, IndexType.DATETIME)
stock = AttributeMap("stock", int, index=AttributeIndex(IndexType.INT, "in_stock"))
plain = Attribute("plain", str)
go = Channel("go", str)
SCHEMA = (city, size, tags, notes, age, price, paid, due, stock, plain, go)

Wish = dict[str, Any]
MOMENT = datetime(2026, 5, 1, 12, 30, 0, 250_000, tzinfo=UTC)
VALUES: dict[str, Any] = {
    "city": "Rome",
    "size": "small",
    "tags": ["a", "b"],
    "notes": "The quick brown fox",
    "age": 7,
    "price": 2.5,
    "paid": True,
}


class Hold(Step[Wish]):
    """Writes what the input says, in wait_for, and ends with the first message."""

    def wait_for(self, context: Context, input: Wish) -> Wait:
        for attribute in (city, tags, notes, age, price, paid):
            if attribute.name in input:
                attribute.set(context, input[attribute.name])
        if "size" in input:
            size.set(context, Size(input["size"]))
            due.set(context, MOMENT)
        return Wait.until(go.for_one())

    def execute(self, context: Context, input: Wish) -> StepDecision:
        city.set(context, "over")
        return graceful_complete("done")


class Held(Flow[Wish]):
    def get_steps(self) -> StepList[Wish]:
        return StepList.start_step(Hold())

    def get_persistence_schema(self) -> PersistenceSchema:
        return PersistenceSchema.of(*SCHEMA)

    @rpc
    def move(self, context: Context, to: str | None) -> None:
        city.set(context, to)
        stock.set(context, "bolts", 3)
        stock.set(context, "nuts", 9)


HELD = Held()


async def held(world: World, name: str, **wish: Any) -> None:
    await world.start(HELD, name, wish)
    await world.until_phase(name, "Hold-1", "waiting")


async def found(world: World, query: str) -> list[str]:
    """The short names of this test's Flows that a query finds, newest first. All tests share a journal on Ray."""
    prefix = world.id("")
    query = f"({query}) AND FlowId >= {quoted(prefix)} AND FlowId < {quoted(prefix + '~')}" if query else query
    page = await world.client.search_flows(query, 100)
    assert await world.client.count_flows(query) == len(page.flows)
    return [flow.flow_id.removeprefix(prefix) for flow in page.flows if flow.flow_id.startswith(prefix)]


@pytest.mark.statement("C57", "D10")
@scenario(ray=True)
async def test_what_a_step_has_written_is_found_as_soon_as_it_is_told(world: World) -> None:
    await world.deploy(HELD)
    await held(world, "f", **VALUES)
    await held(world, "other", city="Paris", age=8)
    for query in (
        "city = 'Rome'",
        'city != "Paris"',
        "city IN ('Oslo', 'Rome')",
        "size = 'small' AND NOT age = 8",
        "labels = 'a' AND labels = 'b'",
        "notes = 'BROWN quick'",
        "age < 8",
        "price >= 2.5",
        "paid = true",
        "due = '2026-05-01T14:30:00.25+02:00'",
        "due < '2026-05-02'",
        "FlowType = 'Held' AND (age = 7 OR city = 'Oslo')",
        'ExecutionStatus IN ("Running", "Failed") AND StartTime >= \'2020-01-01T00:00:00Z\' AND age != 8',
    ):
        assert await found(world, query) == ["f"], query
    assert sorted(await found(world, "age > 0")) == ["f", "other"]
    assert await found(world, "city = 'rome' OR labels = 'ab' OR notes = 'bro' OR age > 8") == []


@pytest.mark.statement("C57")
@scenario()
async def test_a_search_tells_the_indexed_values(world: World) -> None:
    await world.deploy(HELD)
    await held(world, "f", **VALUES)
    (entry,) = (await world.client.search_flows("age = 7", 10)).flows
    assert (entry.flow_id, entry.flow_type, entry.status) == (world.id("f"), "Held", FlowStatus.RUNNING)
    assert entry.closed_at is None
    assert entry.indexed_attributes == {
        "city": Value(WireKind.STRING, "Rome"),
        "size": Value(WireKind.STRING, "small"),
        "labels": Value(WireKind.JSON, ["a", "b"]),
        "notes": Value(WireKind.STRING, "The quick brown fox"),
        "age": Value(WireKind.INT64, 7),
        "price": Value(WireKind.DOUBLE, 2.5),
        "paid": Value(WireKind.BOOL, True),
        "due": Value(WireKind.STRING, "2026-05-01T12:30:00.250000+00:00"),
    }


@pytest.mark.statement("C57")
@scenario(ray=True)
async def test_a_closed_flow_is_found_with_its_last_values_and_its_status(world: World) -> None:
    await world.deploy(HELD)
    await held(world, "f", city="Rome")
    await world.publish("f", go, "now")
    await world.result("f")
    assert await found(world, "city = 'over' AND ExecutionStatus = 'Completed' AND CloseTime > '2000-01-01'") == ["f"]
    assert await found(world, "city = 'Rome' OR ExecutionStatus = 'Running' OR CloseTime IS NULL") == []


@pytest.mark.statement("D10", "C38")
@scenario(ray=True)
async def test_every_write_from_outside_is_found_when_it_is_answered(world: World) -> None:
    await world.deploy(HELD)
    start = StartFlowOptions().with_attribute(city, "Start").with_attribute(stock, "bolts", 1)
    await world.start(HELD, "f", {}, start)
    assert await found(world, "city = 'Start' AND in_stock = 1") == ["f"]
    await world.client.set_attribute(world.id("f"), city, "Client")
    assert await found(world, "city = 'Client'") == ["f"]
    await world.client.invoke_rpc(HELD.move, world.id("f"), "RPC")
    assert await found(world, "city = 'RPC' AND in_stock = 9 AND in_stock = 3") == ["f"]
    assert await found(world, "in_stock = 1 OR city IN ('Start', 'Client')") == []
    await world.client.invoke_rpc(HELD.move, world.id("f"), None)
    assert await found(world, "city IS NULL AND in_stock IS NOT NULL") == ["f"]


@pytest.mark.statement("D10", "B67")
@scenario()
async def test_what_is_found_survives_a_crash_with_the_record_that_brought_it(world: World) -> None:
    await world.deploy(HELD)
    options = StartFlowOptions(config_override=FlowConfig(active_step_search_mode=ActiveStepSearchMode.ALL))
    await world.start(HELD, "f", {"city": "Rome"}, options)
    await world.until_phase("f", "Hold-1", "waiting")
    await world.restart()
    assert await found(world, "city = 'Rome' AND ActiveStepTypes = 'Hold'") == ["f"]
    await world.publish("f", go, "now")
    await world.result("f")
    assert await found(world, "city = 'over' AND ActiveStepTypes IS NULL") == ["f"]


# Which runs -----------------------------------------------------------------------------------------------------------


@pytest.mark.statement("C57", "C58")
@scenario()
async def test_earlier_runs_are_found_by_a_search_and_not_in_the_list_of_flows(world: World) -> None:
    await world.deploy(HELD)
    first = await world.start(HELD, "f", {"city": "Rome"})
    await world.until_phase("f", "Hold-1", "waiting")
    again = StartFlowOptions(id_reuse_policy=IdReusePolicy.ALLOW_TERMINATE_IF_RUNNING)
    await world.advance(1)
    second = await world.start(HELD, "f", {"city": "Rome"}, again)
    await world.until_phase("f", "Hold-1", "waiting")
    client, query = world.client, f"WorkflowId = {quoted(world.id('f'))}"
    page = await client.search_flows(query, 10, include_continued_as_new=True)
    assert [(flow.run_id, flow.status) for flow in page.flows] == [
        (second, FlowStatus.RUNNING),
        (first, FlowStatus.TERMINATED),
    ]
    assert [flow.run_id for flow in (await client.list_flows(query="city = 'Rome'")).flows] == [second]
    assert await client.list_flows(query="city = 'Rome'", status=FlowStatus.TERMINATED) == SearchFlowsPage((), "")
    assert await client.list_flows(query="city = 'Rome'", flow_type="Other") == SearchFlowsPage((), "")
    assert await client.count_flows(query) == 2
    assert await client.count_flows(query, latest_only=True) == 1
    assert await found(world, f"RunId = '{first}'") == ["f"]


class Parent(Step[int]):
    def wait_for(self, context: Context, input: int) -> Wait:
        return Wait.all_of(SubFlow.run(HELD, {"age": 1}), SubFlow.run(HELD, {"age": 2}))

    def execute(self, context: Context, input: int) -> StepDecision:
        return graceful_complete()


@pytest.mark.statement("C57")
@scenario(ray=True)
async def test_the_children_of_a_flow_are_found_by_its_id(world: World) -> None:
    parent = Made(Parent(), name="Parent")
    await world.deploy(HELD, parent)
    await world.start(parent, "p", 1)
    query = f"DexParentFlowID = {quoted(world.id('p'))}"

    async def both() -> bool:
        return await world.client.count_flows(query) == 2

    await world.until(both)
    assert await world.client.count_flows(f"{query} AND age >= 0") <= 2
    roots = await world.client.list_flows(query=f"ParentFlowId IS NULL AND FlowId = {quoted(world.id('p'))}")
    assert [flow.flow_id for flow in roots.flows] == [world.id("p")]


@pytest.mark.statement("C57")
@scenario()
async def test_pages_follow_each_other_to_the_end(world: World) -> None:
    await world.deploy(HELD)
    for number in range(7):
        await held(world, f"f{number}", age=number)
        await world.advance(1)
    seen: list[str] = []
    token = ""
    while True:
        page = await world.client.search_flows("age != 3", 2, token)
        seen += [flow.flow_id.removeprefix(world.id("")) for flow in page.flows]
        token = page.next_page_token
        if not token:
            break
    assert seen == ["f6", "f5", "f4", "f2", "f1", "f0"]
    assert len((await world.client.search_flows("", 0)).flows) == 7, "a page size of 0 is the usual one"


# Time travel ----------------------------------------------------------------------------------------------------------


@pytest.mark.statement("C57", "C56")
@scenario()
async def test_a_run_that_time_travel_began_is_found_by_what_it_began_with(world: World) -> None:
    await world.deploy(HELD)
    long = "word " * 5000 + "end"
    await held(world, "f", city="Rome", notes=long)
    await world.advance(1)
    await world.client.set_attribute(world.id("f"), age, 5)
    moment = datetime.fromtimestamp(world.clock.now(), UTC)  # type: ignore[attr-defined]
    await world.advance(1)
    await world.publish("f", go, "now")
    await world.result("f")
    assert await found(world, "city = 'over' AND notes = 'end'") == ["f"]
    options = TimeTravelOptions(TimeTravelType.HISTORY_EVENT_TIME, history_event_time=moment, skip_writes_reapply=True)
    run = await world.client.time_travel(world.id("f"), options)
    assert await found(world, f"RunId = '{run}' AND city = 'Rome' AND notes = 'end word'") == ["f"]
    assert await found(world, f"RunId = '{run}' AND city = 'over'") == []
    assert await found(world, "city = 'over' AND ExecutionStatus = 'Completed'") == ["f"], (
        "the run before keeps its own"
    )


@pytest.mark.statement("C57")
@scenario()
async def test_large_texts_that_came_after_the_point_are_found_in_the_run_that_gets_them_again(world: World) -> None:
    await world.deploy(HELD)
    await held(world, "f", city="Rome")
    await world.client.set_attribute(world.id("f"), notes, "word " * 5000 + "again")
    await world.publish("f", go, "now")
    await world.result("f")
    await world.restart()
    run = await world.client.time_travel(world.id("f"), TimeTravelOptions(TimeTravelType.BEGINNING))
    assert await found(world, f"RunId = '{run}' AND notes = 'again'") == ["f"]


# Open Steps -----------------------------------------------------------------------------------------------------------


class Fork(Step[None]):
    def execute(self, context: Context, input: None) -> StepDecision:
        return go_to_many(StepMovement.of(Waits, None), StepMovement.of(Sleeps, None))


class Waits(Step[None]):
    def wait_for(self, context: Context, input: None) -> Wait:
        return Wait.until(go.for_one())

    async def execute(self, context: AsyncContext, input: None) -> StepDecision:  # type: ignore[override]
        await asyncio.sleep(50)
        return graceful_complete()


class Sleeps(Step[None]):
    async def execute(self, context: AsyncContext, input: None) -> StepDecision:  # type: ignore[override]
        await asyncio.sleep(5)
        return graceful_complete()


def searched_as(mode: ActiveStepSearchMode | None) -> StartFlowOptions:
    return StartFlowOptions(config_override=FlowConfig(active_step_search_mode=mode))


@pytest.mark.statement("B66", "C62")
@pytest.mark.parametrize("mode", [None, *ActiveStepSearchMode])
@scenario()
async def test_open_steps_are_found_as_far_as_the_mode_says(world: World, mode: ActiveStepSearchMode | None) -> None:
    flow = Made(Fork(), Waits(), Sleeps(), has=[go])
    await world.deploy(flow)
    await world.start(flow, "f", None, searched_as(mode))
    await world.until_phase("f", "Waits-1", "waiting")
    waits = mode in (ActiveStepSearchMode.ALL, ActiveStepSearchMode.WITH_WAIT_FOR)
    every = mode is ActiveStepSearchMode.ALL
    assert await found(world, "ActiveStepTypes = 'Waits'") == ["f"] * waits
    assert await found(world, "ActiveStepTypes = 'Sleeps'") == ["f"] * every
    assert await found(world, "ActiveStepTypes = 'Fork'") == []
    await world.advance(10)
    assert await found(world, "ActiveStepTypes = 'Sleeps'") == []
    await world.publish("f", go, "now")
    await world.advance(1)
    assert await found(world, "ActiveStepTypes = 'Waits'") == ["f"] * waits, "its wait_for ran, and it is open still"
    await world.result("f")
    assert await found(world, "ActiveStepTypes IS NOT NULL") == []


@pytest.mark.statement("B66")
@scenario()
async def test_a_change_of_the_mode_shows_at_once(world: World) -> None:
    flow = Made(Fork(), Waits(), Sleeps(), has=[go])
    await world.deploy(flow)
    await world.start(flow, "f")
    await world.until_phase("f", "Waits-1", "waiting")
    await world.advance(60)  # from here on nothing happens but what the test does
    for mode, expected in (("ALL", ["f"]), ("DISABLED", []), ("WITH_WAIT_FOR", ["f"])):
        config = FlowConfig(active_step_search_mode=ActiveStepSearchMode[mode])
        await world.client.update_flow_config(world.id("f"), config)
        assert await found(world, "ActiveStepTypes = 'Waits'") == expected
        await world.restart()
        assert await found(world, "ActiveStepTypes = 'Waits'") == expected


@pytest.mark.statement("B66")
@scenario()
async def test_the_first_thing_after_a_crash_may_be_the_end(world: World) -> None:
    flow = Made(Waits(), has=[go])
    await world.deploy(flow)
    await world.start(flow, "f", None, searched_as(ActiveStepSearchMode.ALL))
    await world.until_phase("f", "Waits-1", "waiting")
    await world.restart()
    assert await found(world, "ActiveStepTypes = 'Waits'") == ["f"]
    await world.client.stop_flow(world.id("f"))
    assert await found(world, "ActiveStepTypes IS NOT NULL") == []


class SlowToWait(Step[None]):
    async def wait_for(self, context: AsyncContext, input: None) -> Wait:
        await asyncio.sleep(50)
        return Wait.until(go.for_one())

    def execute(self, context: Context, input: None) -> StepDecision:
        return graceful_complete()


@pytest.mark.statement("B66")
@scenario()
async def test_a_step_has_run_wait_for_when_that_is_committed(world: World) -> None:
    flow = Made(SlowToWait(), has=[go])
    await world.deploy(flow)
    await world.start(flow, "f", None, searched_as(ActiveStepSearchMode.WITH_WAIT_FOR))
    await world.until_phase("f", "SlowToWait-1", "running")
    assert await found(world, "ActiveStepTypes = 'SlowToWait'") == []
    await world.until_phase("f", "SlowToWait-1", "waiting", timeout=100)
    assert await found(world, "ActiveStepTypes = 'SlowToWait'") == ["f"]


# What costs nothing, and what stops nobody ----------------------------------------------------------------------------


@pytest.mark.statement("B66")
@scenario()
async def test_a_flow_without_indexed_attributes_writes_no_entry(world: World) -> None:
    class Writes(Step[None]):
        def execute(self, context: Context, input: None) -> StepDecision:
            plain.set(context, "x")
            return graceful_complete()

    flow = Made(Writes(), has=[plain])
    await world.deploy(flow)
    appended: list[Any] = []
    engine = world.engine  # type: ignore[attr-defined]
    append = engine.host._committer._journal.append
    engine.host._committer._journal.append = lambda batch: (appended.extend(batch), append(batch))[1]
    await world.start(flow, "f")
    await world.result("f")
    assert len(appended) > 1
    assert {bool(record.index) for record in appended} == {False}
    assert {type(record.index) for record in appended} == {dict}


@pytest.mark.statement("D10")
@scenario()
async def test_a_value_that_its_index_has_no_form_for_is_there_and_equals_nothing(world: World) -> None:
    class Odd(Step[None]):
        def execute(self, context: Context, input: None) -> StepDecision:
            odd.set(context, {"a": 1})
            nan.set(context, float("nan"))
            day.set(context, date(2026, 5, 1))
            return graceful_complete()

    odd = indexed("odd", dict, IndexType.KEYWORD)
    nan = indexed("nan", float, IndexType.DOUBLE)
    day = indexed("day", date, IndexType.DATETIME)
    flow = Made(Odd(), has=[odd, nan, day])
    await world.deploy(flow)
    await world.start(flow, "f")
    assert (await world.result("f")).status is FlowStatus.COMPLETED
    assert await found(world, "odd IS NOT NULL AND odd != '' AND nan != 0 AND NOT nan < 0 AND NOT nan >= 0") == ["f"]
    assert await found(world, "day = '2026-05-01T00:00:00Z'") == ["f"]


# Mistakes -------------------------------------------------------------------------------------------------------------


@pytest.mark.statement("C57")
@pytest.mark.parametrize(
    ("query", "message", "caret"),
    [
        ("age = 'old'", "age is INT and can't be compared with the text 'old'", 6),
        ("paid = 1", "paid is BOOL and can't be compared with a whole number 1: write TRUE or FALSE", 7),
        ("city = 5", "city is KEYWORD and can't be compared with a whole number 5: write the text in quotes", 7),
        ("due = 'soon'", "due is DATETIME", 6),
        ("labels < 'a'", "labels is KEYWORD_ARRAY, which has no order", 0),
        ("cty = 'Rome'", "no field or index key 'cty' (did you mean city?)", 0),
        ("plain = 'x'", "no field or index key 'plain'", 0),
        ("ExecutionStatus = 'Lost'", "it is one of RUNNING, COMPLETED, FAILED", 18),
        ("city = 'Rome' city", "there is city where AND, OR or the end was expected", 14),
        ("city = ", "the query ends where a value", 6),
    ],
)
@scenario()
async def test_a_query_that_asks_wrongly_is_refused_with_its_place(
    world: World, query: str, message: str, caret: int
) -> None:
    await world.deploy(HELD)
    for call in (
        lambda: world.client.search_flows(query, 10),
        lambda: world.client.count_flows(query),
        lambda: world.client.list_flows(query=query),
    ):
        with pytest.raises(DexServiceError) as caught:
            await call()
        assert caught.value.code is StatusCode.INVALID_ARGUMENT
        assert message in str(caught.value)
        *_, shown, pointer = str(caught.value).rstrip().splitlines()
        assert shown.strip() == query.strip()
        assert pointer == " " * (4 + caret) + "^"


@pytest.mark.statement("C57")
@scenario()
async def test_keys_of_flows_whose_code_is_not_deployed_are_found_all_the_same(world: World) -> None:
    await world.deploy(HELD)
    await held(world, "f", age=7)
    assert isinstance(world, InProcessWorld)
    assert world.engine is not None
    world.engine.host.specs.clear()
    assert await found(world, "age = 7") == ["f"]
    with pytest.raises(DexServiceError, match="age is INT"):
        await found(world, "age = 'x'")


@scenario()
async def test_a_page_token_of_ones_own_making_is_refused(world: World) -> None:
    await world.deploy(HELD)
    with pytest.raises(DexServiceError, match="is not a page token"):
        await world.client.search_flows("", 10, "x")
    with pytest.raises(DexServiceError, match="from 1 to 1000"):
        await world.client.search_flows("", 1001)
