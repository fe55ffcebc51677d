"""The seam between databases: transactions, and the few words that databases say differently.

Everything else of the journal is SQLAlchemy Core that means the same everywhere. A new database brings a subclass of
`Database`, and the conformance suite tells when it is done.

Statements of the hot path are compiled once (`Prepared`) and go straight to the driver, which saves a third of a
small commit. They take tuples, so the driver of every database is opened with a positional parameter style ("qmark"
or "format"), and what goes wrong comes as the driver's own exception: a `Database` translates both kinds. Work that
speaks in `Prepared` alone may be sent to a server in one go, without waiting for the answer to each statement.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from sqlalchemy import ColumnElement, Connection, Dialect, Executable, FromClause, Table
from sqlalchemy.sql import ClauseElement

T = TypeVar("T")


class Prepared:
    """A statement compiled for a dialect, with its parameters as tuples in the order of `parameters`."""

    __slots__ = ("_sql",)

    def __init__(self, statement: ClauseElement, dialect: Dialect, parameters: Sequence[str]) -> None:
        compiled = statement.compile(dialect=dialect)
        order = list(getattr(compiled, "positiontup", None) or ())
        if order != list(parameters):
            raise ValueError(f"The statement takes {order}, not {list(parameters)}: {compiled}")
        self._sql = str(compiled)

    def rows(self, connection: Connection, parameters: tuple[Any, ...]) -> Sequence[Any]:
        cursor = connection.connection.cursor()
        try:
            cursor.execute(self._sql, parameters)
            return cursor.fetchall()
        finally:
            cursor.close()

    def many(self, connection: Connection, parameters: list[tuple[Any, ...]]) -> None:
        """Executes once per tuple; not at all for none."""
        if parameters:
            cursor = connection.connection.cursor()
            try:
                cursor.executemany(self._sql, parameters)
            finally:
                cursor.close()


class Database(ABC):
    """One database of one journal, used by one thread at a time."""

    @property
    @abstractmethod
    def dialect(self) -> Dialect: ...

    def is_duplicate(self, error: Exception) -> bool:
        """A row was inserted whose key is there."""
        return isinstance(error, self.dialect.loaded_dbapi.IntegrityError)

    @abstractmethod
    def write(self, work: Callable[[Connection], T], *, prepared: bool = False) -> T:
        """Runs `work` in a transaction in which the rows that it locks can't change before it commits, and after every
        earlier transaction of this object has ended, also one whose outcome nobody heard of.

        `work` may be run several times, each time in a transaction of its own, the ones before rolled back. Raises
        `JournalUnavailable` with the cause chained; whether the transaction happened is then unknown. prepared: all
        statements of `work` are `Prepared`.
        """

    @abstractmethod
    def read(self, work: Callable[[Connection], T], *, single: bool = False) -> T:
        """Runs `work` on one snapshot of the database; otherwise like `write`. single: it asks one question only."""

    @abstractmethod
    def migrate(self, work: Callable[[Connection], T]) -> T:
        """As `write`, for a change of the tables: it may take long, and nobody else changes them meanwhile."""

    @abstractmethod
    def among(self, column: ColumnElement[str]) -> ColumnElement[bool]:
        """ "The column is one of `ids`", however many they are; the parameter's value is made by `ids`."""

    @abstractmethod
    def ids(self, values: Iterable[str]) -> Any: ...

    @abstractmethod
    def row_by_row(
        self, few: FromClause, many: Table, on: ColumnElement[bool], order: ColumnElement[Any]
    ) -> tuple[FromClause, FromClause]:
        """A join for which `many` is entered by its index for each row of `few`, whatever the database has heard of
        their sizes; and `many` as it is named in it. order: that of the index."""

    @abstractmethod
    def insert(self, table: Table) -> Any:
        """The database's own INSERT, which has `on_conflict_do_nothing` and `on_conflict_do_update`."""

    def insert_if_new(self, table: Table) -> Executable:
        """An INSERT of whole rows that leaves rows alone whose primary key is there."""
        statement: Executable = self.insert(table).on_conflict_do_nothing(index_elements=list(table.primary_key))
        return statement

    def upsert(self, table: Table) -> Executable:
        """An INSERT of whole rows that overwrites rows whose primary key is there."""
        statement = self.insert(table)
        values = {column.name: statement.excluded[column.name] for column in table.columns if not column.primary_key}
        upsert: Executable = statement.on_conflict_do_update(index_elements=list(table.primary_key), set_=values)
        return upsert

    @abstractmethod
    def hold(self, connection: Connection, name: str, *, shared: bool) -> None:
        """Takes a lock of this name until the transaction ends; several transactions may share one.

        There is nothing to do for a database whose write transactions run one after another anyway.
        """

    @abstractmethod
    def close(self) -> None: ...
