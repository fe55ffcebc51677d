"""The simulator's journal keeps the promises of the real ones: the suites of `tests/journal` run over it.

The suites are named one by one: what a real journal learns beyond the needs of the simulator is not asked of this one.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from dexray.journal import Journal
from tests.journal.test_journal_conformance import (
    TestAnswers,
    TestAppending,
    TestChanges,
    TestCheckpoints,
    TestFencing,
    TestOneCurrentRun,
    TestOwners,
    TestReadingBack,
)
from tests.journal.test_journal_queries import TestBlobs, TestDeployments, TestLeases, TestListing, TestRuns
from tests.journal.test_journal_streams import (
    test_a_read_is_bounded_in_bytes_but_gives_one,
    test_messages_are_numbered_in_each_stream_of_each_flow_id,
    test_pages_go_backwards,
    test_reading_goes_on_behind_a_message_also_when_it_was_trimmed,
    test_the_newest_capacity_counts_and_the_last_message_always_stays,
    test_the_oldest_are_trimmed_to_the_capacity_and_numbers_go_on,
    test_two_owners_may_write_one_stream,
)
from tests.simulation.memory import Database, MemoryJournal

__all__ = [
    "TestAnswers",
    "TestAppending",
    "TestBlobs",
    "TestChanges",
    "TestCheckpoints",
    "TestDeployments",
    "TestFencing",
    "TestLeases",
    "TestListing",
    "TestOneCurrentRun",
    "TestOwners",
    "TestReadingBack",
    "TestRuns",
    "test_a_read_is_bounded_in_bytes_but_gives_one",
    "test_messages_are_numbered_in_each_stream_of_each_flow_id",
    "test_pages_go_backwards",
    "test_reading_goes_on_behind_a_message_also_when_it_was_trimmed",
    "test_the_newest_capacity_counts_and_the_last_message_always_stays",
    "test_the_oldest_are_trimmed_to_the_capacity_and_numbers_go_on",
    "test_two_owners_may_write_one_stream",
]


@pytest.fixture
def database() -> Database:
    return Database()


@pytest.fixture
def another(database: Database) -> Callable[[], Journal]:
    """One more connection to the same database, as another owner would have it."""
    return lambda: MemoryJournal(database)


@pytest.fixture
def journal(database: Database) -> Journal:
    return MemoryJournal(database)
