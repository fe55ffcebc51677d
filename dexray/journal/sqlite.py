"""SQLite as a journal's database.

- WAL with synchronous=FULL: a commit is on the disk when it returns, and readers never wait for writers.
- Writes begin with BEGIN IMMEDIATE, so that the epochs that a batch was judged by can't change before it
  commits; a transaction that first reads and then writes could be refused in its middle.
- Writers queue on a kernel lock (`writer_queue`). Who does not queue there (a backup, a shell, a checkpoint
  of a reader that ends) may still make the file busy; then the transaction is begun again, with growing
  pauses, until the patience ends.
- SQLite would go on writing to a file that was deleted under it. A commit is not called durable there: every
  write looks whether the path still leads to the file that was opened.
- After an error the connection is dropped. A disk that was full may have left it with a transaction that
  SQLite ended by itself, and a new connection costs less than a millisecond.

The file must be on a local disk: neither SQLite's locks nor the queue can be relied on over a network. A file system
that is known to be one is warned of.

What goes wrong is told in terms of the file and of what to do about it. Nobody is told that "the database is locked":
who waits in the queue has nothing to do with it, and who doesn't queue is named as what it is, another program.
"""

from __future__ import annotations

import json
import logging
import os
import sqlite3
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, TypeVar

from sqlalchemy import (
    ColumnElement,
    Connection,
    Dialect,
    FromClause,
    Table,
    Text,
    bindparam,
    create_engine,
    event,
    func,
    select,
)
from sqlalchemy.dialects.sqlite import insert
from sqlalchemy.engine import URL
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import NullPool

from dexray.journal import schema
from dexray.journal.database import Database
from dexray.journal.interface import JournalRefused, JournalUnavailable
from dexray.journal.mounts import MOUNTS, network_file_system
from dexray.journal.writer_queue import WriterQueue

T = TypeVar("T")

logger = logging.getLogger("dexray.journal.sqlite")

_BUSY = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED})
# What may pass: a full disk, a broken read, a file system that is away or became read-only.
_AWAY = frozenset(
    {
        sqlite3.SQLITE_FULL,
        sqlite3.SQLITE_IOERR,
        sqlite3.SQLITE_CANTOPEN,
        sqlite3.SQLITE_READONLY,
        sqlite3.SQLITE_PROTOCOL,
        sqlite3.SQLITE_NOMEM,
        sqlite3.SQLITE_PERM,
        sqlite3.SQLITE_AUTH,
    }
)
_BROKEN = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})

_WRITABLE = (
    "check that it is a file on a local disk and that this user may write it, its folder, and the -wal, -shm and .lock "
    "files beside it"
)

# What to do, by code. Flows wait meanwhile, and go on by themselves.
_WAYS_OUT = {
    sqlite3.SQLITE_FULL: "the disk is full, or the quota of this user: make room",
    sqlite3.SQLITE_IOERR: "the disk can't be read or written, or is full: see to the disk, and make room on it",
    sqlite3.SQLITE_READONLY: f"the file can't be written any more: {_WRITABLE}",
    sqlite3.SQLITE_CANTOPEN: f"the file can't be opened any more: {_WRITABLE}",
}

_FIRST_PAUSE = 0.005
_LONGEST_PAUSE = 0.5


class SqliteDatabase(Database):
    """A SQLite file.

    `patience` is how many seconds a call waits for others in all; `driver_wait` how many SQLite waits before
    it says busy.
    """

    def __init__(
        self,
        path: str,
        *,
        patience: float = 30.0,
        driver_wait: float = 1.0,
        mounts: str = MOUNTS,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Opens the file, creating it and its folder if needed; raises `JournalRefused` when it can't be a journal."""
        self._path = os.path.realpath(path)
        self._patience = patience
        self._driver_wait = driver_wait
        self._sleep = sleep
        self._clock = clock
        self._connection: Connection | None = None
        self._closed = False
        self._engine = create_engine(
            URL.create("sqlite+pysqlite", database=self._path),
            poolclass=NullPool,
            # Transactions are begun here by hand: the driver would begin them late, and never as IMMEDIATE.
            isolation_level="AUTOCOMMIT",
            connect_args={"check_same_thread": False, "timeout": driver_wait},
        )
        event.listen(self._engine, "connect", _set_up)
        self._identity: tuple[int, int] | None = None
        self._queue = self._make_room()
        network = network_file_system(self._path, mounts)
        if network:
            logger.warning(
                "%s is on a network file system (%s), where locks can't be relied on and a journal may be damaged: "
                "put it on a local disk, or use PostgreSQL",
                self._path,
                network,
            )
        try:
            # As a write: a file that can't be written is refused now, not at the first record.
            self.write(schema.version_of)
            self._identity = _identity(self._path)
            if not os.access(self._path, os.W_OK, effective_ids=os.access in os.supports_effective_ids):
                # With a log, SQLite would begin a write, and refuse only its first page.
                raise JournalRefused(f"{self._path} is read-only: {_WRITABLE}.")
        except JournalUnavailable as error:
            self.close()
            cause = _driver_error(error.__cause__)
            if cause is not None and _code(cause) in _AWAY:
                raise JournalRefused(
                    f"{self._path} can't be opened for writing as a journal ({cause}): {_WRITABLE}."
                ) from error
            raise
        except JournalRefused:
            self.close()
            raise

    @property
    def dialect(self) -> Dialect:
        return self._engine.dialect

    def write(self, work: Callable[[Connection], T], *, prepared: bool = False) -> T:
        give_up_at = self._clock() + self._patience

        def attempt() -> T:
            if not self._queue.enter(max(0.0, give_up_at - self._clock())):
                raise JournalUnavailable(
                    f"{self._path}: other writers held the journal for {self._patience:g} s. One of them may be "
                    f"frozen; `fuser {self._path}.lock` names them."
                )
            try:
                if self._identity is not None and _identity(self._path) != self._identity:
                    raise JournalUnavailable(
                        f"{self._path} was removed or replaced while it was in use: put the file back, or restart what "
                        "uses it to go on with the file that is there."
                    )
                return self._transact("BEGIN IMMEDIATE", work)
            finally:
                self._queue.leave()

        return self._persist(attempt, give_up_at)

    def read(self, work: Callable[[Connection], T], *, single: bool = False) -> T:
        return self._persist(lambda: self._transact("BEGIN", work), self._clock() + self._patience)

    def migrate(self, work: Callable[[Connection], T]) -> T:
        return self.write(work)

    def among(self, column: ColumnElement[str]) -> ColumnElement[bool]:
        values = func.json_each(bindparam("ids", type_=Text)).table_valued("value")
        return column.in_(select(values.c.value))

    def ids(self, values: Iterable[str]) -> Any:
        return json.dumps(list(values))

    def row_by_row(
        self, few: FromClause, many: Table, on: ColumnElement[bool], order: ColumnElement[Any]
    ) -> tuple[FromClause, FromClause]:
        return few.join(many, on), many  # it has no other joins

    def insert(self, table: Table) -> Any:
        return insert(table)

    def hold(self, connection: Connection, name: str, *, shared: bool) -> None:
        """Every writer has the file to itself."""

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._drop_connection()
            self._engine.dispose()
            self._queue.close()

    def _make_room(self) -> WriterQueue:
        try:
            os.makedirs(os.path.dirname(self._path), exist_ok=True)
            return WriterQueue(f"{self._path}.lock")
        except OSError as error:
            raise JournalRefused(
                f"{self._path} can't be used as a journal: {error}. "
                "Its folder must exist or be creatable, and be writable."
            ) from error

    def _transact(self, begin: str, work: Callable[[Connection], T]) -> T:
        if self._connection is None:
            self._connection = self._engine.connect()
        with self._connection.begin():
            self._connection.exec_driver_sql(begin)
            return work(self._connection)

    def _persist(self, attempt: Callable[[], T], give_up_at: float) -> T:
        if self._closed:
            raise RuntimeError(f"The journal {self._path} is closed: open another one.")
        pause = _FIRST_PAUSE
        while True:
            try:
                return attempt()
            except (DBAPIError, sqlite3.Error) as error:
                # Busy is told at BEGIN, or at worst at a COMMIT that changed nothing: starting over is safe.
                code = _code(_driver_error(error))
                if code not in _BUSY | _AWAY | _BROKEN:
                    raise
                self._drop_connection()
                if code in _BROKEN:
                    raise JournalRefused(
                        f"{self._path} is not a SQLite database, or is a damaged one ({_driver_error(error)}): "
                        "give the path of a new file, or put back a backup."
                    ) from error
                if code in _AWAY:
                    way_out = _WAYS_OUT.get(code, "see to the disk")
                    raise JournalUnavailable(f"{self._path}: {way_out} ({_driver_error(error)})") from error
                if self._clock() + pause > give_up_at:
                    raise JournalUnavailable(
                        f"{self._path}: another program has kept the file to itself for {self._patience:g} s, such as "
                        "a shell with an open transaction, a copy or a virus scanner: end it"
                    ) from error
            self._sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)

    def _drop_connection(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(DBAPIError, sqlite3.Error):  # it is thrown away because it may be in any state
                connection.close()


def _set_up(connection: sqlite3.Connection, _: object) -> None:
    # Only asked for when it is not so yet: the switch needs the file for itself.
    if connection.execute("PRAGMA journal_mode").fetchone()[0] != "wal":
        mode = connection.execute("PRAGMA journal_mode=WAL").fetchone()[0]
        if mode != "wal":
            raise JournalRefused(
                f"SQLite can't keep a write-ahead log here (it says {mode!r}): put the journal on a local disk."
            )
    connection.execute("PRAGMA synchronous=FULL")
    connection.execute("PRAGMA cache_size=-32768")  # KiB
    connection.execute("PRAGMA journal_size_limit=67108864")  # a log that a long reader let grow is cut back to 64 MiB


def _identity(path: str) -> tuple[int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _driver_error(error: BaseException | None) -> sqlite3.Error | None:
    if isinstance(error, DBAPIError):
        return error.orig if isinstance(error.orig, sqlite3.Error) else None
    return error if isinstance(error, sqlite3.Error) else None


def _code(error: sqlite3.Error | None) -> int:
    """SQLite's primary error code; 0 for an error that is not SQLite's."""
    extended: int = getattr(error, "sqlite_errorcode", 0) or 0
    return extended & 0xFF
