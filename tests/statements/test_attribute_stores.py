"""Attribute stores: users' own tables that follow the Attributes of Flows."""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any
from uuid import UUID

import pytest

from dex import (
    Attribute,
    AttributeMap,
    Channel,
    Context,
    DexServiceError,
    Flow,
    FlowConfig,
    FlowStatus,
    IdReusePolicy,
    PersistenceSchema,
    StartFlowOptions,
    StatusCode,
    Step,
    StepDecision,
    StepList,
    SubFlow,
    SubFlowOptions,
    TimeTravelOptions,
    TimeTravelType,
    Wait,
    dead_end,
    force_complete,
)
from tests.world import World, scenario

status = Attribute("status", str, sync_to_attribute_store=True)
amount = Attribute("amount", int, sync_to_attribute_store=True)
lines = AttributeMap("lines", int, sync_to_attribute_store=True)
secret = Attribute("secret", str)
box = Channel("box", str)

MAIN = StartFlowOptions(config_override=FlowConfig(attribute_store_names=["main"]))


class Fill(Step[str]):
    def execute(self, context: Context, input: str) -> StepDecision:
        status.set(context, input)
        amount.set(context, len(input))
        secret.set(context, "nobody's business")
        return dead_end()


class Order(Flow[str]):
    def get_steps(self) -> StepList[str]:
        return StepList.start_step(Fill())

    def get_persistence_schema(self) -> PersistenceSchema:
        return PersistenceSchema.of(status, amount, lines, secret)


COLUMNS = "status TEXT, amount INTEGER, lines TEXT, secret TEXT"


def make_table(world: World, columns: str = COLUMNS) -> None:
    execute(world, f"CREATE TABLE IF NOT EXISTS rows (flow_id TEXT PRIMARY KEY, {columns})")


def execute(world: World, statement: str, *values: Any) -> list[Any]:
    connection = sqlite3.connect(world.store_file, timeout=60)
    try:
        with connection:
            return connection.execute(statement, values).fetchall()
    finally:
        connection.close()


def row(world: World, name: str, columns: str = "status, amount, lines, secret") -> Any:
    (found,) = execute(world, f"SELECT {columns} FROM rows WHERE flow_id = ?", world.id(name)) or [None]
    return found


async def until_row(world: World, name: str, *wanted: Any, columns: str = "status, amount, lines, secret") -> None:
    async def there() -> bool:
        return bool(row(world, name, columns) == wanted)

    await world.until(there, timeout=60.0)


async def settled(world: World) -> None:
    """Long enough for whatever is still on its way."""
    await world.advance(120)


@pytest.mark.statement("B71", "C71", "C72", "C73")
@scenario(ray=True)
async def test_a_table_follows_the_attributes_that_opted_in(world: World) -> None:
    make_table(world)
    flow = Order()
    await world.deploy(flow)
    await world.start(flow, "f", "new", MAIN)
    await until_row(world, "f", "new", 3, None, None)
    await world.client.set_attribute(world.id("f"), status, "paid")
    await until_row(world, "f", "paid", 3, None, None)
    await world.client.set_attribute(world.id("f"), lines, "bolts", 7)
    await world.client.set_attribute(world.id("f"), lines, "nuts of 2", 8)
    await until_row(world, "f", "paid", 3, '{"bolts": 7, "nuts of 2": 8}', None)


@pytest.mark.statement("B71", "C71")
@scenario()
async def test_a_flow_that_names_no_store_is_in_none(world: World) -> None:
    make_table(world)
    flow = Order()
    await world.deploy(flow)
    await world.start(flow, "f", "new")
    await world.start(flow, "g", "new", StartFlowOptions(config_override=FlowConfig(attribute_store_names=[])))
    await settled(world)
    assert execute(world, "SELECT * FROM rows") == []


@pytest.mark.statement("C71")
@scenario()
async def test_a_flow_that_names_no_store_is_in_the_default_ones(world: World) -> None:
    make_table(world)
    flow = Order()
    await world.deploy(flow, default_attribute_stores=("main",))
    await world.start(flow, "f", "new")
    await world.start(flow, "g", "new", StartFlowOptions(config_override=FlowConfig(attribute_store_names=[])))
    await until_row(world, "f", "new", 3, None, None)
    await settled(world)
    assert row(world, "g") is None


@pytest.mark.statement("C71")
@scenario()
async def test_attributes_that_did_not_opt_in_bring_nothing_about(world: World) -> None:
    make_table(world)
    flow = Order()
    await world.deploy(flow)
    await world.start(flow, "f", "new", MAIN)
    await until_row(world, "f", "new", 3, None, None)
    execute(world, "UPDATE rows SET status = 'by hand'")
    await world.client.set_attribute(world.id("f"), secret, "still nobody's")
    await settled(world)
    assert row(world, "f") == ("by hand", 3, None, None)


@pytest.mark.statement("C72")
@scenario()
async def test_a_deleted_attribute_is_null(world: World) -> None:
    make_table(world)
    flow = Order()
    await world.deploy(flow)
    await world.start(flow, "f", "new", MAIN)
    await world.client.set_attribute(world.id("f"), lines, "bolts", 7)
    await until_row(world, "f", "new", 3, '{"bolts": 7}', None)
    await world.client.set_attribute(world.id("f"), status, None)
    await world.client.set_attribute(world.id("f"), lines, "bolts", None)
    await until_row(world, "f", None, 3, None, None)


@pytest.mark.statement("C71")
@scenario()
async def test_initial_attributes_are_in_the_row_from_the_start(world: World) -> None:
    make_table(world)
    flow = Waiting()
    await world.deploy(flow)
    await world.start(flow, "f", options=MAIN.with_attribute(status, "given").with_attribute(lines, "nuts", 2))
    await until_row(world, "f", "given", None, '{"nuts": 2}', None)


class Ask(Step[None]):
    def wait_for(self, context: Context, input: None) -> Wait:
        return Wait.all_of(box.for_one())

    def execute(self, context: Context, input: None) -> StepDecision:
        (word,) = box.results(context)
        status.set(context, word)
        return force_complete(word)


class Waiting(Flow[None]):
    def get_steps(self) -> StepList[None]:
        return StepList.start_step(Ask())

    def get_persistence_schema(self) -> PersistenceSchema:
        return PersistenceSchema.of(box, status, amount, lines)


@pytest.mark.statement("C73")
@scenario()
async def test_what_a_flow_ends_with_is_sent_too(world: World) -> None:
    make_table(world)
    flow = Waiting()
    await world.deploy(flow)
    await world.start(flow, "f", options=MAIN)
    await world.publish("f", box, "the end")
    await world.result("f")
    await until_row(world, "f", "the end", None, None, None)


@pytest.mark.statement("C71", "C73")
@scenario()
async def test_a_new_run_replaces_the_row_of_the_one_before(world: World) -> None:
    make_table(world)
    flow = Waiting()
    await world.deploy(flow)
    await world.start(flow, "f", options=MAIN.with_attribute(amount, 5).with_attribute(status, "first"))
    await until_row(world, "f", "first", 5, None, None)
    again = StartFlowOptions(
        config_override=MAIN.config_override, id_reuse_policy=IdReusePolicy.ALLOW_TERMINATE_IF_RUNNING
    ).with_attribute(status, "second")
    await world.start(flow, "f", options=again)
    await until_row(world, "f", "second", None, None, None)


@pytest.mark.statement("C73")
@scenario()
async def test_after_a_time_travel_the_row_is_what_it_was_at_the_point(world: World) -> None:
    make_table(world)
    flow = Waiting()
    await world.deploy(flow)
    await world.start(flow, "f", options=MAIN.with_attribute(amount, 5))
    await world.until_phase("f", "Ask-1", "waiting")
    await world.publish("f", box, "done")
    await world.result("f")
    await until_row(world, "f", "done", 5, None, None)
    there = TimeTravelOptions(TimeTravelType.BEGINNING, skip_writes_reapply=True)
    await world.client.time_travel(world.id("f"), there)
    await until_row(world, "f", None, 5, None, None)


@pytest.mark.statement("B71", "B72")
@scenario()
async def test_an_update_of_the_config_begins_and_ends_the_sync(world: World) -> None:
    make_table(world)
    flow = Waiting()
    await world.deploy(flow)
    await world.start(flow, "f", options=StartFlowOptions().with_attribute(amount, 5))
    await settled(world)
    assert row(world, "f") is None
    await world.client.update_flow_config(world.id("f"), FlowConfig(attribute_store_names=["main"]))
    await until_row(world, "f", None, 5, None, None)
    await world.client.update_flow_config(world.id("f"), FlowConfig(continue_as_new_threshold=3))
    await world.client.set_attribute(world.id("f"), amount, 6)
    await until_row(world, "f", None, 6, None, None)
    await world.client.update_flow_config(world.id("f"), FlowConfig(attribute_store_names=[]))
    await world.client.set_attribute(world.id("f"), amount, 7)
    await settled(world)
    assert row(world, "f") == (None, 6, None, None)


@pytest.mark.statement("B71")
@scenario()
async def test_a_store_that_nobody_set_up_is_refused_where_it_is_named(world: World) -> None:
    flow = Waiting()
    await world.deploy(flow)
    wrong = FlowConfig(attribute_store_names=["main", "mian"])
    what = r"there is no Attribute store 'mian'; the stores are main$"
    with pytest.raises(DexServiceError, match=what) as refused:
        await world.start(flow, "f", options=StartFlowOptions(config_override=wrong))
    assert refused.value.code is StatusCode.INVALID_ARGUMENT
    await world.start(flow, "f")
    with pytest.raises(DexServiceError, match=what) as refused:
        await world.client.update_flow_config(world.id("f"), wrong)
    assert refused.value.code is StatusCode.INVALID_ARGUMENT


class Parent(Step[None]):
    def wait_for(self, context: Context, input: None) -> Wait:
        options = SubFlowOptions(config_override=MAIN.config_override).with_attribute(status, "of a child")
        return Wait.all_of(SubFlow.run(child, None, options))

    def execute(self, context: Context, input: None) -> StepDecision:
        return dead_end()


class Family(Flow[None]):
    def get_steps(self) -> StepList[None]:
        return StepList.start_step(Parent())


child = Waiting()


@pytest.mark.statement("C71")
@scenario()
async def test_a_subflow_has_stores_of_its_own(world: World) -> None:
    make_table(world)
    family = Family()
    await world.deploy(family, child)
    await world.start(family, "f")

    async def there() -> bool:
        return execute(world, "SELECT status FROM rows") == [("of a child",)]

    await world.until(there)


class Colour(Enum):
    RED = "red"


@dataclass
class Address:
    street: str
    since: date


MOMENT = datetime(2026, 5, 1, 12, 30, tzinfo=UTC)
OWN = UUID("12345678-1234-5678-1234-567812345678")

Case = tuple[str, Any, Any, str, Any]
CASES: tuple[Case, ...] = (
    ("text", str, "grüße", "TEXT", "grüße"),
    ("whole", int, 2**40, "INTEGER", 2**40),
    ("truth", bool, True, "BOOLEAN", 1),
    ("real", float, 1.5, "REAL", 1.5),
    ("price", Decimal, Decimal("1.25"), "NUMERIC(10, 2)", 1.25),
    ("moment", datetime, MOMENT, "DATETIME", "2026-05-01 12:30:00.000000"),
    ("day", date, date(2026, 5, 1), "DATE", "2026-05-01"),
    ("span", timedelta, timedelta(seconds=90), "TEXT", "0:01:30"),
    ("own", UUID, OWN, "TEXT", str(OWN)),
    ("raw", bytes, b"\x00\xff", "BLOB", b"\x00\xff"),
    ("colour", Colour, Colour.RED, "TEXT", "red"),
    ("many", list[int], [1, 2], "JSON", "[1, 2]"),
    ("address", Address, Address("High St", date(2020, 1, 2)), "TEXT", '{"street": "High St", "since": "2020-01-02"}'),
    ("untyped", int, 5, "", 5),
    ("large", str, "x" * 50_000, "TEXT", "x" * 50_000),
)


def flow_of(*attributes: Attribute[Any]) -> Flow[None]:
    class Typed(Flow[None]):
        def get_persistence_schema(self) -> PersistenceSchema:
            return PersistenceSchema.of(*attributes)

    return Typed()


@pytest.mark.statement("C72")
@scenario()
async def test_each_type_of_value_has_a_form_in_the_table(world: World) -> None:
    make_table(world, ", ".join(f"{name} {column}" for name, _, _, column, _ in CASES))
    attributes = [Attribute(name, kind, sync_to_attribute_store=True) for name, kind, _, _, _ in CASES]
    flow = flow_of(*attributes)
    await world.deploy(flow)
    options = MAIN
    for attribute, case in zip(attributes, CASES, strict=True):
        options = options.with_attribute(attribute, case[2])
    await world.start(flow, "f", options=options)
    columns = ", ".join(name for name, *_ in CASES)
    await until_row(world, "f", *(case[4] for case in CASES), columns=columns)


@pytest.mark.statement("C73")
@scenario()
async def test_what_fits_no_column_is_left_out_and_told_once(world: World, caplog: pytest.LogCaptureFixture) -> None:
    make_table(world, "status INTEGER, lines TEXT")
    flow = Order()
    await world.deploy(flow)
    for name in ("f", "g"):
        await world.start(flow, name, "new", MAIN)
        await world.client.set_attribute(world.id(name), lines, "bolts", 7)
        await until_row(world, name, None, '{"bolts": 7}', columns="status, lines")
    told = [record.getMessage() for record in caplog.records if record.name == "dexray.stores"]
    assert len([text for text in told if "'amount'" in text]) == 1
    assert any("table rows has no column of its name" in text for text in told)
    assert any("'status'" in text and "its column takes int, not str" in text for text in told)


@pytest.mark.statement("C73")
@scenario()
async def test_a_store_that_is_not_there_keeps_no_flow_waiting_and_gets_all_when_it_comes(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    flow = Waiting()
    await world.deploy(flow)
    await world.start(flow, "f", options=MAIN.with_attribute(amount, 5))
    await world.publish("f", box, "done")
    assert (await world.result("f")).status is FlowStatus.COMPLETED
    await world.until(lambda: problem_is(world, "f", "there is no file"))
    execute(world, "CREATE TABLE others (x)")
    await world.until(lambda: problem_is(world, "f", "there is no table rows"), timeout=120.0)
    execute(world, "CREATE TABLE rows (a TEXT, b TEXT, PRIMARY KEY (a, b))")
    await world.until(lambda: problem_is(world, "f", "one column of texts"), timeout=120.0)
    execute(world, "DROP TABLE rows")
    make_table(world)
    await until_row(world, "f", "done", 5, None, None)
    (store,) = (await world.describe("f")).attribute_stores
    assert (store.name, store.behind_since, store.problem) == ("main", None, "")
    words = [record.getMessage() for record in caplog.records if record.name == "dexray.engine.stores"]
    assert len(words) == 2, words
    assert "is away, its rows wait" in words[0]
    assert "is back" in words[1]


async def problem_is(world: World, name: str, words: str) -> bool:
    (store,) = (await world.describe(name)).attribute_stores
    return store.behind_since is not None and words in store.problem


@pytest.mark.statement("C73")
@scenario()
async def test_a_flow_whose_attributes_are_not_synced_has_no_stores_to_describe(world: World) -> None:
    flow = flow_of(Attribute("plain", int))
    await world.deploy(flow)
    await world.start(flow, "f", options=MAIN)
    assert (await world.describe("f")).attribute_stores == ()
