"""SubFlows: Flows that a Step starts and waits for.

    def wait_for(self, context: Context, input: Order) -> Wait:
        return Wait.until(SubFlow.run(self.shipping, input))

    def execute(self, context: Context, input: Order) -> StepDecision:
        return graceful_complete(SubFlow.get_condition_results(context).single_output(str))

The child starts when the wait is committed. Its failure does not fail the parent's wait: the parent reads its status.
Closing the parent does not stop a child.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import timedelta
from enum import Enum
from typing import TYPE_CHECKING, Any, TypeVar, overload

from dex._runtime import runtime_of
from dex.context import UNSET, Context
from dex.options.flow import (
    FlowConfig,
    FlowTimeoutHandlerOptions,
    FlowTimeoutPolicy,
    InitialAttribute,
    initial_attribute,
)
from dex.options.step import RetryPolicy
from dex.wait import Condition, SubFlowCondition

if TYPE_CHECKING:
    from dex.attribute import Attribute, AttributeMap
    from dex.flow import Flow
    from dex.results import FlowResult

T = TypeVar("T")
StartT = TypeVar("StartT")


class SubFlowReusePolicy(Enum):
    """What to do with a child that is there when a parent enters the same Step execution again: after a time travel, or
    in another run under its Flow ID. A repeat of one and the same start, after a crash, never starts a second child.

    ATTACH: waits for the child, or takes its result, however it ended.
    RESTART_IF_PREVIOUS_EXITS_ABNORMALLY: as ATTACH for a child that runs or is COMPLETED; started anew after any other
      end.
    ALWAYS_RESTART: starts it anew; one that runs is terminated.
    """

    ATTACH = "ATTACH"
    RESTART_IF_PREVIOUS_EXITS_ABNORMALLY = "RESTART_IF_PREVIOUS_EXITS_ABNORMALLY"
    ALWAYS_RESTART = "ALWAYS_RESTART"


@dataclass(frozen=True, slots=True)
class SubFlowOptions:
    """How a SubFlow is started.

    timeout, timeout_policy, timeout_handler_options, config_override, attributes: as in StartFlowOptions.
    reuse_policy: what to do with a child that is there already. condition_id: names the condition within its Wait.
    start_delay, retry_policy: refused by the service; begin with a Timer, retry in Steps.
    """

    timeout: timedelta | None = None
    timeout_policy: FlowTimeoutPolicy = FlowTimeoutPolicy.DEFAULT
    timeout_handler_options: FlowTimeoutHandlerOptions | None = None
    start_delay: timedelta | None = None
    retry_policy: RetryPolicy | None = None
    config_override: FlowConfig | None = None
    reuse_policy: SubFlowReusePolicy = SubFlowReusePolicy.RESTART_IF_PREVIOUS_EXITS_ABNORMALLY
    condition_id: str | None = None
    attributes: tuple[InitialAttribute, ...] = ()

    @overload
    def with_attribute(self, attribute: Attribute[T], value: T | None, /) -> SubFlowOptions: ...

    @overload
    def with_attribute(self, attribute: AttributeMap[T], instance: str, value: T | None, /) -> SubFlowOptions: ...

    def with_attribute(self, attribute: Any, first: Any, second: Any = UNSET, /) -> SubFlowOptions:
        """A copy with one more initial Attribute: `(attribute, value)` or `(attribute_map, instance, value)`."""
        return replace(self, attributes=(*self.attributes, initial_attribute(attribute, first, second)))


class SubFlow:
    """Child Flows as conditions of a Wait."""

    @staticmethod
    def run(flow: Flow[StartT], input: StartT, options: SubFlowOptions | None = None) -> Condition:
        """Starts a child when the wait is committed; ready when the child has closed.

        `flow` is a registered instance with a start Step. Raises ValueError for None, TypeError for anything else.
        """
        from dex.flow import Flow

        if flow is None:
            raise ValueError("SubFlow.run(flow, input) needs a Flow instance, got None")
        if not isinstance(flow, Flow):
            raise TypeError(f"SubFlow.run(flow, input) needs a Flow instance, got {type(flow).__name__}: {flow!r}")
        condition_id = None if options is None else options.condition_id
        return SubFlowCondition(flow=flow, input=input, options=options, condition_id=condition_id)

    @staticmethod
    def get_condition_results(context: Context, index: int = 0) -> FlowResult:
        """The result of the wait's `index`-th SubFlow, counted from 0 in order of declaration. In execute only.

        A child that has not closed (another condition won) gives a RUNNING snapshot.
        """
        return runtime_of(context).subflow_result(index)

    @staticmethod
    def get_flow_id(context: Context, index: int = 0) -> str:
        """The Flow ID of the wait's `index`-th SubFlow. In execute only."""
        return runtime_of(context).subflow_flow_id(index)
