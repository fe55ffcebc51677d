"""PostgreSQL as a journal's database.

Why what a writer decided by is still true when it commits, at READ COMMITTED and with row locks alone:

- A batch locks the rows of its runs (`SELECT ... FOR UPDATE`) before it looks at their epochs, and holds them to its
  end. Whoever raises an epoch updates that row: either the batch has committed before, and the new owner's load sees
  it, or the batch waits, reads the row as it then is, and is fenced. No other row decides about fencing, so there is
  nothing that a snapshot would have to protect; SERIALIZABLE would only refuse batches for no reason.
- Rows that are not there yet can't be locked. Two starts of one Flow ID, or two writers of one place in a history,
  meet in a unique index: the second waits for the first, and is told "unique violation" when that has committed. Its
  transaction is rolled back as a whole and begun again, now with the other's rows in sight, and comes to a verdict.
- A connection that was lost leaves a transaction behind that may commit a moment later. The next transaction of the
  same object must not overtake it, or `read_back` would call a record missing that appears afterwards. So every
  writing transaction first takes an advisory lock of its object, which PostgreSQL frees when the transaction has
  ended, and not before it can be seen. Statements have snapshots of their own at READ COMMITTED; the ones that follow
  the lock see all that came before.
- Deadlocks are found by the server; the transaction that it picks is begun again. They are rare: locks are taken in
  the order of their keys.

A connection has one transaction at a time and belongs to one thread, so there is nothing to pool: an engine has two
connections for each FlowActor, of its journal and of its searches, and one for its Directory. A connection that was
lost before COMMIT was sent is replaced and its transaction begun again; when it is lost later, the outcome is unknown
and told so.

Nobody waits forever. The server ends a transaction whose client is frozen or gone, so that its locks don't keep the
next owner out; the client gives up a server that does not answer, and its connection with it. Addresses are looked up
anew at every connect, and a server that is a standby now counts as away: a failover is an outage, not an error.

A batch goes to the server in pipeline mode: one wait for its locks and epochs, one for everything else and COMMIT.
"""

from __future__ import annotations

import os
import random
import socket
import time
import zlib
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext, suppress
from enum import Enum
from typing import Any, TypeVar

import psycopg
from psycopg import errors as pg
from sqlalchemy import (
    ColumnElement,
    Connection,
    Dialect,
    FromClause,
    Table,
    Text,
    any_,
    bindparam,
    create_engine,
    event,
    select,
    true,
)
from sqlalchemy.dialects.postgresql import ARRAY, insert
from sqlalchemy.engine import URL
from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.pool import NullPool

from dexray.journal import schema
from dexray.journal.database import Database
from dexray.journal.deadline import DeadlineConnection
from dexray.journal.interface import JournalRefused, JournalUnavailable
from dexray.settings import masked

T = TypeVar("T")

OLDEST_VERSION = 14
MIGRATION_LOCK = 0x6465787261790001  # any number will do that others are unlikely to use: "dexray", 1

_FIRST_PAUSE = 0.005
_LONGEST_PAUSE = 0.5
_COLLISIONS = 5  # a batch that collides with itself would do so forever

# How a connect fails comes without a code, in the words of the server. Words that are not known here count as an
# outage, which is told with the words and tried again.
_FINAL_WORDS = (
    "authentication failed",
    "no password supplied",
    "no pg_hba.conf entry",
    "permission denied for database",
    "is not permitted to log in",
    '" does not exist',  # a role or a database
    "invalid sslmode",
    "server does not support SSL",
    "certificate",
)


class _Kind(Enum):
    COLLISION = "the transaction met another one and was rolled back: begin again"
    AWAY = "the database does not serve us for now"
    OURS = "a mistake in the program, or a value that the database can't take"


class PostgresDatabase(Database):
    """A PostgreSQL database.

    Durations are seconds: `patience` is how long a call waits for locks of others; `grace` how much longer the client
    waits for a server that says nothing; `silence` how long a client may say nothing in the middle of a transaction,
    before it counts as frozen. `pipelined` is for measurements.
    """

    def __init__(
        self,
        url: URL,
        *,
        patience: float = 30.0,
        grace: float = 5.0,
        silence: float = 10.0,
        pipelined: bool = True,
        oldest_version: int = OLDEST_VERSION,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Connects. Raises `JournalRefused` when this can't be a journal, `JournalUnavailable` when there is no server
        now."""
        self._shown = masked(url.render_as_string(hide_password=True))
        self._patience = patience
        self._grace = grace
        self._silence = silence
        self._pipelined = pipelined and psycopg.Pipeline.is_supported()
        self._sleep = sleep
        self._clock = clock
        self._closed = False
        self._opened = False
        self._committing = False
        self._connection: Connection | None = None
        self._driver: _Connection | None = None  # the driver's side of it, which SQLAlchemy hides when it is lost
        self._lock = random.getrandbits(63)  # of this object's transactions
        self._engine = create_engine(
            url,
            poolclass=NullPool,
            # Transactions are begun and ended here by hand: what goes wrong before COMMIT is not what goes wrong in it.
            isolation_level="AUTOCOMMIT",
            paramstyle="format",
            use_native_hstore=False,
            connect_args=_without(url, _connect_arguments(patience)),
        )
        event.listen(self._engine, "do_connect", self._connect)
        event.listen(self._engine, "connect", self._set_up)
        try:
            self._check_server(oldest_version)
            self.read(schema.version_of)
        except BaseException:
            self.close()
            raise
        self._opened = True

    @property
    def dialect(self) -> Dialect:
        return self._engine.dialect

    def write(self, work: Callable[[Connection], T], *, prepared: bool = False) -> T:
        begin = ("BEGIN ISOLATION LEVEL READ COMMITTED", f"SELECT pg_advisory_xact_lock({self._lock})")
        return self._persist(lambda: self._transact(begin, work, pipelined=prepared and self._pipelined))

    def read(self, work: Callable[[Connection], T], *, single: bool = False) -> T:
        if single:  # a statement has a snapshot of its own
            return self._persist(lambda: work(self._connected()[0]))
        return self._persist(lambda: self._transact(("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY",), work))

    def migrate(self, work: Callable[[Connection], T]) -> T:
        begin = (
            "BEGIN ISOLATION LEVEL READ COMMITTED",
            f"SELECT pg_advisory_xact_lock({MIGRATION_LOCK})",
            "SELECT set_config(name, '0', true) FROM pg_settings "
            "WHERE name IN ('statement_timeout', 'transaction_timeout')",
        )
        return self._persist(lambda: self._transact(begin, work, forever=True), needs_rights=True)

    def among(self, column: ColumnElement[str]) -> ColumnElement[bool]:
        return column == any_(bindparam("ids", type_=ARRAY(Text)))

    def ids(self, values: Iterable[str]) -> Any:
        return list(values)

    def row_by_row(
        self, few: FromClause, many: Table, on: ColumnElement[bool], order: ColumnElement[Any]
    ) -> tuple[FromClause, FromClause]:
        # A plain join becomes a scan of all of `many` while there are no statistics. What has an order of its own is
        # not taken apart by the planner.
        each = select(many).where(on).order_by(order).correlate_except(many).lateral()
        return few.join(each, true()), each

    def insert(self, table: Table) -> Any:
        return insert(table)

    def hold(self, connection: Connection, name: str, *, shared: bool) -> None:
        lock = zlib.crc32(name.encode())
        kind = "pg_advisory_xact_lock_shared" if shared else "pg_advisory_xact_lock"
        # Two numbers: another space than that of the locks with one.
        connection.connection.cursor().execute(f"SELECT {kind}({MIGRATION_LOCK >> 32}, {lock - (1 << 31)})")

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._drop_connection()
            self._engine.dispose()

    # Transactions

    def _transact(
        self,
        begin: Sequence[str],
        work: Callable[[Connection], T],
        *,
        pipelined: bool = False,
        forever: bool = False,
    ) -> T:
        connection, driver = self._connected()
        if forever:
            driver.give_up_at = float("inf")
        with driver.pipeline() if pipelined else nullcontext() as driver.pipe:
            for statement in begin if pipelined else ("; ".join(begin),):
                driver.execute(statement, prepare=False)
            answer = work(connection)
            self._committing = True
            ended = driver.execute("COMMIT", prepare=False)
        driver.pipe = None
        if ended.statusmessage != "COMMIT":
            raise pg.InFailedSqlTransaction(f"the server answered COMMIT with {ended.statusmessage}")
        return answer

    def _persist(self, attempt: Callable[[], T], *, needs_rights: bool = False) -> T:
        if self._closed:
            raise RuntimeError(f"The journal {self._shown} is closed: open another one.")
        give_up_at = self._clock() + self._patience
        pause, collisions, replaced = _FIRST_PAUSE, 0, False
        while True:
            fresh = self._connection is None
            self._committing = False
            try:
                return attempt()
            except (DBAPIError, psycopg.Error) as error:
                cause = _driver_error(error)
                lost = not self._roll_back()
                kind = _kind(cause, lost)
                if kind is _Kind.OURS:
                    raise
                if kind is _Kind.AWAY:
                    self._drop_connection()
                    # A connection may have died long ago. One that was made just now has another reason.
                    if lost and not fresh and not replaced and not self._committing:
                        replaced = True
                        continue
                    if isinstance(cause, pg.InsufficientPrivilege) and (needs_rights or not self._opened):
                        raise JournalRefused(
                            f"{self._shown} lacks a permission ({_words(cause)}): let its user create and use tables "
                            "in its schema, or give a URL with another user."
                        ) from error
                    raise JournalUnavailable(f"{self._shown}: {_words(cause)}") from error
                collisions += 1
                if collisions > _COLLISIONS and isinstance(cause, pg.UniqueViolation):
                    raise
                if self._clock() + pause > give_up_at:
                    raise JournalUnavailable(f"{self._shown}: {_words(cause)}") from error
            except BaseException:
                self._roll_back()
                raise
            self._sleep(pause * random.uniform(0.5, 1.0))
            pause = min(2 * pause, _LONGEST_PAUSE)

    def _roll_back(self) -> bool:
        """Whether the connection is still good. One that can't be rolled back may be in any state, and is dropped."""
        if self._driver is not None and not self._driver.closed:
            self._driver.pipe = None
            with suppress(psycopg.Error):
                self._driver.rollback()
                return True
        self._drop_connection()
        return False

    # Connections

    def _connected(self) -> tuple[Connection, _Connection]:
        if self._connection is None:
            try:
                self._connection = self._engine.connect()
            except (DBAPIError, psycopg.Error) as error:
                raise self._unreachable(_driver_error(error)) from error
            driver = self._connection.connection.driver_connection
            assert isinstance(driver, _Connection)
            self._driver = driver
        assert self._driver is not None
        self._driver.give_up_at = time.monotonic() + self._patience + self._grace
        return self._connection, self._driver

    def _connect(self, dialect: Dialect, record: object, arguments: list[Any], named: dict[str, Any]) -> _Connection:
        driver = _Connection.connect(*arguments, **named)
        driver.give_up_at = time.monotonic() + self._patience + self._grace
        return driver

    def _set_up(self, driver: _Connection, _: object) -> None:
        """Session settings. Not in the startup packet, which poolers refuse to take them from."""
        settings = {
            "lock_timeout": _milliseconds(self._patience),
            "statement_timeout": _milliseconds(2 * (self._patience + self._grace)),
            "idle_in_transaction_session_timeout": _milliseconds(self._silence),
            "client_connection_check_interval": _milliseconds(5.0),
            "tcp_keepalives_idle": "10",
            "tcp_keepalives_interval": "5",
            "tcp_keepalives_count": "3",
            "tcp_user_timeout": _milliseconds(30.0),
        }
        if driver.info.server_version >= 170_000:
            # Older ones do not end the transaction of a client that is frozen while it sends.
            settings["transaction_timeout"] = settings["statement_timeout"]
        names, values = list(settings), list(settings.values())
        driver.execute(
            "SELECT set_config(name, value, false) FROM unnest(%s::text[], %s::text[]) AS given(name, value)",
            (names, values),
        )
        # What is called durable has to be on a disk. Stricter wishes of the server are left alone.
        driver.execute(
            "SELECT set_config('synchronous_commit', 'on', false) WHERE current_setting('synchronous_commit') = 'off'"
        )

    def _check_server(self, oldest_version: int) -> None:
        def ask(connection: Connection) -> tuple[int, str, bool]:
            question = (
                "SELECT current_setting('server_version_num')::int, current_setting('server_encoding'), "
                "pg_is_in_recovery()"
            )
            number, encoding, standby = connection.exec_driver_sql(question).one()
            return number, encoding, standby

        number, encoding, standby = self.read(ask, single=True)
        if number < oldest_version * 10_000:
            raise JournalRefused(
                f"{self._shown} is PostgreSQL {number // 10_000}, and dexray needs {oldest_version} or newer: "
                "upgrade the server, or give the URL of another one."
            )
        if encoding != "UTF8":
            raise JournalRefused(
                f"{self._shown} keeps its texts as {encoding}, which can't hold every Flow ID: "
                "create a database with ENCODING 'UTF8' and give its URL."
            )
        if standby:
            raise JournalUnavailable(
                f"{self._shown} is a standby, which takes no writes: give the URL of the primary, or all hosts with "
                "?target_session_attrs=read-write."
            )

    def _drop_connection(self) -> None:
        connection, self._connection, self._driver = self._connection, None, None
        if connection is not None:
            # It is thrown away because it may be in any state.
            with suppress(SQLAlchemyError, psycopg.Error):
                connection.invalidate()
            with suppress(SQLAlchemyError, psycopg.Error):
                connection.close()

    # Errors

    def _unreachable(self, cause: psycopg.Error | None) -> JournalUnavailable | JournalRefused:
        """What was let in before may be let in again: only the first connect can find out that it never will be."""
        words = _words(cause)
        if not self._opened and (
            (isinstance(cause, psycopg.ProgrammingError) and cause.sqlstate is None)
            or any(final in words for final in _FINAL_WORDS)
        ):
            return JournalRefused(
                f"{self._shown} can't be used: {words}. Check user, password, database and options of the URL "
                "(postgresql://user:password@host:5432/database)."
            )
        return JournalUnavailable(f"{self._shown} can't be reached: {words}")


class _Connection(DeadlineConnection):
    """`pipe` is set in pipeline mode."""

    pipe: psycopg.Pipeline | None = None


class _Cursor(psycopg.Cursor[Any]):
    """In pipeline mode, a question ends with a Sync: only then does the server count a client that says nothing more as
    idle, and end its transaction if need be."""

    def fetchall(self) -> list[Any]:
        connection = self.connection
        if isinstance(connection, _Connection) and connection.pipe is not None:
            connection.pipe.sync()
        return super().fetchall()


def _connect_arguments(patience: float) -> dict[str, Any]:
    return {
        "cursor_factory": _Cursor,
        "connect_timeout": max(2, round(min(10.0, patience))),
        "application_name": f"dexray {socket.gethostname()[:40]} {os.getpid()}",
        "keepalives_idle": 10,
        "keepalives_interval": 5,
        "keepalives_count": 3,
        "tcp_user_timeout": 30_000,
    }


def _without(url: URL, arguments: dict[str, Any]) -> dict[str, Any]:
    """What the URL says counts."""
    return {name: value for name, value in arguments.items() if name not in url.query}


def _milliseconds(seconds: float) -> str:
    return str(max(1, round(seconds * 1000)))


def _driver_error(error: BaseException) -> psycopg.Error | None:
    if isinstance(error, DBAPIError):
        return error.orig if isinstance(error.orig, psycopg.Error) else None
    return error if isinstance(error, psycopg.Error) else None


def _words(cause: psycopg.Error | None) -> str:
    """The driver's words in one line, with no secrets in it."""
    return masked(" ".join(str(cause).split()))


# Codes of PostgreSQL (SQLSTATE) that a later attempt may not meet again; two letters stand for a class.
_COLLISION = ("40001", "40P01", "23505")
_AWAY = (
    "08",  # connections
    "53",  # disk full, out of memory, too many connections
    "57",  # shutdown, starting up, a statement that took too long
    "58",  # errors of the system
    "XX",  # internal errors and damaged data
    "55P03",  # a lock that others held for too long
    "25006",  # a server that takes no writes, after a failover for example
    "25P03",  # we were silent for too long in a transaction
    "25P04",  # our transaction took too long
    "42501",  # no permission
    "28",  # no authorization
)


def _kind(cause: psycopg.Error | None, lost: bool) -> _Kind:
    code = (cause.sqlstate if cause is not None else None) or ""
    if lost or code.startswith(_AWAY):
        return _Kind.AWAY
    return _Kind.COLLISION if code in _COLLISION else _Kind.OURS
