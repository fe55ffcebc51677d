"""A Stream message on its way from the handler that wrote it to the owner of its Flow."""

from __future__ import annotations

from msgspec import Struct


class StreamWrite(Struct, frozen=True, array_like=True):
    """All that a store needs: it outlives its attempt, and may arrive after it."""

    flow_id: str
    stream: str
    source: str
    capacity: int  # bytes of payloads that the Stream may keep
    payload: bytes
