"""Stream messages between the handlers of a worker process and its owner."""

from __future__ import annotations

import threading

import pytest

from dexray.cluster.attempt_messages import Beat, Report, decode_report, encode
from dexray.cluster.outbox import BATCH_BYTES, GATHER_SECONDS, OVERHEAD, Backlog, MessageOutbox
from dexray.protocol.streams import StreamWrite
from tests.cluster.test_lot_run import DONE, LIFE, Worker


def message(number: int, size: int = 1) -> StreamWrite:
    return StreamWrite("f", "words", "#S-1", 100, str(number).encode().ljust(size))


class Sent:
    def __init__(self) -> None:
        self.now = 100.0
        self.batches: list[list[int]] = []
        self.outbox = MessageOutbox(self.send, lambda: self.now)

    def send(self, messages: tuple[StreamWrite, ...]) -> None:
        self.batches.append([int(one.payload) for one in messages])


def test_the_first_message_leaves_at_once_and_the_next_ones_together() -> None:
    sent = Sent()
    for number in range(4):
        sent.outbox.add(message(number))
    assert sent.batches == [[0]]
    sent.outbox.look()
    assert sent.batches == [[0]]
    sent.now += GATHER_SECONDS
    sent.outbox.look()
    assert sent.batches == [[0], [1, 2, 3]]
    sent.outbox.look()
    sent.outbox.flush()
    assert len(sent.batches) == 2


def test_a_message_that_comes_late_enough_takes_the_others_along() -> None:
    sent = Sent()
    for number in range(3):
        sent.outbox.add(message(number))
    sent.now += GATHER_SECONDS
    sent.outbox.add(message(3))
    assert sent.batches == [[0], [1, 2, 3]]


def test_much_does_not_wait() -> None:
    sent = Sent()
    for number in range(4):
        sent.outbox.add(message(number, size=BATCH_BYTES // 2))
    assert sent.batches == [[0], [1, 2]]


def test_two_threads_keep_the_order() -> None:
    sent = Sent()
    begun, go_on = threading.Event(), threading.Event()

    def slowly(messages: tuple[StreamWrite, ...]) -> None:
        if not begun.is_set():
            begun.set()
            go_on.wait(10)
        sent.send(messages)

    outbox = MessageOutbox(slowly, lambda: sent.now)
    first = threading.Thread(target=outbox.add, args=(message(0),))
    first.start()
    assert begun.wait(10)
    outbox.add(message(1))  # while the first is being sent
    second = threading.Thread(target=outbox.flush)
    second.start()
    second.join(0.1)
    assert sent.batches == []
    go_on.set()
    first.join(10)
    second.join(10)
    assert sent.batches == [[0], [1]]


def test_what_is_written_too_fast_is_lost_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    backlog = Backlog(limit=10 + 2 * OVERHEAD)
    for number in range(5):
        backlog.add(message(number, size=5))
    assert [int(one.payload) for one in backlog.take()] == [0, 1]
    assert "3 Stream messages were lost" in caplog.text
    backlog.add(message(5, size=4))
    assert [int(one.payload) for one in backlog.take()] == [5]
    assert backlog.take() == ()


@pytest.mark.statement("B174")
def test_a_lot_sends_messages_before_the_result_and_counts_them_as_heartbeats() -> None:
    worker = Worker(2)
    worker.run.next()
    for number in range(3):
        worker.run.stream(message(number))
    messages: list[int] = []
    beats: list[Beat] = []
    worker.run.done(DONE)
    for report in worker.link.reports:
        assert report.life == LIFE
        messages.extend(int(one.payload) for one in report.messages)
        beats.extend(report.beats)
    assert messages == [0, 1, 2]
    assert [(beat.token, beat.heartbeat) for beat in beats] == [(1, None)]


def test_the_watchdog_sends_what_waits() -> None:
    worker = Worker(1)
    worker.run.next()
    for number in range(3):
        worker.run.stream(message(number))
    worker.now += GATHER_SECONDS
    worker.run.look()
    sent = [int(one.payload) for report in worker.link.reports for one in report.messages]
    assert sent == [0, 1, 2]


def test_messages_survive_the_wire() -> None:
    report = Report(LIFE, "worker", messages=(message(1), message(2)))
    assert decode_report(encode(report)) == report
