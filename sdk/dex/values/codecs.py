"""What users give to have their own types stored: a Codec, which maps a value to one plain value of a wire kind.

A custom codec replaces everything this package does for exactly its type, at any depth:

>>> from fractions import Fraction
>>> from dex.values import CodecRegistry, JsonCodec
>>> registry = CodecRegistry({Fraction: JsonCodec("fraction", Fraction, str, Fraction)})
>>> registry.decode(registry.encode([Fraction(1, 3)], list[Fraction], where="input"), list[Fraction], where="input")
[Fraction(1, 3)]

Pickle is used nowhere; who wants it writes a Codec of kind BYTES around it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, Protocol, runtime_checkable


class WireKind(Enum):
    """The plain kinds a codec encodes to. JSON is None, bool, int, float, str, list and dict with text keys, nested."""

    STRING = "STRING"
    BOOL = "BOOL"
    INT64 = "INT64"
    DOUBLE = "DOUBLE"
    BYTES = "BYTES"
    JSON = "JSON"


@dataclass(frozen=True, slots=True)
class Value:
    """An encoded value: `data` is a str, bool, int, float or bytes as `kind` says, or JSON data (not text)."""

    kind: WireKind
    data: Any


@runtime_checkable
class Codec(Protocol):
    """Maps values of one type to `Value`s and back. Its `type_name` is stable; errors it raises refuse the value."""

    @property
    def type_name(self) -> str:
        """The durable name of the type, as errors name it."""
        ...

    @property
    def wire_kind(self) -> WireKind:
        """The plain kind of all the Values that it makes."""
        ...

    def encode(self, value: Any) -> Value:
        """The Value of an object. Any exception refuses it."""
        ...

    def decode(self, value: Value) -> Any:
        """The object of a Value. Any exception refuses it."""
        ...


def _identity(value: Any) -> Any:
    return value


@dataclass(frozen=True, slots=True)
class JsonCodec:
    """A codec out of two functions: `encoder` makes plain JSON data of a value, `decoder` the value of the data.

    With `expected_type`, a value whose type is not exactly that is refused.
    """

    type_name: str
    decoder: Callable[[Any], Any]
    encoder: Callable[[Any], Any] = _identity
    expected_type: type | None = None

    @property
    def wire_kind(self) -> WireKind:
        """Always JSON."""
        return WireKind.JSON

    def encode(self, value: Any) -> Value:
        """The encoder's data. Raises TypeError for a value that is not of the expected type."""
        if self.expected_type is not None and type(value) is not self.expected_type:
            raise TypeError(
                f"{self.type_name}: expected {self.expected_type.__qualname__}, got {type(value).__qualname__}"
            )
        return Value(WireKind.JSON, self.encoder(value))

    def decode(self, value: Value) -> Any:
        """What the decoder makes of the data."""
        return self.decoder(value.data)


@dataclass(frozen=True, slots=True)
class _PlainCodec:
    type_name: str
    wire_kind: WireKind
    python_type: type

    def encode(self, value: Any) -> Value:
        if type(value) is not self.python_type:
            raise TypeError(f"expected {self.type_name}, got {type(value).__qualname__}")
        if isinstance(value, int) and not -(1 << 63) <= value < 1 << 63:
            raise OverflowError(f"{value} does not fit into 64 bits")
        return Value(self.wire_kind, value)

    def decode(self, value: Value) -> Any:
        if value.kind is not self.wire_kind or type(value.data) is not self.python_type:
            raise TypeError(f"expected {self.wire_kind.name}, got {value.kind.name} {type(value.data).__qualname__}")
        return value.data


STRING: Final[Codec] = _PlainCodec("str", WireKind.STRING, str)
"""The codec of str."""
BOOL: Final[Codec] = _PlainCodec("bool", WireKind.BOOL, bool)
"""The codec of bool."""
INT64: Final[Codec] = _PlainCodec("int", WireKind.INT64, int)
"""The codec of int of 64 bits."""
DOUBLE: Final[Codec] = _PlainCodec("float", WireKind.DOUBLE, float)
"""The codec of float."""
BYTES: Final[Codec] = _PlainCodec("bytes", WireKind.BYTES, bytes)
"""The codec of bytes."""
