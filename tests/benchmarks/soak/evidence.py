"""All that an auditor may look at, and how it is read: files of the producers and handlers, rows of the database.

Nothing of the engine is imported. The database is read with psycopg; a record's body is msgpack, a list of events, each
of which is a list that begins with its tag ("StepCompleted/1").
"""

from __future__ import annotations

import json
import shutil
import time
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgpack
import psycopg

from tests.benchmarks.soak.records import Record, read_records

if TYPE_CHECKING:
    from tests.benchmarks.soak.audit import Audit

Event = list[Any]


@dataclass(frozen=True, slots=True)
class Run:
    run_id: str
    flow_id: str
    flow_type: str
    status: str
    epoch: int
    is_closed: bool
    parent: str | None


@dataclass(frozen=True, slots=True)
class Row:
    """A record of the journal: what one owner committed at once."""

    seq: int
    epoch: int
    at: float
    events: list[Event]


@dataclass(frozen=True, slots=True)
class Effect:
    """A line of a handler: this attempt of execute ran."""

    flow: str
    step: str
    attempt: int
    at: float
    run: str = ""


@dataclass(slots=True)
class Evidence:
    """`records`: by producer, in the order in which they were written. `rows`: by run, in the order of `seq`.
    `removed`: runs that were removed meanwhile, with the time at which they were missed first. `read_at`: when the
    database was read, in the end."""

    records: dict[str, list[Record]] = field(default_factory=dict)
    effects: list[Effect] = field(default_factory=list)
    runs: list[Run] = field(default_factory=list)
    rows: dict[str, list[Row]] = field(default_factory=dict)
    removed: dict[str, float] = field(default_factory=dict)
    read_at: float = 0.0


class Archive:
    """Keeps the histories of closed runs, because retention takes them away."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._closed: dict[str, tuple[Run, list[Row]]] = {}
        self.removed: dict[str, float] = {}

    def look(self) -> None:
        """Does nothing while the database is away."""
        try:
            with psycopg.connect(self._url, connect_timeout=2, options="-c statement_timeout=5000") as connection:
                closed = {run.run_id: run for run in _runs(connection) if run.is_closed}
                for run_id in closed.keys() - self._closed.keys():
                    rows = _rows(connection, run_id)
                    # Asked last: a run that is removed between the two questions has no records.
                    self._closed[run_id] = (closed[run_id], rows[run_id])
                now = time.time()
        except psycopg.Error:
            return
        for run_id in self._closed.keys() - closed.keys():
            self.removed.setdefault(run_id, now)

    def add_to(self, evidence: Evidence) -> None:
        self.look()
        evidence.removed = self.removed
        there = {run.run_id for run in evidence.runs}
        for run_id in self.removed:
            if run_id not in there:
                run, rows = self._closed[run_id]
                evidence.runs.append(run)
                evidence.rows[run_id] = rows
        evidence.runs.sort(key=lambda run: run.run_id)


def read_all(folder: Path, url: str) -> Evidence:
    evidence = Evidence()
    for path in sorted(folder.glob("records-*.jsonl")):
        evidence.records[path.stem.removeprefix("records-")] = list(read_records(path))
    evidence.effects = list(read_effects(folder / "effects"))
    evidence.runs, evidence.rows = read_journal(url)
    evidence.read_at = time.time()
    return evidence


def read_effects(path: Path) -> Iterable[Effect]:
    for line in path.read_text().splitlines():
        flow, step, attempt, _, at, run = line.split()
        yield Effect(flow, step, int(attempt), float(at), run)


def read_journal(url: str) -> tuple[list[Run], dict[str, list[Row]]]:
    """url: for psycopg."""
    with psycopg.connect(url) as connection:
        connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        runs = _runs(connection)
        rows = _rows(connection)
    return runs, {run.run_id: rows[run.run_id] for run in runs}


def _runs(connection: psycopg.Connection[Any]) -> list[Run]:
    found = connection.execute(
        "SELECT run_id, flow_id, flow_type, status, epoch, closed_at IS NOT NULL, parent FROM runs ORDER BY run_id"
    )
    return [Run(*row) for row in found]


def _rows(connection: psycopg.Connection[Any], run_id: str = "") -> dict[str, list[Row]]:
    """Of all runs, or of one."""
    rows: dict[str, list[Row]] = defaultdict(list)
    for of_run, seq, epoch, at, body in connection.execute(
        "SELECT run_id, seq, epoch, at, body FROM events WHERE run_id = %s OR %s = '' ORDER BY run_id, seq",
        (run_id, run_id),
    ):
        rows[of_run].append(Row(seq, epoch, at, msgpack.unpackb(body, strict_map_key=False)))
    return rows


def write_evidence(folder: Path, evidence: Evidence, found: Audit) -> None:
    """What is in the database goes with it: the violations, and the history of each Flow they name. Ray's logs too."""
    (folder / "violations").write_text("\n".join(found.violations) + "\n")
    named = set(found.flows)
    with (folder / "journal.jsonl").open("w") as journal:
        for run in evidence.runs:
            if run.flow_id not in named:
                continue
            journal.write(json.dumps({"run": [getattr(run, name) for name in Run.__slots__]}) + "\n")
            for row in evidence.rows.get(run.run_id, []):
                line = [row.seq, row.epoch, row.at, row.events]
                journal.write(json.dumps(line, default=repr) + "\n")
    for session in folder.glob("ray/session_2*"):
        shutil.copytree(session / "logs", folder / "logs" / session.name, dirs_exist_ok=True)


def open_runs(evidence: Evidence) -> list[Run]:
    return [run for run in evidence.runs if not run.is_closed]
