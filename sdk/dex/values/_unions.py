"""Optional, Union and Literal: which member a value belongs to.

On the way out the exact type of the value tells. On the way in the form of the data does; where members share
a form (two dataclasses are both maps), the data carries the label of its class: members are never guessed.
Data without a label, written when the hint was one class only, goes to the class with the same fields. What
could not be told apart is refused when the type is compiled.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Hashable
from typing import Any

from dex.values._format import ENUM, OBJECT, Tree, marker_of
from dex.values._node import Node
from dex.values._objects import label_of, labelled
from dex.values._refusal import Refused, bad_data
from dex.values._scalars import JsonNumber


def form_of(tree: Tree) -> Any:
    marker = marker_of(tree)
    return type(tree) if marker is None else marker


def optional_node(inner: Node) -> Node:
    write_inner, read_inner, json_inner = inner.write, inner.read, inner.from_json
    none: frozenset[Any] = frozenset({type(None)})
    return dataclasses.replace(
        inner,
        name=f"{inner.name} | None",
        write=lambda value: None if value is None else write_inner(value),
        read=lambda tree: None if tree is None else read_inner(tree),
        from_json=lambda data: None if data is None else json_inner(data),
        runtime=None if inner.runtime is None else inner.runtime | none,
        forms=None if inner.forms is None else inner.forms | none,
        label=None,
        labelled_inside=inner.labelled_inside or inner.label is not None,
        fields=None,
    )


def union_node(members: tuple[Node, ...], unsupported: Callable[[str], Exception]) -> Node:
    """A Union of two members or more, None among them or not."""
    name = " | ".join(member.name for member in members)
    tagged = _tagged(members, name, unsupported)
    by_label = {member.label: member for member in members if member.label is not None}
    writers = tuple(_labelling(member) if member in tagged else member for member in members)

    by_type: dict[type, tuple[Node, ...]] = {}
    for writer in writers:
        for kind in writer.runtime or ():
            by_type[kind] = (*by_type.get(kind, ()), writer)
    of_any_type = tuple(writer for writer in writers if writer.runtime is None)
    of_any_form = tuple(member for member in members if member.forms is None and member not in tagged)
    by_form: dict[Hashable, tuple[Node, ...]] = {}
    for member in members:
        for form in () if member in tagged else member.forms or ():
            by_form[form] = (*by_form.get(form, ()), member)

    def write(value: Any) -> Tree:
        candidates = by_type.get(type(value)) or of_any_type
        if len(candidates) == 1:
            return candidates[0].write(value)
        return _first(candidates, lambda node: node.write(value), bad_data(name, value))

    def read(tree: Tree) -> Any:
        label = label_of(tree)
        if label is not None:
            member = by_label.get(label) or _only_labelled(members)
            if member is not None:
                return member.read(tree)
            if not of_any_form:
                raise Refused(f"the data is of class {label}, which is none of {name}")
        form = form_of(tree)
        if form is ENUM and len(tree) == 4 and tree[1] in by_label:
            return by_label[tree[1]].read(tree)
        candidates = by_form.get(form, ()) + of_any_form or _by_fields(tagged, tree)
        if len(candidates) == 1:
            return candidates[0].read(tree)
        return _first(candidates, lambda node: node.read(tree), bad_data(name, tree))

    def from_json(data: Any) -> Any:
        if type(data) is dict and data.get("$type") in by_label:
            return by_label[data["$type"]].from_json(data)
        fitting: list[tuple[Node, Any]] = []
        refusals: list[str] = []
        for member in _json_order(members, data):
            try:
                value = member.from_json(data)
            except Refused as refused:
                refusals.append(f"{member.name}: {refused.place('')} {refused.detail}".replace(":  ", ": "))
                continue
            if member.fields is None:
                return fitting[0][1] if fitting else value
            fitting.append((member, value))
        if not fitting:
            raise Refused(f"it fits none of {name} ({'; '.join(refusals)})")
        if len(fitting) > 1:
            names = ", ".join(str(member.label or member.name) for member, _ in fitting)
            raise Refused(f'it fits several of {name}: say which with "$type", one of {names}')
        return fitting[0][1]

    forms: set[Hashable] = set()
    for member in members:
        forms |= {OBJECT} if member in tagged else member.forms or set()
    return Node(
        name,
        write,
        read,
        from_json,
        None if of_any_type else frozenset(by_type),
        None if of_any_form else frozenset(forms),
        labelled_inside=any(member.label is not None or member.labelled_inside for member in members),
    )


def _tagged(members: tuple[Node, ...], name: str, unsupported: Callable[[str], Exception]) -> tuple[Node, ...]:
    """The members whose data needs the label of their class, for another member has data of the same form."""
    tagged: list[Node] = []
    for index, one in enumerate(members):
        for other in members[index + 1 :]:
            if one.forms is not None and other.forms is not None and not one.forms & other.forms:
                continue
            if one.label is not None and one.label == other.label:
                raise unsupported(f"two members of {name} are called {one.label}: their data can't be told apart")
            if one.label is None and other.label is None and (one.labelled_inside or other.labelled_inside):
                raise unsupported(
                    f"data of {one.name} and of {other.name} can't be told apart: put the choice inside (list[A | B]), "
                    "or wrap each in a dataclass of its own"
                )
            tagged += [node for node in (one, other) if node.label is not None and node.forms != frozenset({ENUM})]
    return tuple(node for node in members if node in tagged)


def _labelling(member: Node) -> Node:
    write, label = member.write, member.label or ""
    return dataclasses.replace(member, write=lambda value: labelled(label, write(value)))


def _only_labelled(members: tuple[Node, ...]) -> Node | None:
    """The one class among the members: data of a class that was renamed since."""
    classes = [member for member in members if member.forms is None or OBJECT in member.forms]
    return classes[0] if len(classes) == 1 else None


def _by_fields(tagged: tuple[Node, ...], tree: Tree) -> tuple[Node, ...]:
    """For data without a label: the classes with exactly its fields, else those that know all of them, else codecs."""
    if type(tree) is not dict:
        return tuple(node for node in tagged if node.forms is None)
    names = tree.keys()
    exact = tuple(node for node in tagged if node.fields is not None and node.fields == names)
    return exact[:1] or tuple(node for node in tagged if node.fields is None or node.fields >= names)


def _first(candidates: tuple[Node, ...], attempt: Callable[[Node], Any], otherwise: Refused) -> Any:
    last: Refused | None = None
    for node in candidates:
        try:
            return attempt(node)
        except Refused as refused:
            last = refused
    raise last if last is not None and len(candidates) == 1 else otherwise


def _json_order(members: tuple[Node, ...], data: Any) -> list[Node]:
    """Members whose type is the JSON type first; but for text those first that not every text fits."""
    kind = float if type(data) is JsonNumber else type(data)

    def rank(member: Node) -> int:
        if kind is str:
            return 1 if member.name in ("str", "bytes", "Path", "Any") else 0
        return 0 if member.runtime is not None and kind in member.runtime else 1

    return sorted(members, key=rank)


def literal_node(values: tuple[Any, ...], node_of: Callable[[type], Node]) -> Node:
    name = f"Literal[{', '.join(map(repr, values))}]"
    nodes = {type(value): node_of(type(value)) for value in values}
    allowed = frozenset((type(value), value) for value in values)

    def checked(value: Any, refused: Refused) -> Any:
        if type(value) not in nodes or (type(value), value) not in allowed:
            raise refused
        return value

    def refusal(value: Any) -> Refused:
        return bad_data(name, value)

    def write(value: Any) -> Tree:
        if type(value) not in nodes or (type(value), value) not in allowed:
            raise refusal(value)
        return nodes[type(value)].write(value)

    def read(tree: Tree) -> Any:
        form = form_of(tree)
        for node in nodes.values():
            if node.forms is not None and form in node.forms:
                return checked(_first((node,), lambda each: each.read(tree), refusal(tree)), refusal(tree))
        raise refusal(tree)

    def from_json(data: Any) -> Any:
        for node in nodes.values():
            try:
                return checked(node.from_json(data), refusal(data))
            except Refused:
                continue
        raise refusal(data)

    forms: set[Hashable] = set()
    for node in nodes.values():
        forms |= node.forms or set()
    return Node(name, write, read, from_json, frozenset(nodes), frozenset(forms))
