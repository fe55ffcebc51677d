"""Rows of the tables as values, and positions in a list of runs as page tokens."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from sqlalchemy import Select, and_, not_

from dexray.journal import schema
from dexray.journal.interface import Record, RunRow

# In the order of RunRow's fields.
RUN_COLUMNS = tuple(schema.runs.c[name] for name in RunRow.__slots__)
RECORD_COLUMNS = (schema.events.c.seq, schema.events.c.at, schema.events.c.body)


def run_row(row: Sequence[Any]) -> RunRow:
    return RunRow(*row)


def record(row: Sequence[Any]) -> Record:
    return Record(*row)


class Position(NamedTuple):
    """The last run of a page in the order of `list_runs`: newest start first, then by run_id."""

    started_at: float
    run_id: str


def page_of(statement: Select[Any], page_size: int, page_token: str) -> Select[Any]:
    """The page of a selection of runs, newest start first, with one row more when there is a next page. Raises
    ValueError for a token that isn't one."""
    runs = schema.runs
    if page_token:
        last = position_of(page_token)
        # In this form, not as "earlier, or at the same time and ...", the index is entered where the page begins.
        passed = and_(runs.c.started_at == last.started_at, runs.c.run_id <= last.run_id)
        statement = statement.where(runs.c.started_at <= last.started_at, not_(passed))
    return statement.order_by(runs.c.started_at.desc(), runs.c.run_id).limit(page_size + 1)


def cut(found: list[RunRow], page_size: int) -> tuple[list[RunRow], str]:
    """The rows of a `page_of`, and the token of the next page."""
    if len(found) <= page_size:
        return found, ""
    found = found[:page_size]
    return found, page_token(Position(found[-1].started_at, found[-1].run_id))


def page_token(position: Position) -> str:
    text = json.dumps([position.started_at, position.run_id], separators=(",", ":"))
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


def position_of(token: str) -> Position:
    """Raises ValueError for a text that `page_token` did not make."""
    try:
        padded = token.encode("ascii") + b"=" * (-len(token) % 4)
        started_at, run_id = json.loads(base64.b64decode(padded, altchars=b"-_", validate=True))
        if type(started_at) in (float, int) and math.isfinite(started_at) and type(run_id) is str:
            return Position(float(started_at), run_id)
    except (ValueError, TypeError, OverflowError):
        pass  # told below, in the words of whoever passed the token
    raise ValueError(f"{token!r} is not a page token: pass the token of the page before, or '' for the first page.")
