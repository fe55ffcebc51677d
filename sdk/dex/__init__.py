"""Durable Flows: what one imports to write and to run them.

A Flow is a program cut into Steps. A Step may first wait (`wait_for`) for a Timer, for messages of Channels or for
SubFlows, and then acts (`execute`). What a Step returns is committed together with all that it wrote, or not at all.

    from dex import Context, Flow, Step, StepDecision, StepList, graceful_complete

    class Greet(Step[str]):
        def execute(self, context: Context, input: str) -> StepDecision:
            return graceful_complete(f"Hello, {input}!")

    class Greeting(Flow[str]):
        def get_steps(self) -> StepList[str]:
            return StepList.start_step(Greet())

Flows are given to a `Registry`, which checks them; a `Client` starts and watches them.
"""

from dex.async_client import AsyncClient
from dex.attribute import Attribute, AttributeIndex, AttributeLock, AttributeMap, AttributeMapLoad, IndexType
from dex.channel import Channel, ChannelMap, ChannelMapLoad, ChannelMessage
from dex.client import Client, ClientOptions
from dex.client_search import quoted
from dex.context import AsyncContext, AttemptProgress, Context, RecoveryErrorInfo
from dex.decision import (
    StepDecision,
    StepMovement,
    dead_end,
    force_complete,
    force_complete_if_channels_empty,
    force_fail,
    go_to,
    go_to_many,
    graceful_complete,
)
from dex.errors import (
    AttributeMapNotLoadedError,
    ChannelMessageNotFoundError,
    ChannelMessagesNotLoadedError,
    DexServiceError,
    ErrorSubStatus,
    FlowAlreadyStartedError,
    FlowClosingError,
    FlowDefinitionError,
    FlowNotActiveOrNotFoundError,
    FlowNotFoundError,
    InvalidStepResultError,
    LongPollTimeoutError,
    RequestTimeoutError,
    RetryAfterError,
    RpcLockConflictError,
    StatusCode,
    ValueMappingError,
    WorkerInvocationError,
    retry_after,
)
from dex.flow import Flow, PersistenceSchema, StepList
from dex.options import (
    ActiveStepSearchMode,
    AttributeMatch,
    FlowConfig,
    FlowTimeoutHandlerOptions,
    FlowTimeoutPolicy,
    IdReusePolicy,
    RetryPolicy,
    RPCInvokeOptions,
    StartFlowOptions,
    StepDurability,
    StepExecutionId,
    StepOptions,
    StepResources,
    StopFlowOptions,
    StopType,
    TimerId,
    TimeTravelOptions,
    TimeTravelStepMethod,
    TimeTravelType,
    WaitForAttributeOptions,
    WaitForFailurePolicy,
    WaitForStepCompletionOptions,
)
from dex.registry import Registry
from dex.results import (
    FlowErrorType,
    FlowInfo,
    FlowResult,
    FlowStatus,
    HealthInfo,
    SearchFlowEntry,
    SearchFlowsPage,
    StepCompletion,
)
from dex.rpc import RPCResult, rpc
from dex.step import Step, StepOutput, heartbeat
from dex.stream import (
    AsyncBufferedTextStream,
    BufferedTextStream,
    Stream,
    StreamMessage,
    StreamMessagesPage,
)
from dex.subflow import SubFlow, SubFlowOptions, SubFlowReusePolicy
from dex.values import (
    BOOL,
    BYTES,
    DOUBLE,
    INT64,
    STRING,
    Codec,
    CodecRegistry,
    JsonCodec,
    Value,
    WireKind,
)
from dex.wait import Condition, ConditionCombination, Timer, Wait
from dex.wire.service import FlowDescription, HistoryEvent, StepDescription

__all__ = [
    "BOOL",
    "BYTES",
    "DOUBLE",
    "INT64",
    "STRING",
    "ActiveStepSearchMode",
    "AsyncBufferedTextStream",
    "AsyncClient",
    "AsyncContext",
    "AttemptProgress",
    "Attribute",
    "AttributeIndex",
    "AttributeLock",
    "AttributeMap",
    "AttributeMapLoad",
    "AttributeMapNotLoadedError",
    "AttributeMatch",
    "BufferedTextStream",
    "Channel",
    "ChannelMap",
    "ChannelMapLoad",
    "ChannelMessage",
    "ChannelMessageNotFoundError",
    "ChannelMessagesNotLoadedError",
    "Client",
    "ClientOptions",
    "Codec",
    "CodecRegistry",
    "Condition",
    "ConditionCombination",
    "Context",
    "DexServiceError",
    "ErrorSubStatus",
    "Flow",
    "FlowAlreadyStartedError",
    "FlowClosingError",
    "FlowConfig",
    "FlowDefinitionError",
    "FlowDescription",
    "FlowErrorType",
    "FlowInfo",
    "FlowNotActiveOrNotFoundError",
    "FlowNotFoundError",
    "FlowResult",
    "FlowStatus",
    "FlowTimeoutHandlerOptions",
    "FlowTimeoutPolicy",
    "HealthInfo",
    "HistoryEvent",
    "IdReusePolicy",
    "IndexType",
    "InvalidStepResultError",
    "JsonCodec",
    "LongPollTimeoutError",
    "PersistenceSchema",
    "RPCInvokeOptions",
    "RPCResult",
    "RecoveryErrorInfo",
    "Registry",
    "RequestTimeoutError",
    "RetryAfterError",
    "RetryPolicy",
    "RpcLockConflictError",
    "SearchFlowEntry",
    "SearchFlowsPage",
    "StartFlowOptions",
    "StatusCode",
    "Step",
    "StepCompletion",
    "StepDecision",
    "StepDescription",
    "StepDurability",
    "StepExecutionId",
    "StepList",
    "StepMovement",
    "StepOptions",
    "StepOutput",
    "StepResources",
    "StopFlowOptions",
    "StopType",
    "Stream",
    "StreamMessage",
    "StreamMessagesPage",
    "SubFlow",
    "SubFlowOptions",
    "SubFlowReusePolicy",
    "TimeTravelOptions",
    "TimeTravelStepMethod",
    "TimeTravelType",
    "Timer",
    "TimerId",
    "Value",
    "ValueMappingError",
    "Wait",
    "WaitForAttributeOptions",
    "WaitForFailurePolicy",
    "WaitForStepCompletionOptions",
    "WireKind",
    "WorkerInvocationError",
    "dead_end",
    "force_complete",
    "force_complete_if_channels_empty",
    "force_fail",
    "go_to",
    "go_to_many",
    "graceful_complete",
    "heartbeat",
    "quoted",
    "retry_after",
    "rpc",
]
