"""A SQLite file with everybody at it at once: writers in many processes, a reader that does not end, a backup."""

from __future__ import annotations

import multiprocessing
import sqlite3
from pathlib import Path

import pytest

from dexray.journal import JournalUnavailable, Outcome, open_journal
from tests.journal import processes
from tests.journal.builders import record, start
from tests.journal.test_journal_sqlite import disk_that_ends_at, healthy, ready

WRITERS, APPENDS = 5, 120


@pytest.mark.statement("D14")
def test_writers_readers_and_a_backup_do_not_hear_of_each_other(tmp_path: Path) -> None:
    """No call fails, no history has a hole, and the backup is a whole database of one moment."""
    path = tmp_path / "a.db"
    journal = ready(path)
    journal.append([start("first", body=b"x" * 200_000)])
    reader = sqlite3.connect(path, isolation_level=None)
    reader.execute("BEGIN")
    seen = reader.execute("SELECT count(*) FROM events").fetchone()

    spawn = multiprocessing.get_context("spawn")
    together = spawn.Barrier(WRITERS)
    counts = [spawn.Value("i", 0) for _ in range(WRITERS)]
    reports, workers = [], []
    for number in range(WRITERS):
        here, there = spawn.Pipe(duplex=False)
        reports.append(here)
        workers.append(
            spawn.Process(target=processes.write, args=(str(path), number, APPENDS, together, counts, there))
        )
        workers[-1].start()
        there.close()

    copies = 0
    own = 1
    while any(worker.is_alive() for worker in workers) or copies < 2:
        copies += 1
        source, target = sqlite3.connect(path), sqlite3.connect(tmp_path / f"backup-{copies % 2}.db")

        def between_pages(*_: int, until: int = own + 3) -> None:
            nonlocal own
            if own < until:  # a write makes the copy begin again, so that with many it would not end
                own += 1
                assert journal.append([record("first", own)]) == [Outcome.DURABLE]

        source.backup(target, pages=50, progress=between_pages)
        source.close()
        target.close()
    for worker in workers:
        worker.join(120)
    assert [worker.exitcode for worker in workers] == [0] * WRITERS
    for number in range(WRITERS):
        assert [found.seq for found in journal.records(f"r{number}", 0, 1000)] == list(range(1, APPENDS + 2))
    assert len(journal.records("first", 0, 100_000)) == own
    assert reader.execute("SELECT count(*) FROM events").fetchone() == seen
    reader.close()
    journal.close()
    assert healthy(path)
    for number in range(2):
        assert healthy(tmp_path / f"backup-{number}.db")
        copy = open_journal(tmp_path / f"backup-{number}.db")
        copy.migrate()
        records = copy.records("first", 0, 100_000)
        assert [found.seq for found in records] == list(range(1, len(records) + 1))
        copy.close()


@pytest.mark.statement("D14")
def test_a_quota_that_is_used_up_is_an_outage_and_ends_when_there_is_room(tmp_path: Path) -> None:
    journal = ready(tmp_path / "a.db")
    journal.append([start("r1")])
    database = journal._database
    database.read(lambda connection: connection.exec_driver_sql("PRAGMA max_page_count = 60").scalar())
    seq = 1
    told = ""
    while not told and seq < 1000:
        seq += 1
        try:
            journal.append([record("r1", seq, body=b"x" * 10_000)])
        except JournalUnavailable as unavailable:
            told = str(unavailable)
    assert "the disk is full" in told
    assert "make room" in told
    # The connection was dropped and with it the quota, which was its own.
    assert journal.read_back([record("r1", seq, body=b"x" * 10_000)]) == [None]
    assert journal.append([record("r1", seq)]) == [Outcome.DURABLE]
    assert [found.seq for found in journal.records("r1", 0, 1000)] == list(range(1, seq + 1))
    journal.close()
    assert healthy(tmp_path / "a.db")


@pytest.mark.statement("D14")
def test_a_disk_that_is_full_can_still_be_read_from(tmp_path: Path) -> None:
    journal = ready(tmp_path / "a.db")
    journal.append([start("r1", body=b"x" * 500_000)])
    with disk_that_ends_at(400_000):
        for _ in range(3):
            with pytest.raises(JournalUnavailable, match="make room"):
                journal.append([record("r1", 2, body=b"x" * 500_000)])
        assert journal.find_run("r1") is not None
    assert journal.append([record("r1", 2)]) == [Outcome.DURABLE]
    journal.close()
