"""Typed values to bytes and back.

Everything a Flow keeps goes through here: inputs, Attributes, messages, outputs, locals, heartbeats. Three rules:

1. **A value keeps its type, or is refused at the call that offers it.** Types have to match exactly: a bool
   is no int, an int no float, a subclass is not its base. The refusal names the place
   (`input.items[3].price`), what was expected and what was there. Pickle is used nowhere.
2. **A payload describes itself.** It is msgpack with a few extensions (`_format`); it can be read as plain
   data, shown to people (`to_readable`) and kept for years. A type hint directs how it becomes objects again.
3. **Classes may change.** Objects are maps of field names: new fields take their defaults from the class, old
   ones are ignored, Enum members are found by name or value, classes by name. Redefining a class in a
   notebook changes nothing.

What can be stored: None, bool, int (64 bits), float (NaN and infinities too), str, bytes, Decimal, datetime
(aware with its zone and fold, and naive), date, time, timedelta, UUID, Path, Enum, list, tuple, set, frozenset,
dict with any keys, dataclass, NamedTuple, TypedDict, pydantic model, numpy scalar and array, Arrow table and
record batch; in hints also Optional, Union, Literal, Sequence, Mapping, Annotated, NewType, generic and
recursive classes, and Any. Members of a Union are told apart by type, and where their data looks alike by the
name of their class. Under Any, and where there is no hint, objects are written with all their fields and read
as dicts.

Everything else needs a `Codec`, given to the `CodecRegistry`.

Hints are compiled once into closures (`_compile`, `_node`); a value walks through them without asking what it is.
"""

from dex.errors import ValueMappingError
from dex.values.blobs import BLOB_THRESHOLD, attach, detach, reference_of, referenced_size
from dex.values.codecs import BOOL, BYTES, DOUBLE, INT64, STRING, Codec, JsonCodec, Value, WireKind
from dex.values.readable import to_readable
from dex.values.registry import DEFAULT_LIMIT, CodecRegistry, TypeCodec

__all__ = [
    "BLOB_THRESHOLD",
    "BOOL",
    "BYTES",
    "DEFAULT_LIMIT",
    "DOUBLE",
    "INT64",
    "STRING",
    "Codec",
    "CodecRegistry",
    "JsonCodec",
    "TypeCodec",
    "Value",
    "ValueMappingError",
    "WireKind",
    "attach",
    "detach",
    "reference_of",
    "referenced_size",
    "to_readable",
]
