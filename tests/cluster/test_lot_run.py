"""A lot in its worker, with a clock of the test and an owner that is a list."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from dexray.cluster.attempt_messages import Answer, Handed, Lot, Question, Report
from dexray.cluster.lot_run import DROPPED, GIVEN_BACK, LotRun
from dexray.protocol.attempts import (
    AttemptKey,
    AttemptReturned,
    AttemptTask,
    DecisionSpec,
    ExecuteSucceeded,
    Heartbeat,
)

LIFE = 7
DONE = ExecuteSucceeded(decision=DecisionSpec(kind="dead_end"))


class Link:
    """Remembers what the owner was told. `answers` go out when a question is asked; others by `answer`."""

    def __init__(self) -> None:
        self.reports: list[Report] = []
        self.questions: list[tuple[Question, Callable[[Answer | None], None]]] = []
        self.waits = 0
        self.canceled: tuple[int, ...] | None = None

    def report(self, report: Report) -> None:
        self.reports.append(report)

    def ask(self, question: Question, answered: Callable[[Answer | None], None]) -> Link:
        self.questions.append((question, answered))
        if self.canceled is not None:
            answered(Answer(self.canceled))
        return self

    def wait(self, timeout: float) -> None:
        self.waits += 1


class Worker:
    def __init__(self, count: int, announce: bool = False, kill_after: float | None = None) -> None:
        handed = tuple(Handed(token, _task(token, kill_after)) for token in range(1, count + 1))
        self.now = 100.0
        self.killed_at: list[float] = []
        self.link = Link()
        lot = Lot(LIFE, handed, sent_at=0.0, announce=announce)
        self.run = LotRun(
            lot,
            self.link,
            "worker",
            "node",
            clock=lambda: self.now,
            kill=lambda: self.killed_at.append(self.now),
        )

    def results(self) -> dict[int, object]:
        return {finished.token: finished.result for finished in self.run.result().finished}

    def run_next(self, seconds: float = 0.0) -> int | None:
        handed = self.run.next()
        if handed is None:
            return None
        self.now += seconds
        self.run.done(DONE)
        return handed.token


def _task(number: int, kill_after: float | None = None) -> AttemptTask:
    return AttemptTask(
        key=AttemptKey(f"flow-{number}", "run", "Step-1", "execute", 1),
        flow_type="Flow",
        step_type="Step",
        deployment_id="code",
        from_step_execution_id="",
        input=b"",
        timeout=60.0,
        heartbeat_timeout=60.0,
        first_attempt_at=0.0,
        kill_after=kill_after,
    )


def test_attempts_of_a_lot_run_in_order_and_all_results_go_back() -> None:
    worker = Worker(3)
    assert [worker.run_next() for _ in range(4)] == [1, 2, 3, None]
    assert worker.results() == {1: DONE, 2: DONE, 3: DONE}
    assert worker.link.reports == []
    assert worker.link.questions == []


def test_a_short_lot_says_nothing_on_its_way() -> None:
    worker = Worker(2)
    worker.run.begin(queued=0.1)
    worker.run.next()
    worker.now += 0.03
    worker.run.look()
    assert worker.link.reports == []
    assert worker.link.questions == []


def test_a_long_attempt_is_told_and_the_rest_given_back_with_the_results_there_are() -> None:
    worker = Worker(4)
    worker.run_next()
    worker.run.next()
    worker.now += 0.06
    worker.run.look()
    ((question, _),) = worker.link.questions
    (report,) = worker.link.reports
    assert question.begun == question.about == (2,)
    assert question.wait > 0
    given_back = AttemptReturned(reason=GIVEN_BACK)
    assert {one.token: one.result for one in report.finished} == {1: DONE, 3: given_back, 4: given_back}
    worker.run.done(DONE)
    assert worker.run.next() is None
    assert worker.results() == {1: DONE, 2: DONE, 3: given_back, 4: given_back}


def test_a_long_attempt_gives_the_rest_back_though_no_watchdog_could_look() -> None:
    worker = Worker(3)
    assert worker.run_next(seconds=0.2) == 1
    assert worker.run_next() is None
    assert worker.results()[2] == worker.results()[3] == AttemptReturned(reason=GIVEN_BACK)


def test_many_short_attempts_that_add_up_give_the_rest_back() -> None:
    worker = Worker(10)
    ran = [worker.run_next(seconds=0.03) for _ in range(10)]
    assert ran == [1, 2, 3, 4, None, None, None, None, None, None]


def test_a_result_is_reported_once_and_kept_for_the_answer() -> None:
    worker = Worker(2)
    worker.run_next()
    worker.run.next()
    worker.now += 0.06
    worker.run.look()
    worker.run.look()
    worker.now += 1
    worker.run.look()
    assert len(worker.link.reports) == 1
    worker.run.done(DONE)
    assert worker.results() == {1: DONE, 2: DONE}


# Cancellation ---------------------------------------------------------------------------------------------------------


def test_the_answer_to_the_question_cancels_the_running_attempt_only() -> None:
    worker = Worker(1)
    calls: list[str] = []
    worker.run.on_cancel = lambda: calls.append("canceled")
    worker.run.next()
    assert not worker.run.is_canceled()
    worker.now += 0.06
    worker.run.look()
    worker.link.questions[0][1](Answer((1,)))
    assert worker.run.is_canceled()
    assert calls == ["canceled"]
    worker.run.done(DONE)
    assert not worker.run.is_canceled()


def test_an_answer_without_cancellation_is_asked_again() -> None:
    worker = Worker(1)
    worker.run.next()
    worker.now += 0.06
    worker.run.look()
    worker.run.look()
    assert len(worker.link.questions) == 1
    worker.link.questions[0][1](Answer(()))
    worker.run.look()
    assert len(worker.link.questions) == 2


def test_an_owner_that_can_not_be_reached_is_asked_again_after_a_second() -> None:
    worker = Worker(1)
    worker.run.next()
    worker.now += 0.06
    worker.run.look()
    worker.link.questions[0][1](None)
    worker.now += 0.5
    worker.run.look()
    assert len(worker.link.questions) == 1
    worker.now += 0.6
    worker.run.look()
    assert len(worker.link.questions) == 2


@pytest.mark.parametrize("announce", [False, True])
def test_a_lot_that_waited_long_asks_first_and_drops_what_was_canceled(announce: bool) -> None:
    worker = Worker(3, announce=announce)
    worker.link.canceled = (2,)
    worker.run.begin(queued=3.0)
    assert worker.link.waits == 1
    assert [worker.run_next() for _ in range(3)] == [1, 3, None]
    assert worker.results()[2] == AttemptReturned(reason=DROPPED)


def test_an_announced_lot_of_which_the_owner_hears_by_a_lane_asks_nothing() -> None:
    worker = Worker(1, announce=True)
    worker.run.begin(queued=0.0, is_known=True)
    worker.run_next()
    assert worker.results() == {1: DONE}
    assert worker.link.questions == []


def test_an_announced_lot_whose_lane_broke_ends_when_the_owner_has_heard_of_it() -> None:
    worker = Worker(1, announce=True)
    worker.run.begin(queued=0.0, is_known=True)
    worker.run_next()
    worker.run.announce()
    ((question, _),) = worker.link.questions
    assert question.begun == (1,)
    assert worker.link.waits == 1


def test_an_announced_lot_never_ends_before_the_owner_has_heard_of_it() -> None:
    worker = Worker(1, announce=True)
    worker.run.begin(queued=0.0)
    assert worker.link.questions[0][0].begun == (1,)
    assert worker.link.waits == 0, "the handler does not wait for it"
    worker.run_next()
    worker.run.result()
    assert worker.link.waits == 1


# Heartbeats -----------------------------------------------------------------------------------------------------------


def beats(worker: Worker) -> list[Heartbeat | None]:
    return [beat.heartbeat for report in worker.link.reports for beat in report.beats]


def test_the_first_heartbeat_goes_at_once_and_the_newest_of_the_next_after_a_while() -> None:
    worker = Worker(1)
    worker.run.next()
    for number in range(5):
        worker.run.heartbeat(Heartbeat(True, bytes([number])))
    assert beats(worker) == [Heartbeat(True, b"\x00")]
    worker.run.look()
    assert len(beats(worker)) == 1
    worker.now += 0.21
    worker.run.look()
    assert beats(worker) == [Heartbeat(True, b"\x00"), Heartbeat(True, b"\x04")]


def test_an_implicit_heartbeat_does_not_hide_a_checkpoint_that_was_not_sent_yet() -> None:
    worker = Worker(1)
    worker.run.next()
    worker.run.heartbeat(None)
    worker.run.heartbeat(Heartbeat(True, b"checkpoint"))
    worker.run.heartbeat(None)
    worker.now += 0.21
    worker.run.look()
    assert beats(worker) == [None, Heartbeat(True, b"checkpoint")]


def test_a_heartbeat_after_the_end_of_an_attempt_is_not_sent_for_the_next() -> None:
    worker = Worker(2)
    worker.run_next()
    worker.run.heartbeat(Heartbeat(True, b"late"))
    worker.run.next()
    worker.now += 0.21
    worker.run.look()
    assert beats(worker) == []


def _run_deaf(worker: Worker, canceled: bool, seconds: float) -> None:
    """An attempt that runs for so long, looked at every second, and is canceled at once or never."""
    worker.run.next()
    worker.now += 0.1
    worker.run.look()
    if canceled:
        worker.link.questions[-1][1](Answer((1,)))
    for _ in range(int(seconds)):
        worker.run.look()
        worker.now += 1.0


@pytest.mark.parametrize(
    ("kill_after", "canceled", "seconds", "killed"),
    [(3.0, True, 3, False), (3.0, True, 4, True), (3.0, False, 100, False), (None, True, 100, False)],
)
def test_a_process_ends_itself_so_long_after_a_cancellation_that_was_not_heeded(
    kill_after: float | None, canceled: bool, seconds: int, killed: bool
) -> None:
    worker = Worker(1, announce=True, kill_after=kill_after)
    _run_deaf(worker, canceled, seconds)
    assert worker.killed_at == ([103.1] if killed else [])


def test_an_attempt_that_has_ended_or_begun_since_kills_nobody() -> None:
    worker = Worker(2, announce=True, kill_after=3.0)
    _run_deaf(worker, canceled=True, seconds=2)
    worker.run.done(DONE)
    worker.now += 10
    worker.run.look()
    assert worker.killed_at == []


# A new owner ----------------------------------------------------------------------------------------------------------


def test_a_lot_of_one_that_gets_a_new_owner_tells_it_of_the_attempt_its_checkpoint_and_its_result() -> None:
    worker = Worker(1, announce=True)
    worker.run.begin(queued=0.0)
    worker.run.next()
    worker.run.heartbeat(Heartbeat(True, b"half"))
    worker.run.heartbeat(None)
    told = len(worker.link.reports), len(worker.link.questions)
    next_owner = Link()
    worker.run.attach(8, 99, next_owner)
    worker.now += 1.0
    worker.run.look()
    (question, _), (report,) = next_owner.questions[0], next_owner.reports
    assert (question.life, question.begun, question.about) == (8, (99,), (99,))
    assert (report.life, report.beats[0].token, report.beats[0].heartbeat) == (8, 99, Heartbeat(True, b"half"))
    assert (len(worker.link.reports), len(worker.link.questions)) == told, "the former owner is left alone"
    worker.run.done(DONE)
    assert worker.results() == {99: DONE}


def test_what_the_former_owner_said_last_counts_no_more() -> None:
    """Dying, it may have answered that it knows of no such attempt."""
    worker = Worker(1, announce=True)
    worker.run.begin(queued=0.0)
    worker.run.next()
    worker.link.questions[0][1](Answer((1,)))
    assert worker.run.is_canceled()
    worker.run.attach(8, 99, Link())
    assert not worker.run.is_canceled()


def test_an_owner_that_can_not_say_yet_is_asked_again_in_a_moment() -> None:
    worker = Worker(1)
    worker.run.next()
    worker.now += 1.0
    worker.run.look()
    worker.link.questions[0][1](Answer(is_unknown=True))
    worker.run.look()
    assert len(worker.link.questions) == 1
    worker.now += 2.0
    worker.run.look()
    assert len(worker.link.questions) == 2
