"""Streams in SQL: the newest messages of each Flow ID and Stream, oldest trimmed first.

`streams` has one row for each Stream: the number of its last message and the bytes it keeps. The row is what writers
queue on, and the numbers go on when messages are trimmed, so that a position in a Stream never comes to mean another
message. Messages belong to no run and refer to no blob.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from sqlalchemy import Connection, delete, insert, select, update

from dexray.journal.database import Database
from dexray.journal.interface import NewMessage, StoredMessage
from dexray.journal.schema import stream_messages, streams

_COLUMNS = (
    stream_messages.c.seq,
    stream_messages.c.created_at,
    stream_messages.c.source,
    stream_messages.c.payload,
)
_TRIMMED_AT_ONCE = 1_000


def append(connection: Connection, database: Database, batch: Iterable[NewMessage]) -> None:
    by_stream: dict[tuple[str, str], list[NewMessage]] = {}
    for message in batch:
        by_stream.setdefault((message.flow_id, message.stream), []).append(message)
    for key in sorted(by_stream):  # in one order, or two writers could wait for each other
        _append_to(connection, database, key, by_stream[key])


def _append_to(connection: Connection, database: Database, key: tuple[str, str], messages: list[NewMessage]) -> None:
    flow_id, stream = key
    which = (streams.c.flow_id == flow_id) & (streams.c.stream == stream)
    head = select(streams.c.last_seq, streams.c.size).where(which).with_for_update()
    found = connection.execute(head).one_or_none()
    if found is None:
        row = {"flow_id": flow_id, "stream": stream, "last_seq": 0, "size": 0}
        connection.execute(database.insert_if_new(streams), row)
        found = connection.execute(head).one()
    last, size = int(found.last_seq), int(found.size)
    connection.execute(
        insert(stream_messages),
        [
            {
                "flow_id": flow_id,
                "stream": stream,
                "seq": seq,
                "created_at": message.created_at,
                "source": message.source,
                "size": len(message.payload),
                "payload": message.payload,
            }
            for seq, message in enumerate(messages, last + 1)
        ],
    )
    last += len(messages)
    size += sum(len(message.payload) for message in messages)
    size -= _trim(connection, key, last, size - messages[-1].capacity)
    connection.execute(update(streams).where(which).values(last_seq=last, size=size))


def _trim(connection: Connection, key: tuple[str, str], last: int, excess: int) -> int:
    """Deletes the oldest messages, for as many bytes as are too many; the last one always stays. Returns the bytes."""
    freed = 0
    table = stream_messages.c
    of_stream = (table.flow_id == key[0]) & (table.stream == key[1])
    while freed < excess:
        oldest = connection.execute(
            select(table.seq, table.size).where(of_stream, table.seq < last).order_by(table.seq).limit(_TRIMMED_AT_ONCE)
        ).all()
        cut = 0
        for seq, size in oldest:
            if freed >= excess:
                break
            freed += int(size)
            cut = seq
        connection.execute(delete(stream_messages).where(of_stream, table.seq <= cut))
        if len(oldest) < _TRIMMED_AT_ONCE:
            break
    return freed


def read(
    connection: Connection, flow_id: str, stream: str, after_seq: int, limit: int, max_bytes: int
) -> list[StoredMessage]:
    table = stream_messages.c
    if after_seq:
        known = select(streams.c.last_seq).where(streams.c.flow_id == flow_id, streams.c.stream == stream)
        if after_seq > (connection.execute(known).scalar_one_or_none() or 0):
            after_seq = 0  # of an older life of this Stream, which is gone as a whole
    page = select(*_COLUMNS).where(table.flow_id == flow_id, table.stream == stream, table.seq > after_seq)
    found: list[StoredMessage] = []
    size = 0
    rows = connection.execute(page.order_by(table.seq).limit(max(0, limit)))
    for row in rows:
        size += len(row.payload)
        if found and size > max_bytes:
            break
        found.append(_message(row))
    rows.close()
    return found


def page_before(
    connection: Connection, flow_id: str, stream: str, before_seq: int, limit: int
) -> Sequence[StoredMessage]:
    table = stream_messages.c
    page = select(*_COLUMNS).where(table.flow_id == flow_id, table.stream == stream)
    if before_seq:
        page = page.where(table.seq < before_seq)
    rows = connection.execute(page.order_by(table.seq.desc()).limit(max(0, limit)))
    return [_message(row) for row in rows]


def _message(row: Any) -> StoredMessage:
    return StoredMessage(int(row.seq), float(row.created_at), row.source, bytes(row.payload))
