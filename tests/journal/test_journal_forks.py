"""A run that begins where another one was refers to that one's blobs."""

from __future__ import annotations

import pytest
from sqlalchemy import create_engine, select

from dexray.journal import Journal, Outcome
from dexray.journal.schema import blob_refs
from tests.journal.builders import CLOSED, record, start


def refs(journal_url: str) -> dict[str, set[str]]:
    """Which blobs each run refers to, looked up beside the journal."""
    engine = create_engine(journal_url)
    with engine.connect() as connection:
        found: dict[str, set[str]] = {}
        for run_id, digest in connection.execute(select(blob_refs.c.run_id, blob_refs.c.hash)):
            found.setdefault(run_id, set()).add(digest)
    engine.dispose()
    return found


@pytest.mark.statement("C52", "D12")
def test_a_fork_refers_to_the_blobs_of_the_run_that_it_names_and_to_its_own(journal: Journal, journal_url: str) -> None:
    journal.append([start("r1", "f", blobs={"h1": b"one"}), start("other", "g", blobs={"h9": b"nine"})])
    journal.append([record("r1", 2, blobs={"h2": b"two"}, change=CLOSED)])
    fork = start("r2", "f", replaces="r1", blobs_of="r1", blobs={"h2": b"two", "h3": b"three"})
    assert journal.append([fork]) == [Outcome.DURABLE]
    assert refs(journal_url) == {"r1": {"h1", "h2"}, "r2": {"h1", "h2", "h3"}, "other": {"h9"}}


def test_a_fork_of_a_fork_refers_to_all_of_them(journal: Journal, journal_url: str) -> None:
    journal.append([start("r1", "f", blobs={"h1": b"one"}, change=CLOSED)])
    journal.append([start("r2", "f", replaces="r1", blobs_of="r1", change=CLOSED)])
    journal.append([start("r3", "f", replaces="r2", blobs_of="r2")])
    assert refs(journal_url)["r3"] == {"h1"}


def test_a_fork_that_is_refused_refers_to_nothing(journal: Journal, journal_url: str) -> None:
    journal.append([start("r1", "f", blobs={"h1": b"one"}, change=CLOSED), start("r2", "f", replaces="r1")])
    assert journal.append([start("r3", "f", replaces="r1", blobs_of="r1")]) == [Outcome.CONFLICT]
    assert "r3" not in refs(journal_url)
