"""A journal of every kind of database. A new kind is one more line of BACKENDS."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dexray.journal import Journal, open_journal
from tests.postgres import postgres_server

BACKENDS: dict[str, Callable[[Path], str]] = {
    "sqlite": lambda folder: f"sqlite:///{folder}/journal.db",
    "postgres": lambda folder: postgres_server().new_schema(),
}

OpenJournal = Callable[[], Journal]


@pytest.fixture(params=BACKENDS)
def journal_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    url = BACKENDS[request.param](tmp_path)
    yield url
    tear_down(url)


def tear_down(url: str) -> None:
    """Files go with their folder; a schema of the server is dropped."""
    if url.startswith("postgresql"):
        postgres_server().drop_schema(url)


@pytest.fixture
def another(journal_url: str) -> Iterator[OpenJournal]:
    """Opens one more journal object on the same database, as another owner would."""
    opened: list[Journal] = []

    def open_one() -> Journal:
        opened.append(open_journal(journal_url))
        opened[-1].migrate()
        return opened[-1]

    yield open_one
    for journal in opened:
        journal.close()


@pytest.fixture
def journal(another: OpenJournal) -> Journal:
    return another()
