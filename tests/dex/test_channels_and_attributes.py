"""Channels, Attributes and Streams with a Context: what they check themselves, and what they ask of the runtime."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import pytest

from dex import (
    Attribute,
    AttributeIndex,
    AttributeMap,
    Channel,
    ChannelMap,
    ChannelMessage,
    DexServiceError,
    FlowStatus,
    IndexType,
    Registry,
    StatusCode,
    Stream,
    SubFlow,
)
from dex.stream import AsyncBufferedTextStream, BufferedTextStream
from tests.dex.recording import RecordingContext, RecordingRuntime

A = Channel("a", int)
M = ChannelMap("m", int)
COUNT = Attribute("count", int)
STOCK = AttributeMap("stock", str)
WORDS = Stream("words", str, 100)


def given(**answers: Any) -> tuple[RecordingRuntime, Any]:
    runtime = RecordingRuntime(**answers)
    return runtime, RecordingContext(runtime)


def test_a_channel_asks_the_runtime() -> None:
    first = ChannelMessage("id1", 5)
    runtime, context = given(channel_size=2, pending_messages=[first], channel_results=[7])
    A.publish(context, 5)
    A.delete(context, "id1")
    assert A.size(context) == 2
    assert A.pending_messages(context) == (first,)
    assert A.find_pending_message(context, "id1") is first
    assert A.find_pending_message(context, "id2") is None
    assert A.results(context) == (7,)
    assert runtime.calls[:3] == [
        ("publish", A, None, 5),
        ("delete_message", A, None, "id1"),
        ("channel_size", A, None),
    ]


def test_a_channel_map_asks_for_an_instance() -> None:
    runtime, context = given(channel_size=1, channel_keys=("x", "y"), pending_messages=[], channel_results=[])
    M.publish(context, "x", 5)
    assert M.size(context, "x") == 1
    assert M.pending_messages(context, "x") == ()
    assert M.find_pending_message(context, "x", "id") is None
    assert M.results(context, "x") == ()
    M.delete(context, "x", "id")
    assert M.get_map_size(context) == 2
    assert M.get_all_instance_keys(context) == ("x", "y")
    assert runtime.calls[0] == ("publish", M, "x", 5)
    assert M.load_messages("x y").physical_name == "m/x%20y"


@pytest.mark.parametrize("instance", ["", "a/b", "\x00"])
def test_a_wrong_instance_is_refused_before_the_runtime_is_asked(instance: str) -> None:
    runtime, context = given()
    uses: list[Callable[[], object]] = [
        lambda: M.publish(context, instance, 1),
        lambda: M.size(context, instance),
        lambda: M.load_messages(instance),
        lambda: STOCK.get(context, instance),
        lambda: STOCK.set(context, instance, "x"),
        lambda: STOCK.load(instance),
        lambda: STOCK.lock(instance),
    ]
    for use in uses:
        with pytest.raises(ValueError, match="Map '"):
            use()
    assert runtime.calls == []


def test_an_attribute_asks_the_runtime() -> None:
    runtime, context = given(get_attribute=4, attribute_keys=("a",))
    assert COUNT.get(context) == 4
    COUNT.set(context, 5)
    COUNT.delete(context)
    STOCK.set(context, "a", "x")
    STOCK.delete(context, "a")
    assert STOCK.get_map_size(context) == 1
    assert STOCK.get_all_instance_keys(context) == ("a",)
    assert runtime.calls[1:5] == [
        ("set_attribute", COUNT, None, 5),
        ("set_attribute", COUNT, None, None),
        ("set_attribute", STOCK, "a", "x"),
        ("set_attribute", STOCK, "a", None),
    ]
    assert (COUNT.lock().physical_name, STOCK.lock("a b").physical_name) == ("count", "stock/a%20b")


@pytest.mark.parametrize(
    ("value_type", "missing"),
    [(int, 0), (float, 0.0), (bool, False), (str, None), (list[int], None), (int | None, None)],
)
def test_a_missing_value_reads_as_the_type_says(value_type: Any, missing: Any) -> None:
    _, context = given()
    for value in (
        Attribute("x", value_type).get(context),
        AttributeMap("x", value_type).get(context, "i"),
        Attribute("x", value_type).missing_value,
    ):
        assert value == missing
        assert type(value) is type(missing)


def test_definitions_are_used_with_a_context_of_a_handler() -> None:
    nothing: Any = None
    uses: list[Callable[[], object]] = [lambda: A.size(nothing), lambda: COUNT.get(nothing)]
    for use in uses:
        with pytest.raises(TypeError, match="expected the Context that was given to the handler"):
            use()


@pytest.mark.parametrize("make", [Channel, ChannelMap, Attribute, AttributeMap])
def test_names_of_definitions_have_no_slash_and_are_not_blank(make: Any) -> None:
    for name in ("", "  ", "a/b", "a\tb"):
        with pytest.raises(ValueError, match="name"):
            make(name, int)
    with pytest.raises(TypeError, match="must be a str"):
        make(5, int)


def test_definitions_are_themselves_only() -> None:
    assert Channel("a", int) != Channel("a", int)
    assert len({A, A, Channel("a", int)}) == 2
    with pytest.raises(AttributeError):
        A.name = "b"  # type: ignore[misc]


def test_an_indexed_map_needs_a_key() -> None:
    with pytest.raises(ValueError, match="AttributeMap 'm': its index needs a name of its own"):
        AttributeMap("m", str, index=AttributeIndex(IndexType.KEYWORD))
    with pytest.raises(TypeError, match="takes an IndexType"):
        AttributeIndex("KEYWORD")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("value_type", "fits"),
    [
        (str, "KEYWORD FULL_TEXT DATETIME"),
        (int, "INT DOUBLE"),
        (float, "DOUBLE"),
        (bool, "BOOL"),
        (datetime, "DATETIME"),
        (list[str], "KEYWORD_ARRAY"),
        (tuple[str, ...], "KEYWORD_ARRAY"),
        (bytes, ""),
    ],
)
def test_an_index_fits_the_values(value_type: Any, fits: str) -> None:
    for type in IndexType:
        if type.name in fits.split():
            assert Attribute("a", value_type, index=AttributeIndex(type)).index == AttributeIndex(type)
        else:
            with pytest.raises(TypeError, match=f"Attribute 'a': values of type .* not {type.name}"):
                Attribute("a", value_type, index=AttributeIndex(type))


def test_hard_delete_is_for_texts_and_objects_without_copies() -> None:
    for value_type in (int, float, bool):
        with pytest.raises(TypeError, match="hard_delete_on_null is for texts and objects"):
            Attribute("a", value_type, hard_delete_on_null=True)
    index = AttributeIndex(IndexType.KEYWORD)
    with pytest.raises(ValueError, match="can't be combined"):
        Attribute("a", str, index=index, hard_delete_on_null=True)
    with pytest.raises(ValueError, match="can't be combined"):
        Attribute("a", str, sync_to_attribute_store=True, hard_delete_on_null=True)
    assert Attribute("a", str, hard_delete_on_null=True).hard_delete_on_null


def test_physical_names_quote_the_instance() -> None:
    assert Registry.physical_name("m", "ä /?") == "m/%C3%A4%20%2F%3F"


def test_subflow_results_come_from_the_runtime() -> None:
    runtime, context = given(subflow_flow_id="child")
    assert SubFlow.get_condition_results(context).status is FlowStatus.RUNNING
    assert SubFlow.get_flow_id(context, 2) == "child"
    assert runtime.calls == [("subflow_result", 0), ("subflow_flow_id", 2)]


# Streams ---


def test_a_stream_writes_a_frame_in_a_generator_handler() -> None:
    _, context = given()
    frame = WORDS.write(context, "hello")
    assert (frame.stream, frame.value, frame.has_value) == (WORDS, "hello", True)


def test_a_stream_needs_a_positive_capacity() -> None:
    for capacity in (0, -1):
        with pytest.raises(ValueError, match="stream_capacity_bytes must be > 0"):
            Stream("s", str, capacity)
    with pytest.raises(TypeError, match="is an int"):
        Stream("s", str, 1.5)  # type: ignore[call-overload]


def test_buffered_text_is_sent_by_size_by_time_and_at_the_end() -> None:
    _, context = given()
    clock = [0.0]
    text = BufferedTextStream(WORDS, context, 1.0, 4, now=lambda: clock[0])
    assert text.write("") == ()
    assert text.write("ab") == ()
    assert [frame.value for frame in text.write("ä")] == ["abä"]
    assert text.write("c") == ()
    clock[0] = 1.0
    assert [frame.value for frame in text.write("d")] == ["cd"]
    assert text.flush() == ()
    text.write("e")
    assert [frame.value for frame in text.flush()] == ["e"]


def test_buffered_text_checks_its_stream_and_limits() -> None:
    _, context = given()
    assert isinstance(WORDS.buffered_text(context), BufferedTextStream)
    numbers: Any = Stream("n", int, 10)
    with pytest.raises(TypeError, match="Stream 'n': buffered_text is for Streams of str"):
        numbers.buffered_text(context)
    with pytest.raises(ValueError, match="flush_interval must be positive"):
        WORDS.buffered_text(context, flush_interval=timedelta(0))
    with pytest.raises(ValueError, match="max_buffered_bytes must be > 0"):
        WORDS.buffered_text(context, max_buffered_bytes=0)


async def test_asynchronous_buffered_text_is_sent_by_a_timer_and_at_the_end() -> None:
    runtime, context = given()
    sent: asyncio.Queue[str] = asyncio.Queue()
    runtime.write_stream = lambda stream, value: sent.put_nowait(value)  # type: ignore[method-assign]
    text = AsyncBufferedTextStream(WORDS, context, 0.001, 4)
    text.write("a")
    text.write("b")
    assert await asyncio.wait_for(sent.get(), 30) == "ab"
    text.write("long enough")
    assert sent.get_nowait() == "long enough"
    text.write("end")
    text._finish()
    assert sent.get_nowait() == "end"
    with pytest.raises(ValueError, match="has ended"):
        text.write("late")


async def test_an_error_of_asynchronous_buffered_text_is_raised_at_the_next_write() -> None:
    runtime, context = given()

    def fail(stream: Any, value: Any) -> None:
        raise OSError("gone")

    runtime.write_stream = fail  # type: ignore[method-assign]
    text = AsyncBufferedTextStream(WORDS, context, 60, 2)
    for _ in range(2):
        with pytest.raises(OSError, match="gone"):
            text.write("abc")


def test_a_runtime_without_streams_refuses_asynchronous_buffered_text() -> None:
    _, context = given()
    context.heartbeat = None
    with pytest.raises(DexServiceError) as caught:
        WORDS.buffered_text(context)
    assert caught.value.code is StatusCode.UNIMPLEMENTED
