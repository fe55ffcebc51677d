"""The examples of RPCs and Attributes, in process."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dex import Client, FlowStatus, Registry
from dexray.engine import LoopClock
from dexray.journal import open_journal
from dexray.testing import InProcessEngine
from examples.primitives import attribute, rpc


class _Threaded:
    """The service of an engine that runs in an event loop of another thread."""

    def __init__(self, engine: InProcessEngine, loop: asyncio.AbstractEventLoop) -> None:
        self._engine = engine
        self._loop = loop

    async def call(self, request: Any) -> Any:
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(self._engine.call(request), self._loop))

    async def close(self) -> None: ...


@contextmanager
def client_of(registry: Registry, folder: Path) -> Iterator[Client]:
    """A blocking client of an engine in this process."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    def there(call: Callable[[], Coroutine[Any, Any, None]]) -> None:
        asyncio.run_coroutine_threadsafe(call(), loop).result(30)

    journal = open_journal(folder / "flows.db")
    journal.migrate()
    engine = InProcessEngine(registry, journal, LoopClock())
    try:
        there(engine.start)
        with Client(registry, _Threaded(engine, loop)) as client:
            yield client
    finally:
        there(engine.close)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def test_a_meeting_is_joined_closed_and_remembered(tmp_path: Path) -> None:
    with client_of(rpc.registry, tmp_path) as client:
        assert rpc.meet(client, "meeting") == [
            "Stand-up begins",
            "Ada is number 1",
            "Ben is number 2",
            "Stand-up: closed by Ada, 2 guests",
            "there were Ada, Ben",
        ]
        assert client.describe_flow("meeting").status is FlowStatus.COMPLETED


def test_a_warehouse_counts_and_forgets_what_is_gone(tmp_path: Path) -> None:
    with client_of(attribute.registry, tmp_path) as client:
        assert attribute.a_day(client, "warehouse") == {"bolts": 70}
        assert client.get_attribute("warehouse", attribute.town) == "Turin"
        assert client.get_attribute("warehouse", attribute.moves) == 4
