"""Clients that wait for a Step execution to be over, or for an Attribute to match.

A wait is looked at when it comes, and from then on with every record of the run: what a record holds at its end counts,
what came and went within it does not. What was seen is told when that record is durable.

    what happens                        the wait                       who is attached to it is told
    ---------------------------------   ----------------------------   -------------------------------------------
    the Step is over, the value fits    is answered                    so, with the value that fitted
    the poll is over                    goes on                        LONG_POLL_TIMEOUT
    its own limit is over               has failed                     REQUEST_TIMEOUT
    the run closes without it           has failed                     FLOW_NOT_EXISTS, as of a Flow that is not active
    the Flow leaves this owner          is gone                        UNAVAILABLE: the repeat begins the wait anew

A wait has an id. Whoever comes with the id of one that is there is attached to it, and gets its answer, even if the
value has changed since: a client that lost its connection misses nothing. A wait that nobody is attached to is kept for
LINGER seconds, in memory alone. Once told, an answer is kept as long for an id of the caller's own; under an id that
was derived from what is waited for, the next caller asks anew. A limit counts from the first time that somebody came.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dex.wire import service as s
from dex.wire.service import ServiceError
from dexray.engine import requests
from dexray.engine.live import LiveFlow, Lost
from dexray.machine.events import AnyEvent, StepCancelled, StepCompleted, StepFailed
from dexray.machine.matching import OPERATORS, matches
from dexray.machine.state import FlowState

if TYPE_CHECKING:
    from dexray.engine.host import FlowHost

LINGER = 120.0  # seconds that a wait is kept when nobody is attached to it

Look = Callable[[FlowState, Iterable[AnyEvent]], bytes | None]
"""What is waited for, if it is there: in a state, or in the events that led to it. b"" stands for no value."""


@dataclass(slots=True, eq=False)
class Wait:
    question: str
    look: Look
    answer: asyncio.Future[bytes]
    attached: int = 0
    seen: bytes | None = None
    seen_in: int = 0  # the record in which it was seen
    limit: asyncio.TimerHandle | None = None
    lingering: asyncio.TimerHandle | None = None

    def fail(self, error: Exception) -> None:
        if not self.answer.done():
            self.answer.set_exception(error)
            self.answer.exception()  # whoever is attached gets it; that nobody is, is no fault


class Waits:
    """The waits for one run, by id."""

    def __init__(self) -> None:
        self._waits: dict[str, Wait] = {}

    def __len__(self) -> int:
        return len(self._waits)

    def find(self, wait_id: str, question: str) -> Wait | None:
        wait = self._waits.get(wait_id)
        if wait is not None and wait.question != question:
            raise ServiceError(
                "INVALID_ARGUMENT",
                f"request_id {wait_id!r} is that of another wait, for {wait.question}: give this one its own",
            )
        return wait

    def add(self, wait_id: str, question: str, look: Look, limit: float) -> Wait:
        loop = asyncio.get_running_loop()
        wait = self._waits[wait_id] = Wait(question, look, loop.create_future())
        if limit > 0:
            wait.limit = loop.call_later(limit, _expire, wait, limit)
        return wait

    def attach(self, wait: Wait) -> None:
        wait.attached += 1
        if wait.lingering is not None:
            wait.lingering.cancel()
            wait.lingering = None

    def detach(self, wait_id: str, wait: Wait, *, keep: bool) -> None:
        """`keep`: an answer that was told is kept for a while."""
        wait.attached -= 1
        if wait.attached or self._waits.get(wait_id) is not wait:
            return
        if wait.answer.done() and not (keep and wait.answer.exception() is None):
            self._forget(wait_id, wait)
        else:
            wait.lingering = asyncio.get_running_loop().call_later(LINGER, self._forget, wait_id, wait)

    def _forget(self, wait_id: str, wait: Wait) -> None:
        if self._waits.get(wait_id) is wait:
            del self._waits[wait_id]
            if wait.limit is not None:
                wait.limit.cancel()

    # What the host tells ----------------------------------------------------------------------------------------------

    def look(self, state: FlowState, events: Iterable[AnyEvent], seq: int) -> None:
        """Record `seq` was made of these events, and left this state."""
        for wait in self._waits.values():
            if wait.seen is None and not wait.answer.done():
                wait.seen, wait.seen_in = wait.look(state, events), seq

    def durable(self, seq: int, closed: ServiceError | None) -> None:
        """Records up to `seq` are durable. `closed`: the run is, by one of them."""
        for wait in self._waits.values():
            if wait.seen is not None and wait.seen_in <= seq and not wait.answer.done():
                wait.answer.set_result(wait.seen)
            elif closed is not None:
                wait.fail(closed)

    def end(self, error: Exception) -> None:
        """The Flow has left this owner, or is in trouble."""
        for wait in self._waits.values():
            wait.fail(error)
            for timer in (wait.limit, wait.lingering):
                if timer is not None:
                    timer.cancel()
        self._waits.clear()


def _expire(wait: Wait, limit: float) -> None:
    wait.fail(
        ServiceError(
            "DEADLINE_EXCEEDED",
            f"{wait.question} did not come within its limit of {limit:g} s, and nobody watches for it any more: "
            "wait again, it may still come",
            "REQUEST_TIMEOUT",
        )
    )


# The requests ---------------------------------------------------------------------------------------------------------


async def wait_for_step(host: FlowHost, request: s.WaitForStep) -> s.Done:
    live = await requests.find(host, request.flow_id)
    step_type, _, number = request.step.rpartition("-")
    if not step_type or not number.isdecimal() or int(number) < 1:
        raise ServiceError("INVALID_ARGUMENT", f"{request.step!r} is no Step execution id: it is Type-number, from 1")

    def look(state: FlowState, events: Iterable[AnyEvent]) -> bytes | None:
        """A Step that its Flow's end has swept away is not over: it is in no event of its own."""
        if any(
            isinstance(event, StepCompleted | StepFailed | StepCancelled) and event.step == step for event in events
        ):
            return b""
        was_there = state.counters.get(step_type, 0) >= int(number)
        return b"" if was_there and step not in state.steps and state.status == "RUNNING" else None

    step = f"{step_type}-{int(number)}"
    await _answer(host, live, request, f"the end of Step execution {step}", look)
    return s.Done()


async def wait_for_attribute(host: FlowHost, request: s.WaitForAttribute) -> s.AttributeValue:
    live = await requests.find(host, request.flow_id)
    requests.check_attribute(host, live, request.name)
    if request.operator not in OPERATORS:
        raise ServiceError("INVALID_ARGUMENT", f"operator {request.operator!r}: use one of {' '.join(OPERATORS)}")

    def look(state: FlowState, events: Iterable[AnyEvent]) -> bytes | None:
        value = state.attributes.get(request.name)
        return value if matches(value, request.operator, request.operand) else None

    question = f"Attribute {request.name!r} {request.operator} {request.operand.hex()}"
    value = await _answer(host, live, request, question, look)
    return s.AttributeValue(found=True, value=value, blobs=await requests.attach_blobs(host, live, [value]))


async def _answer(
    host: FlowHost, live: LiveFlow, request: s.WaitForStep | s.WaitForAttribute, question: str, look: Look
) -> bytes:
    waits = _waits_of(live)
    wait = waits.find(request.request_id, question)
    if wait is None:
        requests.check_trouble(live)
        if live.lost:
            raise Lost("the Flow has just left this owner")
        if live.flow.is_closed:
            await requests.settled(host, live)
            raise requests.not_active(live)
        wait = waits.add(request.request_id, question, look, request.limit)
        waits.look(live.flow.state, (), live.seq + (0 if live.pending.is_empty else 1))
        waits.durable(live.durable_seq, None)
    waits.attach(wait)
    try:
        if not await requests.within(wait.answer, min(request.timeout, host.settings.longest_poll)):
            raise ServiceError("DEADLINE_EXCEEDED", f"{question} has not come yet", "LONG_POLL_TIMEOUT")
        return wait.answer.result()
    finally:
        waits.detach(request.request_id, wait, keep=request.keep)


def _waits_of(live: LiveFlow) -> Waits:
    if live.waits is None:
        live.waits = Waits()
    return live.waits
