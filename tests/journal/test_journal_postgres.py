"""What is particular to PostgreSQL: URLs, refusals, locks of others, and sides that are frozen."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import psycopg
import pytest
from sqlalchemy import Connection
from sqlalchemy.engine import make_url

from dexray.journal import JournalRefused, JournalUnavailable, Outcome, open_journal
from dexray.journal.appending import Appender
from dexray.journal.postgres import MIGRATION_LOCK, PostgresDatabase
from dexray.journal.sql import SqlJournal
from tests.journal.builders import record, start
from tests.postgres import GUARDED, PostgresServer, postgres_server

DURABLE, FENCED = Outcome.DURABLE, Outcome.FENCED


@pytest.fixture
def server() -> PostgresServer:
    return postgres_server()


@pytest.fixture
def url(server: PostgresServer) -> Iterator[str]:
    made = server.new_database()
    yield made
    server.drop_database(made)


@pytest.fixture
def open_one(url: str) -> Iterator[Callable[..., SqlJournal]]:
    """Opens a journal with options of PostgresDatabase."""
    opened: list[SqlJournal] = []

    def open_it(**options: object) -> SqlJournal:
        opened.append(SqlJournal(PostgresDatabase(make_url(url), **options)))  # type: ignore[arg-type]
        opened[-1].migrate()
        return opened[-1]

    yield open_it
    for journal in opened:
        journal.close()


def database_of(journal: SqlJournal) -> PostgresDatabase:
    assert isinstance(journal._database, PostgresDatabase)
    return journal._database


def name_of(url: str) -> str:
    return str(make_url(url).database)


def plain(url: str) -> str:
    """For psycopg."""
    return url.replace("+psycopg", "")


def wait_until(what: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.01)


class TestUrls:
    @pytest.mark.parametrize("scheme", ["postgresql", "postgres", "postgresql+psycopg"])
    def test_the_driver_need_not_be_named(self, url: str, scheme: str) -> None:
        open_journal(f"{scheme}:{url.partition(':')[2]}").close()

    def test_options_of_the_url_count(self, url: str) -> None:
        database = PostgresDatabase(make_url(f"{url}&application_name=mine"))
        found = database.read(lambda connection: connection.exec_driver_sql("SHOW application_name").scalar())
        database.close()
        assert found == "mine"

    def test_a_session_says_whose_it_is_and_does_not_last_for_ever(self, url: str) -> None:
        database = PostgresDatabase(make_url(url), patience=7.0, silence=9.0)
        names = ("application_name", "lock_timeout", "statement_timeout", "idle_in_transaction_session_timeout")
        found = database.read(lambda c: [c.exec_driver_sql(f"SHOW {name}").scalar() for name in names])
        database.close()
        assert str(found[0]).startswith("dexray ")
        assert str(os.getpid()) in str(found[0])
        assert found[1:] == ["7s", "24s", "9s"]

    def test_what_is_called_durable_is_on_a_disk_whatever_the_database_says(
        self, server: PostgresServer, url: str
    ) -> None:
        server.ask(f"ALTER DATABASE {name_of(url)} SET synchronous_commit = off")
        database = PostgresDatabase(make_url(url))
        found = database.read(lambda connection: connection.exec_driver_sql("SHOW synchronous_commit").scalar())
        database.close()
        assert found == "on"


class TestRefusals:
    def test_a_wrong_password_is_refused_and_not_repeated(self, server: PostgresServer, url: str) -> None:
        server.ask(f"DROP ROLE IF EXISTS {GUARDED}")
        server.ask(f"CREATE ROLE {GUARDED} LOGIN PASSWORD 'right'")
        wrong = url.replace("postgres@", f"{GUARDED}:hunter2@")
        with pytest.raises(JournalRefused, match="password authentication failed") as refused:
            open_journal(wrong)
        chain: BaseException | None = refused.value
        while chain is not None:
            assert "hunter2" not in str(chain)
            chain = chain.__cause__
        assert f"{GUARDED}:***@" in str(refused.value)
        with pytest.raises(JournalRefused, match="no password supplied"):
            open_journal(url.replace("postgres@", f"{GUARDED}@"))
        right = open_journal(url.replace("postgres@", f"{GUARDED}:right@"))
        with pytest.raises(JournalRefused, match="lacks a permission"):
            right.migrate()
        right.close()
        server.ask(f"ALTER ROLE {GUARDED} CONNECTION LIMIT 0")
        with pytest.raises(JournalUnavailable, match="too many connections"):
            open_journal(url.replace("postgres@", f"{GUARDED}:right@"))

    def test_no_log_tells_a_password(self, server: PostgresServer, url: str, caplog: pytest.LogCaptureFixture) -> None:
        with caplog.at_level(logging.DEBUG):
            journal = open_journal(f"{url.replace('postgres@', 'postgres:hunter2@')}&sslpassword=hunter2")
            journal.migrate()
            server.ask(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{name_of(url)}'")
            assert journal.append([start("r1")]) == [DURABLE]
            journal.close()
            with pytest.raises(JournalUnavailable):
                open_journal("postgresql://ann:hunter2@127.0.0.1:1/flows?sslpassword=hunter2")
        assert "hunter2" not in caplog.text

    def test_a_user_or_database_that_is_not_there(self, url: str) -> None:
        with pytest.raises(JournalRefused, match="role"):
            open_journal(url.replace("postgres@", "nemo@"))
        with pytest.raises(JournalRefused, match="database"):
            open_journal(url.replace(name_of(url), "nowhere"))

    def test_an_option_that_is_not_one(self, url: str) -> None:
        with pytest.raises(JournalRefused, match="colour"):
            open_journal(f"{url}&colour=blue")

    def test_a_server_that_is_too_old(self, url: str) -> None:
        with pytest.raises(JournalRefused, match=r"needs 99 or newer: upgrade"):
            PostgresDatabase(make_url(url), oldest_version=99)

    def test_a_database_that_can_not_hold_every_text(self, server: PostgresServer) -> None:
        url = server.new_database(options="ENCODING 'LATIN1' LOCALE 'C' TEMPLATE template0")
        with pytest.raises(JournalRefused, match="LATIN1"):
            open_journal(url)
        server.drop_database(url)

    def test_without_the_driver_it_is_said_what_to_install(self, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "dexray.journal.postgres", None)
        with pytest.raises(JournalRefused, match=r"pip install 'dexray\[postgres\]'"):
            open_journal(url)

    @pytest.mark.statement("D14")
    def test_no_server_at_all_is_an_outage(self) -> None:
        with pytest.raises(JournalUnavailable, match="can't be reached") as unavailable:
            open_journal("postgresql://ann:hunter2@127.0.0.1:1/flows?sslpassword=hunter2")
        assert "hunter2" not in str(unavailable.value)

    @pytest.mark.statement("D14")
    def test_a_database_that_takes_no_writes_for_now_is_away(self, server: PostgresServer, url: str) -> None:
        journal = open_journal(url)
        journal.migrate()
        journal.close()
        server.ask(f"ALTER DATABASE {name_of(url)} SET default_transaction_read_only = on")
        journal = open_journal(url)
        with pytest.raises(JournalUnavailable, match="read-only"):
            journal.append([start("r1")])
        server.ask(f"ALTER DATABASE {name_of(url)} RESET default_transaction_read_only")
        assert journal.read_back([start("r1")]) == [None]
        assert journal.append([start("r1")]) == [DURABLE]
        journal.close()


class TestLocksOfOthers:
    @pytest.mark.statement("D14")
    def test_a_run_that_somebody_else_keeps_locked_is_unavailable_after_the_patience(
        self, url: str, open_one: Callable[..., SqlJournal]
    ) -> None:
        journal = open_one(patience=0.2)
        journal.append([start("r1")])
        with psycopg.connect(plain(url)) as other:
            other.execute("SELECT * FROM runs FOR UPDATE")
            with pytest.raises(JournalUnavailable, match="lock timeout"):
                journal.append([record("r1", 2)])
        assert journal.read_back([record("r1", 2)]) == [None]
        assert journal.append([record("r1", 2)]) == [DURABLE]

    def test_a_migration_waits_for_another_one(self, url: str) -> None:
        journal = open_journal(url)
        migrating = threading.Thread(target=journal.migrate)
        with psycopg.connect(plain(url), autocommit=True) as other:
            other.execute("SELECT pg_advisory_lock(%s)", (MIGRATION_LOCK,))
            migrating.start()
            waiting = "SELECT 1 FROM pg_locks WHERE NOT granted AND locktype = 'advisory'"
            wait_until(lambda: other.execute(waiting).fetchone() is not None or not migrating.is_alive())
            assert migrating.is_alive()
            assert other.execute("SELECT to_regclass('runs')").fetchone() == (None,)
        migrating.join(60)
        assert journal.append([start("r1")]) == [DURABLE]
        journal.close()

    @pytest.mark.statement("B202")
    def test_a_claim_waits_for_a_batch_that_was_judged_before_it(
        self, url: str, open_one: Callable[..., SqlJournal]
    ) -> None:
        """Otherwise the new owner would load a history that the old one then makes longer."""
        old, new = open_one(), open_one()
        old.append([start("r1")])
        appender, batch = Appender(database_of(old)), [record("r1", 2)]
        judged, go_on = threading.Event(), threading.Event()
        outcomes: list[Outcome] = []
        told: list[object] = []

        def work(connection: Connection) -> list[Outcome]:
            assert appender.read_back(connection, batch) == [None]
            judged.set()
            assert go_on.wait(5)  # or the server would take it for frozen
            return appender.append(connection, batch)

        def claim_and_load() -> None:
            told.append(new.claim(["r1"], "host-1"))
            loaded = new.load("r1")
            assert loaded is not None
            told.append([found.seq for found in loaded.tail])

        writer = threading.Thread(target=lambda: outcomes.extend(database_of(old).write(work, prepared=True)))
        writer.start()
        assert judged.wait(60)
        claimer = threading.Thread(target=claim_and_load)
        claimer.start()
        with psycopg.connect(plain(url), autocommit=True) as look:
            waiting = "SELECT 1 FROM pg_locks WHERE NOT granted AND locktype = 'transactionid'"
            wait_until(lambda: look.execute(waiting).fetchone() is not None or not claimer.is_alive())
        go_on.set()
        writer.join(60)
        claimer.join(60)
        assert outcomes == [DURABLE]
        assert told == [{"r1": 2}, [1, 2]]

    def test_a_deadlock_is_begun_again(self, url: str, open_one: Callable[..., SqlJournal]) -> None:
        journal = open_one()
        journal.append([start("r1"), start("r2")])
        outcomes: list[Outcome] = []
        writer = threading.Thread(target=lambda: outcomes.extend(journal.append([record("r1", 2), record("r2", 2)])))
        with psycopg.connect(plain(url)) as other, psycopg.connect(plain(url), autocommit=True) as look:
            other.execute("SET LOCAL deadlock_timeout = '60s'")  # so that the other side is the one that gives way
            other.execute("SELECT * FROM runs WHERE run_id = 'r2' FOR UPDATE")
            writer.start()
            waiting = "SELECT 1 FROM pg_locks WHERE NOT granted AND locktype = 'transactionid'"
            wait_until(lambda: look.execute(waiting).fetchone() is not None)
            other.execute("SELECT * FROM runs WHERE run_id = 'r1' FOR UPDATE")
        writer.join(60)
        assert outcomes == [DURABLE, DURABLE]
        assert len(journal.records("r1", 0, 10)) == 2


class TestFrozen:
    @pytest.mark.statement("D14")
    def test_a_server_that_does_not_answer_is_given_up(
        self, server: PostgresServer, url: str, open_one: Callable[..., SqlJournal]
    ) -> None:
        journal = open_one(patience=0.2, grace=0.2)
        journal.append([start("r1")])
        ((backend,),) = server.ask(f"SELECT pid FROM pg_stat_activity WHERE datname = '{name_of(url)}'")
        os.kill(backend, signal.SIGSTOP)
        try:
            # Nothing was sent that could have happened: another connection does it.
            assert journal.append([record("r1", 2)]) == [DURABLE]
        finally:
            os.kill(backend, signal.SIGCONT)
        assert journal.append([record("r1", 3)]) == [DURABLE]
        assert [found.seq for found in journal.records("r1", 0, 10)] == [1, 2, 3]

    @pytest.mark.statement("B202")
    @pytest.mark.parametrize(
        "frozen",
        [
            {"silence": 0.2},
            {"silence": 0.2, "pipelined": False},
            {"patience": 0.4, "grace": 0.2, "after": True},  # what it sent has no end, so that the server waits for it
        ],
        ids=["when it has its locks", "when it has its locks, statement by statement", "while it sends"],
    )
    def test_an_owner_that_is_frozen_in_a_transaction_does_not_keep_the_next_one_out(
        self, frozen: dict[str, Any], open_one: Callable[..., SqlJournal]
    ) -> None:
        """Its locks are taken from it; when it goes on, it is fenced."""
        frozen = dict(frozen)
        after = frozen.pop("after", False)
        old, new = open_one(**frozen), open_one()
        old.append([start("r1")])
        appender, late = Appender(database_of(old)), [record("r1", 2)]
        locked, claimed = threading.Event(), threading.Event()
        told: list[Outcome] = []

        def work(connection: Connection) -> list[Outcome]:
            (appender.append if after else appender.read_back)(connection, late)
            locked.set()
            assert claimed.wait(60)
            return appender.append(connection, late)

        writer = threading.Thread(target=lambda: told.extend(database_of(old).write(work, prepared=True)))
        writer.start()
        assert locked.wait(60)
        assert new.claim(["r1"], "host-1") == {"r1": 2}
        claimed.set()
        writer.join(60)
        assert told == [FENCED]
        assert old.read_back(late) == [FENCED]
        assert new.append([record("r1", 2, epoch=2)]) == [DURABLE]


class TestTrouble:
    def test_a_value_that_the_database_can_not_take_is_not_called_an_outage(
        self, open_one: Callable[..., SqlJournal]
    ) -> None:
        journal = open_one()
        nothing: bytes = None  # type: ignore[assignment]
        broken = start("r2", body=b"")
        object.__setattr__(broken, "body", nothing)
        with pytest.raises(psycopg.errors.NotNullViolation):
            journal.append([start("r1"), broken])
        with pytest.raises(psycopg.DataError):
            journal.append([start("r1"), start("r2", "with \0 in it")])
        assert journal.find_run("r1") is None
        assert journal.append([start("r1")]) == [DURABLE]

    def test_work_that_fails_leaves_nothing_behind_and_the_connection_usable(
        self, server: PostgresServer, url: str, open_one: Callable[..., SqlJournal]
    ) -> None:
        journal = open_one()

        def work(connection: Connection) -> None:
            Appender(database_of(journal)).append(connection, [start("r1")])
            raise ZeroDivisionError

        for prepared in (True, False):
            with pytest.raises(ZeroDivisionError):
                database_of(journal).write(work, prepared=prepared)
        assert journal.find_run("r1") is None
        assert server.connections_to(name_of(url)) == 1

    def test_a_commit_that_the_server_turns_into_a_rollback_is_not_durable(
        self, open_one: Callable[..., SqlJournal]
    ) -> None:
        def work(connection: Connection) -> None:
            with suppress(psycopg.errors.DivisionByZero):
                connection.connection.cursor().execute("SELECT 1/0")

        with pytest.raises(psycopg.errors.InFailedSqlTransaction, match="ROLLBACK"):
            database_of(open_one()).write(work)

    def test_a_closed_journal_says_so_and_leaves_no_connection(self, server: PostgresServer, url: str) -> None:
        journal = open_journal(url)
        journal.close()
        journal.close()
        with pytest.raises(RuntimeError, match="closed"):
            journal.find_run("r1")
        wait_until(lambda: server.connections_to(name_of(url)) == 0)
