"""What a client sends for each call, what it makes of the answers, and what it refuses before sending."""

from __future__ import annotations

import asyncio
import inspect
import os
import pickle
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from dex import (
    AsyncClient,
    Attribute,
    AttributeMap,
    Channel,
    ChannelMap,
    Client,
    ClientOptions,
    Context,
    DexServiceError,
    Flow,
    FlowAlreadyStartedError,
    FlowConfig,
    FlowDefinitionError,
    FlowErrorType,
    FlowInfo,
    FlowNotActiveOrNotFoundError,
    FlowNotFoundError,
    FlowStatus,
    FlowTimeoutHandlerOptions,
    FlowTimeoutPolicy,
    IdReusePolicy,
    LongPollTimeoutError,
    PersistenceSchema,
    Registry,
    RetryPolicy,
    RPCResult,
    StartFlowOptions,
    Step,
    StepDecision,
    StepList,
    StopFlowOptions,
    StopType,
    Stream,
    ValueMappingError,
    graceful_complete,
    rpc,
)
from dex.values import BLOB_THRESHOLD, CodecRegistry, attach, detach, reference_of
from dex.wire.service import (
    AttributeValue,
    Completion,
    Done,
    FlowConfigSpec,
    FlowDescription,
    FlowEntry,
    FlowOutcome,
    FlowsPage,
    HistoryEvent,
    HistoryPage,
    Published,
    ServiceError,
    Started,
)
from tests.dex.scripted_service import ScriptedService, poll_over, unavailable


@dataclass(frozen=True)
class Order:
    items: int


class Charge(Step[Order]):
    def execute(self, context: Context, input: Order) -> StepDecision:
        return graceful_complete(input.items)


class OrderFlow(Flow[Order]):
    approval = Channel("approval", bool)
    parts = ChannelMap("parts", int)
    total = Attribute("total", int)
    note = Attribute("note", str)
    secret = Attribute("secret", str, hard_delete_on_null=True)
    stock = AttributeMap("stock", int)
    words = Stream("words", str, 1000)

    def get_steps(self) -> StepList[Order]:
        return StepList.start_step(Charge())

    def get_persistence_schema(self) -> PersistenceSchema:
        return PersistenceSchema.of(
            self.approval, self.parts, self.total, self.note, self.secret, self.stock, self.words
        )

    @rpc
    def add(self, context: Context, input: int) -> RPCResult[str]:
        return RPCResult(str(input))

    @rpc
    def ping(self, context: Context) -> None: ...


class PatientFlow(Flow[None]):
    def handle_timeout(self, context: Context) -> StepDecision:
        return graceful_complete()


FLOW = OrderFlow()
PATIENT = PatientFlow()
REGISTRY = Registry([FLOW, PATIENT])
CODECS = CodecRegistry()


def client_of(*script: Any) -> tuple[AsyncClient, ScriptedService]:
    service = ScriptedService(*script)
    return AsyncClient(REGISTRY, service), service


# Starting -------------------------------------------------------------------------------------------------------------


@pytest.mark.statement("B36")
async def test_a_start_without_a_request_id_is_a_new_request_each_time() -> None:
    client, service = client_of(Started(run_id="r1"), Started(run_id="r2"))
    assert await client.start_flow(FLOW, "o", Order(3)) == "r1"
    assert await client.start_flow(FLOW, "o", Order(3)) == "r2"
    first, second = service.requests
    assert first.request_id != second.request_id
    assert first.fresh
    assert second.fresh
    assert (first.flow_id, first.flow_type) == ("o", "OrderFlow")
    assert CODECS.decode(first.input, Order, where="input") == Order(3)
    assert (first.timeout, first.timeout_policy, first.start_delay, first.has_retry_policy) == (0, "", 0, False)


async def test_a_request_id_of_the_caller_is_never_fresh() -> None:
    client, service = client_of(Started(run_id="r"), Started(run_id="r"))
    await client.start_flow(FLOW, "o", Order(3), StartFlowOptions(request_id="mine"))
    await client.start_flow(FLOW, "o", Order(3), request_id="mine")
    assert [(request.request_id, request.fresh) for request in service.requests] == [("mine", False)] * 2
    first, second = (request.call_id for request in service.requests)
    assert first, "two starts under one id are two calls"
    assert first != second


async def test_two_request_ids_for_one_start_are_refused() -> None:
    client, _ = client_of()
    with pytest.raises(ValueError, match="two request ids"):
        await client.start_flow(FLOW, "o", Order(3), StartFlowOptions(request_id="a"), request_id="b")


@pytest.mark.statement("B8", "B13", "B14")
async def test_all_start_options_reach_the_service() -> None:
    client, service = client_of(Started(run_id="r"))
    options = StartFlowOptions(
        timeout=timedelta(minutes=2),
        timeout_policy=FlowTimeoutPolicy.CANCEL,
        start_delay=timedelta(seconds=7),
        id_reuse_policy=IdReusePolicy.DISALLOW,
        retry_policy=RetryPolicy(),
        config_override=FlowConfig(attribute_store_names=["main"]),
        ignore_already_started=True,
    )
    options = options.with_attribute(FLOW.note, "hi").with_attribute(FLOW.stock, "a b", 4)
    await client.start_flow(FLOW, "o", Order(3), options)
    request = service.request
    assert (request.timeout, request.timeout_policy, request.timeout_handler) == (120, "CANCEL", None)
    assert (request.start_delay, request.has_retry_policy) == (7, True)
    assert (request.id_reuse_policy, request.ignore_already_started) == ("DISALLOW", True)
    assert request.config == FlowConfigSpec(attribute_store_names=("main",))
    assert {name: CODECS.decode(value, Any, where="") for name, value in request.attributes.items()} == {
        "note": "hi",
        "stock/a%20b": 4,
    }


@pytest.mark.statement("B21")
@pytest.mark.parametrize(("flow", "value", "policy"), [(FLOW, Order(1), "FAIL"), (PATIENT, None, "HANDLER")])
async def test_the_timeout_policy_is_handler_for_a_flow_that_handles_it_and_else_fail(
    flow: Flow[Any], value: Any, policy: str
) -> None:
    client, service = client_of(Started(run_id="r"))
    await client.start_flow(flow, "o", value, StartFlowOptions(timeout=timedelta(seconds=5)))
    assert service.request.timeout_policy == policy
    assert (service.request.timeout_handler is not None) == (policy == "HANDLER")


WRONG_STARTS: list[tuple[str, Flow[Any], str, Any, StartFlowOptions, type[Exception], str]] = [
    ("an empty id", FLOW, "", Order(1), StartFlowOptions(), ValueError, "must not be empty"),
    ("an id with NUL", FLOW, "a\0", Order(1), StartFlowOptions(), ValueError, "control characters"),
    ("another input type", FLOW, "o", 5, StartFlowOptions(), ValueMappingError, "input of Flow 'OrderFlow'"),
    ("input without a start Step", PATIENT, "o", 5, StartFlowOptions(), ValueError, "takes no input"),
    ("a foreign Flow", OrderFlow(), "o", Order(1), StartFlowOptions(), FlowDefinitionError, "is not registered"),
    (
        "a policy without a timeout",
        FLOW,
        "o",
        Order(1),
        StartFlowOptions(timeout_policy=FlowTimeoutPolicy.FAIL),
        ValueError,
        "requires a positive timeout",
    ),
    (
        "HANDLER without a handler",
        FLOW,
        "o",
        Order(1),
        StartFlowOptions(timeout=timedelta(seconds=1), timeout_policy=FlowTimeoutPolicy.HANDLER),
        ValueError,
        "has no handle_timeout override",
    ),
    (
        "handler options without a timeout",
        PATIENT,
        "o",
        None,
        StartFlowOptions(timeout_handler_options=FlowTimeoutHandlerOptions()),
        ValueError,
        "requires a positive timeout",
    ),
    (
        "an Attribute of another Flow",
        PATIENT,
        "o",
        None,
        StartFlowOptions().with_attribute(FLOW.note, "x"),
        ValueError,
        "'note' is not registered",
    ),
    ("an empty request id", FLOW, "o", Order(1), StartFlowOptions(request_id=""), ValueError, "request_id"),
]


@pytest.mark.statement("B17", "B22", "B25", "D13")
@pytest.mark.parametrize(
    ("flow", "flow_id", "value", "options", "error", "text"),
    [row[1:] for row in WRONG_STARTS],
    ids=[row[0] for row in WRONG_STARTS],
)
async def test_a_wrong_start_is_refused_before_anything_is_sent(
    flow: Flow[Any], flow_id: str, value: Any, options: StartFlowOptions, error: type[Exception], text: str
) -> None:
    client, service = client_of()
    with pytest.raises(error, match=text):
        await client.start_flow(flow, flow_id, value, options)
    assert service.requests == []


@pytest.mark.statement("D13")
@pytest.mark.parametrize("flow_id", ["a/b:c#d?e%f@g", 'it\'s "so"', "  ", "заказ-17", "注文 17", "x" * 1000])
async def test_a_flow_id_reaches_the_service_as_it_is(flow_id: str) -> None:
    client, service = client_of(Started(run_id="r"))
    await client.start_flow(PATIENT, flow_id)
    assert service.request.flow_id == flow_id


@pytest.mark.statement("D12")
async def test_a_large_input_travels_beside_its_reference() -> None:
    client, service = client_of(Published(message_ids=("m",)))
    big = Channel("big", str)

    class Big(Flow[None]):
        def get_persistence_schema(self) -> PersistenceSchema:
            return PersistenceSchema.of(big)

    client = AsyncClient(Registry([Big()]), service)
    text = "x" * (BLOB_THRESHOLD + 1)
    await client.publish("o", big, text)
    (payload,) = service.request.values
    assert reference_of(payload) in service.request.blobs
    assert CODECS.decode(attach(payload, service.request.blobs), str, where="") == text


@pytest.mark.statement("D12")
async def test_a_value_above_the_limit_of_the_client_is_refused_with_size_limit_and_name() -> None:
    service = ScriptedService()
    client = AsyncClient(REGISTRY, service, ClientOptions(max_value_bytes=100))
    with pytest.raises(ValueMappingError, match=r"Attribute 'note'.*102 bytes.*limit of 100") as caught:
        await client.set_attribute("o", FLOW.note, "x" * 100)
    assert caught.value.too_large
    with pytest.raises(ValueMappingError, match="limit of 100"):
        await client.start_flow(FLOW, "o", Order(1), StartFlowOptions().with_attribute(FLOW.note, "x" * 100))
    assert service.requests == []


@pytest.mark.parametrize("request_id", [None, "mine"])
async def test_a_repeated_start_carries_the_ids_of_the_first_send(request_id: str | None) -> None:
    client, service = client_of(unavailable(), Started(run_id="r"))
    assert await client.start_flow(FLOW, "o", Order(3), request_id=request_id) == "r"
    first, second = service.requests
    assert (first.request_id, first.call_id) == (second.request_id, second.call_id)
    assert (first.fresh, second.fresh) == (request_id is None, False)


# Channels and Attributes ----------------------------------------------------------------------------------------------


async def test_publish_sends_all_values_in_order_and_returns_their_ids() -> None:
    client, service = client_of(Published(message_ids=("m1", "m2")))
    assert await client.publish("o", FLOW.approval, True, False) == ("m1", "m2")
    request = service.request
    assert (request.flow_id, request.channel, request.fresh) == ("o", "approval", True)
    assert [CODECS.decode(value, bool, where="") for value in request.values] == [True, False]


async def test_publish_to_a_map_names_the_instance() -> None:
    client, service = client_of(Published(message_ids=("m",)))
    await client.publish("o", FLOW.parts, "left wheel", 4, request_id="mine")
    assert service.request.channel == Registry.physical_name("parts", "left wheel") == "parts/left%20wheel"
    assert (service.request.request_id, service.request.fresh) == ("mine", False)


async def test_get_attribute_returns_the_typed_value() -> None:
    value = CODECS.encode(7, int, where="")
    client, service = client_of(AttributeValue(found=True, value=value), AttributeValue(found=True, value=value))
    assert await client.get_attribute("o", FLOW.total) == 7
    assert await client.get_attribute("o", FLOW.stock, "x") == 7
    assert [request.name for request in service.requests] == ["total", "stock/x"]


async def test_a_missing_attribute_reads_as_it_does_in_a_step() -> None:
    client, _ = client_of(*[AttributeValue(found=False)] * 3)
    assert await client.get_attribute("o", FLOW.total) == 0
    assert await client.get_attribute("o", FLOW.note) is None
    assert await client.get_attribute("o", FLOW.stock, "x") == 0


async def test_a_large_attribute_is_put_together_again() -> None:
    blobs: dict[str, bytes] = {}
    payload = detach(CODECS.encode("x" * 50_000, str, where=""), blobs)
    client, _ = client_of(AttributeValue(found=True, value=payload, blobs=blobs))
    assert await client.get_attribute("o", FLOW.note) == "x" * 50_000


async def test_set_attribute_sends_the_value_and_none_deletes() -> None:
    client, service = client_of(Done(), Done(), Done())
    await client.set_attribute("o", FLOW.note, "hi")
    await client.set_attribute("o", FLOW.note, None, request_id="mine")
    await client.set_attribute("o", FLOW.stock, "x", 5)
    first, second, third = service.requests
    assert (first.name, CODECS.decode(first.value, str, where=""), first.fresh) == ("note", "hi", True)
    assert (second.name, second.value, second.request_id, second.fresh) == ("note", None, "mine", False)
    assert (third.name, CODECS.decode(third.value, int, where="")) == ("stock/x", 5)


Call = Callable[[Any], Any]  # deliberately untyped: the wrong calls are wrong for a type checker too
WRONG_CALLS: list[tuple[str, Call, type[Exception], str]] = [
    (
        "a Channel of no Flow",
        lambda c: c.publish("o", Channel("approval", bool), True),
        ValueError,
        "Channel 'approval' is not registered by any Flow of this client's Registry .OrderFlow, PatientFlow.",
    ),
    ("no value", lambda c: c.publish("o", FLOW.approval), ValueError, "at least one value"),
    ("a map without instance", lambda c: c.publish("o", FLOW.parts), TypeError, "needs an instance"),
    ("a map with a number for instance", lambda c: c.publish("o", FLOW.parts, 4), TypeError, "named by a str"),
    ("an instance with a slash", lambda c: c.publish("o", FLOW.parts, "a/b", 4), ValueError, "must not contain"),
    ("an Attribute as Channel", lambda c: c.publish("o", FLOW.total, 4), TypeError, "takes Channel or ChannelMap"),
    (
        "a message of another type",
        lambda c: c.publish("o", FLOW.approval, True, 1),
        ValueMappingError,
        "message for Channel 'approval'",
    ),
    (
        "an Attribute of no Flow",
        lambda c: c.get_attribute("o", Attribute("total", int)),
        ValueError,
        "'total' is not registered",
    ),
    ("too many arguments", lambda c: c.get_attribute("o", FLOW.total, "x"), TypeError, "too many"),
    (
        "a value of another type",
        lambda c: c.set_attribute("o", FLOW.total, True),
        ValueMappingError,
        "value of Attribute 'total'",
    ),
    ("no value to set", lambda c: c.set_attribute("o", FLOW.stock, "x"), TypeError, "takes one value, got 0"),
    ("an empty request id", lambda c: c.publish("o", FLOW.approval, True, request_id=""), ValueError, "request_id"),
    ("a request id that is no text", lambda c: c.stop_flow("o", request_id=5), TypeError, "request_id must be a str"),
    ("an empty Flow ID", lambda c: c.stop_flow(""), ValueError, "must not be empty"),
    ("a Flow ID that is no text", lambda c: c.describe_flow(5), TypeError, "a Flow ID is a str"),
    ("a negative timeout", lambda c: c.wait_for_flow("o", timedelta(-1)), ValueError, "must not be negative"),
    ("a timeout in seconds", lambda c: c.wait_for_flow("o", 5), TypeError, "must be a datetime.timedelta"),
    ("a page of no size", lambda c: c.list_flows(page_size=0), ValueError, "page_size"),
    ("a status as text", lambda c: c.list_flows(status="RUNNING"), TypeError, "takes a FlowStatus"),
    ("other options", lambda c: c.stop_flow("o", StartFlowOptions()), TypeError, "takes StopFlowOptions"),
]


@pytest.mark.statement("B5")
@pytest.mark.parametrize(
    ("call", "error", "text"), [row[1:] for row in WRONG_CALLS], ids=[row[0] for row in WRONG_CALLS]
)
async def test_a_wrong_call_is_refused_before_anything_is_sent(call: Call, error: type[Exception], text: str) -> None:
    client, service = client_of()
    with pytest.raises(error, match=text):
        await call(client)
    assert service.requests == []


def test_a_client_of_something_else_than_a_registry_is_refused() -> None:
    with pytest.raises(TypeError, match="needs a Registry, got OrderFlow"):
        Client(FLOW)  # type: ignore[arg-type]


# Ending and looking ---------------------------------------------------------------------------------------------------


async def test_stop_flow_sends_how_and_why() -> None:
    client, service = client_of(Done(), Done())
    await client.stop_flow("o")
    await client.stop_flow("o", StopFlowOptions(StopType.FAIL, "too late"), request_id="mine")
    first, second = service.requests
    assert (first.stop_type, first.reason, first.fresh) == ("CANCEL", "", True)
    assert (second.stop_type, second.reason, second.request_id, second.fresh) == ("FAIL", "too late", "mine", False)


@pytest.mark.statement("B111")
async def test_wait_for_flow_returns_outputs_that_are_decoded_when_asked_for() -> None:
    output = CODECS.encode(Order(3), Order, where="")
    outcome = FlowOutcome(
        flow_id="o", run_id="r", status="COMPLETED", completions=(Completion("Charge", "Charge-1", output),)
    )
    client, _ = client_of(outcome)
    result = await client.wait_for_flow("o")
    assert result.status is FlowStatus.COMPLETED
    assert result.completions[0].step_execution_id == "Charge-1"
    assert result.single_output(Order) == Order(3)


@pytest.mark.statement("C43")
async def test_a_failed_flow_is_a_result_and_no_error() -> None:
    outcome = FlowOutcome(
        flow_id="o", run_id="r", status="FAILED", error_type="STEP_DECISION_FAILED", error_message="no stock"
    )
    client, _ = client_of(outcome)
    result = await client.wait_for_flow("o")
    assert (result.error_type, result.error_message) == (FlowErrorType.STEP_DECISION_FAILED, "no stock")


@pytest.mark.statement("C42")
async def test_wait_for_flow_with_a_short_timeout_is_one_short_poll() -> None:
    client, service = client_of(poll_over())
    with pytest.raises(LongPollTimeoutError):
        await client.wait_for_flow("o", timedelta(0))
    assert service.request.timeout == 0


DESCRIPTION = FlowDescription(
    flow_id="o", run_id="r", flow_type="OrderFlow", status="RUNNING", started_at=1_700_000_000.5, channels={"parts": 2}
)


async def test_describe_flow_returns_flow_info_and_describe_the_live_state() -> None:
    client, _ = client_of(DESCRIPTION, DESCRIPTION)
    started = datetime(2023, 11, 14, 22, 13, 20, 500_000, tzinfo=UTC)
    assert await client.describe_flow("o") == FlowInfo("o", "r", "OrderFlow", FlowStatus.RUNNING, started)
    assert await client.describe("o") == DESCRIPTION


async def test_list_flows_returns_typed_entries_and_the_token_of_the_next_page() -> None:
    entries = (
        FlowEntry(flow_id="a", run_id="r1", flow_type="T", status="RUNNING", started_at=10.0),
        FlowEntry(flow_id="b", run_id="r2", flow_type="T", status="FAILED", started_at=5.0, closed_at=6.0),
    )
    client, service = client_of(FlowsPage(flows=entries, next_page_token="more"))
    page = await client.list_flows(status=FlowStatus.FAILED, flow_type="T", page_size=2, page_token="t")
    request = service.request
    assert (request.status, request.flow_type, request.page_size, request.page_token) == ("FAILED", "T", 2, "t")
    assert page.next_page_token == "more"
    assert [(flow.flow_id, flow.status) for flow in page.flows] == [("a", FlowStatus.RUNNING), ("b", FlowStatus.FAILED)]
    assert page.flows[0].closed_at is None
    assert page.flows[1].closed_at == datetime(1970, 1, 1, 0, 0, 6, tzinfo=UTC)


def history_script() -> list[HistoryPage]:
    events = tuple(HistoryEvent(number=number, kind="k", at=0.0) for number in range(1, 4))
    return [
        HistoryPage(run_id="r", events=events[:2], closed=True, more=True),
        HistoryPage(run_id="r", events=events[2:], closed=True),
    ]


async def test_history_is_one_sequence_over_all_pages() -> None:
    client, service = client_of(*history_script())
    assert [event.number async for event in client.history("o", page_size=2)] == [1, 2, 3]
    assert len(service.requests) == 2


@pytest.mark.parametrize(("answer", "healthy"), [(FlowsPage(flows=()), True), (unavailable(), False)])
async def test_health_check_asks_once(answer: Any, healthy: bool) -> None:
    client, service = client_of(answer)
    assert await client.health_check() is healthy
    assert len(service.requests) == 1


@pytest.mark.statement("D3")
async def test_trigger_continue_as_new_does_nothing_to_an_active_flow() -> None:
    client, service = client_of(DESCRIPTION)
    await client.trigger_continue_as_new("o")
    assert type(service.request).__name__ == "DescribeFlow"


@pytest.mark.statement("D3", "C49")
@pytest.mark.parametrize(
    "answer",
    [
        ServiceError("NOT_FOUND", "no Flow 'o'", "FLOW_NOT_EXISTS"),
        FlowDescription(flow_id="o", run_id="r", flow_type="T", status="COMPLETED", started_at=0.0, closed_at=1.0),
    ],
)
async def test_trigger_continue_as_new_of_a_flow_that_is_not_active_says_so(answer: Any) -> None:
    client, _ = client_of(answer)
    with pytest.raises(FlowNotActiveOrNotFoundError):
        await client.trigger_continue_as_new("o")


# Errors ---------------------------------------------------------------------------------------------------------------

NOT_EXISTS = ("NOT_FOUND", "FLOW_NOT_EXISTS")
ERRORS: list[tuple[str, Call, tuple[str, str], type[DexServiceError]]] = [
    (
        "start_flow",
        lambda c: c.start_flow(FLOW, "o", Order(1)),
        ("ALREADY_EXISTS", "FLOW_ALREADY_STARTED"),
        FlowAlreadyStartedError,
    ),
    ("publish", lambda c: c.publish("o", FLOW.approval, True), NOT_EXISTS, FlowNotActiveOrNotFoundError),
    ("set_attribute", lambda c: c.set_attribute("o", FLOW.note, "x"), NOT_EXISTS, FlowNotActiveOrNotFoundError),
    ("stop_flow", lambda c: c.stop_flow("o"), NOT_EXISTS, FlowNotActiveOrNotFoundError),
    ("get_attribute", lambda c: c.get_attribute("o", FLOW.note), NOT_EXISTS, FlowNotFoundError),
    ("describe_flow", lambda c: c.describe_flow("o"), NOT_EXISTS, FlowNotFoundError),
    ("describe", lambda c: c.describe("o"), NOT_EXISTS, FlowNotFoundError),
    ("wait_for_flow", lambda c: c.wait_for_flow("o"), NOT_EXISTS, FlowNotFoundError),
    ("start_flow", lambda c: c.start_flow(FLOW, "o", Order(1)), ("INVALID_ARGUMENT", "UNCATEGORIZED"), DexServiceError),
    ("publish", lambda c: c.publish("o", FLOW.approval, True), ("NO_SUCH_CODE", "NO_SUCH_THING"), DexServiceError),
]


@pytest.mark.statement("C49", "C61")
@pytest.mark.parametrize(("operation", "call", "failure", "error"), ERRORS)
async def test_a_failure_of_the_service_becomes_the_error_that_it_stands_for(
    operation: str, call: Call, failure: tuple[str, str], error: type[DexServiceError]
) -> None:
    code, sub_status = failure
    client, _ = client_of(ServiceError(code, "because", sub_status))
    with pytest.raises(DexServiceError, match="because") as caught:
        await call(client)
    assert type(caught.value) is error
    assert (caught.value.operation, caught.value.flow_id) == (operation, "o")
    assert caught.value.__cause__ is None


async def test_the_history_of_an_unknown_flow_is_an_error() -> None:
    client, _ = client_of(ServiceError("NOT_FOUND", "no Flow 'o'", "FLOW_NOT_EXISTS"))
    with pytest.raises(FlowNotFoundError):
        _ = [event async for event in client.history("o")]


@pytest.mark.statement("C59")
async def test_a_search_page_of_a_negative_size_is_refused_before_it_is_sent() -> None:
    client, service = client_of()
    with pytest.raises(ValueError, match="must not be negative"):
        await client.search_flows("", -1)
    with pytest.raises(ValueError, match="surrogate pair at position 5"):
        await client.count_flows("a = '\ud800'"[:4] + "\ud800")
    assert service.requests == []


# The blocking client --------------------------------------------------------------------------------------------------


def public_methods(kind: type) -> dict[str, inspect.Signature]:
    return {
        name: inspect.signature(method)
        for name, method in inspect.getmembers(kind, callable)
        if not name.startswith("_")
    }


def test_both_clients_have_the_same_methods_with_the_same_parameters_and_docstrings() -> None:
    blocking, asynchronous = public_methods(Client), public_methods(AsyncClient)
    assert blocking.keys() == asynchronous.keys()
    for name, signature in blocking.items():
        ours = [(p.name, p.kind, p.default) for p in signature.parameters.values()]
        theirs = [(p.name, p.kind, p.default) for p in asynchronous[name].parameters.values()]
        assert ours == theirs, name
        assert getattr(Client, name).__doc__, name


def test_the_blocking_client_does_what_the_asynchronous_one_does() -> None:
    service = ScriptedService(
        Started(run_id="r"),
        Published(message_ids=("m",)),
        AttributeValue(found=False),
        Done(),
        Done(),
        DESCRIPTION,
        DESCRIPTION,
        *history_script(),
        FlowsPage(flows=()),
        FlowsPage(flows=()),
        DESCRIPTION,
        FlowOutcome(flow_id="o", run_id="r", status="COMPLETED"),
    )
    with Client(REGISTRY, service) as client:
        assert client.start_flow(FLOW, "o", Order(1)) == "r"
        assert client.publish("o", FLOW.parts, "x", 1) == ("m",)
        assert client.get_attribute("o", FLOW.stock, "x") == 0
        client.set_attribute("o", FLOW.note, "hi")
        client.stop_flow("o")
        assert client.describe_flow("o").status is FlowStatus.RUNNING
        assert client.describe("o") is DESCRIPTION
        assert [event.number for event in client.history("o")] == [1, 2, 3]
        assert client.list_flows().flows == ()
        assert client.health_check()
        client.trigger_continue_as_new("o")
        assert client.wait_for_flow("o").status is FlowStatus.COMPLETED
    assert service.script == []
    client.close()
    with pytest.raises(RuntimeError, match="Client is closed"):
        client.health_check()


async def test_the_blocking_client_works_where_an_event_loop_runs_as_in_a_notebook() -> None:
    with Client(REGISTRY, ScriptedService(Done())) as client:
        client.stop_flow("o")


def test_threads_may_share_a_client() -> None:
    service = ScriptedService(*[Published(message_ids=("m",))] * 40)
    with Client(REGISTRY, service) as client, ThreadPoolExecutor(4) as threads:
        list(threads.map(lambda part: client.publish("o", FLOW.parts, str(part), part), range(40)))
    assert len({request.channel for request in service.requests}) == 40


def test_after_a_keyboard_interrupt_the_client_goes_on() -> None:
    class Interrupting(ScriptedService):
        async def call(self, request: Any) -> Any:
            if not self.requests:
                self.requests.append(request)
                os.kill(os.getpid(), signal.SIGINT)
                await asyncio.Event().wait()
            return await super().call(request)

    with Client(REGISTRY, Interrupting(Done())) as client:
        with pytest.raises(KeyboardInterrupt):
            client.wait_for_flow("o")
        client.stop_flow("o")


def test_an_owned_service_is_closed_with_its_client_in_the_loop_that_it_ran_in() -> None:
    threads: list[threading.Thread] = []

    class Watching(ScriptedService):
        async def call(self, request: Any) -> Any:
            threads.append(threading.current_thread())
            return await super().call(request)

        async def close(self) -> None:
            threads.append(threading.current_thread())

    with Client(REGISTRY, Watching(Done()), ClientOptions(owns_service=True)) as client:
        client.stop_flow("o")
    assert threads[0] is threads[1] is not threading.current_thread()


def test_without_a_service_the_client_finds_the_default_one(monkeypatch: pytest.MonkeyPatch) -> None:
    import dexray

    service = ScriptedService(Done())
    monkeypatch.setattr(dexray, "default_service", lambda: service, raising=False)
    with Client(REGISTRY) as client:
        client.stop_flow("o")
    assert service.closed == 1


@pytest.mark.parametrize("kind", [Client, AsyncClient])
def test_a_client_can_be_sent_to_another_process_with_its_flows(kind: type[Any]) -> None:
    copy = pickle.loads(pickle.dumps(kind(REGISTRY, options=ClientOptions(max_value_bytes=5))))
    assert isinstance(copy, kind)
    assert list(copy.registry.flows) == ["OrderFlow", "PatientFlow"]


def test_a_program_that_does_not_close_its_client_ends() -> None:
    program = """
        from dex import Client, Registry
        from dex.wire.service import Done
        from tests.dex.scripted_service import ScriptedService

        client = Client(Registry([]), ScriptedService(Done()))
        client.stop_flow("o")
        print("last line")
    """
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(program)],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(root), *sys.path])},
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "last line\n"
