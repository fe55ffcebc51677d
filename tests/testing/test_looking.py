"""What a test sees of a Flow, and what it is told when it is not what was expected."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from dex import (
    Attribute,
    AttributeMap,
    Channel,
    ChannelMap,
    Context,
    Flow,
    PersistenceSchema,
    Registry,
    RetryPolicy,
    StartFlowOptions,
    Step,
    StepDecision,
    StepList,
    StepMovement,
    StepOptions,
    Timer,
    TimeTravelOptions,
    TimeTravelType,
    Wait,
    dead_end,
    force_complete,
    go_to_many,
    graceful_complete,
)
from dexray.testing import ANYTHING, FlowTest, Ran
from tests.testing.flows import HOUR, MONTH, ORDERS, SHOES, Act, Approve, Item, Quote, acting, approval, order, price

DAY = timedelta(days=1)

box = ChannelMap("box", Item)
notes = Channel("notes", str)
total = Attribute("total", int)
stock = AttributeMap("stock", Item)


class Fan(Step[int]):
    def execute(self, context: Context, input: int) -> StepDecision:
        total.set(context, input)
        stock.set(context, "shoes", Item("shoes", input))
        box.publish(context, "red", Item("hat", 1))
        box.publish(context, "red", Item("hat", 2))
        notes.publish(context, "x" * 20_000)
        return go_to_many(StepMovement.of(Nap, 1), StepMovement.of(Nap, 2), StepMovement.of(Fails, "out of stock"))


class Nap(Step[int]):
    def wait_for(self, context: Context, input: int) -> Wait:
        return Wait.any_of(
            Timer.by_duration(input * HOUR, condition_id="short"), Timer.by_duration(DAY, condition_id="long")
        )

    def execute(self, context: Context, input: int) -> StepDecision:
        if input == 1:
            return graceful_complete({"slept": input})
        return force_complete([input]).with_canceling_steps(Fails)


class Fails(Step[str]):
    def get_step_options(self) -> StepOptions:
        return StepOptions(execute_retry=RetryPolicy(initial_interval=10 * HOUR))

    def execute(self, context: Context, input: str) -> StepDecision:
        raise LookupError(input)


class Warehouse(Flow[int]):
    def get_steps(self) -> StepList[int]:
        return StepList.start_step(Fan()).other_steps(Nap(), Fails())

    def get_persistence_schema(self) -> PersistenceSchema:
        return PersistenceSchema.of(box, notes, total, stock)


warehouse = Warehouse()


def test_values_come_with_their_types() -> None:
    with FlowTest(Registry([warehouse])) as test:
        test.client.start_flow(warehouse, "w", 7)
        assert test.messages_left("w", box, "red") == [Item("hat", 1), Item("hat", 2)]
        assert test.messages_left("w", notes) == ["x" * 20_000]
        assert test.channels_left("w") == {"box/red": 2, "notes": 1}
        assert test.attribute("w", total) == 7
        assert test.attribute("w", stock, "shoes") == Item("shoes", 7)
        assert test.attribute("w", stock, "hats") is None
        assert test.attributes("w") == {"total": 7, "stock/shoes": Item("shoes", 7)}
        test.assert_attributes("w", {"total": 7})
        (fan,) = test.steps_run("w")
        assert (fan.step_type, fan.step_execution_id, fan.input, fan.decision, fan.output) == (
            "Fan",
            "Fan-1",
            7,
            "next",
            None,
        )
        assert fan.ended_at == test.now()


def test_open_steps_tell_what_they_wait_for() -> None:
    with FlowTest(Registry([warehouse])) as test:
        test.client.start_flow(warehouse, "w", 7)
        test.assert_open_steps("w", Nap, Nap, Fails)
        test.assert_open_steps("w", "Nap-1", "Nap-2", "Fails-1")
        one, two, fails = test.open_steps("w")
        assert [one.input, two.input, fails.input] == [1, 2, "out of stock"]
        assert one.phase == "waiting"
        assert one.waits_for.startswith("Timer until")
        assert (fails.phase, fails.attempt) == ("backoff", 2)
        assert fails.last_error == "builtins.LookupError: out of stock"


def test_timers_come_in_the_order_in_which_they_are_due() -> None:
    with FlowTest(Registry([warehouse])) as test:
        test.client.start_flow(warehouse, "w", 7, StartFlowOptions(timeout=5 * HOUR))
        found = [
            (timer.kind, timer.step_execution_id, timer.condition_id, timer.left) for timer in test.timers_pending("w")
        ]
        assert found == [
            ("timer", "Nap-1", "short", HOUR),
            ("timer", "Nap-2", "short", 2 * HOUR),
            ("timeout", "", "", 5 * HOUR),
            ("retry", "Fails-1", "", 10 * HOUR),
            ("timer", "Nap-1", "long", DAY),
            ("timer", "Nap-2", "long", DAY),
        ]
        test.assert_timers_pending("w", HOUR, 2 * HOUR, 5 * HOUR, 10 * HOUR, DAY, DAY)
        test.client.wait_for_flow("w")
        assert test.timers_pending("w") == []


def test_of_a_closed_flow_everything_is_there_as_well() -> None:
    with FlowTest(Registry([warehouse])) as test:
        test.client.start_flow(warehouse, "w", 7)
        test.client.wait_for_flow("w")
        test.assert_steps_run(
            "w",
            Ran(Fan, input=7),
            Ran("Nap-1", output={"slept": 1}),
            Ran(Nap, input=2, output=[2]),
            Ran(Fails, outcome="cancelled"),
        )
        test.assert_messages_left("w", notes, "x" * 20_000)
        assert test.channels_left("w") == {"box/red": 2, "notes": 1}
        assert test.attribute("w", total) == 7


def test_a_step_that_failed_for_good_says_how() -> None:
    def act(context: Context, input: Any) -> None:
        raise LookupError(f"no {input}, {context.attempt}")

    twice = RetryPolicy(maximum_attempts=2)
    with FlowTest(Registry([flow := acting(act, twice)])) as test:
        test.client.start_flow(flow, "f", "luck")
        test.client.wait_for_flow("f")
        (run,) = test.steps_run("f")
        assert (run.outcome, run.attempts) == ("failed", 2)
        assert run.errors == ("builtins.LookupError: no luck, 1", "builtins.LookupError: no luck, 2")
        test.assert_steps_run("f", Ran(Act, outcome="failed", attempts=2))


def test_after_time_travel_it_is_the_new_run_that_is_seen() -> None:
    with FlowTest(ORDERS) as test:
        test.client.start_flow(order, "order", SHOES)
        test.client.publish("order", approval, "Ada")
        test.client.wait_for_flow("order")
        test.client.time_travel(
            "order",
            TimeTravelOptions(type=TimeTravelType.STEP_TYPE, step_type="Approve", skip_writes_reapply=True),
        )
        test.assert_open_steps("order", Approve)
        test.client.publish("order", approval, "Ben")
        test.assert_steps_run("order", Ran(Approve, input=42, output="Ben agreed to 42"))


@pytest.mark.parametrize(
    ("expected", "ok"),
    [
        (Ran(Quote), True),
        (Ran("Quote-1", input=SHOES), True),
        (Ran(Quote, input=ANYTHING, output=None, attempts=1), True),
        (Ran(Quote, input=Item("shoes", 13)), False),
        (Ran("Quote-2"), False),
        (Ran(Quote, attempts=2), False),
        (Ran(Quote, outcome="failed"), False),
        (Ran(Quote, output="something"), False),
        (Ran(Approve), False),
    ],
)
def test_ran_compares_what_it_was_given(expected: Ran, ok: bool) -> None:
    with FlowTest(ORDERS) as test:
        test.client.start_flow(order, "order", SHOES)
        (run,) = test.steps_run("order")
        assert expected.matches(run) is ok


def test_true_is_not_one() -> None:
    with FlowTest(Registry([flow := acting(lambda context, input: 1)])) as test:
        test.client.start_flow(flow, "f", True)
        test.assert_steps_run("f", Ran(Act, input=True, output=1))
        with pytest.raises(AssertionError):
            test.assert_steps_run("f", Ran(Act, input=1))


# What is said ---------------------------------------------------------------------------------------------------------


def complaint(test: FlowTest, assertion: str, *expected: Any) -> str:
    with pytest.raises(AssertionError) as failed:
        getattr(test, assertion)("order", *expected)
    return str(failed.value)


def test_a_failed_assertion_tells_the_whole_story() -> None:
    with FlowTest(ORDERS) as test:
        test.client.start_flow(order, "order", SHOES)
        assert complaint(test, "assert_steps_run", Ran(Quote, input=Item("boots", 1)), Approve) == (
            "Steps run of Flow 'order' are not as expected\n"
            "  expected:\n"
            "    Ran('Quote', input=Item(name='boots', count=1))\n"
            "    Ran('Approve')\n"
            "  got:\n"
            "  > Quote-1(Item(name='shoes', count=14)) next\n"
            "Flow 'order' of type Order is RUNNING at 2023-11-14 22:13:20\n"
            "  Steps run:\n"
            "    Quote-1(Item(name='shoes', count=14)) next\n"
            "  open Steps:\n"
            f"    Approve-1(42) waiting: {test.open_steps('order')[0].waits_for}\n"
            "  timers pending:\n"
            "    timer 'patience' of Approve-1 in 30 days, 0:00:00\n"
            "  Attributes:\n"
            "    price = 42"
        )


def test_each_assertion_names_what_differs() -> None:
    with FlowTest(ORDERS) as test:
        test.client.start_flow(order, "order", SHOES)
        assert complaint(test, "assert_open_steps", Quote).startswith("open Steps of Flow 'order' are not as expected")
        assert "  expected:\n    1 day, 0:00:00\n  got:\n    timer 'patience'" in complaint(
            test, "assert_timers_pending", DAY
        )
        assert "timers pending" in complaint(test, "assert_timers_pending", MONTH, MONTH)
        assert "  expected:\n    price = 43\n  got:\n    price = 42\n" in complaint(
            test, "assert_attributes", {"price": 43}
        )
        assert "expected:\n    colour = 'red'" in complaint(test, "assert_attributes", {"colour": "red"})
        assert "  expected:\n    Ada\n  got:\n    (none)\n" in complaint(test, "assert_messages_left", approval, "Ada")
        test.client.stop_flow("order")
        assert "is CANCELED" in complaint(test, "assert_steps_run", Approve)


def test_messages_that_are_left_are_counted_by_channel() -> None:
    from tests.testing.flows import remarks

    with FlowTest(ORDERS) as test:
        test.client.start_flow(order, "order", SHOES)
        test.assert_no_messages_left("order")
        test.client.publish("order", remarks, "hm", "hm, hm")
        assert "got:\n    remarks: 2\n" in complaint(test, "assert_no_messages_left")
        test.assert_messages_left("order", remarks, "hm", "hm, hm")
        assert test.attribute("order", price) == 42


def test_a_flow_that_closes_with_an_error_says_so_in_its_story() -> None:
    def act(context: Context, input: Any) -> StepDecision:
        from dex import force_fail

        return force_fail("no more shoes")

    with FlowTest(Registry([flow := acting(act)])) as test:
        test.client.start_flow(flow, "f", None)
        assert test.story("f").splitlines()[0] == (
            "Flow 'f' of type Acting is FAILED (STEP_DECISION_FAILED: no more shoes) at 2023-11-14 22:13:20"
        )


def test_dead_ends_are_steps_that_ran() -> None:
    with FlowTest(Registry([flow := acting(lambda context, input: dead_end())])) as test:
        test.client.start_flow(flow, "f", None)
        assert str(test.steps_run("f")[0]) == "Act-1(None) dead_end"
