"""Arrow tables and record batches: an IPC stream. pyarrow is imported only where such a value is.

A table is written with one copy, of the rows that it has (a slice does not drag its whole along), and read where it
lies: Arrow's memory is never changed. Schema metadata and chunks are kept.
"""

from __future__ import annotations

import sys
from typing import Any, Final

from dex.values._format import ARROW, Tree, marker_of, memory_tree
from dex.values._node import Node
from dex.values._refusal import Refused, bad_data, type_name, wrong_type

KINDS: Final = ("Table", "RecordBatch")


def loaded() -> Any:
    """pyarrow if anyone imported it, else None: without it there are no values of it."""
    return sys.modules.get("pyarrow")


def kind_of(cls: Any) -> str:
    """The kind of Arrow value that a class is of, "" for any other class."""
    arrow = loaded()
    if arrow is None or not isinstance(cls, type):
        return ""
    for kind in KINDS:
        if cls is getattr(arrow, kind, None):
            return kind
    return ""


def write(value: Any) -> Tree:
    import pyarrow as arrow

    kind = kind_of(type(value))
    if not kind:
        raise wrong_type("pyarrow.Table or pyarrow.RecordBatch", value)
    sink = arrow.BufferOutputStream()
    try:
        with arrow.ipc.new_stream(sink, value.schema) as writer:
            writer.write(value)
    except arrow.ArrowException as error:
        raise Refused(f"the Arrow {kind} can't be written: {error}") from error
    return [ARROW.extension, kind, memory_tree(memoryview(sink.getvalue()))]


def read(tree: Tree) -> Any:
    if marker_of(tree) is not ARROW or len(tree) != 3 or type(tree[2]) not in (bytes, memoryview):
        raise bad_data("an Arrow table", tree)
    try:
        import pyarrow as arrow
    except ImportError:
        raise Refused("the value is an Arrow table, and pyarrow is not installed here") from None
    try:
        with arrow.ipc.open_stream(arrow.py_buffer(tree[2])) as reader:
            table = reader.read_all()
        if tree[1] == "Table":
            return table
        batches = table.to_batches()
        return batches[0] if batches else arrow.RecordBatch.from_pylist([], schema=table.schema)
    except (arrow.ArrowException, OSError) as error:
        raise Refused(f"the stored Arrow {tree[1]} is damaged: {error}") from error


def node(cls: Any) -> Node:
    """`pa.Table` or `pa.RecordBatch`."""
    kind, name = kind_of(cls), type_name(cls)

    def checked_write(value: Any) -> Tree:
        if type(value) is not cls:
            raise wrong_type(name, value, cls)
        return write(value)

    def checked_read(tree: Tree) -> Any:
        value = read(tree)
        if type(value) is not cls:
            raise bad_data(name, value)
        return value

    def from_json(data: Any) -> Any:
        """A list of rows, or the columns by name."""
        import pyarrow as arrow

        try:
            table = arrow.Table.from_pydict(data) if type(data) is dict else arrow.Table.from_pylist(data)
        except (arrow.ArrowException, TypeError, ValueError, AttributeError) as error:
            raise Refused(f"expected rows, or columns by name: {error}") from None
        return table if kind == "Table" else table.combine_chunks().to_batches()[0]

    return Node(name, checked_write, checked_read, from_json, frozenset({cls}), frozenset({ARROW}))
