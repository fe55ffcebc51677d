"""The Registry: all Flows of one deployment, checked when it is made, and described as data.

    registry = Registry([OrderFlow(), ShippingFlow()])

A Registry is what is deployed: it can be pickled by cloudpickle, and is checked again where it arrives. It answers
  two parties. Those
who run code (clients, attempts) look up definitions; the machine, which knows no code, gets specs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from dex._checks import FlowChecker, flow_type_of
from dex._describe import Describer
from dex.attribute import AttributeIndex
from dex.definitions import FlowDefinition, HandlerKind, RpcDefinition, StepDefinition
from dex.durations import whole_seconds
from dex.errors import FlowDefinitionError
from dex.flow import Flow
from dex.names import LONGEST_INDEX_KEY, SEARCH_FIELDS, physical_name
from dex.options import (
    ActiveStepSearchMode,
    FlowConfig,
    FlowTimeoutHandlerOptions,
    FlowTimeoutPolicy,
    InitialAttribute,
    RPCInvokeOptions,
    StartFlowOptions,
    StepDurability,
    StepOptions,
)
from dex.rpc import rpc_options_of
from dex.step import Step
from dex.stream import Stream
from dex.subflow import SubFlowOptions
from dex.values import DEFAULT_LIMIT, CodecRegistry
from dex.wire.service import FlowConfigSpec
from dex.wire.specs import DeploymentSpec, FlowSpec, StepSpec, TimeoutHandlerSpec


@dataclass(frozen=True, slots=True)
class FlowTimeout:
    """The timeout of a run as it was resolved: seconds (0: none), policy ("" without a timeout, FAIL, CANCEL or
    HANDLER).
    """

    seconds: float = 0.0
    policy: str = ""
    handler: TimeoutHandlerSpec | None = None


class Registry:
    """Flows with their codecs.

    flows: instances, one per Flow type. codec_registry: how values are stored; None: the usual way.
    allow_async_handlers: whether handlers may be `async def`.
    Raises FlowDefinitionError, naming the Flow, the Step or RPC, the thing and the way out, for anything that is
      wrong in them.
    """

    def __init__(
        self,
        flows: Sequence[Flow[Any]],
        codec_registry: CodecRegistry | None = None,
        *,
        allow_async_handlers: bool = False,
    ) -> None:
        if isinstance(flows, Flow | type) or not isinstance(flows, Iterable):
            raise FlowDefinitionError(f"a Registry takes a list of Flows, got {flows!r}: write Registry([MyFlow()])")
        if codec_registry is not None and not isinstance(codec_registry, CodecRegistry):
            raise TypeError(f"codec_registry takes a CodecRegistry, got {type(codec_registry).__name__}")
        self._codecs = CodecRegistry() if codec_registry is None else codec_registry
        self._allow_async = allow_async_handlers
        self._definitions: dict[str, FlowDefinition] = {}
        for flow in flows:
            flow_type = flow_type_of(flow)
            if flow_type in self._definitions:
                raise FlowDefinitionError(
                    f"two Flows have the type {flow_type!r}: list each Flow once, or override get_flow_type()"
                )
            self._definitions[flow_type] = FlowChecker(flow, self._codecs, allow_async_handlers).definition()
        _check_index_keys(self._definitions.values())
        _check_streams(self._definitions.values())
        self._describers = {flow_type: Describer(known) for flow_type, known in self._definitions.items()}
        self._specs: dict[str, FlowSpec] = {
            flow_type: describer.flow() for flow_type, describer in self._describers.items()
        }
        self._flows = MappingProxyType({flow_type: known.flow for flow_type, known in self._definitions.items()})

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuilt, (tuple(self._flows.values()), self._codecs, self._allow_async)

    @staticmethod
    def physical_name(name: str, instance: str) -> str:
        """The engine's name of one instance of a map: `name/quoted-instance`."""
        return physical_name(name, instance)

    # Looking up ------------------------------------------------------------------------------------------------------

    @property
    def codec_registry(self) -> CodecRegistry:
        """How values are encoded: the one that was given, or a plain one."""
        return self._codecs

    @property
    def allow_async_handlers(self) -> bool:
        """Whether handlers may be `async def`."""
        return self._allow_async

    @property
    def flows(self) -> Mapping[str, Flow[Any]]:
        """The Flows by type, in their order."""
        return self._flows

    def flow(self, flow_type: str) -> Flow[Any]:
        """The Flow of a type; FlowDefinitionError when it is not registered."""
        return self.definition(flow_type).flow

    def definition(self, flow_type: str) -> FlowDefinition:
        """What is known of the Flow of a type; FlowDefinitionError when it is not registered."""
        found = self._definitions.get(flow_type)
        if found is None:
            raise FlowDefinitionError(
                f"Flow {flow_type!r} is not registered. Registered: {', '.join(self._definitions) or 'none'}"
            )
        return found

    def flow_of(self, flow: Flow[Any]) -> FlowDefinition:
        """What is known of a Flow instance; FlowDefinitionError unless it is the very instance that is registered."""
        found = self._definitions.get(flow.get_flow_type()) if isinstance(flow, Flow) else None
        if found is None or found.flow is not flow:
            name = flow.get_flow_type() if isinstance(flow, Flow) else repr(flow)
            reason = (
                "another instance of this type is: use the one given to the Registry"
                if found is not None
                else "give it to the Registry"
            )
            raise FlowDefinitionError(f"Flow instance is not registered: {name} ({reason})")
        return found

    def rpc_of(self, method: Callable[..., Any]) -> tuple[FlowDefinition, RpcDefinition]:
        """The Flow and the RPC of a bound method; FlowDefinitionError unless it is an RPC of a registered instance."""
        flow = getattr(method, "__self__", None)
        name = getattr(method, "__name__", repr(method))
        if isinstance(flow, Flow):
            known = self._definitions.get(flow.get_flow_type())
            if known is not None and known.flow is flow:
                options = rpc_options_of(method)
                found = None if options is None else known.rpcs.get(options.name or name)
                if found is not None and found.method_name == name:
                    return known, found
                raise FlowDefinitionError(
                    f"RPC method is not registered: {known.flow_type}.{name} is no RPC: decorate it with @rpc"
                )
        raise FlowDefinitionError(
            f"RPC method is not registered: {name}: pass the bound method of a registered Flow instance, as flow.{name}"
        )

    def find_step(self, flow_type: str, step: type[Step[Any]] | Step[Any] | str) -> StepDefinition:
        """The Step of a Flow that a class, an instance or a name stands for, by its durable name."""
        return self.definition(flow_type).find_step(step)

    # Describing ------------------------------------------------------------------------------------------------------

    def describe(self, deployment_id: str) -> DeploymentSpec:
        """All Flows as data, under the name of their code."""
        return DeploymentSpec(deployment_id=deployment_id, flows=dict(self._specs))

    def step_spec(
        self, flow_type: str, step: type[Step[Any]] | Step[Any] | str, options: StepOptions | None = None
    ) -> StepSpec:
        """A Step as data, a movement's options over its own: fields left at their default keep the Step's value."""
        known = self.find_step(flow_type, step)
        if options is None:
            return self._specs[flow_type].steps[known.step_type]
        return self._describers[flow_type].step(known, options)

    def rpc_timeout(self, flow_type: str, name: str) -> float:
        """Seconds that a call of an RPC may take."""
        return self._specs[flow_type].rpcs[name].timeout

    def rpc_call(
        self, flow_type: str, rpc: RpcDefinition, options: RPCInvokeOptions
    ) -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
        """Physical names that a call adds to its RPC: locks, AttributeMap instances, ChannelMap instances to load."""
        return self._describers[flow_type].rpc_call(rpc, options)

    def timeout_handler_spec(
        self, flow_type: str, options: FlowTimeoutHandlerOptions | None = None
    ) -> TimeoutHandlerSpec:
        """The timeout handler of a Flow as data. FlowDefinitionError for options that are wrong."""
        if options is not None and not isinstance(options, FlowTimeoutHandlerOptions):
            raise TypeError(f"timeout_handler_options takes FlowTimeoutHandlerOptions, got {type(options).__name__}")
        self.definition(flow_type)
        return self._describers[flow_type].timeout_handler(options or FlowTimeoutHandlerOptions())

    def timeout_of(self, flow_type: str, options: StartFlowOptions | SubFlowOptions) -> FlowTimeout:
        """The timeout that options ask for. ValueError when they don't go together, or with the Flow."""
        known = self.definition(flow_type)
        seconds = whole_seconds("timeout", options.timeout)
        policy = options.timeout_policy
        if not isinstance(policy, FlowTimeoutPolicy):
            raise TypeError(f"timeout_policy takes a FlowTimeoutPolicy, got {policy!r}")
        if seconds == 0:
            if policy is not FlowTimeoutPolicy.DEFAULT:
                raise ValueError(
                    f"Flow {flow_type!r}: timeout_policy {policy.name} requires a positive timeout: "
                    "set timeout=timedelta(…)"
                )
            if options.timeout_handler_options is not None:
                raise ValueError(f"Flow {flow_type!r}: timeout_handler_options requires a positive timeout")
            return FlowTimeout()
        if policy is FlowTimeoutPolicy.DEFAULT:
            policy = FlowTimeoutPolicy.HANDLER if known.has_timeout_handler else FlowTimeoutPolicy.FAIL
        if policy is not FlowTimeoutPolicy.HANDLER:
            if options.timeout_handler_options is not None:
                raise ValueError(
                    f"Flow {flow_type!r}: timeout_handler_options need the timeout policy HANDLER, "
                    f"which is {policy.name} here"
                )
            return FlowTimeout(float(seconds), policy.name)
        if not known.has_timeout_handler:
            raise ValueError(
                f"Flow {flow_type!r}: timeout_policy HANDLER, but the Flow has no handle_timeout override: "
                "override it, or choose FAIL or CANCEL"
            )
        handler = self.timeout_handler_spec(flow_type, options.timeout_handler_options)
        return FlowTimeout(float(seconds), policy.name, handler)

    def initial_attributes(
        self, flow_type: str, attributes: Iterable[InitialAttribute], *, limit: int = DEFAULT_LIMIT
    ) -> dict[str, bytes]:
        """The payloads of initial Attributes by physical name; the last value of a name counts, None is no value.

        Raises ValueError for an Attribute that is not the Flow's, ValueMappingError for a value of another type.
        """
        known = self.definition(flow_type).attributes
        payloads: dict[str, bytes] = {}
        for initial in attributes:
            attribute = initial.attribute
            if known.get(attribute.name) is not attribute:
                reason = (
                    "is not the one that get_persistence_schema() returns"
                    if attribute.name in known
                    else "is not registered: add it to get_persistence_schema()"
                )
                raise ValueError(f"Flow {flow_type!r}: {type(attribute).__name__} {attribute.name!r} {reason}")
            name = initial.physical_name
            payloads.pop(name, None)
            if initial.value is not None:
                payloads[name] = self._codecs.encode(
                    initial.value, attribute.value_type, where=f"initial Attribute {name!r}", limit=limit
                )
        return payloads

    @staticmethod
    def flow_config_spec(config: FlowConfig | None) -> FlowConfigSpec:
        """A FlowConfig as data; DEFAULT is "not given". TypeError for fields of another type."""
        return flow_config_spec(config)


def flow_config_spec(config: FlowConfig | None) -> FlowConfigSpec:
    """A FlowConfig as data; DEFAULT is "not given". TypeError for fields of another type."""
    if config is None:
        return FlowConfigSpec()
    if not isinstance(config, FlowConfig):
        raise TypeError(f"expected a FlowConfig, got {type(config).__name__}: {config!r}")
    search, durability, stores = (
        config.active_step_search_mode,
        config.step_durability,
        config.attribute_store_names,
    )
    if search is not None and not isinstance(search, ActiveStepSearchMode):
        raise TypeError(f"FlowConfig.active_step_search_mode takes an ActiveStepSearchMode, got {search!r}")
    if durability is not None and not isinstance(durability, StepDurability):
        raise TypeError(f"FlowConfig.step_durability takes a StepDurability, got {durability!r}")
    for name in ("continue_as_new_threshold", "continue_as_new_page_size_bytes"):
        value = getattr(config, name)
        if value is not None and type(value) is not int:
            raise TypeError(f"FlowConfig.{name} takes an int, got {value!r}")
    if stores is not None and (
        type(stores) not in (tuple, list) or not all(isinstance(name, str) and name for name in stores)
    ):
        raise TypeError(f"FlowConfig.attribute_store_names takes a list of names, got {stores!r}")
    return FlowConfigSpec(
        active_step_search_mode=None if search in (None, ActiveStepSearchMode.DEFAULT) else search.name,
        continue_as_new_threshold=config.continue_as_new_threshold,
        continue_as_new_page_size_bytes=config.continue_as_new_page_size_bytes,
        step_durability=None if durability in (None, StepDurability.DEFAULT) else durability.name,
        attribute_store_names=None if stores is None else tuple(stores),
    )


def _rebuilt(flows: tuple[Flow[Any], ...], codecs: CodecRegistry, allow_async: bool) -> Registry:
    return Registry(flows, codecs, allow_async_handlers=allow_async)


def _check_index_keys(definitions: Iterable[FlowDefinition]) -> None:
    """One index key has one type over all Flows, because search knows keys and not Flows."""
    known: dict[str, tuple[AttributeIndex, str]] = {}
    for definition in definitions:
        for attribute in definition.attributes.values():
            if attribute.index is None:
                continue
            key = attribute.index.index_key or attribute.name
            place = f"Flow {definition.flow_type!r}, {type(attribute).__name__} {attribute.name!r}"
            if key in SEARCH_FIELDS:
                raise FlowDefinitionError(
                    f"index key {key!r} in {place} is the name of something that every run has: give it another "
                    "index_key"
                )
            if len(key) > LONGEST_INDEX_KEY:
                raise FlowDefinitionError(
                    f"index key {key[:40]!r}… in {place} has {len(key)} characters, at most {LONGEST_INDEX_KEY} are "
                    "allowed: give it another index_key"
                )
            first, first_place = known.setdefault(key, (attribute.index, place))
            if first.type is not attribute.index.type:
                raise FlowDefinitionError(
                    f"index key {key!r} has two types: {first.type.name} in {first_place} and "
                    f"{attribute.index.type.name} in {place}: give one of them another index_key"
                )


def _check_streams(definitions: Iterable[FlowDefinition]) -> None:
    known: dict[Stream[Any], str] = {}
    for definition in definitions:
        for stream in definition.streams.values():
            other = known.setdefault(stream, definition.flow_type)
            if other != definition.flow_type:
                raise FlowDefinitionError(
                    f"Stream {stream.name!r} is declared by two Flows, {other!r} and {definition.flow_type!r}: "
                    "make a Stream object for each"
                )


__all__ = [
    "FlowDefinition",
    "FlowTimeout",
    "HandlerKind",
    "Registry",
    "RpcDefinition",
    "StepDefinition",
    "flow_config_spec",
]
