"""Milestones, skipped Timers, FlowConfig and time travel: what a client sends, and what it refuses before sending."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from dex import (
    AsyncClient,
    Attribute,
    AttributeMap,
    AttributeMatch,
    Context,
    Flow,
    FlowConfig,
    LongPollTimeoutError,
    PersistenceSchema,
    Registry,
    RequestTimeoutError,
    Step,
    StepDecision,
    StepDurability,
    StepExecutionId,
    StepList,
    TimerId,
    TimeTravelOptions,
    TimeTravelStepMethod,
    TimeTravelType,
    WaitForAttributeOptions,
    WaitForStepCompletionOptions,
    graceful_complete,
)
from dex.values import BLOB_THRESHOLD, CodecRegistry, reference_of
from dex.wire.service import AttributeValue, Done, FlowConfigSpec, ServiceError, Started
from tests.dex.scripted_service import ScriptedService, unavailable

CODECS = CodecRegistry()
Call = Callable[[AsyncClient], Awaitable[Any]]


class Charge(Step[int]):
    def execute(self, context: Context, input: int) -> StepDecision:
        return graceful_complete()


class OrderFlow(Flow[int]):
    note = Attribute("note", str)
    total = Attribute("total", int)
    weight = Attribute("weight", float)
    is_paid = Attribute("is_paid", bool)
    secret = Attribute("secret", str, hard_delete_on_null=True)
    stock = AttributeMap("stock", int)

    def get_steps(self) -> StepList[int]:
        return StepList.start_step(Charge())

    def get_persistence_schema(self) -> PersistenceSchema:
        return PersistenceSchema.of(self.note, self.total, self.weight, self.is_paid, self.secret, self.stock)


FLOW = OrderFlow()
REGISTRY = Registry([FLOW])
NOT_YET = ServiceError("DEADLINE_EXCEEDED", "not yet", "LONG_POLL_TIMEOUT")


def client_of(*script: Any) -> tuple[AsyncClient, ScriptedService]:
    service = ScriptedService(*script)
    return AsyncClient(REGISTRY, service), service


def payload(value: Any) -> bytes:
    return CODECS.encode(value, type(value), where="")


# Waits ----------------------------------------------------------------------------------------------------------------


@pytest.mark.statement("C44", "C47")
async def test_a_wait_without_a_request_id_is_named_after_the_step_execution() -> None:
    client, service = client_of(Done())
    await client.wait_for_step_completion("o", StepExecutionId(Charge, 2))
    request = service.request
    assert (request.flow_id, request.step, request.request_id) == ("o", "Charge-2", "wait-for-step-completion:Charge-2")
    assert (request.timeout, request.limit, request.keep) == (60.0, 0.0, False)


@pytest.mark.statement("C45", "C47")
async def test_a_wait_without_a_request_id_is_named_after_attribute_and_condition() -> None:
    client, service = client_of(AttributeValue(found=True, value=payload(7)))
    assert await client.wait_for_attribute_match("o", FLOW.stock, "a b", AttributeMatch.less_than(9)) == 7
    request = service.request
    assert (request.name, request.operator, request.operand) == ("stock/a%20b", "<", payload(9))
    assert request.request_id == "wait-for-attribute:stock/a%20b<9"


@pytest.mark.statement("C47")
async def test_options_reach_the_service() -> None:
    client, service = client_of(Done(), AttributeValue(found=True, value=payload("x")))
    limits = {"request_timeout": timedelta(seconds=9), "internal_handler_timeout": timedelta(seconds=7)}
    await client.wait_for_step_completion(
        "o", StepExecutionId(Charge), WaitForStepCompletionOptions(request_id="mine", **limits)
    )
    await client.wait_for_attribute_match(
        "o", FLOW.note, AttributeMatch.equal_to("x"), WaitForAttributeOptions(request_id="mine", **limits)
    )
    for request in service.requests:
        assert (request.request_id, request.limit, request.keep) == ("mine", 7.0, True)
        assert 8.5 < request.timeout <= 9.0


@pytest.mark.statement("C42")
async def test_polls_are_repeated_under_one_id_until_there_is_an_answer() -> None:
    client, service = client_of(NOT_YET, unavailable(), Done())
    await client.wait_for_step_completion("o", StepExecutionId(Charge))
    assert len({request.request_id for request in service.requests}) == 1
    assert len(service.requests) == 3


@pytest.mark.statement("B61")
async def test_the_call_ends_when_its_request_timeout_is_over() -> None:
    client, service = client_of(NOT_YET)
    with pytest.raises(LongPollTimeoutError):
        await client.wait_for_step_completion(
            "o", StepExecutionId(Charge), WaitForStepCompletionOptions(request_timeout=timedelta(seconds=5))
        )
    assert len(service.requests) == 1


async def test_the_end_of_the_wait_itself_is_not_polled_again() -> None:
    client, service = client_of(ServiceError("DEADLINE_EXCEEDED", "enough", "REQUEST_TIMEOUT"))
    with pytest.raises(RequestTimeoutError):
        await client.wait_for_attribute_match("o", FLOW.note, AttributeMatch.equal_to("x"))
    assert len(service.requests) == 1


async def test_a_large_operand_is_sent_as_the_reference_that_the_value_would_be() -> None:
    text = "x" * (BLOB_THRESHOLD + 1)
    value = AttributeValue(found=True, value=payload("short"))
    client, service = client_of(value)
    await client.wait_for_attribute_match("o", FLOW.note, AttributeMatch.not_equal_to(text))
    assert reference_of(service.request.operand) is not None


@pytest.mark.parametrize(
    ("attribute", "operand"),
    [(FLOW.note, "x"), (FLOW.total, 3), (FLOW.total, 2.5), (FLOW.weight, 3), (FLOW.weight, 2.5), (FLOW.is_paid, True)],
)
async def test_an_operand_of_the_attributes_kind_is_sent(attribute: Attribute[Any], operand: Any) -> None:
    client, service = client_of(AttributeValue(found=True, value=payload(attribute.value_type())))
    await client.wait_for_attribute_match("o", attribute, AttributeMatch.equal_to(operand))
    assert service.request.operand == payload(operand)


# Writes ---------------------------------------------------------------------------------------------------------------


@pytest.mark.statement("C50")
async def test_a_timer_is_named_by_id_or_by_index() -> None:
    client, service = client_of(Done(), Done(), Done())
    await client.skip_timer("o", StepExecutionId(Charge), TimerId.by_condition_id("soon"))
    await client.skip_timer("o", StepExecutionId(Charge, 3), TimerId.by_condition_index(2), request_id="mine")
    await client.skip_timer("o", StepExecutionId("sys:timeout_handler"), TimerId.by_condition_index(0))
    first, second, third = service.requests
    assert (first.step, first.condition_id, first.fresh) == ("Charge-1", "soon", True)
    assert (second.step, second.condition_id, second.condition_index) == ("Charge-3", "", 2)
    assert (second.request_id, second.fresh) == ("mine", False)
    assert third.step == "sys:timeout_handler-1"


@pytest.mark.statement("B72", "B73")
async def test_an_update_of_the_config_sends_the_given_fields_alone() -> None:
    client, service = client_of(Done())
    await client.update_flow_config("o", FlowConfig(step_durability=StepDurability.ASYNC), request_id="mine")
    assert service.request.config == FlowConfigSpec(step_durability="ASYNC")
    assert service.request.request_id == "mine"


MOMENT = datetime(2026, 5, 1, 10, 0, 0, 250_000, UTC)
JOURNEYS: list[tuple[TimeTravelOptions, dict[str, Any]]] = [
    (TimeTravelOptions(TimeTravelType.BEGINNING), {"point": "BEGINNING"}),
    (
        TimeTravelOptions(TimeTravelType.HISTORY_EVENT_TIME, history_event_time=MOMENT, reason="why"),
        {"point": "HISTORY_EVENT_TIME", "history_event_time": MOMENT.timestamp(), "reason": "why"},
    ),
    (
        TimeTravelOptions(TimeTravelType.STEP_TYPE, step_type="Charge", skip_writes_reapply=True),
        {"point": "STEP_TYPE", "step_type": "Charge", "skip_writes_reapply": True},
    ),
    (
        TimeTravelOptions(
            TimeTravelType.STEP_EXECUTION_ID,
            step_execution_id=StepExecutionId(Charge, 2),
            step_method=TimeTravelStepMethod.WAIT_FOR,
        ),
        {"point": "STEP_EXECUTION_ID", "step": "Charge-2", "method": "wait_for"},
    ),
    (
        TimeTravelOptions(
            TimeTravelType.STEP_EXECUTION_ID,
            step_execution_id="Charge-2",
            step_method=TimeTravelStepMethod.EXECUTE,
        ),
        {"step": "Charge-2", "method": "execute"},
    ),
]


@pytest.mark.statement("C52")
@pytest.mark.parametrize(("options", "fields"), JOURNEYS)
async def test_every_kind_of_point_reaches_the_service(options: TimeTravelOptions, fields: dict[str, Any]) -> None:
    client, service = client_of(unavailable(), Started(run_id="r2"))
    assert await client.time_travel("o", options) == "r2"
    first, second = service.requests
    assert {name: getattr(first, name) for name in fields} == fields
    assert (first.request_id, first.fresh, second.fresh) == (second.request_id, True, False)


# Mistakes -------------------------------------------------------------------------------------------------------------

WRONG: list[tuple[Call, type[Exception], str]] = [
    (lambda c: c.time_travel("o", None), TypeError, "takes TimeTravelOptions"),  # type: ignore[arg-type]
    (
        lambda c: c.skip_timer("o", "Charge-1", TimerId.by_condition_index(0)),  # type: ignore[arg-type]
        TypeError,
        "takes StepExecutionId",
    ),
    (lambda c: c.skip_timer("o", StepExecutionId(Charge), 0), TypeError, "takes TimerId"),  # type: ignore[arg-type]
    (
        lambda c: c.wait_for_step_completion("o", "Charge-1"),  # type: ignore[arg-type]
        TypeError,
        "takes StepExecutionId",
    ),
    (
        lambda c: c.wait_for_step_completion(
            "o", StepExecutionId(Charge), WaitForStepCompletionOptions(request_timeout=timedelta(-1))
        ),
        ValueError,
        "request_timeout must not be negative",
    ),
    (
        lambda c: c.wait_for_step_completion(
            "o", StepExecutionId(Charge), WaitForStepCompletionOptions(internal_handler_timeout=timedelta(-1))
        ),
        ValueError,
        "internal_handler_timeout must not be negative",
    ),
    (
        lambda c: c.wait_for_attribute_match("o", FLOW.note, "x"),  # type: ignore[call-overload]
        TypeError,
        "takes AttributeMatch",
    ),
    (
        lambda c: c.wait_for_attribute_match("o", FLOW.note),  # type: ignore[call-overload]
        TypeError,
        "got 0 arguments",
    ),
    (lambda c: c.wait_for_attribute_match("o", FLOW.secret, AttributeMatch.equal_to("x")), ValueError, "hard_delete"),
    (lambda c: c.wait_for_attribute_match("o", FLOW.note, AttributeMatch.equal_to(5)), ValueError, "'note'"),
    (lambda c: c.wait_for_attribute_match("o", FLOW.total, AttributeMatch.equal_to("5")), ValueError, "'total'"),
    (lambda c: c.wait_for_attribute_match("o", FLOW.total, AttributeMatch.equal_to(True)), ValueError, "'total'"),
    (lambda c: c.wait_for_attribute_match("o", FLOW.is_paid, AttributeMatch.equal_to(1)), ValueError, "'is_paid'"),
    (
        lambda c: c.wait_for_attribute_match("o", Attribute("note", str), AttributeMatch.equal_to("x")),
        ValueError,
        "is not registered",
    ),
    (lambda c: c.update_flow_config("o", None), TypeError, "takes FlowConfig"),  # type: ignore[arg-type]
    (lambda c: c.update_flow_config("", FlowConfig()), ValueError, "must not be empty"),
    (lambda c: c.update_flow_config("o", FlowConfig(), request_id=""), ValueError, "request_id"),
]


@pytest.mark.statement("C45")
@pytest.mark.parametrize(("call", "error", "text"), WRONG)
async def test_a_mistake_is_found_before_anything_is_sent(call: Call, error: type[Exception], text: str) -> None:
    client, service = client_of()
    with pytest.raises(error, match=text):
        await call(client)
    assert service.requests == []


def test_only_the_timeout_handlers_reserved_type_names_a_step_execution() -> None:
    assert str(StepExecutionId("sys:timeout_handler")) == "sys:timeout_handler-1"
    with pytest.raises(ValueError, match="reserved"):
        StepExecutionId("sys:other")
