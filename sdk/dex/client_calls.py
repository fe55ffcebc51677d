"""How a client puts one request to a FlowService: repeats, deadlines and errors, the same for every operation.

**Unavailable means unknown.** When a service answers UNAVAILABLE, or does not answer in time, the request may have had
its effect or not. So it is sent again under the same request id, with growing pauses, until it is answered or
`request_timeout` has passed. A service remembers request ids, so that a repeat has the first one's effect and answer.
When the time is over the caller is told so, with the id to go on with: repeating the call under that id is always
safe, giving up is not.

**The id.** A caller who gives no id gets a new one for each call, and the first send says so (`fresh`), which spares
the service a look-up. An id of the caller's own may have been sent before: it is never fresh.

**The start of a Flow** has a rule of its own: the reuse policy may answer the same request id with "already started",
or let it start a second run. This is meant for a caller who starts twice, not for a reply lost on its way. So what a
service remembers a start by is its `call_id`, new for each call and the same in all its repeats.

**Long polls** are not limited by `request_timeout`: it counts only the time that the service was away. While it is
away nobody can say whether the Flow has closed, so a LongPollTimeoutError is only ever raised by a service that was
there.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, TypeVar

from msgspec.structs import replace

from dex._runtime import service_of_handler
from dex.errors import DexServiceError, LongPollTimeoutError, error_from_failure
from dex.values import DEFAULT_LIMIT
from dex.wire.service import (
    Answer,
    FlowOutcome,
    FlowService,
    GetHistory,
    HistoryEvent,
    InvokeRpc,
    ReadStream,
    Request,
    ServiceError,
    ServiceFailure,
    WaitForAttribute,
    WaitForFlow,
    WaitForStep,
)

AnswerT = TypeVar("AnswerT", bound=Answer)

FIRST_PAUSE: Final = 0.05
LONGEST_PAUSE: Final = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientOptions:
    """How a client behaves towards its service.

    request_timeout: how long one call is sent again while the service is unavailable, and may wait for an answer.
    Long polls may wait longer: for them it counts the time that the service was away.
    longest_poll: how long one request of a long poll asks to wait; the client repeats it. Shorter ones suit a proxy
    that ends idle connections.
    max_value_bytes: a value whose encoded size is above this is refused before it is sent.
    owns_service: closing the client closes the service that it was given. One that it found itself it closes anyway.
    """

    request_timeout: timedelta = timedelta(seconds=30)
    longest_poll: timedelta = timedelta(seconds=60)
    max_value_bytes: int = DEFAULT_LIMIT
    owns_service: bool = False

    def __post_init__(self) -> None:
        if seconds_of("request_timeout", self.request_timeout) <= 0:
            raise ValueError(f"ClientOptions.request_timeout must be positive, got {self.request_timeout}")
        if seconds_of("longest_poll", self.longest_poll) <= 0:
            raise ValueError(f"ClientOptions.longest_poll must be positive, got {self.longest_poll}")
        if self.max_value_bytes <= 0:
            raise ValueError(f"ClientOptions.max_value_bytes must be positive, got {self.max_value_bytes}")


def seconds_of(name: str, duration: timedelta) -> float:
    """A non-negative duration in seconds; errors name the argument."""
    if not isinstance(duration, timedelta):
        raise TypeError(f"{name} must be a datetime.timedelta, got {type(duration).__name__}: {duration!r}")
    seconds = duration.total_seconds()
    if seconds < 0:
        raise ValueError(f"{name} must not be negative, got {duration}")
    return seconds


class ServiceCaller:
    """Sends requests to one service. When none was given it is looked up at the first call: in a handler it is the
    engine that runs it, elsewhere `connect` finds it.

    `now`, `sleep` and `chance` (a random number in [0, 1)) are the world; tests give their own.
    """

    def __init__(
        self,
        service: FlowService | None,
        connect: Callable[[], FlowService],
        options: ClientOptions,
        *,
        now: Callable[[], float] = lambda: asyncio.get_running_loop().time(),
        sleep: Callable[[float], Awaitable[Any]] = asyncio.sleep,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self._service = service
        self._connect = connect
        self._patience = options.request_timeout.total_seconds()
        self.longest_poll: Final = options.longest_poll.total_seconds()
        self._connecting: asyncio.Future[FlowService] | None = None
        self._owns_service = options.owns_service or service is None
        self._closed = False
        self._now = now
        self._sleep = sleep
        self._chance = chance

    async def call(
        self,
        request: Request[AnswerT],
        *,
        operation: str = "",
        patience: float | None = None,
        again: Callable[[Request[AnswerT]], Request[AnswerT]] | None = None,
    ) -> AnswerT:
        """The answer, or the error that the service's failure stands for.

        operation: its name in errors, when it is not the request's own.
        patience: seconds of unavailability to bear instead of `request_timeout`; 0 sends once.
        again: makes the request to repeat from the one just sent.
        """
        operation = operation or request.operation
        patience = self._patience if patience is None else patience
        service = await self._open_service()
        deadline = self._now() + patience
        pause = FIRST_PAUSE
        while True:
            poll = _poll_of(request)
            sent_at = self._now()
            try:
                async with asyncio.timeout(max(deadline - sent_at, FIRST_PAUSE) + poll):
                    return await service.call(request)
            except ServiceError as error:
                failure = error.failure
                if failure.code != "UNAVAILABLE" or failure.is_final:
                    raise error_from_failure(failure, operation, request.flow_id) from None
                detail = failure.detail
            except TimeoutError:
                detail = "it did not answer in time"
            deadline += min(self._now() - sent_at, poll)  # so long it may well have been there
            wait = pause * (0.5 + 0.5 * self._chance())
            pause = min(pause * 2, LONGEST_PAUSE)
            if self._now() + wait >= deadline:
                failure = ServiceFailure(code="UNAVAILABLE", detail=_unavailable(request, patience, detail))
                raise error_from_failure(failure, operation, request.flow_id)
            await self._sleep(wait)
            request = again(request) if again is not None else _repeat(request)

    async def wait_for_flow(self, flow_id: str, timeout: float | None) -> FlowOutcome:
        """Long polls until the Flow is closed, or LongPollTimeoutError after `timeout` seconds."""
        return await self.poll(lambda seconds: WaitForFlow(flow_id=flow_id, timeout=seconds), timeout)

    async def poll(self, make: Callable[[float], Request[AnswerT]], timeout: float | None) -> AnswerT:
        """Long polls until there is an answer, or LongPollTimeoutError after `timeout` seconds (None: never).

        make: the request for a poll of so many seconds.
        """
        end = None if timeout is None else self._now() + timeout

        def poll_now(_: object = None) -> Request[AnswerT]:
            left = self.longest_poll if end is None else max(end - self._now(), 0.0)
            return make(min(left, self.longest_poll))

        while True:
            request = poll_now()
            try:
                return await self.call(request, again=poll_now)
            except LongPollTimeoutError:
                if end is not None and (_poll_of(request) < self.longest_poll or self._now() >= end):
                    raise

    async def is_serving(self, request: Request[Any]) -> bool:
        """Whether the service answers this request, at one try."""
        service = await self._open_service()
        try:
            async with asyncio.timeout(self._patience):
                await service.call(request)
        except (ServiceError, TimeoutError):
            return False
        return True

    async def close(self) -> None:
        """Closes the service if it is ours to close. Again: does nothing."""
        if self._closed:
            return
        self._closed = True
        if self._service is None and self._connecting is not None:
            with suppress(Exception):  # told to whoever was waiting for it; there is nothing to close then
                self._service = await self._connecting
        if self._owns_service and self._service is not None:
            await self._service.close()

    async def _open_service(self) -> FlowService:
        if self._closed:
            raise RuntimeError("the client is closed: make a new one")
        if self._service is None and self._connecting is None:
            self._service = service_of_handler()
        if self._service is None:
            # To find a cluster may take seconds of blocking calls: in a thread they hold up nobody's event loop. It is
            # done once, for all who wait, and goes on when one of them is interrupted: the next call finds its result.
            if self._connecting is None:
                self._connecting = asyncio.ensure_future(asyncio.to_thread(self._connect))
            connecting = self._connecting
            try:
                self._service = await asyncio.shield(connecting)
            except Exception:
                if self._connecting is connecting:
                    self._connecting = None
                raise
        return self._service


class HistoryCursor:
    """Reads the events of one run page by page; the run is settled by the first page."""

    def __init__(
        self, caller: ServiceCaller, flow_id: str, run_id: str, after: int, page_size: int, follow: bool
    ) -> None:
        if after < 0:
            raise ValueError(f"history(after=…) counts events from 0 on, got {after}")
        if page_size < 1:
            raise ValueError(f"history(page_size=…) must be positive, got {page_size}")
        self._caller = caller
        self._follow = follow
        self._next: GetHistory | None = GetHistory(flow_id=flow_id, run_id=run_id, after=after, limit=page_size)

    async def next_page(self) -> tuple[HistoryEvent, ...]:
        """The next events; empty at the end: of what there is, or of the run when following."""
        while self._next is not None:
            request = self._next
            try:
                page = await self._caller.call(request)
            except LongPollTimeoutError:
                if request.wait == 0:
                    raise
                continue
            after = page.events[-1].number if page.events else request.after
            if page.more or (self._follow and not page.closed):
                # Only a page that ends at the present is worth waiting behind.
                wait = 0.0 if page.more else self._caller.longest_poll
                self._next = replace(request, run_id=page.run_id, after=after, wait=wait, place=page.place)
            else:
                self._next = None
            if page.events:
                return page.events
        return ()


def _poll_of(request: Request[Any]) -> float:
    """Seconds that the service may take on purpose."""
    match request:
        case WaitForFlow(timeout=seconds) | GetHistory(wait=seconds) | InvokeRpc(timeout=seconds):
            return seconds
        case WaitForStep(timeout=seconds) | WaitForAttribute(timeout=seconds) | ReadStream(timeout=seconds):
            return seconds
        case _:
            return 0.0


def _repeat(request: Request[AnswerT]) -> Request[AnswerT]:
    if getattr(request, "fresh", False):
        return replace(request, fresh=False)
    return request


def _unavailable(request: Request[Any], patience: float, detail: str) -> str:
    what = f"the service was unavailable for {patience:g} s ({detail})"
    request_id = getattr(request, "request_id", None)
    if request_id is None:
        return f"{what}: call again"
    return (
        f"{what}, so the outcome is unknown: the call may have had its effect. "
        f"Repeat it with the same request_id={request_id!r}, it then has one effect however often it is sent"
    )


def not_active(operation: str, flow_id: str, status: str) -> DexServiceError:
    failure = ServiceFailure(
        code="NOT_FOUND", detail=f"Flow {flow_id!r} is {status}, not active", sub_status="FLOW_NOT_EXISTS"
    )
    return error_from_failure(failure, operation, flow_id)
