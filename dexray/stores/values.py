"""A value of an Attribute in the form that a column takes.

    the value                          the columns that take it
    --------------------------------   ---------------------------------------------------------------------------------
    text                               texts, native enumerations that have it
    int                                whole numbers that are wide enough, NUMERIC, FLOAT, texts
    bool                               BOOLEAN, whole numbers (0 and 1), texts ("true", "false")
    float, Decimal                     FLOAT, NUMERIC, texts
    datetime, date                     TIMESTAMP (a date is its midnight), texts. Without a time zone: in UTC
    date; time; timedelta              DATE; TIME; INTERVAL; texts
    UUID                               UUID, texts
    bytes                              binary columns
    lists, dicts, objects              JSON, texts (as JSON), arrays of PostgreSQL (lists)

JSON columns take everything but bytes; what JSON has no form for is a text there. What a column does not take is a
`Misfit`.
"""

from __future__ import annotations

import base64
import json
import math
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

from sqlalchemy import types
from sqlalchemy.dialects import postgresql

from dex.values import to_readable
from dex.values.readable import moment_in


class Misfit(Exception):
    """The column does not take the value; says why."""


def read(payload: bytes) -> Any:
    """What is in a payload: a plain value, or lists and dicts of what `to_readable` makes."""
    value = to_readable(payload)
    return _untagged(value) if isinstance(value, dict) else value


def fit(value: Any, kind: types.TypeEngine[Any], dialect: str) -> Any:
    """The value for a column of this type. Raises Misfit."""
    if isinstance(kind, types.JSON):
        return jsonable(value)
    if isinstance(kind, postgresql.ARRAY):
        if not isinstance(value, list):
            raise _misfit(value, "an array")
        return [fit(item, kind.item_type, dialect) for item in value]
    for types_of_column, fitted in _FITS:
        if isinstance(kind, types_of_column):
            return fitted(value, kind, dialect)
    if isinstance(value, bytes):
        return value
    if dialect == "sqlite" and isinstance(value, int | float):  # a column without a type keeps what it is given
        return value
    return as_text(value)


def jsonable(value: Any) -> Any:
    """JSON data without tags."""
    if isinstance(value, dict):
        plain = _untagged(value)
        if plain is not value:
            return jsonable(plain)
        return {key: jsonable(item) for key, item in value.items()}
    if isinstance(value, list):
        return [jsonable(item) for item in value]
    if isinstance(value, str):
        return _storable(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    return as_text(value)


def as_text(value: Any) -> str:
    if isinstance(value, str):
        return _storable(value)
    if isinstance(value, bytes):
        raise Misfit("bytes are no text")
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    if isinstance(value, Decimal | UUID | timedelta):
        return str(value)
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return json.dumps(jsonable(value), ensure_ascii=False)


def _untagged(value: dict[str, Any]) -> Any:
    """The value that an object with one tag stands for; any other dict as it is."""
    if len(value) == 1 or "$blob" in value:
        ((tag, content), *_) = value.items()
        match tag:
            case "$decimal":
                return Decimal(content)
            case "$bytes":
                return base64.b64decode(content)
            case "$datetime" | "$date":
                moment = moment_in(value)
                assert moment is not None
                return moment if tag == "$datetime" else moment.date()
            case "$time":
                return time.fromisoformat(content)
            case "$timedelta":
                return timedelta(seconds=content)
            case "$uuid":
                return UUID(content)
            case "$path":
                return content
            case "$float":
                return float(content)
            case "$set" | "$frozenset" | "$map":
                return content
            case "$numpy":
                inner = content["value"]
                return _untagged(inner) if isinstance(inner, dict) else inner
            case "$ndarray" | "$arrow":
                raise Misfit("arrays of numpy and tables of Arrow have no form in a column")
            case "$blob":
                raise Misfit("its value is not there any more")
    return value


def _storable(text: str) -> str:
    if "\0" in text:
        raise Misfit("a text with a NUL character")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise Misfit("a text with half a surrogate pair") from error
    return text


def _misfit(value: Any, wanted: str) -> Misfit:
    return Misfit(f"its column takes {wanted}, not {type(value).__name__}")


def _boolean(value: Any, kind: types.TypeEngine[Any], dialect: str) -> Any:
    if not isinstance(value, bool):
        raise _misfit(value, "bool")
    return value


def _integer(value: Any, kind: types.TypeEngine[Any], dialect: str) -> Any:
    if not isinstance(value, int):
        raise _misfit(value, "int")
    bits = 64
    if dialect != "sqlite" and not isinstance(kind, types.BigInteger):
        bits = 16 if isinstance(kind, types.SmallInteger) else 32
    if not -(1 << (bits - 1)) <= value < 1 << (bits - 1):
        raise Misfit(f"the number needs more than the {bits} bits of its column")
    return int(value)


def _number(value: Any, kind: types.TypeEngine[Any], dialect: str) -> Any:
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
        raise _misfit(value, "a number")
    if dialect == "sqlite" or isinstance(kind, types.Float):
        return float(value)
    return value if isinstance(value, Decimal) else Decimal(str(value))


def _moment(value: Any, kind: types.TypeEngine[Any], dialect: str) -> Any:
    if not isinstance(value, date):
        raise _misfit(value, "datetime")
    if not isinstance(value, datetime):
        value = datetime(value.year, value.month, value.day)
    if getattr(kind, "timezone", False):
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value
    return value if value.tzinfo is None else value.astimezone(UTC).replace(tzinfo=None)


def _date(value: Any, kind: types.TypeEngine[Any], dialect: str) -> Any:
    if isinstance(value, datetime) or not isinstance(value, date):
        raise _misfit(value, "date")
    return value


def _time(value: Any, kind: types.TypeEngine[Any], dialect: str) -> Any:
    if not isinstance(value, time):
        raise _misfit(value, "time")
    return value


def _interval(value: Any, kind: types.TypeEngine[Any], dialect: str) -> Any:
    if not isinstance(value, timedelta):
        raise _misfit(value, "timedelta")
    return value


def _bytes(value: Any, kind: types.TypeEngine[Any], dialect: str) -> Any:
    if not isinstance(value, bytes):
        raise _misfit(value, "bytes")
    return value


def _uuid(value: Any, kind: types.TypeEngine[Any], dialect: str) -> Any:
    try:
        return value if isinstance(value, UUID) else UUID(value)
    except (ValueError, TypeError, AttributeError) as error:
        raise _misfit(value, "UUID") from error


def _enumerated(value: Any, kind: types.TypeEngine[Any], dialect: str) -> Any:
    if not isinstance(value, str) or value not in getattr(kind, "enums", ()):
        raise Misfit("the text is none of the values of its column")
    return value


def _string(value: Any, kind: types.TypeEngine[Any], dialect: str) -> Any:
    text = as_text(value)
    length = getattr(kind, "length", None)
    if dialect != "sqlite" and length is not None and len(text) > length:  # SQLite does not look at it
        raise Misfit(f"the text has more than the {length} characters of its column")
    return text


_FITS: tuple[tuple[Any, Any], ...] = (
    (types.Boolean, _boolean),
    (types.Integer, _integer),
    (types.Numeric, _number),
    (types.DateTime, _moment),
    (types.Date, _date),
    (types.Time, _time),
    ((types.Interval, postgresql.INTERVAL), _interval),
    (types.LargeBinary, _bytes),
    (types.Uuid, _uuid),
    (types.Enum, _enumerated),  # before String, of which it is one
    (types.String, _string),
)
