"""What the processes of the tests of the journal do; in a module of its own so that a spawned process imports
little.
"""

from __future__ import annotations

from multiprocessing.connection import Connection
from multiprocessing.sharedctypes import Synchronized
from multiprocessing.synchronize import Barrier

from dexray.journal import Outcome, open_journal
from dexray.journal.schema import MIGRATIONS, upgrade
from dexray.journal.sql import SqlJournal
from tests.journal.builders import record, start


def migrate(url: str, together: Barrier) -> None:
    journal = open_journal(url)
    together.wait()
    journal.migrate()
    journal.close()


def upgrade_to_2(url: str, together: Barrier) -> None:
    journal = open_journal(url)
    assert isinstance(journal, SqlJournal)
    together.wait()
    journal._database.migrate(lambda connection: upgrade(connection, MIGRATIONS[:2]))
    journal.close()


def write(
    url: str, number: int, appends: int, together: Barrier, counts: list[Synchronized[int]], report: Connection
) -> None:
    """Reports how far every process was when this one was done."""
    run_id = f"r{number}"
    journal = open_journal(url)
    assert journal.append([start(run_id, owner=run_id)]) == [Outcome.DURABLE]
    together.wait()
    for seq in range(2, appends + 2):
        assert journal.append([record(run_id, seq)]) == [Outcome.DURABLE]
        counts[number].value += 1
    report.send([count.value for count in counts])
    journal.close()


def write_until_killed(url: str, report: Connection) -> None:
    """Reports the number of each record after the journal called it durable."""
    journal = open_journal(url)
    assert journal.append([start("r1")]) == [Outcome.DURABLE]
    seq = 1
    while True:
        seq += 1
        batch = [record("r1", seq, body=bytes(2000)), start(f"other-{seq}"), record(f"other-{seq}", 2, checkpoint=b"c")]
        assert journal.append(batch) == [Outcome.DURABLE] * 3
        report.send(seq)
