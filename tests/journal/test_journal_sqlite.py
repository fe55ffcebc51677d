"""What is particular to SQLite files: names, refusals, a file that is busy, full, gone or read-only."""

from __future__ import annotations

import os
import resource
import shutil
import sqlite3
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from dexray.journal import JournalRefused, JournalUnavailable, Outcome, open_journal
from dexray.journal.sql import SqlJournal
from dexray.journal.sqlite import SqliteDatabase
from dexray.journal.writer_queue import WriterQueue
from tests.journal.builders import record, start


def no_pause(_: float) -> None:
    """In place of sleeping between two looks at a busy file."""


def ready(path: Path, **options: object) -> SqlJournal:
    journal = SqlJournal(SqliteDatabase(str(path), **options))  # type: ignore[arg-type]
    journal.migrate()
    return journal


class TestNames:
    def test_a_url_with_an_absolute_path(self, tmp_path: Path) -> None:
        open_journal(f"sqlite:///{tmp_path}/a.db").close()
        assert (tmp_path / "a.db").exists()

    def test_a_url_with_a_relative_path_and_a_bare_path(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        open_journal("sqlite:///a.db").close()
        open_journal("sqlite+pysqlite:///b.db").close()
        open_journal("c.db").close()
        open_journal(Path("d.db")).close()
        assert {"a.db", "b.db", "c.db", "d.db"} <= set(os.listdir(tmp_path))

    def test_the_home_folder_and_missing_folders(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("HOME", str(tmp_path))
        open_journal("~/deep/er/flows ü.db").close()
        assert (tmp_path / "deep" / "er" / "flows ü.db").exists()

    @pytest.mark.parametrize(
        ("name", "told"),
        [
            ("", "empty"),
            (":memory:", "outlive"),
            ("sqlite://", "in-memory"),
            ("sqlite:///:memory:", "in-memory"),
            ("sqlite:///a.db?mode=ro", "options"),
            ("sqlite://host/a.db", "host"),
            ("mysql://localhost/flows", "mysql"),
            ("postgresql+asyncpg://localhost/flows", "asyncpg"),
            ("postgresql://localhost", "no database"),
            ("://", "not a database URL"),
        ],
    )
    def test_a_name_that_no_journal_can_have_is_refused(self, name: str, told: str) -> None:
        with pytest.raises(JournalRefused, match=told):
            open_journal(name)

    def test_passwords_are_not_repeated(self) -> None:
        with pytest.raises(JournalRefused) as refused:
            open_journal("sqlite://me:s3cret@host/a.db")
        assert "s3cret" not in str(refused.value)


class TestRefusals:
    def test_a_file_that_is_not_a_database(self, tmp_path: Path) -> None:
        (tmp_path / "a.db").write_bytes(b"what I did on my holidays " * 1000)
        with pytest.raises(JournalRefused, match="not a SQLite database"):
            open_journal(tmp_path / "a.db")

    def test_a_folder(self, tmp_path: Path) -> None:
        with pytest.raises(JournalRefused, match="check that it is a file"):
            open_journal(tmp_path)

    def test_a_folder_that_can_not_be_made(self, tmp_path: Path) -> None:
        (tmp_path / "file").touch()
        with pytest.raises(JournalRefused, match="Its folder"):
            open_journal(tmp_path / "file" / "a.db")

    def test_a_file_that_this_user_may_not_write(self) -> None:
        folder = Path(tempfile.mkdtemp())
        try:
            ready(folder / "a.db").close()
            (folder / "a.db.lock").chmod(0o666)
            (folder / "a.db").chmod(0o444)
            folder.chmod(0o777)
            with as_a_common_user(), pytest.raises(JournalRefused, match=r"read-only.*may write it"):
                open_journal(folder / "a.db")
        finally:
            shutil.rmtree(folder)


class TestBusy:
    def test_a_writer_waits_for_one_that_does_not_queue(self, tmp_path: Path) -> None:
        intruder = sqlite3.connect(tmp_path / "a.db", isolation_level=None)
        pauses: list[float] = []

        def pause(seconds: float) -> None:
            pauses.append(seconds)
            if len(pauses) == 4:
                intruder.execute("ROLLBACK")

        journal = ready(tmp_path / "a.db", driver_wait=0.0, sleep=pause)
        intruder.execute("BEGIN IMMEDIATE")
        assert journal.append([start("r1")]) == [Outcome.DURABLE]
        assert pauses == [0.005, 0.01, 0.02, 0.04]
        journal.close()
        intruder.close()

    @pytest.mark.statement("D14")
    def test_a_file_that_stays_busy_is_unavailable_and_usable_when_it_is_free(self, tmp_path: Path) -> None:
        seconds = iter(range(1000))
        journal = ready(tmp_path / "a.db", driver_wait=0.0, sleep=no_pause, clock=lambda: float(next(seconds)))
        intruder = sqlite3.connect(tmp_path / "a.db", isolation_level=None)
        intruder.execute("BEGIN IMMEDIATE")
        with pytest.raises(
            JournalUnavailable, match="another program has kept the file to itself for 30 s"
        ) as unavailable:
            journal.append([start("r1")])
        assert "locked" not in str(unavailable.value)
        assert unavailable.value.__cause__ is not None
        intruder.execute("ROLLBACK")
        assert journal.read_back([start("r1")]) == [None]
        assert journal.append([start("r1")]) == [Outcome.DURABLE]
        journal.close()
        intruder.close()

    def test_readers_do_not_wait_for_writers(self, tmp_path: Path) -> None:
        journal = ready(tmp_path / "a.db", driver_wait=0.0, patience=0.0)
        journal.append([start("r1")])
        intruder = sqlite3.connect(tmp_path / "a.db", isolation_level=None)
        intruder.execute("BEGIN IMMEDIATE")
        assert journal.find_run("r1") is not None
        journal.close()
        intruder.close()

    def test_a_backup_in_progress_holds_up_nobody(self, tmp_path: Path) -> None:
        journal = ready(tmp_path / "a.db", driver_wait=0.0, patience=0.0)
        journal.append([start("r1", body=b"x" * 100_000)])
        source, target = sqlite3.connect(tmp_path / "a.db"), sqlite3.connect(tmp_path / "backup.db")
        outcomes: list[Outcome] = []

        def between_pages(*_: int) -> None:
            if len(outcomes) < 3:
                outcomes.extend(journal.append([record("r1", 2 + len(outcomes))]))

        source.backup(target, pages=10, progress=between_pages)
        assert outcomes == [Outcome.DURABLE] * 3
        for connection in (source, target):
            connection.close()
        journal.close()

    def test_a_writer_that_is_frozen_in_the_queue_makes_the_journal_unavailable(self, tmp_path: Path) -> None:
        journal = ready(tmp_path / "a.db", patience=0.02)
        frozen = WriterQueue(str(tmp_path / "a.db.lock"))
        assert frozen.enter(0.0)
        with pytest.raises(JournalUnavailable, match="may be frozen"):
            journal.append([start("r1")])
        frozen.leave()
        assert journal.append([start("r1")]) == [Outcome.DURABLE]
        frozen.close()
        journal.close()


class TestQueue:
    def test_one_is_in_at_a_time_and_the_next_comes_when_it_leaves(self, tmp_path: Path) -> None:
        first, second = WriterQueue(str(tmp_path / "lock")), WriterQueue(str(tmp_path / "lock"))
        assert first.enter(0.0)
        entered: list[bool] = []
        waiting = threading.Thread(target=lambda: entered.append(second.enter(60.0)))
        waiting.start()
        assert entered == []
        first.leave()
        waiting.join()
        assert entered == [True]
        assert not first.enter(0.0)
        second.leave()
        assert first.enter(60.0)

    def test_a_wait_that_was_given_up_keeps_nobody_out(self, tmp_path: Path) -> None:
        first, second, third = (WriterQueue(str(tmp_path / "lock")) for _ in range(3))
        assert first.enter(0.0)
        for _ in range(3):
            assert not second.enter(0.0)
        first.leave()
        assert third.enter(60.0)
        third.leave()
        assert second.enter(60.0)


class TestTrouble:
    @pytest.mark.statement("D14")
    def test_a_full_disk_is_an_outage_after_which_the_journal_goes_on(self, tmp_path: Path) -> None:
        journal = ready(tmp_path / "a.db")
        journal.append([start("r1")])
        big = record("r1", 2, body=b"x" * 5_000_000)
        with disk_that_ends_at(1_000_000), pytest.raises(JournalUnavailable) as unavailable:
            journal.append([big])
        assert unavailable.value.__cause__ is not None
        assert "make room" in str(unavailable.value)
        assert journal.read_back([big]) == [None]
        assert journal.append([big, record("r1", 3)]) == [Outcome.DURABLE] * 2
        journal.close()
        assert healthy(tmp_path / "a.db")

    @pytest.mark.statement("D14")
    def test_after_an_outage_the_file_is_opened_anew(self, tmp_path: Path) -> None:
        journal = ready(tmp_path / "a.db")
        nowhere = os.open("/dev/null", os.O_RDONLY)
        for handle in os.listdir("/proc/self/fd"):
            with suppress(OSError):  # the handle of the listing itself
                if os.readlink(f"/proc/self/fd/{handle}").startswith(f"{tmp_path}/a.db-wal"):
                    os.dup2(nowhere, int(handle))
        with pytest.raises(JournalUnavailable):
            journal.append([start("r1")])
        assert journal.read_back([start("r1")]) == [None]
        assert journal.append([start("r1")]) == [Outcome.DURABLE]
        journal.close()
        os.close(nowhere)
        assert healthy(tmp_path / "a.db")

    def test_a_file_that_was_deleted_takes_no_more_records(self, tmp_path: Path) -> None:
        journal = ready(tmp_path / "a.db")
        os.rename(tmp_path / "a.db", tmp_path / "moved.db")
        with pytest.raises(JournalUnavailable, match="removed or replaced"):
            journal.append([start("r1")])
        os.rename(tmp_path / "moved.db", tmp_path / "a.db")
        assert journal.append([start("r1")]) == [Outcome.DURABLE]
        journal.close()

    def test_a_mistake_in_the_program_is_not_called_an_outage(self, tmp_path: Path) -> None:
        journal = SqlJournal(SqliteDatabase(str(tmp_path / "a.db")))
        with pytest.raises(sqlite3.OperationalError, match="no such table"):
            journal.append([start("r1")])
        journal.migrate()
        assert journal.append([start("r1")]) == [Outcome.DURABLE]
        journal.close()

    def test_a_batch_that_breaks_the_database_rules_leaves_nothing_behind(self, tmp_path: Path) -> None:
        journal = ready(tmp_path / "a.db")
        nothing: bytes = None  # type: ignore[assignment]
        broken = start("r2", body=b"")
        object.__setattr__(broken, "body", nothing)
        with pytest.raises(sqlite3.IntegrityError):
            journal.append([start("r1"), broken])
        assert journal.find_run("r1") is None
        assert journal.append([start("r1")]) == [Outcome.DURABLE]
        journal.close()

    def test_a_closed_journal_says_so(self, tmp_path: Path) -> None:
        journal = ready(tmp_path / "a.db")
        journal.close()
        journal.close()
        calls: list[Callable[[], object]] = [lambda: journal.append([start("r1")]), lambda: journal.find_run("r1")]
        for call in calls:
            with pytest.raises(RuntimeError, match="closed"):
                call()

    def test_a_journal_made_in_one_thread_works_in_another(self, tmp_path: Path) -> None:
        journal = ready(tmp_path / "a.db")
        outcomes: list[Outcome] = []
        worker = threading.Thread(target=lambda: outcomes.extend(journal.append([start("r1")])))
        worker.start()
        worker.join()
        assert outcomes == [Outcome.DURABLE]
        assert journal.find_run("r1") is not None
        journal.close()

    def test_commits_are_synced_and_logged_ahead(self, tmp_path: Path) -> None:
        database = SqliteDatabase(str(tmp_path / "a.db"))
        pragmas = ("journal_mode", "synchronous")
        found = [database.read(lambda c, name=name: c.exec_driver_sql(f"PRAGMA {name}").scalar()) for name in pragmas]  # type: ignore[misc]
        assert found == ["wal", 2]
        database.close()


def healthy(path: Path) -> bool:
    with sqlite3.connect(path) as connection:
        return connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


@contextmanager
def disk_that_ends_at(size: int) -> Iterator[None]:
    """No file of this process grows beyond `size` bytes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@contextmanager
def as_a_common_user() -> Iterator[None]:
    """Root may write everything; for a moment, this process is somebody else."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)
