"""The bytes: msgpack, and what msgpack has no form for.

A payload depends on the value alone, and can be read without knowing its type:

- None, bool, int, float, str, bytes, list, and dict with text keys are what msgpack has.
- Decimal, datetime, date, time, timedelta, UUID and Path are extension types with a short body (`_scalars`).
- Compound values that msgpack lacks are arrays that open with a *marker*, an empty extension: a tuple (1, 2)
  is `[TUPLE, 1, 2]`. Nothing is packed twice that way, and depth is bounded by the parser and not by our
  recursion. A user can't forge a marker: only this package makes extension types, and it makes none out of
  users' values.
- The memory of a large array or table is no part of the msgpack, which would copy it again and again. It follows
  behind, and the tree says where (`Segment`): a payload with segments opens with an extension FRAMED, which tells how
  long the msgpack is. It is written with one copy and read with none, wherever it lies.
- A payload kept elsewhere is an extension of its own, BLOB (`blobs`), which no value encodes to.

Numbers here are in databases: they are never given a new meaning. An unknown one is refused by name, for it
was written by a newer release.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import msgpack

from dex.values._refusal import Refused

# What a tree is made of: the values msgpack knows, extension types on the way out, and Markers on the way in.
Tree = Any

# Scalars with a body.
DECIMAL: Final = 1
DATETIME: Final = 2
DATE: Final = 3
TIME: Final = 4
TIMEDELTA: Final = 5
UUID: Final = 6
PATH: Final = 7
SEGMENT: Final = 125  # its place behind the msgpack: offset and length
FRAMED: Final = 126  # opens a payload with segments: the length of the msgpack
BLOB: Final = 127

SEGMENT_FROM: Final = 1 << 20
"""Bytes from which on the memory of an array or a table is a segment."""

_FRAME: Final = bytes((0xD7, FRAMED))  # an extension of 8 bytes
_FRAME_LENGTH: Final = 2 + 8
_ALIGNMENT: Final = 64

KEEP_PACKER_BELOW: Final = 1 << 20


class Marker:
    """The first element of an array that is no list. One object each: compared by identity."""

    __slots__ = ("code", "extension", "name")

    def __init__(self, code: int, name: str) -> None:
        self.code = code
        self.name = name
        self.extension = msgpack.ExtType(code, b"")

    def __repr__(self) -> str:
        return self.name


TUPLE: Final = Marker(16, "tuple")  # [TUPLE, *items]
SET: Final = Marker(17, "set")  # [SET, *items]
FROZENSET: Final = Marker(18, "frozenset")  # [FROZENSET, *items]
MAP: Final = Marker(19, "dict")  # [MAP, key, value, key, value, ...]: keys that are not all text
OBJECT: Final = Marker(20, "object")  # [OBJECT, name of the class, what it is encoded to]
ENUM: Final = Marker(21, "enum")  # [ENUM, name of the class, name of the member, its value]
NDARRAY: Final = Marker(22, "numpy array")  # [NDARRAY, dtype, shape, bytes in C order]
NUMPY_SCALAR: Final = Marker(23, "numpy scalar")  # [NUMPY_SCALAR, dtype, bytes]
ARROW: Final = Marker(24, "Arrow table")  # [ARROW, "Table" or "RecordBatch", an IPC stream]

MARKERS: Final = {
    marker.code: marker for marker in (TUPLE, SET, FROZENSET, MAP, OBJECT, ENUM, NDARRAY, NUMPY_SCALAR, ARROW)
}


def marker_of(tree: Tree) -> Marker | None:
    """The marker of an array that is no list."""
    if type(tree) is list and tree and type(tree[0]) is Marker:
        return tree[0]
    return None


class Segment:
    """Memory that is to follow behind the msgpack. In a tree that was read it is a memoryview, read-only."""

    __slots__ = ("memory",)

    def __init__(self, memory: memoryview) -> None:
        self.memory = memory


def memory_tree(memory: memoryview) -> Tree:
    """Bytes in a tree, as a segment where that is worth it."""
    return Segment(memory) if memory.nbytes >= SEGMENT_FROM else memory


def extension(code: int, body: bytes) -> Any:
    return msgpack.ExtType(code, body)


class Packing:
    """Trees to bytes and back. `scalars` turns the body of an extension into its value, by code.

    Packers are kept, for making one costs more than packing a small value. One is taken out while it is used,
    so that neither threads nor finalizers share one; its buffer never shrinks, so after a large value it is dropped.
    """

    def __init__(self, scalars: dict[int, Callable[[bytes], Any]]) -> None:
        self._scalars = scalars
        self._spare: list[_Packer] = []

    def pack(self, tree: Tree) -> bytes:
        try:
            packer = self._spare.pop()
        except IndexError:
            packer = _Packer()
        try:
            payload = packer.pack(tree)
        except (UnicodeEncodeError, ValueError, OverflowError) as error:
            raise _unpackable(tree, error) from None
        segments = packer.take_segments()
        if len(payload) <= KEEP_PACKER_BELOW:
            self._spare.append(packer)
        return _framed(payload, segments) if segments else payload

    def unpack(self, payload: bytes | memoryview) -> Tree:
        if payload[:2] != _FRAME:
            return msgpack.unpackb(payload, ext_hook=self._extension)
        view = memoryview(payload).toreadonly()
        end = _FRAME_LENGTH + int.from_bytes(view[2:_FRAME_LENGTH], "big")
        segments = view[_aligned(end) :]

        def extension(code: int, body: bytes) -> Any:
            if code != SEGMENT:
                return self._extension(code, body)
            offset, length = int.from_bytes(body[:8], "big"), int.from_bytes(body[8:], "big")
            if offset + length > len(segments):
                raise Refused(f"the value is damaged: it ends before a segment of {length} bytes")
            return segments[offset : offset + length]

        return msgpack.unpackb(view[_FRAME_LENGTH:end], ext_hook=extension)

    def _extension(self, code: int, body: bytes) -> Any:
        marker = MARKERS.get(code)
        if marker is not None:
            return marker
        read = self._scalars.get(code)
        if read is None:
            raise Refused(
                "the value was stored apart and its bytes are not here: attach its blobs first"
                if code == BLOB
                else f"unknown extension type {code}: written by a newer release of dex, or damaged"
            )
        return read(body)


class _Packer:
    """A msgpack packer, and the segments that it met."""

    __slots__ = ("_end", "_packer", "_segments")

    def __init__(self) -> None:
        self._packer = msgpack.Packer(strict_types=True, default=self._segment)
        self._segments: list[memoryview] = []
        self._end = 0

    def pack(self, tree: Tree) -> bytes:
        payload: bytes = self._packer.pack(tree)
        return payload

    def take_segments(self) -> list[memoryview]:
        segments, self._segments, self._end = self._segments, [], 0
        return segments

    def _segment(self, value: Any) -> Any:
        if type(value) is not Segment:
            raise TypeError(f"can not serialize {type(value)!r} object")
        memory = value.memory
        place = self._end.to_bytes(8, "big") + memory.nbytes.to_bytes(8, "big")
        self._segments.append(memory)
        self._end = _aligned(self._end + memory.nbytes)
        return msgpack.ExtType(SEGMENT, place)


def _aligned(offset: int) -> int:
    return -(-offset // _ALIGNMENT) * _ALIGNMENT


def _framed(head: bytes, segments: list[memoryview]) -> bytes:
    parts: list[bytes | memoryview] = [_FRAME, len(head).to_bytes(8, "big"), head]
    size = _FRAME_LENGTH + len(head)
    for memory in segments:
        parts += [bytes(_aligned(size) - size), memory]
        size = _aligned(size) + memory.nbytes
    return b"".join(parts)


def _unpackable(tree: Tree, error: Exception) -> Exception:
    """Finds the text with a lone surrogate that the packer could not encode; its place is lost by then."""
    found = _lone_surrogate(tree)
    if found is not None:
        return found
    if isinstance(error, UnicodeEncodeError):
        return Refused("text with a lone surrogate has no UTF-8 form")
    return RecursionError(str(error)) if "recursion" in str(error) else error


def _lone_surrogate(tree: Tree) -> Refused | None:
    if type(tree) is str:
        try:
            tree.encode()
        except UnicodeEncodeError:
            return Refused(f"text with a lone surrogate has no UTF-8 form: {tree[:40]!a}")
    elif type(tree) is dict:
        for key, value in tree.items():
            if (refused := _lone_surrogate(key)) or (refused := _lone_surrogate(value)):
                return refused.inside(f".{key}")
    elif type(tree) is list:
        marked = bool(tree) and type(tree[0]) is msgpack.ExtType
        for index, item in enumerate(tree):
            if refused := _lone_surrogate(item):
                return refused.inside(f"[{index - marked}]")
    return None
