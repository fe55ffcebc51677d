"""What `invoke_rpc` takes, sends and gives back."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from dex import (
    AsyncClient,
    AsyncContext,
    Attribute,
    AttributeMap,
    ChannelMap,
    ChannelMessageNotFoundError,
    Client,
    Context,
    DexServiceError,
    Flow,
    FlowDefinitionError,
    FlowNotActiveOrNotFoundError,
    PersistenceSchema,
    Registry,
    RequestTimeoutError,
    RPCInvokeOptions,
    RpcLockConflictError,
    RPCResult,
    StatusCode,
    StepResources,
    ValueMappingError,
    WorkerInvocationError,
    rpc,
)
from dex.client_calls import ServiceCaller
from dex.values import BLOB_THRESHOLD, CodecRegistry, detach
from dex.wire.service import RpcAnswer, ServiceError, ServiceFailure
from tests.dex.scripted_service import ScriptedService, VirtualTime, unavailable

count = Attribute("count", int)
stock = AttributeMap("stock", int)
parts = ChannelMap("parts", str)
foreign = AttributeMap("foreign", int)


class Shop(Flow[None]):
    def get_persistence_schema(self) -> PersistenceSchema:
        return PersistenceSchema.of(count, stock, parts)

    @rpc(timeout=timedelta(seconds=7), resources=StepResources(num_gpus=1))
    def add(self, context: Context, input: int) -> RPCResult[str]:
        return RPCResult(str(input))

    @rpc(name="sum")
    async def total(self, context: AsyncContext) -> RPCResult[list[int]]:
        return RPCResult([1])

    @rpc
    def drop(self, context: Context, input: str | None) -> None: ...

    @rpc(lock_attributes=(count.lock(),))
    def clear(self, context: Context) -> None: ...

    def no_rpc(self, context: Context) -> None: ...


SHOP = Shop()
REGISTRY = Registry([SHOP], allow_async_handlers=True)
CODECS = CodecRegistry()


def client_of(*script: Any) -> tuple[AsyncClient, ScriptedService]:
    service = ScriptedService(*script)
    return AsyncClient(REGISTRY, service), service


def output(value: Any) -> bytes:
    return CODECS.encode_dynamic(value, where="output")


@pytest.mark.statement("B6")
async def test_a_function_sends_its_input_and_decodes_its_output() -> None:
    client, service = client_of(RpcAnswer(output=output("5")))
    assert await client.invoke_rpc(SHOP.add, "s", 5) == "5"
    sent = service.request
    assert (sent.flow_id, sent.flow_type, sent.rpc, sent.run_id) == ("s", "Shop", "add", "")
    assert (sent.has_input, CODECS.decode(sent.input, int, where="input")) == (True, 5)
    assert sent.timeout == 7.0
    assert sent.fresh
    assert sent.request_id


@pytest.mark.statement("B6")
async def test_without_an_input_none_is_sent_and_the_durable_name_counts() -> None:
    client, service = client_of(RpcAnswer(output=output([1, 2])))
    assert await client.invoke_rpc(SHOP.total, "s") == [1, 2]
    assert (service.request.rpc, service.request.has_input, service.request.input) == ("sum", False, b"")
    assert service.request.timeout == 60.0


async def test_none_can_be_an_input() -> None:
    client, service = client_of(RpcAnswer())
    await client.invoke_rpc(SHOP.drop, "s", None)
    assert service.request.has_input
    assert CODECS.decode(service.request.input, str | None, where="input") is None


async def test_a_procedure_answers_none() -> None:
    client, _ = client_of(RpcAnswer())
    clear: Any = SHOP.clear
    assert await client.invoke_rpc(clear, "s") is None


def test_the_blocking_client_does_the_same() -> None:
    service = ScriptedService(RpcAnswer(output=output("5")))
    with Client(REGISTRY, service) as client:
        assert client.invoke_rpc(SHOP.add, "s", 5, run_id="r", request_id="q") == "5"
    assert (service.request.run_id, service.request.request_id, service.request.fresh) == ("r", "q", False)


async def test_large_inputs_and_outputs_travel_beside_the_call() -> None:
    blobs: dict[str, bytes] = {}
    reference = detach(output("o" * (BLOB_THRESHOLD + 1)), blobs)
    client, service = client_of(RpcAnswer(), RpcAnswer(output=reference, blobs=blobs))
    await client.invoke_rpc(SHOP.drop, "s", "i" * (BLOB_THRESHOLD + 1))
    assert len(service.requests[0].input) < 100
    assert len(service.requests[0].blobs) == 1
    assert await client.invoke_rpc(SHOP.add, "s", 5) == "o" * (BLOB_THRESHOLD + 1)


async def test_instances_of_maps_are_named_by_the_call_and_each_is_sent_once() -> None:
    client, service = client_of(RpcAnswer())
    options = RPCInvokeOptions(
        lock_attribute_map_instances=(stock.lock("a b"), stock.lock("a b")),
        load_attribute_map_instances=(stock.load("x"), stock.load("y"), stock.load("x")),
        load_channel_map_instances=(parts.load_messages("z"), parts.load_messages("z")),
    )
    await client.invoke_rpc(SHOP.clear, "s", options=options)
    sent = service.request
    assert sent.locks == ("stock/a%20b",)
    assert sent.load_attribute_map_instances == ("stock/x", "stock/y")
    assert sent.load_channel_map_instances == ("parts/z",)


def test_the_decorator_keeps_resources_and_locks_make_it_transactional() -> None:
    rpcs = REGISTRY.describe("d").flows["Shop"].rpcs
    assert rpcs["add"].resources.options == {"num_gpus": 1}
    assert rpcs["sum"].resources.options == {}, "asynchronous handlers share a process"
    assert rpcs["clear"].resources.options == {"num_cpus": 0}, "no Step that keeps a CPU busy holds up a call"
    assert (rpcs["clear"].locks, rpcs["clear"].transactional) == (("count",), True)
    assert not rpcs["add"].transactional


WRONG: list[tuple[Any, type[Exception], str]] = [
    (lambda c: c.invoke_rpc(Shop().add, "s", 5), FlowDefinitionError, "RPC method is not registered"),
    (lambda c: c.invoke_rpc(SHOP.no_rpc, "s"), FlowDefinitionError, "is no RPC: decorate it with @rpc"),
    (lambda c: c.invoke_rpc(print, "s"), FlowDefinitionError, "RPC method is not registered"),
    (lambda c: c.invoke_rpc(SHOP.add, "s", "five"), ValueMappingError, "input of RPC Shop.add"),
    (lambda c: c.invoke_rpc(SHOP.clear, "s", 5), ValueError, "it takes none"),
    (lambda c: c.invoke_rpc(SHOP.add, "", 5), ValueError, "Flow ID"),
    (lambda c: c.invoke_rpc(SHOP.add, "s", 5, request_id=""), ValueError, "request_id"),
    (lambda c: c.invoke_rpc(SHOP.add, "s", 5, options=5), TypeError, "RPCInvokeOptions"),
    (
        lambda c: c.invoke_rpc(
            SHOP.add, "s", 5, options=RPCInvokeOptions(load_attribute_map_instances=(foreign.load("x"),))
        ),
        FlowDefinitionError,
        "RPCInvokeOptions: load_attribute_map_instances: AttributeMap 'foreign' is not declared",
    ),
    (
        lambda c: c.invoke_rpc(
            SHOP.add, "s", 5, options=RPCInvokeOptions(lock_attribute_map_instances=(foreign.lock("x"),))
        ),
        FlowDefinitionError,
        "lock_attribute_map_instances",
    ),
]


@pytest.mark.parametrize(("call", "error", "words"), WRONG)
async def test_a_wrong_call_is_refused_before_anything_is_sent(call: Any, error: type[Exception], words: str) -> None:
    client, service = client_of()
    with pytest.raises(error) as caught:
        await call(client)
    assert words in str(caught.value)
    assert service.requests == []


FAILURES: list[tuple[ServiceFailure, type[DexServiceError]]] = [
    (ServiceFailure(code="NOT_FOUND", detail="no", sub_status="FLOW_NOT_EXISTS"), FlowNotActiveOrNotFoundError),
    (
        ServiceFailure(code="ABORTED", detail="held", sub_status="WORKER_API_ERROR", worker_code="ABORTED"),
        RpcLockConflictError,
    ),
    (
        ServiceFailure(code="NOT_FOUND", detail="gone", sub_status="CHANNEL_MESSAGE_NOT_FOUND"),
        ChannelMessageNotFoundError,
    ),
    (ServiceFailure(code="DEADLINE_EXCEEDED", detail="over", sub_status="REQUEST_TIMEOUT"), RequestTimeoutError),
    (ServiceFailure(code="UNAVAILABLE", detail="no worker", is_final=True), DexServiceError),
]


@pytest.mark.parametrize(("failure", "error"), FAILURES)
async def test_what_goes_wrong_has_a_class_of_its_own_and_is_sent_once(
    failure: ServiceFailure, error: type[DexServiceError]
) -> None:
    client, service = client_of(ServiceError.of(failure))
    with pytest.raises(error) as caught:
        await client.invoke_rpc(SHOP.add, "s", 5)
    assert type(caught.value) is error
    assert caught.value.code is StatusCode[failure.code]
    assert failure.detail in str(caught.value)
    assert len(service.requests) == 1


async def test_the_error_of_a_handler_tells_its_type_and_text() -> None:
    failure = ServiceFailure(
        code="FAILED_PRECONDITION",
        detail="RPC 'add': its handler failed",
        sub_status="WORKER_API_ERROR",
        worker_code="UNKNOWN",
        worker_error_type="builtins.ValueError",
        worker_error_detail="no",
    )
    client, _ = client_of(ServiceError.of(failure))
    with pytest.raises(WorkerInvocationError) as caught:
        await client.invoke_rpc(SHOP.add, "s", 5)
    error = caught.value
    assert (error.code, error.worker_code) == (StatusCode.FAILED_PRECONDITION, StatusCode.UNKNOWN)
    assert (error.worker_error_type, error.worker_error_detail) == ("builtins.ValueError", "no")


@pytest.mark.statement("D8")
async def test_a_call_whose_outcome_is_unknown_is_repeated_under_the_same_id() -> None:
    service = ScriptedService(unavailable(), unavailable(), RpcAnswer(output=output("5")))
    client, time = AsyncClient(REGISTRY, service), VirtualTime()
    client._caller = ServiceCaller(service, lambda: service, client._options, now=lambda: time.now, sleep=time.sleep)
    assert await client.invoke_rpc(SHOP.add, "s", 5) == "5"
    first, *again = service.requests
    assert first.fresh
    assert [(one.request_id, one.fresh) for one in again] == [(first.request_id, False)] * 2
