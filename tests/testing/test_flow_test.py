"""FlowTest: what runs between two calls of a test, and what comes out of it."""

from __future__ import annotations

import asyncio
import inspect
import sys
import threading
import time
import traceback
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from dex import AsyncContext, Context, FlowStatus, LongPollTimeoutError, Registry, RetryPolicy, StepDecision, go_to
from dexray.testing import (
    EngineProblem,
    FlowTest,
    FlowTestError,
    NeverAtRest,
    Ran,
    WaitsForever,
    WaitsForTime,
)
from tests.testing.flows import (
    HOUR,
    MONTH,
    ORDERS,
    SHOES,
    Act,
    Acting,
    Approve,
    Cron,
    Quote,
    Spinning,
    acting,
    approval,
    order,
    remarks,
)

ONCE = RetryPolicy(maximum_attempts=1)


# Time -----------------------------------------------------------------------------------------------------------------


def test_a_flow_that_waits_thirty_days_is_over_at_once() -> None:
    with FlowTest(ORDERS) as test:
        test.client.start_flow(order, "order", SHOES)
        began = test.now()
        assert test.client.wait_for_flow("order").single_output(str) == "nobody agreed to 42"
        assert test.now() - began == MONTH


def test_after_a_call_everything_has_happened_that_needs_no_time() -> None:
    with FlowTest(ORDERS) as test:
        test.client.start_flow(order, "order", SHOES)
        test.assert_steps_run("order", Quote)
        test.assert_open_steps("order", Approve)
        test.client.publish("order", approval, "Ada")
        test.assert_steps_run("order", Quote, Approve)
        assert test.status("order") == "COMPLETED"


def test_between_two_calls_nothing_happens() -> None:
    with FlowTest(ORDERS) as test:
        test.client.start_flow(order, "order", SHOES)
        before = test.now()
        time.sleep(0.05)
        assert test.now() == before
        test.assert_timers_pending("order", MONTH)


def test_advance_lets_each_thing_happen_at_its_time() -> None:
    seen: list[datetime] = []

    async def act(context: AsyncContext, input: Any) -> None:
        for _ in range(3):
            await context.heartbeat()  # silent for a minute, it would be taken for dead
            await asyncio.sleep(50)
            seen.append(test.now())

    with FlowTest(Registry([flow := acting(act)], allow_async_handlers=True)) as test:
        began = test.now()
        test.client.start_flow(flow, "f", None)
        test.advance(49)
        assert seen == []
        test.advance(timedelta(seconds=1))
        assert seen == [began + timedelta(seconds=50)]
        test.advance(HOUR)
        assert seen == [began + timedelta(seconds=seconds) for seconds in (50, 100, 150)]
        assert test.now() == began + timedelta(seconds=50) + HOUR
        assert test.status("f") == "COMPLETED"


def test_time_goes_in_one_direction() -> None:
    with FlowTest(ORDERS) as test, pytest.raises(ValueError, match="one direction"):
        test.advance(-1)


def test_without_skipping_a_call_that_needs_time_says_so() -> None:
    with FlowTest(ORDERS, skip_time=False) as test:
        test.client.start_flow(order, "order", SHOES)
        with pytest.raises(
            WaitsForTime, match=r"advance\(.*2.592e\+06 s away.\n.*Approve-1\(42\) waiting: 1 message on"
        ):
            test.client.wait_for_flow("order")
        with pytest.raises(WaitsForTime):
            test.client.wait_for_flow("order", timeout=timedelta(seconds=5))
        test.advance(MONTH)
        assert test.client.wait_for_flow("order").status is FlowStatus.COMPLETED


def test_a_call_that_can_never_be_answered_says_what_the_flow_waits_for() -> None:
    with FlowTest(Registry([flow := acting(lambda context, input: go_on_and_stop())])) as test:
        test.client.start_flow(flow, "f", None)
        with pytest.raises(WaitsForever, match=r"can't happen any more.*\n.*\n?Flow 'f' has no open Step"):
            test.client.wait_for_flow("f")
        with pytest.raises(LongPollTimeoutError):
            test.client.wait_for_flow("f", timeout=timedelta(days=40))


def go_on_and_stop() -> StepDecision:
    from dex import dead_end

    return dead_end()


def test_a_flow_that_goes_on_for_ever_does_not_take_the_test_along() -> None:
    with FlowTest(Registry([cron := Cron()]), skip_at_most=timedelta(days=3)) as test:
        test.client.start_flow(cron, "cron", 0)
        with pytest.raises(WaitsForever, match="skip_at_most"):
            test.client.wait_for_flow("cron")
        assert len(test.steps_run("cron")) == 72


def test_steps_that_run_in_a_circle_without_time_passing_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dexray.testing.flow_test.BUSY", 500)
    with FlowTest(Registry([spinning := Spinning()])) as test:
        with pytest.raises(NeverAtRest, match=r"500 attempts .* Flow 'f'"):
            test.client.start_flow(spinning, "f", 0)
        with pytest.raises(NeverAtRest):
            test.advance(1)


def test_a_test_may_begin_at_any_time() -> None:
    newyear = datetime(2031, 1, 1, tzinfo=UTC)
    with FlowTest(ORDERS, begins=newyear) as test:
        assert test.now() == newyear
        test.client.start_flow(order, "order", SHOES)
        assert test.client.describe_flow("order").started_at == newyear
    with pytest.raises(ValueError, match="time zone"):
        FlowTest(ORDERS, begins=datetime(2031, 1, 1))


def test_calls_in_threads_take_the_time_they_take() -> None:
    release = threading.Event()

    async def act(context: AsyncContext, input: Any) -> str:
        timer = threading.Timer(0.05, release.set)
        timer.start()
        await asyncio.to_thread(release.wait)
        return "back"

    with FlowTest(Registry([flow := acting(act)], allow_async_handlers=True)) as test:
        test.client.start_flow(flow, "f", None)
        assert test.status("f") == "COMPLETED"


# The thread of the test -----------------------------------------------------------------------------------------------


def test_handlers_run_on_the_thread_of_the_test_so_that_breakpoints_stop_in_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stacks: list[list[str]] = []
    monkeypatch.setattr(sys, "breakpointhook", lambda: stacks.append([frame.function for frame in inspect.stack()]))

    def act(context: Context, input: Any) -> None:
        breakpoint()
        assert threading.current_thread() is threading.main_thread()

    with FlowTest(Registry([flow := acting(act)])) as test:
        test.client.start_flow(flow, "f", None)
        assert test.status("f") == "COMPLETED"
    (stack,) = stacks
    assert stack.index("act") < stack.index("execute") < stack.index("start_flow")
    assert "test_handlers_run_on_the_thread_of_the_test_so_that_breakpoints_stop_in_them" in stack


def test_another_thread_is_refused() -> None:
    with FlowTest(ORDERS) as test:
        refused: list[BaseException] = []

        def call() -> None:
            try:
                test.client.health_check()
            except RuntimeError as error:
                refused.append(error)

        thread = threading.Thread(target=call)
        thread.start()
        thread.join()
        assert "belongs to the thread that made it" in str(refused[0])


def test_a_handler_that_makes_a_blocking_call_is_told_what_to_do() -> None:
    def act(context: Context, input: Any) -> None:
        test.client.publish("f", remarks, "hello")

    with FlowTest(Registry([flow := acting(act, ONCE)])) as test:
        test.client.start_flow(flow, "f", None)
        with pytest.raises(RuntimeError, match=r"await FlowTest\.async_client"):
            test.raise_error()


def test_an_asynchronous_handler_may_use_the_client() -> None:
    async def act(context: AsyncContext, input: Any) -> str:
        await test.async_client.publish("f", remarks, "from within")
        return "done"

    with FlowTest(Registry([flow := acting(act)], allow_async_handlers=True)) as test:
        test.client.start_flow(flow, "f", None)
        assert test.client.wait_for_flow("f").single_output(str) == "done"
        test.assert_messages_left("f", remarks, "from within")


# Asynchronous tests ---------------------------------------------------------------------------------------------------


async def test_an_asynchronous_test_awaits_the_same_things() -> None:
    async with FlowTest(ORDERS) as test:
        client = test.async_client
        await client.start_flow(order, "order", SHOES)
        test.advance(timedelta(days=29))
        test.assert_timers_pending("order", timedelta(days=1))
        assert (await client.wait_for_flow("order")).single_output(str) == "nobody agreed to 42"
        kinds = [event.kind async for event in client.history("order")]
        assert kinds[0] == "FlowStarted"
        assert kinds[-1] == "FlowClosed"
        assert test.client.describe_flow("order").status is FlowStatus.COMPLETED  # the plain one works here too


async def test_time_is_not_skipped_while_another_task_of_the_test_has_something_to_say() -> None:
    async with FlowTest(ORDERS) as test:
        client = test.async_client
        await client.start_flow(order, "order", SHOES)

        async def approve() -> None:
            for _ in range(5):
                await asyncio.sleep(0)
            await client.publish("order", approval, "Ben")

        result, _ = await asyncio.gather(client.wait_for_flow("order"), approve())
        assert result.single_output(str) == "Ben agreed to 42"


async def test_a_call_waits_for_what_another_task_does_later() -> None:
    async with FlowTest(Registry([flow := acting(lambda context, input: go_on_and_stop())])) as test:
        client = test.async_client
        await client.start_flow(flow, "f", None)
        waiting = asyncio.create_task(client.wait_for_flow("f"))
        await asyncio.sleep(0.05)
        assert not waiting.done()
        await client.stop_flow("f")
        assert (await waiting).status is FlowStatus.CANCELED


async def test_in_an_asynchronous_test_too_a_call_does_not_wait_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dexray.testing.driver._REAL_PATIENCE", 0.02)
    async with FlowTest(Registry([flow := acting(lambda context, input: go_on_and_stop())])) as test:
        await test.async_client.start_flow(flow, "f", None)
        with pytest.raises(WaitsForever):
            await test.async_client.wait_for_flow("f")


async def test_a_call_that_is_cancelled_leaves_nothing_behind() -> None:
    async with FlowTest(Registry([flow := acting(lambda context, input: go_on_and_stop())])) as test:
        await test.async_client.start_flow(flow, "f", None)
        waiting = asyncio.create_task(test.async_client.wait_for_flow("f"))
        await asyncio.sleep(0.01)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert test._engine is not None
        assert not test._engine.host.flows["f"].closed_waiters
        assert asyncio.current_task() is not None


# Errors ---------------------------------------------------------------------------------------------------------------


class Unhappy(Exception):
    pass


def raises(context: Context, input: Any) -> None:
    raise Unhappy(f"attempt {context.attempt}")


def test_what_a_handler_raised_can_be_looked_at_with_its_traceback() -> None:
    with FlowTest(Registry([flow := acting(raises, RetryPolicy(maximum_attempts=3))])) as test:
        test.client.start_flow(flow, "f", None)
        assert [str(seen.error) for seen in test.errors] == ["attempt 1"]
        assert test.client.wait_for_flow("f").status is FlowStatus.FAILED
        assert [(seen.step_execution_id, seen.method, seen.attempt) for seen in test.errors] == [
            ("Act-1", "execute", number) for number in (1, 2, 3)
        ]
        assert "in raises" in "".join(traceback.format_exception(test.errors[-1].error))
        with pytest.raises(Unhappy, match="attempt 3"):
            test.raise_error("f")
        test.raise_error("another")
        test.errors.clear()
        test.raise_error()


def test_a_wrong_result_is_an_error_of_the_handler_too() -> None:
    with FlowTest(Registry([flow := Acting(Wrong(lambda *_: None, ONCE))])) as test:
        test.client.start_flow(flow, "f", None)
        with pytest.raises(Exception, match="StepDecision"):
            test.raise_error()


class Wrong(Act):
    def execute(self, context: Context, input: Any) -> StepDecision:
        return "no decision"  # type: ignore[return-value]


def test_raise_errors_raises_the_first_one_at_once() -> None:
    with FlowTest(Registry([flow := acting(raises)]), raise_errors=True) as test:
        with pytest.raises(Unhappy, match="attempt 1"):
            test.client.start_flow(flow, "f", None)
        with pytest.raises(Unhappy, match="attempt 2"):
            test.advance(1)


def test_a_test_that_fails_tells_what_handlers_raised() -> None:
    def fails() -> None:
        with FlowTest(Registry([flow := acting(raises, ONCE)])) as test:
            test.client.start_flow(flow, "f", None)
            test.assert_steps_run("f", Act)

    with pytest.raises(AssertionError) as failed:
        fails()
    assert failed.value.__notes__ == [
        "Handlers raised in this FlowTest:\n  attempt 1 of execute of Act-1 of Flow 'f' raised Unhappy: attempt 1"
    ]


@pytest.mark.parametrize("error", [KeyboardInterrupt(), pytest.fail.Exception("so says the handler")])
def test_what_is_meant_for_the_test_runner_reaches_it(error: BaseException) -> None:
    def act(context: Context, input: Any) -> None:
        raise error

    with FlowTest(Registry([flow := acting(act)])) as test:
        with pytest.raises(type(error)) as raised:
            test.client.start_flow(flow, "f", None)
        assert raised.value is error


def test_quitting_the_debugger_ends_the_test() -> None:
    import bdb

    def act(context: Context, input: Any) -> None:
        raise bdb.BdbQuit

    with FlowTest(Registry([flow := acting(act)])) as test, pytest.raises(bdb.BdbQuit):
        test.client.start_flow(flow, "f", None)


def test_trouble_of_the_engine_ends_the_test(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any, **__: Any) -> Any:
        raise ZeroDivisionError("the machine is broken")

    with FlowTest(ORDERS) as test:
        test.client.start_flow(order, "order", SHOES)
        monkeypatch.setattr("dexray.engine.host.decide", broken)
        with pytest.raises(EngineProblem, match=r"Flow 'order' stops here .*ZeroDivisionError") as problem:
            test.advance(MONTH)
        assert isinstance(problem.value.__cause__, ZeroDivisionError)


def test_an_exception_in_a_callback_of_the_engine_is_no_secret() -> None:
    with FlowTest(ORDERS) as test:
        test._driver.loop.call_later(5, lambda: 1 // 0)
        with pytest.raises(EngineProblem, match="ZeroDivisionError"):
            test.advance(10)


# Life -----------------------------------------------------------------------------------------------------------------


def test_nothing_is_left_behind() -> None:
    with FlowTest(ORDERS) as test:
        folder: Path = test._folder
        test.client.start_flow(order, "order", SHOES)
        assert folder.exists()
    assert not folder.exists()
    assert test._driver.loop.is_closed()
    test.close()
    with pytest.raises(RuntimeError, match="closed"):
        test.client.health_check()


def test_newer_code_runs_in_flows_that_are_under_way() -> None:
    class Generous(Approve):
        def get_step_type(self) -> str:
            return "Approve"

        def execute(self, context: Context, input: int) -> StepDecision:
            return go_to(Quote, SHOES)

    class NewOrder(type(order)):  # type: ignore[misc]
        def get_flow_type(self) -> str:
            return "Order"

        def get_steps(self) -> Any:
            from dex import StepList

            return StepList.start_step(Quote()).other_steps(Generous())

    with FlowTest(ORDERS) as test:
        test.client.start_flow(order, "order", SHOES)
        test.deploy(Registry([NewOrder()]))
        test.client.publish("order", approval, "Ada")
        test.assert_steps_run("order", Quote, "Approve", Ran(Quote, input=SHOES))


def test_a_flow_that_is_not_there_is_named() -> None:
    with FlowTest(ORDERS) as test, pytest.raises(FlowTestError, match="there is no Flow 'nowhere'"):
        test.steps_run("nowhere")
