"""All that can happen to two Flows with three Steps, three messages and two crashes, for what is easiest to get wrong:
waits, cancellation, closing, retries, conditional completion."""

from __future__ import annotations

import pytest

from dex.wire.specs import FlowSpec, RetrySpec
from dexray.protocol.attempts import ExecuteSucceeded, WaitForSucceeded, WaitSpec
from tests.machine.build import (
    any_of,
    complete_if_empty,
    dead_end,
    exactly,
    flow,
    force_complete,
    go_to,
    graceful_complete,
    method,
    one,
    step,
    timer,
    until,
)
from tests.simulation.small import AttemptFailed, DecisionSpec, Story, explore

FAIL = AttemptFailed(error_type="builtins.ValueError", detail="no")


def execute(decision: DecisionSpec) -> ExecuteSucceeded:
    return ExecuteSucceeded(decision=decision)


def wait(spec: WaitSpec) -> WaitForSucceeded:
    return WaitForSucceeded(wait=spec)


def short(**more: int) -> RetrySpec:
    return RetrySpec(initial=1.0, attempts=more.get("attempts", 2))


WAITING: FlowSpec = flow(step("A", wait_for=True), step("B"))
WAITS = Story(
    WAITING,
    {
        ("A", "wait_for"): (wait(any_of(timer(10.0), one("a"))),),
        ("A", "execute"): (execute(go_to("B")),),
        ("B", "execute"): (execute(graceful_complete(b"\x01")),),
    },
    (("a", b"\x01"), ("a", b"\x02")),
)
COUNTED = Story(
    flow(step("A", wait_for=True)),
    {
        ("A", "wait_for"): (wait(until(exactly("a", 2))),),
        ("A", "execute"): (execute(graceful_complete()),),
    },
    (("a", b"\x03"),),
)
CANCELS = Story(
    flow(step("A"), step("B", method(retry=short(attempts=1)), wait_for=True), step("C")),
    {
        ("A", "execute"): (execute(go_to("B", "C")),),
        ("B", "wait_for"): (wait(until(one("a"))),),
        ("B", "execute"): (execute(graceful_complete()), FAIL),
        ("C", "execute"): (execute(dead_end(canceling=("B",))),),
    },
    (("a", b"\x01"),),
)
RETRIES = Story(
    flow(step("A", method(retry=short(attempts=2)), route="B"), step("B")),
    {
        ("A", "execute"): (FAIL, execute(graceful_complete())),
        ("B", "execute"): (execute(graceful_complete()),),
    },
)
CLOSES = Story(
    flow(step("A"), step("B"), step("C", wait_for=True)),
    {
        ("A", "execute"): (execute(go_to("B", "C")),),
        ("B", "execute"): (execute(graceful_complete()), execute(force_complete())),
        ("C", "wait_for"): (wait(until(one("a"))),),
        ("C", "execute"): (execute(dead_end()),),
    },
    (("a", b"\x01"),),
    stop=True,
)
CONDITIONAL = Story(
    flow(step("A"), step("B", wait_for=True), step("C"), step("D")),
    {
        ("A", "execute"): (execute(go_to("B", "C")),),
        ("B", "wait_for"): (wait(until(one("a"))),),
        ("B", "execute"): (execute(dead_end()),),
        ("C", "execute"): (execute(complete_if_empty("a", fallback="D")),),
        ("D", "execute"): (execute(graceful_complete()),),
    },
    (("a", b"\x01"),),
)
IDLE = Story(
    flow(step("A", wait_for=True)),
    {("A", "wait_for"): (wait(until(one("a"))),), ("A", "execute"): (execute(graceful_complete()),)},
    (("a", b"\x01"),),
)


@pytest.mark.statement("B88", "B89", "B106", "B113", "B115", "B124", "B125", "B127", "B128", "D6")
@pytest.mark.parametrize(
    ("stories", "crashes"),
    [
        pytest.param((WAITS,), 2, id="waits"),
        pytest.param((CANCELS,), 1, id="cancel"),
        pytest.param((CLOSES,), 1, id="close"),
        pytest.param((RETRIES,), 2, id="retry"),
        pytest.param((CONDITIONAL,), 1, id="conditional completion"),
        pytest.param((IDLE, RETRIES), 0, id="two Flows under one commit"),
        pytest.param((COUNTED, IDLE), 1, id="two Flows and a crash"),
    ],
)
def test_every_interleaving_keeps_the_rules(stories: tuple[Story, ...], crashes: int) -> None:
    count = explore(stories, crashes)
    assert count.ends
    assert count.outcomes["COMPLETED"]
