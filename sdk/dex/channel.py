"""Channels: queues of messages that belong to one Flow run.

Anyone may publish: Steps, RPCs, clients. Steps wait for messages and consume them. A `Channel` is one queue, a
  `ChannelMap` is
many, each with an instance key. Both are definitions: made once, listed in the Flow's persistence schema, and used
  with the Context of the
running handler. What a handler publishes or deletes is staged and committed with its result.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, overload

from dex._runtime import runtime_of
from dex.context import Context
from dex.names import check_instance, check_name, physical_name
from dex.wait import ChannelCondition, Condition

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


@dataclass(frozen=True, slots=True)
class ChannelMessage(Generic[T_co]):
    """A pending message. `message_id` (UUIDv7 text) is what `delete` takes."""

    message_id: str
    value: T_co


@dataclass(frozen=True, slots=True, eq=False, init=False, weakref_slot=True)
class Channel(Generic[T]):
    """A queue of values of one type. The very object that the Flow's schema lists is the one to use.

        approval = Channel("approval", bool)
        notify = Channel("notify", None)  # messages without a value
        maybe: Channel[int | None] = Channel("maybe", int | None)  # type checkers need the annotation for unions

    Raises ValueError for a name that is blank or contains "/".
    """

    name: str
    value_type: Any

    @overload
    def __init__(self: Channel[None], name: str, value_type: None) -> None: ...

    @overload
    def __init__(self, name: str, value_type: type[T]) -> None: ...

    @overload
    def __init__(self, name: str, value_type: object) -> None: ...

    def __init__(self, name: str, value_type: object) -> None:
        object.__setattr__(self, "name", check_name("Channel", name))
        object.__setattr__(self, "value_type", value_type)

    def publish(self, context: Context, value: T) -> None:
        """Stages a message; it is committed, as the Channel's last, with the handler's result."""
        runtime_of(context).publish(self, None, value)

    def delete(self, context: Context, message_id: str) -> None:
        """Stages the removal of a pending message."""
        runtime_of(context).delete_message(self, None, message_id)

    def size(self, context: Context) -> int:
        """The number of pending messages, with this handler's staged ones counted in. Needs no load."""
        return runtime_of(context).channel_size(self, None)

    def pending_messages(self, context: Context) -> Sequence[ChannelMessage[T]]:
        """The messages pending when the attempt began, oldest first; staged ones do not show.

        Raises ChannelMessagesNotLoadedError unless the method selected this Channel in its StepOptions.
        """
        return runtime_of(context).pending_messages(self, None)

    def find_pending_message(self, context: Context, message_id: str) -> ChannelMessage[T] | None:
        """The pending message of this id, None without one; the same load rule."""
        return _find(self.pending_messages(context), message_id)

    def results(self, context: Context) -> Sequence[T]:
        """The messages that this Channel's winning conditions consumed, oldest first; empty when it lost. In execute
        only.
        """
        return runtime_of(context).channel_results(self, None)

    def for_one(self, *, condition_id: str | None = None) -> Condition:
        """Ready with one message, and takes one."""
        return _condition(self, None, 1, 1, condition_id)

    def for_n(self, count: int, *, condition_id: str | None = None) -> Condition:
        """Ready with `count` messages, and takes exactly these, oldest first."""
        return _condition(self, None, _count(self, count), count, condition_id)

    def at_least(self, count: int, *, condition_id: str | None = None) -> Condition:
        """Ready with `count` messages, and takes all that are there."""
        return _condition(self, None, _count(self, count), None, condition_id)

    def at_most(self, count: int, *, condition_id: str | None = None) -> Condition:
        """Ready at once, and takes what is there up to `count`."""
        return _condition(self, None, 0, _count(self, count), condition_id)

    def for_range(
        self, *, at_least: int | None = None, at_most: int | None = None, condition_id: str | None = None
    ) -> Condition:
        """Ready with `at_least` messages, and takes what is there up to `at_most`. One bound is needed."""
        return _range(self, None, at_least, at_most, condition_id)


@dataclass(frozen=True, slots=True)
class ChannelMapLoad:
    """Selects one instance of a ChannelMap to be loaded."""

    channel_map: ChannelMap[Any]
    instance: str

    def __post_init__(self) -> None:
        check_instance("ChannelMap", self.channel_map.name, self.instance)

    @property
    def physical_name(self) -> str:
        """The engine's name of it: `name`, or `name/quoted-instance`."""
        return physical_name(self.channel_map.name, self.instance)


@dataclass(frozen=True, slots=True, eq=False, init=False, weakref_slot=True)
class ChannelMap(Generic[T]):
    """Channels of one type by instance key: non-empty text without "/". An instance exists while it has messages."""

    name: str
    value_type: Any

    @overload
    def __init__(self: ChannelMap[None], name: str, value_type: None) -> None: ...

    @overload
    def __init__(self, name: str, value_type: type[T]) -> None: ...

    @overload
    def __init__(self, name: str, value_type: object) -> None: ...

    def __init__(self, name: str, value_type: object) -> None:
        object.__setattr__(self, "name", check_name("ChannelMap", name))
        object.__setattr__(self, "value_type", value_type)

    def load_messages(self, instance: str) -> ChannelMapLoad:
        """Selects an instance's pending messages, for the options of a Step or an RPC."""
        return ChannelMapLoad(self, instance)

    def publish(self, context: Context, instance: str, value: T) -> None:
        """As `Channel.publish`, to one instance."""
        runtime_of(context).publish(self, self._key(instance), value)

    def delete(self, context: Context, instance: str, message_id: str) -> None:
        """As `Channel.delete`, in one instance."""
        runtime_of(context).delete_message(self, self._key(instance), message_id)

    def size(self, context: Context, instance: str) -> int:
        """As `Channel.size`, of one instance."""
        return runtime_of(context).channel_size(self, self._key(instance))

    def pending_messages(self, context: Context, instance: str) -> Sequence[ChannelMessage[T]]:
        """As `Channel.pending_messages`, of one instance."""
        return runtime_of(context).pending_messages(self, self._key(instance))

    def find_pending_message(self, context: Context, instance: str, message_id: str) -> ChannelMessage[T] | None:
        """As `Channel.find_pending_message`, in one instance."""
        return _find(self.pending_messages(context, instance), message_id)

    def results(self, context: Context, instance: str) -> Sequence[T]:
        """As `Channel.results`, of one instance."""
        return runtime_of(context).channel_results(self, self._key(instance))

    def get_map_size(self, context: Context) -> int:
        """The number of instances that have messages, staged ones counted in. Needs no load."""
        return len(runtime_of(context).channel_keys(self))

    def get_all_instance_keys(self, context: Context) -> tuple[str, ...]:
        """The instances that have messages, staged ones counted in, sorted. Needs no load."""
        return runtime_of(context).channel_keys(self)

    def for_one(self, instance: str, *, condition_id: str | None = None) -> Condition:
        """As `Channel.for_one`, of one instance."""
        return _condition(self, self._key(instance), 1, 1, condition_id)

    def for_n(self, instance: str, count: int, *, condition_id: str | None = None) -> Condition:
        """As `Channel.for_n`, of one instance."""
        return _condition(self, self._key(instance), _count(self, count), count, condition_id)

    def at_least(self, instance: str, count: int, *, condition_id: str | None = None) -> Condition:
        """As `Channel.at_least`, of one instance."""
        return _condition(self, self._key(instance), _count(self, count), None, condition_id)

    def at_most(self, instance: str, count: int, *, condition_id: str | None = None) -> Condition:
        """As `Channel.at_most`, of one instance."""
        return _condition(self, self._key(instance), 0, _count(self, count), condition_id)

    def for_range(
        self,
        instance: str,
        *,
        at_least: int | None = None,
        at_most: int | None = None,
        condition_id: str | None = None,
    ) -> Condition:
        """As `Channel.for_range`, of one instance."""
        return _range(self, self._key(instance), at_least, at_most, condition_id)

    def _key(self, instance: str) -> str:
        return check_instance("ChannelMap", self.name, instance)


def _find(messages: Sequence[ChannelMessage[T]], message_id: str) -> ChannelMessage[T] | None:
    return next((message for message in messages if message.message_id == message_id), None)


def _range(
    channel: Channel[Any] | ChannelMap[Any],
    instance: str | None,
    at_least: int | None,
    at_most: int | None,
    condition_id: str | None,
) -> Condition:
    if at_least is None and at_most is None:
        raise ValueError(f"Channel {channel.name!r}: for_range needs a bound: at_least, at_most or both")
    least = 0 if at_least is None else _count(channel, at_least)
    most = None if at_most is None else _count(channel, at_most)
    return _condition(channel, instance, least, most, condition_id)


def _condition(
    channel: Channel[Any] | ChannelMap[Any],
    instance: str | None,
    at_least: int,
    at_most: int | None,
    condition_id: str | None,
) -> Condition:
    if at_most is not None and at_most < at_least:
        raise ValueError(
            f"Channel {channel.name!r}: at_most must be >= at_least, got at_least={at_least}, at_most={at_most}"
        )
    return ChannelCondition(
        channel=channel, instance=instance, at_least=at_least, at_most=at_most, condition_id=condition_id
    )


def _count(channel: Channel[Any] | ChannelMap[Any], bound: int) -> int:
    if type(bound) is not int:
        raise TypeError(
            f"Channel {channel.name!r}: a number of messages is an int, got {type(bound).__name__}: {bound!r}"
        )
    if bound < 0:
        raise ValueError(f"Channel {channel.name!r}: a number of messages must not be negative, got {bound}")
    return bound
