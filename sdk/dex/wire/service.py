"""Every question a client can ask, with its answer, and the one method that takes them.

A `FlowService` is what stands behind a Client: the cluster, the in-process engine, or an HTTP connection. It has one
method, so that routing, repeating and logging are written once. Requests that write carry a request id; `fresh` tells
that the id was made for this very call and never sent before, which saves the service a look-up. A repeat (same id,
fresh=False) has the first one's effect and answer. Times are seconds since the epoch (UTC), durations seconds.
"""

from __future__ import annotations

from typing import Any, ClassVar, Generic, Protocol, TypeVar

import msgspec
from msgspec import Struct

from dex.wire.specs import TimeoutHandlerSpec

AnswerT = TypeVar("AnswerT", bound="Answer")


class Answer(Struct, frozen=True, kw_only=True, omit_defaults=True):
    pass


class Request(Struct, Generic[AnswerT], frozen=True, kw_only=True, omit_defaults=True, tag=True):
    """`flow_id` routes the request to the owner of its Flow; "" asks the service as a whole."""

    answer_type: ClassVar[type[Answer]]
    operation: ClassVar[str]
    flow_id: str = ""


class Done(Answer, frozen=True, kw_only=True):
    """Nothing to say but that it is durable."""


# Starting -------------------------------------------------------------------------------------------------------------


class FlowConfigSpec(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A FlowConfig; None is a field not given."""

    active_step_search_mode: str | None = None
    continue_as_new_threshold: int | None = None
    continue_as_new_page_size_bytes: int | None = None
    step_durability: str | None = None
    attribute_store_names: tuple[str, ...] | None = None


class Started(Answer, frozen=True, kw_only=True):
    run_id: str


class StartFlow(Request[Started], frozen=True, kw_only=True):
    answer_type = Started
    operation = "start_flow"
    flow_type: str
    input: bytes
    request_id: str
    call_id: str = ""  # names this very call: its repeats, with fresh=False, get the first one's answer
    fresh: bool = False
    id_reuse_policy: str = "DEFAULT"
    ignore_already_started: bool = False
    timeout: float = 0.0  # 0: none
    timeout_policy: str = ""  # resolved by the Client: "", FAIL, CANCEL or HANDLER
    timeout_handler: TimeoutHandlerSpec | None = None
    start_delay: float = 0.0  # refused when positive
    has_retry_policy: bool = False  # refused when true
    config: FlowConfigSpec = FlowConfigSpec()
    attributes: dict[str, bytes] = {}  # physical names
    blobs: dict[str, bytes] = {}
    parent: str = ""  # of a SubFlow: the Flow ID of its parent


# Writing --------------------------------------------------------------------------------------------------------------


class Published(Answer, frozen=True, kw_only=True):
    message_ids: tuple[str, ...]


class Publish(Request[Published], frozen=True, kw_only=True):
    answer_type = Published
    operation = "publish"
    channel: str  # physical name
    values: tuple[bytes, ...]
    request_id: str
    fresh: bool = False
    blobs: dict[str, bytes] = {}


class SetAttribute(Request[Done], frozen=True, kw_only=True):
    answer_type = Done
    operation = "set_attribute"
    name: str  # physical name
    value: bytes | None  # None: delete
    request_id: str
    fresh: bool = False
    blobs: dict[str, bytes] = {}


class StopFlow(Request[Done], frozen=True, kw_only=True):
    answer_type = Done
    operation = "stop_flow"
    stop_type: str = "CANCEL"  # CANCEL, TERMINATE, FAIL
    reason: str = ""
    request_id: str
    fresh: bool = False


class DeleteFlow(Request[Done], frozen=True, kw_only=True):
    """Removes closed runs for good: one, or with run_id "" all of the Flow ID. A repeat (fresh=False) that finds
    nothing to remove is answered as the first one."""

    answer_type = Done
    operation = "delete_flow"
    run_id: str = ""
    fresh: bool = False


class SkipTimer(Request[Done], frozen=True, kw_only=True):
    """`step` is a Step execution; `sys:timeout_handler-1` stands for the Flow's timeout, which has no other name."""

    answer_type = Done
    operation = "skip_timer"
    step: str
    condition_id: str = ""  # "": by condition_index
    condition_index: int = 0  # among the Timers of the wait
    request_id: str
    fresh: bool = False


class UpdateFlowConfig(Request[Done], frozen=True, kw_only=True):
    answer_type = Done
    operation = "update_flow_config"
    config: FlowConfigSpec  # the fields to change
    request_id: str
    fresh: bool = False


class TimeTravel(Request[Started], frozen=True, kw_only=True):
    """Begins a new run where the current one was. point: a TimeTravelType name, with what it needs."""

    answer_type = Started
    operation = "time_travel"
    point: str
    history_event_time: float = 0.0
    step_type: str = ""
    step: str = ""  # a Step execution
    method: str = ""  # wait_for or execute
    reason: str = ""
    skip_writes_reapply: bool = False
    request_id: str
    fresh: bool = False


# RPCs -----------------------------------------------------------------------------------------------------------------


class RpcAnswer(Answer, frozen=True, kw_only=True):
    output: bytes | None = None  # None: a procedure; an output of None is the payload of None
    blobs: dict[str, bytes] = {}


class InvokeRpc(Request[RpcAnswer], frozen=True, kw_only=True):
    """Runs a handler of the Flow and applies what it asks for. One that changes nothing is a read, and not remembered.

    `timeout` is the time of the whole call, 0 the RPC's own. Locks and loads are added to those of the RPC.
    """

    answer_type = RpcAnswer
    operation = "invoke_rpc"
    flow_type: str  # of the client's code: refused when the Flow is of another
    rpc: str
    input: bytes = b""
    has_input: bool = False
    run_id: str = ""  # "": the current run
    timeout: float = 0.0
    locks: tuple[str, ...] = ()  # physical names
    load_attribute_map_instances: tuple[str, ...] = ()
    load_channel_map_instances: tuple[str, ...] = ()
    request_id: str
    fresh: bool = False
    blobs: dict[str, bytes] = {}


# Reading --------------------------------------------------------------------------------------------------------------


class AttributeValue(Answer, frozen=True, kw_only=True):
    found: bool
    value: bytes = b""
    blobs: dict[str, bytes] = {}


class GetAttribute(Request[AttributeValue], frozen=True, kw_only=True):
    answer_type = AttributeValue
    operation = "get_attribute"
    name: str  # physical name


class Completion(Struct, frozen=True, omit_defaults=True):
    step_type: str
    step_execution_id: str
    output: bytes | None = None  # None: completed without an output


class FlowOutcome(Answer, frozen=True, kw_only=True):
    """The result of a run, or a snapshot of one that still runs."""

    flow_id: str
    run_id: str
    status: str  # a FlowStatus name
    completions: tuple[Completion, ...] = ()
    error_type: str = ""  # "" or a FlowErrorType name
    error_message: str = ""
    blobs: dict[str, bytes] = {}


class WaitForFlow(Request[FlowOutcome], frozen=True, kw_only=True):
    """A long poll: LONG_POLL_TIMEOUT after `timeout` seconds. One request asks for at most 60 s; the Client repeats."""

    answer_type = FlowOutcome
    operation = "wait_for_flow"
    timeout: float = 60.0


class WaitForStep(Request[Done], frozen=True, kw_only=True):
    """A long poll for the end of a Step execution: LONG_POLL_TIMEOUT after `timeout` seconds, of which one request asks
    for at most 60. `request_id` names the wait that all its polls are attached to; `keep` its answer for a while, for
    repeats. `limit`: seconds after which the wait itself ends, 0 for none."""

    answer_type = Done
    operation = "wait_for_step_completion"
    step: str
    request_id: str
    timeout: float = 60.0
    limit: float = 0.0
    keep: bool = False


class WaitForAttribute(Request[AttributeValue], frozen=True, kw_only=True):
    """As WaitForStep, for an Attribute whose value satisfies `operator` (==, !=, >, >=, <, <=) with the operand."""

    answer_type = AttributeValue
    operation = "wait_for_attribute_match"
    name: str  # physical name
    operator: str
    operand: bytes  # the payload of a str, bool, int or float; a reference when it is large
    request_id: str
    timeout: float = 60.0
    limit: float = 0.0
    keep: bool = False


class FailureDescription(Struct, frozen=True, omit_defaults=True):
    error_type: str
    detail: str
    kind: str = ""
    trace: str = ""
    worker: str = ""
    attempt: int = 0
    at: float = 0.0


class StepDescription(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One open Step execution. phase: ready, running, backoff, waiting."""

    step_type: str
    step_execution_id: str
    from_step_execution_id: str
    method: str
    phase: str
    attempt: int
    since: float
    waits_for: str = ""  # in words: what it waits for
    retry_at: float | None = None
    last_failure: FailureDescription | None = None
    has_heartbeat: bool = False
    heartbeat: Any = None  # readable form


class StoreDescription(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """How an Attribute store stands with a Flow. behind_since: None when its row is up to date, as far as the owner
    knows. problem: what the last attempt failed with, when it failed."""

    name: str
    behind_since: float | None = None
    problem: str = ""


class FlowDescription(Answer, frozen=True, kw_only=True):
    """The live state of a run: its open Steps, the sizes of its Channels, its Attributes in readable form.

    Times are seconds since 1970 (UTC). owner: who has the Flow. problem: why the whole Flow can't go on; "" if it can.
    """

    flow_id: str
    run_id: str
    flow_type: str
    status: str
    started_at: float
    closed_at: float | None = None
    error_type: str = ""
    error_message: str = ""
    steps: tuple[StepDescription, ...] = ()
    channels: dict[str, int] = {}
    attributes: dict[str, Any] = {}  # readable forms
    owner: str = ""
    problem: str = ""  # why the whole Flow is parked, when it is
    attribute_stores: tuple[StoreDescription, ...] = ()  # of a Flow with Attributes that are synced


class DescribeFlow(Request[FlowDescription], frozen=True, kw_only=True):
    answer_type = FlowDescription
    operation = "describe_flow"


class HistoryEvent(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One event for people: kind as in the journal, data in readable form."""

    number: int  # counts from 1 in the run
    kind: str
    at: float
    step_execution_id: str = ""
    data: dict[str, Any] = {}


class HistoryPage(Answer, frozen=True, kw_only=True):
    """`place` says where the page ended: the next request may give it back, and need not be read from the beginning."""

    run_id: str
    events: tuple[HistoryEvent, ...]
    closed: bool
    more: bool = False
    place: tuple[int, int] = (0, 0)  # the last record read whole, and the number of its last event


class GetHistory(Request[HistoryPage], frozen=True, kw_only=True):
    """Events after number `after`; with wait > 0 a long poll for the next ones."""

    answer_type = HistoryPage
    operation = "history"
    run_id: str = ""
    after: int = 0
    limit: int = 1000
    wait: float = 0.0
    place: tuple[int, int] = (0, 0)  # of the page before, of the same run


class IndexedValue(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What is found under an index key, as JSON data. kind: a WireKind name."""

    kind: str
    data: Any = None


class FlowEntry(Struct, frozen=True, omit_defaults=True, kw_only=True):
    flow_id: str
    run_id: str
    flow_type: str
    status: str
    started_at: float
    closed_at: float | None = None
    indexed: dict[str, IndexedValue] = {}  # by index key


class FlowsPage(Answer, frozen=True, kw_only=True):
    flows: tuple[FlowEntry, ...]
    next_page_token: str = ""


class ListFlows(Request[FlowsPage], frozen=True, kw_only=True):
    """The latest run of each Flow, newest first. "" does not filter."""

    answer_type = FlowsPage
    operation = "list_flows"
    status: str = ""
    flow_type: str = ""
    page_size: int = 100
    page_token: str = ""
    query: str = ""


class SearchFlows(Request[FlowsPage], frozen=True, kw_only=True):
    """Runs that a query finds, newest first, those among them that another run has replaced."""

    answer_type = FlowsPage
    operation = "search_flows"
    query: str = ""
    page_size: int = 100
    page_token: str = ""


class FlowCount(Answer, frozen=True, kw_only=True):
    count: int


class CountFlows(Request[FlowCount], frozen=True, kw_only=True):
    """How many runs a query finds. latest_only: of each Flow the latest run alone."""

    answer_type = FlowCount
    operation = "count_flows"
    query: str = ""
    latest_only: bool = False


# Streams --------------------------------------------------------------------------------------------------------------


class WriteStream(Request[Done], frozen=True, kw_only=True):
    """A message for a Stream, of a Flow that need not exist. Not remembered: a repeat may be a message more."""

    answer_type = Done
    operation = "write_stream"
    stream: str
    source: str
    value: bytes
    capacity: int  # bytes of messages that the Stream may keep


class StreamEntry(Struct, frozen=True, omit_defaults=True, kw_only=True):
    value: bytes
    token: str  # reads on behind this message
    created_at: float
    source: str


class StreamMessages(Answer, frozen=True, kw_only=True):
    messages: tuple[StreamEntry, ...]
    next_page_token: str = ""


class ReadStream(Request[StreamMessages], frozen=True, kw_only=True):
    """A long poll for the next message behind `token`, "" for the oldest: LONG_POLL_TIMEOUT after `timeout` seconds, of
    which one request asks for at most 60. Up to `limit` messages come at once, oldest first."""

    answer_type = StreamMessages
    operation = "read_stream"
    stream: str
    token: str = ""
    limit: int = 1
    timeout: float = 60.0


class ListStreamMessages(Request[StreamMessages], frozen=True, kw_only=True):
    """Newest first; "" begins with the newest."""

    answer_type = StreamMessages
    operation = "list_stream_messages"
    stream: str
    page_size: int
    token: str = ""


AnyRequest = (
    StartFlow
    | Publish
    | SetAttribute
    | StopFlow
    | DeleteFlow
    | SkipTimer
    | UpdateFlowConfig
    | TimeTravel
    | InvokeRpc
    | GetAttribute
    | WaitForFlow
    | WaitForStep
    | WaitForAttribute
    | DescribeFlow
    | GetHistory
    | ListFlows
    | SearchFlows
    | CountFlows
    | WriteStream
    | ReadStream
    | ListStreamMessages
)


class ServiceFailure(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An error as data; a Client turns it into the exception that its code and sub_status stand for (`dex.errors`)."""

    code: str  # a StatusCode name
    detail: str
    sub_status: str = "UNCATEGORIZED"  # an ErrorSubStatus name
    worker_code: str = ""  # with WORKER_API_ERROR: the StatusCode name, type and text of what the handler raised
    worker_error_type: str = ""
    worker_error_detail: str = ""
    is_final: bool = False  # with UNAVAILABLE: the outcome is known, nothing was applied; the client need not repeat it


class ServiceError(Exception):
    """Raised by a FlowService. Clients translate it; nothing else of a service's inside reaches a user."""

    def __init__(self, code: str, detail: str, sub_status: str = "UNCATEGORIZED") -> None:
        super().__init__(f"{code}: {detail}")
        self.failure = ServiceFailure(code=code, detail=detail, sub_status=sub_status)

    @classmethod
    def of(cls, failure: ServiceFailure) -> ServiceError:
        """The error that carries this failure as it is."""
        error = cls(failure.code, failure.detail, failure.sub_status)
        error.failure = failure
        return error


class FlowService(Protocol):
    async def call(self, request: Request[AnswerT]) -> AnswerT:
        """Answers one request, or raises ServiceError. UNAVAILABLE means that the outcome is unknown: repeat with the
        same id."""
        ...

    async def close(self) -> None: ...


_requests: msgspec.msgpack.Decoder[AnyRequest] = msgspec.msgpack.Decoder(AnyRequest)
_encoder = msgspec.msgpack.Encoder()


def encode(message: Struct) -> bytes:
    return _encoder.encode(message)


def decode_request(data: bytes) -> AnyRequest:
    return _requests.decode(data)


def decode_answer(request: Request[AnswerT], data: bytes) -> AnswerT:
    return msgspec.msgpack.decode(data, type=request.answer_type)  # type: ignore[return-value]
