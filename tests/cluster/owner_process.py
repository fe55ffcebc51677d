"""An owner as a process of its own, without Ray: to be frozen, killed and thawed.

    python -m tests.cluster.owner_process DATABASE

Its Flows' handlers run in it. Each line on its standard input is a request, and each line of its output an answer:

    start work f-1 FOLDER      start parked p-1 FOLDER      publish p-1      result f-1

It prints "ready" when it has begun, and "outlived" when it has stepped down; then it ends.
"""

from __future__ import annotations

import asyncio
import os
import sys
from datetime import timedelta
from pathlib import Path

from dex import (
    AsyncClient,
    AsyncContext,
    Channel,
    ClientOptions,
    DexServiceError,
    Flow,
    PersistenceSchema,
    Registry,
    RetryPolicy,
    Step,
    StepDecision,
    StepList,
    StepOptions,
    Wait,
    graceful_complete,
)
from dexray.engine import LoopClock
from dexray.engine.clock import BlockingThread
from dexray.journal import open_journal
from dexray.testing.inprocess import InProcessEngine

OWNER = "owner"
OUTLIVED = 3
word = Channel("word", str)


def released_by(folder: str, pid: int) -> Path:
    """The file that lets all attempts of one process end."""
    return Path(folder) / f"go-{pid}"


class Work(Step[str]):
    """Leaves a line, and ends when its process is told to."""

    async def execute(self, context: AsyncContext, input: str) -> StepDecision:
        with (Path(input) / "effects").open("a") as effects:
            effects.write(f"{context.flow_id} {context.attempt} {os.getpid()}\n")
        while not released_by(input, os.getpid()).exists():  # noqa: ASYNC110
            await asyncio.sleep(0.02)
        return graceful_complete(f"attempt {context.attempt}")

    def get_step_options(self) -> StepOptions:
        policy = RetryPolicy(initial_interval=timedelta(seconds=1), backoff_coefficient=1.0)
        return StepOptions(execute_retry=policy)


class WorkFlow(Flow[str]):
    def get_steps(self) -> StepList[str]:
        return StepList.start_step(Work())


class Park(Step[str]):
    async def wait_for(self, context: AsyncContext, input: str) -> Wait:
        return Wait.until(word.for_one())

    async def execute(self, context: AsyncContext, input: str) -> StepDecision:
        return graceful_complete(list(word.results(context)))


class ParkedFlow(Flow[str]):
    def get_steps(self) -> StepList[str]:
        return StepList.start_step(Park())

    def get_persistence_schema(self) -> PersistenceSchema:
        return PersistenceSchema.of(word)


WORK, PARKED = WorkFlow(), ParkedFlow()
REGISTRY = Registry([WORK, PARKED], allow_async_handlers=True)


async def answer(client: AsyncClient, request: str) -> str:
    match request.split():
        case ["start", kind, flow_id, folder]:
            await client.start_flow(WORK if kind == "work" else PARKED, flow_id, folder)
            return "started"
        case ["publish", flow_id]:
            await client.publish(flow_id, word, "hello")
            return "published"
        case ["result", flow_id]:
            result = await client.wait_for_flow(flow_id, timedelta(seconds=60))
            return f"{result.status.name} {result.single_output(object)}"
        case _:
            raise ValueError(request)


async def main(database: str) -> None:
    journal = open_journal(database)
    journal.migrate()
    ended = asyncio.Event()
    engine = InProcessEngine(
        REGISTRY, journal, LoopClock(), owner=OWNER, blocking=BlockingThread("journal"), outlived=ended.set
    )
    await engine.start()
    await engine.host.recovered()
    client = AsyncClient(REGISTRY, engine, ClientOptions(request_timeout=timedelta(seconds=2)))

    async def serve() -> None:
        while line := await asyncio.to_thread(sys.stdin.readline):
            try:
                say(await answer(client, line))
            except DexServiceError as error:
                say(f"refused: {error.code.name}")

    say("ready")
    serving = asyncio.create_task(serve())
    await ended.wait()
    serving.cancel()
    say("outlived")
    os._exit(OUTLIVED)  # a thread may still wait for the next line


def say(line: str) -> None:
    print(line, flush=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
