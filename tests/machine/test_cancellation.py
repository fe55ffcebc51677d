"""Cancelled Steps, what comes back of them, and the token of a critical section."""

from __future__ import annotations

import pytest

from dexray.machine import commands
from dexray.machine.events import StepCancelled
from dexray.protocol.attempts import AttemptFailed, ExecuteSucceeded
from tests.machine.build import (
    SKIP,
    Bench,
    all_of,
    dead_end,
    exactly,
    force_complete,
    go_to,
    method,
    movement,
    one,
    step,
    timer,
    until,
)


def race() -> Bench:
    """S has started A-1, B-1 and C-1; A-1 has started siblings of its own: B-2 and D-1."""
    bench = Bench(step("S"), step("A"), step("B"), step("C"), step("D")).start()
    bench.succeed("S-1", go_to("A", "A", "B", "C"))
    bench.succeed("A-1", go_to("B", "D"))
    assert bench.open == ["A-2", "B-1", "C-1", "B-2", "D-1"]
    return bench


@pytest.mark.statement("B115")
def test_cancelling_by_type_reaches_the_whole_flow() -> None:
    bench = race()
    bench.succeed("C-1", dead_end(canceling=["B"]))
    assert bench.open == ["A-2", "D-1"]


# C13
@pytest.mark.statement("B115")
def test_cancelling_siblings_reaches_only_steps_of_the_same_parent_step_execution() -> None:
    bench = race()
    bench.succeed("C-1", dead_end(canceling_siblings=["B", "D"]))
    assert bench.open == ["A-2", "B-2", "D-1"]
    bench = race()
    bench.succeed("D-1", dead_end(canceling_siblings=["B", "C"]))
    assert bench.open == ["A-2", "B-1", "C-1"]


# C12
@pytest.mark.statement("B115", "B123", "B241")
def test_the_deciding_step_and_the_steps_it_starts_are_not_cancelled() -> None:
    bench = race()
    bench.succeed("A-2", go_to("A", "B", canceling=["A", "B"]))
    assert bench.open == ["C-1", "D-1", "A-3", "B-3"]


# C15
def test_cancelling_what_is_not_there_does_nothing() -> None:
    bench = race()
    bench.succeed("C-1", dead_end(canceling=["S", "Nobody"], canceling_siblings=["C"]))
    assert bench.of(StepCancelled) == []


@pytest.mark.statement("B117", "B120")
def test_a_running_attempt_of_a_cancelled_step_is_asked_to_stop_and_no_other() -> None:
    bench = race()
    bench.hand_out("B-1")
    bench.hand_out("D-1")
    key = bench.key("B-1")
    turn = bench.succeed("C-1", dead_end(canceling=["B"]))
    assert turn.cancels == [key]


# C14, C20
@pytest.mark.statement("B240", "B245", "D9")
def test_what_a_cancelled_attempt_still_says_is_refused() -> None:
    bench = race()
    bench.hand_out("B-1")
    key = bench.key("B-1")
    bench.succeed("C-1", dead_end(canceling=["B"]))
    for result in (
        ExecuteSucceeded(
            decision=go_to("A"), writes=bench.writes(publish=[("box", b"late")], attributes={"x": b"late"})
        ),
        AttemptFailed(error_type="E", detail=""),
    ):
        assert bench.do(commands.FinishAttempt(key=key, result=result)).events == []
    assert bench.queue("box") == []
    assert bench.flow.state.attributes == {}


# C14
@pytest.mark.statement("B240")
def test_a_cancelled_step_is_not_retried_and_its_failure_route_does_not_run() -> None:
    bench = Bench(step("S"), step("A"), step("B", method(attempts=2), route="R"), step("R")).start()
    bench.succeed("S-1", go_to("A", "B"))
    bench.fail("B-1")
    bench.succeed("A-1", dead_end(canceling=["B"]))
    bench.advance(1000)
    assert bench.open == []
    assert bench.status == "RUNNING"


# C14
def test_a_cancelled_wait_is_forgotten_with_its_timer_and_takes_no_message() -> None:
    bench = Bench(step("S"), step("A"), step("B", wait_for=True)).start()
    bench.succeed("S-1", go_to("A", "B"))
    bench.wait("B-1", all_of(one("box"), timer(5)), attributes={"x": b"kept"})
    bench.succeed("A-1", dead_end(canceling=["B"]))
    bench.publish("box", b"1")
    bench.advance(100)
    assert bench.queue("box") == [b"1"]
    assert bench.flow.state.attributes == {"x": b"kept"}
    assert bench.flow.index.waiters == {}


# C16
def test_the_number_of_a_cancelled_step_execution_stays_used() -> None:
    bench = race()
    bench.succeed("C-1", go_to("B", canceling=["B"]))
    assert bench.open == ["A-2", "D-1", "B-3"]


def consumed_and_cancelled(*phases: str) -> Bench:
    """K-1 has consumed the oldest two of box, and is cancelled while its execute is in this phase."""
    bench = Bench(step("S"), step("K", wait_for=True), step("X")).start()
    bench.succeed("S-1", go_to("K", "X"))
    bench.publish("box", b"1", b"2", b"3")
    bench.wait("K-1", until(exactly("box", 2)))
    for phase in phases:
        if phase == "running":
            bench.hand_out("K-1")
        elif phase == "backoff":
            bench.fail("K-1")
        else:
            bench.give_back("K-1")
    assert bench.queue("box") == [b"3"]
    bench.succeed("X-1", dead_end(canceling=["K"]))
    return bench


@pytest.mark.parametrize("phases", [(), ("running",), ("backoff",), ("returned",), ("backoff", "running")])
@pytest.mark.statement("D5", "D6", "B239")
def test_messages_of_a_cancelled_step_go_back_to_the_front_in_their_order(phases: tuple[str, ...]) -> None:
    if phases == ("backoff", "running"):
        bench = Bench(step("S"), step("K", wait_for=True), step("X")).start()
        bench.succeed("S-1", go_to("K", "X"))
        bench.publish("box", b"1", b"2", b"3")
        bench.wait("K-1", until(exactly("box", 2)))
        bench.fail("K-1")
        bench.advance(1)
        bench.hand_out("K-1")
        bench.succeed("X-1", dead_end(canceling=["K"]))
    else:
        bench = consumed_and_cancelled(*phases)
    assert bench.queue("box") == [b"1", b"2", b"3"]
    assert bench.of(StepCancelled)[-1].returned == {"box": 2}


@pytest.mark.statement("D5")
def test_messages_of_two_cancelled_steps_come_back_in_the_order_of_their_publication() -> None:
    bench = Bench(step("S"), step("K", wait_for=True), step("X")).start()
    bench.succeed("S-1", go_to("K", "K", "X"))
    bench.publish("box", b"1", b"2", b"3")
    bench.publish("other", b"o")
    bench.wait("K-2", all_of(one("box"), one("other")))
    bench.wait("K-1", until(one("box")))
    bench.succeed("X-1", dead_end(canceling=["K"]))
    assert bench.queue("box") == [b"1", b"2", b"3"]
    assert bench.queue("other") == [b"o"]


def test_a_message_that_was_taken_twice_and_given_back_twice_is_there_once() -> None:
    bench = Bench(step("S"), step("K", wait_for=True), step("X")).start()
    bench.succeed("S-1", go_to("K", "X", "X"))
    bench.publish("box", b"1")
    bench.wait("K-1", until(one("box")))
    bench.succeed("X-1", go_to("K", canceling=["K"]))
    bench.wait("K-2", until(one("box")))
    assert bench.queue("box") == []
    bench.succeed("X-2", dead_end(canceling=["K"]))
    assert bench.queue("box") == [b"1"]


# The token of a critical section -------------------------------------------------------------------------------------


ONE_ATTEMPT = method(attempts=1)


def section(branches: int = 3) -> Bench:
    """Enter waits for the token and moves to Edit, Edit to Save, Save gives it back; every failure goes to Release."""
    bench = Bench(
        step("Begin"),
        step("Enter", ONE_ATTEMPT, wait_for=True, route="Release"),
        step("Edit", ONE_ATTEMPT, route="Release"),
        step("Save", ONE_ATTEMPT, wait_for=ONE_ATTEMPT, proceed=True, route="Release"),
        step("Release"),
        step("Canceller"),
    ).start()
    bench.succeed(
        "Begin-1",
        go_to(*(movement("Enter") for _ in range(branches)), "Canceller"),
        publish=[("token", b"t")],
    )
    for number in range(1, branches + 1):
        bench.wait(f"Enter-{number}", until(one("token")))
    assert_one_token(bench)
    return bench


def inside(bench: Bench) -> list[str]:
    """The Steps that hold the turn: who consumed the token, and who came after."""
    return [
        step_id
        for step_id in bench.open
        if step_id.startswith(("Edit", "Save", "Release")) or bench.phase(step_id) == "execute ready"
        if not step_id.startswith("Canceller")
    ]


def assert_one_token(bench: Bench) -> None:
    assert len(bench.queue("token")) + len(inside(bench)) == 1


def entered(bench: Bench) -> str:
    (step_id,) = inside(bench)
    return step_id


@pytest.mark.statement("B231", "B234", "B246")
def test_exactly_one_of_several_branches_gets_the_token() -> None:
    bench = section(3)
    assert entered(bench).startswith("Enter")
    assert bench.queue("token") == []
    phases = sorted(bench.phase(step_id) for step_id in bench.open if step_id.startswith("Enter"))
    assert phases == ["execute ready", "wait_for waiting", "wait_for waiting"]


@pytest.mark.statement("B246")
def test_two_tokens_let_two_branches_in() -> None:
    bench = section(3)
    bench.publish("token", b"second")
    assert len(inside(bench)) == 2


@pytest.mark.statement("B233", "B235")
def test_the_last_step_gives_the_token_back_and_one_branch_enters() -> None:
    bench = section(3)
    for _ in range(3):
        number = entered(bench).split("-")[1]
        bench.succeed(f"Enter-{number}", go_to("Edit"))
        assert_one_token(bench)
        bench.succeed(entered(bench), go_to("Save"))
        bench.wait(entered(bench), SKIP)
        bench.succeed(entered(bench), dead_end(), publish=[("token", b"t")])
        assert_one_token(bench)
    assert bench.queue("token") == [b"t"]
    assert bench.open == ["Canceller-1"]


@pytest.mark.statement("B236")
def test_a_failed_handoff_does_not_return_the_token_by_itself_but_its_route_does() -> None:
    bench = section(2)
    bench.fail(entered(bench))
    assert bench.queue("token") == []
    assert entered(bench) == "Release-1"
    bench.succeed("Release-1", dead_end(), publish=[("token", b"t")])
    assert entered(bench).startswith("Enter")


@pytest.mark.statement("B237")
def test_a_wait_for_that_fails_inside_the_section_proceeds_and_gives_the_token_back() -> None:
    bench = section(2)
    bench.succeed(entered(bench), go_to("Edit"))
    bench.succeed(entered(bench), go_to("Save"))
    bench.fail("Save-1")
    assert bench.hand_out("Save-1").wait_for_failed
    bench.succeed("Save-1", dead_end(), publish=[("token", b"t")])
    assert entered(bench).startswith("Enter")


@pytest.mark.statement("B238")
def test_an_early_exit_publishes_and_ends_in_one_commit() -> None:
    bench = section(2)
    bench.succeed(entered(bench), go_to("Edit"))
    turn = bench.succeed(entered(bench), dead_end(), publish=[("token", b"t"), ("finished", b"withdrawn")])
    assert {type(event).__name__ for event in turn.events} >= {"StepCompleted", "MessagePublished", "ConditionsMet"}
    assert_one_token(bench)


@pytest.mark.statement("B239", "D6")
@pytest.mark.parametrize("handed_out", [False, True])
def test_a_cancelled_handoff_returns_the_token_and_another_branch_enters(handed_out: bool) -> None:
    bench = section(2)
    first = entered(bench)
    if handed_out:
        bench.hand_out(first)
    bench.succeed("Canceller-1", go_to("Enter", canceling=["Enter"]))
    assert bench.open == ["Enter-3"]
    assert bench.queue("token") == [b"t"]
    bench.wait("Enter-3", until(one("token")))
    assert entered(bench) == "Enter-3"


@pytest.mark.statement("B239")
def test_a_returned_token_wakes_a_branch_that_was_not_cancelled_at_once() -> None:
    bench = Bench(step("S"), step("K", wait_for=True), step("L", wait_for=True), step("X")).start()
    bench.succeed("S-1", go_to("K", "L", "X"))
    bench.publish("token", b"t")
    bench.wait("K-1", until(one("token")))
    bench.wait("L-1", until(one("token")))
    bench.succeed("X-1", dead_end(canceling=["K"]))
    assert bench.phase("L-1") == "execute ready"
    assert bench.consumed("L-1") == [b"t"]


@pytest.mark.statement("B242")
def test_a_step_inside_the_section_that_is_cancelled_does_not_return_the_token() -> None:
    bench = section(2)
    bench.succeed(entered(bench), go_to("Edit"))
    bench.succeed("Canceller-1", dead_end(canceling=["Edit"]))
    assert bench.queue("token") == []
    assert inside(bench) == []


@pytest.mark.statement("B241")
def test_a_step_that_saved_its_result_before_is_not_affected_by_the_cancellation() -> None:
    bench = section(2)
    first = entered(bench)
    bench.hand_out("Canceller-1")
    bench.succeed(first, go_to("Edit"))
    bench.succeed("Canceller-1", dead_end(canceling=["Enter"]))
    assert bench.open == ["Edit-1"]
    assert bench.queue("token") == []


@pytest.mark.statement("B243")
@pytest.mark.parametrize("how", ["force_complete", "stop"])
def test_closing_the_flow_ends_every_branch(how: str) -> None:
    bench = section(3)
    if how == "stop":
        bench.stop("CANCEL")
    else:
        bench.succeed("Canceller-1", force_complete())
    assert bench.closed
    assert bench.open == []


@pytest.mark.statement("B244")
def test_a_failed_attempt_publishes_nothing_so_a_retry_makes_no_second_token() -> None:
    bench = Bench(step("Save")).start()
    for _ in range(3):
        bench.fail("Save-1")
        assert bench.queue("token") == []
        bench.advance(100)
    bench.succeed("Save-1", dead_end(), publish=[("token", b"t")])
    assert bench.queue("token") == [b"t"]
