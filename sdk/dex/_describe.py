"""Definitions and options as data: the specs that the machine works by.

Everything a user may have set wrongly in options is found here, because here each option gets its meaning: durations,
  retry policies, locks,
loads, failure routes, resources. A Registry describes all its Flows when it is made, so the mistakes of Steps show
  then; the
options of a movement or of a start are described, and checked, when they are used. Errors name the Flow, the Step and
  the option.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from typing import Any, Final, TypeVar

from dex._annotations import same_type, type_text
from dex.attribute import Attribute, AttributeLock, AttributeMap, AttributeMapLoad
from dex.channel import Channel, ChannelMap, ChannelMapLoad
from dex.definitions import FlowDefinition, HandlerKind, RpcDefinition, StepDefinition
from dex.durations import LONGEST_SECONDS, whole_seconds
from dex.errors import FlowDefinitionError
from dex.options import (
    ExecuteFailureRoute,
    FlowTimeoutHandlerOptions,
    RetryPolicy,
    RPCInvokeOptions,
    StepDurability,
    StepOptions,
    StepResources,
    WaitForFailurePolicy,
)
from dex.rpc import RpcOptions
from dex.wire.specs import (
    FailureRoute,
    FlowSpec,
    IndexSpec,
    LoadSpec,
    MethodSpec,
    ResourceSpec,
    RetrySpec,
    RpcSpec,
    StepSpec,
    TimeoutHandlerSpec,
)

T = TypeVar("T")

SHORTEST_HEARTBEAT_TIMEOUT: Final = 10
_DEFAULT_METHOD: Final = MethodSpec()
_DEFAULT_RETRY: Final = RetrySpec()
_DEFAULT_RPC: Final = RpcSpec(name="")
_OWN_ARGUMENTS: Final = {"CPU": "num_cpus", "GPU": "num_gpus", "memory": "memory"}


class Describer:
    """Describes one Flow, with the errors that its options deserve."""

    def __init__(self, definition: FlowDefinition) -> None:
        self._definition = definition
        self._flow = f"Flow {definition.flow_type!r}"

    def flow(self) -> FlowSpec:
        known = self._definition
        return FlowSpec(
            flow_type=known.flow_type,
            start_step=None if known.start_step is None else known.start_step.step_type,
            steps={step_type: self.step(step) for step_type, step in known.steps.items()},
            rpcs={name: self.rpc(found) for name, found in known.rpcs.items()},
            channels=tuple(name for name, found in known.channels.items() if isinstance(found, Channel)),
            channel_maps=tuple(name for name, found in known.channels.items() if isinstance(found, ChannelMap)),
            attributes=tuple(name for name, found in known.attributes.items() if isinstance(found, Attribute)),
            attribute_maps=tuple(name for name, found in known.attributes.items() if isinstance(found, AttributeMap)),
            indexes={
                name: IndexSpec(key=found.index.index_key or name, type=found.index.type.name)
                for name, found in known.attributes.items()
                if found.index is not None
            },
            hard_deleted=tuple(name for name, found in known.attributes.items() if found.hard_delete_on_null),
            synced=tuple(name for name, found in known.attributes.items() if found.sync_to_attribute_store),
            has_timeout_handler=known.has_timeout_handler,
            timeout_handler_is_async=known.timeout_handler is HandlerKind.ASYNC,
        )

    def step(
        self,
        step: StepDefinition,
        options: StepOptions | None = None,
        trail: tuple[tuple[str, StepOptions], ...] = (),
    ) -> StepSpec:
        """A Step with its own options, and those of a movement over them. `trail`: the routes that led here."""
        where = f"{self._flow}, Step {step.step_type!r}"
        if options is not None and not isinstance(options, StepOptions):
            raise FlowDefinitionError(f"{where}: options are StepOptions(...), got {type(options).__name__}")
        merged = step.options.merged_with(options)
        if not isinstance(merged.wait_for_failure, WaitForFailurePolicy):
            raise FlowDefinitionError(
                f"{where}: wait_for_failure takes a WaitForFailurePolicy, got {merged.wait_for_failure!r}"
            )
        kill_after = self._kill_after(where, step, merged)
        if not isinstance(merged.detached, bool):
            raise FlowDefinitionError(f"{where}: detached is True or False, got {merged.detached!r}")
        wait_for = self._method(where, "wait_for_", step.wait_for or step.execute, merged, kill_after)
        return StepSpec(
            step_type=step.step_type,
            wait_for=None if step.wait_for is None else wait_for,
            execute=self._method(where, "execute_", step.execute, merged, kill_after, merged.detached),
            proceed_on_wait_failure=merged.wait_for_failure is WaitForFailurePolicy.PROCEED,
            failure_route=self._route(where, merged.execute_failure, step.input_type, trail),
            resources=resource_spec(where, merged.resources),
        )

    def timeout_handler(self, options: FlowTimeoutHandlerOptions) -> TimeoutHandlerSpec:
        where = f"{self._flow}, handle_timeout"
        kind = self._definition.timeout_handler or HandlerKind.SYNC
        return TimeoutHandlerSpec(
            method=self._method(where, "", kind, options),
            failure_route=self._route(where, options.failure, type(None), ()),
        )

    def rpc(self, rpc: RpcDefinition) -> RpcSpec:
        where = f"{self._flow}, RPC {rpc.name!r}"
        options = rpc.options
        if type(options.is_transactional) is not bool:
            raise FlowDefinitionError(f"{where}: is_transactional is a bool, got {options.is_transactional!r}")
        locks = self._locks(where, "lock_attributes", options.lock_attributes)
        resources = resource_spec(where, options.resources)
        if rpc.kind is not HandlerKind.ASYNC and not resources.options:
            # Steps may keep every CPU busy for hours, and may themselves wait for the answer of an RPC.
            resources = ResourceSpec(options={"num_cpus": 0})
        return RpcSpec(
            name=rpc.name,
            is_async=rpc.kind is HandlerKind.ASYNC,
            timeout=seconds(where, "timeout", options.timeout) or _DEFAULT_RPC.timeout,
            locks=locks,
            transactional=options.is_transactional or bool(locks),
            load=self._loads(where, "", options),
            resources=resources,
        )

    def rpc_call(
        self, rpc: RpcDefinition, options: RPCInvokeOptions
    ) -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
        """Physical names that a call adds to its RPC: locks, AttributeMap instances, ChannelMap instances to load."""
        where = f"{self._flow}, RPC {rpc.name!r}, RPCInvokeOptions"
        if not isinstance(options, RPCInvokeOptions):
            raise TypeError(f"{self._flow}, RPC {rpc.name!r}: options are RPCInvokeOptions(...), got {options!r}")
        once = RpcOptions(
            load_attribute_map_instances=_once(options.load_attribute_map_instances),
            load_channel_map_instances=_once(options.load_channel_map_instances),
        )
        load = self._loads(where, "", once)
        locks = self._locks(where, "lock_attribute_map_instances", _once(options.lock_attribute_map_instances))
        return locks, load.attribute_map_instances, load.channel_map_instances

    # Methods ---------------------------------------------------------------------------------------------------------

    def _method(
        self,
        where: str,
        prefix: str,
        kind: HandlerKind,
        options: Any,
        kill_after: float | None = None,
        detached: bool = False,
    ) -> MethodSpec:
        """The options of one method; `prefix` begins their names in `options`."""
        durability = getattr(options, f"{prefix}durability")
        if not isinstance(durability, StepDurability):
            raise FlowDefinitionError(f"{where}: {prefix}durability takes a StepDurability, got {durability!r}")
        heartbeat = seconds(where, "heartbeat_timeout", options.heartbeat_timeout)
        if 0 < heartbeat < SHORTEST_HEARTBEAT_TIMEOUT:
            raise FlowDefinitionError(
                f"{where}: heartbeat_timeout must be at least {SHORTEST_HEARTBEAT_TIMEOUT} s, got {heartbeat} s; "
                "leave it out for 1 minute"
            )
        timeout = seconds(where, f"{prefix}method_timeout", getattr(options, f"{prefix}method_timeout"))
        return MethodSpec(
            is_async=kind is HandlerKind.ASYNC,
            timeout=timeout or _DEFAULT_METHOD.timeout,
            heartbeat_timeout=heartbeat or _DEFAULT_METHOD.heartbeat_timeout,
            retry=retry_spec(where, f"{prefix}retry", getattr(options, f"{prefix}retry")),
            durability="" if durability is StepDurability.DEFAULT else durability.name,
            locks=self._locks(where, f"{prefix}lock_attributes", getattr(options, f"{prefix}lock_attributes")),
            load=self._loads(where, prefix, options),
            kill_after=kill_after,
            detached=detached,
        )

    def _kill_after(self, where: str, step: StepDefinition, options: StepOptions) -> float | None:
        """Only synchronous handlers have a process of their own that may be killed."""
        after = seconds(where, "kill_after", options.kill_after)
        if not after:
            return None
        for method, kind in (("wait_for", step.wait_for), ("execute", step.execute)):
            if kind is HandlerKind.ASYNC:
                raise FlowDefinitionError(
                    f"{where}: kill_after can't be kept, because {method} is asynchronous and shares its process with "
                    "others: make it synchronous, or leave kill_after out and await something that can be cancelled"
                )
        return float(after)

    def _route(
        self,
        where: str,
        route: ExecuteFailureRoute | None,
        input_type: Any,
        trail: tuple[tuple[str, StepOptions], ...],
    ) -> FailureRoute | None:
        if route is None:
            return None
        try:
            target = self._definition.find_step(route.step)
        except FlowDefinitionError as error:
            raise FlowDefinitionError(f"{where}: its failure route leads nowhere: {error}") from None
        if not same_type(target.input_type, input_type):
            raise FlowDefinitionError(
                f"{where}: its failure route leads to Step {target.step_type!r}, which takes "
                f"{type_text(target.input_type)} and would get {type_text(input_type)}: "
                "a target takes the same input type"
            )
        if route.options is None:
            return FailureRoute(step_type=target.step_type)
        here = (target.step_type, route.options)
        if here in trail:
            loop = " -> ".join([step_type for step_type, _ in trail] + [target.step_type])
            raise FlowDefinitionError(
                f"{where}: failure routes with options of their own form a loop ({loop}): "
                "leave the options out of one of them"
            )
        return FailureRoute(step_type=target.step_type, override=self.step(target, route.options, (*trail, here)))

    # Locks and loads -------------------------------------------------------------------------------------------------

    def _locks(self, where: str, option: str, locks: Iterable[AttributeLock]) -> tuple[str, ...]:
        def name_of(lock: AttributeLock) -> str:
            self._declared(where, option, lock.attribute)
            if isinstance(lock.attribute, AttributeMap) == (lock.instance is None):
                need = "one instance: map.lock(instance)" if lock.instance is None else "no instance"
                raise FlowDefinitionError(f"{where}: {option}: a lock of {lock.attribute.name!r} takes {need}")
            return lock.physical_name

        return _names(where, option, locks, AttributeLock, name_of)

    def _loads(self, where: str, prefix: str, options: Any) -> LoadSpec:
        def names(suffix: str, kind: type[T], name_of: Callable[[str, T], str]) -> tuple[str, ...]:
            option = f"{prefix}load_{suffix}"
            given = getattr(options, option)
            return _names(where, option, given, kind, lambda thing: name_of(option, thing)) if given else ()

        def plain(option: str, thing: Any) -> str:
            return self._declared(where, option, thing)

        def attribute_instance(option: str, load: AttributeMapLoad) -> str:
            self._declared(where, option, load.attribute_map)
            return load.physical_name

        def channel_instance(option: str, load: ChannelMapLoad) -> str:
            self._declared(where, option, load.channel_map)
            return load.physical_name

        return LoadSpec(
            attribute_maps=names("attribute_maps", AttributeMap, plain),
            attribute_map_instances=names("attribute_map_instances", AttributeMapLoad, attribute_instance),
            channels=names("channels", Channel, plain),
            channel_maps=names("channel_maps", ChannelMap, plain),
            channel_map_instances=names("channel_map_instances", ChannelMapLoad, channel_instance),
        )

    def _declared(self, where: str, option: str, thing: Any) -> str:
        """The name of a definition that the Flow's schema lists: the very object."""
        group: Mapping[str, object] = (
            self._definition.channels if isinstance(thing, Channel | ChannelMap) else self._definition.attributes
        )
        name = str(thing.name)
        if group.get(name) is not thing:
            reason = (
                "is not the one that get_persistence_schema() returns"
                if name in group
                else "is not declared: add it to get_persistence_schema()"
            )
            raise FlowDefinitionError(f"{where}: {option}: {type(thing).__name__} {name!r} {reason}")
        return name


def _once(given: tuple[T, ...]) -> tuple[T, ...]:
    """Without repetitions; anything but a tuple or a list is left for `_names` to refuse."""
    return tuple(dict.fromkeys(given)) if isinstance(given, tuple | list) else given


def _names(where: str, option: str, given: object, kind: type[T], name_of: Callable[[T], str]) -> tuple[str, ...]:
    if not isinstance(given, tuple | list):
        raise FlowDefinitionError(f"{where}: {option} takes a tuple, got {type(given).__name__}: write {option}=(…,)")
    found: dict[str, None] = {}
    for thing in given:
        if not isinstance(thing, kind):
            raise FlowDefinitionError(
                f"{where}: {option} takes {kind.__name__}s, got {type(thing).__name__}: {thing!r}"
            )
        name = name_of(thing)
        if name in found:
            raise FlowDefinitionError(f"{where}: {option} names {name!r} twice")
        found[name] = None
    return tuple(found)


def seconds(where: str, option: str, duration: timedelta | None) -> int:
    """The whole seconds of an option, 0 when it is not given."""
    try:
        return whole_seconds(option, duration)
    except (TypeError, ValueError) as error:
        raise FlowDefinitionError(f"{where}: {error}") from None


def retry_spec(where: str, option: str, policy: RetryPolicy | None) -> RetrySpec:
    """A RetryPolicy with its defaults filled in."""
    if policy is None:
        return _DEFAULT_RETRY
    if not isinstance(policy, RetryPolicy):
        raise FlowDefinitionError(f"{where}: {option} takes a RetryPolicy, got {type(policy).__name__}: {policy!r}")
    coefficient = policy.backoff_coefficient
    if isinstance(coefficient, bool) or not isinstance(coefficient, int | float):
        raise FlowDefinitionError(f"{where}: {option}: backoff_coefficient is a number, got {coefficient!r}")
    if not math.isfinite(coefficient) or (coefficient != 0 and coefficient < 1):
        raise FlowDefinitionError(
            f"{where}: {option}: backoff_coefficient must be finite and at least 1 (0 takes the default), "
            f"got {coefficient!r}"
        )
    attempts = policy.maximum_attempts
    if type(attempts) is not int or not 0 <= attempts <= LONGEST_SECONDS:
        raise FlowDefinitionError(
            f"{where}: {option}: maximum_attempts is an int from 0 (no limit) to 2^31 - 1, got {attempts!r}"
        )
    initial = seconds(where, f"{option}: initial_interval", policy.initial_interval) or _DEFAULT_RETRY.initial
    maximum = seconds(where, f"{option}: maximum_interval", policy.maximum_interval)
    if maximum and maximum < initial:
        raise FlowDefinitionError(
            f"{where}: {option}: maximum_interval must be at least the initial_interval of {initial:g} s, "
            f"got {maximum} s"
        )
    return RetrySpec(
        initial=initial,
        coefficient=float(coefficient) or _DEFAULT_RETRY.coefficient,
        maximum=maximum or max(_DEFAULT_RETRY.maximum, initial),
        attempts=attempts,
        total=seconds(where, f"{option}: total_duration", policy.total_duration) or _DEFAULT_RETRY.total,
    )


def resource_spec(where: str, resources: StepResources | None) -> ResourceSpec:
    """Resources as options of Ray; only those that were given."""
    if resources is None:
        return ResourceSpec()
    if not isinstance(resources, StepResources):
        raise FlowDefinitionError(f"{where}: resources takes StepResources(...), got {type(resources).__name__}")
    options: dict[str, Any] = {}
    for name in ("num_cpus", "num_gpus", "memory"):
        if (amount := getattr(resources, name)) is not None:
            options[name] = _amount(where, f"resources: {name}", amount)
    if resources.memory is not None and type(resources.memory) is not int:
        raise FlowDefinitionError(f"{where}: resources: memory is a number of bytes, got {resources.memory!r}")
    if resources.resources is not None:
        options["resources"] = {
            name: _amount(where, f"resources: resources[{name!r}]", amount)
            for name, amount in _mapping(where, "resources", resources.resources).items()
        }
        for name, argument in _OWN_ARGUMENTS.items():
            if name in options["resources"]:
                raise FlowDefinitionError(f"{where}: resources: {name!r} is not a custom resource, use {argument}=…")
    if resources.accelerator_type is not None:
        options["accelerator_type"] = _text(where, "accelerator_type", resources.accelerator_type)
    if resources.label_selector is not None:
        options["label_selector"] = {
            name: _text(where, f"label_selector[{name!r}]", value)
            for name, value in _mapping(where, "label_selector", resources.label_selector).items()
        }
    if resources.runtime_env is not None:
        options["runtime_env"] = _plain(where, "runtime_env", _mapping(where, "runtime_env", resources.runtime_env))
    if resources.scheduling_strategy is not None:
        options["scheduling_strategy"] = _plain(where, "scheduling_strategy", resources.scheduling_strategy)
    return ResourceSpec(options=options)


def _amount(where: str, option: str, amount: object) -> float:
    if isinstance(amount, bool) or not isinstance(amount, int | float):
        raise FlowDefinitionError(f"{where}: {option} is a number, got {amount!r}")
    if not math.isfinite(amount) or amount < 0:
        raise FlowDefinitionError(f"{where}: {option} must be finite and not negative, got {amount!r}")
    return amount


def _text(where: str, option: str, text: object) -> str:
    if not isinstance(text, str) or not text:
        raise FlowDefinitionError(f"{where}: resources: {option} is a text, got {text!r}")
    return text


def _mapping(where: str, option: str, given: object) -> dict[str, Any]:
    if not isinstance(given, Mapping) or not all(isinstance(key, str) for key in given):
        raise FlowDefinitionError(f"{where}: resources: {option} is a dict with text keys, got {given!r}")
    return dict(given)


def _plain(where: str, option: str, value: Any) -> Any:
    """The value, if it is plain data: it is kept in the journal, where a later version must still understand it."""
    match value:
        case None | bool() | int() | float() | str() | bytes():
            return value
        case list() | tuple():
            return [_plain(where, option, item) for item in value]
        case dict() if all(isinstance(key, str) for key in value):
            return {key: _plain(where, option, item) for key, item in value.items()}
        case _:
            raise FlowDefinitionError(
                f"{where}: resources: {option} must be plain data or text, got {type(value).__name__}: {value!r}"
            )
