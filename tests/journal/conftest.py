"""A journal of every kind of database. A new kind is one more line of BACKENDS."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest

from dexray.journal import Journal, open_journal
from dexray.journal.schema import metadata, schema_version
from tests.postgres import postgres_server

BACKENDS: dict[str, Callable[[Path], str]] = {
    "sqlite": lambda folder: f"sqlite:///{folder}/journal.db",
    "postgres": lambda folder: postgres_server().new_schema(),
}

OpenJournal = Callable[[], Journal]


_emptied: list[str] = []


@contextmanager
def lent(backend: str, folder: Path) -> Iterator[str]:
    """The URL of an empty journal. On a server the tables are made once, and emptied for the next: to make them takes
    longer than most tests."""
    url = _emptied.pop() if backend == "postgres" and _emptied else BACKENDS[backend](folder)
    yield url
    if backend == "postgres" and empty(url):
        _emptied.append(url)
    else:
        tear_down(url)


def empty(url: str) -> bool:
    """Not so when somebody's transaction is still open there, or the tables are not those of a journal."""
    # Not TRUNCATE, which makes new files for every table and index.
    names = [table.name for table in metadata.sorted_tables if table.name != schema_version.name]
    try:
        with psycopg.connect(url.replace("+psycopg", ""), autocommit=True) as connection:
            connection.execute("SET lock_timeout = '1s'")
            connection.execute("; ".join(f"DELETE FROM {name}" for name in names))  # type: ignore[call-overload]
    except psycopg.Error:
        return False
    return True


@pytest.fixture(params=BACKENDS)
def journal_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if getattr(request.module, "MAKES_TABLES", False):
        url = BACKENDS[request.param](tmp_path)
        yield url
        tear_down(url)
        return
    with lent(request.param, tmp_path) as url:
        yield url


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
