"""Deployed Flows as data: what the machine has to know of a Flow's code, and all it may know.

A Registry describes itself (`Registry.describe()`), and the description is stored beside the code.
All durations are seconds. All names of Channels and Attributes are physical: `name` or `name/quoted-instance`.
"""

from __future__ import annotations

from typing import Any

from msgspec import Struct

WAIT_FOR = "wait_for"
EXECUTE = "execute"
RPC = "rpc"

SYNC = "SYNC"
ASYNC = "ASYNC"


class Spec(Struct, frozen=True, kw_only=True, omit_defaults=True):
    pass


class RetrySpec(Spec, frozen=True, kw_only=True):
    """A RetryPolicy with its defaults filled in. attempts 0: no limit."""

    initial: float = 1.0
    coefficient: float = 2.0
    maximum: float = 100.0
    attempts: int = 0
    total: float = 4 * 3600.0


class LoadSpec(Spec, frozen=True, kw_only=True):
    """What a method asked to have loaded. Names of maps are the map's; instances are physical names."""

    attribute_maps: tuple[str, ...] = ()
    attribute_map_instances: tuple[str, ...] = ()
    channels: tuple[str, ...] = ()
    channel_maps: tuple[str, ...] = ()
    channel_map_instances: tuple[str, ...] = ()


class ResourceSpec(Spec, frozen=True, kw_only=True):
    """Resources of Ray, passed on verbatim. Empty: one CPU for a synchronous handler, none for an asynchronous one."""

    options: dict[str, Any] = {}


class MethodSpec(Spec, frozen=True, kw_only=True):
    """One method of a Step: wait_for, execute, or a Flow's timeout handler."""

    is_async: bool = False
    timeout: float = 2 * 3600.0
    heartbeat_timeout: float = 60.0
    retry: RetrySpec = RetrySpec()
    durability: str = ""  # "", SYNC or ASYNC; "" asks the FlowConfig
    locks: tuple[str, ...] = ()
    load: LoadSpec = LoadSpec()
    kill_after: float | None = None  # seconds; None: a handler that does not stop is left alone
    detached: bool = False  # an attempt survives the owner that handed it out


class FailureRoute(Spec, frozen=True, kw_only=True):
    """Where an exhausted execute goes on: a Step of the same input type, with options of its own or the target's."""

    step_type: str
    override: StepSpec | None = None


class StepSpec(Spec, frozen=True, kw_only=True):
    step_type: str
    wait_for: MethodSpec | None = None  # None: the Step has no wait_for
    execute: MethodSpec = MethodSpec()
    proceed_on_wait_failure: bool = False
    failure_route: FailureRoute | None = None
    resources: ResourceSpec = ResourceSpec()


class TimeoutHandlerSpec(Spec, frozen=True, kw_only=True):
    method: MethodSpec = MethodSpec()
    failure_route: FailureRoute | None = None


class RpcSpec(Spec, frozen=True, kw_only=True):
    name: str
    is_async: bool = False
    timeout: float = 60.0
    locks: tuple[str, ...] = ()
    transactional: bool = False
    load: LoadSpec = LoadSpec()
    resources: ResourceSpec = ResourceSpec()


class IndexSpec(Spec, frozen=True, kw_only=True):
    """By which key, and as which IndexType, an Attribute is searched."""

    key: str
    type: str


class FlowSpec(Spec, frozen=True, kw_only=True):
    flow_type: str
    start_step: str | None = None
    steps: dict[str, StepSpec] = {}
    rpcs: dict[str, RpcSpec] = {}
    channels: tuple[str, ...] = ()
    channel_maps: tuple[str, ...] = ()
    attributes: tuple[str, ...] = ()
    attribute_maps: tuple[str, ...] = ()
    indexes: dict[str, IndexSpec] = {}  # by the name of the Attribute or AttributeMap
    hard_deleted: tuple[str, ...] = ()  # Attributes and AttributeMaps with hard_delete_on_null
    synced: tuple[str, ...] = ()  # Attributes and AttributeMaps with sync_to_attribute_store
    has_timeout_handler: bool = False
    timeout_handler_is_async: bool = False


class DeploymentSpec(Spec, frozen=True, kw_only=True):
    """All Flows of one Registry. `deployment_id` names the code by content."""

    deployment_id: str
    flows: dict[str, FlowSpec] = {}
