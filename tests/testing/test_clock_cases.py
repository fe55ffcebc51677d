"""Clocks that are set, machines that were off, and a summer that ends: durations are durations."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from dex import Context, FlowStatus, Registry, RetryPolicy, StartFlowOptions
from dexray.testing import FlowTest
from tests.testing.flows import HOUR, ORDERS, SHOES, acting, approval, order, sleeper

SLEEPERS = Registry([sleeper])
MINUTE = timedelta(minutes=1)
DAY = timedelta(days=1)


def test_a_timer_that_fell_due_while_everything_was_down_fires_on_return() -> None:
    with FlowTest(SLEEPERS) as test:
        test.client.start_flow(sleeper, "f", HOUR)
        test.restart(down=DAY)
        assert test.status("f") == "COMPLETED"
        assert test.client.describe("f").closed_at == pytest.approx(test.now().timestamp())


def test_so_do_retries_and_the_timeout_of_a_flow() -> None:
    def act(context: Context, input: Any) -> int:
        if context.attempt == 1:
            raise ZeroDivisionError
        return context.attempt

    hourly = RetryPolicy(initial_interval=HOUR)
    with FlowTest(Registry([order, flow := acting(act, hourly)])) as test:
        test.client.start_flow(flow, "retried", None)
        test.client.start_flow(order, "timed out", SHOES, StartFlowOptions(timeout=HOUR))
        test.restart(down=2 * HOUR)
        assert test.client.wait_for_flow("retried").single_output(int) == 2
        assert test.client.wait_for_flow("timed out").status is FlowStatus.FAILED
        assert test.now().timestamp() == pytest.approx(test.client.describe("retried").closed_at)


@pytest.mark.parametrize("restarts", [1, 5])
def test_a_restart_does_not_arm_the_full_delay_anew(restarts: int) -> None:
    with FlowTest(SLEEPERS) as test:
        test.client.start_flow(sleeper, "f", DAY)
        for _ in range(restarts):
            test.advance(HOUR)
            test.restart(down=HOUR)
        test.assert_timers_pending("f", DAY - 2 * restarts * HOUR)
        test.advance(DAY - 2 * restarts * HOUR - MINUTE)
        assert test.status("f") == "RUNNING"
        test.advance(MINUTE)  # nobody has asked for the Flow since the restart
        assert test.status("f") == "COMPLETED"


@pytest.mark.parametrize(("step", "rate"), [(HOUR, 1.01), (-HOUR, 0.99)])
def test_a_wall_clock_that_is_set_makes_no_timer_early_or_late(step: timedelta, rate: float) -> None:
    """But by 1 %, while the engine's time goes to meet the wall clock."""
    with FlowTest(SLEEPERS) as test:
        test.client.start_flow(sleeper, "f", DAY)
        test.advance(HOUR)
        test.step_wall_clock(step)
        test.assert_timers_pending("f", 23 * HOUR)
        test.advance(23 * HOUR / rate - MINUTE)
        assert test.status("f") == "RUNNING"
        test.advance(2 * MINUTE)
        assert test.status("f") == "COMPLETED"


@pytest.mark.parametrize("step", [HOUR, -HOUR])
def test_the_engine_meets_the_wall_clock_in_some_days(step: timedelta) -> None:
    with FlowTest(SLEEPERS) as test:
        began = test.now()
        test.step_wall_clock(step)
        assert abs(test.now() - began) < timedelta(milliseconds=1)
        test.advance(DAY)
        assert abs(test.now() - began - DAY) == pytest.approx(0.01 * DAY, abs=timedelta(seconds=1))
        test.advance(4 * DAY)
        assert test.now() == began + 5 * DAY + step


@pytest.mark.parametrize("step", [HOUR, -HOUR])
def test_an_engine_that_begins_anew_takes_the_wall_clock_as_it_is(step: timedelta) -> None:
    """What was promised in the old time is off by as much, once; what is promised from now on is not."""
    with FlowTest(Registry([sleeper, order])) as test:
        test.client.start_flow(sleeper, "old", DAY)
        test.step_wall_clock(step)
        test.restart()
        test.assert_timers_pending("old", DAY - step)
        test.client.start_flow(sleeper, "new", HOUR)
        test.assert_timers_pending("new", HOUR)
        test.advance(HOUR)
        assert test.status("new") == "COMPLETED"
        assert test.status("old") == "RUNNING"


@pytest.mark.parametrize("step", [HOUR, -HOUR])
def test_attempts_and_calls_do_not_time_out_by_a_clock_that_is_set(step: timedelta) -> None:
    import asyncio

    from dex import AsyncContext

    async def act(context: AsyncContext, input: Any) -> int:
        await asyncio.sleep(50)
        return context.attempt

    with FlowTest(Registry([flow := acting(act)], allow_async_handlers=True)) as test:
        test.client.start_flow(flow, "f", None)
        test.step_wall_clock(step)
        assert test.client.wait_for_flow("f", timeout=MINUTE).single_output(int) == 1
        test.assert_steps_run("f", "AsyncAct")


def test_messages_and_records_stay_in_order_when_the_wall_clock_goes_back() -> None:
    with FlowTest(ORDERS) as test:
        test.client.start_flow(order, "order", SHOES)
        test.step_wall_clock(-HOUR)
        test.client.publish("order", approval, "Ada")
        times = [event.at for event in test.client.history("order")]
        assert times == sorted(times)


@pytest.fixture
def berlin(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    if "TZ" in os.environ:
        monkeypatch.delenv("TZ")
    monkeypatch.setenv("TZ", "CET-1CEST,M3.5.0,M10.5.0/3")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.parametrize(
    ("day", "offsets"),
    [(datetime(2026, 3, 28, 22, tzinfo=UTC), (3600, 7200)), (datetime(2026, 10, 24, 22, tzinfo=UTC), (7200, 3600))],
    ids=["begins", "ends"],
)
@pytest.mark.usefixtures("berlin")
def test_a_day_has_24_hours_when_daylight_saving_begins_or_ends(day: datetime, offsets: tuple[int, int]) -> None:
    seen: list[datetime] = []

    def act(context: Context, input: Any) -> None:
        seen.append(context.first_attempt_at)

    with FlowTest(Registry([sleeper, flow := acting(act)]), begins=day) as test:
        test.client.start_flow(sleeper, "f", DAY)
        test.client.wait_for_flow("f")
        assert test.now() - day == DAY
        test.client.start_flow(flow, "g", None)
        assert seen == [day + DAY]
        assert seen[0].utcoffset() == timedelta(0)
        local = [time.localtime(at.timestamp()).tm_gmtoff for at in (day, day + DAY)]
        assert tuple(local) == offsets  # the case was met


def test_a_month_is_a_month_however_often_the_clock_is_set() -> None:
    with FlowTest(ORDERS) as test:
        test.client.start_flow(order, "order", SHOES)
        for number in range(20):
            test.advance(DAY)
            test.step_wall_clock(HOUR if number % 2 else -HOUR)
        (timer,) = test.timers_pending("order")
        assert abs(timer.left - 10 * DAY) < 0.01 * 20 * DAY
