"""A real server that is stopped and started under a running engine, with the engine's own thread and the wall clock."""

from __future__ import annotations

import asyncio
import signal
import threading
import time
from collections.abc import Iterator
from datetime import timedelta

import pytest

from dex import (
    AsyncClient,
    Channel,
    ClientOptions,
    Context,
    Flow,
    FlowStatus,
    PersistenceSchema,
    Registry,
    Step,
    StepDecision,
    StepList,
    Wait,
    go_to,
    graceful_complete,
)
from dex.wire.service import DescribeFlow, ListFlows, Publish, ServiceError
from dexray.engine import HostSettings, LoopClock
from dexray.engine.clock import BlockingThread
from dexray.journal import Journal, JournalUnavailable, open_journal
from dexray.testing import InProcessEngine
from tests.postgres import PostgresServer

FLOWS = 12
news = Channel("news", str)


class Ask(Step[int]):
    def wait_for(self, context: Context, input: int) -> Wait:
        return Wait.until(news.for_one())

    def execute(self, context: Context, input: int) -> StepDecision:
        return go_to(Tell, f"{input} {news.results(context)[0]}")


class Tell(Step[str]):
    def execute(self, context: Context, input: str) -> StepDecision:
        return graceful_complete(input)


class AskAndTell(Flow[int]):
    def get_steps(self) -> StepList[int]:
        return StepList.start_step(Ask()).other_steps(Tell())

    def get_persistence_schema(self) -> PersistenceSchema:
        return PersistenceSchema.of(news)


flow = AskAndTell()
registry = Registry([flow])


@pytest.fixture
def server() -> Iterator[PostgresServer]:
    own = PostgresServer(max_connections="20")
    yield own
    own.close()


class Owner:
    """An engine as a process has it: a thread for the journal, and the journal's one connection."""

    def __init__(self, url: str) -> None:
        self._url = url
        self.blocking = BlockingThread("test-journal")
        self.journal: Journal | None = None

    async def begin(self) -> None:
        while self.journal is None:
            try:
                self.journal = await self.blocking(lambda: open_journal(self._url, patience=5.0))
                await self.blocking(self.journal.migrate)
            except JournalUnavailable:
                await asyncio.sleep(0.05)
        settings = HostSettings(outage_patience=0.5)
        self.engine = InProcessEngine(registry, self.journal, LoopClock(), blocking=self.blocking, settings=settings)
        await self.engine.start()
        options = ClientOptions(request_timeout=timedelta(seconds=120))
        self.client = AsyncClient(registry, self.engine, options)

    async def end(self, *, crash: bool = False) -> None:
        await (self.engine.crash() if crash else self.engine.close())
        assert self.journal is not None
        await self.blocking(self.journal.close)
        self.blocking.close()


async def start(owner: Owner, name: str) -> None:
    await owner.client.start_flow(flow, name, int(name.rpartition("-")[2]))


async def finish(owner: Owner, name: str) -> None:
    await owner.client.publish(name, news, "word")
    result = await owner.client.wait_for_flow(name, timeout=timedelta(seconds=120))
    assert result.status is FlowStatus.COMPLETED
    assert result.single_output(str) == f"{name.rpartition('-')[2]} word"


async def refused_in_time(owner: Owner, name: str) -> None:
    for request in (
        DescribeFlow(flow_id=f"unknown-{name}"),
        ListFlows(),
        Publish(flow_id=name, channel="news", values=(b"\xa4word",), request_id=f"early-{name}", fresh=True),
    ):
        began = time.monotonic()
        with pytest.raises(ServiceError) as refused:
            await owner.engine.call(request)  # type: ignore[arg-type]
        assert refused.value.failure.code == "UNAVAILABLE"
        assert time.monotonic() - began < 30


@pytest.mark.kill
@pytest.mark.statement("D14", "B202")
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGQUIT], ids=["shut down", "crashed"])
def test_a_server_that_goes_and_comes_back_pauses_flows_and_leaves_nothing_behind(
    server: PostgresServer, how: signal.Signals
) -> None:
    url = server.new_database("flows")
    threads = threading.active_count()

    async def main() -> None:
        owner = Owner(url)
        await owner.begin()
        first = [f"first-{number}" for number in range(FLOWS)]
        for name in first:
            await start(owner, name)

        server.stop(how)
        under_way = [asyncio.create_task(start(owner, f"second-{number}")) for number in range(FLOWS)]
        under_way += [asyncio.create_task(finish(owner, name)) for name in first[1:]]
        await refused_in_time(owner, first[0])
        server.start()
        await asyncio.gather(*under_way)
        # The message of the call that was refused was kept, and arrives once.
        assert (await owner.client.wait_for_flow(first[0])).single_output(str) == "0 word"

        finishing = [asyncio.create_task(finish(owner, f"second-{number}")) for number in range(FLOWS)]
        await asyncio.sleep(0.02)  # somewhere in the middle of it
        server.stop(how)
        server.start()
        await asyncio.gather(*finishing)

        for number in range(FLOWS):
            await start(owner, f"third-{number}")
        server.stop(how)
        await owner.end(crash=True)
        another = Owner(url)
        beginning = asyncio.create_task(another.begin())
        await asyncio.sleep(0.1)
        assert not beginning.done()
        server.start()
        await beginning
        await asyncio.gather(*(finish(another, f"third-{number}") for number in range(FLOWS)))
        assert server.connections_to("flows") == 1
        closed = "SELECT count(*), count(closed_at), count(DISTINCT flow_id) FROM runs WHERE status = 'COMPLETED'"
        assert server.ask(closed, "flows") == [(3 * FLOWS,) * 3]
        # What failed were attempts that the first owner had under way when it was killed.
        failed = (
            "SELECT flow_id FROM events JOIN runs USING (run_id) "
            "WHERE body LIKE '%AttemptFailed%'::bytea AND flow_id NOT LIKE 'third-%'"
        )
        assert server.ask(failed, "flows") == []
        await another.end()

    asyncio.run(main())
    assert threading.active_count() == threads
    deadline = time.monotonic() + 30
    while server.connections_to("flows"):
        assert time.monotonic() < deadline
        time.sleep(0.02)
