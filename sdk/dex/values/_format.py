"""The bytes: msgpack, and what msgpack has no form for.

A payload depends on the value alone, and can be read without knowing its type:

- None, bool, int, float, str, bytes, list, and dict with text keys are what msgpack has.
- Decimal, datetime, date, time, timedelta, UUID and Path are extension types with a short body (`_scalars`).
- Compound values that msgpack lacks are arrays that open with a *marker*, an empty extension: a tuple (1, 2)
  is `[TUPLE, 1, 2]`. Nothing is packed twice that way, and depth is bounded by the parser and not by our
  recursion. A user can't forge a marker: only this package makes extension types, and it makes none out of
  users' values.
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
BLOB: Final = 127

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

MARKERS: Final = {marker.code: marker for marker in (TUPLE, SET, FROZENSET, MAP, OBJECT, ENUM, NDARRAY, NUMPY_SCALAR)}


def marker_of(tree: Tree) -> Marker | None:
    """The marker of an array that is no list."""
    if type(tree) is list and tree and type(tree[0]) is Marker:
        return tree[0]
    return None


def extension(code: int, body: bytes) -> Any:
    return msgpack.ExtType(code, body)


class Packing:
    """Trees to bytes and back. `scalars` turns the body of an extension into its value, by code.

    Packers are kept, for making one costs more than packing a small value. One is taken out while it is used,
    so that neither threads nor finalizers share one; its buffer never shrinks, so after a large value it is dropped.
    """

    def __init__(self, scalars: dict[int, Callable[[bytes], Any]]) -> None:
        self._scalars = scalars
        self._spare: list[Any] = []

    def pack(self, tree: Tree) -> bytes:
        try:
            packer = self._spare.pop()
        except IndexError:
            packer = msgpack.Packer(strict_types=True)
        try:
            payload: bytes = packer.pack(tree)
        except (UnicodeEncodeError, ValueError, OverflowError) as error:
            raise _unpackable(tree, error) from None
        if len(payload) <= KEEP_PACKER_BELOW:
            self._spare.append(packer)
        return payload

    def unpack(self, payload: bytes) -> Tree:
        return msgpack.unpackb(payload, ext_hook=self._extension)

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
