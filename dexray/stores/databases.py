"""The two kinds of databases that a store can be in: how they are opened and locked, and what their errors mean."""

from __future__ import annotations

import hashlib
import os
import sqlite3
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any

from sqlalchemy import BigInteger, Connection, Engine, Table, bindparam, create_engine, event, text
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import DBAPIError, NoSuchTableError
from sqlalchemy.pool import NullPool

from dexray.settings import masked

BUSY_SECONDS = 5.0
"""How long others may keep a SQLite file, or a row, to themselves before we try again later."""


class StoreAway(Exception):
    """The store can't be reached, or is not as it has to be. Says what to do where that can be told."""


class RowsRefused(Exception):
    """The store works and did not take these rows; with several of them, at least one is to blame."""


class StoreDatabase(ABC):
    engine: Engine

    def identity(self) -> object:
        """What a connection is to: when it has changed, a new one is wanted. Raises StoreAway when there is nothing."""
        return None

    @abstractmethod
    def begin(self, connection: Connection, flow_ids: Iterable[str], give_up_after: float) -> None:
        """Begins a transaction, and locks these rows against other senders until it ends. give_up_after: seconds until
        a server that does not answer is given up."""

    @abstractmethod
    def insert(self, table: Table) -> Any: ...

    @abstractmethod
    def is_away(self, error: BaseException) -> bool:
        """It is the store that can't be used, not a row that it does not take."""


def open_database(url: str) -> StoreDatabase:
    parsed = make_url(url)
    if parsed.drivername.startswith("sqlite"):
        return _Sqlite(parsed)
    return _Postgres(parsed.set(drivername="postgresql+psycopg"))


class _Sqlite(StoreDatabase):
    def __init__(self, url: URL) -> None:
        self._path = url.database or ""
        # Transactions are begun by hand: the driver would begin them late, and never as IMMEDIATE.
        self.engine = create_engine(
            url,
            poolclass=NullPool,
            isolation_level="AUTOCOMMIT",
            connect_args={"check_same_thread": False, "timeout": BUSY_SECONDS},
        )

    def identity(self) -> object:
        try:  # SQLite would make an empty file, and would go on with one that was deleted
            found = os.stat(self._path)
        except OSError as error:
            raise StoreAway(f"there is no file {self._path}") from error
        return found.st_dev, found.st_ino

    def begin(self, connection: Connection, flow_ids: Iterable[str], give_up_after: float) -> None:
        connection.exec_driver_sql("BEGIN IMMEDIATE")

    def insert(self, table: Table) -> Any:
        return sqlite.insert(table)

    def is_away(self, error: BaseException) -> bool:
        cause = error.orig if isinstance(error, DBAPIError) else error
        return isinstance(cause, sqlite3.OperationalError) or type(cause) is sqlite3.DatabaseError


# Codes of PostgreSQL (SQLSTATE) that are about the store and not about a row; two letters stand for a class.
_AWAY = (
    "08",  # connections
    "25",  # read-only, or silent for too long in a transaction
    "28",  # no authorization
    "3D",  # no such database
    "3F",  # no such schema
    "42",  # no such table or column, no permission
    "53",  # disk full, out of memory, too many connections
    "57P",  # shutdown, starting up
    "58",  # errors of the system
    "XX",  # internal errors and damaged data
)


class _Postgres(StoreDatabase):
    def __init__(self, url: URL) -> None:
        try:
            from dexray.journal.deadline import DeadlineConnection
        except ImportError as error:
            raise StoreAway(
                f"the driver for PostgreSQL can't be loaded ({error}): pip install 'dexray[postgres]', here and on "
                "every node of the cluster"
            ) from error

        arguments = {"connect_timeout": 10, "application_name": "dexray attribute store", "tcp_user_timeout": 30_000}
        self.engine = create_engine(
            url,
            poolclass=NullPool,
            isolation_level="AUTOCOMMIT",
            connect_args={name: value for name, value in arguments.items() if name not in url.query},
        )

        def connect(_: Any, __: object, given: list[Any], named: dict[str, Any]) -> DeadlineConnection:
            driver = DeadlineConnection.connect(*given, **named)
            driver.autocommit = True
            # What the server does by itself when we, or others, hold things up.
            milliseconds = round(BUSY_SECONDS * 1000)
            driver.execute(
                "SELECT set_config('lock_timeout', %s, false), set_config('statement_timeout', '30s', false), "
                "set_config('idle_in_transaction_session_timeout', '30s', false)",
                (f"{milliseconds}ms",),
            )
            return driver

        event.listen(self.engine, "do_connect", connect)
        self._driver = DeadlineConnection
        self._lock = text("SELECT pg_advisory_xact_lock(key) FROM unnest(:keys) AS given(key)").bindparams(
            bindparam("keys", type_=postgresql.ARRAY(BigInteger))
        )

    def begin(self, connection: Connection, flow_ids: Iterable[str], give_up_after: float) -> None:
        driver = connection.connection.driver_connection
        if isinstance(driver, self._driver):
            driver.give_up_at = time.monotonic() + give_up_after
        connection.exec_driver_sql("BEGIN ISOLATION LEVEL READ COMMITTED")
        # In one order, or two senders could wait for each other.
        connection.execute(self._lock, {"keys": sorted({_key(flow_id) for flow_id in flow_ids})})

    def insert(self, table: Table) -> Any:
        return postgresql.insert(table)

    def is_away(self, error: BaseException) -> bool:
        cause: Any = error.orig if isinstance(error, DBAPIError) else error
        if not hasattr(cause, "sqlstate"):
            return False
        code = cause.sqlstate or ""
        invalidated = isinstance(error, DBAPIError) and error.connection_invalidated
        # Without a code it is the connection, or a value that the driver has no form for.
        return invalidated or code.startswith(_AWAY) or (not code and type(cause).__name__ == "OperationalError")


def _key(flow_id: str) -> int:
    """The number by which PostgreSQL knows the lock of a Flow ID; two Flow IDs that share one only wait in vain."""
    digest = hashlib.sha256(b"dexray attribute store\0" + flow_id.encode()).digest()
    return int.from_bytes(digest[:8], "big", signed=True)


def words(error: BaseException) -> str:
    """What the database said, in one line: without the statement, its values, and secrets."""
    cause = getattr(error, "orig", None) or error
    if isinstance(cause, NoSuchTableError):
        return f"there is no table {cause}"
    lines = str(cause).split("[SQL:")[0].strip().splitlines()
    return masked(lines[0]) if lines else type(cause).__name__
