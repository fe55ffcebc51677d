"""Everything that can be set: for Steps (`step`), for the start and the life of a Flow (`flow`), for client calls
  (`calls`).

Options are frozen values: "changing" one makes a copy. None, zero or DEFAULT means "not given". What a user wrote is
  checked where it can be
blamed: a Registry checks the options of its Steps, naming Flow and Step; a client checks those of a call before it
  sends anything.
"""

from __future__ import annotations

from dex.options.calls import (
    AttributeMatch,
    MatchOperator,
    RPCInvokeOptions,
    StepExecutionId,
    StopFlowOptions,
    StopType,
    TimerId,
    TimeTravelOptions,
    TimeTravelStepMethod,
    TimeTravelType,
    WaitForAttributeOptions,
    WaitForStepCompletionOptions,
)
from dex.options.flow import (
    ActiveStepSearchMode,
    FlowConfig,
    FlowTimeoutHandlerOptions,
    FlowTimeoutPolicy,
    IdReusePolicy,
    InitialAttribute,
    StartFlowOptions,
)
from dex.options.step import (
    ExecuteFailureRoute,
    RetryPolicy,
    StepDurability,
    StepOptions,
    StepResources,
    WaitForFailurePolicy,
)

__all__ = [
    "ActiveStepSearchMode",
    "AttributeMatch",
    "ExecuteFailureRoute",
    "FlowConfig",
    "FlowTimeoutHandlerOptions",
    "FlowTimeoutPolicy",
    "IdReusePolicy",
    "InitialAttribute",
    "MatchOperator",
    "RPCInvokeOptions",
    "RetryPolicy",
    "StartFlowOptions",
    "StepDurability",
    "StepExecutionId",
    "StepOptions",
    "StepResources",
    "StopFlowOptions",
    "StopType",
    "TimeTravelOptions",
    "TimeTravelStepMethod",
    "TimeTravelType",
    "TimerId",
    "WaitForAttributeOptions",
    "WaitForFailurePolicy",
    "WaitForStepCompletionOptions",
]
