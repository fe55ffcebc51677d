"""Attributes: the durable state of a Flow run.

An `Attribute` is one value, an `AttributeMap` many, each with an instance key. Both are definitions: made once,
listed in the Flow's persistence schema, and used with the Context of the running handler. A write is staged, seen by
this handler's own reads, and committed with its result. A missing value reads as 0, 0.0 or False for int, float and
bool, and as None for everything else.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol, TypeVar, get_origin, overload

from dex._runtime import runtime_of
from dex.context import Context
from dex.names import check_instance, check_name, physical_name

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

_MISSING: Final[dict[Any, Any]] = {int: 0, float: 0.0, bool: False}
_NEVER_HARD_DELETED: Final = (int, float, bool)


class Holds(Protocol[T_co]):
    """An Attribute to those who only read it. Type checkers can then tell the type of a value that is wanted as any
    object: `print(client.get_attribute("order-17", status))`."""

    @property
    def _held(self) -> T_co: ...


class HoldsMany(Protocol[T_co]):
    """The same of an AttributeMap."""

    @property
    def _held_by_instance(self) -> T_co: ...


class IndexType(Enum):
    """How search compares an indexed Attribute.

    KEYWORD: a text as a whole. FULL_TEXT: the words of a text. KEYWORD_ARRAY: the texts of a list. INT, DOUBLE:
    numbers. BOOL: True and False. DATETIME: points of time, those without a zone taken as UTC.
    """

    KEYWORD = "KEYWORD"
    FULL_TEXT = "FULL_TEXT"
    KEYWORD_ARRAY = "KEYWORD_ARRAY"
    INT = "INT"
    DOUBLE = "DOUBLE"
    BOOL = "BOOL"
    DATETIME = "DATETIME"


_LISTS: Final = (IndexType.KEYWORD_ARRAY,)
_INDEX_TYPES: Final[dict[object, tuple[IndexType, ...]]] = {
    str: (IndexType.KEYWORD, IndexType.FULL_TEXT, IndexType.DATETIME),
    int: (IndexType.INT, IndexType.DOUBLE),
    float: (IndexType.DOUBLE,),
    bool: (IndexType.BOOL,),
    bytes: (),
    datetime: (IndexType.DATETIME,),
    **dict.fromkeys((list, tuple, set, frozenset), _LISTS),
}
"""What values of common types can be indexed as. Of others it is only known when there is one."""


@dataclass(frozen=True, slots=True)
class AttributeIndex:
    """Makes an Attribute searchable under `index_key`; empty: under the Attribute's name. A key has one type in a
    Registry.

    A search finds a run by what was written since the Flow's code has the index: an index that is added later finds
    the values of runs that are there as they are written the next time.
    """

    type: IndexType
    index_key: str = ""

    def __post_init__(self) -> None:
        if not isinstance(self.type, IndexType):
            raise TypeError(f"AttributeIndex(type=…) takes an IndexType, got {self.type!r}")
        if self.index_key:
            check_name("index key", self.index_key)


@dataclass(frozen=True, slots=True)
class AttributeLock:
    """A lock of an Attribute, or of one instance of a map, held during one method attempt or RPC. Made by `lock()`."""

    attribute: Attribute[Any] | AttributeMap[Any]
    instance: str | None = None

    def __post_init__(self) -> None:
        if self.instance is not None:
            check_instance("AttributeMap", self.attribute.name, self.instance)

    @property
    def physical_name(self) -> str:
        """The engine's name of it: `name`, or `name/quoted-instance`."""
        return physical_name(self.attribute.name, self.instance)


@dataclass(frozen=True, slots=True)
class AttributeMapLoad:
    """Selects one instance of an AttributeMap to be loaded."""

    attribute_map: AttributeMap[Any]
    instance: str

    def __post_init__(self) -> None:
        check_instance("AttributeMap", self.attribute_map.name, self.instance)

    @property
    def physical_name(self) -> str:
        """The engine's name of it: `name`, or `name/quoted-instance`."""
        return physical_name(self.attribute_map.name, self.instance)


@dataclass(frozen=True, slots=True, eq=False, init=False, weakref_slot=True)
class Attribute(Generic[T]):
    """A durable value of one type. The very object that the Flow's schema lists is the one to use.

        status = Attribute("status", str, index=AttributeIndex(IndexType.KEYWORD))

    index: makes it searchable. sync_to_attribute_store: copies it to the stores that the FlowConfig names.
    hard_delete_on_null: setting None removes the stored value physically; for texts and objects only, without index
      and sync.
    Raises ValueError for a wrong name or combination, TypeError for a wrong type.
    """

    name: str
    value_type: Any
    index: AttributeIndex | None
    sync_to_attribute_store: bool
    hard_delete_on_null: bool

    if TYPE_CHECKING:

        @property
        def _held(self) -> T: ...

    @overload
    def __init__(
        self,
        name: str,
        value_type: type[T],
        index: AttributeIndex | None = None,
        sync_to_attribute_store: bool = False,
        hard_delete_on_null: bool = False,
    ) -> None: ...

    @overload
    def __init__(
        self,
        name: str,
        value_type: object,
        index: AttributeIndex | None = None,
        sync_to_attribute_store: bool = False,
        hard_delete_on_null: bool = False,
    ) -> None: ...

    def __init__(
        self,
        name: str,
        value_type: object,
        index: AttributeIndex | None = None,
        sync_to_attribute_store: bool = False,
        hard_delete_on_null: bool = False,
    ) -> None:
        _initialize(self, "Attribute", name, value_type, index, sync_to_attribute_store, hard_delete_on_null)

    @property
    def missing_value(self) -> Any:
        """What `get` answers when there is no value."""
        return _MISSING.get(self.value_type) if isinstance(self.value_type, type) else None

    @overload
    def get(self: Attribute[bool], context: Context) -> bool: ...

    @overload
    def get(self: Attribute[int], context: Context) -> int: ...

    @overload
    def get(self: Attribute[float], context: Context) -> float: ...

    @overload
    def get(self, context: Context) -> T | None: ...

    def get(self, context: Context) -> Any:
        """The value, with this handler's own staged writes."""
        value = runtime_of(context).get_attribute(self, None)
        return self.missing_value if value is None else value

    def set(self, context: Context, value: T | None) -> None:
        """Stages a write; None deletes."""
        runtime_of(context).set_attribute(self, None, value)

    def delete(self, context: Context) -> None:
        """Stages a deletion."""
        runtime_of(context).set_attribute(self, None, None)

    def lock(self) -> AttributeLock:
        """The lock of this Attribute, for the options of a Step or an RPC."""
        return AttributeLock(self)


@dataclass(frozen=True, slots=True, eq=False, init=False, weakref_slot=True)
class AttributeMap(Generic[T]):
    """Durable values of one type by instance key: non-empty text without "/". An index needs an index_key.

    Values are loaded only when a method selects them; keys are always there.
    """

    name: str
    value_type: Any
    index: AttributeIndex | None
    sync_to_attribute_store: bool
    hard_delete_on_null: bool

    if TYPE_CHECKING:

        @property
        def _held_by_instance(self) -> T: ...

    @overload
    def __init__(
        self,
        name: str,
        value_type: type[T],
        index: AttributeIndex | None = None,
        sync_to_attribute_store: bool = False,
        hard_delete_on_null: bool = False,
    ) -> None: ...

    @overload
    def __init__(
        self,
        name: str,
        value_type: object,
        index: AttributeIndex | None = None,
        sync_to_attribute_store: bool = False,
        hard_delete_on_null: bool = False,
    ) -> None: ...

    def __init__(
        self,
        name: str,
        value_type: object,
        index: AttributeIndex | None = None,
        sync_to_attribute_store: bool = False,
        hard_delete_on_null: bool = False,
    ) -> None:
        if index is not None and not index.index_key:
            raise ValueError(
                f"AttributeMap {name!r}: its index needs a name of its own: AttributeIndex(…, index_key=…)"
            )
        _initialize(self, "AttributeMap", name, value_type, index, sync_to_attribute_store, hard_delete_on_null)

    @property
    def missing_value(self) -> Any:
        """What `get` answers when there is no value."""
        return _MISSING.get(self.value_type) if isinstance(self.value_type, type) else None

    def load(self, instance: str) -> AttributeMapLoad:
        """Selects an instance's value, for the options of a Step or an RPC."""
        return AttributeMapLoad(self, instance)

    @overload
    def get(self: AttributeMap[bool], context: Context, instance: str) -> bool: ...

    @overload
    def get(self: AttributeMap[int], context: Context, instance: str) -> int: ...

    @overload
    def get(self: AttributeMap[float], context: Context, instance: str) -> float: ...

    @overload
    def get(self, context: Context, instance: str) -> T | None: ...

    def get(self, context: Context, instance: str) -> Any:
        """An instance's value, with this handler's own staged writes.

        Raises AttributeMapNotLoadedError unless the method selected the map or this instance, even after a staged
        write.
        """
        value = runtime_of(context).get_attribute(self, self._key(instance))
        return self.missing_value if value is None else value

    def set(self, context: Context, instance: str, value: T | None) -> None:
        """Stages a write; None deletes. Needs no load."""
        runtime_of(context).set_attribute(self, self._key(instance), value)

    def delete(self, context: Context, instance: str) -> None:
        """Stages a deletion."""
        runtime_of(context).set_attribute(self, self._key(instance), None)

    def get_map_size(self, context: Context) -> int:
        """The number of instances, with staged writes. Needs no load."""
        return len(runtime_of(context).attribute_keys(self))

    def get_all_instance_keys(self, context: Context) -> tuple[str, ...]:
        """All instances, with staged writes, sorted. Needs no load."""
        return runtime_of(context).attribute_keys(self)

    def lock(self, instance: str) -> AttributeLock:
        """The lock of one instance, for the options of a Step or an RPC. It loads no value."""
        return AttributeLock(self, self._key(instance))

    def _key(self, instance: str) -> str:
        return check_instance("AttributeMap", self.name, instance)


def _initialize(
    definition: Attribute[Any] | AttributeMap[Any],
    kind: str,
    name: str,
    value_type: object,
    index: AttributeIndex | None,
    sync: bool,
    hard_delete: bool,
) -> None:
    check_name(kind, name)
    if index is not None and not isinstance(index, AttributeIndex):
        raise TypeError(f"{kind} {name!r}: index takes an AttributeIndex, got {type(index).__name__}")
    if hard_delete:
        if value_type in _NEVER_HARD_DELETED or value_type is None:
            raise TypeError(
                f"{kind} {name!r}: hard_delete_on_null is for texts and objects, not for {_name(value_type)}"
            )
        if index is not None or sync:
            raise ValueError(
                f"{kind} {name!r}: hard_delete_on_null can't be combined with an index or sync_to_attribute_store, "
                "which keep copies of the value"
            )
    if index is not None:
        fitting = _INDEX_TYPES.get(get_origin(value_type) or value_type)
        if fitting is not None and index.type not in fitting:
            types = " or ".join(type.name for type in fitting) or "no IndexType"
            raise TypeError(f"{kind} {name!r}: values of type {_name(value_type)} fit {types}, not {index.type.name}")
    object.__setattr__(definition, "name", name)
    object.__setattr__(definition, "value_type", value_type)
    object.__setattr__(definition, "index", index)
    object.__setattr__(definition, "sync_to_attribute_store", sync)
    object.__setattr__(definition, "hard_delete_on_null", hard_delete)


def _name(value_type: object) -> str:
    return value_type.__name__ if isinstance(value_type, type) and not get_origin(value_type) else str(value_type)
