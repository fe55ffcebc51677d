"""A client process: starts Flows, feeds them, waits for them, and writes down what it was told.

    python -m tests.benchmarks.soak.producer FOLDER NAME SEED

FOLDER holds `address` (of Ray), `database` (the URL) and, when it is time to come to an end, `stop`. It ends with 0
when each Flow that it began has ended.

Every call has a request id that follows from the plan of its Flow. So a producer that was killed in the middle repeats
the call in its next life under the same id, and gets the answer of the first one.
"""

from __future__ import annotations

import asyncio
import itertools
import sys
import time
from collections.abc import Awaitable, Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import dexray
from dex import AsyncClient, DexServiceError, StatusCode, StopFlowOptions, StopType, TimeTravelOptions, TimeTravelType
from dex.errors import (
    FlowAlreadyStartedError,
    FlowNotActiveOrNotFoundError,
    FlowNotFoundError,
    LongPollTimeoutError,
    RpcLockConflictError,
)
from dex.stream import StreamMessagesPage
from tests.benchmarks.soak.flows import (
    BRIEF,
    COUNTER,
    FAN,
    FLAKY,
    LETTERS,
    NAPS,
    PARENT,
    REGISTRY,
    STAY,
    STREAMS,
    TRAIN,
    TRIP,
    Letters,
    Naps,
    letter,
    mark,
    news,
    stop,
    wake,
)
from tests.benchmarks.soak.plan import Plan, plan_of
from tests.benchmarks.soak.records import Records, read_records

NAMESPACE = "soak"
AT_ONCE = 3  # Flows that one producer has under way
RETENTION = 200.0  # seconds: far longer than any producer is away
BUSY_DATABASE = 240.0  # seconds until the engine of a lost cluster has ended, and another may have the database
REPEATED = {
    StatusCode.UNAVAILABLE,
    StatusCode.DEADLINE_EXCEEDED,
    StatusCode.ABORTED,
    StatusCode.RESOURCE_EXHAUSTED,
}


class Producer:
    def __init__(self, folder: Path, name: str, seed: int, client: AsyncClient) -> None:
        path = folder / f"records-{name}.jsonl"
        self._records = Records(path, name)
        self._stop = folder / "stop"
        self._name = name
        self._seed = seed
        self._client = client
        self._acked: dict[tuple[str, str], Any] = {}
        begun: dict[str, int] = {}
        for record in read_records(path):
            match record["what"]:
                case "begun":
                    begun[record["flow"]] = record["number"]
                case "acked":
                    self._acked[record["flow"], record["request"]] = record["answer"]
                case "ended":
                    begun.pop(record["flow"], None)
        self._unfinished = list(begun.values())
        first = max((record["number"] for record in read_records(path) if record["what"] == "begun"), default=-1) + 1
        self._numbers = itertools.count(first)

    async def run(self) -> None:
        await asyncio.gather(*(self._work() for _ in range(AT_ONCE)))

    async def _work(self) -> None:
        while self._unfinished or not self._stop.exists():
            is_new = not self._unfinished
            number = next(self._numbers) if is_new else self._unfinished.pop(0)
            plan = plan_of(self._seed, self._name, number)
            if is_new:
                self._records.write("begun", plan.flow, number=number, kind=plan.kind, plan=plan.what)
            await self._follow(plan)
            await asyncio.sleep(0.05)

    async def _follow(self, plan: Plan) -> None:
        flow_id, what, client = plan.flow, plan.what, self._client
        match plan.kind:
            case "letters":
                writers: dict[str, int] = what["writers"]
                await self._start(LETTERS, flow_id, Letters(sum(writers.values())))
                await asyncio.gather(*(self._write_letters(flow_id, name, count) for name, count in writers.items()))
            case "naps":
                await self._start(NAPS, flow_id, Naps(tuple(what["seconds"])))
                if what["wake_after"] is not None:
                    await asyncio.sleep(what["wake_after"])
                    await self._call(flow_id, "wake", lambda it: client.publish(flow_id, wake, "up", request_id=it))
            case "fan":
                await self._start(FAN, flow_id, what["width"])
            case "counter":
                await self._start(COUNTER, flow_id, None)
                await asyncio.gather(*(self._add(flow_id, who, adds) for who, adds in enumerate(what["adds"])))
                await self._set_marks(flow_id)
                await self._call(
                    flow_id, "finish", lambda it: client.invoke_rpc(COUNTER.finish, flow_id, None, request_id=it)
                )
            case "parent":
                await self._start(PARENT, flow_id, what["children"])
            case "flaky":
                await self._start(FLAKY, flow_id, what["fails"])
            case "train":
                await self._start(TRAIN, flow_id, what["seconds"])
            case "stream":
                await self._start(STREAMS, flow_id, what["messages"])
                await self._write_stream(flow_id, what["own"])
            case "trip":
                await self._start(TRIP, flow_id, what["stops"])
                await self._travel(flow_id, what["stops"], what["back_after"])
            case "brief":
                await self._start(BRIEF, flow_id, what["steps"])
                await self._wait(flow_id)
                await self._delete(flow_id)
                return
            case _:
                await self._start(STAY, flow_id, None)
                options = StopFlowOptions(StopType[what["how"]], "as planned")
                await self._call(flow_id, "stop", lambda it: client.stop_flow(flow_id, options, request_id=it))
        await self._wait(flow_id)
        if plan.kind == "stream":
            await self._list_stream(flow_id)
        if hash_of(flow_id) % 4 == 0:  # an end is the same whenever it is asked for
            await self._wait(flow_id)

    # Calls with an effect ---------------------------------------------------------------------------------------------

    async def _call(self, flow_id: str, key: str, call: Callable[[str], Awaitable[Any]], **said: Any) -> Any:
        """One call, repeated under one request id until it is answered; not at all when a former life has its answer.

        `said`: what the auditor has to know of it.
        """
        request_id = f"{flow_id}/{key}"
        if (flow_id, request_id) in self._acked:
            return self._acked[flow_id, request_id]
        self._records.write("asked", flow_id, request=request_id, key=key, **said)
        while True:
            try:
                answer = await call(request_id)
                break
            except FlowAlreadyStartedError:
                answer = "started by a former life"
                break
            except FlowNotActiveOrNotFoundError as error:
                self._refused(flow_id, error, request_id)
                return None
            except DexServiceError as error:
                self._refused(flow_id, error, request_id)
                if error.code not in REPEATED:
                    raise
            await asyncio.sleep(0.1)
        self._records.write("acked", flow_id, request=request_id, key=key, answer=answer, **said)
        self._acked[flow_id, request_id] = answer
        return answer

    def _refused(self, flow_id: str, error: DexServiceError, request_id: str = "") -> None:
        self._records.write(
            "refused",
            flow_id,
            request=request_id,
            operation=error.operation,
            code=error.code.name,
            is_lock=isinstance(error, RpcLockConflictError),
            is_closed=isinstance(error, FlowNotActiveOrNotFoundError),
            detail=error.detail[:500],
        )

    async def _start(self, flow: Any, flow_id: str, input: Any) -> None:
        await self._call(flow_id, "start", lambda it: self._client.start_flow(flow, flow_id, input, request_id=it))

    async def _write_letters(self, flow_id: str, writer: str, count: int) -> None:
        """One after the other, each when the one before was acknowledged; `bob` sends two at a time."""
        size = 2 if writer == "bob" else 1
        for first in range(0, count, size):
            values = [f"{writer}:{number}" for number in range(first, min(first + size, count))]

            async def send(request_id: str, values: list[str] = values) -> Any:
                if writer == "rpc":
                    return await self._client.invoke_rpc(LETTERS.post, flow_id, values[0], request_id=request_id)
                return list(await self._client.publish(flow_id, letter, *values, request_id=request_id))

            await self._call(flow_id, f"{writer}-{first}", send, values=values)

    async def _add(self, flow_id: str, who: int, adds: list[int]) -> None:
        for number, amount in enumerate(adds):

            async def add(request_id: str, amount: int = amount) -> int:
                return await self._client.invoke_rpc(COUNTER.add, flow_id, amount, request_id=request_id)

            await self._call(flow_id, f"add-{who}-{number}", add, amount=amount)
            await self._read(flow_id, f"total-{who}", lambda: self._client.invoke_rpc(COUNTER.read, flow_id))

    async def _set_marks(self, flow_id: str) -> None:
        for number in (1, 2, 3):

            async def write(request_id: str, number: int = number) -> None:
                await self._client.set_attribute(flow_id, mark, number, request_id=request_id)

            await self._call(flow_id, f"mark-{number}", write, value=number)
            await self._read(flow_id, "mark", lambda: self._client.get_attribute(flow_id, mark))
            query = f"FlowId = '{flow_id}' AND mark >= {number}"
            await self._read(flow_id, "found", lambda query=query: self._client.count_flows(query))

    async def _travel(self, flow_id: str, stops: int, back_after: int) -> None:
        options = TimeTravelOptions(TimeTravelType.BEGINNING)
        for number in range(stops + 1):
            if number == back_after:
                await self._call(
                    flow_id,
                    "back",
                    lambda it: self._client.time_travel(flow_id, options, request_id=it),
                    is_travel=True,
                )
            if number < stops:

                async def send(request_id: str, number: int = number) -> Any:
                    return list(await self._client.publish(flow_id, stop, number, request_id=request_id))

                await self._call(flow_id, f"stop-{number}", send, values=[number])

    async def _delete(self, flow_id: str) -> None:
        """Has no request id: one that was not answered is asked for again, and finds nothing any more."""

        async def delete(_: str) -> None:
            try:
                await self._client.delete_flow(flow_id)
            except FlowNotFoundError:
                return

        async def is_gone() -> bool:
            try:
                await self._client.describe_flow(flow_id)
            except FlowNotFoundError:
                return True
            return False

        await self._call(flow_id, "delete", delete)
        await self._read(flow_id, "gone", is_gone)

    async def _write_stream(self, flow_id: str, count: int) -> None:
        """A message of a client has no request id: what was not acknowledged may be there, once or more."""
        for number in range(count):

            async def write(_: str, source: str = f"client-{number}") -> None:
                await self._client.write_stream(flow_id, news, source, source)

            await self._call(flow_id, f"news-{number}", write)

    # Calls without one ------------------------------------------------------------------------------------------------

    async def _read(self, flow_id: str, name: str, call: Callable[[], Awaitable[Any]]) -> None:
        """What is read now; begun after all that this record's forerunners tell of."""
        self._records.write("reading", flow_id, name=name)
        value = await self._again(flow_id, call)
        self._records.write("read", flow_id, name=name, value=value)

    async def _wait(self, flow_id: str) -> None:
        result = await self._again(flow_id, lambda: self._client.wait_for_flow(flow_id, timedelta(seconds=60)))
        outputs = [completion.decode(object) for completion in result.completions if completion.has_output]
        self._records.write("ended", flow_id, status=result.status.name, outputs=outputs, error=result.error_message)

    async def _list_stream(self, flow_id: str) -> None:
        messages: list[list[str]] = []
        token = ""
        while True:

            async def list_page(token: str = token) -> StreamMessagesPage[str]:
                return await self._client.list_stream_messages(flow_id, news, 100, token)

            page = await self._again(flow_id, list_page)
            messages += [[message.source, message.value] for message in page.messages]
            token = page.next_page_token
            if not token:
                break
        self._records.write("read", flow_id, name="news", value=messages[::-1])

    async def _again(self, flow_id: str, call: Callable[[], Awaitable[Any]]) -> Any:
        while True:
            try:
                return await call()
            except LongPollTimeoutError:
                continue
            except DexServiceError as error:
                self._refused(flow_id, error)
                if error.code not in REPEATED:
                    raise
            await asyncio.sleep(0.1)


def hash_of(text: str) -> int:
    """Of a text, the same in every process."""
    return sum(text.encode())


async def connect(folder: Path) -> AsyncClient:
    """The engine of a cluster whose head alone was lost lives on for a while, and holds the database until it ends."""
    give_up_at = time.monotonic() + BUSY_DATABASE
    while True:
        try:
            return await dexray.connect_async(
                REGISTRY,
                address=(folder / "address").read_text(),
                database=(folder / "database").read_text(),
                namespace=NAMESPACE,
                flow_actors=3,
                max_flow_actors=3,
                request_timeout=15.0,
                retention=RETENTION / 86400,
            )
        except DexServiceError as error:
            if "is in use by" not in error.detail or time.monotonic() > give_up_at:
                raise
        await asyncio.sleep(2.0)


async def main(folder: Path, name: str, seed: int) -> None:
    client = await connect(folder)
    async with client:
        await Producer(folder, name, seed, client).run()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])))
