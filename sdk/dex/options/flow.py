"""Options of Flows: how one is started, what its timeout does, and the configuration that can change while it runs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import timedelta
from enum import Enum
from typing import TYPE_CHECKING, Any, TypeVar, overload

from dex.context import UNSET
from dex.names import check_instance, physical_name
from dex.options.step import ExecuteFailureRoute, RetryPolicy, StepDurability, StepOptions

if TYPE_CHECKING:
    from dex.attribute import Attribute, AttributeLock, AttributeMap, AttributeMapLoad
    from dex.channel import Channel, ChannelMap, ChannelMapLoad
    from dex.step import Step

T = TypeVar("T")


class IdReusePolicy(Enum):
    """Whether a Flow ID that was used already may be started again.

    DEFAULT, DISALLOW: no. ALLOW_IF_PREVIOUS_FAILED: when its last run is FAILED. ALLOW_IF_NOT_RUNNING: when its last
    run is closed. ALLOW_TERMINATE_IF_RUNNING: always; a run that is open is terminated.
    """

    DEFAULT = "DEFAULT"
    ALLOW_IF_PREVIOUS_FAILED = "ALLOW_IF_PREVIOUS_FAILED"
    ALLOW_IF_NOT_RUNNING = "ALLOW_IF_NOT_RUNNING"
    ALLOW_TERMINATE_IF_RUNNING = "ALLOW_TERMINATE_IF_RUNNING"
    DISALLOW = "DISALLOW"


class FlowTimeoutPolicy(Enum):
    """What the Flow's timeout does. DEFAULT: HANDLER when the Flow overrides handle_timeout, else FAIL.

    FAIL: the run is FAILED with FLOW_TIMEOUT. CANCEL: it is CANCELED. HANDLER: handle_timeout decides.
    """

    DEFAULT = "DEFAULT"
    FAIL = "FAIL"
    CANCEL = "CANCEL"
    HANDLER = "HANDLER"


class ActiveStepSearchMode(Enum):
    """Which active Steps search can find a Flow by. DEFAULT, DISABLED: none. ALL: all of them. WITH_WAIT_FOR: those
    whose Step has a wait_for.
    """

    DEFAULT = "DEFAULT"
    ALL = "ALL"
    WITH_WAIT_FOR = "WITH_WAIT_FOR"
    DISABLED = "DISABLED"


@dataclass(frozen=True, slots=True)
class FlowConfig:
    """Configuration that can change while a Flow runs. None: not given.

    active_step_search_mode: which Steps search finds the Flow by. step_durability: of methods without one of their own.
    continue_as_new_threshold, continue_as_new_page_size_bytes: stored and ignored.
    attribute_store_names: the stores of Attributes with sync_to_attribute_store.
    """

    active_step_search_mode: ActiveStepSearchMode | None = None
    continue_as_new_threshold: int | None = None
    continue_as_new_page_size_bytes: int | None = None
    step_durability: StepDurability | None = None
    attribute_store_names: tuple[str, ...] | list[str] | None = None


@dataclass(frozen=True, slots=True)
class FlowTimeoutHandlerOptions:
    """Options of handle_timeout: those of a Step's execute. Only with a positive timeout and the policy HANDLER.

    method_timeout: the longest that one attempt may take (2 h). heartbeat_timeout: the longest silence of an attempt
      (1 min; at least 10 s). retry: how often and when it is tried again. durability: overrides that of the FlowConfig.
    lock_attributes: locks held during each attempt. load_…: AttributeMap values and pending messages that it reads.
    failure: where the Flow goes on when it has failed for good, see `on_failure_proceed_to`.
    """

    method_timeout: timedelta | None = None
    heartbeat_timeout: timedelta | None = None
    retry: RetryPolicy | None = None
    durability: StepDurability = StepDurability.DEFAULT
    lock_attributes: tuple[AttributeLock, ...] = ()
    load_attribute_maps: tuple[AttributeMap[Any], ...] = ()
    load_attribute_map_instances: tuple[AttributeMapLoad, ...] = ()
    load_channels: tuple[Channel[Any], ...] = ()
    load_channel_maps: tuple[ChannelMap[Any], ...] = ()
    load_channel_map_instances: tuple[ChannelMapLoad, ...] = ()
    failure: ExecuteFailureRoute | None = None

    def on_failure_proceed_to(
        self, step: type[Step[None]] | Step[None], options: StepOptions | None = None
    ) -> FlowTimeoutHandlerOptions:
        """A copy that goes on with `step`, which takes None, when the handler has failed for good."""
        return replace(self, failure=ExecuteFailureRoute(step, options))


@dataclass(frozen=True, slots=True)
class InitialAttribute:
    """An Attribute's value at the start of a Flow."""

    attribute: Attribute[Any] | AttributeMap[Any]
    instance: str | None
    value: Any

    @property
    def physical_name(self) -> str:
        """The engine's name of it: `name`, or `name/quoted-instance`."""
        return physical_name(self.attribute.name, self.instance)


@dataclass(frozen=True, slots=True)
class StartFlowOptions:
    """How a Flow is started.

    timeout: of the whole run; None or zero: none. timeout_policy, timeout_handler_options: only with a positive
      timeout.
    id_reuse_policy: whether a used Flow ID may be started again.
    request_id: the identity of this start, to be kept over repeats; None: a new one per call.
    ignore_already_started: a repeat of the same request_id gets the run it started, instead of
      FlowAlreadyStartedError.
    config_override: FlowConfig fields for this run.
    start_delay, retry_policy: refused by the service; begin with a Timer, retry in Steps.
    attributes: what `with_attribute` has gathered.
    """

    timeout: timedelta | None = None
    timeout_policy: FlowTimeoutPolicy = FlowTimeoutPolicy.DEFAULT
    timeout_handler_options: FlowTimeoutHandlerOptions | None = None
    start_delay: timedelta | None = None
    id_reuse_policy: IdReusePolicy = IdReusePolicy.DEFAULT
    retry_policy: RetryPolicy | None = None
    config_override: FlowConfig | None = None
    ignore_already_started: bool = False
    request_id: str | None = None
    attributes: tuple[InitialAttribute, ...] = ()

    @overload
    def with_attribute(self, attribute: Attribute[T], value: T | None, /) -> StartFlowOptions: ...

    @overload
    def with_attribute(self, attribute: AttributeMap[T], instance: str, value: T | None, /) -> StartFlowOptions: ...

    def with_attribute(self, attribute: Any, first: Any, second: Any = UNSET, /) -> StartFlowOptions:
        """A copy with one more initial Attribute: `(attribute, value)` or `(attribute_map, instance, value)`."""
        return replace(self, attributes=(*self.attributes, initial_attribute(attribute, first, second)))


def initial_attribute(attribute: Any, first: Any, second: Any) -> InitialAttribute:
    """An initial Attribute from the arguments of `with_attribute`; `second` is UNSET for a plain Attribute."""
    from dex.attribute import Attribute, AttributeMap

    if isinstance(attribute, AttributeMap):
        if second is UNSET:
            raise TypeError(
                f"with_attribute: AttributeMap {attribute.name!r} needs an instance: "
                "with_attribute(map, instance, value)"
            )
        return InitialAttribute(attribute, check_instance("AttributeMap", attribute.name, first), second)
    if not isinstance(attribute, Attribute):
        raise TypeError(f"with_attribute takes an Attribute or an AttributeMap, got {type(attribute).__name__}")
    if second is not UNSET:
        raise TypeError(
            f"with_attribute: Attribute {attribute.name!r} has no instances: with_attribute(attribute, value)"
        )
    return InitialAttribute(attribute, None, first)
