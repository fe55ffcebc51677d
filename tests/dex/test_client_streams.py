"""The Stream calls of a client: what they refuse, what they send, and what they make of the answers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from dex import (
    AsyncClient,
    Channel,
    DexServiceError,
    Flow,
    LongPollTimeoutError,
    PersistenceSchema,
    Registry,
    Stream,
    ValueMappingError,
)
from dex.client_streams import ReadAhead
from dex.wire.service import (
    Done,
    ListStreamMessages,
    ReadStream,
    ServiceError,
    StreamEntry,
    StreamMessages,
    WriteStream,
)
from tests.dex.scripted_service import ScriptedService, poll_over

WORDS = Stream("words", str, 1000)
APPROVAL = Channel("approval", bool)


class Talks(Flow[None]):
    def get_persistence_schema(self) -> PersistenceSchema:
        return PersistenceSchema.of(WORDS, APPROVAL)


REGISTRY = Registry([Talks()])


def client_of(*script: Any) -> tuple[AsyncClient, ScriptedService]:
    service = ScriptedService(*script)
    return AsyncClient(REGISTRY, service), service


def entry(number: int) -> StreamEntry:
    value = REGISTRY.codec_registry.encode(f"word {number}", str, where="test")
    return StreamEntry(value=value, token=f"t{number}", created_at=float(number), source="#S-1")


def entries(*numbers: int) -> StreamMessages:
    return StreamMessages(messages=tuple(entry(number) for number in numbers))


WRONG: list[tuple[Callable[[AsyncClient], Awaitable[object]], type[Exception], str]] = [
    (lambda c: c.write_stream("o", WORDS, "", "hi"), ValueError, "source"),
    (lambda c: c.write_stream("o", WORDS, 5, "hi"), TypeError, "source"),  # type: ignore[arg-type]
    (lambda c: c.write_stream("o", WORDS, "me", 5), ValueMappingError, "message for Stream 'words'"),  # type: ignore[misc]
    (lambda c: c.write_stream("", WORDS, "me", "hi"), ValueError, "flow_id|Flow ID"),
    (lambda c: c.write_stream("o", WORDS, "me", "x" * 200_000), ValueMappingError, "message for Stream 'words'"),
    (lambda c: c.read_stream("o", Stream("words", str, 10)), ValueError, "'words' is not registered"),
    (lambda c: c.read_stream("o", WORDS, "", timedelta(-1)), ValueError, "must not be negative"),
    (lambda c: c.read_stream("o", WORDS, 7), TypeError, "token is a str"),  # type: ignore[arg-type]
    (lambda c: c.list_stream_messages("o", WORDS, 1001), ValueError, "from 1 to 1000"),
    (lambda c: c.list_stream_messages("o", WORDS, 0), ValueError, "from 1 to 1000"),
    (lambda c: c.list_stream_messages("o", APPROVAL, 1), TypeError, "takes a Stream"),  # type: ignore[arg-type]
]


@pytest.mark.statement("C59")
@pytest.mark.parametrize(("call", "error", "text"), WRONG)
async def test_wrong_arguments_are_refused_before_anything_is_sent(
    call: Callable[[AsyncClient], Awaitable[object]], error: type[Exception], text: str
) -> None:
    client, service = client_of()
    with pytest.raises(error, match=text):
        await call(client)
    assert service.requests == []


@pytest.mark.statement("C69")
async def test_a_write_carries_the_capacity_of_its_stream() -> None:
    client, service = client_of(Done())
    await client.write_stream("o", WORDS, "me", "word 1")
    assert service.request == WriteStream(flow_id="o", stream="words", source="me", value=entry(1).value, capacity=1000)


@pytest.mark.statement("C70")
async def test_a_store_that_fails_is_an_error_of_the_write() -> None:
    client, _ = client_of(ServiceError("INTERNAL", "the disk is gone"))
    with pytest.raises(DexServiceError, match="the disk is gone") as caught:
        await client.write_stream("o", WORDS, "me", "hi")
    assert caught.value.operation == "write_stream"


@pytest.mark.statement("C67")
async def test_messages_that_came_along_are_given_out_by_their_tokens_once() -> None:
    client, service = client_of(entries(1, 2, 3), entries(4), entries(2, 3))
    first = await client.read_stream("o", WORDS)
    assert (first.value, first.source, first.resume_token) == ("word 1", "#S-1", "t1")
    assert first.created_time == datetime.fromtimestamp(1, UTC)
    assert (await client.read_stream("o", WORDS, "t1")).value == "word 2"
    assert (await client.read_stream("o", WORDS, "t2", timedelta(seconds=1))).value == "word 3"
    assert len(service.requests) == 1
    assert (await client.read_stream("o", WORDS, "t3")).value == "word 4"
    assert (await client.read_stream("o", WORDS, "t1")).value == "word 2"
    assert [request.token for request in service.requests] == ["", "t3", "t1"]
    assert all(isinstance(request, ReadStream) and request.stream == "words" for request in service.requests)


async def test_what_came_along_is_of_its_flow_alone() -> None:
    client, service = client_of(entries(1, 2), entries(9))
    await client.read_stream("o", WORDS)
    assert (await client.read_stream("other", WORDS, "t1")).value == "word 9"
    assert len(service.requests) == 2


async def test_whoever_begins_anew_asks_for_the_oldest_anew() -> None:
    client, service = client_of(entries(1, 2), entries(5, 6))
    await client.read_stream("o", WORDS)
    assert (await client.read_stream("o", WORDS)).value == "word 5"
    assert len(service.requests) == 2


def test_the_oldest_are_forgotten() -> None:
    ahead = ReadAhead(limit=3)
    ahead.keep("o", "words", tuple(entry(number) for number in range(6)))
    found = [number for number in range(6) if ahead.take("o", "words", f"t{number}") is not None]
    assert found == [2, 3, 4]


@pytest.mark.statement("C67")
async def test_a_read_polls_no_longer_than_a_minute_at_a_time() -> None:
    client, service = client_of(poll_over(), entries(1))
    assert (await client.read_stream("o", WORDS, "", timedelta(hours=1))).value == "word 1"
    assert [round(request.timeout) for request in service.requests] == [60, 60]
    client, service = client_of(poll_over())
    with pytest.raises(LongPollTimeoutError):
        await client.read_stream("o", WORDS, "", timedelta(seconds=5))
    assert service.request.timeout == pytest.approx(5, abs=0.1)


@pytest.mark.statement("C68")
async def test_a_page_is_newest_first_with_the_token_of_the_next() -> None:
    answer = StreamMessages(messages=(entry(2), entry(1)), next_page_token="p")
    client, service = client_of(answer)
    page = await client.list_stream_messages("o", WORDS, 2, "q")
    assert ([message.value for message in page.messages], page.next_page_token) == (["word 2", "word 1"], "p")
    assert service.request == ListStreamMessages(flow_id="o", stream="words", page_size=2, token="q")
