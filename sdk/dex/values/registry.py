"""CodecRegistry: values to payloads and back, by type hint."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from dex.errors import ValueMappingError
from dex.values._compile import Compiler
from dex.values._dynamic import READ_AS_THEY_ARE
from dex.values._format import Packing
from dex.values._hints import ResolvedHints
from dex.values._node import Node
from dex.values._refusal import Refused, failure
from dex.values._scalars import READERS, JsonNumber
from dex.values.codecs import Codec, Value, WireKind
from dex.values.readable import to_readable

DEFAULT_LIMIT: Final = 64 * 1024 * 1024


class CodecRegistry:
    """Encodes values of declared types and decodes them again.

    `codecs` maps types to custom codecs, each for exactly that type, wherever it occurs. A hint is compiled
    the first time it is seen. Registries can be pickled when their codecs can.

    >>> registry = CodecRegistry()
    >>> payload = registry.encode({"a": (1, 2)}, dict[str, tuple[int, ...]], where="input")
    >>> registry.decode(payload, dict[str, tuple[int, ...]], where="input")
    {'a': (1, 2)}
    >>> registry.encode({"a": (1, True)}, dict[str, tuple[int, ...]], where="input")
    Traceback (most recent call last):
    ...
    dex.errors.ValueMappingError: ...
    """

    def __init__(self, codecs: Mapping[Any, Codec] | None = None) -> None:
        self._codecs = dict(codecs or {})
        self._prepare({})

    def _prepare(self, resolved: ResolvedHints) -> None:
        self._packing = Packing(READERS)
        self._compiler = Compiler(self._codecs, resolved)
        self._dynamic = self._compiler.dynamic
        for kind in self._codecs:
            if kind in READ_AS_THEY_ARE or kind in (list, dict, tuple, set, frozenset):
                self._dynamic.override(kind, self._compiler.node(kind).write)

    def __getstate__(self) -> tuple[dict[Any, Codec], ResolvedHints]:
        return self._codecs, self._compiler.resolved

    def __setstate__(self, state: tuple[dict[Any, Codec], ResolvedHints]) -> None:
        self._codecs, resolved = state
        self._prepare(resolved)

    def resolve(self, type_hint: Any, *, where: str = "") -> TypeCodec:
        """The codec of a type. TypeError when the hint is not supported; its message starts with `where`."""
        return TypeCodec(self, self._compiler.node(type_hint, where))

    def encode(self, value: Any, type_hint: Any, *, where: str, limit: int = DEFAULT_LIMIT) -> bytes:
        """The payload of a value of a declared type.

        `where` names the value for errors ("input", "Attribute total"), `limit` is in bytes. Raises
        ValueMappingError for a value whose type is not exactly the declared one or that is too large (then
        `too_large` is set), naming the place; an int outside of 64 bits is an OverflowError as well.
        TypeError when the hint is not supported.
        """
        node = self._compiler.node(type_hint, where)
        try:
            payload = self._packing.pack(node.write(value))
        except Exception as error:
            raise failure("encode", where, error) from _cause(error)
        if len(payload) > limit:
            raise too_large(len(payload), limit, where)
        return payload

    def encode_dynamic(self, value: Any, *, where: str, limit: int = DEFAULT_LIMIT) -> bytes:
        """The payload of a value by its own type, as strictly: for outputs, locals, events and heartbeats."""
        try:
            payload = self._packing.pack(self._dynamic.write(value))
        except Exception as error:
            raise failure("encode", where, error) from _cause(error)
        if len(payload) > limit:
            raise too_large(len(payload), limit, where)
        return payload

    def decode(self, payload: bytes | memoryview, type_hint: Any, *, where: str) -> Any:
        """The value in a payload, as the declared type; under `Any` plain data. ValueMappingError if it can't be."""
        node = self._compiler.node(type_hint, where)
        try:
            return node.read(self._packing.unpack(payload))
        except Exception as error:
            raise failure("decode", where, error) from _cause(error)

    def decode_json(self, data: Any, type_hint: Any, where: str = "input") -> Any:
        """A value of a type from JSON: text, bytes of text, or data already parsed (a str is text).

        Datetimes and such are ISO text, durations seconds, bytes base64, tuples and sets arrays, Enum members
        their value or name; or what `to_readable` shows. Unknown fields are refused: a slip is not a default.
        Raises ValueMappingError.
        """
        node = self._compiler.node(type_hint, where)
        try:
            if isinstance(data, (str, bytes)):
                data = json.loads(data, parse_float=JsonNumber)
            return node.from_json(data)
        except json.JSONDecodeError as error:
            raise ValueMappingError("decode", f"{where}: not JSON: {error} (text needs quotes of its own)") from None
        except Exception as error:
            raise failure("decode", where, error) from _cause(error)


class TypeCodec:
    """A compiled type as a Codec: for those who have the type at hand many times, or want its wire kind."""

    __slots__ = ("_node", "_registry", "type_name", "wire_kind")

    def __init__(self, registry: CodecRegistry, node: Node) -> None:
        self._registry = registry
        self._node = node
        self.type_name: str = node.name
        self.wire_kind: WireKind = node.kind

    def __repr__(self) -> str:
        return f"<codec of {self.type_name}>"

    def encode(self, value: Any) -> Value:
        """The value as a Value of the wire kind; for JSON in readable form."""
        try:
            tree = self._node.write(value)
            if self.wire_kind is not WireKind.JSON:
                return Value(self.wire_kind, tree)
            return Value(WireKind.JSON, to_readable(self._registry._packing.pack(tree)))
        except Exception as error:
            raise failure("encode", "value", error) from _cause(error)

    def decode(self, value: Value) -> Any:
        try:
            if value.kind is not self.wire_kind:
                raise Refused(f"expected a Value of kind {self.wire_kind.name}, got {value.kind.name}")
            return self._node.from_json(value.data) if self.wire_kind is WireKind.JSON else self._node.read(value.data)
        except Exception as error:
            raise failure("decode", "value", error) from _cause(error)


def too_large(size: int, limit: int, where: str) -> ValueMappingError:
    return ValueMappingError(
        "encode",
        f"{where}: {size:,} bytes is over the limit of {limit:,}: "
        "store it elsewhere and pass where it is, or raise the limit",
        too_large=True,
    )


def _cause(error: BaseException) -> BaseException | None:
    """What is shown below the error: the exception of a codec or a class of the user's; nothing of our own inside."""
    return error.__cause__ if isinstance(error, Refused) else error
