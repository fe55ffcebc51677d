"""The journal: what a Flow did, in SQL, and nothing else is the truth.

An owner decides in memory and appends what it decided; only what the journal took may be shown to anyone. The journal
itself decides one thing: whether a record may still be written. It looks into no body.

How it is cut

- `interface` is the promise (`Journal`), whatever database is behind it. Everybody outside depends on this file
  alone.
- `verdicts` says which records of a batch may be written: a pure function of the batch and of what the database has.
- `sql` is the Journal over any SQL database; `appending` is its hot path, with statements that are compiled once.
- `streams` is the part of it that keeps the messages of Streams, which are best effort and belong to no run.
- `removal` is the part of it that takes closed runs away again, and blobs that no run refers to.
- `blobs` keeps track of large values that lie outside of the database, in a `blob_store`.
- `marks` keeps what Attribute stores have yet to be told, until it is told.
- `schema` holds the tables and the list of migrations; `rows` turns rows into values and page tokens into positions.
- `database` is the seam between databases: how a transaction is begun, repeated and given up, and the few words that
  databases say differently. `sqlite` is the SQLite side of it, `writer_queue` the kernel lock that its writers queue
  on; `postgres` is the PostgreSQL side, and says why its row locks are enough.

Rules

- Every method is one transaction. A method that raised `JournalUnavailable` may have happened or not; all of them can
  be repeated, and `append` is asked about with `read_back`.
- Fencing is in the database: the epoch of a run is read in the transaction that writes its records, and so is the
  life of the owner. An owner that lost its runs, or was replaced, and does not know it yet can do no harm, on whatever
  host it sits.
- Nothing is written twice and nothing is changed: records, answers, blobs and code keep the first version for good.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     journal = open_journal(f"{folder}/flows.db")
    ...     journal.migrate()
    ...     start = NewRun(flow_id="order-7", flow_type="Order", owner="host-1", request_id="r-1", started_at=0.0)
    ...     outcomes = journal.append([Append("run-1", epoch=1, seq=1, at=0.0, body=b"started", new_run=start)])
    ...     journal.close()
    >>> outcomes
    [<Outcome.DURABLE: 'DURABLE'>]
"""

from __future__ import annotations

import os

from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError

from dexray.journal.blob_store import open_blob_store
from dexray.journal.database import Database
from dexray.journal.interface import (
    NEVER,
    Append,
    FoundRun,
    IndexEntry,
    Journal,
    JournalRefused,
    JournalUnavailable,
    Lease,
    LoadedRun,
    NewMessage,
    NewRun,
    Outcome,
    Outlived,
    Record,
    RequestAnswer,
    RunChange,
    RunRow,
    StoredDeployment,
    StoredMark,
    StoredMessage,
    StoreMark,
)
from dexray.journal.sql import SqlJournal
from dexray.journal.sqlite import SqliteDatabase
from dexray.settings import masked

__all__ = [
    "NEVER",
    "Append",
    "FoundRun",
    "IndexEntry",
    "Journal",
    "JournalRefused",
    "JournalUnavailable",
    "Lease",
    "LoadedRun",
    "NewMessage",
    "NewRun",
    "Outcome",
    "Outlived",
    "Record",
    "RequestAnswer",
    "RunChange",
    "RunRow",
    "StoreMark",
    "StoredDeployment",
    "StoredMark",
    "StoredMessage",
    "open_journal",
]


def open_journal(url_or_path: str | os.PathLike[str], *, patience: float = 30.0, blob_store: str = "") -> Journal:
    """Opens the journal at a URL or at a plain path, which is a SQLite file.

    URLs are `sqlite:///flows.db`, `sqlite:////var/lib/flows.db` and `postgresql://user:password@host:5432/database`,
    with the options of libpq behind a `?`.

    The file and its folder are created when they are missing, a PostgreSQL database is not; the tables are made by
    `migrate()`. `patience` is how many seconds a call waits for others to let go of the database before it raises
    `JournalUnavailable`. `blob_store` is a folder or an fsspec URL for new large values; without one they lie in the
    database. Values that lie elsewhere from before are read there.

    Raises `JournalRefused` when the database can't be used as it is: not a database, read-only, no such user, made by
    a newer dexray, or of a kind that isn't supported. Raises `JournalUnavailable` when there is no server now.
    """
    store = open_blob_store(blob_store) if blob_store else None
    text = os.fspath(url_or_path)
    if text == ":memory:":
        raise JournalRefused(
            "A journal must outlive its process, an in-memory database does not: give the path of a file."
        )
    if "://" not in text:
        if not text:
            raise JournalRefused("The path of the journal is empty: give the path of a file, or a database URL.")
        return SqlJournal(SqliteDatabase(os.path.expanduser(text), patience=patience), store)
    url = _url(text)
    if url.drivername in ("sqlite", "sqlite+pysqlite"):
        return SqlJournal(SqliteDatabase(_sqlite_path(url), patience=patience), store)
    if url.drivername == "postgresql+psycopg":
        return SqlJournal(_postgres(url, patience), store)
    raise JournalRefused(
        f"dexray keeps its journal in SQLite or PostgreSQL, not in {url.drivername!r}: "
        "give sqlite:///path, a plain path, or postgresql://user:password@host:5432/database."
    )


def _url(text: str) -> URL:
    try:
        url = make_url(text)
    except (ArgumentError, ValueError) as error:
        raise JournalRefused(
            f"{masked(text)!r} is not a database URL: give sqlite:///path, a plain path, or "
            "postgresql://user:password@host:5432/database."
        ) from error
    # Only this driver is served, so that it need not be named.
    return url.set(drivername="postgresql+psycopg") if url.drivername in ("postgres", "postgresql") else url


def _sqlite_path(url: URL) -> str:
    if url.host or url.query:
        shown = url.render_as_string()
        raise JournalRefused(
            f"{shown!r} has a host or options, which a journal does not take: give sqlite:///relative/path or "
            "sqlite:////absolute/path."
        )
    if not url.database or url.database == ":memory:":
        raise JournalRefused(
            f"{url.render_as_string()!r} names an in-memory database, and a journal must outlive its process: "
            "give sqlite:///path."
        )
    return url.database


def _postgres(url: URL, patience: float) -> Database:
    if not url.database:
        shown = masked(url.render_as_string())
        raise JournalRefused(f"{shown!r} names no database: give postgresql://user:password@host:5432/database.")
    try:
        from dexray.journal.postgres import PostgresDatabase
    except ImportError as error:
        raise JournalRefused(
            f"The driver for PostgreSQL can't be loaded ({error}): pip install 'dexray[postgres]', here and on every "
            "node of the cluster."
        ) from error
    return PostgresDatabase(url, patience=patience)
