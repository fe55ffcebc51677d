"""Faults on request: workers that die, commits that fail, an engine that is started anew."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Literal

import pytest

from dex import AsyncContext, Context, FlowStatus, Registry, RetryPolicy, StepDurability, StepOptions
from dexray.testing import FaultNotMet, FlowTest, FlowTestError, Ran, WaitsForTime
from tests.testing.flows import (
    HOUR,
    MONTH,
    ORDERS,
    SHOES,
    Act,
    Acting,
    Approve,
    Quote,
    acting,
    approval,
    order,
    remarks,
)

# Workers --------------------------------------------------------------------------------------------------------------


class Effects:
    """A handler with an effect outside of the Flow."""

    def __init__(self) -> None:
        self.attempts: list[int] = []

    def __call__(self, context: Context, input: Any) -> str:
        remarks.publish(context, f"attempt {context.attempt}")
        self.attempts.append(context.attempt)
        return "done"


@pytest.mark.statement("B77")
@pytest.mark.parametrize(("when", "effects"), [("after", [1, 2]), ("before", [2])])
def test_a_worker_that_dies_after_its_handler_ran_leaves_its_effects_and_no_result(
    when: Literal["before", "after"], effects: list[int]
) -> None:
    with FlowTest(Registry([flow := acting(ran := Effects())])) as test:
        test.kill_worker_on_attempt(Act, when=when)
        test.client.start_flow(flow, "f", None)
        test.assert_timers_pending("f", timedelta(seconds=1))  # the retry
        assert "WorkerCrashedError" in test.open_steps("f")[0].last_error
        assert test.client.wait_for_flow("f").single_output(str) == "done"
        assert ran.attempts == effects
        test.assert_steps_run("f", Ran(Act, attempts=2))
        test.assert_messages_left("f", remarks, "attempt 2")
        assert test.errors == []  # the handler has raised nothing


def test_attempts_are_counted_from_the_moment_it_was_asked_for() -> None:
    with FlowTest(Registry([flow := acting(ran := Effects())])) as test:
        test.client.start_flow(flow, "first", None)
        test.kill_worker_on_attempt("Act", 2)
        for name in ("second", "third", "fourth"):
            test.client.start_flow(flow, name, None)
        assert [test.status(name) for name in ("first", "second", "third", "fourth")] == [
            "COMPLETED",
            "COMPLETED",
            "RUNNING",
            "COMPLETED",
        ]
        test.kill_worker_on_attempt("Act", flow_id="sixth")
        test.client.start_flow(flow, "fifth", None)
        test.client.start_flow(flow, "sixth", None)
        test.assert_steps_run("fifth", Act)
        test.assert_steps_run("sixth")
        test.advance(HOUR)
        assert len(ran.attempts) == 8


def test_wait_for_may_die_too_and_the_retry_policy_counts_it() -> None:
    with FlowTest(ORDERS) as test:
        test.kill_worker_on_attempt(Approve, method="wait_for")
        test.client.start_flow(order, "order", SHOES)
        assert test.open_steps("order")[0].phase == "backoff"
        test.client.publish("order", approval, "Ada")
        assert test.client.wait_for_flow("order").single_output(str) == "Ada agreed to 42"
    once = RetryPolicy(maximum_attempts=1)
    with FlowTest(Registry([flow := acting(Effects(), once)])) as test:
        test.kill_worker_on_attempt(Act)
        test.client.start_flow(flow, "f", None)
        result = test.client.wait_for_flow("f")
        assert result.status is FlowStatus.FAILED
        assert "the worker process was killed after the handler ran" in (result.error_message or "")


def test_an_asynchronous_handler_dies_as_well() -> None:
    ran: list[int] = []

    async def act(context: AsyncContext, input: Any) -> None:
        await asyncio.sleep(1)
        ran.append(context.attempt)

    with FlowTest(Registry([flow := acting(act)], allow_async_handlers=True)) as test:
        test.kill_worker_on_attempt("AsyncAct")
        test.client.start_flow(flow, "f", None)
        assert test.client.wait_for_flow("f").status is FlowStatus.COMPLETED
        assert ran == [1, 2]


def test_a_fault_that_did_not_happen_fails_the_test() -> None:
    test = FlowTest(ORDERS)
    test.kill_worker_on_attempt(Quote, 2)
    test.client.start_flow(order, "order", SHOES)
    with pytest.raises(FaultNotMet, match=r"kill_worker_on_attempt\('Quote', 2, .* there were 1 such attempts"):
        test.close()
    test = FlowTest(ORDERS)
    test.fail_commit(nth=500)
    with pytest.raises(FaultNotMet, match=r"fail_commit\('before', nth=500\)"):
        test.close()


def test_of_a_test_that_failed_it_is_no_news() -> None:
    def fails() -> None:
        with FlowTest(ORDERS) as test:
            test.fail_commit(nth=500)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fails()


def test_faults_that_make_no_sense_are_refused() -> None:
    with FlowTest(ORDERS) as test:
        with pytest.raises(ValueError, match="there are Approve, Quote"):
            test.kill_worker_on_attempt("Qoute")
        with pytest.raises(ValueError, match="counted from 1"):
            test.kill_worker_on_attempt(Quote, 0)
        with pytest.raises(ValueError, match="'before' or 'after'"):
            test.kill_worker_on_attempt(Quote, when="during")  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="'before' or 'unknown'"):
            test.fail_commit("never")  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="counted from 1"):
            test.fail_commit(nth=0)


# Commits --------------------------------------------------------------------------------------------------------------


@pytest.mark.statement("D14")
@pytest.mark.parametrize("outcome", ["before", "unknown"])
@pytest.mark.parametrize("nth", range(1, 6))
def test_whichever_commit_fails_and_however_the_flow_does_the_same(
    outcome: Literal["before", "unknown"], nth: int
) -> None:
    with FlowTest(ORDERS) as test:
        test.fail_commit(outcome, nth)
        test.client.start_flow(order, "order", SHOES)
        test.advance(1)
        ids = test.client.publish("order", approval, "Ada")
        test.advance(1)
        assert len(ids) == 1
        assert test.client.wait_for_flow("order").single_output(str) == "Ada agreed to 42"
        test.assert_steps_run("order", Ran(Quote, attempts=1), Ran(Approve, attempts=1))
        assert [event.number for event in test.client.history("order")] == list(
            range(1, len(list(test.client.history("order"))) + 1)
        )


@pytest.mark.statement("D14")
def test_flows_pause_while_the_database_is_away_and_go_on_when_it_is_back() -> None:
    with FlowTest(ORDERS) as test:
        test.client.start_flow(order, "order", SHOES)
        test.fail_commit(lasts=timedelta(seconds=25))
        began = test.now()
        test.client.publish("order", approval, "Ada")  # the client repeats it until it is taken
        assert timedelta(seconds=25) <= test.now() - began < timedelta(seconds=30)
        assert test.client.wait_for_flow("order").single_output(str) == "Ada agreed to 42"
        test.assert_no_messages_left("order")


def test_a_failed_commit_needs_time_to_be_tried_again() -> None:
    with FlowTest(ORDERS, skip_time=False) as test:
        test.fail_commit()
        with pytest.raises(WaitsForTime):
            test.client.start_flow(order, "order", SHOES)
        test.advance(1)
        test.assert_open_steps("order", Approve)  # its caller has left, the start has not


def test_a_commit_of_unknown_outcome_is_there_before_anybody_hears_of_it() -> None:
    with FlowTest(ORDERS, skip_time=False) as test:
        test.fail_commit("before")
        with pytest.raises(WaitsForTime):
            test.client.start_flow(order, "not written", SHOES)
        with pytest.raises(FlowTestError, match="there is no Flow"):
            test.status("not written")
        test.advance(1)
        test.fail_commit("unknown")
        with pytest.raises(WaitsForTime):
            test.client.start_flow(order, "written", SHOES)
        assert test.status("written") == "RUNNING"
        test.advance(1)
        test.assert_steps_run("written", Ran(Quote, attempts=1))


def test_commits_fail_one_at_a_time() -> None:
    with FlowTest(ORDERS) as test:
        test.fail_commit()
        with pytest.raises(FlowTestError, match="one at a time"):
            test.fail_commit()
        test.client.start_flow(order, "order", SHOES)
        test.fail_commit()
        test.client.publish("order", approval, "Ada")


# The engine -----------------------------------------------------------------------------------------------------------


def test_after_a_restart_the_flow_goes_on_where_its_last_commit_left_it() -> None:
    with FlowTest(ORDERS) as test:
        client = test.client
        client.start_flow(order, "order", SHOES)
        test.restart()
        test.assert_open_steps("order", Approve)
        client.publish("order", approval, "Ada")
        assert client.wait_for_flow("order").single_output(str) == "Ada agreed to 42"
        test.assert_steps_run("order", Ran(Quote, attempts=1), Approve)


def test_an_attempt_that_was_under_way_is_interrupted_by_a_restart() -> None:
    began: list[int] = []

    async def act(context: AsyncContext, input: Any) -> None:
        began.append(context.attempt)
        await asyncio.sleep(30)

    with FlowTest(Registry([flow := acting(act)], allow_async_handlers=True)) as test:
        test.client.start_flow(flow, "f", None)
        test.restart()
        assert "INTERRUPTED" in test.open_steps("f")[0].last_error
        assert test.client.wait_for_flow("f").status is FlowStatus.COMPLETED
        assert began == [1, 2]


def test_a_restart_may_bring_other_code() -> None:
    def deployed(act: Callable[[Context, Any], Any]) -> tuple[Acting, Registry]:
        flow = acting(act)
        return flow, Registry([flow])

    def breaks(context: Context, input: Any) -> None:
        raise ZeroDivisionError

    flow, bad = deployed(breaks)
    _, good = deployed(lambda context, input: "good")
    with FlowTest(bad) as test:
        test.client.start_flow(flow, "f", None)
        test.restart(registry=good)
        assert test.client.wait_for_flow("f").single_output(str) == "good"


@pytest.mark.parametrize("looks", [True, False])
def test_what_asynchronous_steps_did_last_is_lost_by_a_restart_and_done_again(looks: bool) -> None:
    ran: list[int] = []

    class Fast(Act):
        def get_step_type(self) -> str:
            return "Act"

        def get_step_options(self) -> StepOptions:
            return StepOptions(execute_durability=StepDurability.ASYNC)

    with FlowTest(Registry([flow := Acting(Fast(lambda context, input: ran.append(context.attempt)))])) as test:
        test.client.start_flow(flow, "f", None)
        assert ran == [1]
        if looks:  # who looks sees it committed
            test.assert_steps_run("f", "Act")
        test.restart()
        test.advance(MONTH)
        assert ran == ([1] if looks else [1, 2])
        assert test.status("f") == "COMPLETED"


async def test_a_call_that_waits_survives_a_restart() -> None:
    async with FlowTest(ORDERS) as test:
        client = test.async_client
        await client.start_flow(order, "order", SHOES)
        waiting = asyncio.create_task(client.wait_for_flow("order"))
        for _ in range(3):
            await asyncio.sleep(0)
        test.restart(down=5)
        await client.publish("order", approval, "Ada")
        assert (await waiting).single_output(str) == "Ada agreed to 42"
