"""What runs in the attempt of an RPC: its Context, its writes, and the checks of what it returns."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from dex import (
    AsyncContext,
    Attribute,
    AttributeMap,
    Channel,
    ChannelMap,
    Context,
    Flow,
    PersistenceSchema,
    Registry,
    RPCResult,
    Step,
    StepDecision,
    StepList,
    StepMovement,
    dead_end,
    rpc,
)
from dex.errors import AttributeMapNotLoadedError, ChannelMessagesNotLoadedError
from dex.values import BLOB_THRESHOLD, attach
from dexray.attempts.runner import run_async, run_sync
from dexray.protocol.attempts import AttemptFailed, AttemptKey, AttemptReturned, AttemptTask, RpcSucceeded
from tests.attempts.build import STARTED_AT, RecordingReporter, payload, value_of

COUNT = Attribute("count", int)
NAMES = AttributeMap("names", str)
BOX = Channel("box", str)
BOXES = ChannelMap("boxes", str)


class Work(Step[int]):
    def execute(self, context: Context, input: int) -> StepDecision:
        return dead_end()


class Elsewhere(Step[int]):
    def execute(self, context: Context, input: int) -> StepDecision:
        return dead_end()


class Desk(Flow[None]):
    def get_steps(self) -> StepList[None]:
        return StepList.without_start_step(Work())

    def get_persistence_schema(self) -> PersistenceSchema:
        return PersistenceSchema.of(COUNT, NAMES, BOX, BOXES)

    @rpc
    def add(self, context: Context, input: int) -> RPCResult[int]:
        COUNT.set(context, COUNT.get(context) + input)
        BOX.publish(context, "added")
        context.record_event("added", input)
        return RPCResult(COUNT.get(context), (StepMovement.of(Work, input),)).with_canceling_steps(Work, Work())

    @rpc(name="renamed")
    def procedure(self, context: Context) -> None:
        COUNT.delete(context)

    @rpc
    async def wait_a_little(self, context: AsyncContext, input: float) -> RPCResult[str]:
        await asyncio.sleep(input)
        return RPCResult(context.run_id)

    @rpc
    async def beats(self, context: AsyncContext) -> None:
        await context.heartbeat(1)

    @rpc
    def ask(self, context: Context, input: str) -> RPCResult[Any]:
        known: dict[str, Any] = {
            "ids": lambda: [context.flow_id, context.run_id, context.step_execution_id, context.from_step_execution_id],
            "attempt": lambda: context.attempt,
            "progress": lambda: [context.recovery_error, context.has_last_heartbeat_value()],
            "asked to stop": context.is_cancellation_requested,
            "results": lambda: list(BOX.results(context)),
            "timer": context.has_timer_fired,
            "local": lambda: context.get_step_execution_local("x", int),
            "set local": lambda: context.set_step_execution_local("x", 1),
            "names": lambda: NAMES.get(context, "a"),
            "box": lambda: [message.value for message in BOX.pending_messages(context)],
            "boxes": lambda: [message.value for message in BOXES.pending_messages(context, "a")],
            "size": lambda: BOX.size(context),
            "keys": lambda: list(NAMES.get_all_instance_keys(context)),
        }
        return RPCResult(known[input]())

    @rpc
    def returns(self, context: Context, input: str) -> RPCResult[int]:
        wrong: dict[str, Any] = {
            "nothing": None,
            "a number": 5,
            "another type": RPCResult("five"),
            "a step": RPCResult(1, (Work,)),  # type: ignore[arg-type]
            "no tuple": RPCResult(1, StepMovement.of(Work, 1)),  # type: ignore[arg-type]
            "a stranger": RPCResult(1, (StepMovement.of(Elsewhere, 1),)),
            "a wrong input": RPCResult(1, (StepMovement.of(Work, "one"),)),  # type: ignore[misc]
            "cancels a stranger": RPCResult(1).with_canceling_steps(Elsewhere),
        }
        result: RPCResult[int] = wrong[input]
        return result

    @rpc
    def procedure_that_answers(self, context: Context) -> None:
        return 5  # type: ignore[return-value]

    @rpc
    def large(self, context: Context, input: int) -> RPCResult[str]:
        NAMES.set(context, "a", "n" * input)
        return RPCResult("o" * input, (StepMovement.of(Work, 1),))


REGISTRY = Registry([Desk()], allow_async_handlers=True)


def task(name: str, *value: Any, **more: Any) -> AttemptTask:
    given: dict[str, Any] = {
        "deployment_id": "deployment",
        "from_step_execution_id": "",
        "heartbeat_timeout": 60.0,
        "first_attempt_at": STARTED_AT,
        "timeout": 60.0,
    }
    return AttemptTask(
        key=AttemptKey("flow", "run", f"__rpc/{name}#7", "rpc", 1),
        flow_type="Desk",
        step_type=f"__rpc/{name}",
        input=payload(value[0]) if value else b"",
        **(given | more),
    )


def done(name: str, *value: Any, **more: Any) -> RpcSucceeded:
    result = run_sync(task(name, *value, **more), REGISTRY, RecordingReporter())
    assert isinstance(result, RpcSucceeded), result
    return result


def failed(name: str, *value: Any, **more: Any) -> AttemptFailed:
    result = run_sync(task(name, *value, **more), REGISTRY, RecordingReporter())
    assert isinstance(result, AttemptFailed), result
    return result


@pytest.mark.statement("B6")
def test_a_function_answers_and_asks_for_steps_and_writes() -> None:
    result = done("add", 2, attributes={"count": payload(40)})
    assert value_of(result.output, int) == 42
    assert value_of(result.writes.attributes["count"], int) == 42
    assert [(channel, value_of(value)) for channel, _, value in result.writes.publications] == [("box", "added")]
    assert [name for name, _ in result.writes.events] == ["added"]
    assert [(movement.step_type, value_of(movement.input)) for movement in result.movements] == [("Work", 2)]
    assert result.canceling == ("Work",)


@pytest.mark.statement("B6")
def test_a_procedure_answers_nothing_and_goes_by_its_durable_name() -> None:
    result = done("renamed")
    assert result.output is None
    assert result.writes.attributes == {"count": None}
    assert isinstance(run_sync(task("procedure"), REGISTRY, RecordingReporter()), AttemptReturned)


async def test_an_asynchronous_handler_runs_in_the_event_loop() -> None:
    result = await run_async(task("wait_a_little", 0.0), REGISTRY, RecordingReporter())
    assert isinstance(result, RpcSucceeded)
    assert value_of(result.output, str) == "run"


@pytest.mark.parametrize(
    ("what", "answer"),
    [
        ("ids", ["flow", "run", "__rpc/ask", ""]),
        ("attempt", 1),
        ("progress", [None, False]),
        ("asked to stop", False),
        ("size", 3),
        ("keys", ["a", "b"]),
    ],
)
def test_its_context_knows_the_flow_and_no_step(what: str, answer: Any) -> None:
    result = done("ask", what, channel_sizes={"box": 3}, attribute_keys=("names/b", "names/a"))
    assert value_of(result.output) == answer


@pytest.mark.parametrize("what", ["results", "timer", "local", "set local"])
def test_what_belongs_to_a_step_is_refused(what: str) -> None:
    failure = failed("ask", what)
    assert failure.error_type == "builtins.ValueError"
    assert "RPC 'ask' (Flow 'Desk')" in failure.detail


async def test_it_sends_no_heartbeats() -> None:
    reporter = RecordingReporter()
    failure = await run_async(task("beats"), REGISTRY, reporter)
    assert isinstance(failure, AttemptFailed)
    assert failure.error_type == "builtins.ValueError"
    assert "no heartbeats" in failure.detail
    assert reporter.heartbeats == []


@pytest.mark.parametrize(
    ("what", "error", "way_out"),
    [
        ("names", AttributeMapNotLoadedError, ("@rpc(load_attribute_maps=…)", "RPCInvokeOptions(load_attribute_map_")),
        ("box", ChannelMessagesNotLoadedError, ("@rpc(load_channels=…)",)),
        ("boxes", ChannelMessagesNotLoadedError, ("@rpc(load_channel_maps=…)", "RPCInvokeOptions(load_channel_map_")),
    ],
)
def test_what_is_not_loaded_names_the_options_of_rpcs(what: str, error: type, way_out: tuple[str, ...]) -> None:
    failure = failed("ask", what)
    assert failure.error_type == f"dex.errors.{error.__name__}"
    assert all(words in failure.detail for words in way_out)


def test_what_is_loaded_can_be_read() -> None:
    loaded = {
        "attributes": {"names/a": payload("Ada")},
        "loaded_attribute_instances": ("names/a",),
        "loaded_channels": {"box": (("m1", payload("hi")),)},
        "loaded_channel_maps": ("boxes",),
    }
    assert value_of(done("ask", "names", **loaded).output) == "Ada"
    assert value_of(done("ask", "box", **loaded).output) == ["hi"]
    assert value_of(done("ask", "boxes", **loaded).output) == []


@pytest.mark.parametrize(
    ("what", "detail"),
    [
        ("nothing", "expected an RPCResult, got NoneType: is a return missing?"),
        ("a number", "expected an RPCResult, got int"),
        ("a step", "next_steps holds StepMovement.of(...), not ABCMeta"),
        ("no tuple", "next_steps=…) takes a tuple"),
        ("a stranger", "has no Step 'Elsewhere'"),
        ("a wrong input", "gives Step 'Work' what it does not take"),
        ("cancels a stranger", "has no Step 'Elsewhere'"),
    ],
)
def test_a_wrong_result_names_the_rpc_and_what_is_wrong(what: str, detail: str) -> None:
    failure = failed("returns", what)
    assert failure.error_type == "dex.errors.InvalidStepResultError"
    assert "Flow 'Desk': invalid result of rpc: returns: " in failure.detail
    assert detail in failure.detail


def test_an_output_of_another_type_is_refused() -> None:
    failure = failed("returns", "another type")
    assert failure.error_type == "dex.errors.ValueMappingError"
    assert "output of RPC 'returns'" in failure.detail


def test_a_procedure_that_answers_is_wrong() -> None:
    assert "a procedure returns None, as its annotation says; got int" in failed("procedure_that_answers").detail


@pytest.mark.parametrize(("name", "value"), [("add", ()), ("renamed", (5,))])
def test_a_call_whose_code_takes_another_input_is_refused(name: str, value: tuple[Any, ...]) -> None:
    failure = failed(name, *value)
    assert failure.error_type == "dex.errors.FlowDefinitionError"
    assert "call it with the code that is deployed" in failure.detail


def test_an_input_of_another_type_is_a_failure_of_the_call() -> None:
    assert "input of RPC 'add'" in failed("add", "five").detail


def test_a_handler_that_returns_after_its_time_has_failed() -> None:
    reporter = RecordingReporter()
    late = task("add", 1, timeout=-1.0)
    failure = run_sync(late, REGISTRY, reporter)
    assert isinstance(failure, AttemptFailed)
    assert failure.kind == "METHOD_TIMEOUT"
    assert failure.detail.startswith("RPC 'add' ran past")


def test_large_values_are_put_aside() -> None:
    result = done("large", BLOB_THRESHOLD + 1)
    assert result.output is not None
    assert len(result.output) < 100
    assert len(result.blobs) == 2
    assert value_of(attach(result.output, result.blobs), str) == "o" * (BLOB_THRESHOLD + 1)
    written = result.writes.attributes["names/a"]
    assert written is not None
    assert value_of(attach(written, result.blobs), str) == "n" * (BLOB_THRESHOLD + 1)
