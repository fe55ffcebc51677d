"""Values with named fields: dataclass, NamedTuple, TypedDict, pydantic model; and Enums.

They are stored as maps of field names to values, so a class may change: a field that is missing in old data
gets its default, one that is no longer declared is ignored. A value is rebuilt through its class (`__init__`,
`__post_init__` and validators run), then fields with `init=False` get what was stored.

An Enum member is stored with its name and its value, and found again by its name, or by its value when there
is no such name any more: renaming a member and renumbering `auto()` both leave old data readable.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from dex.values._format import ENUM, OBJECT, Tree, marker_of
from dex.values._node import Node, Read, Write
from dex.values._refusal import Refused, bad_data, shown, type_name, wrong_type
from dex.values._scalars import INT64_MAX, INT64_MIN


@dataclass(frozen=True, slots=True)
class Field:
    name: str
    node: Node
    required: bool  # of a decoded value: there is no default


def labelled(label: str, tree: Tree) -> Tree:
    return [OBJECT.extension, label, tree]


def label_of(tree: Tree) -> str | None:
    """The label of a labelled tree."""
    if marker_of(tree) is OBJECT and len(tree) == 3 and type(tree[1]) is str:
        return tree[1]
    return None


def unlabelled(tree: Tree) -> Tree:
    return tree if label_of(tree) is None else tree[2]


def object_node(
    cls: type,
    name: str,
    fields: tuple[Field, ...],
    write: Write,
    build: Callable[[dict[str, Any]], Any],
    *,
    label: str | None,
) -> Node:
    """A class of named fields. `write` takes a value apart, `build` makes one of the values of its fields."""
    readers = tuple((field.name, field.node.read, field.required) for field in fields)
    from_jsons = tuple((field.name, field.node.from_json, field.required) for field in fields)
    names = frozenset(field.name for field in fields)

    def built(tree: Any, parts: tuple[tuple[str, Callable[[Any], Any], bool], ...]) -> Any:
        values: dict[str, Any] = {}
        part = ""
        try:
            for part, convert, required in parts:
                if part in tree:
                    values[part] = convert(tree[part])
                elif required:
                    raise Refused(f"a {name} needs this field, it has no default, and the data has no value of it")
        except Refused as refused:
            raise refused.inside(f".{part}") from refused.__cause__
        try:
            return build(values)
        except Refused:
            raise
        except Exception as error:
            raise Refused(f"{name} refused its fields: {type_name(type(error))}: {_said(error)}") from error

    def read(tree: Tree) -> Any:
        if type(tree) is not dict:
            tree = unlabelled(tree)
            if type(tree) is not dict:
                raise bad_data(name, tree)
        return built(tree, readers)

    def from_json(data: Any) -> Any:
        if type(data) is not dict:
            raise bad_data(f"an object ({name})", data)
        unknown = data.keys() - names - {"$type"}
        if unknown:
            raise Refused(
                f"{name} has no field {', '.join(sorted(unknown))}; it has {', '.join(sorted(names)) or 'none'}"
            )
        return built(data, from_jsons)

    return Node(
        name,
        write,
        read,
        from_json,
        frozenset({cls}),
        frozenset({dict, OBJECT}),
        label=label,
        labelled_inside=label is None or any(field.node.labelled_inside for field in fields),
        fields=names,
    )


def attribute_writer(cls: type, name: str, fields: tuple[Field, ...]) -> Write:
    """Takes an object apart by its attributes."""
    writers = tuple((field.name, field.node.write) for field in fields)

    def write(value: Any) -> Tree:
        if type(value) is not cls:
            raise wrong_type(name, value, cls)
        out = {}
        part = ""
        try:
            for part, write_part in writers:
                out[part] = write_part(getattr(value, part))
        except Refused as refused:
            raise refused.inside(f".{part}") from refused.__cause__
        except AttributeError:
            raise Refused(f"this field of a {name} was never set").inside(f".{part}") from None
        return out

    return write


# dataclass ------------------------------------------------------------------------------------------------------------


def dataclass_builder(cls: Any) -> Callable[[dict[str, Any]], Any]:
    if not cls.__dataclass_params__.init:
        return lambda values: _assembled(cls, values)
    late = tuple(field.name for field in dataclasses.fields(cls) if not field.init)
    if not late:
        return lambda values: cls(**values)

    def build(values: dict[str, Any]) -> Any:
        stored = {name: values.pop(name) for name in late if name in values}
        built = cls(**values)
        for name, value in stored.items():
            object.__setattr__(built, name, value)
        return built

    return build


def _assembled(cls: Any, values: dict[str, Any]) -> Any:
    """For a dataclass with an `__init__` of its own, whose arguments nobody knows: set field by field, as a copy."""
    built = object.__new__(cls)
    for field in dataclasses.fields(cls):
        if field.name in values:
            object.__setattr__(built, field.name, values[field.name])
        elif field.default is not dataclasses.MISSING:
            object.__setattr__(built, field.name, field.default)
        elif field.default_factory is not dataclasses.MISSING:
            object.__setattr__(built, field.name, field.default_factory())
    return built


def needed_init_vars(cls: Any) -> list[str]:
    """Arguments of `__init__` that leave no trace in the object, so that nothing can be stored of them."""
    return [
        name
        for name, field in cls.__dataclass_fields__.items()
        if field._field_type is dataclasses._FIELD_INITVAR  # type: ignore[attr-defined]
        and field.default is dataclasses.MISSING
        and field.default_factory is dataclasses.MISSING
    ]


# TypedDict ------------------------------------------------------------------------------------------------------------


def typed_dict_node(cls: Any, name: str, fields: tuple[Field, ...]) -> Node:
    writers = {field.name: field.node.write for field in fields}
    required = frozenset(field.name for field in fields if field.required)

    def write(value: Any) -> Tree:
        if type(value) is not dict:
            raise wrong_type(f"{name} (a dict)", value, dict)
        if not required <= value.keys():
            raise Refused(f"{name} needs the keys {', '.join(sorted(required - value.keys()))}")
        out = {}
        for key, part in value.items():
            write_part = writers.get(key) if type(key) is str else None
            if write_part is None:
                raise Refused(f"{name} has no key {shown(key)}; it has {', '.join(writers)}")
            try:
                out[key] = write_part(part)
            except Refused as refused:
                raise refused.inside(f"[{key!r}]") from refused.__cause__
        return out

    return dataclasses.replace(
        object_node(cls, name, fields, write, lambda values: values, label=None), runtime=frozenset({dict})
    )


# Enum -----------------------------------------------------------------------------------------------------------------


def enum_writer(cls: type[Enum]) -> Write:
    name = type_name(cls)
    trees = {member.name: _enum_tree(cls, member) for member in cls}

    def write(value: Any) -> Tree:
        if type(value) is not cls:
            raise wrong_type(name, value, cls)
        return trees.get(value.name) or _enum_tree(cls, value)

    return write


def _enum_tree(cls: type[Enum], member: Enum) -> Tree:
    """Of the value only what is plain: the name is enough to find the member."""
    value = member.value
    plain = type(value) in (str, bool, float) or (type(value) is int and INT64_MIN <= value <= INT64_MAX)
    return [ENUM.extension, cls.__name__, member.name, value if plain else None]


def enum_node(cls: type[Enum]) -> Node:
    name = type_name(cls)
    members = cls.__members__

    def read(tree: Tree) -> Any:
        if marker_of(tree) is not ENUM or len(tree) != 4:
            raise bad_data(name, tree)
        _, _, member, value = tree
        return found(member, value)

    def found(member: Any, value: Any) -> Any:
        if type(member) is str and member in members:
            return members[member]
        try:
            return cls(value)
        except Exception:
            raise Refused(
                f"{name} has no member named {shown(member)} and none of value {shown(value)}; "
                f"it has {', '.join(members)}"
            ) from None

    def from_json(data: Any) -> Any:
        for member in members.values():
            if type(member.value) is type(data) and member.value == data:
                return member
        return found(data, data)

    return Node(name, enum_writer(cls), read, from_json, frozenset({cls}), frozenset({ENUM}), label=cls.__name__)


# pydantic -------------------------------------------------------------------------------------------------------------


def is_pydantic(cls: type) -> bool:
    return hasattr(cls, "__pydantic_validator__") and hasattr(cls, "model_fields") and hasattr(cls, "model_validate")


def pydantic_node(cls: Any, name: str, fields: tuple[Field, ...], write_extra: Write, read_extra: Read) -> Node:
    """A pydantic model, by its fields. Reading validates, so validators and defaults work as everywhere with
    pydantic.

    What a model with extra="allow" carries beside its fields is kept. After reading, all stored fields count
    as set.
    """
    write_fields = attribute_writer(cls, name, fields)
    keeps_extra = cls.model_config.get("extra") == "allow"
    is_root = [field.name for field in fields] == ["root"] and getattr(cls, "__pydantic_root_model__", False)

    def write(value: Any) -> Tree:
        tree = write_fields(value)
        for key, extra in (value.__pydantic_extra__ or {}).items():
            try:
                tree[key] = write_extra(extra)
            except Refused as refused:
                raise refused.inside(f".{key}") from refused.__cause__
        return tree

    def build(values: dict[str, Any]) -> Any:
        if is_root:
            return cls.model_validate(values["root"])
        return cls.model_validate(values, by_name=True, by_alias=False)

    known = object_node(cls, name, fields, write, build, label=cls.__name__)
    names = known.fields or frozenset()

    def read(tree: Tree) -> Any:
        tree = unlabelled(tree)
        if not keeps_extra or type(tree) is not dict:
            return known.read(tree)
        extra = {key: read_extra(value) for key, value in tree.items() if key not in names}
        return with_extra(known.read(tree), extra)

    def with_extra(built: Any, extra: Mapping[str, Any]) -> Any:
        for key, value in extra.items():
            setattr(built, key, value)
        return built

    def from_json(data: Any) -> Any:
        """As pydantic reads JSON itself, aliases included."""
        try:
            return cls.model_validate_json(json.dumps(data))
        except Exception as error:
            raise Refused(f"{name}: {_said(error)}") from error

    return dataclasses.replace(known, read=read, from_json=from_json)


def pydantic_field_node(adapter: Any, name: str, write_plain: Write, read_plain: Read) -> Node:
    """A field of a type that only pydantic knows (HttpUrl and such): in the JSON form that pydantic gives it."""

    def write(value: Any) -> Tree:
        try:
            data = adapter.dump_python(value, mode="json")
        except Exception as error:
            raise Refused(f"pydantic has no JSON form of it: {error}") from error
        return write_plain(data)

    def read(tree: Tree) -> Any:
        try:
            return adapter.validate_python(read_plain(tree))
        except Refused:
            raise
        except Exception as error:
            raise Refused(f"pydantic refused it as {name}: {_said(error)}") from error

    return Node(name, write, read, read, None, None)


def _said(error: Exception) -> str:
    """The message of an error, on one line; of pydantic's, its findings without the links."""
    findings = getattr(error, "errors", None)
    if type(error).__module__.startswith("pydantic") and callable(findings):
        return "; ".join(f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in findings())
    return str(error)
