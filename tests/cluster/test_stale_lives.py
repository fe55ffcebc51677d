"""An owner that was frozen, replaced twice, and then thawed: real processes, and a database that tells them apart.

The invariants: after its successor has begun, nothing of the first process is in the journal; it hands out no attempt;
it answers no call with success; it ends by itself. What it had begun is done once, by whoever is the owner last.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from dexray.journal import Journal, JournalUnavailable, open_journal
from tests.cluster.nodes import until
from tests.cluster.notebook import Program
from tests.cluster.owner_process import OUTLIVED, OWNER, released_by
from tests.postgres import postgres_server

FLOWS = 5

pytestmark = [pytest.mark.kill, pytest.mark.timeout(180)]


@pytest.fixture(params=["sqlite", "postgres"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path}/flows.db"
    else:
        url = postgres_server().new_schema()
        yield url
        postgres_server().drop_schema(url)


class Owner(Program):
    """A life of the owner, as a process."""

    def __init__(self, database: str, folder: Path) -> None:
        super().__init__(["-m", "tests.cluster.owner_process", database], folder)
        self.folder = folder
        self.database = database
        assert self.line() == "ready"

    def ask(self, request: str) -> str:
        self.write(request)
        return self.line()

    def freeze(self, journal: Journal) -> None:
        """Outside of a commit: one that is frozen in the middle of it keeps the others waiting, for more than a minute
        on a server that is still to hear the rest of it."""
        while True:
            os.kill(self.process.pid, signal.SIGSTOP)
            if nobody_writes(self.database, journal):
                return
            os.kill(self.process.pid, signal.SIGCONT)
            time.sleep(0.02)

    def release(self) -> None:
        """Lets its attempts end."""
        released_by(str(self.folder), self.process.pid).touch()


def nobody_writes(database: str, journal: Journal) -> bool:
    try:
        journal.claim([], "nobody")
        if not database.startswith("sqlite"):
            with psycopg.connect(database.replace("+psycopg", "")) as connection:
                connection.execute("SELECT 1 FROM runs FOR UPDATE NOWAIT")
    except (JournalUnavailable, psycopg.errors.LockNotAvailable):
        return False
    return True


def lines_of(folder: Path) -> list[tuple[str, int, int]]:
    """(Flow ID, attempt, process) of every attempt that began."""
    lines = (folder / "effects").read_text().splitlines() if (folder / "effects").exists() else []
    return [(flow, int(attempt), int(pid)) for flow, attempt, pid in map(str.split, lines)]


@pytest.mark.statement("B157", "B200", "B202")
def test_an_owner_that_is_thawed_after_two_successors_lands_nothing_and_ends_itself(
    database: str, tmp_path: Path
) -> None:
    flow_ids = [f"f-{number}" for number in range(FLOWS)]
    with Owner(database, tmp_path) as first:
        journal = open_journal(database, patience=2.0)
        for flow_id in flow_ids:
            assert first.ask(f"start work {flow_id} {tmp_path}") == "started"
        assert first.ask(f"start parked p-1 {tmp_path}") == "started"
        assert first.ask(f"start parked p-2 {tmp_path}") == "started"
        until(lambda: len(lines_of(tmp_path)) == FLOWS, "the attempts do not begin")
        first.freeze(journal)

        with Owner(database, tmp_path) as second:
            until(lambda: len(lines_of(tmp_path)) == 2 * FLOWS, "the second does not go on")
            second.kill()
        with Owner(database, tmp_path) as third:
            until(lambda: len(lines_of(tmp_path)) == 3 * FLOWS, "the third does not go on")
            before = {flow_id: records_of(journal, flow_id) for flow_id in [*flow_ids, "p-1", "p-2"]}

            # All its attempts end at once when it is thawed, and calls have been waiting for it.
            first.release()
            first.write("publish p-1")
            first.write(f"start work late {tmp_path}")
            os.kill(first.process.pid, signal.SIGCONT)
            said = []
            while (line := first.line()) != "outlived":
                said.append(line)
            assert first.ends() == OUTLIVED
            assert set(said) <= {"refused: UNAVAILABLE"}
            assert {flow_id: records_of(journal, flow_id) for flow_id in before} == before
            assert journal.current_run("late") is None

            assert third.ask("publish p-2") == "published"
            assert third.ask("result p-2") == "COMPLETED ['hello']"
            third.release()
            for flow_id in flow_ids:
                assert third.ask(f"result {flow_id}") == "COMPLETED attempt 3"
            pids = [owner.process.pid for owner in (first, second, third)]
            expected = {(flow_id, number, pid) for flow_id in flow_ids for number, pid in enumerate(pids, 1)}
            assert sorted(lines_of(tmp_path)) == sorted(expected)
        journal.close()


def records_of(journal: Journal, flow_id: str) -> list[bytes]:
    run = journal.current_run(flow_id)
    assert run is not None
    assert run.owner == OWNER
    return [record.body for record in journal.records(run.run_id, 0, 1000)]
