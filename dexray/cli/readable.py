"""Answers of a service as JSON data with all their fields, and pieces of text for people."""

from __future__ import annotations

import json
import math
from datetime import UTC, datetime
from typing import Any

import msgspec

_TIMES = frozenset({"at", "since", "started_at", "closed_at", "retry_at"})


def data_of(value: Any) -> Any:
    """JSON data: structs as objects with every field, times as ISO text in UTC, no time as null."""
    if isinstance(value, msgspec.Struct):
        return {
            name: iso(getattr(value, name)) if name in _TIMES else data_of(getattr(value, name))
            for name in value.__struct_fields__
        }
    if isinstance(value, dict):
        return {str(key): data_of(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [data_of(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):  # JSON has no form for it
        return str(value)
    return value


def iso(seconds: float | None) -> str | None:
    if not seconds:
        return None
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")


def moment(seconds: float | None) -> str:
    """A time for people, in UTC; empty for none."""
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M:%S}Z" if seconds else ""


def duration(seconds: float) -> str:
    """A length of time in its two largest units."""
    seconds = max(0.0, seconds)
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days} d {hours} h"
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"


def compact(value: Any, limit: int = 160) -> str:
    """A readable value on one line, cut to `limit` characters."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= limit else text[: limit - 1] + "…"
