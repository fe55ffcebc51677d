"""Values without a declared type: written by their own types, read as plain data.

Outputs, locals, recorded events and heartbeats have no type hint, nor has what is under `Any`. They are
written by what they are, strictly as well. Objects get the label of their class, so that a reader with a hint
(`single_output(Paid | Refused)`) finds the class again; a reader without one gets a dict of the fields, and
the value of an Enum.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, Final
from uuid import UUID

from dex.values import _arrow, _numpy
from dex.values._containers import each, pairs
from dex.values._format import ARROW, ENUM, FROZENSET, MAP, NDARRAY, NUMPY_SCALAR, OBJECT, SET, TUPLE, Tree, marker_of
from dex.values._node import Node, Write
from dex.values._refusal import Refused, bad_data, shown, type_name
from dex.values._scalars import NATIVE_PATH, SCALARS

FREE: Final = frozenset({type(None), bool, float, str, bytes})  # packed as they are, unchecked
READ_AS_THEY_ARE: Final = frozenset(
    {type(None), bool, int, float, str, bytes, Decimal, datetime, date, time, timedelta, UUID, NATIVE_PATH}
)

WAYS_OUT: Final = (
    "store a dataclass, NamedTuple, Enum, pydantic model or plain data, or register a Codec for it in CodecRegistry"
)


class DynamicWriter:
    """Writes any value by its type. `labelled_write` says how a class of a user's is written; None: not at all."""

    def __init__(self, labelled_write: Callable[[type], Write | None]) -> None:
        self._labelled_write = labelled_write
        self._writers: dict[type, Write] = {
            kind: node.write for kind, node in SCALARS.items() if kind in READ_AS_THEY_ARE
        }
        self._writers |= {list: self._list, dict: self._dict}
        self._writers |= {tuple: self._marked(TUPLE.extension)}
        self._writers |= {set: self._marked(SET.extension), frozenset: self._marked(FROZENSET.extension)}

    def write(self, value: Any) -> Tree:
        writer = self._writers.get(type(value))
        if writer is None:
            writer = self._writer_of(type(value))
        return writer(value)

    def override(self, kind: type, write: Write) -> None:
        """Sets how a type is written: a custom codec's."""
        self._writers[kind] = write

    def _writer_of(self, kind: type) -> Write:
        found: Write | None = self._labelled_write(kind)
        if found is None and _numpy.is_array_type(kind):
            found = _numpy.write_array
        if found is None and _numpy.is_scalar_type(kind):
            found = _numpy.write_scalar
        if found is None and _arrow.kind_of(kind):
            found = _arrow.write
        if found is None:
            raise Refused(f"a value of type {type_name(kind)} can't be stored: {_way_out(kind)}")
        self._writers[kind] = found
        return found

    def _list(self, value: list[Any]) -> Tree:
        return value if set(map(type, value)) <= FREE else each(self.write, value, [])

    def _marked(self, extension: Any) -> Write:
        return lambda value: each(self.write, value, [extension])

    def _dict(self, mapping: dict[Any, Any]) -> Tree:
        write = self.write
        text = set(map(type, mapping)) <= {str}
        if text and set(map(type, mapping.values())) <= FREE:
            return mapping
        fields: dict[str, Tree] = {}
        flat: list[Tree] = [MAP.extension]
        k: Any = None
        try:
            if text:
                for k, v in mapping.items():
                    fields[k] = write(v)
                return fields
            for k, v in mapping.items():
                flat.append(write(k))
                flat.append(write(v))
        except Refused as refused:
            raise refused.inside(f"[{shown(k)}]") from refused.__cause__
        return flat


def _way_out(kind: type) -> str:
    if issubclass(kind, complex):
        return "store a tuple of two floats"
    if issubclass(kind, (bytearray, memoryview)):
        return "store bytes(...)"
    for base in (dict, list, tuple, set, frozenset, str, bytes, int, float):
        if issubclass(kind, base):
            return f"types have to match exactly; store {base.__name__}(...)"
    return WAYS_OUT


def plain(tree: Tree) -> Any:
    """The plain data of a tree: containers and scalars keep their types, objects are dicts, Enum members values."""
    kind = type(tree)
    if kind in READ_AS_THEY_ARE:
        return tree
    if kind is dict:
        return _plain_dict(tree)
    if kind is not list:
        raise Refused(f"unknown form of data: {type_name(kind)}")
    marker = marker_of(tree)
    if marker is None:
        return tree if set(map(type, tree)) <= READ_AS_THEY_ARE else each(plain, tree, [])
    if marker is TUPLE:
        return tuple(each(plain, tree[1:], []))
    if marker is SET or marker is FROZENSET:
        items = each(plain, tree[1:], [])
        try:
            return set(items) if marker is SET else frozenset(items)
        except TypeError:
            raise Refused(f"a {marker} of objects can only be read with a type hint that names their class") from None
    if marker is MAP:
        return _plain_dict(tree)
    if marker is OBJECT and len(tree) == 3:
        return plain(tree[2])
    if marker is ENUM and len(tree) == 4:
        return plain(tree[3] if tree[3] is not None else tree[2])
    if marker is NDARRAY:
        return _numpy.read_array(tree)
    if marker is NUMPY_SCALAR:
        return _numpy.read_scalar(tree)
    if marker is ARROW:
        return _arrow.read(tree)
    raise bad_data("a value", tree)


def _plain_dict(tree: Tree) -> dict[Any, Any]:
    out = {}
    for k, v in pairs(tree, "dict"):
        try:
            out[plain(k)] = plain(v)
        except Refused as refused:
            raise refused.inside(f"[{shown(k)}]") from refused.__cause__
        except TypeError:
            raise Refused(
                "a dict with objects as keys can only be read with a type hint that names their class"
            ) from None
    return out


def from_json(data: Any) -> Any:
    """JSON as it is, with the tagged objects of readable forms turned back into what they say."""
    if type(data) is list:
        return each(from_json, data, [])
    if type(data) is dict:
        if len(data) == 1:
            (tag,) = data
            node = TAGGED.get(tag)
            if node is not None:
                return node.from_json(data)
        return {key: from_json(value) for key, value in data.items()}
    if isinstance(data, float):
        return float(data)  # without the text that JsonNumber keeps
    if type(data) is int:
        return SCALARS[int].from_json(data)
    return data


TAGGED: Final[dict[str, Node]] = {
    "$bytes": SCALARS[bytes],
    "$float": SCALARS[float],
    "$decimal": SCALARS[Decimal],
    "$datetime": SCALARS[datetime],
    "$date": SCALARS[date],
    "$time": SCALARS[time],
    "$timedelta": SCALARS[timedelta],
    "$uuid": SCALARS[UUID],
    "$path": SCALARS[NATIVE_PATH],
}


def any_node(writer: DynamicWriter) -> Node:
    return Node("Any", writer.write, plain, from_json, None, None)
