"""The state behind one handler invocation: the snapshot that it reads, and the writes that it stages.

Reading
- All reads answer from the snapshot in the task, which is the same in every attempt of the call. Values are
  decoded anew at each read: a list that a handler changes in place changes nothing but that list.
- Own staged writes show where the handler would expect them: `Attribute.get`, sizes and keys. Pending messages
  and results are the snapshot alone.

Writing
- Nothing leaves before the handler has returned well. A handler that raises has staged nothing.
- Values are encoded at the call, so a wrong type is refused at the line that offers it.

The identity rule: a definition is usable when it is the very object that the Flow's schema registers. An equal
one made elsewhere is refused, because two definitions of one name that drift apart would be found out only by
the data.

When the handler has returned, the runtime is closed: a Context kept beyond its handler answers with ValueError.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, NoReturn
from urllib.parse import unquote

from dex._runtime import HandlerRuntime
from dex.channel import ChannelMessage
from dex.definitions import HandlerKind
from dex.errors import AttributeMapNotLoadedError, ChannelMessagesNotLoadedError
from dex.names import physical_name
from dex.step import stream_frame
from dex.stream import MESSAGE_LIMIT
from dex.values import CodecRegistry, attach
from dex.wire.specs import EXECUTE, RPC, WAIT_FOR
from dexray.attempts.ids import message_id as new_message_id
from dexray.attempts.reporter import Reporter
from dexray.attempts.rpcs import rpc_name
from dexray.attempts.subflows import condition_of, flow_result
from dexray.protocol.attempts import AttemptTask, ConditionResult, Heartbeat, Writes
from dexray.protocol.streams import StreamWrite

if TYPE_CHECKING:
    from dex.attribute import Attribute, AttributeMap
    from dex.channel import Channel, ChannelMap
    from dex.definitions import FlowDefinition
    from dex.results import FlowResult
    from dex.step import StepOutput
    from dex.stream import Stream

_HANDLER_OPTIONS = "FlowTimeoutHandlerOptions"


class AttemptRuntime(HandlerRuntime):
    def __init__(
        self, task: AttemptTask, definition: FlowDefinition, codecs: CodecRegistry, reporter: Reporter
    ) -> None:
        self.task = task
        self.codecs = codecs
        self.reporter = reporter
        self.deadline = reporter.now() + task.timeout
        self.kind = HandlerKind.SYNC
        self.last_heartbeat: Heartbeat | None = None
        self._definition = definition
        self._is_open = True
        self._attributes: dict[str, bytes | None] = {}
        self._publications: list[tuple[str, str, bytes]] = []
        self._deletions: dict[tuple[str, str], None] = {}
        self._size_changes: dict[str, int] = {}
        self._events: dict[str, bytes] = {}
        self._locals: dict[str, bytes] = {}
        self._finishers: list[Callable[[], None]] = []

    # The life of the invocation --------------------------------------------------------------------------------------

    def close(self) -> None:
        finishers, self._finishers = self._finishers, []
        for finish in finishers:
            finish()
        self._is_open = False

    def at_end(self, finish: Callable[[], None]) -> None:
        self._check_may_stream()
        self._finishers.append(finish)

    def check_open(self) -> None:
        if not self._is_open:
            raise ValueError(
                f"the Context of {self.name} is closed: its handler has returned, and what is staged now "
                "could not be committed with it. Use a Context only inside the handler that it was given to"
            )

    @property
    def name(self) -> str:
        key = self.task.key
        if key.method == RPC:
            return f"RPC {rpc_name(self.task)!r} (Flow {self.task.flow_type!r})"
        return f"{key.method} of {key.step_execution_id} (Flow {self.task.flow_type!r}, attempt {key.attempt})"

    def is_past_deadline(self) -> bool:
        return self.reporter.now() >= self.deadline

    def writes(self) -> Writes:
        """Everything staged, in the order of the calls."""
        return Writes(
            attributes=self._attributes,
            deletions=tuple(self._deletions),
            publications=tuple(self._publications),
            events=tuple(self._events.items()),
            locals=self._locals,
        )

    # Values ----------------------------------------------------------------------------------------------------------

    def decode(self, payload: bytes, value_type: Any, where: str) -> Any:
        return self.codecs.decode(attach(payload, self.task.blobs), value_type, where=where)

    # Channels --------------------------------------------------------------------------------------------------------

    def publish(self, channel: Channel[Any] | ChannelMap[Any], instance: str | None, value: Any) -> None:
        name = self._channel(channel, instance)
        payload = self.codecs.encode(
            value, channel.value_type, where=f"message of Channel {name!r}", limit=self.task.max_value_bytes
        )
        identity = new_message_id(self.reporter.now(), len(self._publications))
        self._publications.append((name, identity, payload))
        self._size_changes[name] = self._size_changes.get(name, 0) + 1

    def delete_message(self, channel: Channel[Any] | ChannelMap[Any], instance: str | None, message_id: str) -> None:
        name = self._channel(channel, instance)
        if (name, message_id) in self._deletions:
            return
        self._deletions[name, message_id] = None
        pending = self._pending(channel, name)
        if pending is None or any(known == message_id for known, _ in pending):
            self._size_changes[name] = self._size_changes.get(name, 0) - 1

    def channel_size(self, channel: Channel[Any] | ChannelMap[Any], instance: str | None) -> int:
        return self._size(self._channel(channel, instance))

    def channel_keys(self, channel: ChannelMap[Any]) -> tuple[str, ...]:
        prefix = f"{self._channel(channel, None)}/"
        names = {*self.task.channel_sizes, *self._size_changes}
        return _keys(prefix, (name for name in names if name.startswith(prefix) and self._size(name) > 0))

    def pending_messages(
        self, channel: Channel[Any] | ChannelMap[Any], instance: str | None
    ) -> Sequence[ChannelMessage[Any]]:
        name = self._channel(channel, instance)
        pending = self._pending(channel, name)
        if pending is None:
            kind = "channel" if instance is None else "channel_map"
            raise ChannelMessagesNotLoadedError(
                f"the pending messages of Channel {name!r} are not loaded in {self.name}: "
                f"select them with {self._load_options(kind)}"
            )
        where = f"message of Channel {name!r}"
        return tuple(
            ChannelMessage(message_id, self.decode(payload, channel.value_type, where))
            for message_id, payload in pending
        )

    def channel_results(self, channel: Channel[Any] | ChannelMap[Any], instance: str | None) -> Sequence[Any]:
        name = self._channel(channel, instance)
        where = f"message of Channel {name!r}"
        return tuple(
            self.decode(payload, channel.value_type, where)
            for condition in self.conditions("channel")
            if condition.channel == name
            for payload in condition.messages
        )

    def _channel(self, channel: Channel[Any] | ChannelMap[Any], instance: str | None) -> str:
        self.check_open()
        if self._definition.channels.get(channel.name) is not channel:
            self._refuse_undeclared(channel, self._definition.channels.get(channel.name))
        return channel.name if instance is None else physical_name(channel.name, instance)

    def _size(self, name: str) -> int:
        return max(0, self.task.channel_sizes.get(name, 0) + self._size_changes.get(name, 0))

    def _pending(self, channel: Channel[Any] | ChannelMap[Any], name: str) -> tuple[tuple[str, bytes], ...] | None:
        """The loaded messages; None when they were not selected."""
        loaded = self.task.loaded_channels.get(name)
        if loaded is None and channel.name in self.task.loaded_channel_maps:
            return ()
        return loaded

    # Attributes ------------------------------------------------------------------------------------------------------

    def get_attribute(self, attribute: Attribute[Any] | AttributeMap[Any], instance: str | None) -> Any:
        name = self._attribute(attribute, instance)
        if instance is not None and not self._is_loaded(attribute.name, name):
            raise AttributeMapNotLoadedError(
                f"the value of AttributeMap {attribute.name!r} at {instance!r} is not loaded in {self.name}: "
                f"select it with {self._load_options('attribute_map')}"
            )
        payload = self._attributes[name] if name in self._attributes else self.task.attributes.get(name)
        return None if payload is None else self.decode(payload, attribute.value_type, f"Attribute {name!r}")

    def set_attribute(self, attribute: Attribute[Any] | AttributeMap[Any], instance: str | None, value: Any) -> None:
        name = self._attribute(attribute, instance)
        payload: bytes | None = None
        if value is not None:
            payload = self.codecs.encode(
                value, attribute.value_type, where=f"Attribute {name!r}", limit=self.task.max_value_bytes
            )
        self._attributes.pop(name, None)  # the order is that of the last call
        self._attributes[name] = payload

    def attribute_keys(self, attribute: AttributeMap[Any]) -> tuple[str, ...]:
        prefix = f"{self._attribute(attribute, None)}/"
        names = {name for name in self.task.attribute_keys if name.startswith(prefix)}
        for name, payload in self._attributes.items():
            if name.startswith(prefix):
                (names.discard if payload is None else names.add)(name)
        return _keys(prefix, names)

    def _attribute(self, attribute: Attribute[Any] | AttributeMap[Any], instance: str | None) -> str:
        self.check_open()
        if self._definition.attributes.get(attribute.name) is not attribute:
            self._refuse_undeclared(attribute, self._definition.attributes.get(attribute.name))
        return attribute.name if instance is None else physical_name(attribute.name, instance)

    def _is_loaded(self, map_name: str, name: str) -> bool:
        return map_name in self.task.loaded_attribute_maps or name in self.task.loaded_attribute_instances

    # What a wait gave ------------------------------------------------------------------------------------------------

    def conditions(self, kind: str) -> list[ConditionResult]:
        """The outcomes of the wait's conditions of one kind, in the order of their declaration."""
        self.check_open()
        if self.task.key.method != EXECUTE:
            raise ValueError(
                f"the results of a wait are there in execute only, not in {self.name}: "
                "wait_for returns the Wait, and execute of the same Step reads what satisfied it"
            )
        return [condition for condition in self.task.conditions if condition.kind == kind]

    def has_timer_fired(self, index: int | None) -> bool:
        if index is not None and index < 0:
            raise ValueError(f"has_timer_fired: the index of a Timer counts from 0, got {index}")
        timers = self.conditions("timer")
        if index is None:
            return any(timer.fired for timer in timers)
        return index < len(timers) and timers[index].fired

    # Locals, events, heartbeats --------------------------------------------------------------------------------------

    def set_local(self, key: str, value: Any) -> None:
        self.check_open()
        self._locals[key] = self.codecs.encode_dynamic(
            value, where=f"Step execution local {key!r}", limit=self.task.max_value_bytes
        )

    def get_local(self, key: str, value_type: Any) -> Any:
        self.check_open()
        payload = self._locals.get(key, self.task.locals.get(key))
        return None if payload is None else self.decode(payload, value_type, f"Step execution local {key!r}")

    def record_event(self, name: str, value: Any) -> None:
        self.check_open()
        if name in self._events:
            raise ValueError(
                f"record_event: {self.name} has recorded an event {name!r} already; "
                "give each event of one handler a name of its own"
            )
        self._events[name] = self.codecs.encode_dynamic(value, where=f"event {name!r}", limit=self.task.max_value_bytes)

    def heartbeat(self, has_value: bool, value: Any) -> None:
        """Sends a sign of life with a checkpoint, or with none, which clears the stored one."""
        self.check_open()
        payload = (
            self.codecs.encode_dynamic(value, where="heartbeat value", limit=self.task.max_value_bytes)
            if has_value
            else None
        )
        heartbeat = Heartbeat(has_value, payload)
        self.last_heartbeat = heartbeat
        self.reporter.heartbeat(heartbeat)

    def last_heartbeat_value(self, value_type: Any) -> Any:
        self.check_open()
        if not self.task.has_heartbeat or self.task.heartbeat is None:
            return None
        return self.decode(self.task.heartbeat, value_type, "heartbeat value")

    def subflow_result(self, index: int) -> FlowResult:
        return flow_result(condition_of(self.conditions("subflow"), index, self.name), self.codecs, self.task.blobs)

    def subflow_flow_id(self, index: int) -> str:
        return condition_of(self.conditions("subflow"), index, self.name).subflow_id

    # Streams ---------------------------------------------------------------------------------------------------------

    def write_stream(self, stream: Stream[Any], value: Any) -> StepOutput | None:
        """The value is encoded here in both forms; the frame of a generator holds the payload."""
        self._check_may_stream()
        self._check_stream(stream)
        if self.kind is HandlerKind.SYNC:
            raise ValueError(
                f"Stream {stream.name!r} can't be written in {self.name}, which is a plain function: make it a "
                "generator and `yield` what Stream.write returns, or make it asynchronous"
            )
        where = f"message for Stream {stream.name!r}"
        payload = self.codecs.encode(value, stream.value_type, where=where, limit=MESSAGE_LIMIT)
        if self.kind is HandlerKind.GENERATOR:
            return stream_frame(stream, payload)
        self.send_stream(stream, payload)
        return None

    def send_stream(self, stream: Stream[Any], payload: bytes) -> None:
        """Sends a message; nothing that becomes of it comes back."""
        self._check_stream(stream)
        key = self.task.key
        self.reporter.stream(
            StreamWrite(key.flow_id, stream.name, f"#{key.step_execution_id}", stream.stream_capacity_bytes, payload)
        )

    def _check_may_stream(self) -> None:
        self.check_open()
        if self.task.key.method == RPC:
            raise ValueError(
                f"a Stream is written by Steps, and this is {self.name}: start a Step with "
                "RPCResult(..., next_steps=...), or write with Client.write_stream"
            )

    def _check_stream(self, stream: Stream[Any]) -> None:
        if self._definition.streams.get(stream.name) is not stream:
            self._refuse_undeclared(stream, self._definition.streams.get(stream.name))

    def _load_options(self, kind: str) -> str:
        """The options that load values of a Channel, a ChannelMap or an AttributeMap, in words."""
        method = self.task.key.method
        if method == RPC:
            of_call = f", or RPCInvokeOptions(load_{kind}_instances=…) of the call" if kind.endswith("_map") else ""
            return f"@rpc(load_{kind}s=…){of_call}"
        owner, prefix = ("StepOptions", f"{method}_") if method in (WAIT_FOR, EXECUTE) else (_HANDLER_OPTIONS, "")
        names = [f"{prefix}load_{kind}s"]
        if kind.endswith("_map"):
            names.append(f"{prefix}load_{kind}_instances")
        return f"{' or '.join(names)} in {owner}"

    def _refuse_undeclared(self, thing: Any, declared: object | None) -> NoReturn:
        kind = type(thing).__name__
        if declared is None:
            raise ValueError(
                f"{kind} {thing.name!r} is not declared by Flow {self.task.flow_type!r}: "
                "add it to get_persistence_schema()"
            )
        raise ValueError(
            f"{kind} {thing.name!r} is not the one that Flow {self.task.flow_type!r} declares: "
            f"use the very {type(declared).__name__} object that get_persistence_schema() returns, "
            "not another of the same name"
        )


def _keys(prefix: str, names: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted(unquote(name[len(prefix) :]) for name in names))
