"""Searching runs: conditions as SQL over `runs` and `attribute_index`.

`attribute_index` holds entries, each of a run, under an index key, from a source (an Attribute by its physical name).
An entry has one value, as a word, a whole number or a real one; which of them follows from its IndexType:

    KEYWORD                   the text, as a word
    KEYWORD_ARRAY             one entry a text, behind an entry without a value that says that there is a list
    FULL_TEXT                 one entry a word, behind an entry without a value
    INT, BOOL, DATETIME       a whole number: the number, 0 or 1, microseconds since 1970
    DOUBLE                    the number; NaN is an entry without a value, since it equals nothing and has no order

Entries are written with the record that changes them, so a search sees all that is durable. An entry of another type
than a condition's is of older code, and does not fit.

Two forms of one test. Where few entries fit, the runs are taken from the entries; where many do, the runs are walked
from the newest on, and each is tested. Which is better no database of ours knows by itself (SQLite keeps no statistics
unless told to), so each test looks first whether more than `FEW` entries fit.
"""

from __future__ import annotations

import operator as operators
from collections.abc import Sequence
from typing import Any

from sqlalchemy import ColumnElement, Connection, Select, and_, exists, false, func, not_, or_, select, true

from dexray.journal import rows
from dexray.journal.database import Database
from dexray.journal.interface import FoundRun, IndexEntry
from dexray.journal.schema import attribute_index, is_latest, runs
from dexray.search import ACTIVE_STEP_TYPES, And, Condition, KeyTest, Not, Or, RunTest

FEW = 1000

_ORDERS: dict[str, Any] = {"<": operators.lt, "<=": operators.le, ">": operators.gt, ">=": operators.ge}

_SHOWN = tuple(attribute_index.c[name] for name in IndexEntry.__slots__)


def search(
    connection: Connection,
    database: Database,
    condition: Condition,
    latest_only: bool,
    page_size: int,
    page_token: str,
) -> tuple[list[FoundRun], str]:
    statement = _chosen(select(*rows.RUN_COLUMNS), connection, condition, latest_only)
    statement = rows.page_of(statement, page_size, page_token)
    found = [rows.run_row(row) for row in connection.execute(statement)]
    page, token = rows.cut(found, page_size)
    entries: dict[str, list[IndexEntry]] = {}
    wanted = (
        select(attribute_index.c.run_id, *_SHOWN)
        .where(
            database.among(attribute_index.c.run_id),
            attribute_index.c.position == 0,
            attribute_index.c.key != ACTIVE_STEP_TYPES,
        )
        .order_by(attribute_index.c.run_id, attribute_index.c.key, attribute_index.c.source)
    )
    for run_id, *values in connection.execute(wanted, {"ids": database.ids(row.run_id for row in page)}):
        entries.setdefault(run_id, []).append(IndexEntry(*values))
    return [FoundRun(row, tuple(entries.get(row.run_id, ()))) for row in page], token


def count(connection: Connection, condition: Condition, latest_only: bool) -> int:
    statement = _chosen(select(func.count()).select_from(runs), connection, condition, latest_only)
    return int(connection.execute(statement).scalar_one())


def types_of(connection: Connection, keys: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Looked up by the indexes that values are in, and in `FEW` entries of each."""
    found: dict[str, tuple[str, ...]] = {}
    index = attribute_index
    for key in keys:
        types: set[str] = set()
        for column in (index.c.word, index.c.whole, index.c.real):
            some = select(index.c.type).where(index.c.key == key, column.is_not(None)).limit(FEW)
            types.update(connection.execute(some).scalars())
        if types:
            found[key] = tuple(sorted(types))
    return found


def _chosen(statement: Select[Any], connection: Connection, condition: Condition, latest_only: bool) -> Select[Any]:
    if latest_only:
        statement = statement.where(is_latest)
    return statement.where(_Compiler(connection).sql(condition))


class _Compiler:
    """The SQL of the conditions of one query."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._is_narrow: dict[KeyTest, bool] = {}

    def sql(self, condition: Condition) -> ColumnElement[bool]:
        match condition:
            case And(parts):
                return and_(true(), *map(self.sql, parts))
            case Or(parts):
                return or_(false(), *map(self.sql, parts))
            case Not(part):
                return not_(self.sql(part))
            case RunTest(column, operator, values):
                return _of_run(runs.c[column], operator, values)
        return self._of_key(condition)

    def _of_key(self, test: KeyTest) -> ColumnElement[bool]:
        index = attribute_index
        of_key = and_(index.c.key == test.key, index.c.type == test.type)
        of_run = select(1).select_from(index).where(index.c.run_id == runs.c.run_id, of_key)
        if not test.column:  # of all values of a key there is no index
            return exists(of_run.where(index.c.position == 0))
        column = index.c[test.column]
        fits = and_(of_key, _compared(column, test.operator, test.values))
        if self._finds_few(test, fits):
            return runs.c.run_id.in_(select(index.c.run_id).where(fits))
        if test.operator != "in":  # hidden, or its index would be entered: for each run, all that fits of all runs
            fits = _compared(func.coalesce(column, column), test.operator, test.values)
        return exists(of_run.where(fits))

    def _finds_few(self, test: KeyTest, fits: ColumnElement[bool]) -> bool:
        known = self._is_narrow.get(test)
        if known is None:
            some = select(1).select_from(attribute_index).where(fits).limit(FEW + 1).subquery()
            found = self._connection.execute(select(func.count()).select_from(some)).scalar_one()
            known = self._is_narrow[test] = found <= FEW
        return known


def _of_run(column: ColumnElement[Any], operator: str, values: Sequence[Any]) -> ColumnElement[bool]:
    """True or false also where the column has no value, so that NOT is the opposite."""
    if column is runs.c.flow_id and operator == "in":  # each half has an index
        fits = _compared(column, operator, values)
        return or_(and_(fits, runs.c.is_current), and_(fits, not_(runs.c.is_current)))
    is_there = column.is_not(None)
    if operator == "present":
        return is_there
    compared = _compared(column, operator, values)
    return and_(is_there, compared) if column.key in ("closed_at", "parent") else compared


def _compared(column: ColumnElement[Any], operator: str, values: Sequence[Any]) -> ColumnElement[bool]:
    if operator == "in":
        return column == values[0] if len(values) == 1 else column.in_(values)
    return column.operate(_ORDERS[operator], *values)
