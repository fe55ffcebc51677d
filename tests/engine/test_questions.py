"""Searches beside the work: a long one holds up no Flow, and sees what was acknowledged before it was asked."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from dex import AsyncClient, Attribute, AttributeIndex, Flow, IndexType, PersistenceSchema, Registry, StepList
from dexray.engine import LoopClock
from dexray.engine.clock import BlockingThread
from dexray.engine.questions import Questions
from dexray.journal import Journal, JournalUnavailable, open_journal
from dexray.testing import InProcessEngine

colour = Attribute("colour", str, index=AttributeIndex(IndexType.KEYWORD))


class Thing(Flow[None]):
    def get_steps(self) -> StepList[None]:
        return StepList.without_start_step()

    def get_persistence_schema(self) -> PersistenceSchema:
        return PersistenceSchema.of(colour)


THING = Thing()


class Searched:
    """An engine whose journals are in threads. A search waits for `go_on` when told to; `opened` are its journals."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.blocking = BlockingThread("journal")
        self.go_on = threading.Event()
        self.go_on.set()
        self.asked = threading.Event()
        self.opened: list[Any] = []
        self.outages = 0
        journal = open_journal(path)
        journal.migrate()
        self.engine = InProcessEngine(Registry([THING]), journal, LoopClock(), blocking=self.blocking)
        self.engine.host.questions = Questions(self.engine.host, self.open)

    def open(self) -> Journal:
        if self.outages:
            self.outages -= 1
            raise JournalUnavailable("not now")
        journal: Any = open_journal(self.path)
        search = journal.search_runs

        def slow(*args: Any, **more: Any) -> Any:
            self.asked.set()
            assert self.go_on.wait(60)
            return search(*args, **more)

        journal.search_runs = slow
        self.opened.append(journal)
        return journal  # type: ignore[no-any-return]


@pytest.fixture
async def searched(tmp_path: Path) -> AsyncIterator[Searched]:
    searched = Searched(tmp_path / "flows.db")
    await searched.engine.start()
    yield searched
    searched.go_on.set()
    await searched.engine.close()
    searched.blocking.close()


async def test_flows_go_on_while_a_search_takes_long(searched: Searched) -> None:
    client = AsyncClient(searched.engine.registry, searched.engine)
    searched.go_on.clear()
    search = asyncio.create_task(client.search_flows("colour = 'red'", 10))
    await asyncio.to_thread(searched.asked.wait, 60)
    await client.start_flow(THING, "a")
    await client.set_attribute("a", colour, "red")
    assert not search.done()
    searched.go_on.set()
    assert [entry.flow_id for entry in (await search).flows] == ["a"]
    assert await client.count_flows("colour = 'red'") == 1
    assert len(searched.opened) == 1


@pytest.mark.statement("D10")
async def test_every_acknowledged_write_is_seen_by_the_other_journal_object(searched: Searched) -> None:
    client = AsyncClient(searched.engine.registry, searched.engine)
    for number in range(20):
        await client.start_flow(THING, f"f{number}")
        await client.set_attribute(f"f{number}", colour, f"{number}")
        (entry,) = (await client.search_flows(f"colour = '{number}'", 10)).flows
        assert entry.flow_id == f"f{number}"


async def test_a_search_waits_for_a_database_that_comes_back(searched: Searched) -> None:
    client = AsyncClient(searched.engine.registry, searched.engine)
    searched.outages = 2
    assert (await client.search_flows("", 10)).flows == ()
    assert searched.outages == 0


async def test_the_end_of_the_engine_closes_what_searches_had_opened(searched: Searched) -> None:
    client = AsyncClient(searched.engine.registry, searched.engine)
    await client.search_flows("", 10)
    await searched.engine.close()
    with pytest.raises(RuntimeError, match="is closed"):
        searched.opened[0].count_runs(None, latest_only=True)
