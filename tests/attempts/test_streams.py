"""Stream.write and buffered text inside an attempt: who may write, what leaves, and when."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from datetime import timedelta
from typing import Any

import pytest

from dex import (
    AsyncContext,
    Context,
    Flow,
    PersistenceSchema,
    Registry,
    RPCResult,
    Step,
    StepDecision,
    StepList,
    StepOutput,
    Stream,
    ValueMappingError,
    dead_end,
    graceful_complete,
    heartbeat,
    rpc,
)
from dexray.attempts.runner import run_async, run_sync
from dexray.protocol.attempts import AttemptFailed, AttemptResult
from dexray.protocol.streams import StreamWrite
from tests.attempts.build import RecordingReporter, task_for, value_of

words = Stream("words", str, 10_000)
numbers = Stream("numbers", int, 500)
twin = Stream("words", str, 10_000)
stranger = Stream("stranger", str, 10_000)


class Script:
    body: Any = None


class Plain(Step[int]):
    def execute(self, context: Context, input: int) -> StepDecision:
        Script.body(context)
        return dead_end()


class Frames(Step[int]):
    def execute(self, context: Context, input: int) -> Generator[StepOutput, None, StepDecision]:
        yield from Script.body(context)
        return dead_end()


class Writes(Step[int]):
    async def execute(self, context: AsyncContext, input: int) -> StepDecision:
        await Script.body(context)
        return dead_end()


class Talk(Flow[int]):
    def get_steps(self) -> StepList[int]:
        return StepList.start_step(Plain()).other_steps(Frames(), Writes())

    def get_persistence_schema(self) -> PersistenceSchema:
        return PersistenceSchema.of(words, numbers)

    @rpc
    def ask(self, context: Context) -> RPCResult[int]:
        Script.body(context)
        return RPCResult(1)

    @rpc
    async def ask_async(self, context: AsyncContext) -> RPCResult[int]:
        Script.body(context)
        return RPCResult(1)

    def handle_timeout(self, context: Context) -> Generator[StepOutput, None, StepDecision]:
        yield words.write(context, "too late")
        return graceful_complete("over")


REGISTRY = Registry([Talk()], allow_async_handlers=True)


def run(step: str, body: Any, reporter: RecordingReporter | None = None, **fields: Any) -> AttemptResult:
    Script.body = staticmethod(body)
    return run_sync(task_for("Talk", step, 1, **fields), REGISTRY, reporter or RecordingReporter())


def error(result: AttemptResult) -> str:
    assert isinstance(result, AttemptFailed), result
    return f"{result.error_type}: {result.detail}"


def said(reporter: RecordingReporter) -> list[str]:
    return [value_of(message.payload, str) for message in reporter.streams]


@pytest.mark.statement("B78", "C69")
def test_a_frame_is_a_message_of_the_step_execution_and_no_checkpoint() -> None:
    reporter = RecordingReporter()

    def body(context: Context) -> Any:
        yield words.write(context, "hello")
        yield heartbeat(1)
        yield numbers.write(context, 7)

    result = run("Frames", body, reporter)
    assert not isinstance(result, AttemptFailed)
    first, second = reporter.streams
    assert first == StreamWrite("flow", "words", "#Frames-1", 10_000, first.payload)
    assert second == StreamWrite("flow", "numbers", "#Frames-1", 500, second.payload)
    assert (value_of(first.payload), value_of(second.payload)) == ("hello", 7)
    (beat,) = reporter.heartbeats
    assert beat is not None
    assert value_of(beat.value) == 1


def test_a_frame_that_is_not_yielded_sends_nothing() -> None:
    reporter = RecordingReporter()

    def body(context: Context) -> Any:
        words.write(context, "forgotten")
        yield heartbeat()

    run("Frames", body, reporter)
    assert reporter.streams == []


def test_a_frame_holds_the_value_as_it_was_when_it_was_written() -> None:
    kept = Stream("kept", list[int], 100)

    class Lists(Step[int]):
        def execute(self, context: Context, input: int) -> Generator[StepOutput, None, StepDecision]:
            value = [1]
            frame = kept.write(context, value)
            value.append(2)
            yield frame
            return dead_end()

    class Keeps(Flow[int]):
        def get_steps(self) -> StepList[int]:
            return StepList.start_step(Lists())

        def get_persistence_schema(self) -> PersistenceSchema:
            return PersistenceSchema.of(kept)

    reporter = RecordingReporter()
    run_sync(task_for("Keeps", "Lists", 1), Registry([Keeps()]), reporter)
    assert [value_of(message.payload) for message in reporter.streams] == [[1]]


@pytest.mark.statement("B79", "B212")
async def test_an_asynchronous_handler_sends_at_once_and_a_failure_takes_nothing_back() -> None:
    reporter = RecordingReporter()
    seen: list[int] = []

    async def body(context: AsyncContext) -> None:
        assert words.write(context, "one") is None
        seen.append(len(reporter.streams))
        words.write(context, "two")
        raise RuntimeError("after all")

    Script.body = staticmethod(body)
    result = await run_async(task_for("Talk", "Writes", 1), REGISTRY, reporter)
    assert isinstance(result, AttemptFailed)
    assert result.heartbeat is None
    assert (seen, said(reporter)) == ([1], ["one", "two"])


@pytest.mark.parametrize(
    ("step", "method", "body", "text"),
    [
        ("Plain", "execute", lambda c: words.write(c, "x"), "plain function: make it a generator"),
        ("Plain", "execute", lambda c: words.buffered_text(c, max_buffered_bytes=1).write("x"), "plain function"),
        ("__rpc/ask", "rpc", lambda c: words.write(c, "x"), "a Stream is written by Steps"),
        ("__rpc/ask_async", "rpc", lambda c: words.write(c, "x"), "a Stream is written by Steps"),
        ("__rpc/ask_async", "rpc", lambda c: words.buffered_text(c), "a Stream is written by Steps"),
        ("Frames", "execute", lambda c: [stranger.write(c, "x")], "Stream 'stranger' is not declared by Flow 'Talk'"),
        ("Frames", "execute", lambda c: [twin.write(c, "x")], "Stream 'words' is not the one"),
        ("Frames", "execute", lambda c: [words.write(c, 5)], "message for Stream 'words'"),  # type: ignore[call-overload]
        ("Frames", "execute", lambda c: [numbers.write(c, True)], "message for Stream 'numbers'"),
        ("Frames", "execute", lambda c: [words.write(c, "x" * 102_400)], "message for Stream 'words'"),
    ],
)
def test_what_can_not_be_written_is_refused_where_it_is_written(step: str, method: str, body: Any, text: str) -> None:
    reporter = RecordingReporter()
    fields = {"raw_input": b""} if method == "rpc" else {}
    assert text in error(run(step, body, reporter, method=method, **fields))
    assert reporter.streams == []


def test_a_generator_may_go_on_after_a_value_that_was_refused() -> None:
    reporter = RecordingReporter()

    def body(context: Context) -> Any:
        for value in (1, "two"):
            try:
                yield words.write(context, value)  # type: ignore[arg-type]
            except ValueMappingError:
                yield words.write(context, "not a text")

    assert not isinstance(run("Frames", body, reporter), AttemptFailed)
    assert said(reporter) == ["not a text", "two"]


def test_the_handler_of_a_timeout_may_write() -> None:
    reporter = RecordingReporter()
    task = task_for("Talk", "sys:timeout_handler", method="timeout", raw_input=b"")
    run_sync(task, REGISTRY, reporter)
    assert said(reporter) == ["too late"]
    assert reporter.streams[0].source == "#sys:timeout_handler-1"


def test_a_context_kept_beyond_its_handler_writes_nothing() -> None:
    kept: list[Any] = []

    def body(context: Context) -> Any:
        kept.append(context)
        yield words.write(context, "in time")

    reporter = RecordingReporter()
    run("Frames", body, reporter)
    with pytest.raises(ValueError, match="closed"):
        words.write(kept[0], "late")
    assert said(reporter) == ["in time"]


async def test_buffered_text_is_finished_when_the_handler_ends_whatever_way() -> None:
    for ends in (None, RuntimeError("gone"), asyncio.CancelledError()):
        reporter = RecordingReporter()
        texts: list[Any] = []

        async def body(context: AsyncContext, ends: Any = ends, texts: list[Any] = texts) -> None:
            text = words.buffered_text(context, flush_interval=timedelta(hours=1))
            texts.append(text)
            text.write("the ")
            text.write("end")
            if ends is not None:
                raise ends

        Script.body = staticmethod(body)
        await run_async(task_for("Talk", "Writes", 1), REGISTRY, reporter)
        assert said(reporter) == ["the end"]
        with pytest.raises(ValueError, match="has ended"):
            texts[0].write("more")


async def test_an_error_of_buffered_text_comes_back_at_the_next_write() -> None:
    reporter = RecordingReporter()

    async def body(context: AsyncContext) -> None:
        text = words.buffered_text(context, max_buffered_bytes=200_000)
        text.write("x" * 150_000)
        text._flush()
        text.write("y")

    Script.body = staticmethod(body)
    result = await run_async(task_for("Talk", "Writes", 1), REGISTRY, reporter)
    assert "message for Stream 'words'" in error(result)
