"""Streams: what Steps and clients write beside the commits, and what clients read of it."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from datetime import timedelta
from typing import Any

import pytest

from dex import (
    AsyncContext,
    Context,
    DexServiceError,
    IdReusePolicy,
    LongPollTimeoutError,
    StartFlowOptions,
    StatusCode,
    Step,
    StepDecision,
    StepDurability,
    StepOptions,
    StepOutput,
    Stream,
    StreamMessage,
    ValueMappingError,
    Wait,
    go_to,
    graceful_complete,
    heartbeat,
)
from tests.statements.kit import Made, events
from tests.statements.test_timeouts import DAY, ONCE, Does, every, seconds
from tests.world import World, scenario

AT_ONCE = timedelta(0)
SOON = timedelta(seconds=20)


class Reader:
    """Reads a Stream on and on."""

    def __init__(self, world: World, name: str, stream: Stream[Any]) -> None:
        self.world, self.name, self.stream, self.token = world, name, stream, ""

    async def message(self, timeout: timedelta = SOON) -> StreamMessage[Any]:
        message = await self.world.client.read_stream(self.world.id(self.name), self.stream, self.token, timeout)
        self.token = message.resume_token
        return message

    async def values(self, count: int) -> list[Any]:
        return [(await self.message()).value for _ in range(count)]


async def all_of(world: World, name: str, stream: Stream[Any]) -> list[Any]:
    """The values that are kept, oldest first."""
    page = await world.client.list_stream_messages(world.id(name), stream, 1000)
    assert page.next_page_token == ""
    return [message.value for message in reversed(page.messages)]


async def refusal(awaitable: Any) -> DexServiceError:
    with pytest.raises(DexServiceError) as caught:
        await awaitable
    return caught.value


class Last(Does):
    pass


class Yields(Step[Any]):
    """A Step whose handlers are the generator functions given; they have no closures, so that they can be deployed."""

    def __init__(self, stream: Stream[Any], **options: Any) -> None:
        self.stream = stream
        self.options = StepOptions(**options)

    def get_step_options(self) -> StepOptions:
        return self.options

    def wait_for(self, context: Context, input: Any) -> Generator[StepOutput, None, Wait]:
        yield self.stream.write(context, "waits")
        return Wait.skip_immediately()

    def execute(self, context: Context, input: Any) -> Generator[StepOutput, None, StepDecision]:
        for number in range(input):
            yield self.stream.write(context, f"{context.attempt}.{number}")
            if number == 1:
                yield heartbeat(number)
        if context.attempt == 1:
            raise RuntimeError("the first attempt fails")
        return graceful_complete(context.get_last_heartbeat_value(int))


@pytest.mark.statement("B78", "B79", "B154", "B212", "C66", "C69")
@scenario(ray=True)
async def test_messages_of_a_generator_survive_its_failure_and_come_again(world: World) -> None:
    words = Stream("words", str, 10_000)
    flow = Made(Yields(words, execute_retry=every(1)), has=[words], name="Generator")
    await world.deploy(flow)
    await world.start(flow, "f", 3)
    assert (await world.result("f")).single_output(int) == 1  # the heartbeat's: messages leave it as it is
    reader = Reader(world, "f", words)
    messages = [await reader.message() for _ in range(7)]
    assert [message.value for message in messages] == ["waits", "1.0", "1.1", "1.2", "2.0", "2.1", "2.2"]
    assert {message.source for message in messages} == {"#Yields-1"}
    created = [message.created_time for message in messages]
    assert created == sorted(created)
    assert created[0].utcoffset() == timedelta(0)


@pytest.mark.statement("B78", "B79", "B212", "C69")
@scenario(ray=True)
async def test_an_asynchronous_handler_writes_as_it_goes(world: World) -> None:
    words = Stream("words", str, 10_000)

    async def act(context: AsyncContext, input: None) -> StepDecision:
        words.write(context, f"begins {context.attempt}")
        await asyncio.sleep(0.2)
        words.write(context, "ends")
        if context.attempt == 1:
            raise RuntimeError("the first attempt fails")
        return graceful_complete(None)

    flow = Made(Does(act, execute_retry=every(1)), has=[words], name="Writer")
    await world.deploy(flow)
    await world.start(flow, "f", None)
    reader = Reader(world, "f", words)
    first = await reader.message()
    assert (first.value, first.source) == ("begins 1", "#Does-1")
    assert await reader.values(3) == ["ends", "begins 2", "ends"]
    await world.result("f")
    with pytest.raises(LongPollTimeoutError):
        await reader.message(AT_ONCE)


@pytest.mark.statement("B78")
@scenario()
async def test_messages_are_no_part_of_the_history(world: World) -> None:
    words = Stream("words", str, 10_000)
    flow = Made(Yields(words), has=[words], name="Quiet")
    await world.deploy(flow)
    await world.start(flow, "f", 0)
    await world.result("f")
    assert not [kind for kind in await world.kinds("f") if "Stream" in kind or "Heartbeat" in kind]


@pytest.mark.statement("B174")
@scenario()
async def test_a_message_is_a_heartbeat_and_keeps_the_checkpoint(world: World) -> None:
    words = Stream("words", str, 10_000)

    async def act(context: AsyncContext, input: int) -> StepDecision:
        if context.attempt == 2:
            return graceful_complete(context.get_last_heartbeat_value(str))
        await context.heartbeat("kept")
        for number in range(input):
            await asyncio.sleep(9)
            words.write(context, str(number))
        await asyncio.sleep(11)
        return graceful_complete("was not missed")

    flow = Made(Does(act, execute_retry=every(1), heartbeat_timeout=seconds(10)), has=[words], name="Alive")
    await world.deploy(flow)
    await world.start(flow, "f", 50)
    assert (await world.result("f", timeout=DAY)).single_output(str) == "kept"
    (failed,) = await events(world, "f", "AttemptFailed")
    started = (await events(world, "f", "AttemptStarted"))[0]
    assert failed.data["failure"]["kind"] == "HEARTBEAT_TIMEOUT"
    assert failed.at - started.at == pytest.approx(460, abs=0.1)


@pytest.mark.statement("B174")
@scenario(ray=True, in_process=False)
async def test_over_ray_a_step_that_only_writes_is_not_taken_for_dead(world: World) -> None:
    words = Stream("words", str, 10_000)

    async def act(context: AsyncContext, input: None) -> StepDecision:
        for number in range(14):
            await asyncio.sleep(0.5)
            words.write(context, str(number))
        return graceful_complete(context.attempt)

    flow = Made(Does(act, execute_retry=ONCE), has=[words], name="AliveOnRay")
    await world.deploy(flow, heartbeat_timeout=5)
    await world.start(flow, "f", None)
    assert (await world.result("f")).single_output(int) == 1
    assert len(await all_of(world, "f", words)) == 14


@pytest.mark.statement("B177")
@pytest.mark.parametrize(("script", "found"), [((1, "m"), [True, 1]), ((1, ..., "m"), [False, None])])
@scenario()
async def test_a_message_changes_nothing_about_the_checkpoint(world: World, script: Any, found: Any) -> None:
    words = Stream("words", str, 10_000)

    async def act(context: AsyncContext, input: None) -> StepDecision:
        if context.attempt == 2:
            return graceful_complete([context.has_last_heartbeat_value(), context.get_last_heartbeat_value(int)])
        for line in script:
            if isinstance(line, str):
                words.write(context, line)
            else:
                await (context.heartbeat() if line is ... else context.heartbeat(line))
        raise RuntimeError("once more")

    flow = Made(Does(act, execute_retry=every(1)), has=[words], name="Checkpoint")
    await world.deploy(flow)
    await world.start(flow, "f", None)
    assert (await world.result("f")).single_output(list) == found


@pytest.mark.statement("B154")
@scenario()
async def test_under_async_a_lost_start_runs_again_and_writes_again_in_the_same_name(world: World) -> None:
    words = Stream("words", str, 10_000)
    written = asyncio.Event()

    async def first(context: AsyncContext, input: None) -> StepDecision:
        return go_to(Last, None)

    async def last(context: AsyncContext, input: None) -> StepDecision:
        words.write(context, f"attempt {context.attempt}")
        if not written.is_set():
            written.set()
            await asyncio.sleep(50)
        return graceful_complete(None)

    flow = Made(
        Does(first, execute_durability=StepDurability.ASYNC),
        Last(last, execute_durability=StepDurability.ASYNC),
        has=[words],
        name="Again",
    )
    await world.deploy(flow)
    await world.start(flow, "f", None)
    await written.wait()
    await asyncio.sleep(0.001)  # the message is stored, and the start of the attempt is not yet
    await world.restart()
    await world.result("f", timeout=200)
    page = await world.client.list_stream_messages(world.id("f"), words, 10)
    assert [(message.value, message.source) for message in page.messages] == [("attempt 1", "#Last-1")] * 2


@pytest.mark.statement("C69")
@scenario(ray=True)
async def test_clients_write_to_flows_that_never_were(world: World) -> None:
    words = Stream("words", str, 10_000)
    flow = Made(Does(), has=[words], name="Nobody")
    await world.deploy(flow)
    name = world.id("never")
    for text in ("a", "b"):
        await world.client.write_stream(name, words, "me", text)
    await world.client.write_stream(world.id("another"), words, "me", "elsewhere")
    first = await world.client.read_stream(name, words)
    assert (first.value, first.source) == ("a", "me")
    assert (await world.client.read_stream(name, words, first.resume_token)).value == "b"
    assert await all_of(world, "never", words) == ["a", "b"]
    with pytest.raises(ValueError, match="source"):
        await world.client.write_stream(name, words, "", "c")


@pytest.mark.statement("C66")
@scenario()
async def test_a_stream_is_of_one_flow_id_and_outlives_its_runs(world: World) -> None:
    words, numbers = Stream("words", str, 10_000), Stream("numbers", int, 10_000)

    async def act(context: AsyncContext, input: str) -> StepDecision:
        words.write(context, input)
        numbers.write(context, len(input))
        return graceful_complete(None)

    flow = Made(Does(act), has=[words, numbers], name="Two")
    await world.deploy(flow)
    for name, input in (("f", "one"), ("g", "other"), ("f", "second")):
        options = StartFlowOptions(id_reuse_policy=IdReusePolicy.ALLOW_IF_NOT_RUNNING)
        await world.start(flow, name, input, options)
        await world.result(name)
    assert await all_of(world, "f", words) == ["one", "second"]
    assert await all_of(world, "f", numbers) == [3, 6]
    assert await all_of(world, "g", words) == ["other"]


@pytest.mark.statement("C66", "C67")
@scenario()
async def test_the_oldest_go_first_and_readers_go_on_with_what_is_left(world: World) -> None:
    small = Stream("small", bytes, 1000)
    flow = Made(Does(), has=[small], name="Small")
    await world.deploy(flow)
    reader = Reader(world, "f", small)

    async def write(*numbers: int) -> None:
        for number in numbers:
            await world.client.write_stream(world.id("f"), small, "me", bytes([number]) * 190)

    await write(0)
    assert (await reader.message()).value[0] == 0
    await write(*range(1, 20))
    kept = [value[0] for value in await all_of(world, "f", small)]
    assert kept == [15, 16, 17, 18, 19]
    assert (await reader.message()).value[0] == 15  # 0 was trimmed, and so was what followed it
    assert [value[0] for value in await reader.values(4)] == [16, 17, 18, 19]
    await write(*range(20, 30))
    assert [value[0] for value in await reader.values(5)] == [25, 26, 27, 28, 29]


@pytest.mark.statement("C66", "C67")
@scenario()
async def test_who_reads_a_stream_misses_nothing_that_is_kept(world: World) -> None:
    """With read-ahead: many messages come with the first, and each is given out once, in order."""
    numbers = Stream("numbers", int, 1_000_000)

    async def act(context: AsyncContext, input: int) -> StepDecision:
        for number in range(input):
            numbers.write(context, number)
            if number % 100 == 0:
                await asyncio.sleep(0.02)
        return graceful_complete(None)

    flow = Made(Does(act), has=[numbers], name="Many")
    await world.deploy(flow)
    await world.start(flow, "f", 3000)
    assert await Reader(world, "f", numbers).values(3000) == list(range(3000))
    assert await Reader(world, "f", numbers).values(3000) == list(range(3000))


@pytest.mark.statement("C66")
@scenario()
async def test_a_message_larger_than_its_stream_stays_alone(world: World) -> None:
    tiny = Stream("tiny", str, 10)
    flow = Made(Does(), has=[tiny], name="Tiny")
    await world.deploy(flow)
    for text in ("a" * 50, "b" * 60):
        await world.client.write_stream(world.id("f"), tiny, "me", text)
    assert await all_of(world, "f", tiny) == ["b" * 60]


@pytest.mark.statement("C66")
@scenario()
async def test_a_message_has_at_most_100_kib(world: World) -> None:
    blobs = Stream("blobs", bytes, 1_000_000)

    async def act(context: AsyncContext, input: None) -> StepDecision:
        with pytest.raises(ValueMappingError, match="message for Stream 'blobs'"):
            blobs.write(context, bytes(100 * 1024 + 1))
        blobs.write(context, bytes(100 * 1024 - 100))
        return graceful_complete(None)

    flow = Made(Does(act, execute_retry=ONCE), has=[blobs], name="Large")
    await world.deploy(flow)
    await world.start(flow, "f", None)
    await world.result("f")
    with pytest.raises(ValueMappingError, match="message for Stream 'blobs'"):
        await world.client.write_stream(world.id("f"), blobs, "me", bytes(100 * 1024 + 1))
    assert [len(value) for value in await all_of(world, "f", blobs)] == [100 * 1024 - 100]


@pytest.mark.statement("C67")
@scenario()
async def test_a_reader_waits_for_the_next_message_and_no_longer_than_it_said(world: World) -> None:
    words = Stream("words", str, 10_000)
    flow = Made(Does(), has=[words], name="Poll")
    await world.deploy(flow)
    loop = asyncio.get_running_loop()
    reader = Reader(world, "f", words)
    for wait in (timedelta(0), timedelta(seconds=7.5), timedelta(minutes=5)):
        began = loop.time()
        with pytest.raises(LongPollTimeoutError):
            await reader.message(wait)
        assert loop.time() - began == pytest.approx(wait.total_seconds(), abs=0.5)
    waiting = asyncio.create_task(reader.message(timedelta(days=1)))
    await asyncio.sleep(100.3)
    began = loop.time()
    await world.client.write_stream(world.id("f"), words, "me", "hello")
    assert (await waiting).value == "hello"
    assert loop.time() - began < 0.1


@pytest.mark.statement("C67")
@scenario()
async def test_what_another_owner_wrote_is_found_within_a_moment(world: World) -> None:
    from dexray.journal import NewMessage

    words = Stream("words", str, 10_000)
    flow = Made(Does(), has=[words], name="Moved")
    await world.deploy(flow)
    waiting = asyncio.create_task(Reader(world, "f", words).message(timedelta(hours=1)))
    await asyncio.sleep(5)
    payload = world.client.registry.codec_registry.encode("from afar", str, where="test")
    world.journal().append_messages(  # type: ignore[attr-defined]
        [NewMessage(world.id("f"), "words", 1.0, "them", payload, 1000)]
    )
    began = asyncio.get_running_loop().time()
    assert (await waiting).value == "from afar"
    assert asyncio.get_running_loop().time() - began < 2


@pytest.mark.statement("C67", "C68")
@scenario()
async def test_a_token_is_good_for_its_own_stream_and_use_only(world: World) -> None:
    words, others = Stream("words", str, 10_000), Stream("others", str, 10_000)
    flow = Made(Does(), has=[words, others], name="Tokens")
    await world.deploy(flow)
    for _ in range(3):
        await world.client.write_stream(world.id("f"), words, "me", "x")
    resume = (await world.client.read_stream(world.id("f"), words)).resume_token
    page = (await world.client.list_stream_messages(world.id("f"), words, 1)).next_page_token
    read, list_ = world.client.read_stream, world.client.list_stream_messages
    for wrong in (
        read(world.id("f"), others, resume, AT_ONCE),
        read(world.id("g"), words, resume, AT_ONCE),
        read(world.id("f"), words, page, AT_ONCE),
        read(world.id("f"), words, "ä", AT_ONCE),
        list_(world.id("f"), words, 1, resume),
        list_(world.id("f"), others, 1, page),
        list_(world.id("f"), words, 1, "1"),
    ):
        error = await refusal(wrong)
        assert error.code is StatusCode.INVALID_ARGUMENT
        assert "token" in str(error)


@pytest.mark.statement("C68")
@scenario(ray=True)
async def test_pages_go_from_the_newest_to_the_oldest(world: World) -> None:
    numbers = Stream("numbers", int, 1_000_000)
    flow = Made(Does(), has=[numbers], name="Pages")
    await world.deploy(flow)
    name = world.id("f")
    empty = await world.client.list_stream_messages(name, numbers, 10)
    assert (empty.messages, empty.next_page_token) == ((), "")
    for number in range(10):
        await world.client.write_stream(name, numbers, "me", number)
    token, pages = "", []
    while True:
        page = await world.client.list_stream_messages(name, numbers, 4, token)
        pages.append([message.value for message in page.messages])
        token = page.next_page_token
        if not token:
            break
        await world.client.write_stream(name, numbers, "me", 99)  # newer than the page: it moves nothing
    assert pages == [[9, 8, 7, 6], [5, 4, 3, 2], [1, 0]]
    exact = await world.client.list_stream_messages(name, numbers, 12)
    assert exact.next_page_token == ""
    newest = exact.messages[2]
    behind = await world.client.read_stream(name, numbers, newest.resume_token)
    assert (newest.value, behind.value) == (9, 99)
    for size in (0, 1001):
        with pytest.raises(ValueError, match="from 1 to 1000"):
            await world.client.list_stream_messages(name, numbers, size)


@pytest.mark.statement("B80", "C70")
@scenario()
async def test_a_store_that_fails_fails_clients_and_no_step(world: World) -> None:
    from tests.engine.faulty import FaultyJournal

    words = Stream("words", str, 10_000)

    async def act(context: AsyncContext, input: None) -> StepDecision:
        words.write(context, "lost")
        await asyncio.sleep(10)
        return graceful_complete(context.attempt)

    flow = Made(Does(act, execute_retry=ONCE), has=[words], name="Faulty")
    await world.deploy(flow)
    host = world.engine.host  # type: ignore[attr-defined]
    host.journal = journal = FaultyJournal(host.journal)
    journal.fail("append_messages", *["before"] * 4)
    await world.start(flow, "f", None)
    assert (await world.result("f")).single_output(int) == 1
    assert host.streams.failures == 1
    assert await all_of(world, "f", words) == []

    journal.fail("append_messages", *["before"] * 1000)
    error = await refusal(world.client.write_stream(world.id("f"), words, "me", "a client's"))
    assert error.code is StatusCode.UNAVAILABLE
    assert host.streams.failures == 1
    await asyncio.sleep(5)  # what the client gave up the owner still tries for a moment
    journal.calm()
    await world.client.write_stream(world.id("f"), words, "me", "well again")
    assert await all_of(world, "f", words) == ["well again"]


@pytest.mark.statement("B80", "C66")
@scenario()
async def test_a_short_outage_loses_nothing_and_may_repeat(world: World) -> None:
    from tests.engine.faulty import FaultyJournal

    words = Stream("words", str, 10_000)
    flow = Made(Yields(words, execute_retry=every(1)), has=[words], name="Outage")
    await world.deploy(flow)
    host = world.engine.host  # type: ignore[attr-defined]
    host.journal = journal = FaultyJournal(host.journal)
    journal.fail("append_messages", "before", "after")
    await world.start(flow, "f", 1)
    await world.result("f")
    assert list(dict.fromkeys(await all_of(world, "f", words))) == ["waits", "1.0", "2.0"]
    assert host.streams.failures == 0


@pytest.mark.statement("C70")
@scenario()
async def test_a_message_that_the_database_refuses_spoils_no_other(world: World) -> None:
    words = Stream("words", str, 10_000)
    flow = Made(Does(), has=[words], name="Spoiled")
    await world.deploy(flow)
    write = world.client.write_stream
    outcomes = await asyncio.gather(
        *(write(world.id("f"), words, source, "x") for source in ("a", "\ud800", "b", "c")), return_exceptions=True
    )
    assert [outcome is None for outcome in outcomes] == [True, False, True, True]
    page = await world.client.list_stream_messages(world.id("f"), words, 10)
    assert [message.source for message in page.messages] == ["c", "b", "a"]


@scenario()
async def test_an_engine_that_ends_in_order_writes_what_it_has(world: World) -> None:
    written = asyncio.Event()
    words = Stream("words", str, 10_000)

    async def act(context: AsyncContext, input: None) -> StepDecision:
        words.write(context, "first")
        await asyncio.sleep(0.01)
        for number in range(20):
            words.write(context, str(number))
        written.set()
        await asyncio.sleep(3600)
        return graceful_complete(None)

    flow = Made(Does(act), has=[words], name="Orderly")
    await world.deploy(flow)
    await world.start(flow, "f", None)
    await written.wait()
    await world.engine.close()  # type: ignore[attr-defined]
    stored = world.journal().read_messages(world.id("f"), "words", 0, 100)  # type: ignore[attr-defined]
    assert len(stored) == 21


@scenario(ray=True)
async def test_text_is_gathered_into_few_messages(world: World) -> None:
    words = Stream("words", str, 100_000)

    async def speak(context: AsyncContext, input: None) -> StepDecision:
        text = words.buffered_text(context, flush_interval=timedelta(seconds=60), max_buffered_bytes=10)
        for chunk in ("Once ", "", "upon ", "a ", "time"):
            text.write(chunk)
        return graceful_complete(None)

    flow = Made(Does(speak), has=[words], name="Speaks")
    await world.deploy(flow)
    await world.start(flow, "f", None)
    await world.result("f")
    assert await Reader(world, "f", words).values(2) == ["Once upon ", "a time"]


class Tells(Step[Any]):
    def __init__(self, stream: Stream[str]) -> None:
        self.stream = stream

    def execute(self, context: Context, input: Any) -> Generator[StepOutput, None, StepDecision]:
        text = self.stream.buffered_text(context, max_buffered_bytes=10)
        for chunk in ("Once ", "", "upon ", "a ", "time"):
            yield from text.write(chunk)
        yield from text.flush()
        return graceful_complete(None)


@scenario(ray=True)
async def test_a_generator_yields_the_frames_of_its_text(world: World) -> None:
    words = Stream("words", str, 100_000)
    flow = Made(Tells(words), has=[words], name="Tells")
    await world.deploy(flow)
    await world.start(flow, "f", None)
    await world.result("f")
    assert await Reader(world, "f", words).values(2) == ["Once upon ", "a time"]


@scenario()
async def test_gathered_text_is_sent_by_the_clock_and_at_the_end_even_of_a_failure(world: World) -> None:
    words = Stream("words", str, 100_000)
    kept: list[Any] = []

    async def speak(context: AsyncContext, input: None) -> StepDecision:
        text = words.buffered_text(context)
        kept.append(text)
        text.write("in ")
        text.write("time")
        await asyncio.sleep(5)
        text.write("last words")
        raise RuntimeError("gone")

    flow = Made(Does(speak, execute_retry=ONCE), has=[words], name="Spoke")
    await world.deploy(flow)
    began = asyncio.get_running_loop().time()
    await world.start(flow, "f", None)
    reader = Reader(world, "f", words)
    assert (await reader.message()).value == "in time"
    assert asyncio.get_running_loop().time() - began == pytest.approx(1, abs=0.1)
    assert (await reader.message()).value == "last words"
    with pytest.raises(ValueError, match="has ended"):
        kept[0].write("ghost")
