"""One type, compiled: the functions that take its values to trees and back."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any, TypeAlias

from dex.values._format import Tree
from dex.values.codecs import WireKind

Write: TypeAlias = Callable[[Any], Tree]
Read: TypeAlias = Callable[[Tree], Any]
FromJson: TypeAlias = Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class Node:
    """A compiled type.

    `write` checks a value strictly and returns its tree; `read` builds the value from a tree; `from_json`
    builds it from what people write in JSON. All three raise Refused.

    `runtime` are the exact types of its values and `forms` the forms of its trees, as `form_of` gives them: a
    Union picks its member by them. None: any. `label` names the class where values of several have the same
    form. `labelled_inside` tells that values with labels are somewhere in it. `fields` are the names in its
    trees, when those are maps of fields.
    """

    name: str
    write: Write
    read: Read
    from_json: FromJson
    runtime: frozenset[type] | None
    forms: frozenset[Hashable] | None
    kind: WireKind = WireKind.JSON
    label: str | None = None
    labelled_inside: bool = False
    fields: frozenset[str] | None = None


class Recursive:
    """Stands for a type while it is compiled, for those of its own fields that mention it."""

    __slots__ = ("target",)

    def __init__(self) -> None:
        self.target: Node | None = None

    def node(
        self, name: str, runtime: frozenset[type] | None, forms: frozenset[Hashable] | None, label: str | None
    ) -> Node:
        return Node(
            name=name,
            write=lambda value: self._node().write(value),
            read=lambda tree: self._node().read(tree),
            from_json=lambda data: self._node().from_json(data),
            runtime=runtime,
            forms=forms,
            label=label,
            labelled_inside=True,  # it may be: not known yet
        )

    def _node(self) -> Node:
        assert self.target is not None, "a recursive type is used before it is compiled"
        return self.target
