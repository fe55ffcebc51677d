"""Payloads for people: JSON data, for `describe`, histories, the command line and pages.

What JSON has no form for is an object with one tag: {"$decimal": "1.20"}, {"$bytes": "aGk="}, {"$datetime":
"2026-05-01T10:00:00+00:00"}. Tuples are arrays, objects are objects, an Enum member is its value.
`CodecRegistry.decode_json` takes all these forms back. Arrays of numpy and Arrow tables are summed up, and
a value kept apart is shown by its reference.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Callable
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, Final
from uuid import UUID

from dex.values import _arrow, _numpy
from dex.values._format import (
    ARROW,
    ENUM,
    FROZENSET,
    MAP,
    NDARRAY,
    NUMPY_SCALAR,
    OBJECT,
    SET,
    TUPLE,
    Marker,
    Packing,
    Tree,
)
from dex.values._refusal import Refused, bad_data, failure
from dex.values._scalars import NATIVE_PATH, READERS, datetime_from_text, zoned_text
from dex.values.blobs import reference_of, referenced_size

ARRAY_ITEMS: Final = 8  # of a numpy array, at most

_packing: Final = Packing(READERS)


def to_readable(payload: bytes) -> Any:
    """JSON data that says what is in a payload. ValueMappingError when it is damaged."""
    name = reference_of(payload)
    if name is not None:
        return {"$blob": name, "size": referenced_size(payload)}
    try:
        return _readable(_packing.unpack(payload))
    except Exception as error:
        raise failure("decode", "payload", error) from error


def moment_in(readable: Any) -> datetime | None:
    """The date and time that a readable value is, a date being its midnight; None for anything else."""
    match readable:
        case {"$datetime": str(text)}:
            return datetime_from_text(text)
        case {"$date": str(text)}:
            return datetime.fromisoformat(text)
    return None


def _readable(tree: Tree) -> Any:
    kind = type(tree)
    if kind in (type(None), bool, int, str):
        return tree
    if kind is dict:
        if not set(map(type, tree)) <= {str}:
            raise Refused("a dict with keys that are no text")
        return {key: _readable(value) for key, value in tree.items()}
    if kind is list:
        if tree and type(tree[0]) is Marker:
            return _marked(tree[0], tree[1:])
        return [_readable(item) for item in tree]
    write = _SCALARS.get(kind)
    if write is None:
        raise bad_data("a value", tree)
    return write(tree)


def _marked(marker: Marker, parts: list[Tree]) -> Any:
    if marker is TUPLE:
        return [_readable(item) for item in parts]
    if marker is SET or marker is FROZENSET:
        return {f"${marker.name}": [_readable(item) for item in parts]}
    if marker is MAP:
        keys = [_readable(key) for key in parts[::2]]
        values = [_readable(value) for value in parts[1::2]]
        if all(type(key) is str for key in keys):
            return dict(zip(keys, values, strict=True))
        return {"$map": [[key, value] for key, value in zip(keys, values, strict=True)]}
    if marker is OBJECT and len(parts) == 2:
        return _readable(parts[1])
    if marker is ENUM and len(parts) == 3:
        return _readable(parts[2] if parts[2] is not None else parts[1])
    if marker is NDARRAY and len(parts) == 3:
        return {"$ndarray": _array(marker, parts)}
    if marker is NUMPY_SCALAR and len(parts) == 2:
        value = _numpy.read_scalar([marker, *parts]).item() if _numpy.loaded() else "?"
        shown = _SCALARS[type(value)](value) if type(value) in _SCALARS else value
        return {"$numpy": {"dtype": parts[0], "value": shown if type(shown) in _JSON else str(shown)}}
    if marker is ARROW and len(parts) == 2:
        return {"$arrow": _table(marker, parts)}
    raise Refused(f"a {marker} of {len(parts)} parts")


def _table(marker: Marker, parts: list[Tree]) -> dict[str, Any]:
    summary: dict[str, Any] = {"kind": parts[0], "bytes": len(parts[1])}
    if _arrow.loaded():
        table = _arrow.read([marker, *parts])
        summary |= {"rows": table.num_rows, "columns": {field.name: str(field.type) for field in table.schema}}
    return summary


def _array(marker: Marker, parts: list[Tree]) -> dict[str, Any]:
    dtype, shape, _ = parts
    summary: dict[str, Any] = {"dtype": dtype, "shape": shape}
    if _numpy.loaded():
        items = _numpy.read_array([marker, *parts]).reshape(-1)[:ARRAY_ITEMS].tolist()
        summary["items"] = [
            _float(item) if type(item) is float else item if type(item) in _JSON else str(item) for item in items
        ]
    return summary


def _float(value: float) -> Any:
    if math.isfinite(value):
        return value
    return {"$float": "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"}


_JSON: Final = (type(None), bool, int, float, str, dict)

_SCALARS: Final[dict[type, Callable[[Any], Any]]] = {
    float: _float,
    bytes: lambda value: {"$bytes": base64.b64encode(value).decode()},
    Decimal: lambda value: {"$decimal": str(value)},
    datetime: lambda value: {"$datetime": zoned_text(value)},
    date: lambda value: {"$date": value.isoformat()},
    time: lambda value: {"$time": value.isoformat()},
    timedelta: lambda value: {"$timedelta": value.total_seconds()},
    UUID: lambda value: {"$uuid": str(value)},
    NATIVE_PATH: lambda value: {"$path": str(value).encode("utf-8", "backslashreplace").decode()},
}
