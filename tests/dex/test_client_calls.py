"""How one request reaches a service that may be away: repeats, deadlines, long polls."""

from __future__ import annotations

import asyncio
import threading
from datetime import timedelta

import pytest

from dex.client_calls import ClientOptions, HistoryCursor, ServiceCaller
from dex.errors import DexServiceError, FlowNotFoundError, LongPollTimeoutError, StatusCode
from dex.wire.service import (
    DescribeFlow,
    Done,
    FlowDescription,
    FlowOutcome,
    HistoryEvent,
    HistoryPage,
    Publish,
    Published,
    ServiceError,
    Started,
    StartFlow,
    StopFlow,
)
from tests.dex.scripted_service import HANG, ScriptedService, VirtualTime, poll_over, unavailable


def caller_of(service: ScriptedService, time: VirtualTime, timeout: float = 30, chance: float = 1.0) -> ServiceCaller:
    return ServiceCaller(
        service,
        lambda: service,
        ClientOptions(request_timeout=timedelta(seconds=timeout)),
        now=time.read,
        sleep=time.sleep,
        chance=lambda: chance,
    )


def start(fresh: bool = True) -> StartFlow:
    return StartFlow(flow_id="f", flow_type="Order", input=b"", request_id="id-1", fresh=fresh)


# Repeats --------------------------------------------------------------------------------------------------------------


@pytest.mark.statement("D8")
async def test_an_unavailable_service_is_asked_again_with_the_same_id_and_no_longer_as_fresh() -> None:
    service = ScriptedService(unavailable(), unavailable(), Published(message_ids=("m",)))
    request = Publish(flow_id="f", channel="c", values=(b"1",), request_id="id-1", fresh=True)
    answer = await caller_of(service, VirtualTime()).call(request)
    assert answer.message_ids == ("m",)
    first, second, third = service.requests
    assert first == request
    assert second == third == Publish(flow_id="f", channel="c", values=(b"1",), request_id="id-1", fresh=False)


async def test_a_repeated_start_is_known_as_the_call_of_its_first_send() -> None:
    service = ScriptedService(unavailable(), Started(run_id="r"))
    assert (await caller_of(service, VirtualTime()).call(start())).run_id == "r"
    first, second = service.requests
    assert (first.fresh, first.ignore_already_started) == (True, False)
    assert (second.fresh, second.ignore_already_started, second.request_id) == (False, False, "id-1")


async def test_pauses_double_from_50_ms_up_to_a_second() -> None:
    time = VirtualTime()
    service = ScriptedService(*[unavailable()] * 8, Done())
    await caller_of(service, time).call(StopFlow(flow_id="f", request_id="id"))
    assert time.pauses == [0.05, 0.1, 0.2, 0.4, 0.8, 1.0, 1.0, 1.0]


async def test_chance_shortens_a_pause_by_up_to_a_half_so_that_clients_do_not_return_together() -> None:
    time = VirtualTime()
    service = ScriptedService(unavailable(), unavailable(), Done())
    await caller_of(service, time, chance=0.0).call(StopFlow(flow_id="f", request_id="id"))
    assert time.pauses == [0.025, 0.05]


async def test_when_the_time_is_over_a_writer_hears_that_the_outcome_is_unknown_and_the_id_to_repeat_with() -> None:
    time = VirtualTime()
    service = ScriptedService(*[unavailable("no owner")] * 100)
    with pytest.raises(DexServiceError) as caught:
        await caller_of(service, time, timeout=5).call(start())
    error = caught.value
    assert error.code is StatusCode.UNAVAILABLE
    assert (error.operation, error.flow_id) == ("start_flow", "f")
    assert "outcome is unknown" in error.detail
    assert "request_id='id-1'" in error.detail
    assert "no owner" in error.detail
    assert 3.9 < time.now - 5_000 <= 5


async def test_when_the_time_is_over_a_reader_is_told_to_call_again() -> None:
    service = ScriptedService(*[unavailable()] * 100)
    with pytest.raises(DexServiceError, match="call again") as caught:
        await caller_of(service, VirtualTime(), timeout=1).call(DescribeFlow(flow_id="f"))
    assert "request_id" not in caught.value.detail


async def test_a_service_that_never_answers_counts_as_unavailable() -> None:
    service = ScriptedService(HANG)
    caller = ServiceCaller(
        service, lambda: service, ClientOptions(request_timeout=timedelta(milliseconds=20)), chance=lambda: 1.0
    )
    with pytest.raises(DexServiceError, match="did not answer in time") as caught:
        await caller.call(start())
    assert caught.value.code is StatusCode.UNAVAILABLE


async def test_any_other_failure_is_raised_at_once() -> None:
    service = ScriptedService(ServiceError("INVALID_ARGUMENT", "no such thing"))
    with pytest.raises(DexServiceError, match="no such thing"):
        await caller_of(service, VirtualTime()).call(start())
    assert len(service.requests) == 1


# Waiting for the end --------------------------------------------------------------------------------------------------

CLOSED = FlowOutcome(flow_id="f", run_id="r", status="COMPLETED")


@pytest.mark.statement("C42")
async def test_a_wait_without_limit_polls_a_minute_at_a_time_until_the_flow_closes() -> None:
    time = VirtualTime()
    service = ScriptedService(*[time.pass_by(60, poll_over())] * 3, CLOSED)
    assert await caller_of(service, time).wait_for_flow("f", None) == CLOSED
    assert [request.timeout for request in service.requests] == [60, 60, 60, 60]


async def test_a_wait_of_100_seconds_is_a_poll_of_60_and_one_of_40() -> None:
    time = VirtualTime()
    service = ScriptedService(time.pass_by(60, poll_over()), time.pass_by(40, poll_over()))
    with pytest.raises(LongPollTimeoutError):
        await caller_of(service, time).wait_for_flow("f", 100)
    assert [request.timeout for request in service.requests] == [60, 40]


async def test_a_wait_of_no_time_asks_once() -> None:
    service = ScriptedService(poll_over())
    with pytest.raises(LongPollTimeoutError):
        await caller_of(service, VirtualTime()).wait_for_flow("f", 0)
    assert service.request.timeout == 0


async def test_a_wait_rides_out_an_outage_after_a_long_poll_and_then_waits_for_the_time_that_is_left() -> None:
    time = VirtualTime()
    service = ScriptedService(
        time.pass_by(59, unavailable()),  # longer than request_timeout, but the service was there
        time.pass_by(1, unavailable()),
        CLOSED,
    )
    assert await caller_of(service, time, timeout=10).wait_for_flow("f", 70) == CLOSED
    first, second, third = (request.timeout for request in service.requests)
    assert first == 60
    assert 10 < second < 11
    assert 9 < third < 10


async def test_a_wait_ends_when_the_service_stays_away_for_longer_than_the_request_timeout() -> None:
    time = VirtualTime()
    service = ScriptedService(*[unavailable()] * 100)
    with pytest.raises(DexServiceError) as caught:
        await caller_of(service, time, timeout=10).wait_for_flow("f", None)
    assert caught.value.code is StatusCode.UNAVAILABLE
    assert 8 < time.now - 5_000 <= 10


async def test_each_poll_that_the_service_answers_starts_the_request_timeout_anew() -> None:
    time = VirtualTime()
    outage = [unavailable()] * 8
    service = ScriptedService(*outage, time.pass_by(60, poll_over()), *outage, CLOSED)
    assert await caller_of(service, time, timeout=6).wait_for_flow("f", None) == CLOSED


async def test_a_wait_for_an_unknown_flow_says_so() -> None:
    service = ScriptedService(ServiceError("NOT_FOUND", "no Flow 'f'", "FLOW_NOT_EXISTS"))
    with pytest.raises(FlowNotFoundError):
        await caller_of(service, VirtualTime()).wait_for_flow("f", None)


# History --------------------------------------------------------------------------------------------------------------


def page(first: int, last: int, *, closed: bool = False, more: bool = False) -> HistoryPage:
    events = tuple(HistoryEvent(number=number, kind="k", at=0.0) for number in range(first, last + 1))
    return HistoryPage(run_id="run-1", events=events, closed=closed, more=more)


async def numbers(cursor: HistoryCursor) -> list[int]:
    found: list[int] = []
    while events := await cursor.next_page():
        found += [event.number for event in events]
    return found


async def test_history_is_read_page_by_page_from_the_run_that_the_first_page_found() -> None:
    service = ScriptedService(page(1, 2, more=True), page(3, 4, more=True), page(5, 5))
    cursor = HistoryCursor(caller_of(service, VirtualTime()), "f", "", 0, 2, follow=False)
    assert await numbers(cursor) == [1, 2, 3, 4, 5]
    assert [(r.run_id, r.after, r.limit, r.wait) for r in service.requests] == [
        ("", 0, 2, 0),
        ("run-1", 2, 2, 0),
        ("run-1", 4, 2, 0),
    ]


async def test_following_a_history_waits_for_new_events_until_the_run_is_closed() -> None:
    service = ScriptedService(page(1, 2), poll_over(), page(3, 2), unavailable(), page(3, 3), page(4, 4, closed=True))
    cursor = HistoryCursor(caller_of(service, VirtualTime()), "f", "", 0, 100, follow=True)
    assert await numbers(cursor) == [1, 2, 3, 4]
    assert [(r.after, r.wait) for r in service.requests] == [(0, 0), (2, 60), (2, 60), (2, 60), (2, 60), (3, 60)]


async def test_an_empty_history_ends_at_once() -> None:
    service = ScriptedService(page(1, 0))
    assert await numbers(HistoryCursor(caller_of(service, VirtualTime()), "f", "", 0, 9, follow=False)) == []


# The service itself ---------------------------------------------------------------------------------------------------


RUNNING = FlowDescription(flow_id="f", run_id="r", flow_type="T", status="RUNNING", started_at=0.0)


async def test_the_default_service_is_looked_up_once_for_all_first_calls_and_closed_with_the_client() -> None:
    service = ScriptedService(RUNNING, RUNNING)
    found = 0

    def connect() -> ScriptedService:
        nonlocal found
        found += 1
        return service

    caller = ServiceCaller(None, connect, ClientOptions())
    assert found == 0
    await asyncio.gather(caller.call(DescribeFlow(flow_id="f")), caller.call(DescribeFlow(flow_id="f")))
    assert found == 1
    await caller.close()
    assert service.closed == 1


async def test_a_failed_look_up_is_told_and_tried_again_by_the_next_call() -> None:
    answers: list[ScriptedService] = []

    def connect() -> ScriptedService:
        if not answers:
            answers.append(ScriptedService(RUNNING))
            raise ConnectionError("no cluster")
        return answers[0]

    caller = ServiceCaller(None, connect, ClientOptions())
    with pytest.raises(ConnectionError, match="no cluster"):
        await caller.call(DescribeFlow(flow_id="f"))
    assert await caller.call(DescribeFlow(flow_id="f")) is RUNNING


async def test_an_interrupted_first_call_does_not_lose_the_service_that_is_being_looked_up() -> None:
    service = ScriptedService()
    asked, found = threading.Event(), threading.Event()

    def connect() -> ScriptedService:
        asked.set()
        assert found.wait(10)
        return service

    caller = ServiceCaller(None, connect, ClientOptions())
    call = asyncio.ensure_future(caller.call(DescribeFlow(flow_id="f")))
    await asyncio.to_thread(asked.wait, 10)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    found.set()
    await caller.close()
    assert service.closed == 1


@pytest.mark.parametrize(("owns", "closed"), [(False, 0), (True, 1)])
async def test_closing_closes_the_given_service_only_when_it_is_owned_and_only_once(owns: bool, closed: int) -> None:
    service = ScriptedService()
    caller = ServiceCaller(service, lambda: service, ClientOptions(owns_service=owns))
    await caller.close()
    await caller.close()
    assert service.closed == closed
    with pytest.raises(RuntimeError, match="client is closed"):
        await caller.call(start())


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"request_timeout": timedelta(0)}, "request_timeout must be positive"),
        ({"max_value_bytes": 0}, "max_value_bytes"),
    ],
)
def test_options_without_sense_are_refused(options: dict[str, object], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        ClientOptions(**options)  # type: ignore[arg-type]


def test_a_timeout_must_be_a_timedelta() -> None:
    with pytest.raises(TypeError, match=r"request_timeout must be a datetime.timedelta, got int: 5"):
        ClientOptions(request_timeout=5)  # type: ignore[arg-type]
