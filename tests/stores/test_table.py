"""The table of a store, in SQLite and in PostgreSQL: what is written, what is refused, and who waits for whom."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import create_engine, text

from dex.values import CodecRegistry
from dexray.settings import AttributeStore
from dexray.stores import RowsRefused, StoreAway, StoreTable, databases
from dexray.stores.table import REFRESH_SECONDS
from tests.journal.conftest import tear_down
from tests.postgres import PostgresServer, postgres_server

codecs = CodecRegistry()


def payload(value: Any) -> bytes:
    return codecs.encode(value, type(value), where="a test")


class Place:
    """A database of the user's, and stores in it."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.now = 0.0
        self._engine = create_engine(url)
        self._opened: list[StoreTable] = []

    @property
    def is_sqlite(self) -> bool:
        return self.url.startswith("sqlite")

    def ask(self, statement: str) -> list[Any]:
        with self._engine.begin() as connection:
            found = connection.execute(text(statement))
            return [tuple(row) for row in found] if found.returns_rows else []

    def store(self, table: str = "rows") -> StoreTable:
        self._opened.append(StoreTable(AttributeStore("main", self.url, table), clock=lambda: self.now))
        return self._opened[-1]

    def close(self) -> None:
        for table in self._opened:
            table.close()
        self._engine.dispose()


@pytest.fixture(params=["sqlite", "postgres"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    url = f"sqlite:///{tmp_path}/users.db" if request.param == "sqlite" else postgres_server().new_schema()
    opened = Place(url)
    opened.ask("CREATE TABLE rows (flow_id VARCHAR(100) PRIMARY KEY, name TEXT, size BIGINT, own TEXT DEFAULT 'mine')")
    yield opened
    opened.close()
    tear_down(url)


def send(store: StoreTable, **images: Any) -> None:
    store.begin(list(images))
    store.write(images)


ROWS = "SELECT flow_id, name, size, own FROM rows ORDER BY flow_id"


def test_rows_are_made_and_changed_and_columns_of_others_stay(place: Place) -> None:
    store = place.store()
    send(store, f={"name": payload("one"), "size": None}, g={"name": payload("two"), "size": payload(2)})
    place.ask("UPDATE rows SET own = 'changed' WHERE flow_id = 'g'")
    send(store, f={"name": None, "size": payload(3)}, g={"name": payload("zwei"), "size": None})
    assert place.ask(ROWS) == [("f", None, 3, "mine"), ("g", "zwei", None, "changed")]


def test_flow_ids_and_column_names_may_be_odd(place: Place) -> None:
    place.ask('ALTER TABLE rows ADD COLUMN "Käufer: %s (a)" TEXT')
    odd = "o'clock; DROP TABLE rows --%s"
    store = place.store()
    send(store, **{odd: {"Käufer: %s (a)": payload("x'y")}})
    assert place.ask('SELECT flow_id, "Käufer: %s (a)" FROM rows'.replace(":", r"\:")) == [(odd, "x'y")]


def test_rolling_back_writes_nothing_and_lets_go(place: Place) -> None:
    first, second = place.store(), place.store()
    first.begin(["f"])
    first.roll_back()
    send(second, f={"name": payload("x")})
    assert place.ask(ROWS) == [("f", "x", None, "mine")]


def test_the_table_may_change_while_it_is_in_use(place: Place) -> None:
    store = place.store()
    send(store, f={"colour": payload("red"), "name": payload("x")})
    place.ask("ALTER TABLE rows ADD COLUMN colour TEXT")
    send(store, f={"colour": payload("red"), "name": payload("y")})
    assert place.ask("SELECT name, colour FROM rows") == [("y", None)]  # it is looked at once a minute
    place.now += 1.1 * REFRESH_SECONDS
    send(store, f={"colour": payload("red"), "name": payload("z")})
    assert place.ask("SELECT name, colour FROM rows") == [("z", "red")]
    place.ask("ALTER TABLE rows DROP COLUMN colour")
    store.begin(["f"])
    with pytest.raises(StoreAway):
        store.write({"f": {"colour": payload("blue")}})
    send(store, f={"colour": payload("blue"), "name": payload("again")})
    assert place.ask("SELECT name FROM rows") == [("again",)]


@pytest.mark.parametrize(
    ("columns", "what"),
    [
        ("a TEXT, b TEXT, PRIMARY KEY (a, b)", "one column of texts, for the Flow ID; it has a TEXT, b TEXT"),
        ("a INTEGER PRIMARY KEY, name TEXT", "it has a INTEGER"),
        ("a TEXT, name TEXT", "it has none"),
    ],
)
def test_a_table_without_a_key_for_flow_ids_is_of_no_use(place: Place, columns: str, what: str) -> None:
    place.ask(f"CREATE TABLE others ({columns})")
    store = place.store("others")
    store.begin(["f"])
    with pytest.raises(StoreAway, match=what):
        store.write({"f": {"name": payload("x")}})


def test_a_table_that_is_not_there_is_told_and_found_when_it_comes(place: Place) -> None:
    store = place.store("others")
    store.begin(["f"])
    with pytest.raises(StoreAway, match="there is no table others"):
        store.write({"f": {"name": payload("x")}})
    place.ask("CREATE TABLE others (id TEXT PRIMARY KEY, name TEXT)")
    send(store, f={"name": payload("x")})
    assert place.ask("SELECT * FROM others") == [("f", "x")]


def test_rows_that_are_not_taken_are_told_apart_from_a_store_that_is_away(place: Place) -> None:
    place.ask("CREATE TABLE strict (id TEXT PRIMARY KEY, size BIGINT CHECK (size < 10))")
    store = place.store("strict")
    store.begin(["f", "g"])
    with pytest.raises(RowsRefused, match=r"(?i)check"):
        store.write({"f": {"size": payload(5)}, "g": {"size": payload(50)}})
    assert place.ask("SELECT * FROM strict") == []
    send(store, f={"size": payload(5)})
    assert place.ask("SELECT * FROM strict") == [("f", 5)]


def test_what_is_left_out_is_told_once(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    place.ask("CREATE TABLE strict (id TEXT PRIMARY KEY, size BIGINT, must TEXT NOT NULL DEFAULT 'x')")
    store = place.store("strict")
    with caplog.at_level(logging.WARNING, "dexray.stores"):
        for _ in range(2):
            for value in ("text", True):
                row = {"size": payload(value), "must": None, "gone": payload(1), "id": payload("mine")}
                send(store, f=row, g={**row, "size": b"\xc1 no value"})
    assert place.ask("SELECT * FROM strict ORDER BY id") == [("f", 1, "x")]
    assert sorted(record.getMessage().split(": ", 1)[1] for record in caplog.records) == sorted(
        [
            "its column takes int, not str",
            "its value can't be read (ValueMappingError)",
            "its column in table strict takes no NULL",
            "its column in table strict is not for values from outside",
            "table strict has no column of its name",
        ]
    )


def test_a_sender_waits_for_one_that_has_the_row(place: Place) -> None:
    """The order on which all rests: lock, read the news, write. Who was overtaken reads later news."""
    first, second = place.store(), place.store()
    news, order = ["old"], []
    first.begin(["f"])
    began = threading.Event()

    def overtaken() -> None:
        began.set()
        while True:
            try:
                second.begin(["f"])
                break
            except StoreAway:
                continue  # the first has been at it for long: the machine is slow
        order.append(f"second reads {news[-1]}")
        second.write({"f": {"name": payload(news[-1])}})

    thread = threading.Thread(target=overtaken)
    thread.start()
    began.wait(60)
    news.append("new")
    order.append("first writes")
    first.write({"f": {"name": payload("old")}})
    thread.join(60)
    assert order == ["first writes", "second reads new"]
    assert place.ask(ROWS) == [("f", "new", None, "mine")]


def test_a_row_that_is_locked_for_too_long_is_tried_again_later(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(databases, "BUSY_SECONDS", 0.05)
    first, second = place.store(), place.store()
    first.begin(["f"])
    with pytest.raises(StoreAway, match="lock"):
        second.begin(["f"])
    first.roll_back()
    send(second, f={"name": payload("x")})
    assert place.ask(ROWS) == [("f", "x", None, "mine")]


def test_a_sqlite_file_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    place = Place(f"sqlite:///{tmp_path}/none.db")
    store = place.store()
    with pytest.raises(StoreAway, match=r"there is no file .*none\.db"):
        store.begin(["f"])
    assert list(tmp_path.iterdir()) == []
    place.close()


def test_a_sqlite_file_that_was_replaced_is_opened_anew(tmp_path: Path) -> None:
    place = Place(f"sqlite:///{tmp_path}/users.db")
    table = "CREATE TABLE rows (flow_id TEXT PRIMARY KEY, name TEXT)"
    place.ask(table)
    store = place.store()
    send(store, f={"name": payload("x")})
    (tmp_path / "users.db").rename(tmp_path / "old.db")
    with pytest.raises(StoreAway):
        store.begin(["f"])
    replacement = Place(place.url)
    replacement.ask(table)
    send(store, f={"name": payload("y")})
    assert replacement.ask("SELECT * FROM rows") == [("f", "y")]
    replacement.close()
    place.close()


class TestPostgres:
    @pytest.fixture
    def place(self) -> Iterator[Place]:
        url = postgres_server().new_schema()
        opened = Place(url)
        yield opened
        opened.close()
        tear_down(url)

    def test_its_own_types_take_what_fits(self, place: Place) -> None:
        place.ask("CREATE TYPE colour AS ENUM ('red', 'blue')")
        place.ask(
            "CREATE TABLE rows (flow_id TEXT PRIMARY KEY, at TIMESTAMPTZ, local TIMESTAMP, day DATE, clock TIME, "
            "span INTERVAL, own UUID, raw BYTEA, hue colour, wrong colour, data JSONB, list INTEGER[], real REAL, "
            "price NUMERIC(10, 2), small SMALLINT, short VARCHAR(3), where_from INET, truth BOOLEAN, nul TEXT)"
        )
        moment = datetime(2026, 5, 1, 12, 30, tzinfo=UTC)
        own = UUID(int=7)
        values: dict[str, Any] = {
            "at": moment,
            "local": moment,
            "day": date(2026, 5, 1),
            "clock": time(12, 30),
            "span": timedelta(seconds=90),
            "own": own,
            "raw": b"\x00\xff",
            "hue": "red",
            "wrong": "green",
            "data": {"a": [1, "x"]},
            "list": [1, 2],
            "real": 1.5,
            "price": Decimal("1.25"),
            "small": 70_000,
            "short": "long",
            "where_from": "10.0.0.1",
            "truth": True,
            "nul": "a\0b",
        }
        kinds: dict[str, Any] = {"data": dict[str, Any], "list": list[int]}
        row = {
            name: codecs.encode(value, kinds.get(name, type(value)), where="a test") for name, value in values.items()
        }
        store = place.store()
        send(store, f=row)
        wanted = {**values, "local": moment.replace(tzinfo=None)}
        for name in ("wrong", "small", "short", "nul"):
            wanted[name] = None  # they don't fit
        ((found),) = place.ask(f"SELECT {', '.join(values)} FROM rows")
        assert {**dict(zip(values, found, strict=True)), "where_from": str(found[-3])} == wanted
        send(store, f={"data": None})
        assert place.ask("SELECT data IS NULL, jsonb_typeof(data) FROM rows") == [(True, None)]

    def test_a_table_in_a_schema_of_its_own(self, place: Place) -> None:
        place.ask("CREATE SCHEMA sales")
        place.ask("CREATE TABLE sales.orders (flow_id TEXT PRIMARY KEY, name TEXT)")
        send(place.store("sales.orders"), f={"name": payload("x")})
        assert place.ask("SELECT * FROM sales.orders") == [("f", "x")]
        place.close()
        place.ask("DROP SCHEMA sales CASCADE")

    def test_other_rows_are_not_waited_for(self, place: Place) -> None:
        place.ask("CREATE TABLE rows (flow_id TEXT PRIMARY KEY, name TEXT)")
        first, second = place.store(), place.store()
        first.begin(["f", "g"])
        send(second, h={"name": payload("x")})
        first.write({"f": {"name": payload("y")}})
        assert place.ask("SELECT * FROM rows ORDER BY flow_id") == [("f", "y"), ("h", "x")]

    def test_a_row_that_its_user_keeps_locked_holds_up_no_other(
        self, place: Place, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(databases, "BUSY_SECONDS", 0.05)
        place.ask("CREATE TABLE rows (flow_id TEXT PRIMARY KEY, name TEXT)")
        store = place.store()
        send(store, f={"name": payload("x")})
        engine = create_engine(place.url)
        with engine.begin() as user:
            user.execute(text("UPDATE rows SET name = 'by hand' WHERE flow_id = 'f'"))
            store.begin(["f", "g"])
            with pytest.raises(RowsRefused, match="lock timeout"):
                store.write({"f": {"name": payload("y")}, "g": {"name": payload("y")}})
            send(store, g={"name": payload("y")})
        engine.dispose()
        assert place.ask("SELECT * FROM rows ORDER BY flow_id") == [("f", "by hand"), ("g", "y")]

    def test_a_server_that_ends_is_away_and_found_again(self, tmp_path: Path) -> None:
        server = PostgresServer()
        place = Place(server.new_database("mine"))
        place.ask("CREATE TABLE rows (flow_id TEXT PRIMARY KEY, name TEXT)")
        store = place.store()
        store.begin(["f"])
        server.stop()
        with pytest.raises(StoreAway):
            store.write({"f": {"name": payload("x")}})
        with pytest.raises(StoreAway):
            store.begin(["f"])
        server.start()
        send(store, f={"name": payload("x")})
        again = Place(place.url)
        assert again.ask("SELECT * FROM rows") == [("f", "x")]
        again.close()
        place.close()
        server.close()

    def test_a_password_is_in_no_error(self) -> None:
        place = Place("postgresql+psycopg://ann:geheim@127.0.0.1:1/mine")
        with pytest.raises(StoreAway) as away:
            place.store().begin(["f"])
        assert "geheim" not in str(away.value)
        place.close()
