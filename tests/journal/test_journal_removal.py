"""Closed runs go whole, what they leave is cleared in batches, and a blob stays as long as a run refers to it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import create_engine, func, select

from dexray.journal import Journal, NewMessage, Outcome, RequestAnswer, RunChange
from dexray.journal.interface import JournalUnavailable
from dexray.journal.removal import AT_ONCE, LATER, OF_FLOW_ID, unused_blobs
from dexray.journal.schema import metadata
from tests.journal.builders import CLOSED, record, start
from tests.journal.conftest import OpenJournal


def closed_run(journal: Journal, run_id: str, flow_id: str, records: int = 3, **more: Any) -> None:
    answer = RequestAnswer(flow_id, f"q-{run_id}", b"answer")
    journal.append([start(run_id, flow_id, requests=(answer,), **more)])
    journal.append([record(run_id, seq, checkpoint=b"state") for seq in range(2, records)])
    journal.append([record(run_id, records, change=CLOSED)])


def rows(journal_url: str) -> dict[str, int]:
    """How many rows each table has, looked up beside the journal; empty ones are left out."""
    engine = create_engine(journal_url)
    with engine.connect() as connection:
        counts = {
            table.name: connection.execute(select(func.count()).select_from(table)).scalar_one()
            for table in metadata.sorted_tables
            if table.name != "schema_version"
        }
    engine.dispose()
    return {name: count for name, count in counts.items() if count}


def clear(journal: Journal, limit: int = 100) -> int:
    """Clears away all that is left; the number of batches."""
    batches = 0
    while journal.clear_removed(limit):
        batches += 1
    after = ""
    while True:
        _, after = journal.free_blobs(after, limit)
        if not after:
            return batches


def is_gone(journal: Journal, run_id: str, flow_id: str) -> bool:
    """Whether no reader finds the run; it is an error if some do and others don't."""
    answers = {
        journal.find_run(run_id) is None,
        journal.load(run_id) is None,
        journal.records(run_id, 0, 10) == [],
        journal.recorded_answer(flow_id, f"q-{run_id}") is None,
        all(row.run_id != run_id for row in journal.runs_of(flow_id)),
        all(row.run_id != run_id for row in journal.list_runs()[0]),
        all(row.run_id != run_id for row in journal.closed_runs(1e9, (0.0, ""), 100)),
    }
    assert len(answers) == 1, "some readers find the run and others don't"
    return answers.pop()


def test_every_table_with_rows_of_a_run_is_in_a_list_of_the_removal() -> None:
    with_run = {table.name for table in metadata.sorted_tables if "run_id" in table.c}
    with_flow = {table.name for table in metadata.sorted_tables if "flow_id" in table.c} - with_run
    assert with_run == {"runs", "removed_runs", *(table.name for table in (*AT_ONCE, *LATER))}
    assert with_flow == {table.name for table in OF_FLOW_ID}


@pytest.mark.statement("C65")
def test_a_removed_run_is_gone_for_every_reader_while_its_records_are_still_there(
    journal: Journal, journal_url: str
) -> None:
    closed_run(journal, "r1", "f", blobs={"h1": b"one"})
    assert not is_gone(journal, "r1", "f")
    assert journal.remove_run("r1")
    assert is_gone(journal, "r1", "f")
    assert journal.current_run("f") is None
    assert rows(journal_url)["events"] == 3
    assert not journal.remove_run("r1")


def test_nothing_of_it_is_left_in_the_end(journal: Journal, journal_url: str) -> None:
    closed_run(journal, "r1", "f", records=30, blobs={f"h{n}": b"x" for n in range(30)})
    journal.append_messages([NewMessage("f", "news", 1.0, "#s", b"hello", 1_000)])
    assert journal.remove_run("r1")
    assert clear(journal, limit=7) >= 5 + 1 + 5
    assert rows(journal_url) == {}


def test_an_open_run_is_not_removed(journal: Journal) -> None:
    journal.append([start("r1", "f")])
    assert not journal.remove_run("r1")
    assert journal.find_run("r1") is not None


def test_the_newest_run_that_is_left_is_the_current_one(journal: Journal) -> None:
    closed_run(journal, "r1", "f", started_at=1.0)
    closed_run(journal, "r2", "f", started_at=2.0, replaces="r1")
    closed_run(journal, "r3", "f", started_at=3.0, replaces="r2")
    assert [row.run_id for row in journal.runs_of("f")] == ["r3", "r2", "r1"]
    assert journal.remove_run("r1")
    assert journal.current_run("f").run_id == "r3"  # type: ignore[union-attr]
    assert journal.remove_run("r3")
    assert journal.current_run("f").run_id == "r2"  # type: ignore[union-attr]
    assert journal.append([start("r4", "f", replaces="r2")]) == [Outcome.DURABLE]


def test_a_flow_id_begins_anew_after_its_last_run(journal: Journal) -> None:
    closed_run(journal, "r1", "f")
    journal.append_messages([NewMessage("f", "news", 1.0, "#s", b"old", 1_000)] * 3)
    journal.remove_run("r1")
    assert journal.read_messages("f", "news", 0, 10) == []
    journal.append_messages([NewMessage("f", "news", 1.0, "#s", b"new", 1_000)])
    answer = RequestAnswer("f", "q-r1", b"another")
    assert journal.append([start("r2", "f", requests=(answer,))]) == [Outcome.DURABLE]
    clear(journal)
    assert journal.recorded_answer("f", "q-r1") == b"another"
    assert [message.payload for message in journal.read_messages("f", "news", 3, 10)] == [b"new"]


def test_streams_stay_while_another_run_of_the_flow_id_does(journal: Journal) -> None:
    closed_run(journal, "r1", "f", started_at=1.0)
    closed_run(journal, "r2", "f", started_at=2.0, replaces="r1")
    journal.append_messages([NewMessage("f", "news", 1.0, "#s", b"hello", 1_000)])
    journal.remove_run("r1")
    assert len(journal.read_messages("f", "news", 0, 10)) == 1
    journal.remove_run("r2")
    assert journal.read_messages("f", "news", 0, 10) == []


def test_a_long_stream_goes_in_pieces(
    journal: Journal, journal_url: str, monkeypatch: pytest.MonkeyPatch, another: OpenJournal
) -> None:
    monkeypatch.setattr("dexray.journal.removal.MESSAGES_AT_ONCE", 10)
    closed_run(journal, "r1", "f")
    for stream in ("a", "b"):
        journal.append_messages([NewMessage("f", stream, 1.0, "#s", b"12345", 10_000) for _ in range(35)])
    fail_write(journal, number=5)
    with pytest.raises(JournalUnavailable):
        journal.remove_run("r1")
    left = another()
    assert not is_gone(left, "r1", "f")
    sizes = rows(journal_url)["stream_messages"]
    assert 20 < sizes < 70
    assert left.read_messages("f", "b", 0, 1)[0].seq >= 1
    assert left.remove_run("r1")
    assert "stream_messages" not in rows(journal_url)
    assert "streams" not in rows(journal_url)


# Blobs ----------------------------------------------------------------------------------------------------------------


@pytest.mark.statement("D12")
def test_a_blob_stays_as_long_as_a_run_refers_to_it(journal: Journal) -> None:
    closed_run(journal, "r1", "f", blobs={"h1": b"one", "h2": b"two"}, started_at=1.0)
    closed_run(journal, "r2", "f", replaces="r1", blobs_of="r1", started_at=2.0)
    closed_run(journal, "r3", "g", blobs={"h2": b"two", "h3": b"three"})
    journal.remove_run("r1")
    clear(journal)
    assert set(journal.get_blobs(["h1", "h2", "h3"])) == {"h1", "h2", "h3"}
    journal.remove_run("r2")
    clear(journal)
    assert set(journal.get_blobs(["h1", "h2", "h3"])) == {"h2", "h3"}
    journal.remove_run("r3")
    clear(journal)
    assert journal.get_blobs(["h1", "h2", "h3"]) == {}


def test_a_blob_that_is_referred_to_anew_after_it_was_found_unused_is_not_freed(
    journal: Journal, another: OpenJournal
) -> None:
    closed_run(journal, "r1", "f", blobs={"h1": b"one", "h2": b"two"})
    journal.remove_run("r1")
    while journal.clear_removed(100):
        pass
    database: Any = journal._database  # type: ignore[attr-defined]
    original = database.read

    def read_then_write(work: Callable[[Any], Any], **how: Any) -> Any:
        database.read = original
        found = original(work, **how)
        another().append([start("r2", "g", blobs={"h1": b"one"})])
        return found

    database.read = read_then_write
    assert journal.free_blobs("", 100) == (1, "")
    assert journal.get_blobs(["h1", "h2"]) == {"h1": b"one"}


def test_few_large_blobs_go_together_and_many_small_ones(journal: Journal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dexray.journal.removal.BYTES_AT_ONCE", 100)
    closed_run(journal, "r1", "f", blobs={f"h{n}": bytes(60 if n < 3 else 1) for n in range(9)})
    journal.remove_run("r1")
    while journal.clear_removed(100):
        pass
    counts, after = [], ""
    while True:
        count, after = journal.free_blobs(after, 5)
        counts.append(count)
        if not after:
            break
    assert sum(counts) == 9
    assert counts == [1, 1, 5, 2]
    database: Any = journal._database  # type: ignore[attr-defined]
    assert database.read(lambda connection: unused_blobs(connection, "", 5)) == ([], "")


def test_a_run_that_takes_over_the_blobs_of_a_removed_one_is_refused(journal: Journal) -> None:
    closed_run(journal, "r1", "f", blobs={"h1": b"one"})
    journal.remove_run("r1")
    fork = start("r2", "f", replaces="r1", blobs_of="r1")
    assert journal.append([fork]) == [Outcome.CONFLICT]
    assert journal.read_back([fork]) == [Outcome.CONFLICT]
    assert journal.append([start("r3", "f", replaces="r1")]) == [Outcome.DURABLE]


def test_a_record_of_a_removed_run_is_refused(journal: Journal) -> None:
    closed_run(journal, "r1", "f")
    journal.remove_run("r1")
    assert journal.append([record("r1", 4)]) == [Outcome.FENCED]


# Crashes --------------------------------------------------------------------------------------------------------------


def fail_write(journal: Journal, number: int) -> None:
    """The transaction of this number, counted from now on, does not happen, and none after it."""
    database: Any = journal._database  # type: ignore[attr-defined]
    original, left = database.write, number

    def write(work: Callable[[Any], Any], **how: Any) -> Any:
        nonlocal left
        left -= 1
        if left <= 0:
            raise JournalUnavailable("killed")
        return original(work, **how)

    database.write = write


@pytest.mark.parametrize("number", range(1, 16))
def test_killed_before_any_of_its_transactions_the_next_one_brings_it_to_its_end(
    number: int, journal: Journal, journal_url: str, another: OpenJournal
) -> None:
    closed_run(journal, "r1", "f", records=10, blobs={"h1": b"one", "h2": b"two"}, started_at=1.0)
    closed_run(journal, "r2", "g", blobs={"h2": b"two"})
    fail_write(journal, number)
    try:
        journal.remove_run("r1")
        clear(journal, limit=2)
    except JournalUnavailable:
        pass
    next_one = another()
    if not is_gone(next_one, "r1", "f"):
        loaded = next_one.load("r1")
        assert loaded is not None
        assert len(next_one.records("r1", 0, 100)) == 10
        assert set(next_one.get_blobs(["h1", "h2"])) == {"h1", "h2"}
        assert next_one.remove_run("r1")
    clear(next_one)
    assert set(next_one.get_blobs(["h1", "h2"])) == {"h2"}
    left = rows(journal_url)
    assert (left["runs"], left["events"], left["blob_refs"], left["requests"]) == (1, 3, 1, 1)
    assert "removed_runs" not in left


# What retention asks --------------------------------------------------------------------------------------------------


def test_closed_runs_come_in_the_order_of_their_end_page_by_page(journal: Journal) -> None:
    for number, closed_at in enumerate([5.0, 3.0, 3.0, 4.0, 9.0], 1):
        run_id = f"r{number}"
        journal.append([start(run_id, change=RunChange("COMPLETED", closed_at))])
    journal.append([start("open")])
    found, after = [], (0.0, "")
    while page := journal.closed_runs(9.0, after, 2):
        assert len(page) <= 2
        found += [row.run_id for row in page]
        after = (page[-1].closed_at or 0.0, page[-1].run_id)
    assert found == ["r2", "r3", "r4", "r1"]
