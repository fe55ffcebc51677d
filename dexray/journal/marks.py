"""Marks in SQL: rows of users' own tables that are behind.

A mark is written with the record that made the row fall behind, in the same transaction, and says what the row is to
become. Who has brought the row up to that clears it, unless a later record has marked it again meanwhile.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, bindparam, delete, select

from dexray.journal.database import Database
from dexray.journal.interface import StoredMark
from dexray.journal.schema import store_marks

_COLUMNS = tuple(store_marks.c[name] for name in StoredMark.__slots__)


def put(database: Database) -> Any:
    """The statement for one mark. What is there already keeps its `marked_at`: the row is behind since then."""
    statement = database.insert(store_marks)
    changed = {name: statement.excluded[name] for name in ("run_id", "seq", "image")}
    return statement.on_conflict_do_update(index_elements=list(store_marks.primary_key), set_=changed)


def find(connection: Connection, database: Database, store: str, flow_ids: Sequence[str]) -> list[StoredMark]:
    wanted = select(*_COLUMNS).where(store_marks.c.store == store, database.among(store_marks.c.flow_id))
    return [_mark(row) for row in connection.execute(wanted, {"ids": database.ids(flow_ids)})]


def page(connection: Connection, store: str, after_flow_id: str, limit: int) -> list[tuple[str, float]]:
    table = store_marks.c
    statement = select(table.flow_id, table.marked_at).where(table.store == store, table.flow_id > after_flow_id)
    rows = connection.execute(statement.order_by(table.flow_id).limit(limit))
    return [(row.flow_id, float(row.marked_at)) for row in rows]


def clear(connection: Connection, cleared: Sequence[StoredMark]) -> None:
    which = ("store", "flow_id", "run_id", "seq")
    statement = delete(store_marks).where(*(store_marks.c[name] == bindparam(f"its_{name}") for name in which))
    in_order = sorted(cleared, key=lambda mark: (mark.store, mark.flow_id))
    connection.execute(statement, [{f"its_{name}": getattr(mark, name) for name in which} for mark in in_order])


def _mark(row: Any) -> StoredMark:
    return StoredMark(row.store, row.flow_id, row.run_id, int(row.seq), float(row.marked_at), bytes(row.image))
