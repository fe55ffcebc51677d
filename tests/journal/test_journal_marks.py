"""Marks: what Attribute stores have yet to be told, kept with the records that say it."""

from __future__ import annotations

import pytest

from dexray.journal import Journal, Outcome, RunChange, StoreMark
from tests.journal.builders import CLOSED, record, start
from tests.journal.conftest import OpenJournal


def mark(image: bytes, flow_id: str = "f", store: str = "main") -> StoreMark:
    return StoreMark(store, flow_id, image)


def images(journal: Journal, *flow_ids: str, store: str = "main") -> dict[str, bytes]:
    return {found.flow_id: found.image for found in journal.find_marks(store, flow_ids or ["f"])}


@pytest.mark.statement("C73")
def test_a_mark_is_there_when_its_record_is(journal: Journal) -> None:
    journal.append([start("r", "f", marks=(mark(b"1"), mark(b"1", store="other")))])
    assert images(journal) == {"f": b"1"}
    assert images(journal, store="other") == {"f": b"1"}
    assert images(journal, "g") == {}
    (found,) = journal.find_marks("main", ["f"])
    assert (found.run_id, found.seq, found.marked_at) == ("r", 1, 100.0)


def test_a_record_that_is_refused_marks_nothing(journal: Journal) -> None:
    journal.append([start("r", "f", owner="host-1")])
    journal.claim(["r"], "host-1")
    assert journal.append([record("r", 2, epoch=1, marks=(mark(b"2"),))]) == [Outcome.FENCED]
    assert images(journal) == {}


@pytest.mark.parametrize("together", [True, False], ids=["in one batch", "in two"])
def test_a_later_mark_takes_the_place_of_an_earlier_one_but_keeps_its_time(journal: Journal, together: bool) -> None:
    batch = [start("r", "f", marks=(mark(b"1"),)), record("r", 2, marks=(mark(b"2"),))]
    for part in [batch] if together else [batch[:1], batch[1:]]:
        journal.append(part)
    (found,) = journal.find_marks("main", ["f"])
    assert (found.image, found.seq) == (b"2", 2)
    if not together:
        assert found.marked_at == 100.0


def test_the_mark_of_a_new_run_takes_the_place_of_that_of_the_run_before(journal: Journal) -> None:
    journal.append([start("r1", "f", marks=(mark(b"old"),), change=CLOSED)])
    (old,) = journal.find_marks("main", ["f"])
    journal.append([start("r2", "f", replaces="r1", marks=(mark(b"new"),))])
    journal.clear_marks([old])
    assert images(journal) == {"f": b"new"}


def test_clearing_takes_away_what_was_told_and_nothing_later(journal: Journal) -> None:
    journal.append([start("r", "f", marks=(mark(b"1"),)), start("s", "g", marks=(mark(b"1", "g"),))])
    told = journal.find_marks("main", ["f", "g"])
    journal.append([record("r", 2, marks=(mark(b"2"),))])
    journal.clear_marks(told)
    assert images(journal, "f", "g") == {"f": b"2"}
    journal.clear_marks([])
    journal.clear_marks(told)
    assert images(journal, "f", "g") == {"f": b"2"}


def test_marks_are_listed_in_pages_store_by_store(journal: Journal) -> None:
    names = ["f-10", "f-2", "ä", "A", "a b"]
    journal.append([start(f"r-{name}", name, marks=(mark(b"1", name), mark(b"1", name, "other"))) for name in names])
    first = journal.list_marks("main", "", 3)
    second = journal.list_marks("main", first[-1][0], 3)
    assert [flow_id for flow_id, _ in (*first, *second)] == sorted(names, key=str.encode)
    assert {since for _, since in first} == {100.0}
    assert journal.list_marks("nobody's", "", 3) == []


def test_marks_outlive_their_writer(another: OpenJournal) -> None:
    first = another()
    first.append([start("r", "f", marks=(mark(b"1"),))])
    assert images(another()) == {"f": b"1"}


def test_a_mark_goes_with_its_run_and_with_no_other(journal: Journal) -> None:
    closed = RunChange(status="COMPLETED", closed_at=5.0)
    journal.append([start("r1", "f", change=closed, marks=(mark(b"1"),)), start("s1", "g", marks=(mark(b"1", "g"),))])
    journal.append([start("r2", "f", replaces="r1", marks=(mark(b"2"),), change=closed)])
    assert journal.remove_run("r1")
    assert images(journal, "f", "g") == {"f": b"2", "g": b"1"}
    assert journal.remove_run("r2")
    assert images(journal, "f", "g") == {"g": b"1"}
