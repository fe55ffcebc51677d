"""Attribute stores under faults. When the trouble is over, every row is what the last record made of it; and a row
never goes back to what it was before."""

from __future__ import annotations

import asyncio
import itertools
import random
import sqlite3
from collections.abc import Callable
from typing import Any

import pytest

from dex.values import CodecRegistry
from dex.wire import service as s
from dex.wire.service import FlowConfigSpec
from dex.wire.specs import FlowSpec
from dexray.engine import stores as engine_stores
from dexray.settings import AttributeStore
from dexray.stores import StoreAway, StoreTable, databases
from tests.engine.faulty import AFTER, BEFORE, Plan
from tests.engine.rig import Machine, Rig, by_step, done, settle, virtual
from tests.machine.build import flow, graceful_complete, step

FLOW = flow(step("A"))
WORK = FlowSpec(
    flow_type="Work", start_step=FLOW.start_step, steps=FLOW.steps, attributes=("size", "plain"), synced=("size",)
)
STORE = FlowConfigSpec(attribute_store_names=("main",))
codecs = CodecRegistry()
calls = itertools.count(1)


def payload(value: int) -> bytes:
    return codecs.encode(value, int, where="a test")


def file(rig: Rig) -> str:
    return rig.path.replace("flows.db", "users.db")


def ask(rig: Rig, statement: str) -> list[Any]:
    connection = sqlite3.connect(file(rig))
    try:
        with connection:
            return connection.execute(statement).fetchall()
    finally:
        connection.close()


def make_table(rig: Rig) -> None:
    """With a log of everything that a row ever was."""
    ask(rig, "CREATE TABLE rows (flow_id TEXT PRIMARY KEY, size INTEGER CHECK (size <> 13))")
    ask(rig, "CREATE TABLE was (flow_id TEXT, size INTEGER)")
    for when in ("INSERT", "UPDATE"):
        ask(
            rig,
            f"CREATE TRIGGER log_{when} AFTER {when} ON rows BEGIN INSERT INTO was VALUES (NEW.flow_id, NEW.size); END",
        )


class Wire(StoreTable):
    """The way to the store, which can be cut: before a write, or after it, when nobody hears that it was done."""

    down = False
    cuts: list[str]
    writes = 0

    def begin(self, flow_ids: Any) -> None:
        if self.down:
            raise StoreAway("the wire is cut")
        super().begin(flow_ids)

    def write(self, images: Any) -> None:
        cut = self.cuts.pop(0) if self.cuts else ""
        if cut == BEFORE:
            self.roll_back()
            raise StoreAway("the wire was cut before")
        self.writes += 1
        super().write(images)
        if cut == AFTER:
            raise StoreAway("the wire was cut after")


class Wires:
    def __init__(self) -> None:
        self.all: list[Wire] = []
        self.down = False
        self.cuts: list[str] = []

    def __call__(self, store: AttributeStore) -> Wire:
        wire = Wire(store)
        wire.cuts = self.cuts
        wire.down = self.down
        self.all.append(wire)
        return wire

    def cut(self) -> None:
        self.down = True
        for wire in self.all:
            wire.down = True

    def mend(self) -> None:
        self.down = False
        for wire in self.all:
            wire.down = False

    @property
    def writes(self) -> int:
        return sum(wire.writes for wire in self.all)


async def host(rig: Rig, owner: str = "one", *, wires: Wires | None = None, **more: Any) -> Machine:
    stores = (AttributeStore("main", f"sqlite:///{file(rig)}", "rows"),)
    return await rig.host(WORK, owner=owner, open_store=wires or Wires(), attribute_stores=stores, **more)


async def set_size(host: Machine, flow_id: str, size: int | None) -> None:
    value = None if size is None else payload(size)
    await host.call(s.SetAttribute(flow_id=flow_id, name="size", value=value, request_id=f"set-{next(calls)}"))


async def start(host: Machine, flow_id: str, size: int | None = None) -> None:
    attributes = {} if size is None else {"size": payload(size)}
    await host.start(flow_id, "Work", config=STORE, attributes=attributes)


def rows(rig: Rig) -> dict[str, int | None]:
    return dict(ask(rig, "SELECT flow_id, size FROM rows"))


def was(rig: Rig, flow_id: str = "f") -> list[int | None]:
    """All that the row ever was, without repetitions in a row."""
    sizes = [size for (size,) in ask(rig, f"SELECT size FROM was WHERE flow_id = '{flow_id}' ORDER BY rowid")]
    return [size for size, _ in itertools.groupby(sizes)]


def marks(rig: Rig) -> list[str]:
    return [flow_id for (flow_id,) in rig.rows("SELECT flow_id FROM store_marks ORDER BY flow_id")]


async def until(what: Callable[[], bool], seconds: float = 300.0) -> None:
    waited = 0.0
    while not what():
        assert waited < seconds, "not true in time"
        await asyncio.sleep(0.05)
        waited += 0.05


# It follows -----------------------------------------------------------------------------------------------------------


@pytest.mark.statement("B71", "C73")
@virtual
async def test_a_row_follows_and_its_mark_is_cleared(rig: Rig) -> None:
    make_table(rig)
    one = await host(rig)
    await start(one, "f", 1)
    for size in (2, None, 3):
        await set_size(one, "f", size)
        await settle()
    assert was(rig) == [1, 2, None, 3]
    assert marks(rig) == []


@pytest.mark.statement("C73")
@virtual
async def test_a_flow_without_it_costs_nothing(rig: Rig) -> None:
    wires = Wires()
    one = await host(rig, wires=wires)
    one.deploy(flow(step("A")), name="d2")
    await settle()
    looks = one.journal.calls["find_marks"], one.journal.calls["list_marks"]
    await one.start("f", "Work", attributes={"size": payload(1)})
    await start(one, "g")
    one.journal.batches.clear()
    await one.start("h", config=STORE)
    await one.call(s.SetAttribute(flow_id="g", name="plain", value=payload(2), request_id="p"))
    await set_size(one, "f", 2)
    assert not any(record.marks for batch in one.journal.batches for record in batch)
    assert looks == (0, 1)


@virtual
async def test_an_engine_without_stores_looks_for_no_marks(rig: Rig) -> None:
    one = await rig.host(WORK)
    await start_plain(one)
    await asyncio.sleep(60)
    assert one.journal.calls["list_marks"] == 0
    assert one.journal.calls["find_marks"] == 0


async def start_plain(host: Machine) -> None:
    await host.start("f", "Work", attributes={"size": payload(1)})


@virtual
async def test_nothing_runs_when_nothing_is_behind(rig: Rig) -> None:
    make_table(rig)
    one = await host(rig)
    await start(one, "f", 1)
    await settle()
    before = asyncio.all_tasks()
    calls_before = sum(one.journal.calls.values())
    await asyncio.sleep(24 * 3600)
    assert sum(one.journal.calls.values()) == calls_before
    assert not [task for task in before if "Sender" in repr(task)]


@pytest.mark.statement("C74")
@virtual
async def test_a_thousand_flows_at_once_go_in_batches_of_a_hundred(rig: Rig) -> None:
    make_table(rig)
    wires = Wires()
    one = await host(rig, wires=wires)
    one.store_lane.after = 0.01
    await asyncio.gather(*(start(one, f"f{number}", number + 20) for number in range(1000)))
    await until(lambda: not marks(rig))
    assert rows(rig) == {f"f{number}": number + 20 for number in range(1000)}
    assert wires.writes <= 12


@pytest.mark.statement("C73")
@virtual
async def test_only_the_latest_of_many_changes_is_sent(rig: Rig) -> None:
    make_table(rig)
    wires = Wires()
    one = await host(rig, wires=wires)
    await start(one, "f", 100)
    await settle()
    one.store_lane.hold()
    for size in range(101, 200):
        await set_size(one, "f", size)
    one.store_lane.free()
    await settle(100)
    assert was(rig) == [100, 199]
    assert wires.writes == 2


# The store is away ----------------------------------------------------------------------------------------------------


@pytest.mark.statement("C73", "C74")
@virtual
async def test_while_the_store_is_away_flows_go_on_and_then_it_gets_the_latest(rig: Rig) -> None:
    make_table(rig)
    wires = Wires()
    wires.cut()
    one = await host(rig, wires=wires)
    rig.script = by_step(A=done(graceful_complete()))
    for name in ("f", "g"):
        await start(one, name, 1)
    assert (await one.result("f")).status == "COMPLETED"
    await asyncio.sleep(50 * 60)
    assert marks(rig) == ["f", "g"]
    described = (await one.describe("f")).attribute_stores
    assert [(store.name, store.problem) for store in described] == [("main", "the wire is cut")]
    assert described[0].behind_since is not None
    wires.mend()
    await asyncio.sleep(31)
    assert rows(rig) == {"f": 1, "g": 1}
    assert (await one.describe("f")).attribute_stores == (s.StoreDescription(name="main"),)


@pytest.mark.statement("C74")
@virtual
async def test_it_is_tried_again_after_100_ms_twice_as_long_each_time_up_to_30_s_for_an_hour(rig: Rig) -> None:
    make_table(rig)
    tried: list[float] = []
    loop = asyncio.get_running_loop()

    class Deaf(StoreTable):
        def begin(self, flow_ids: Any) -> None:
            tried.append(loop.time())
            raise StoreAway("nobody there")

    stores = (AttributeStore("main", f"sqlite:///{file(rig)}", "rows"),)
    one = await rig.host(WORK, open_store=Deaf, attribute_stores=stores)
    await start(one, "f", 1)
    await asyncio.sleep(3 * 3600)
    pauses = [round(later - earlier, 3) for earlier, later in itertools.pairwise(tried)]
    assert pauses[:10] == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 30.0]
    assert set(pauses[10:]) == {30.0}
    assert 3600 <= tried[-1] - tried[0] < 3631
    count = len(tried)
    await set_size(one, "f", 2)  # who rests is woken
    await asyncio.sleep(1800)
    assert len(tried) > count + 50


@virtual
async def test_a_sender_at_rest_that_is_woken_sends_all_that_waits(rig: Rig) -> None:
    make_table(rig)
    wires = Wires()
    wires.cut()
    one = await host(rig, wires=wires)
    await start(one, "f", 1)
    await start(one, "g", 1)
    await asyncio.sleep(2 * 3600)
    wires.mend()
    await asyncio.sleep(3600)
    assert rows(rig) == {}
    await set_size(one, "g", 2)
    await settle()
    assert rows(rig) == {"f": 1, "g": 2}


@pytest.mark.statement("C73")
@virtual
async def test_a_row_that_is_not_taken_holds_up_no_other_and_is_tried_again(rig: Rig) -> None:
    make_table(rig)
    one = await host(rig)
    one.store_lane.hold()
    await asyncio.gather(*(start(one, f"f{number}", number) for number in range(20)))
    one.store_lane.free()
    await settle(300)
    assert rows(rig) == {f"f{number}": number for number in range(20) if number != 13}
    (store,) = (await one.describe("f13")).attribute_stores
    assert "CHECK" in store.problem
    assert (await one.describe("f1")).attribute_stores == (s.StoreDescription(name="main"),)
    await set_size(one, "f13", 14)
    await settle()
    assert rows(rig)["f13"] == 14
    assert marks(rig) == []


@virtual
async def test_a_row_that_is_given_up_after_an_hour_goes_with_the_next_engine(rig: Rig) -> None:
    make_table(rig)
    one = await host(rig)
    await start(one, "f", 13)
    await asyncio.sleep(2 * 3600)
    tries = one.journal.calls["find_marks"]
    assert 120 < tries < 140
    await asyncio.sleep(3600)
    assert one.journal.calls["find_marks"] == tries
    ask(rig, "DROP TABLE rows")
    ask(rig, "CREATE TABLE rows (flow_id TEXT PRIMARY KEY, size INTEGER)")
    await one.crash()
    await host(rig)
    await until(lambda: not marks(rig))
    assert rows(rig) == {"f": 13}


@virtual
async def test_a_row_that_is_tried_again_may_be_taken_at_last(rig: Rig) -> None:
    make_table(rig)
    one = await host(rig)
    await start(one, "f", 13)
    await settle()
    ask(rig, "DROP TABLE rows")
    ask(rig, "CREATE TABLE rows (flow_id TEXT PRIMARY KEY, size INTEGER)")
    await asyncio.sleep(60)
    assert rows(rig) == {"f": 13}
    assert marks(rig) == []
    del one


# Crashes --------------------------------------------------------------------------------------------------------------


@pytest.mark.statement("C73")
@virtual
async def test_an_engine_that_dies_before_it_has_sent_leaves_it_to_the_next(rig: Rig) -> None:
    make_table(rig)
    one = await host(rig)
    one.store_lane.hold()
    await start(one, "f", 1)
    await one.crash()
    assert rows(rig) == {}
    await host(rig)
    await until(lambda: rows(rig) == {"f": 1})
    await until(lambda: not marks(rig))


@pytest.mark.statement("C73")
@virtual
async def test_an_engine_that_dies_after_it_has_sent_leaves_a_mark_that_is_sent_again(rig: Rig) -> None:
    make_table(rig)
    wires = Wires()
    one = await host(rig, wires=wires)
    one.journal.fail("clear_marks", *[BEFORE] * 100)
    await start(one, "f", 1)
    await settle()
    assert rows(rig) == {"f": 1}
    assert marks(rig) == ["f"]
    await one.crash()
    again = Wires()
    await host(rig, wires=again)
    await until(lambda: not marks(rig))
    assert again.writes == 1
    assert was(rig) == [1]


@pytest.mark.parametrize("cut", [BEFORE, AFTER])
@virtual
async def test_a_wire_that_is_cut_in_a_write_loses_nothing(rig: Rig, cut: str) -> None:
    make_table(rig)
    wires = Wires()
    wires.cuts[:] = [cut] * 3
    one = await host(rig, wires=wires)
    await start(one, "f", 1)
    await set_size(one, "f", 2)
    await until(lambda: not marks(rig))
    assert rows(rig) == {"f": 2}
    assert was(rig) in ([1, 2], [2])
    del one


@virtual
async def test_flows_that_ended_are_sent_by_whoever_finds_their_marks(rig: Rig) -> None:
    """Their owner never comes back, and nobody else becomes it."""
    make_table(rig)
    one = await host(rig)
    rig.script = by_step(A=done(graceful_complete()))
    one.store_lane.hold()
    await start(one, "f", 1)
    await one.result("f")
    await one.crash()
    await host(rig, "two")
    await until(lambda: rows(rig) == {"f": 1})


@virtual
async def test_an_orderly_end_sends_what_it_can(rig: Rig) -> None:
    make_table(rig)
    one = await host(rig)
    one.store_lane.before = 0.5
    await asyncio.gather(*(start(one, f"f{number}", 1) for number in range(150)))
    await one.end()
    assert marks(rig) == []
    assert len(rows(rig)) == 150


@virtual
async def test_an_orderly_end_does_not_wait_for_a_store_that_is_away(rig: Rig) -> None:
    make_table(rig)
    wires = Wires()
    wires.cut()
    one = await host(rig, wires=wires)
    await start(one, "f", 1)
    await settle()
    began = asyncio.get_running_loop().time()
    await one.end()
    assert asyncio.get_running_loop().time() - began < 1
    assert marks(rig) == ["f"]


# Two owners -----------------------------------------------------------------------------------------------------------


@pytest.mark.statement("C73")
@virtual
async def test_an_owner_that_was_replaced_overwrites_nothing_with_what_is_older(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The old owner has read what the row is to become, and then stands still until long after the new one has sent
    what is newer. It holds the row meanwhile: the new one has to wait, and what it sends comes last."""
    monkeypatch.setattr(databases, "BUSY_SECONDS", 0.01)
    make_table(rig)
    one = await host(rig)
    await start(one, "f", 1)
    await settle()
    one.journal.inner = Slow(one.journal.inner, one)
    await set_size(one, "f", 2)
    await until(lambda: bool(one.journal.inner.read))
    assert one.journal.inner.reassign("one", "two", 10)
    two = await host(rig, "two")
    await set_size(two, "f", 3)
    await asyncio.sleep(20)
    one.journal.inner.go.set()
    one.store_lane.free()
    await asyncio.sleep(300)  # both have tried whatever they have
    assert rows(rig) == {"f": 3}
    assert was(rig) == [1, 2, 3]
    assert marks(rig) == []


class Slow:
    """A journal whose host hears nothing more from its store, once it has read marks."""

    def __init__(self, inner: Any, host: Machine) -> None:
        self._inner = inner
        self._host = host
        self.read: list[Any] = []
        self.go = asyncio.Event()

    def find_marks(self, *args: Any) -> Any:
        found = self._inner.find_marks(*args)
        if found:
            self.read.append(found)
            self._host.store_lane.hold()  # what follows begins when it is free again
        return found

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


@pytest.mark.parametrize("seed", range(8))
@virtual
async def test_two_owners_in_turn_under_faults_of_everything(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Sizes only grow, so a row that shrinks has gone back."""
    monkeypatch.setattr(databases, "BUSY_SECONDS", 0.001)
    make_table(rig)
    dice = random.Random(seed)
    names = [f"f{number}" for number in range(6)]
    wires = Wires()
    hosts = [await host(rig, wires=wires, plan=Plan(seed, before=0.05, after=0.05))]
    for name in names:
        await start(hosts[0], name, 100)
    size = 100
    for turn in range(40):
        current = hosts[-1]
        for machine in hosts:
            machine.store_lane.before = dice.choice([0.0, 0.01, 0.3])
            machine.store_lane.after = dice.choice([0.0, 0.01, 0.3])
        wires.cuts[:] = dice.choices(["", BEFORE, AFTER], [6, 1, 1], k=3)
        for name in dice.sample(names, 3):
            size += 1
            await set_size(current, name, size)
        await asyncio.sleep(dice.choice([0.0, 0.05, 1.0]))
        if turn % 10 == 9:
            owner = current.host.owner
            if dice.random() < 0.5:
                await current.crash()
                hosts.remove(current)
                hosts.append(await host(rig, owner, wires=wires))
            else:  # the old one does not know
                current.journal.inner.reassign(owner, f"{owner}+", 100)
                hosts.append(await host(rig, f"{owner}+", wires=wires))
    for machine in hosts:
        machine.journal.calm()
        machine.store_lane.before = machine.store_lane.after = 0.0
    wires.cuts.clear()
    await asyncio.sleep(120)
    wanted = {}
    for name in names:
        answer = await hosts[-1].call(s.GetAttribute(flow_id=name, name="size"))
        assert answer.value is not None
        wanted[name] = codecs.decode(answer.value, int, where="a test")
    assert rows(rig) == wanted
    assert marks(rig) == []
    for name in names:
        sizes = was(rig, name)
        assert sizes == sorted(sizes, key=lambda size: size or 0), name


# Other ----------------------------------------------------------------------------------------------------------------


@virtual
async def test_while_a_sender_waits_for_the_journal_the_users_file_is_free(rig: Rig) -> None:
    make_table(rig)
    one = await host(rig)
    one.journal.fail("find_marks", *[BEFORE] * 5)
    await start(one, "f", 1)
    await settle()
    (store,) = (await one.describe("f")).attribute_stores
    assert store.problem
    ask(rig, "INSERT INTO rows VALUES ('mine', 7)")
    await until(lambda: not marks(rig))
    assert rows(rig) == {"f": 1, "mine": 7}


@virtual
async def test_a_store_that_is_not_set_up_any_more_gets_its_rows_when_it_is_again(rig: Rig) -> None:
    make_table(rig)
    one = await host(rig)
    await start(one, "f", 1)
    await settle()
    await one.crash()
    without = await rig.host(WORK)
    await set_size(without, "f", 2)
    (store,) = (await without.describe("f")).attribute_stores
    assert "there is no Attribute store 'main'" in store.problem
    await without.crash()
    await host(rig)
    await until(lambda: rows(rig) == {"f": 2})


@virtual
async def test_more_marks_than_a_page_are_found(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_stores, "PAGE", 7)
    make_table(rig)
    one = await host(rig)
    one.store_lane.hold()
    await asyncio.gather(*(start(one, f"f{number}", 1) for number in range(30)))
    await one.crash()
    await host(rig)
    await until(lambda: not marks(rig))
    assert len(rows(rig)) == 30


@virtual
async def test_a_store_that_does_not_answer_is_given_up_for_now_and_lets_go_of_its_locks(rig: Rig) -> None:
    make_table(rig)
    one = await host(rig)
    one.store_lane.hold()
    await start(one, "f", 1)
    await asyncio.sleep(33)
    (store,) = (await one.describe("f")).attribute_stores
    assert "did not answer in 30 s" in store.problem
    one.store_lane.free()
    await until(lambda: not marks(rig))
    assert rows(rig) == {"f": 1}
    ask(rig, "UPDATE rows SET size = 5")  # nobody holds it
