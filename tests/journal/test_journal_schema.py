"""How a database gets its tables, and what happens to one that has others."""

from __future__ import annotations

import multiprocessing
import sqlite3
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from sqlalchemy import Column, Connection, MetaData, Table, Text, create_engine, inspect, text

from dexray.journal import (
    IndexEntry,
    Journal,
    JournalRefused,
    NewMessage,
    RequestAnswer,
    RunChange,
    open_journal,
    schema,
)
from dexray.journal.database import Database
from dexray.journal.schema import MIGRATIONS, Migration, upgrade, version_of
from dexray.journal.sql import SqlJournal
from dexray.journal.sqlite import SqliteDatabase
from dexray.search import And, KeyTest
from tests.journal import processes
from tests.journal.builders import CLOSED, record, start
from tests.journal.conftest import BACKENDS, OpenJournal, tear_down
from tests.postgres import postgres_server


def ask(url: str, *statements: str) -> None:
    """Statements of somebody else."""
    engine = create_engine(url)
    with engine.begin() as connection:
        for statement in statements:
            connection.execute(text(statement))
    engine.dispose()


def tables(url: str) -> dict[str, object]:
    """The columns of each table, with their order, types and keys, and its indexes."""
    engine = create_engine(url)
    found = inspect(engine)
    described: dict[str, object] = {
        name: (
            [(column["name"], str(column["type"]), column["nullable"]) for column in found.get_columns(name)],
            found.get_pk_constraint(name)["constrained_columns"],
            sorted(
                (
                    str(index["name"]),
                    str(index["column_names"]),
                    bool(index["unique"]),
                    [str(where) for option, where in index.get("dialect_options", {}).items() if "_where" in option],
                )
                for index in found.get_indexes(name)
            ),
        )
        for name in found.get_table_names()
    }
    engine.dispose()
    return described


def database_of(journal: Journal) -> Database:
    assert isinstance(journal, SqlJournal)
    return journal._database


MAKES_TABLES = True  # each test begins without
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
def database(journal_url: str) -> Iterator[Database]:
    journal = open_journal(journal_url)
    yield database_of(journal)
    journal.close()


def test_a_new_database_has_version_0_until_it_is_migrated(database: Database) -> None:
    assert database.read(version_of) == 0
    database.migrate(upgrade)
    assert database.read(version_of) == MIGRATIONS[-1].version


def test_migrating_again_changes_nothing(journal_url: str, journal: Journal) -> None:
    journal.append([start("r1")])
    before = tables(journal_url)
    journal.migrate()
    assert tables(journal_url) == before
    assert journal.find_run("r1") is not None


def test_the_migrations_are_numbered_from_1_without_a_hole() -> None:
    assert [migration.version for migration in MIGRATIONS] == list(range(1, len(MIGRATIONS) + 1))


def test_an_old_database_gets_what_it_lacks_and_keeps_what_it_has(journal: Journal, database: Database) -> None:
    journal.append([start("r1")])
    database.migrate(lambda connection: upgrade(connection, next_version()))
    assert database.read(lambda connection: version_of(connection, next_version())) == NEXT
    assert journal.find_run("r1") is not None
    assert database_of(journal).read(lambda connection: version_of(connection, next_version())) == NEXT


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_new_database_and_an_upgraded_one_have_the_same_tables(backend: str, tmp_path: Path) -> None:
    described = []
    for name, steps in (("new", [next_version()]), ("old", [MIGRATIONS, next_version()])):
        (tmp_path / name).mkdir()
        url = BACKENDS[backend](tmp_path / name)
        journal = open_journal(url)
        for known in steps:
            database_of(journal).migrate(lambda connection, known=known: upgrade(connection, known))  # type: ignore[misc]
        journal.close()
        described.append(tables(url))
        tear_down(url)
    assert described[0] == described[1]
    assert "notes" in described[0]


def test_a_database_of_version_1_gets_streams(journal_url: str, database: Database) -> None:
    database.migrate(upgrade)
    newest = tables(journal_url)
    ask(
        journal_url,
        "DROP TABLE streams",
        "DROP TABLE stream_messages",
        "DELETE FROM schema_version WHERE version > 1",
    )
    database.migrate(lambda connection: upgrade(connection, MIGRATIONS[:2]))
    assert tables(journal_url) == newest


def back_to_version_2(journal_url: str) -> None:
    """Without search: the same runs."""
    current = "is_current" if journal_url.startswith("postgresql") else "is_current = 1"
    ask(
        journal_url,
        "DROP TABLE owners",
        "DROP TABLE store_marks",
        "DROP TABLE attribute_index",
        "DROP INDEX runs_newest",
        "DROP INDEX runs_replaced",
        "DROP INDEX runs_of_parent",
        "ALTER TABLE runs DROP COLUMN parent",
        f"CREATE INDEX runs_newest ON runs (started_at DESC, run_id) WHERE {current}",
        "DROP TABLE removed_runs",
        "DROP TABLE blob_places",
        "DROP TABLE blob_trash",
        "DROP TABLE blob_stores",
        "DROP INDEX runs_closed",
        "DELETE FROM schema_version WHERE version > 2",
    )


def test_a_database_of_version_5_gets_the_marks_of_attribute_stores(journal_url: str, database: Database) -> None:
    database.migrate(upgrade)
    newest = tables(journal_url)
    ask(journal_url, "DROP TABLE store_marks", "DELETE FROM schema_version WHERE version > 5")
    database.migrate(lambda connection: upgrade(connection, MIGRATIONS[:6]))
    assert tables(journal_url) == newest


def test_a_database_of_version_6_gets_the_lives_of_its_owners(
    journal_url: str, database: Database, another: OpenJournal
) -> None:
    database.migrate(upgrade)
    newest = tables(journal_url)
    another().append([start("r1")])
    ask(journal_url, "DROP TABLE owners", "DELETE FROM schema_version WHERE version > 6")
    database.migrate(lambda connection: upgrade(connection, MIGRATIONS[:7]))
    assert tables(journal_url) == newest
    opened = another()
    opened.begin_life("host-1")
    assert opened.claim(["r1"], "host-1") == {"r1": 2}


def test_a_database_of_version_2_gets_search(journal_url: str, database: Database, another: OpenJournal) -> None:
    database.migrate(upgrade)
    newest = tables(journal_url)
    first = start("a", "f", started_at=1.0, change=CLOSED)
    another().append([first, start("b", "f", started_at=2.0, replaces="a")])
    back_to_version_2(journal_url)
    assert "attribute_index" not in tables(journal_url)
    database.migrate(lambda connection: upgrade(connection, MIGRATIONS))
    assert tables(journal_url) == newest
    journal = another()
    found, _ = journal.search_runs(And(()), latest_only=False)
    assert [run.row.run_id for run in found] == ["b", "a"]
    journal.append([start("c", "child", parent="f", index={"x": (IndexEntry("x", "INT", whole=1),)})])
    assert journal.count_runs(KeyTest("x", "INT", "whole", "in", (1,)), latest_only=True) == 1


def test_a_database_of_the_first_version_is_opened_by_new_code(journal_url: str, another: OpenJournal) -> None:
    """As the first release left it: its tables, and a run under way."""
    first = open_journal(journal_url)
    first.migrate()
    first.append([start("r1", "f1"), record("r1", 2, checkpoint=b"at 2")])
    first.close()
    back_to_version_2(journal_url)
    ask(
        journal_url,
        "DROP TABLE streams",
        "DROP TABLE stream_messages",
        "DELETE FROM schema_version WHERE version > 1",
    )
    opened = another()
    loaded = opened.load("r1")
    assert loaded is not None
    assert (loaded.row.flow_id, loaded.checkpoint) == ("f1", b"at 2")
    opened.append_messages([NewMessage("f1", "words", 1.0, "me", b"hi", 100)])
    assert [message.payload for message in opened.read_messages("f1", "words", 0, 10)] == [b"hi"]
    assert database_of(opened).read(version_of) == MIGRATIONS[-1].version


def test_processes_that_upgrade_an_old_database_at_once_do_it_once(journal_url: str, database: Database) -> None:
    database.migrate(upgrade)
    ask(
        journal_url,
        "DROP TABLE streams",
        "DROP TABLE stream_messages",
        "DELETE FROM schema_version WHERE version > 1",
    )
    spawn = multiprocessing.get_context("spawn")
    together = spawn.Barrier(3)
    workers = [spawn.Process(target=processes.upgrade_to_2, args=(journal_url, together)) for _ in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(120)
    assert [worker.exitcode for worker in workers] == [0, 0, 0]
    assert {"streams", "stream_messages"} <= set(tables(journal_url))


def test_a_migration_that_fails_leaves_the_database_as_it_was(journal_url: str, database: Database) -> None:
    database.migrate(upgrade)
    before = tables(journal_url)

    def stumble(connection: Connection) -> None:
        connection.execute(text("CREATE TABLE half (done TEXT)"))
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        database.migrate(lambda connection: upgrade(connection, (*MIGRATIONS, Migration(NEXT, "stumbles", stumble))))
    assert tables(journal_url) == before
    assert database.read(version_of) == MIGRATIONS[-1].version


def test_a_database_of_a_newer_dexray_is_refused_by_both_versions_and_a_way_out(
    journal_url: str, database: Database
) -> None:
    database.migrate(lambda connection: upgrade(connection, next_version()))
    with pytest.raises(JournalRefused, match=rf"schema version {NEXT}.*up to {NEXT - 1}.*newer"):
        open_journal(journal_url)


@pytest.mark.parametrize(
    "statement", ["CREATE TABLE runs (id INTEGER)", "CREATE TABLE schema_version (version INTEGER)"]
)
def test_a_database_that_is_someone_elses_is_refused(journal_url: str, statement: str) -> None:
    ask(journal_url, statement)
    with pytest.raises(JournalRefused, match="a database of its own"):
        open_journal(journal_url)


def test_tables_of_others_that_are_not_in_the_way_stay(journal_url: str) -> None:
    ask(journal_url, "CREATE TABLE recipes (name TEXT)")
    journal = open_journal(journal_url)
    journal.migrate()
    journal.close()
    assert {"recipes", "runs"} <= set(tables(journal_url))


def ask_everything(journal: Journal) -> None:
    """Every question that a journal has for its database."""
    answer = RequestAnswer("f1", "q1", b"a")
    journal.append([start("r1", "f1", requests=(answer,), blobs={"h": b"b"}), start("r2", "f2", owner="other")])
    change = RunChange(status="FAILED", closed_at=1.0, next_wake=2.0)
    journal.append([start("r3", "f1", replaces="r1"), record("r2", 2, change=change, checkpoint=b"c")])
    journal.read_back([record("r2", 2)])
    journal.claim(["r1", "r2"], "host-1")
    journal.reassign("other", "host-1", 5)
    journal.current_run("f1")
    journal.find_run("r1")
    journal.current_runs(["f1", "f2"])
    journal.load_all(["r1", "r2"])
    journal.records("r2", 1, 5)
    journal.open_runs("host-1", "a", 5)
    journal.recorded_answer("f1", "q1")
    journal.get_blobs(["h"])
    journal.clear_marks(journal.find_marks("main", ["f1", "f2"]))
    journal.list_marks("main", "f", 10)
    journal.get_deployment("d1")
    journal.acquire_lease("cluster", "a", 2.0, now=1.0)
    journal.release_lease("cluster", "a")
    _, token = journal.list_runs(page_size=1)
    journal.list_runs(page_size=1, page_token=token)
    journal.index_types(["city"])
    for number in range(3):
        journal.append_messages([NewMessage("f1", "words", float(number), "me", b"payload", 10)])
    assert [message.seq for message in journal.read_messages("f1", "words", 1, 5)] == [3]
    journal.list_messages("f1", "words", 0, 5)
    journal.list_messages("f1", "words", 3, 5)


def test_no_question_of_the_journal_reads_a_whole_file(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    database = SqliteDatabase(str(path))
    journal = SqlJournal(database)
    journal.migrate()
    spoken: list[str] = []

    def listen(connection: Connection) -> None:
        driver = connection.connection.driver_connection
        assert isinstance(driver, sqlite3.Connection)
        driver.set_trace_callback(spoken.append)

    database.read(listen)
    ask_everything(journal)
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


def test_no_question_of_the_journal_has_to_read_a_whole_table_of_postgres() -> None:
    """With sequential scans made dear, the server counts those that it had no index for."""
    server = postgres_server()
    url = server.new_database()
    name = url.partition("@/")[2].partition("?")[0]
    journal = open_journal(url)
    journal.migrate()
    journal.close()
    server.ask(f"ALTER DATABASE {name} SET enable_seqscan = off")
    counts = "SELECT relname, seq_scan FROM pg_stat_user_tables ORDER BY relname"
    before = dict(server.ask(counts, name))
    journal = open_journal(url)
    ask_everything(journal)
    journal.close()  # a session hands its counts in when it ends
    wait_until(lambda: server.connections_to(name) == 0)
    after = dict(server.ask(counts, name))
    scanned = {table for table, count in after.items() if count > before[table]}
    server.drop_database(url)
    assert scanned <= {"schema_version"}


def wait_until(what: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.01)
