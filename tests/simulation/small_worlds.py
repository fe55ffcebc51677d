"""The small worlds: what is easiest to get wrong, two or three at a time, small enough to try everything.

`REDUCED` runs in the test suite. In `FULL` a Flow has three Steps, three messages and two crashes, or no crash and all
of it at once; `python -m tests.simulation --small` walks that. What two Flows of `FULL` that share nothing could meet
together is what each meets alone: see `tests.simulation.small`.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

from dex.wire.specs import FlowSpec, RetrySpec
from dexray.protocol.attempts import (
    AttemptFailed,
    ConditionSpec,
    DecisionSpec,
    ExecuteSucceeded,
    WaitForSucceeded,
    WaitSpec,
)
from dexray.protocol.subflows import SubFlowSpec
from tests.machine.build import (
    all_of,
    any_of,
    complete_if_empty,
    dead_end,
    exactly,
    flow,
    force_complete,
    force_fail,
    go_to,
    graceful_complete,
    method,
    one,
    step,
    timer,
    until,
)
from tests.simulation.small import Story, explore

FAIL = AttemptFailed(error_type="builtins.ValueError", detail="no")


def execute(decision: DecisionSpec) -> ExecuteSucceeded:
    return ExecuteSucceeded(decision=decision)


def wait(spec: WaitSpec) -> WaitForSucceeded:
    return WaitForSucceeded(wait=spec)


def short(attempts: int) -> RetrySpec:
    return RetrySpec(initial=1.0, attempts=attempts)


def child() -> ConditionSpec:
    return ConditionSpec("subflow", subflow=SubFlowSpec(flow_type="Demo", input=b"\xc0", reuse_policy="ATTACH"))


A, B = ("a", b"\x01"), ("b", b"\x02")

# One thing at a time --------------------------------------------------------------------------------------------------

WAITING: FlowSpec = flow(step("A", wait_for=True), step("B"))
WAITS = Story(
    WAITING,
    {
        ("A", "wait_for"): (wait(any_of(timer(10.0), one("a"))),),
        ("A", "execute"): (execute(go_to("B")),),
        ("B", "execute"): (execute(graceful_complete(b"\x01")),),
    },
    (A, ("a", b"\x02")),
)
COUNTED = Story(
    flow(step("A", wait_for=True)),
    {
        ("A", "wait_for"): (wait(until(exactly("a", 2))),),
        ("A", "execute"): (execute(graceful_complete()),),
    },
    (A,),
)
CANCELS = Story(
    flow(step("A"), step("B", method(retry=short(1)), wait_for=True), step("C")),
    {
        ("A", "execute"): (execute(go_to("B", "C")),),
        ("B", "wait_for"): (wait(until(one("a"))),),
        ("B", "execute"): (execute(graceful_complete()), FAIL),
        ("C", "execute"): (execute(dead_end(canceling=("B",))),),
    },
    (A,),
)
RETRIES = Story(
    flow(step("A", method(retry=short(2)), route="B"), step("B")),
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
    (A,),
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
    (A,),
)
IDLE = Story(
    flow(step("A", wait_for=True)),
    {("A", "wait_for"): (wait(until(one("a"))),), ("A", "execute"): (execute(graceful_complete()),)},
    (A,),
)
PARENT = Story(
    flow(step("A", wait_for=True)),
    {
        ("A", "wait_for"): (wait(any_of(child(), one("a"))),),
        ("A", "execute"): (execute(graceful_complete()),),
    },
    (A,),
)
CHILD = Story(
    flow(step("A", method(retry=short(1)))),
    {("A", "execute"): (execute(graceful_complete(b"\x07")), FAIL)},
    is_child=True,
)

# Three Steps, three messages ------------------------------------------------------------------------------------------

FULL_WAITS = Story(
    flow(step("A"), step("B", wait_for=True), step("C", wait_for=True)),
    {
        ("A", "execute"): (execute(go_to("B", "C")),),
        ("B", "wait_for"): (wait(any_of(timer(10.0), exactly("a", 2), one("b"))),),
        ("B", "execute"): (execute(graceful_complete(b"\x01")),),
        ("C", "wait_for"): (wait(until(one("a"))),),
        ("C", "execute"): (execute(dead_end()),),
    },
    (A, A, B),
)
FULL_CANCEL = Story(
    flow(step("A"), step("B", method(retry=short(1)), wait_for=True), step("C", wait_for=True)),
    {
        ("A", "execute"): (execute(go_to("B", "C")),),
        ("B", "wait_for"): (wait(until(one("a"))),),
        ("B", "execute"): (execute(graceful_complete()), FAIL),
        ("C", "wait_for"): (wait(until(one("b"))),),
        ("C", "execute"): (execute(dead_end(canceling=("B",))), execute(go_to("B", canceling=("B",)))),
    },
    (A, A, B),
)
FULL_CLOSE = Story(
    flow(step("A"), step("B"), step("C", wait_for=True)),
    {
        ("A", "execute"): (execute(go_to("B", "C")),),
        ("B", "execute"): (execute(graceful_complete()), execute(force_complete()), execute(force_fail())),
        ("C", "wait_for"): (wait(until(one("a"))),),
        ("C", "execute"): (execute(dead_end()),),
    },
    (A, A, B),
    stop=True,
)
FULL_RETRY = Story(
    flow(step("A", method(retry=short(2)), route="B"), step("B", method(retry=short(2)), wait_for=True), step("C")),
    {
        ("A", "execute"): (FAIL, execute(go_to("C"))),
        ("B", "wait_for"): (wait(until(one("a"))),),
        ("B", "execute"): (execute(graceful_complete()), FAIL),
        ("C", "execute"): (execute(graceful_complete()),),
    },
    (A, A, B),
)
FULL_CONDITIONAL = Story(
    flow(step("A"), step("B", wait_for=True), step("C")),
    {
        ("A", "execute"): (execute(go_to("B", "C")),),
        ("B", "wait_for"): (wait(until(one("a"))),),
        ("B", "execute"): (execute(dead_end()),),
        ("C", "execute"): (
            execute(complete_if_empty("a", fallback="B")),
            execute(complete_if_empty("b", fallback="B")),
        ),
    },
    (A, A, B),
)

# All at once ----------------------------------------------------------------------------------------------------------

BUSY = Story(
    flow(step("A"), step("B", method(retry=short(2)), wait_for=True), step("C", wait_for=True)),
    {
        ("A", "execute"): (execute(go_to("B", "C")),),
        ("B", "wait_for"): (wait(any_of(timer(10.0), one("a"))),),
        ("B", "execute"): (execute(graceful_complete()), FAIL),
        ("C", "wait_for"): (wait(until(one("b"))),),
        ("C", "execute"): (execute(complete_if_empty("a", fallback="B")), execute(dead_end(canceling=("B",)))),
    },
    (A, A, B),
    stop=True,
)
BUSY_PARENT = Story(
    flow(step("A"), step("B", wait_for=True), step("C", method(retry=short(2)))),
    {
        ("A", "execute"): (execute(go_to("B", "C")),),
        ("B", "wait_for"): (wait(any_of(child(), one("a"))), wait(all_of(child(), one("b")))),
        ("B", "execute"): (execute(complete_if_empty("a", fallback="C")),),
        ("C", "execute"): (execute(graceful_complete()), FAIL, execute(dead_end(canceling=("B",)))),
    },
    (A, B),
)
BUSY_CHILD = Story(
    flow(step("A", method(retry=short(2)), wait_for=True)),
    {
        ("A", "wait_for"): (wait(any_of(timer(10.0), one("a"))),),
        ("A", "execute"): (execute(graceful_complete(b"\x07")), FAIL),
    },
    (A,),
    is_child=True,
)

Worlds = Mapping[str, tuple[tuple[Story, ...], int]]

REDUCED: Worlds = {
    "waits": ((WAITS,), 2),
    "cancel": ((CANCELS,), 2),
    "close": ((CLOSES,), 1),
    "retry": ((RETRIES,), 2),
    "conditional completion": ((CONDITIONAL,), 1),
    "two Flows under one commit": ((IDLE, RETRIES), 1),
    "two Flows and two crashes": ((COUNTED, IDLE), 2),
    "a SubFlow": ((PARENT, CHILD), 2),
}
FULL: Worlds = {
    "waits": ((FULL_WAITS,), 2),
    "cancel": ((FULL_CANCEL,), 2),
    "close": ((FULL_CLOSE,), 2),
    "retry": ((FULL_RETRY,), 2),
    "conditional completion": ((FULL_CONDITIONAL,), 2),
    "a SubFlow": ((BUSY_PARENT, BUSY_CHILD), 0),
    "all at once": ((BUSY,), 0),
}


def tour(worlds: Worlds) -> int:
    """Walks all of them; prints a line for each. Its seconds are those of the processor."""
    total, began = 0, time.process_time()
    for name, (stories, crashes) in worlds.items():
        here = time.process_time()
        count = explore(stories, crashes)
        total += count.states
        told = f"{len(stories)} Flow{'s' * (len(stories) > 1)}, {crashes} crashes: {count}, "
        print(f"{name}: {told}{time.process_time() - here:.1f} s", flush=True)
    print(f"{len(worlds)} worlds, {total} states, {time.process_time() - began:.1f} s, nothing wrong")
    return 0
