"""What a client's arguments become on the wire. No I/O: everything here returns or refuses.

A client knows a Flow by its id alone, so an Attribute, a Channel or a Stream is looked up in all Flows of the Registry:
the very object must be registered by at least one of them, as with a Context. Values are encoded by the type that their
definition declares, so that a mistake is found before anything is sent.

Every write has a request id. One that is made here is `fresh`: nobody can have sent it before. A start under an id of
the caller's own gets a `call_id` besides: to start twice under one id is not the same as to send one start twice.
"""

from __future__ import annotations

from typing import Any
from uuid import uuid4

from dex.attribute import Attribute, AttributeMap
from dex.channel import Channel, ChannelMap
from dex.definitions import FlowDefinition, RpcDefinition
from dex.durations import whole_seconds
from dex.errors import ValueMappingError
from dex.flow import Flow
from dex.names import check_flow_id, check_instance, physical_name
from dex.options import (
    AttributeMatch,
    FlowConfig,
    RPCInvokeOptions,
    StartFlowOptions,
    StepExecutionId,
    StopFlowOptions,
    TimerId,
    TimeTravelOptions,
    WaitForAttributeOptions,
    WaitForStepCompletionOptions,
)
from dex.registry import Registry
from dex.stream import MESSAGE_LIMIT, Stream
from dex.values import attach, detach
from dex.wire.service import (
    AttributeValue,
    DeleteFlow,
    GetAttribute,
    InvokeRpc,
    ListStreamMessages,
    Publish,
    ReadStream,
    SetAttribute,
    SkipTimer,
    StartFlow,
    StopFlow,
    StreamEntry,
    TimeTravel,
    UpdateFlowConfig,
    WaitForAttribute,
    WaitForStep,
    WriteStream,
)

Definition = Attribute[Any] | AttributeMap[Any] | Channel[Any] | ChannelMap[Any] | Stream[Any]


class RequestBuilder:
    """Builds requests for the Flows of one Registry; values above `limit` bytes are refused."""

    def __init__(self, registry: Registry, limit: int) -> None:
        if not isinstance(registry, Registry):
            raise TypeError(
                f"a client needs a Registry, got {type(registry).__name__}: write Client(Registry([MyFlow()]))"
            )
        self._registry = registry
        self._codecs = registry.codec_registry
        self._limit = limit
        definitions = [registry.definition(flow_type) for flow_type in registry.flows]
        self._registered = frozenset(
            id(known)
            for flow in definitions
            for group in (flow.attributes, flow.channels, flow.streams)
            for known in group.values()
        )

    # Requests ---------------------------------------------------------------------------------------------------------

    def start_flow(
        self, flow: Flow[Any], flow_id: str, value: Any, options: StartFlowOptions | None, request_id: str | None
    ) -> StartFlow:
        definition = self._registry.flow_of(flow)
        flow_type = definition.flow_type
        options = StartFlowOptions() if options is None else options
        if not isinstance(options, StartFlowOptions):
            raise TypeError(f"start_flow(options=…) takes StartFlowOptions, got {type(options).__name__}")
        if request_id is not None and options.request_id not in (None, request_id):
            raise ValueError(
                f"start_flow got two request ids, request_id={request_id!r} and options.request_id="
                f"{options.request_id!r}: give one"
            )
        identity, fresh = _identity(options.request_id if request_id is None else request_id)
        start = definition.start_step
        if start is None and value is not None:
            raise ValueError(
                f"Flow {flow_type!r} has no start Step and takes no input, got {type(value).__name__}: pass None"
            )
        timeout = self._registry.timeout_of(flow_type, options)
        attributes = self._registry.initial_attributes(flow_type, options.attributes, limit=self._limit)
        blobs: dict[str, bytes] = {}
        return StartFlow(
            flow_id=check_flow_id(flow_id),
            flow_type=flow_type,
            input=self._encode(
                value, None if start is None else start.input_type, f"input of Flow {flow_type!r}", blobs
            ),
            request_id=identity,
            call_id="" if fresh else str(uuid4()),
            fresh=fresh,
            id_reuse_policy=options.id_reuse_policy.name,
            ignore_already_started=options.ignore_already_started,
            timeout=timeout.seconds,
            timeout_policy=timeout.policy,
            timeout_handler=timeout.handler,
            start_delay=float(whole_seconds("start_delay", options.start_delay)),
            has_retry_policy=options.retry_policy is not None,
            config=self._registry.flow_config_spec(options.config_override),
            attributes={name: detach(payload, blobs) for name, payload in attributes.items()},
            blobs=blobs,
        )

    def publish(
        self, flow_id: str, channel: Channel[Any] | ChannelMap[Any], arguments: tuple[Any, ...], request_id: str | None
    ) -> Publish:
        name, values = self._target("publish", channel, arguments, Channel, ChannelMap)
        if not values:
            raise ValueError(f"publish to {_describe(channel)} needs at least one value; None is one")
        identity, fresh = _identity(request_id)
        blobs: dict[str, bytes] = {}
        where = f"message for Channel {name!r}"
        return Publish(
            flow_id=check_flow_id(flow_id),
            channel=name,
            values=tuple(self._encode(value, channel.value_type, where, blobs) for value in values),
            request_id=identity,
            fresh=fresh,
            blobs=blobs,
        )

    def set_attribute(
        self,
        flow_id: str,
        attribute: Attribute[Any] | AttributeMap[Any],
        arguments: tuple[Any, ...],
        request_id: str | None,
    ) -> SetAttribute:
        name, values = self._target("set_attribute", attribute, arguments, Attribute, AttributeMap)
        if len(values) != 1:
            raise TypeError(f"set_attribute of {_describe(attribute)} takes one value, got {len(values)}")
        identity, fresh = _identity(request_id)
        blobs: dict[str, bytes] = {}
        value = values[0]
        where = f"value of Attribute {name!r}"
        return SetAttribute(
            flow_id=check_flow_id(flow_id),
            name=name,
            value=None if value is None else self._encode(value, attribute.value_type, where, blobs),
            request_id=identity,
            fresh=fresh,
            blobs=blobs,
        )

    def get_attribute(
        self, flow_id: str, attribute: Attribute[Any] | AttributeMap[Any], arguments: tuple[Any, ...]
    ) -> GetAttribute:
        name, rest = self._target("get_attribute", attribute, arguments, Attribute, AttributeMap)
        if rest:
            raise TypeError(f"get_attribute of {_describe(attribute)} got {len(rest)} arguments too many")
        return GetAttribute(flow_id=check_flow_id(flow_id), name=name)

    def attribute_value(self, attribute: Attribute[Any] | AttributeMap[Any], answer: AttributeValue) -> Any:
        """The typed value that a GetAttribute found; as `Attribute.get` when there is none."""
        if not answer.found:
            return attribute.missing_value
        where = f"value of Attribute {attribute.name!r}"
        return self._codecs.decode(attach(answer.value, answer.blobs), attribute.value_type, where=where)

    def stop_flow(self, flow_id: str, options: StopFlowOptions | None, request_id: str | None) -> StopFlow:
        options = StopFlowOptions() if options is None else options
        if not isinstance(options, StopFlowOptions):
            raise TypeError(f"stop_flow(options=…) takes StopFlowOptions, got {type(options).__name__}")
        identity, fresh = _identity(request_id)
        return StopFlow(
            flow_id=check_flow_id(flow_id),
            stop_type=options.type.name,
            reason=options.reason or "",
            request_id=identity,
            fresh=fresh,
        )

    def invoke_rpc(
        self,
        flow: FlowDefinition,
        rpc: RpcDefinition,
        flow_id: str,
        value: Any,
        run_id: str,
        options: RPCInvokeOptions | None,
        request_id: str | None,
    ) -> InvokeRpc:
        where = f"input of RPC {flow.flow_type}.{rpc.name}"
        blobs: dict[str, bytes] = {}
        if rpc.has_input:
            payload = self._encode(value, rpc.input_type, where, blobs)
        elif value is None:
            payload = b""
        else:
            raise ValueError(f"{where}: it takes none, got {type(value).__name__}: pass None")
        identity, fresh = _identity(request_id)
        locks, attribute_instances, channel_instances = self._registry.rpc_call(
            flow.flow_type, rpc, RPCInvokeOptions() if options is None else options
        )
        return InvokeRpc(
            flow_id=check_flow_id(flow_id),
            flow_type=flow.flow_type,
            rpc=rpc.name,
            input=payload,
            has_input=rpc.has_input,
            run_id=run_id,
            timeout=self._registry.rpc_timeout(flow.flow_type, rpc.name),
            locks=locks,
            load_attribute_map_instances=attribute_instances,
            load_channel_map_instances=channel_instances,
            request_id=identity,
            fresh=fresh,
            blobs=blobs,
        )

    def skip_timer(
        self, flow_id: str, step_execution_id: StepExecutionId, timer_id: TimerId, request_id: str | None
    ) -> SkipTimer:
        identity, fresh = _identity(request_id)
        return SkipTimer(
            flow_id=check_flow_id(flow_id),
            step=str(step_execution_id),
            condition_id=timer_id.condition_id or "",
            condition_index=timer_id.condition_index or 0,
            request_id=identity,
            fresh=fresh,
        )

    def update_flow_config(self, flow_id: str, config: FlowConfig, request_id: str | None) -> UpdateFlowConfig:
        identity, fresh = _identity(request_id)
        return UpdateFlowConfig(
            flow_id=check_flow_id(flow_id),
            config=self._registry.flow_config_spec(config),
            request_id=identity,
            fresh=fresh,
        )

    def delete_flow(self, flow_id: str, run_id: str | None) -> DeleteFlow:
        if run_id is not None and (not isinstance(run_id, str) or not run_id):
            raise ValueError(f"delete_flow(run_id=…) takes the id of a run, or None for all runs; got {run_id!r}")
        return DeleteFlow(flow_id=check_flow_id(flow_id), run_id=run_id or "", fresh=True)

    def time_travel(self, flow_id: str, options: TimeTravelOptions, request_id: str | None) -> TimeTravel:
        identity, fresh = _identity(request_id)
        moment, method = options.history_event_time, options.step_method
        return TimeTravel(
            flow_id=check_flow_id(flow_id),
            point=options.type.name,
            history_event_time=0.0 if moment is None else moment.timestamp(),
            step_type=options.step_type or "",
            step="" if options.step_execution_id is None else str(options.step_execution_id),
            method="" if method is None else method.name.lower(),
            reason=options.reason or "",
            skip_writes_reapply=options.skip_writes_reapply,
            request_id=identity,
            fresh=fresh,
        )

    def wait_for_step(
        self, flow_id: str, step_execution_id: StepExecutionId, options: WaitForStepCompletionOptions
    ) -> WaitForStep:
        """The first poll; the others differ in `timeout`."""
        step = str(step_execution_id)
        return WaitForStep(
            flow_id=check_flow_id(flow_id),
            step=step,
            request_id=options.request_id or f"wait-for-step-completion:{step}",
            limit=options.internal_handler_timeout.total_seconds(),
            keep=bool(options.request_id),
        )

    def wait_for_attribute(
        self,
        flow_id: str,
        attribute: Attribute[Any] | AttributeMap[Any],
        arguments: tuple[Any, ...],
        match: AttributeMatch,
        options: WaitForAttributeOptions,
    ) -> WaitForAttribute:
        """The first poll; the others differ in `timeout`. Refuses an operand that no value of the Attribute equals."""
        name, _ = self._target("wait_for_attribute_match", attribute, arguments, Attribute, AttributeMap)
        operand, where = match.operand, f"operand of a match with Attribute {name!r}"
        if not {type(operand), attribute.value_type} <= {int, float}:
            try:
                self._codecs.encode(operand, attribute.value_type, where=where, limit=self._limit)
            except ValueMappingError as error:
                raise ValueError(f"wait_for_attribute_match: {error}") from error
        payload = self._codecs.encode(operand, type(operand), where=where, limit=self._limit)
        return WaitForAttribute(
            flow_id=check_flow_id(flow_id),
            name=name,
            operator=match.operator.value,
            operand=detach(payload, {}),
            request_id=options.request_id or f"wait-for-attribute:{name}{match}",
            limit=options.internal_handler_timeout.total_seconds(),
            keep=bool(options.request_id),
        )

    # Streams ----------------------------------------------------------------------------------------------------------

    def write_stream(self, flow_id: str, stream: Stream[Any], source: str, value: Any) -> WriteStream:
        self._check_stream("write_stream", stream)
        if not isinstance(source, str):
            raise TypeError(f"write_stream(source=…) must be a str, got {type(source).__name__}: {source!r}")
        if not source:
            raise ValueError(f"write_stream: the source of a message to Stream {stream.name!r} must not be empty")
        where = f"message for Stream {stream.name!r}"
        limit = min(self._limit, MESSAGE_LIMIT)
        return WriteStream(
            flow_id=check_flow_id(flow_id),
            stream=stream.name,
            source=source,
            value=self._codecs.encode(value, stream.value_type, where=where, limit=limit),
            capacity=stream.stream_capacity_bytes,
        )

    def read_stream(self, flow_id: str, stream: Stream[Any], token: str, limit: int) -> ReadStream:
        self._check_stream("read_stream", stream)
        return ReadStream(
            flow_id=check_flow_id(flow_id), stream=stream.name, token=_token("read_stream", token), limit=limit
        )

    def list_stream_messages(
        self, flow_id: str, stream: Stream[Any], page_size: int, token: str, largest: int
    ) -> ListStreamMessages:
        self._check_stream("list_stream_messages", stream)
        if not 1 <= page_size <= largest:
            raise ValueError(f"list_stream_messages: page_size must be from 1 to {largest}, got {page_size}")
        return ListStreamMessages(
            flow_id=check_flow_id(flow_id),
            stream=stream.name,
            page_size=page_size,
            token=_token("list_stream_messages", token),
        )

    def stream_value(self, stream: Stream[Any], entry: StreamEntry) -> Any:
        return self._codecs.decode(entry.value, stream.value_type, where=f"message of Stream {stream.name!r}")

    # Checks -----------------------------------------------------------------------------------------------------------

    def check_attribute(
        self, operation: str, attribute: Attribute[Any] | AttributeMap[Any], arguments: tuple[Any, ...]
    ) -> tuple[Any, ...]:
        """The arguments behind the Attribute and its instance."""
        return self._target(operation, attribute, arguments, Attribute, AttributeMap)[1]

    def _check_stream(self, operation: str, stream: Stream[Any]) -> None:
        if not isinstance(stream, Stream):
            raise TypeError(f"{operation} takes a Stream, got {type(stream).__name__}: {stream!r}")
        self._check_registered(operation, stream)

    def _target(
        self, operation: str, definition: Any, arguments: tuple[Any, ...], plain: type[Any], keyed: type[Any]
    ) -> tuple[str, tuple[Any, ...]]:
        """The physical name, and the arguments that are left when a map has taken its instance."""
        if not isinstance(definition, plain | keyed):
            raise TypeError(
                f"{operation} takes {plain.__name__} or {keyed.__name__}, "
                f"got {type(definition).__name__}: {definition!r}"
            )
        name: str = definition.name
        self._check_registered(operation, definition)
        if isinstance(definition, plain):
            return name, arguments
        if not arguments:
            raise TypeError(
                f"{operation} of {_describe(definition)} needs an instance: {operation}(id, map, instance, …)"
            )
        instance = check_instance(keyed.__name__, name, arguments[0])
        return physical_name(name, instance), arguments[1:]

    def _check_registered(self, operation: str, definition: Definition) -> None:
        if id(definition) not in self._registered:
            raise ValueError(
                f"{operation}: {_describe(definition)} is not registered by any Flow of this client's Registry "
                f"({', '.join(self._registry.flows) or 'it has none'}): use the very object that the Flow's "
                "persistence schema lists"
            )

    def _encode(self, value: Any, value_type: Any, where: str, blobs: dict[str, bytes]) -> bytes:
        return detach(self._codecs.encode(value, value_type, where=where, limit=self._limit), blobs)


def _identity(request_id: str | None) -> tuple[str, bool]:
    """A request id, and whether it is fresh."""
    if request_id is None:
        return str(uuid4()), True
    if not isinstance(request_id, str):
        raise TypeError(f"request_id must be a str, got {type(request_id).__name__}: {request_id!r}")
    if not request_id:
        raise ValueError('request_id must not be "": leave it out to have one made for this call')
    return request_id, False


def _token(operation: str, token: str) -> str:
    if not isinstance(token, str):
        raise TypeError(f"{operation}: a token is a str, got {type(token).__name__}: {token!r}")
    return token


def _describe(definition: Definition) -> str:
    return f"{type(definition).__name__} {definition.name!r}"
