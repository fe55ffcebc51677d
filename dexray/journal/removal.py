"""Closed runs taken away again, in small transactions, and blobs that no run refers to.

What has to hold, at every moment and after every crash:

1. A run is whole for a reader, or gone. All readers come to a run by its row in `runs`, and what they may find without
   it (answers to requests, its place as the current run) goes in the transaction that deletes this row. Its records may
   be a million: they are left behind, on the list `removed_runs`, and cleared in small batches.
2. No blob goes that a run refers to. References are written with the record that needs them; those of a removed run
   count until they are cleared. A blob is deleted in one transaction with the look that finds no reference to it, and
   nobody can add one in between: `Database.hold` lets those who write references share a lock that the one who deletes
   has alone.
3. Nothing is left for ever. The list of removed runs outlives a crash, and blobs without references are looked for, not
   remembered.

A table with rows of runs stands in one of the lists below; `tests/journal/test_journal_removal.py` holds them against
the schema.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    Select,
    Table,
    and_,
    delete,
    exists,
    func,
    not_,
    select,
    union_all,
    update,
)

from dexray.journal.appending import BLOBS
from dexray.journal.blobs import free_places
from dexray.journal.database import Database
from dexray.journal.interface import RunRow
from dexray.journal.schema import (
    attribute_index,
    blob_refs,
    blobs,
    checkpoints,
    events,
    removed_runs,
    requests,
    runs,
    store_marks,
    stream_messages,
    streams,
)

AT_ONCE: tuple[Table, ...] = (requests, attribute_index, store_marks)
"""Tables that are read without a look at the run's row. The rows of a run there are few."""

LATER: tuple[Table, ...] = (events, checkpoints, blob_refs)
"""Tables whose rows nobody finds without the run's row."""

OF_FLOW_ID: tuple[Table, ...] = (stream_messages, streams)
"""Tables whose rows go with the last run of their Flow ID."""

MESSAGES_AT_ONCE = 1_000
BYTES_AT_ONCE = 16 * 1024 * 1024  # of blobs that are freed together


def thin_streams(connection: Connection, run_id: str) -> bool:
    """Trims the Streams that go with a run, oldest messages first, so that few are left to go with it. True when it
    has to be done again."""
    flow_id = _removable(connection, run_id)
    if flow_id is None or _has_another_run(connection, flow_id, run_id):
        return False
    message = stream_messages.c
    per_stream = select(message.stream, func.min(message.seq), func.count()).where(message.flow_id == flow_id)
    for stream, oldest, count in connection.execute(per_stream.group_by(message.stream)):
        if count > MESSAGES_AT_ONCE:
            cut = and_(message.flow_id == flow_id, message.stream == stream, message.seq < oldest + MESSAGES_AT_ONCE)
            freed = connection.execute(select(func.coalesce(func.sum(message.size), 0)).where(cut)).scalar_one()
            connection.execute(delete(stream_messages).where(cut))
            head = and_(streams.c.flow_id == flow_id, streams.c.stream == stream)
            connection.execute(update(streams).where(head).values(size=streams.c.size - freed))
            return True
    return False


def remove(connection: Connection, database: Database, run_id: str) -> bool:
    flow_id = _removable(connection, run_id)
    if flow_id is None:
        return False
    connection.execute(delete(runs).where(runs.c.run_id == run_id))
    connection.execute(database.insert_if_new(removed_runs), {"run_id": run_id})
    for table in AT_ONCE:
        of_run = table.c.run_id == run_id
        if "flow_id" in table.c:  # the beginning of its key
            of_run = and_(table.c.flow_id == flow_id, of_run)
        connection.execute(delete(table).where(of_run))
    _promote(connection, flow_id)
    if not _has_another_run(connection, flow_id, run_id):
        for table in OF_FLOW_ID:
            connection.execute(delete(table).where(table.c.flow_id == flow_id))
    return True


def _removable(connection: Connection, run_id: str) -> str | None:
    """The Flow ID of a run that is there and closed; it stays so until the transaction ends."""
    wanted = select(runs.c.flow_id).where(runs.c.run_id == run_id, runs.c.closed_at.is_not(None))
    found: str | None = connection.execute(wanted.with_for_update()).scalar_one_or_none()
    return found


def _has_another_run(connection: Connection, flow_id: str, run_id: str) -> bool:
    return any(row.run_id != run_id for row in connection.execute(runs_of(flow_id)))


def runs_of(flow_id: str) -> Select[Any]:
    """The runs of a Flow ID, newest start first. Asked for in two parts, since each has an index."""
    columns = [runs.c[name] for name in RunRow.__slots__]
    of_flow = select(*columns).where(runs.c.flow_id == flow_id)
    both = union_all(of_flow.where(runs.c.is_current), of_flow.where(not_(runs.c.is_current))).subquery()
    return select(both).order_by(both.c.started_at.desc(), both.c.run_id.desc())


def _promote(connection: Connection, flow_id: str) -> None:
    """The newest run that is left is the current one of its Flow ID, if none is."""
    left = connection.execute(runs_of(flow_id)).all()
    if left and not any(row.is_current for row in left):
        connection.execute(update(runs).where(runs.c.run_id == left[0].run_id).values(is_current=True))


def has_leftovers(connection: Connection) -> bool:
    return connection.execute(select(removed_runs.c.run_id).limit(1)).first() is not None


def clear(connection: Connection, limit: int) -> bool:
    """One batch of what removed runs have left behind; False when there was nothing."""
    run_id = connection.execute(select(removed_runs.c.run_id).limit(1)).scalar_one_or_none()
    if run_id is None:
        return False
    for table in LATER:
        if _delete_some(connection, table, table.c.run_id == run_id, limit):
            return True
    connection.execute(delete(removed_runs).where(removed_runs.c.run_id == run_id))
    return True


def _delete_some(connection: Connection, table: Table, of_run: ColumnElement[bool], limit: int) -> bool:
    """The next rows of a run in the order of the second column of the key; False when there were none."""
    key = [column for column in table.primary_key if column.name != "run_id"]
    if not key:
        return connection.execute(delete(table).where(of_run)).rowcount > 0
    order = key[0]
    some = select(order).where(of_run).order_by(order).limit(max(1, limit))
    found = connection.execute(some).scalars().all()
    if not found:
        return False
    connection.execute(delete(table).where(of_run, order <= found[-1]))
    return True


def unused_blobs(connection: Connection, after: str, limit: int) -> tuple[list[str], str]:
    """Which of the next blobs no run seems to refer to; and where to go on, "" at the end."""
    limit = max(1, limit)
    page = select(blobs.c.hash, blobs.c.size, _is_used()).where(blobs.c.hash > after).order_by(blobs.c.hash)
    found = connection.execute(page.limit(limit)).all()
    unused: list[str] = []
    size = 0
    for digest, bytes_of_it, used in found:
        if used:
            continue
        size += bytes_of_it
        if unused and size > BYTES_AT_ONCE:
            return unused, unused[-1]
        unused.append(digest)
    return unused, found[-1][0] if len(found) == limit else ""


def free(connection: Connection, database: Database, unused: list[str]) -> int:
    """Deletes those of the blobs that no run refers to now."""
    database.hold(connection, BLOBS, shared=False)
    statement = delete(blobs).where(database.among(blobs.c.hash), ~_is_used()).returning(blobs.c.hash)
    freed = list(connection.execute(statement, {"ids": database.ids(unused)}).scalars())
    if freed:
        free_places(connection, database, freed)
    return len(freed)


def _is_used() -> ColumnElement[bool]:
    return exists(select(blob_refs.c.run_id).where(blob_refs.c.hash == blobs.c.hash))
