"""From a type hint to its compiled form, once per hint.

A hint is walked here, with all its questions (is it generic, recursive, annotated, a forward reference?), so
that a value never asks them. Unsupported hints are a TypeError at this point, which is when a Registry is
built and not when a Flow runs.
"""

from __future__ import annotations

import collections.abc as abc
import dataclasses
import types
import typing
from collections.abc import Callable
from enum import Enum
from typing import Any, Final, Literal, TypeVar, Union, get_args, get_origin

from dex.values import _arrow, _numpy
from dex.values._containers import (
    dict_node,
    either_node,
    fixed_tuple_node,
    frozenset_node,
    list_node,
    set_node,
    tuple_node,
)
from dex.values._dynamic import DynamicWriter, any_node, from_json, plain
from dex.values._format import OBJECT, Tree
from dex.values._hints import ResolvedHints, bare, field_hints
from dex.values._node import Node, Recursive, Write
from dex.values._objects import (
    Field,
    attribute_writer,
    dataclass_builder,
    enum_node,
    is_pydantic,
    labelled,
    needed_init_vars,
    object_node,
    pydantic_field_node,
    pydantic_node,
    typed_dict_node,
    unlabelled,
)
from dex.values._refusal import Refused, type_name
from dex.values._scalars import SCALARS, write_int
from dex.values._unions import literal_node, optional_node, union_node
from dex.values.codecs import Codec, Value, WireKind

SEQUENCES: Final = (abc.Sequence, abc.Collection, abc.Iterable)
MAPPINGS: Final = (dict, abc.Mapping, abc.MutableMapping)
SETS: Final = (abc.Set,)


class Compiler:
    """Compiles hints for one set of custom codecs and keeps the results.

    Two threads may compile the same hint at once; both get an equal result and one of them is kept.
    """

    def __init__(self, codecs: dict[Any, Codec], resolved: ResolvedHints) -> None:
        self._codecs = codecs
        self.resolved = resolved
        self._nodes: dict[Any, Node] = {}
        self.dynamic = DynamicWriter(self._labelled_write)
        self._any = any_node(self.dynamic)

    def node(self, hint: Any, where: str = "") -> Node:
        """The compiled form; TypeError for a hint that is not supported, naming the place."""
        try:
            known = self._nodes.get(hint)
        except TypeError:  # a hint without a hash: Annotated with a list in it
            return _Session(self, self._codecs).compile(hint, where or type_name(hint))
        if known is None:
            known = self._nodes[hint] = _Session(self, self._codecs).compile(hint, where or type_name(hint))
        return known

    @property
    def any(self) -> Node:
        return self._any

    def _labelled_write(self, kind: type) -> Write | None:
        """How values of a class of a user's are written where no hint names it."""
        known = kind in self._codecs or issubclass(kind, Enum) or is_pydantic(kind) or _is_named_tuple(kind)
        if not (known or "__dataclass_fields__" in vars(kind)):
            return None
        try:
            node = self.node(kind)
        except TypeError as error:
            raise Refused(str(error)) from error
        if issubclass(kind, Enum) and kind not in self._codecs:
            return node.write
        label, write = node.label or kind.__name__, node.write
        return lambda value: labelled(label, write(value))


class _Session:
    """One compilation: remembers the classes it is inside of, for those that mention themselves."""

    def __init__(self, compiler: Compiler, codecs: dict[Any, Codec]) -> None:
        self._compiler = compiler
        self._codecs = codecs
        self._open: dict[Any, tuple[Recursive, Node]] = {}

    def compile(self, hint: Any, place: str) -> Node:
        codec = self._codec(hint)
        if codec is None:
            stripped = bare(hint)
            codec = self._codec(stripped) if stripped is not hint else None
            hint = stripped
        if codec is not None:
            return codec_node(codec, hint)
        if hint is Any or hint is object:
            return self._compiler.any
        if isinstance(hint, TypeVar):
            raise _unsupported(hint, place, "a type variable that nothing fills in: name a type")
        if isinstance(hint, (str, typing.ForwardRef)):
            raise _unsupported(hint, place, "a name in quotes that could not be resolved: use the class itself")
        try:
            scalar = SCALARS.get(hint)
        except TypeError:
            raise _unsupported(hint, place, "not a type") from None
        if scalar is not None:
            return scalar
        if type(hint).__name__ == "TypeAliasType":
            return self._recursively(hint, None, None, None, place, lambda: self.compile(hint.__value__, place))
        origin, arguments = get_origin(hint), get_args(hint)
        if origin in (Union, types.UnionType):
            return self._union(arguments, place)
        if origin is Literal:
            return literal_node(arguments, lambda kind: self.compile(kind, place))
        if _numpy.is_array_type(origin or hint):
            return _numpy.array_node(hint)
        if _arrow.kind_of(hint):
            return _arrow.node(hint)
        return self._container(hint, origin or hint, arguments, place) or self._class(
            hint, origin or hint, arguments, place
        )

    def _codec(self, hint: Any) -> Codec | None:
        try:
            return self._codecs.get(hint)
        except TypeError:
            return None

    def _union(self, arguments: tuple[Any, ...], place: str) -> Node:
        present = [argument for argument in arguments if argument is not type(None)]
        if len(present) == 1:
            return optional_node(self.compile(present[0], place))
        members = tuple(self.compile(argument, place) for argument in arguments)
        return union_node(members, lambda reason: TypeError(f"{place}: {reason}"))

    def _container(self, hint: Any, origin: Any, arguments: tuple[Any, ...], place: str) -> Node | None:
        def item(index: int = 0) -> Node:
            return self.compile(arguments[index], f"{place}[...]") if arguments else self._compiler.any

        if origin in (list, abc.MutableSequence):
            return list_node(item())
        if origin is tuple:
            if hint is tuple:
                return tuple_node(item())
            if len(arguments) == 2 and arguments[1] is Ellipsis:
                return tuple_node(item())
            return fixed_tuple_node(
                tuple(self.compile(argument, f"{place}[{index}]") for index, argument in enumerate(arguments))
            )
        if origin in (set, abc.MutableSet):
            return set_node(item())
        if origin is frozenset:
            return frozenset_node(item())
        if origin in MAPPINGS:
            return dict_node(item(0), item(1))
        if origin in SEQUENCES:
            return either_node(f"Sequence[{item().name}]", (list_node(item()), tuple_node(item())))
        if origin in SETS:
            return either_node(f"Set[{item().name}]", (set_node(item()), frozenset_node(item())))
        return None

    def _class(self, hint: Any, cls: Any, arguments: tuple[Any, ...], place: str) -> Node:
        if not isinstance(cls, type):
            raise _unsupported(hint, place)
        if _numpy.is_scalar_type(cls):
            return _numpy.scalar_node(cls)
        if issubclass(cls, Enum):
            return enum_node(cls)
        if typing.is_typeddict(cls):
            return self._object(hint, cls, arguments, place, self._typed_dict, dict, None)
        if "__dataclass_fields__" in vars(cls):
            return self._object(hint, cls, arguments, place, self._dataclass, cls, cls.__name__)
        if _is_named_tuple(cls):
            return self._object(hint, cls, arguments, place, self._named_tuple, cls, cls.__name__)
        if is_pydantic(cls):
            return self._object(hint, cls, arguments, place, self._pydantic, cls, cls.__name__)
        if dataclasses.is_dataclass(cls):
            raise _unsupported(hint, place, "it inherits from a dataclass and is none: decorate it with @dataclass")
        raise _unsupported(hint, place)

    # Classes with fields ----------------------------------------------------------------------------------------------

    def _object(
        self,
        hint: Any,
        cls: Any,
        arguments: tuple[Any, ...],
        place: str,
        build: Callable[[Any, str, dict[str, Any], str], Node],
        runtime: type,
        label: str | None,
    ) -> Node:
        def compiled() -> Node:
            try:
                hints = field_hints(cls, arguments, self._compiler.resolved)
            except NameError as error:
                raise TypeError(
                    f"{place}: the annotations of {type_name(cls)} use the name {error.name!r}, "
                    "which is not known in its module: "
                    "define it at the top of a module, or leave out `from __future__ import annotations` and the quotes"
                ) from error
            return build(cls, type_name(hint), hints, place)

        return self._recursively(hint, frozenset({runtime}), frozenset({dict, OBJECT}), label, place, compiled)

    def _recursively(
        self,
        hint: Any,
        runtime: frozenset[type] | None,
        forms: frozenset[Any] | None,
        label: str | None,
        place: str,
        compiled: Callable[[], Node],
    ) -> Node:
        known = self._open.get(hint)
        if known is not None:
            return known[1]
        recursive = Recursive()
        self._open[hint] = (recursive, recursive.node(type_name(hint), runtime, forms, label))
        try:
            recursive.target = compiled()
        finally:
            del self._open[hint]
        return recursive.target

    def _field(self, name: str, hint: Any, required: bool, place: str) -> Field:
        return Field(name, self.compile(hint, f"{place}.{name}"), required)

    def _dataclass(self, cls: Any, name: str, hints: dict[str, Any], place: str) -> Node:
        needed = needed_init_vars(cls)
        if needed and cls.__dataclass_params__.init:
            raise _unsupported(
                cls,
                place,
                f"nothing of its InitVar {', '.join(needed)} is kept in it: give it a default, or register a Codec",
            )
        fields = tuple(
            self._field(
                field.name,
                hints[field.name],
                field.init and field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING,
                place,
            )
            for field in dataclasses.fields(cls)
        )
        write = attribute_writer(cls, name, fields)
        return object_node(cls, name, fields, write, dataclass_builder(cls), label=cls.__name__)

    def _named_tuple(self, cls: Any, name: str, hints: dict[str, Any], place: str) -> Node:
        fields = tuple(
            self._field(field, hints.get(field, Any), field not in cls._field_defaults, place) for field in cls._fields
        )
        write = attribute_writer(cls, name, fields)
        return object_node(cls, name, fields, write, lambda values: cls(**values), label=cls.__name__)

    def _typed_dict(self, cls: Any, name: str, hints: dict[str, Any], place: str) -> Node:
        fields = tuple(self._field(key, hint, _required(cls, key, hint), place) for key, hint in hints.items())
        return typed_dict_node(cls, name, fields)

    def _pydantic(self, cls: Any, name: str, hints: dict[str, Any], place: str) -> Node:
        fields = tuple(
            Field(key, self._pydantic_field(key, info, place), info.is_required())
            for key, info in cls.model_fields.items()
        )
        dynamic = self._compiler.any
        return pydantic_node(cls, name, fields, dynamic.write, dynamic.read)

    def _pydantic_field(self, key: str, info: Any, place: str) -> Node:
        try:
            return self.compile(info.annotation, f"{place}.{key}")
        except TypeError:
            from pydantic import TypeAdapter

            return pydantic_field_node(
                TypeAdapter(info.annotation), type_name(info.annotation), self._compiler.dynamic.write, plain
            )


def codec_node(codec: Codec, hint: Any) -> Node:
    """A type with a codec of the user's: its plain value is all there is in the data."""
    name = codec.type_name
    kind = codec.wire_kind

    def write(value: Any) -> Tree:
        try:
            encoded = codec.encode(value)
        except OverflowError as error:
            raise Refused(f"codec {name}: {error}", overflow=True) from error
        except Exception as error:
            raise Refused(f"codec {name} refused it: {type_name(type(error))}: {error}") from error
        if not isinstance(encoded, Value) or encoded.kind is not kind:
            raise Refused(f"codec {name} has to encode to a Value of kind {kind.name}")
        return _checked(encoded, name)

    def read(tree: Tree) -> Any:
        return decoded(plain(unlabelled(tree)))

    def decoded(data: Any) -> Any:
        try:
            return codec.decode(Value(kind, data))
        except Exception as error:
            raise Refused(f"codec {name} refused the data: {type_name(type(error))}: {error}") from error

    return Node(
        name,
        write,
        read,
        lambda data: decoded(_CODEC_JSON.get(kind, from_json)(data)),
        frozenset({hint}) if isinstance(hint, type) else None,
        None,
        WireKind.JSON,
        label=name,
    )


_CODEC_KINDS: Final = {
    WireKind.STRING: str,
    WireKind.BOOL: bool,
    WireKind.INT64: int,
    WireKind.DOUBLE: float,
    WireKind.BYTES: bytes,
}
_CODEC_JSON: Final = {WireKind.DOUBLE: SCALARS[float].from_json, WireKind.BYTES: SCALARS[bytes].from_json}
_JSON_SCALARS: Final = (type(None), bool, float, str)


def _checked(encoded: Value, name: str) -> Tree:
    expected = _CODEC_KINDS.get(encoded.kind)
    if expected is None:
        return _json_tree(encoded.data, name)
    if type(encoded.data) is not expected:
        raise Refused(f"codec {name} encoded to {type_name(type(encoded.data))}, and its kind is {encoded.kind.name}")
    return write_int(encoded.data) if expected is int else encoded.data


def _json_tree(data: Any, name: str) -> Tree:
    kind = type(data)
    if kind in _JSON_SCALARS:
        return data
    if kind is int:
        return write_int(data)
    if kind is list:
        return [_json_tree(item, name) for item in data]
    if kind is dict and set(map(type, data)) <= {str}:
        return {key: _json_tree(value, name) for key, value in data.items()}
    raise Refused(f"codec {name} encoded to {type_name(kind)}, which is no JSON data")


def _is_named_tuple(cls: type) -> bool:
    return issubclass(cls, tuple) and hasattr(cls, "_fields") and hasattr(cls, "_field_defaults")


def _required(cls: Any, key: str, hint: Any) -> bool:
    """Whether a TypedDict needs the key. Python can't tell by itself when the annotations are strings."""
    qualifier = getattr(get_origin(hint), "_name", None)
    if qualifier in ("Required", "NotRequired"):
        return bool(qualifier == "Required")
    return bool(key in cls.__required_keys__)


def _unsupported(hint: Any, place: str, reason: str = "") -> TypeError:
    reason = reason or "there is no stored form of it: use a dataclass or plain data, or register a Codec for it"
    return TypeError(f"{place}: type hint {type_name(hint)} is not supported: {reason}")
