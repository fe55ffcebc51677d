"""Where Steps lead: every movement is found, and what is wrong with it is reported when it is certain."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from dex import (
    Channel,
    Context,
    Flow,
    RPCResult,
    Step,
    StepDecision,
    StepList,
    StepMovement,
    StepOptions,
    SubFlow,
    Timer,
    Wait,
    dead_end,
    force_complete,
    force_complete_if_channels_empty,
    force_fail,
    go_to,
    go_to_many,
    graceful_complete,
    rpc,
)
from dexray.visualize import Severity
from tests.visualize.kit import Does, Made, Waits, errors, findings, step_data

queue = Channel("queue", int)
HAS = (queue,)


class A(Does): ...


class B(Does): ...


class C(Does): ...


class Elsewhere(Does):
    """A Step of no Flow here."""


A_INSTANCE = A()
ROUTES: dict[str, type[Does]] = {"a": A, "b": B, "c": C}
DEBUG = False
OTHERS = [StepMovement.of(B, None)]
TO_A = StepMovement.of(A, None)
DONE = go_to_many(StepMovement.of(A, None), StepMovement.of(B, None)).with_canceling_steps(C)


class One(Does):
    def execute(self, context: Context, input: None) -> StepDecision:
        return go_to(A, None)


class ByInstance(Does):
    def execute(self, context: Context, input: None) -> StepDecision:
        return go_to(A_INSTANCE, None)


class Choice(Does):
    def execute(self, context: Context, input: None) -> StepDecision:
        return go_to(A if context.attempt > 1 else B, None)


class Many(Does):
    def execute(self, context: Context, input: None) -> StepDecision:
        return go_to_many(StepMovement.of(A, None), StepMovement(B, None), *[StepMovement.of(C, None) for _ in "12"])


class Appends(Does):
    def execute(self, context: Context, input: None) -> StepDecision:
        movements = [StepMovement.of(A, None)]
        movements.append(StepMovement.of(B, None))
        movements += [StepMovement.of(C, None)]
        return go_to_many(*movements)


class Yields(Does):
    def execute(self, context: Context, input: None) -> StepDecision:
        return go_to_many(*self.movements())

    def movements(self) -> Iterator[StepMovement]:
        yield StepMovement.of(A, None)
        yield from (StepMovement.of(step, None) for step in (B, C))


class Table(Does):
    def execute(self, context: Context, input: None) -> StepDecision:
        step = ROUTES[context.flow_id]
        return go_to(step, None)


class TableWithDefault(Does):
    def execute(self, context: Context, input: None) -> StepDecision:
        routes = {"a": A, "b": B}
        return go_to(routes.get(context.flow_id, C), None)


class ReadyMade(Does):
    def execute(self, context: Context, input: None) -> StepDecision:
        return DONE


class ReadyMadeMovement(Does):
    def execute(self, context: Context, input: None) -> StepDecision:
        return go_to_many(TO_A, StepMovement.of(B, None))


class ByFlag(Does):
    """The helper goes the way that its caller chose, and no other."""

    def execute(self, context: Context, input: None) -> StepDecision:
        return self.ends(is_last=False)

    def ends(self, is_last: bool) -> StepDecision:
        return go_to(C, None) if is_last else self.goes(is_last)

    def goes(self, is_last: bool) -> StepDecision:
        if is_last:
            return go_to(B, None)
        return go_to(A, None)


class ByGlobalFlag(Does):
    """The flag may be another one where the Flow is deployed."""

    def execute(self, context: Context, input: None) -> StepDecision:
        if DEBUG:
            return go_to(B, None)
        return go_to(A, None)


class Fallback(Does):
    def execute(self, context: Context, input: None) -> StepDecision:
        return force_complete_if_channels_empty(None, StepMovement.of(A, None), queue)


class Helped(Does):
    def execute(self, context: Context, input: None) -> StepDecision:
        return self.ends(context) if context.attempt == 1 else replace(self.ends(context), reason="")

    def ends(self, context: Context) -> StepDecision:
        if context.attempt == 2:
            decision = go_to(A, None)
        else:
            decision = go_to(B, None)
        return decision.with_canceling_sibling_steps(C)


@pytest.mark.parametrize(
    ("step", "goes_to"),
    [
        (One, "A"),
        (ByInstance, "A"),
        (Choice, "AB"),
        (Many, "ABC"),
        (Appends, "ABC"),
        (Yields, "ABC"),
        (Table, "ABC"),
        (TableWithDefault, "ABC"),
        (ReadyMade, "AB"),
        (ReadyMadeMovement, "AB"),
        (ByFlag, "A"),
        (ByGlobalFlag, "AB"),
        (Fallback, "A"),
        (Helped, "AB"),
    ],
)
def test_every_movement_is_found_and_nothing_besides(step: type[Does], goes_to: str) -> None:
    flow = Made(step(), A(), B(), C(), has=HAS)
    data = step_data(flow, step.__name__)
    assert (sorted(data["goes_to"]), data["complete"]) == (list(goes_to), True)
    assert [found.step for found in findings(flow, "unreachable-step")] == [s for s in "ABC" if s not in goes_to]


class Unseen(Does):
    def execute(self, context: Context, input: None) -> StepDecision:
        decision: StepDecision = random.choice([dead_end()])
        return decision


class UnseenTarget(Does):
    def execute(self, context: Context, input: None) -> StepDecision:
        return go_to(random.choice([A]), None)


class UnseenMovement(Does):
    def execute(self, context: Context, input: None) -> StepDecision:
        movements: list[StepMovement] = []
        random.shuffle(movements)
        return go_to_many(StepMovement.of(A, None), *movements)


class UnseenAppended(Does):
    def execute(self, context: Context, input: None) -> StepDecision:
        movements = [StepMovement.of(A, None)]
        movements.append(random.choice(OTHERS))
        return go_to_many(*movements)


class UnseenAdded(Does):
    def execute(self, context: Context, input: None) -> StepDecision:
        movements = [StepMovement.of(A, None)]
        movements += random.sample(OTHERS, 1)
        return go_to_many(*movements)


class ByHand(Does):
    def execute(self, context: Context, input: None) -> StepDecision:
        return StepDecision(DONE.kind, DONE.movements)


@pytest.mark.parametrize("step", [Unseen, UnseenTarget, UnseenMovement, UnseenAppended, UnseenAdded, ByHand])
def test_a_flow_that_may_lead_anywhere_has_no_unreachable_steps(step: type[Does]) -> None:
    flow = Made(step(), A(), B())
    assert findings(flow) == []
    assert step_data(flow, step.__name__)["complete"] is False


# Unregistered ---------------------------------------------------------------------------------------------------------


class GoesElsewhere(Does):
    def execute(self, context: Context, input: None) -> StepDecision:
        return go_to(Elsewhere, None)


class SometimesElsewhere(Does):
    def execute(self, context: Context, input: None) -> StepDecision:
        return go_to_many(StepMovement.of(Elsewhere if context.attempt > 1 else A, None))


class FallsElsewhere(Does):
    def execute(self, context: Context, input: None) -> StepDecision:
        return force_complete_if_channels_empty(1, StepMovement.of(Elsewhere, None), queue)


class CancelsElsewhere(Does):
    def execute(self, context: Context, input: None) -> StepDecision:
        return dead_end().with_canceling_steps(A, Elsewhere)


class RoutesElsewhere(Does):
    def execute(self, context: Context, input: None) -> StepDecision:
        options = StepOptions().on_execute_failure_proceed_to(Elsewhere)
        return go_to_many(StepMovement.of(A, None, options))


@pytest.mark.parametrize("step", [GoesElsewhere, SometimesElsewhere, FallsElsewhere, CancelsElsewhere, RoutesElsewhere])
def test_a_step_that_is_not_registered_is_reported_where_it_is_named(step: type[Does]) -> None:
    (found,) = errors(Made(step(), A(), has=HAS))
    assert (found.code, found.step, found.definition) == ("unregistered-step", step.__name__, "Elsewhere")
    assert "which is not registered: add it to get_steps(). Registered:" in found.message


class TableOfAll(Does):
    """The table is that of several Flows: which of it is met here can't be told."""

    def execute(self, context: Context, input: None) -> StepDecision:
        steps = {**ROUTES, "x": Elsewhere}
        return go_to(steps[context.flow_id], None)


def test_a_table_with_steps_of_other_flows_is_silent() -> None:
    assert errors(Made(TableOfAll(), A(), B(), C())) == []


def test_a_class_that_was_made_anew_is_the_step_of_its_name() -> None:
    def again() -> type[Does]:
        class A(Does): ...

        return A

    anew = again()

    class Goes(Does):
        def execute(self, context: Context, input: None) -> StepDecision:
            return go_to(anew, None)

    assert findings(Made(Goes(), A())) == []


# Unreachable ----------------------------------------------------------------------------------------------------------


class Loops(Does):
    def execute(self, context: Context, input: None) -> StepDecision:
        return go_to(Loops, None)


def test_a_step_that_only_leads_to_itself_is_unreachable() -> None:
    (found,) = findings(Made(One(), A(), Loops()))
    assert (found.severity, found.code, found.step) == (Severity.WARNING, "unreachable-step", "Loops")


class Fails(Does):
    options = StepOptions().on_execute_failure_proceed_to(
        A, StepOptions().on_execute_failure_proceed_to(B, StepOptions())
    )


class GivesRoute(Does):
    def execute(self, context: Context, input: None) -> StepDecision:
        return go_to_many(StepMovement.of(A, None, options=StepOptions().on_execute_failure_proceed_to(B)))


@pytest.mark.parametrize("step", [Fails, GivesRoute])
def test_failure_routes_lead_somewhere(step: type[Does]) -> None:
    assert [found.step for found in findings(Made(step(), A(), B(), C()))] == ["C"]


class Entity(Flow[Any]):
    def get_steps(self) -> StepList[Any]:
        return StepList.without_start_step(A(), B())

    @rpc
    def begin(self, context: Context) -> RPCResult[int]:
        return RPCResult(1, next_steps=(StepMovement.of(A, None),), canceling_steps=(B,))

    @rpc
    def note(self, context: Context) -> None:
        context.record_event("noted", 1)


def test_rpcs_lead_to_steps() -> None:
    (found,) = findings(Entity())
    assert (found.code, found.step) == ("unreachable-step", "B")


class Handled(Made):
    def handle_timeout(self, context: Context) -> StepDecision:
        return go_to(A, None)


class TakesText(Step[str]):
    def execute(self, context: Context, input: str) -> StepDecision:
        return dead_end()


def test_a_timeout_handler_leads_to_steps_and_its_start_may_give_it_a_failure_route() -> None:
    assert [found.step for found in findings(Handled(Does(), A(), B(), TakesText()))] == ["TakesText"]


# Results --------------------------------------------------------------------------------------------------------------


class Early(Waits):
    def wait_for(self, context: Context, input: None) -> Wait:
        queue.results(context)
        SubFlow.get_condition_results(context)
        SubFlow.get_flow_id(context, 1)
        context.has_timer_fired()
        with suppress(ValueError):
            context.has_timer_fired(0)
        return Wait.any_of(queue.for_one(), Timer.by_duration(timedelta(hours=2 * 12)))

    def execute(self, context: Context, input: None) -> StepDecision:
        if context.has_timer_fired():
            return force_fail("late")
        return force_complete([*queue.results(context), SubFlow.get_flow_id(context)])


class Asked(Made):
    @rpc
    def ask(self, context: Context) -> RPCResult[int]:
        return RPCResult(len(queue.results(context)))

    def handle_timeout(self, context: Context) -> StepDecision:
        return graceful_complete(context.has_timer_fired())


def test_the_results_of_a_wait_are_for_execute_only() -> None:
    found = errors(Made(Early(), has=HAS))
    assert [(one.code, one.method) for one in found] == [("results", "wait_for")] * 4
    assert "read them in execute" in found[0].message
    assert [(one.code, one.method) for one in errors(Asked(has=HAS))] == [
        ("results", "ask"),
        ("results", "handle_timeout"),
    ]


def test_waits_and_endings_are_told() -> None:
    data = step_data(Made(Early(), has=HAS), "Early")
    assert (data["waits"], data["channels"]) == (["any_of"], [{"name": "queue", "condition": "for_one"}])
    assert (data["timers"], data["decisions"]) == ([{"seconds": 86400.0}], ["force_fail", "force_complete"])
