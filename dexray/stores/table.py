"""The table of one store: what its database says of it, and rows written into it."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from sqlalchemy import Column, Connection, MetaData, Table, types

from dexray.settings import AttributeStore
from dexray.stores.databases import RowsRefused, StoreAway, StoreDatabase, open_database, words
from dexray.stores.values import Misfit, fit, read

logger = logging.getLogger("dexray.stores")

Image = Mapping[str, "bytes | Mapping[str, bytes] | None"]
"""What a row is to become, by Attribute: its payload, None when it has no value, and of an AttributeMap the payloads of
its instances."""

REFRESH_SECONDS = 60.0
"""How old the description of a table may be, plus or minus a tenth."""
ATTEMPT_SECONDS = 30.0


class StoreTable:
    """Used by one thread at a time: `begin` locks rows, then `write` writes and commits, or `roll_back` lets go.

    Whichever raises has let go of the locks.
    """

    def __init__(self, store: AttributeStore, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.store = store
        self._clock = clock
        self._database: StoreDatabase | None = None
        self._connection: Connection | None = None
        self._identity: object = None
        self._table: Table | None = None
        self._read_again_at = 0.0
        self._told: set[tuple[str, str]] = set()

    def begin(self, flow_ids: Sequence[str]) -> None:
        """Begins a transaction in which nobody else sends these rows. Raises StoreAway, also when they are locked for
        too long."""
        self.roll_back()
        try:
            if self._database is None:
                self._database = open_database(self.store.url)
            identity = self._database.identity()
            if self._connection is not None and identity != self._identity:
                self._drop()
            if self._connection is None:
                self._connection = self._database.engine.connect()
                self._identity = identity
            self._database.begin(self._connection, flow_ids, ATTEMPT_SECONDS)
        except Exception as error:
            self._drop()
            raise error if isinstance(error, StoreAway) else StoreAway(words(error)) from error

    def write(self, images: Mapping[str, Image]) -> None:
        """Writes the rows of these Flow IDs, all or none, and commits. Raises StoreAway or RowsRefused; whether the
        commit has happened is then unknown."""
        connection, database = self._connection, self._database
        assert connection is not None
        assert database is not None
        try:
            table = self._described(connection)
            for columns, rows in self._rows(table, images, connection.dialect.name).items():
                key, *others = columns
                statement = database.insert(table)
                changed = {name: statement.excluded[name] for name in others}
                connection.execute(statement.on_conflict_do_update(index_elements=[table.c[key]], set_=changed), rows)
            connection.exec_driver_sql("COMMIT")
            connection.commit()
        except StoreAway:
            self._drop()
            raise
        except Exception as error:
            raise self._failed(error) from error

    def roll_back(self) -> None:
        """Lets go of the locks, if there are any; nothing is written."""
        connection = self._connection
        if connection is None:
            return
        try:
            driver: Any = connection.connection.driver_connection
            driver.rollback()
            connection.rollback()
        except Exception:
            self._drop()

    def close(self) -> None:
        self._drop()
        if self._database is not None:
            self._database.engine.dispose()

    # The table --------------------------------------------------------------------------------------------------------

    def _described(self, connection: Connection) -> Table:
        now = self._clock()
        if self._table is None or now >= self._read_again_at:
            schema, _, name = self.store.table.rpartition(".")
            if connection.dialect.name == "sqlite":
                schema, name = "", self.store.table
            table = Table(name, MetaData(), schema=schema or None, autoload_with=connection, resolve_fks=False)
            keys = list(table.primary_key.columns)
            if len(keys) != 1 or not isinstance(keys[0].type, types.String):
                has = ", ".join(f"{column.name} {column.type}" for column in keys) or "none"
                raise StoreAway(
                    f"the primary key of table {self.store.table} is to be one column of texts, for the Flow ID; "
                    f"it has {has}"
                )
            for column in table.columns:
                if isinstance(column.type, types.JSON):
                    column.type.none_as_null = True  # a deleted Attribute is NULL, not the null of JSON
            self._table = table
            self._read_again_at = now + REFRESH_SECONDS * random.uniform(0.9, 1.1)
        return self._table

    def _rows(
        self, table: Table, images: Mapping[str, Image], dialect: str
    ) -> dict[tuple[str, ...], list[dict[str, Any]]]:
        """The rows by the columns that they have, which begin with the key."""
        (key,) = table.primary_key.columns
        rows: dict[tuple[str, ...], list[dict[str, Any]]] = {}
        for flow_id, image in images.items():
            row: dict[str, Any] = {key.name: flow_id}
            for name, content in image.items():
                try:
                    row[name] = _value(table, name, content, dialect)
                except Misfit as misfit:
                    self._left_out(name, flow_id, str(misfit))
                except Exception as error:  # data that no codec has written
                    self._left_out(name, flow_id, f"its value can't be read ({type(error).__name__})")
            if len(row) > 1:
                rows.setdefault(tuple(row), []).append(row)
        return rows

    def _left_out(self, name: str, flow_id: str, why: str) -> None:
        """Told once, not for each of a million Flows."""
        if (name, why) not in self._told and len(self._told) < 1_000:
            self._told.add((name, why))
            logger.warning(
                "Attribute %r of Flow %r is left out of store %r, and so will others be without a word: %s",
                name,
                flow_id,
                self.store.name,
                why,
            )

    # Failures ---------------------------------------------------------------------------------------------------------

    def _failed(self, error: Exception) -> Exception:
        assert self._database is not None
        said = words(error)
        if self._table is None or self._database.is_away(error):
            self._drop()
            return StoreAway(said)
        self.roll_back()
        return RowsRefused(said)

    def _drop(self) -> None:
        """The next attempt begins with a new connection, and looks at the table anew."""
        connection, self._connection = self._connection, None
        self._table = None
        if connection is not None:
            with suppress(Exception):  # it is thrown away because it may be in any state
                connection.invalidate()
                connection.close()


def _value(table: Table, name: str, content: bytes | Mapping[str, bytes] | None, dialect: str) -> Any:
    column: Column[Any] | None = table.columns.get(name)
    if column is None:
        raise Misfit(f"table {table.fullname} has no column of its name")
    if column.primary_key or column.computed is not None or column.identity is not None:
        raise Misfit(f"its column in table {table.fullname} is not for values from outside")
    if content is None or content == {}:
        value = None
    elif isinstance(content, bytes):
        value = read(content)
    else:
        value = {instance: read(payload) for instance, payload in content.items()}
    if value is not None:
        return fit(value, column.type, dialect)
    if not column.nullable:
        raise Misfit(f"its column in table {table.fullname} takes no NULL")
    return None
