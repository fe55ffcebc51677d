"""Options of Steps: timeouts, retries, failure policies, durability, locks, loads and resources."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from datetime import timedelta
from enum import Enum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dex.attribute import AttributeLock, AttributeMap, AttributeMapLoad
    from dex.channel import Channel, ChannelMap, ChannelMapLoad
    from dex.step import Step


class StepDurability(Enum):
    """SYNC: a result is durable before anything follows from it. ASYNC: what follows starts at once, the commit comes
    within about 20 ms.
    """

    DEFAULT = "DEFAULT"
    SYNC = "SYNC"
    ASYNC = "ASYNC"


class WaitForFailurePolicy(Enum):
    """What follows when wait_for has failed for good. FAIL_FLOW: the Flow fails. PROCEED: execute of the same Step
    runs, and `context.wait_for_method_failed()` is true in it.
    """

    FAIL_FLOW = "FAIL_FLOW"
    PROCEED = "PROCEED"


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How often and when a failed method is tried again. Zero or None: the default.

    initial_interval: the pause before the second attempt (1 s).
    backoff_coefficient: by which each pause is longer than the one before (2.0; at least 1).
    maximum_interval: the longest pause (100 s, or the initial interval when that is longer).
    maximum_attempts: all attempts, the first included (no limit).
    total_duration: no attempt is begun later than this after the first one was handed out (4 h).
    Durations are whole seconds up to 2^31 − 1.
    """

    initial_interval: timedelta | None = None
    backoff_coefficient: float = 0.0
    maximum_interval: timedelta | None = None
    maximum_attempts: int = 0
    total_duration: timedelta | None = None


@dataclass(frozen=True, slots=True)
class StepResources:
    """What the handlers of a Step need of a node; passed to Ray as it is. None: not given.

    num_cpus, num_gpus: numbers of them, fractions allowed. memory: bytes. resources: custom resources of the cluster.
    accelerator_type: e.g. "A100". runtime_env: an environment of its own. scheduling_strategy: "DEFAULT", "SPREAD" or
      plain data.
    label_selector: labels that the node must have.
    """

    num_cpus: float | None = None
    num_gpus: float | None = None
    memory: int | None = None
    resources: Mapping[str, float] | None = None
    accelerator_type: str | None = None
    runtime_env: Mapping[str, Any] | None = None
    scheduling_strategy: Any = None
    label_selector: Mapping[str, str] | None = None

    def merged_with(self, other: StepResources | None) -> StepResources:
        """These resources with every field that `other` gives replaced."""
        return self if other is None else replace(self, **_given(other))


@dataclass(frozen=True, slots=True)
class ExecuteFailureRoute:
    """Where a failed execute goes on; options None: the target's own."""

    step: type[Step[Any]] | Step[Any]
    options: StepOptions | None = None


@dataclass(frozen=True, slots=True)
class StepOptions:
    """Options of a Step's two methods. On a movement, only the fields that differ from their default count.

    …_method_timeout: the longest that one attempt may take (2 h). heartbeat_timeout: the longest silence of an
      attempt (1 min; at least 10 s).
    …_retry: RetryPolicy of the method. wait_for_failure: what follows when wait_for has failed for good.
    …_durability: overrides that of the FlowConfig. …_lock_attributes: locks held during each attempt of the method.
    …_load_…: AttributeMap values and pending messages that the method reads. resources: what the handlers need of a
      node. execute_failure: where the Flow goes on when execute has failed for good, see
      `on_execute_failure_proceed_to`.
    kill_after: kills the worker process of a handler that has not returned so long after its cancellation or timeout
      (whole seconds, at least 1; None or zero: never). Stopping is cooperative: without it, a handler that does not
      listen keeps its CPU until it returns. A kill runs no `finally` and no exit hook, and the attempts of such a Step
      share no process with others. For synchronous handlers on a cluster only: an asynchronous one shares its process.
    detached: an attempt of execute runs in a detached Ray actor of its own and survives the process that owns the Flow:
      the next owner takes it over where it is, with its heartbeats and its result. For Steps of hours: it costs a
      process an attempt, and the handler does not run in the main thread of it. It ends when its own process or node
      does.
    """

    wait_for_method_timeout: timedelta | None = None
    execute_method_timeout: timedelta | None = None
    heartbeat_timeout: timedelta | None = None
    wait_for_retry: RetryPolicy | None = None
    execute_retry: RetryPolicy | None = None
    wait_for_failure: WaitForFailurePolicy = WaitForFailurePolicy.FAIL_FLOW
    wait_for_durability: StepDurability = StepDurability.DEFAULT
    execute_durability: StepDurability = StepDurability.DEFAULT
    wait_for_lock_attributes: tuple[AttributeLock, ...] = ()
    execute_lock_attributes: tuple[AttributeLock, ...] = ()
    wait_for_load_attribute_maps: tuple[AttributeMap[Any], ...] = ()
    execute_load_attribute_maps: tuple[AttributeMap[Any], ...] = ()
    wait_for_load_attribute_map_instances: tuple[AttributeMapLoad, ...] = ()
    execute_load_attribute_map_instances: tuple[AttributeMapLoad, ...] = ()
    wait_for_load_channels: tuple[Channel[Any], ...] = ()
    execute_load_channels: tuple[Channel[Any], ...] = ()
    wait_for_load_channel_maps: tuple[ChannelMap[Any], ...] = ()
    execute_load_channel_maps: tuple[ChannelMap[Any], ...] = ()
    wait_for_load_channel_map_instances: tuple[ChannelMapLoad, ...] = ()
    execute_load_channel_map_instances: tuple[ChannelMapLoad, ...] = ()
    resources: StepResources | None = None
    execute_failure: ExecuteFailureRoute | None = None
    kill_after: timedelta | None = None
    detached: bool = False

    def on_execute_failure_proceed_to(
        self, step: type[Step[Any]] | Step[Any], options: StepOptions | None = None
    ) -> StepOptions:
        """A copy that goes on with `step` when execute has failed for good. It gets the same input.

        The target must be registered in the Flow and take the same input type. options None: the target's own.
        """
        return replace(self, execute_failure=ExecuteFailureRoute(step, options))

    def merged_with(self, other: StepOptions | None) -> StepOptions:
        """These options with every field that `other` gives replaced; neither is changed."""
        if other is None:
            return self
        given = _given(other)
        if self.resources is not None and other.resources is not None:
            given["resources"] = self.resources.merged_with(other.resources)
        return replace(self, **given)


def _given(options: Any) -> dict[str, Any]:
    """The fields of an options object that are not at their default."""
    return {
        field.name: value
        for field in fields(options)
        if (value := getattr(options, field.name)) is not field.default and value != field.default
    }
