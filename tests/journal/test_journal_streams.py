"""What every journal promises of Streams."""

from __future__ import annotations

import threading

import pytest

from dexray.journal import Journal, NewMessage
from tests.journal.conftest import OpenJournal


def message(number: int, stream: str = "words", flow_id: str = "f", capacity: int = 1000, size: int = 10) -> NewMessage:
    return NewMessage(flow_id, stream, float(number), f"source {number}", bytes([number % 256]) * size, capacity)


def kept(journal: Journal, stream: str = "words", flow_id: str = "f") -> list[int]:
    return [found.seq for found in journal.read_messages(flow_id, stream, 0, 10_000)]


@pytest.mark.statement("C66")
def test_messages_are_numbered_in_each_stream_of_each_flow_id(journal: Journal) -> None:
    journal.append_messages([message(1), message(2, "other"), message(3), message(4, flow_id="g")])
    journal.append_messages([message(5)])
    found = journal.read_messages("f", "words", 0, 10)
    assert [(one.seq, one.created_at, one.source, one.payload) for one in found] == [
        (1, 1.0, "source 1", b"\1" * 10),
        (2, 3.0, "source 3", b"\3" * 10),
        (3, 5.0, "source 5", b"\5" * 10),
    ]
    assert kept(journal, "other") == [1]
    assert kept(journal, flow_id="g") == [1]
    assert kept(journal, "nothing") == []


@pytest.mark.statement("C66")
@pytest.mark.parametrize("at_once", [1, 7, 5000])
def test_the_oldest_are_trimmed_to_the_capacity_and_numbers_go_on(journal: Journal, at_once: int) -> None:
    messages = [message(number, capacity=100) for number in range(5000)]
    for begin in range(0, 5000 if at_once > 1 else 60, at_once):
        journal.append_messages(messages[begin : begin + at_once])
    last = 5000 if at_once > 1 else 60
    assert kept(journal) == list(range(last - 9, last + 1))


@pytest.mark.statement("C66")
def test_the_newest_capacity_counts_and_the_last_message_always_stays(journal: Journal) -> None:
    journal.append_messages([message(number) for number in range(1, 6)])
    journal.append_messages([message(6, capacity=25)])
    assert kept(journal) == [5, 6]
    journal.append_messages([message(7, capacity=25, size=26)])
    assert kept(journal) == [7]
    journal.append_messages([message(8, capacity=36), message(9, capacity=36)])
    assert kept(journal) == [8, 9]
    journal.append_messages([message(10, capacity=36)])
    assert kept(journal) == [8, 9, 10]
    journal.append_messages([message(11), message(12, capacity=20)])
    assert kept(journal) == [11, 12]


@pytest.mark.statement("C67")
def test_reading_goes_on_behind_a_message_also_when_it_was_trimmed(journal: Journal) -> None:
    journal.append_messages([message(number, capacity=30) for number in range(1, 11)])
    assert [one.seq for one in journal.read_messages("f", "words", 9, 5)] == [10]
    assert journal.read_messages("f", "words", 10, 5) == []
    for trimmed in (0, 1, 7):
        assert [one.seq for one in journal.read_messages("f", "words", trimmed, 2)] == [8, 9]
    assert [one.seq for one in journal.read_messages("f", "words", 11, 5)] == [8, 9, 10]


def test_a_read_is_bounded_in_bytes_but_gives_one(journal: Journal) -> None:
    journal.append_messages([message(number, capacity=10_000, size=100) for number in range(5)])
    for most, count in ((1, 1), (100, 1), (199, 1), (200, 2), (1000, 5)):
        assert len(journal.read_messages("f", "words", 0, 10, max_bytes=most)) == count
    assert journal.read_messages("f", "words", 0, 0) == []


@pytest.mark.statement("C68")
def test_pages_go_backwards(journal: Journal) -> None:
    journal.append_messages([message(number) for number in range(1, 8)])
    assert [one.seq for one in journal.list_messages("f", "words", 0, 3)] == [7, 6, 5]
    assert [one.seq for one in journal.list_messages("f", "words", 5, 3)] == [4, 3, 2]
    assert [one.seq for one in journal.list_messages("f", "words", 2, 3)] == [1]
    assert journal.list_messages("f", "words", 1, 3) == []


def test_two_owners_may_write_one_stream(journal: Journal, another: OpenJournal) -> None:
    other = another()

    def write(into: Journal) -> None:
        for number in range(20):
            into.append_messages([message(number, capacity=10_000)])

    threads = [threading.Thread(target=write, args=(into,)) for into in (journal, other)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert kept(journal) == list(range(1, 41))
    journal.append_messages([])
    assert kept(other) == list(range(1, 41))
