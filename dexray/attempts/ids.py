"""Message ids: UUIDs of version 7, whose text sorts by time, and within one attempt by the order of publication."""

from __future__ import annotations

import os

_RANDOM_BITS = 62
_COUNTER_LIMIT = 1 << 12


def message_id(now: float, number: int) -> str:
    """The id of the `number`-th message that an attempt publishes; `now` in seconds since the epoch."""
    milliseconds = int(now * 1000) & ((1 << 48) - 1)
    random = int.from_bytes(os.urandom(8), "big") >> (64 - _RANDOM_BITS)
    value = milliseconds << 80 | 0x7 << 76 | (number % _COUNTER_LIMIT) << 64 | 0b10 << 62 | random
    text = f"{value:032x}"
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"
