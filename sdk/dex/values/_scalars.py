"""Values without parts: how each is written, read and given in JSON.

Extension bodies are short texts, so that a database row can still be read by a person. An aware datetime
keeps its wall clock, its fold and its zone: a ZoneInfo by its key, a fixed offset by its microseconds. So it
denotes the same instant, and arithmetic with it means the same as before.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable
from datetime import UTC, date, datetime, time, timedelta, timezone, tzinfo
from decimal import Decimal
from pathlib import Path
from typing import Any, Final, TypeVar
from uuid import UUID
from zoneinfo import ZoneInfo

from dex.values import _format
from dex.values._format import Tree, extension
from dex.values._node import FromJson, Node, Read, Write
from dex.values._refusal import Refused, bad_data, wrong_type
from dex.values.codecs import WireKind

INT64_MIN: Final = -(1 << 63)
INT64_MAX: Final = (1 << 63) - 1
SCALAR_LISTS: Final = frozenset({str, int, float, bool, bytes})

NATIVE_PATH: Final = type(Path())

T = TypeVar("T")


class JsonNumber(float):
    """A number with a fraction in JSON text; keeps its text, so that a Decimal gets all its digits."""

    __slots__ = ("text",)
    text: str

    def __new__(cls, text: str) -> JsonNumber:
        number = super().__new__(cls, text)
        number.text = text
        return number


# Checked as they are, packed as they are ------------------------------------------------------------------------------


def write_int(value: Any) -> Tree:
    if type(value) is not int:
        raise wrong_type("int", value, int)
    if not INT64_MIN <= value <= INT64_MAX:
        raise int_overflow(value)
    return value


def int_overflow(value: int) -> Refused:
    return Refused(
        f"{f'int {value}' if value.bit_length() < 256 else f'an int of {value.bit_length()} bits'} "
        "does not fit into 64 bits (OverflowError): store it as str, bytes or Decimal",
        overflow=True,
    )


def _exact(kind: type) -> Write:
    name = kind.__name__

    def exact(value: Any) -> Tree:
        if type(value) is not kind:
            raise wrong_type(name, value, kind)
        return value

    return exact


def _as_read(kind: type) -> Read:
    name = kind.__name__

    def read(tree: Tree) -> Any:
        if type(tree) is not kind:
            raise bad_data(name, tree)
        return tree

    return read


def _read_none(tree: Tree) -> None:
    if tree is not None:
        raise bad_data("None", tree)


def _write_none(value: Any) -> None:
    if value is not None:
        raise wrong_type("None", value)


def _float_from_json(data: Any) -> float:
    data = untagged(data, "$float")
    if type(data) in (int, float, JsonNumber):
        return float(data)
    if data in ("NaN", "Infinity", "-Infinity"):
        return float(data)
    raise bad_data("a number", data)


def _bytes_from_json(data: Any) -> bytes:
    data = untagged(data, "$bytes")
    if type(data) is not str:
        raise bad_data("bytes as base64 text", data)
    try:
        return base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError) as error:
        raise Refused(f"expected bytes as base64 text: {error}") from None


# With an extension of their own ---------------------------------------------------------------------------------------


def datetime_body(value: datetime) -> bytes:
    return f"{value.fold}|{value.replace(tzinfo=None).isoformat()}{_zone_suffix(value.tzinfo)}".encode()


def read_datetime(body: bytes) -> datetime:
    fold, text, zone = _parted(body)
    return datetime.fromisoformat(text).replace(tzinfo=zone, fold=fold)


def time_body(value: time) -> bytes:
    return f"{value.fold}|{value.replace(tzinfo=None).isoformat()}{_zone_suffix(value.tzinfo)}".encode()


def read_time(body: bytes) -> time:
    fold, text, zone = _parted(body)
    return time.fromisoformat(text).replace(tzinfo=zone, fold=fold)


def _zone_suffix(zone: tzinfo | None) -> str:
    if zone is None:
        return ""
    if zone is UTC:
        return "|Z"
    if type(zone) is ZoneInfo and zone.key is not None:
        return f"|@{zone.key}"
    if type(zone) is timezone:
        # A name is only in the second argument of the constructor: utcoffset and tzname tell all there is.
        offset = zone.utcoffset(None)
        name = zone.tzname(None)
        suffix = "" if name == timezone(offset).tzname(None) else f"~{name}"
        return f"|~{offset // timedelta(microseconds=1)}{suffix}"
    raise Refused(
        f"time zone {zone!r} has no stored form: use zoneinfo.ZoneInfo with a key, or datetime.timezone with an offset"
    )


def _parted(body: bytes) -> tuple[int, str, tzinfo | None]:
    fold, _, rest = body.decode().partition("|")
    text, _, zone = rest.partition("|")
    return int(fold), text, _zone(zone)


def _zone(text: str) -> tzinfo | None:
    if not text:
        return None
    if text == "Z":
        return UTC
    if text[0] == "@":
        return _zone_info(text[1:])
    _, micros, *name = text.split("~", 2)
    return timezone(timedelta(microseconds=int(micros)), *name)


def _zone_info(key: str) -> ZoneInfo:
    try:
        return ZoneInfo(key)
    except Exception as error:
        raise Refused(f"time zone {key!r} is not known on this machine (package tzdata has them all)") from error


def timedelta_body(value: timedelta) -> bytes:
    return str(value // timedelta(microseconds=1)).encode()


def read_timedelta(body: bytes) -> timedelta:
    return timedelta(microseconds=int(body))


EXTENSIONS: Final[dict[type, tuple[int, Callable[[Any], bytes]]]] = {
    Decimal: (_format.DECIMAL, lambda value: str(value).encode()),
    datetime: (_format.DATETIME, datetime_body),
    date: (_format.DATE, lambda value: value.isoformat().encode()),
    time: (_format.TIME, time_body),
    timedelta: (_format.TIMEDELTA, timedelta_body),
    UUID: (_format.UUID, lambda value: value.bytes),
    NATIVE_PATH: (_format.PATH, lambda value: str(value).encode("utf-8", "surrogateescape")),
}

READERS: Final[dict[int, Callable[[bytes], Any]]] = {
    _format.DECIMAL: lambda body: Decimal(body.decode()),
    _format.DATETIME: read_datetime,
    _format.DATE: lambda body: date.fromisoformat(body.decode()),
    _format.TIME: read_time,
    _format.TIMEDELTA: read_timedelta,
    _format.UUID: lambda body: UUID(bytes=body),
    _format.PATH: lambda body: Path(body.decode("utf-8", "surrogateescape")),
}


# JSON -----------------------------------------------------------------------------------------------------------------


def untagged(data: Any, tag: str) -> Any:
    """Takes the readable form `{"$decimal": "1.20"}` as well as the bare text in it."""
    return data[tag] if type(data) is dict and data.keys() == {tag} else data


def _from_text(kind: str, tag: str, build: Callable[[str], T]) -> Callable[[Any], T]:
    def from_json(data: Any) -> T:
        text = untagged(data, tag)
        if type(text) is not str:
            raise bad_data(f"{kind} as text", data)
        try:
            return build(text)
        except Refused:
            raise
        except Exception as error:
            raise Refused(f"expected {kind} as text, got {text[:80]!r}: {error}") from None

    return from_json


def datetime_from_text(text: str) -> datetime:
    """ISO 8601, with an optional zone in brackets behind it, as `zoned_text` writes."""
    if text.endswith("]"):
        text, _, key = text[:-1].partition("[")
        moment = datetime.fromisoformat(text)
        zoned = moment.replace(tzinfo=_zone_info(key))
        if moment.tzinfo is not None and zoned.utcoffset() != moment.utcoffset():
            zoned = zoned.replace(fold=1)  # the offset tells which of the two equal wall clock times is meant
        return zoned
    return datetime.fromisoformat(text)


def zoned_text(value: datetime) -> str:
    zone = value.tzinfo
    return value.isoformat() + (f"[{zone.key}]" if isinstance(zone, ZoneInfo) and zone.key else "")


def _decimal_from_json(data: Any) -> Decimal:
    data = untagged(data, "$decimal")
    match data:
        case JsonNumber():
            return Decimal(data.text)
        case bool():
            pass
        case int() | float():
            return Decimal(str(data))
        case str():
            try:
                return Decimal(data)
            except ArithmeticError:
                pass
    raise bad_data("a decimal number", data)


def _timedelta_from_json(data: Any) -> timedelta:
    data = untagged(data, "$timedelta")
    if type(data) in (int, float, JsonNumber):
        try:
            return timedelta(seconds=data)
        except (ValueError, OverflowError) as error:
            raise Refused(f"expected a number of seconds: {error}") from None
    raise bad_data("a number of seconds", data)


# Nodes ----------------------------------------------------------------------------------------------------------------


def _plain(kind: type, wire: WireKind, write: Write, from_json: FromJson) -> Node:
    alone = frozenset({kind})
    return Node(kind.__name__, write, _as_read(kind), from_json, alone, alone, wire)


def _extended(kind: type, name: str, from_json: FromJson) -> Node:
    code, body = EXTENSIONS[kind]

    def write(value: Any) -> Tree:
        if type(value) is not kind:
            raise wrong_type(name, value, kind)
        return extension(code, body(value))

    alone = frozenset({kind})
    return Node(name, write, _as_read(kind), from_json, alone, alone)


_NONE: Any = frozenset({type(None)})
_PATH = _extended(NATIVE_PATH, "Path", _from_text("a path", "$path", Path))

SCALARS: Final[dict[Any, Node]] = {
    None: Node("None", _write_none, _read_none, _read_none, _NONE, _NONE),
    type(None): Node("None", _write_none, _read_none, _read_none, _NONE, _NONE),
    bool: _plain(bool, WireKind.BOOL, _exact(bool), _as_read(bool)),
    int: _plain(int, WireKind.INT64, write_int, write_int),
    float: _plain(float, WireKind.DOUBLE, _exact(float), _float_from_json),
    str: _plain(str, WireKind.STRING, _exact(str), _as_read(str)),
    bytes: _plain(bytes, WireKind.BYTES, _exact(bytes), _bytes_from_json),
    Decimal: _extended(Decimal, "Decimal", _decimal_from_json),
    datetime: _extended(datetime, "datetime", _from_text("a date and time", "$datetime", datetime_from_text)),
    date: _extended(date, "date", _from_text("a date", "$date", date.fromisoformat)),
    time: _extended(time, "time", _from_text("a time", "$time", time.fromisoformat)),
    timedelta: _extended(timedelta, "timedelta", _timedelta_from_json),
    UUID: _extended(UUID, "UUID", _from_text("a UUID", "$uuid", UUID)),
    Path: _PATH,
    NATIVE_PATH: _PATH,
}
