"""Values with parts: list, tuple, set, frozenset, dict, and what abstract hints (Sequence, Mapping) stand for.

Lists of plain values are checked by the set of their types, which C does, and packed as they are. All others
are built item by item; when one is refused, the number of finished items is its index.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from dex.values._format import FROZENSET, MAP, SET, TUPLE, Marker, Tree, marker_of
from dex.values._node import Node
from dex.values._refusal import Refused, bad_data, shown, wrong_type
from dex.values._scalars import INT64_MAX, INT64_MIN, SCALAR_LISTS, untagged


def each(convert: Callable[[Any], Any], items: Iterable[Any], out: list[Any]) -> list[Any]:
    """Appends the converted items to `out`; a refusal gets the index of its item."""
    before = len(out)
    try:
        out.extend(map(convert, items))
    except Refused as refused:
        raise refused.inside(f"[{len(out) - before}]") from refused.__cause__
    return out


def _all_plain(item: Node) -> Callable[[list[Any]], bool]:
    """Whether a list needs no work, because its items are all of one plain type."""
    only: frozenset[Any] | None = item.runtime
    if only is None or len(only) != 1 or not only <= SCALAR_LISTS or item.label is not None or item.kind.name == "JSON":
        return lambda values: not values
    if int in only:
        return lambda values: (
            not values or (set(map(type, values)) == only and min(values) >= INT64_MIN and max(values) <= INT64_MAX)
        )
    return lambda values: not values or set(map(type, values)) == only


def list_node(item: Node) -> Node:
    name = f"list[{item.name}]"
    plain = _all_plain(item)
    write_item, read_item, item_from_json = item.write, item.read, item.from_json

    def write(value: Any) -> Tree:
        if type(value) is not list:
            raise wrong_type(name, value, list)
        return value if plain(value) else each(write_item, value, [])

    def read(tree: Tree) -> Any:
        if type(tree) is not list or (tree and type(tree[0]) is Marker):
            raise bad_data(name, tree)
        return tree if plain(tree) else each(read_item, tree, [])

    def from_json(data: Any) -> Any:
        return each(item_from_json, _array(data, name), [])

    return Node(name, write, read, from_json, frozenset({list}), frozenset({list}), labelled_inside=_labelled(item))


def _marked_node(kind: Any, marker: Marker, item: Node, name: str) -> Node:
    write_item, read_item, item_from_json = item.write, item.read, item.from_json
    tag = f"${kind.__name__}"

    def write(value: Any) -> Tree:
        if type(value) is not kind:
            raise wrong_type(name, value, kind)
        return each(write_item, value, [marker.extension])

    def read(tree: Tree) -> Any:
        if marker_of(tree) is not marker:
            raise bad_data(name, tree)
        return _built(kind, each(read_item, tree[1:], []), name)

    def from_json(data: Any) -> Any:
        return _built(kind, each(item_from_json, _array(untagged(data, tag), name), []), name)

    return Node(name, write, read, from_json, frozenset({kind}), frozenset({marker}), labelled_inside=_labelled(item))


def _built(kind: type, items: list[Any], name: str) -> Any:
    try:
        return kind(items)
    except TypeError as error:
        raise Refused(f"expected {name}, but an item can't be in one: {error}") from None


def tuple_node(item: Node) -> Node:
    return _marked_node(tuple, TUPLE, item, f"tuple[{item.name}, ...]")


def set_node(item: Node) -> Node:
    return _marked_node(set, SET, item, f"set[{item.name}]")


def frozenset_node(item: Node) -> Node:
    return _marked_node(frozenset, FROZENSET, item, f"frozenset[{item.name}]")


def fixed_tuple_node(items: tuple[Node, ...]) -> Node:
    name = f"tuple[{', '.join(item.name for item in items) or '()'}]"
    size = len(items)

    def converted(convert: tuple[Callable[[Any], Any], ...], values: Any, out: list[Any]) -> list[Any]:
        before = len(out)
        if len(values) != size:
            raise Refused(f"expected {name}, got {len(values)} items")
        try:
            out.extend(function(value) for function, value in zip(convert, values, strict=True))
        except Refused as refused:
            raise refused.inside(f"[{len(out) - before}]") from refused.__cause__
        return out

    writes = tuple(item.write for item in items)
    reads = tuple(item.read for item in items)
    from_jsons = tuple(item.from_json for item in items)

    def write(value: Any) -> Tree:
        if type(value) is not tuple:
            raise wrong_type(name, value, tuple)
        return converted(writes, value, [TUPLE.extension])

    def read(tree: Tree) -> Any:
        if marker_of(tree) is not TUPLE:
            raise bad_data(name, tree)
        return tuple(converted(reads, tree[1:], []))

    def from_json(data: Any) -> Any:
        return tuple(converted(from_jsons, _array(data, name), []))

    labelled = any(map(_labelled, items))
    return Node(name, write, read, from_json, frozenset({tuple}), frozenset({TUPLE}), labelled_inside=labelled)


# dict -----------------------------------------------------------------------------------------------------------------


def dict_node(key: Node, value: Node) -> Node:
    name = f"dict[{key.name}, {value.name}]"
    write_key, write_value = key.write, value.write
    read_key, read_value = key.read, value.read
    only_text = key.runtime == frozenset({str}) and key.kind.name == "STRING"
    any_key = key.runtime is None and key.forms is None and key.label is None
    bare_text = only_text or any_key  # text keys are stored as they are

    def write_text(mapping: Any) -> Tree:
        if type(mapping) is not dict:
            raise wrong_type(name, mapping, dict)
        out = {}
        k: Any = None
        try:
            for k, v in mapping.items():
                if type(k) is not str:
                    raise wrong_type("a key of type str", k, str)
                out[k] = write_value(v)
        except Refused as refused:
            raise refused.inside(f"[{shown(k)}]") from refused.__cause__
        return out

    def write_any(mapping: Any) -> Tree:
        if type(mapping) is not dict:
            raise wrong_type(name, mapping, dict)
        if any_key and set(map(type, mapping)) <= {str}:
            return write_text(mapping)
        out: list[Any] = [MAP.extension]
        for k, v in mapping.items():
            try:
                out.append(write_key(k))
                out.append(write_value(v))
            except Refused as refused:
                raise refused.inside(f"[{shown(k)}]") from refused.__cause__
        return out

    def read(tree: Tree) -> Any:
        out: dict[Any, Any] = {}
        if bare_text and type(tree) is dict and set(map(type, tree)) <= {str}:
            k: Any = None
            try:
                for k, v in tree.items():
                    out[k] = read_value(v)
            except Refused as refused:
                raise refused.inside(f"[{shown(k)}]") from refused.__cause__
            return out
        for k, v in pairs(tree, name):
            try:
                built = read_key(k)
                out[built] = read_value(v)
            except Refused as refused:
                raise refused.inside(f"[{shown(k)}]") from refused.__cause__
            except TypeError as error:
                raise Refused(f"a key of {name} has no hash: {error}").inside(f"[{shown(k)}]") from None
        return out

    def from_json(data: Any) -> Any:
        out = {}
        for k, v in _json_pairs(data, name):
            try:
                out[_key_from_json(key, k)] = value.from_json(v)
            except Refused as refused:
                raise refused.inside(f"[{shown(k)}]") from refused.__cause__
            except TypeError as error:
                raise Refused(f"a key of {name} has no hash: {error}").inside(f"[{shown(k)}]") from None
        return out

    return Node(
        name,
        write_text if only_text else write_any,
        read,
        from_json,
        frozenset({dict}),
        frozenset({dict, MAP}),
        labelled_inside=_labelled(key) or _labelled(value),
    )


def pairs(tree: Tree, name: str) -> Iterator[tuple[Tree, Tree]]:
    """Keys and values of a dict's tree, in either of its forms."""
    if type(tree) is dict:
        return iter(tree.items())
    if marker_of(tree) is MAP and len(tree) % 2 == 1:
        return zip(tree[1::2], tree[2::2], strict=True)
    raise bad_data(name, tree)


def _json_pairs(data: Any, name: str) -> Iterable[tuple[Any, Any]]:
    """An object, or `{"$map": [[key, value], ...]}` for keys that JSON has no form for."""
    inner = untagged(data, "$map")
    if inner is not data and type(inner) is list and all(type(pair) is list and len(pair) == 2 for pair in inner):
        return [(pair[0], pair[1]) for pair in inner]
    if type(data) is not dict:
        raise bad_data(f"an object ({name})", data)
    mapping: Mapping[str, Any] = data
    return mapping.items()


def _key_from_json(key: Node, data: Any) -> Any:
    """Keys in JSON objects are text; other keys are given as their JSON in it: {"1": ...} for a dict[int, ...]."""
    try:
        return key.from_json(data)
    except Refused:
        if type(data) is not str:
            raise
        match data:
            case "true" | "false":
                return key.from_json(data == "true")
            case "null":
                return key.from_json(None)
        try:
            number = int(data)
        except ValueError:
            try:
                return key.from_json(float(data))
            except ValueError:
                pass
        else:
            return key.from_json(number)
        raise


# Hints that stand for several types -----------------------------------------------------------------------------------


def either_node(name: str, nodes: tuple[Node, ...]) -> Node:
    """One of several container types with the same items, each kept: a Sequence is a list or a tuple."""
    by_type = {kind: node for node in nodes for kind in node.runtime or ()}
    by_form: dict[Any, Node] = {form: node for node in nodes for form in node.forms or ()}

    def write(value: Any) -> Tree:
        node = by_type.get(type(value))
        if node is None:
            raise wrong_type(f"{name} ({' or '.join(node.name for node in nodes)})", value)
        return node.write(value)

    def read(tree: Tree) -> Any:
        node = by_form.get(marker_of(tree) or type(tree))
        if node is None:
            raise bad_data(name, tree)
        return node.read(tree)

    return Node(
        name,
        write,
        read,
        nodes[0].from_json,
        frozenset(by_type),
        frozenset(by_form),
        labelled_inside=any(node.labelled_inside for node in nodes),
    )


def _labelled(node: Node) -> bool:
    return node.label is not None or node.labelled_inside


def _array(data: Any, name: str) -> list[Any]:
    if type(data) is not list:
        raise bad_data(f"an array ({name})", data)
    return data
