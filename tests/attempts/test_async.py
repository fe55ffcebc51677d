"""Attempts of asynchronous handlers: many at once, deadlines, requests to stop."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from dex.channel import Channel
from dex.context import AsyncContext
from dex.decision import StepDecision, dead_end, graceful_complete
from dex.flow import Flow, PersistenceSchema, StepList
from dex.registry import Registry
from dex.step import Step
from dex.wait import Wait
from dexray.attempts.failures import CANCELED
from dexray.attempts.runner import run_async
from dexray.protocol.attempts import (
    HANDLER_ERROR,
    METHOD_TIMEOUT,
    AttemptFailed,
    AttemptResult,
    ExecuteSucceeded,
    Heartbeat,
    WaitForSucceeded,
)
from tests.attempts import shop
from tests.attempts.build import RecordingReporter, payload, task_for, value_of

Body = Callable[[Any, int], Awaitable[Any]]


async def nothing(context: Any, value: int) -> StepDecision:
    return dead_end()


class Script:
    body: Body = staticmethod(nothing)


rang = Channel("rang", int)


class Ring(Step[int]):
    async def wait_for(self, context: AsyncContext, input: int) -> Wait:
        await asyncio.sleep(0)
        return Wait.until(rang.for_one())

    async def execute(self, context: AsyncContext, input: int) -> StepDecision:
        return await Script.body(context, input)  # type: ignore[no-any-return]


class Bell(Flow[int]):
    def get_steps(self) -> StepList[int]:
        return StepList.start_step(Ring())

    def get_persistence_schema(self) -> PersistenceSchema:
        return PersistenceSchema.of(rang)

    async def handle_timeout(self, context: AsyncContext) -> StepDecision:
        await context.heartbeat("last words")
        return graceful_complete("over")


REGISTRY = Registry([Bell()], allow_async_handlers=True)


class Attempt:
    """An attempt under way: `begun` is set by the handler."""

    def __init__(self, value: int = 1, *, timeout: float = 60.0) -> None:
        self.reporter = RecordingReporter()
        self.begun = asyncio.Event()
        task = task_for("Bell", "Ring", value, timeout=timeout)
        self.running = asyncio.create_task(run_async(task, REGISTRY, self.reporter))

    async def result(self) -> AttemptResult:
        return await asyncio.wait_for(self.running, 5)


def script(body: Body) -> None:
    Script.body = staticmethod(body)


async def failure_of(attempt: Attempt) -> AttemptFailed:
    result = await attempt.result()
    assert isinstance(result, AttemptFailed), result
    return result


async def test_an_asynchronous_handler_decides_with_what_it_staged() -> None:
    async def body(context: Any, value: int) -> StepDecision:
        rang.publish(context, value)
        await context.heartbeat()
        await context.heartbeat(None)
        await context.heartbeat(value)
        return graceful_complete(value + 1)

    script(body)
    attempt = Attempt(4)
    result = await attempt.result()
    assert isinstance(result, ExecuteSucceeded)
    assert value_of(result.decision.output) == 5
    assert [value_of(value) for _, _, value in result.writes.publications] == [4]
    assert attempt.reporter.heartbeats == [
        Heartbeat(False, None),
        Heartbeat(True, payload(None)),
        Heartbeat(True, payload(4)),
    ]


async def test_an_asynchronous_wait_for_and_timeout_handler_run_too() -> None:
    reporter = RecordingReporter()
    wait = await run_async(task_for("Bell", "Ring", 1, method="wait_for"), REGISTRY, reporter)
    assert isinstance(wait, WaitForSucceeded)
    over = await run_async(task_for("Bell", "sys:timeout_handler", method="timeout"), REGISTRY, reporter)
    assert isinstance(over, ExecuteSucceeded)
    assert value_of(over.decision.output) == "over"
    assert reporter.heartbeats == [Heartbeat(True, payload("last words"))]


async def test_hundreds_run_at_once_in_one_process() -> None:
    inside = 0
    most = 0
    gate = asyncio.Event()

    async def body(context: Any, value: int) -> StepDecision:
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        if inside == 300:
            gate.set()
        await gate.wait()
        inside -= 1
        return graceful_complete(value)

    script(body)
    results = await asyncio.gather(*(Attempt(number).result() for number in range(300)))
    assert most == 300
    assert [value_of(result.decision.output) for result in results if isinstance(result, ExecuteSucceeded)] == list(
        range(300)
    )


async def test_a_synchronous_step_runs_on_the_loop() -> None:
    shop.Script.execute = staticmethod(lambda context, value: graceful_complete(value))
    result = await run_async(task_for("Shop", "Act", "x"), shop.REGISTRY, RecordingReporter())
    assert isinstance(result, ExecuteSucceeded)
    shop.Script.execute = staticmethod(lambda context, value: 1 / 0)
    result = await run_async(task_for("Shop", "Act", "x"), shop.REGISTRY, RecordingReporter())
    assert isinstance(result, AttemptFailed)


@pytest.mark.statement("D15")
@pytest.mark.parametrize(
    "error", [ValueError("x"), SystemExit(1), KeyboardInterrupt(), GeneratorExit(), RuntimeError("y")]
)
async def test_whatever_an_asynchronous_handler_raises_is_the_attempts_failure(error: BaseException) -> None:
    async def body(context: Any, value: int) -> StepDecision:
        await context.heartbeat(7)
        raise error

    script(body)
    failure = await failure_of(Attempt())
    assert failure.error_type == f"builtins.{type(error).__qualname__}"
    assert failure.kind == HANDLER_ERROR
    assert failure.heartbeat == Heartbeat(True, payload(7))


# Stopping -------------------------------------------------------------------------------------------------------------


@pytest.mark.statement("B117", "B120")
async def test_cancelling_the_attempt_cancels_the_handler_and_still_answers_with_data() -> None:
    attempt = None
    seen: list[object] = []

    async def body(context: Any, value: int) -> StepDecision:
        assert attempt is not None
        attempt.begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            seen.append(context.is_cancellation_requested())
            raise
        return dead_end()

    script(body)
    attempt = Attempt()
    await attempt.begun.wait()
    attempt.running.cancel()
    failure = await failure_of(attempt)
    assert failure.error_type == CANCELED
    assert failure.kind == HANDLER_ERROR
    assert "execute of Ring-1" in failure.detail
    assert seen == [True]
    assert not attempt.running.cancelled()
    assert attempt.running.cancelling() == 0


async def test_a_request_made_before_the_attempt_runs_reaches_its_handler() -> None:
    async def patient(context: Any, value: int) -> StepDecision:
        assert context.is_cancellation_requested()
        await asyncio.Event().wait()
        return dead_end()

    async def caller() -> AttemptResult:
        current = asyncio.current_task()
        assert current is not None
        current.cancel()
        return await run_async(task_for("Bell", "Ring", 1), REGISTRY, RecordingReporter())

    script(patient)
    stopped = await asyncio.wait_for(asyncio.create_task(caller()), 5)
    assert isinstance(stopped, AttemptFailed)
    assert stopped.error_type == CANCELED
    script(nothing)
    assert isinstance(await asyncio.wait_for(asyncio.create_task(caller()), 5), ExecuteSucceeded)


@pytest.mark.statement("B121")
async def test_a_handler_may_go_on_after_a_request_to_stop() -> None:
    attempt = None

    async def body(context: Any, value: int) -> StepDecision:
        assert attempt is not None
        attempt.begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await asyncio.sleep(0)
        return graceful_complete("finished")

    script(body)
    attempt = Attempt()
    await attempt.begun.wait()
    attempt.running.cancel()
    result = await attempt.result()
    assert isinstance(result, ExecuteSucceeded)
    assert attempt.running.cancelling() == 0


@pytest.mark.statement("B119")
async def test_the_deadline_cancels_an_asynchronous_handler() -> None:
    reporter = RecordingReporter()
    cancelled = asyncio.Event()

    async def body(context: Any, value: int) -> StepDecision:
        reporter.time += 60
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()
        return dead_end()

    script(body)
    running = asyncio.create_task(run_async(task_for("Bell", "Ring", 1, timeout=0.01), REGISTRY, reporter))
    await asyncio.wait((running, asyncio.create_task(cancelled.wait())), timeout=5)
    assert cancelled.is_set()  # by the deadline: nobody else has cancelled it
    result = await running
    assert isinstance(result, AttemptFailed)
    assert result.kind == METHOD_TIMEOUT


@pytest.mark.statement("B119")
async def test_a_deadline_is_judged_by_the_reporters_clock_alone() -> None:
    reporter = RecordingReporter()
    looks = 0

    class SlowClock(RecordingReporter):
        def now(self) -> float:
            nonlocal looks
            looks += 1
            return 0.0 if looks < 4 else 100.0

    async def body(context: Any, value: int) -> StepDecision:
        await asyncio.Event().wait()
        return dead_end()

    script(body)
    running = run_async(task_for("Bell", "Ring", 1, timeout=0.005), REGISTRY, SlowClock())
    result = await asyncio.wait_for(running, 5)
    assert isinstance(result, AttemptFailed)
    assert result.kind == METHOD_TIMEOUT
    assert looks >= 4
    assert reporter.heartbeats == []


async def test_a_result_that_comes_after_the_deadline_is_lost() -> None:
    reporter = RecordingReporter()

    async def body(context: Any, value: int) -> StepDecision:
        reporter.time += 60
        return dead_end()

    script(body)
    result = await run_async(task_for("Bell", "Ring", 1), REGISTRY, reporter)
    assert isinstance(result, AttemptFailed)
    assert result.kind == METHOD_TIMEOUT


async def test_a_cancelled_part_of_a_handler_is_no_request_to_stop() -> None:
    async def body(context: Any, value: int) -> StepDecision:
        part = asyncio.create_task(asyncio.Event().wait())
        asyncio.get_running_loop().call_soon(part.cancel)
        await part
        return dead_end()

    script(body)
    failure = await failure_of(Attempt())
    assert failure.error_type == "asyncio.exceptions.CancelledError"
    assert failure.kind == HANDLER_ERROR


async def test_a_request_that_comes_as_the_handler_returns_does_not_reach_the_caller() -> None:
    async def body(context: Any, value: int) -> StepDecision:
        current = asyncio.current_task()
        assert current is not None
        current.cancel()
        return dead_end()

    async def caller() -> str:
        await run_async(task_for("Bell", "Ring", 1), REGISTRY, RecordingReporter())
        await asyncio.sleep(0)
        return "went on"

    script(body)
    assert await asyncio.wait_for(asyncio.create_task(caller()), 5) == "went on"


async def test_the_timer_of_a_finished_attempt_does_not_stay_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = asyncio.get_running_loop()
    timers: list[asyncio.TimerHandle] = []
    call_later = loop.call_later

    def remembering(delay: float, callback: Callable[..., object], *args: Any) -> asyncio.TimerHandle:
        timers.append(call_later(delay, callback, *args))
        return timers[-1]

    monkeypatch.setattr(loop, "call_later", remembering)
    script(nothing)
    assert isinstance(await Attempt().result(), ExecuteSucceeded)
    assert timers
    assert all(timer.cancelled() for timer in timers)
