"""How a SQLite file gets its tables, and what happens to one that has others."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import Column, Connection, MetaData, Table, Text, text

from dexray.journal import JournalRefused, NewMessage, RequestAnswer, RunChange, open_journal, schema
from dexray.journal.schema import MIGRATIONS, Migration, upgrade, version_of
from dexray.journal.sql import SqlJournal
from dexray.journal.sqlite import SqliteDatabase
from tests.journal.builders import record, start


def tables(path: Path) -> dict[str, list[tuple[object, ...]]]:
    """The columns of each table, with their order, types and keys."""
    with sqlite3.connect(path) as connection:
        names = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        return {name: connection.execute(f"PRAGMA table_info({name})").fetchall() for name in sorted(names)}


NEXT = MIGRATIONS[-1].version + 1


def next_version() -> tuple[Migration, ...]:
    """The tables with one column and one table more, and the migrations as they would then be."""
    newest = MetaData()
    for table in schema.metadata.sorted_tables:
        table.to_metadata(newest)
    newest.tables["leases"].append_column(Column("comment", Text))
    Table("notes", newest, Column("note", Text, primary_key=True))

    def create(connection: Connection) -> None:
        newest.create_all(connection, checkfirst=False)

    def add(connection: Connection) -> None:
        connection.execute(text("ALTER TABLE leases ADD COLUMN comment TEXT"))
        newest.tables["notes"].create(connection)

    first, *between = MIGRATIONS
    return (Migration(1, first.name, create), *between, Migration(NEXT, "comments and notes", add))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "journal.db"


@pytest.fixture
def database(path: Path) -> Iterator[SqliteDatabase]:
    database = SqliteDatabase(str(path))
    yield database
    database.close()


def test_a_new_file_has_version_0_until_it_is_migrated(database: SqliteDatabase) -> None:
    assert database.read(version_of) == 0
    database.write(upgrade)
    assert database.read(version_of) == MIGRATIONS[-1].version


def test_migrating_again_changes_nothing(path: Path) -> None:
    journal = open_journal(path)
    journal.migrate()
    journal.append([start("r1")])
    before = tables(path)
    journal.migrate()
    assert tables(path) == before
    assert journal.find_run("r1") is not None
    journal.close()


def test_the_migrations_are_numbered_from_1_without_a_hole() -> None:
    assert [migration.version for migration in MIGRATIONS] == list(range(1, len(MIGRATIONS) + 1))


def test_an_old_file_gets_what_it_lacks_and_keeps_what_it_has(path: Path, database: SqliteDatabase) -> None:
    journal = open_journal(path)
    journal.migrate()
    journal.append([start("r1")])
    database.write(lambda connection: upgrade(connection, next_version()))
    assert database.read(lambda connection: version_of(connection, next_version())) == NEXT
    assert journal.find_run("r1") is not None
    journal.close()


def test_a_new_file_and_an_upgraded_one_have_the_same_tables(tmp_path: Path) -> None:
    for name, steps in (("new.db", [next_version()]), ("old.db", [MIGRATIONS, next_version()])):
        database = SqliteDatabase(str(tmp_path / name))
        for known in steps:
            database.write(lambda connection, known=known: upgrade(connection, known))  # type: ignore[misc]
        database.close()
    assert tables(tmp_path / "new.db") == tables(tmp_path / "old.db")
    assert "notes" in tables(tmp_path / "new.db")


def test_a_file_of_version_1_gets_streams(path: Path, database: SqliteDatabase) -> None:
    database.write(upgrade)
    newest = tables(path)
    with sqlite3.connect(path) as connection:
        for table in ("streams", "stream_messages"):
            connection.execute(f"DROP TABLE {table}")
        connection.execute("DELETE FROM schema_version WHERE version > 1")
    database.write(lambda connection: upgrade(connection, MIGRATIONS[:2]))
    assert tables(path) == newest


def test_a_migration_that_fails_leaves_the_file_as_it_was(path: Path, database: SqliteDatabase) -> None:
    database.write(upgrade)
    before = tables(path)

    def stumble(connection: Connection) -> None:
        connection.execute(text("CREATE TABLE half (done TEXT)"))
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        database.write(lambda connection: upgrade(connection, (*MIGRATIONS, Migration(NEXT, "stumbles", stumble))))
    assert tables(path) == before
    assert database.read(version_of) == MIGRATIONS[-1].version


def test_a_file_of_a_newer_dexray_is_refused_by_both_versions_and_a_way_out(
    path: Path, database: SqliteDatabase
) -> None:
    database.write(lambda connection: upgrade(connection, next_version()))
    with pytest.raises(JournalRefused, match=rf"schema version {NEXT}.*up to {NEXT - 1}.*newer"):
        open_journal(path)


@pytest.mark.parametrize(
    "statement", ["CREATE TABLE runs (id INTEGER)", "CREATE TABLE schema_version (version INTEGER)"]
)
def test_a_file_that_is_someone_elses_is_refused(path: Path, statement: str) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute(statement)
    with pytest.raises(JournalRefused, match="a database of its own"):
        open_journal(path)


def test_tables_of_others_that_are_not_in_the_way_stay(path: Path) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE recipes (name TEXT)")
    journal = open_journal(path)
    journal.migrate()
    journal.close()
    assert {"recipes", "runs"} <= set(tables(path))


def test_no_question_of_the_journal_reads_a_whole_table(path: Path) -> None:
    database = SqliteDatabase(str(path))
    journal = SqlJournal(database)
    journal.migrate()
    spoken: list[str] = []

    def listen(connection: Connection) -> None:
        driver = connection.connection.driver_connection
        assert isinstance(driver, sqlite3.Connection)
        driver.set_trace_callback(spoken.append)

    database.read(listen)
    answer = RequestAnswer("f1", "q1", b"a")
    journal.append([start("r1", "f1", requests=(answer,), blobs={"h": b"b"}), start("r2", "f2", owner="other")])
    change = RunChange(status="FAILED", closed_at=1.0, next_wake=2.0)
    journal.append([start("r3", "f1", replaces="r1"), record("r2", 2, change=change, checkpoint=b"c")])
    journal.read_back([record("r2", 2)])
    journal.claim(["r1", "r2"], "host-1")
    journal.reassign("other", "host-1", 5)
    journal.current_run("f1")
    journal.find_run("r1")
    journal.load("r2")
    journal.records("r2", 1, 5)
    journal.open_runs("host-1", "a", 5)
    journal.recorded_answer("f1", "q1")
    journal.get_blobs(["h"])
    journal.get_deployment("d1")
    journal.acquire_lease("cluster", "a", 2.0, now=1.0)
    journal.release_lease("cluster", "a")
    _, token = journal.list_runs(page_size=1)
    journal.list_runs(page_size=1, page_token=token)
    for number in range(3):
        journal.append_messages([NewMessage("f1", "words", float(number), "me", b"payload", 10)])
    assert [message.seq for message in journal.read_messages("f1", "words", 1, 5)] == [3]
    journal.list_messages("f1", "words", 0, 5)
    journal.list_messages("f1", "words", 3, 5)
    journal.close()

    plans = {}
    with sqlite3.connect(path) as connection:
        for statement in spoken:
            if statement.startswith(("SELECT", "UPDATE", "DELETE")):
                plans[statement] = [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {statement}")]
    assert len(plans) > 20
    assert "runs_newest" in str(plans)
    slow = {
        statement: plan
        for statement, plan in plans.items()
        for step in plan
        if "TEMP B-TREE" in step
        or (
            "SCAN" in step
            and not step.startswith(("SCAN json_each", "SCAN anon_", "SCAN runs USING INDEX runs_newest"))
        )
    }
    assert slow == {}
