"""Several processes on one journal, and one that is killed in the middle."""

from __future__ import annotations

import multiprocessing
import os
import signal
from multiprocessing.process import BaseProcess

import pytest

from dexray.journal import Journal, Outcome
from tests.journal import processes
from tests.journal.builders import record
from tests.journal.conftest import OpenJournal

WRITERS, APPENDS = 4, 200

spawn = multiprocessing.get_context("spawn")


def finish(workers: list[BaseProcess]) -> None:
    for worker in workers:
        worker.join(120)
    assert [worker.exitcode for worker in workers] == [0] * len(workers)


def test_processes_that_migrate_at_once_make_one_schema(journal_url: str, another: OpenJournal) -> None:
    together = spawn.Barrier(3)
    workers: list[BaseProcess] = [
        spawn.Process(target=processes.migrate, args=(journal_url, together)) for _ in range(3)
    ]
    for worker in workers:
        worker.start()
    finish(workers)
    assert another().list_runs() == ([], "")


def test_processes_that_write_at_once_all_get_on(journal_url: str, journal: Journal) -> None:
    together = spawn.Barrier(WRITERS)
    counts = [spawn.Value("i", 0) for _ in range(WRITERS)]
    reports, workers = [], []
    for number in range(WRITERS):
        here, there = spawn.Pipe(duplex=False)
        reports.append(here)
        arguments = (journal_url, number, APPENDS, together, counts, there)
        workers.append(spawn.Process(target=processes.write, args=arguments))
        workers[-1].start()
        there.close()
    progress = [here.recv() for here in reports]
    finish(list(workers))
    for number in range(WRITERS):
        assert [found.seq for found in journal.records(f"r{number}", 0, 1000)] == list(range(1, APPENDS + 2))
    # When the first one was done, nobody was left far behind. On a server it is the kernel that is fair, or is not.
    slack = APPENDS * 3 // 4 if journal_url.startswith("sqlite") else APPENDS - 1
    assert min(progress, key=sum) == pytest.approx([APPENDS] * WRITERS, abs=slack)


@pytest.mark.kill
@pytest.mark.parametrize("after", [1, 40, 150])
def test_what_a_killed_process_called_durable_is_there(journal_url: str, journal: Journal, after: int) -> None:
    here, there = spawn.Pipe(duplex=False)
    writer = spawn.Process(target=processes.write_until_killed, args=(journal_url, there))
    writer.start()
    there.close()
    reported = 1
    while reported < after + 1:
        reported = here.recv()
    assert writer.pid is not None
    os.kill(writer.pid, signal.SIGKILL)
    try:
        while True:
            reported = here.recv()
    except EOFError:
        pass  # the pipe ends with the process
    writer.join()
    assert writer.exitcode == -signal.SIGKILL

    seqs = [found.seq for found in journal.records("r1", 0, 1_000_000)]
    assert seqs == list(range(1, len(seqs) + 1))
    assert len(seqs) >= reported
    for seq in range(2, len(seqs) + 1):
        loaded = journal.load(f"other-{seq}")
        assert loaded is not None
        assert (loaded.checkpoint, loaded.checkpoint_seq) == (b"c", 2)
    assert journal.find_run(f"other-{len(seqs) + 1}") is None
    assert journal.append([record("r1", len(seqs) + 1)]) == [Outcome.DURABLE]
