"""RPC round trips: a client calls, a handler runs on a worker, the client has its answer. What is written is durable
then."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable

from dex import AsyncClient, Attribute, Context, Flow, PersistenceSchema, RPCResult, rpc

total = Attribute("total", int)


class Ledger(Flow[None]):
    def get_persistence_schema(self) -> PersistenceSchema:
        return PersistenceSchema.of(total)

    @rpc
    def read(self, context: Context, input: int) -> RPCResult[int]:
        return RPCResult(total.get(context))

    @rpc
    def write(self, context: Context, input: int) -> RPCResult[int]:
        total.set(context, input)
        return RPCResult(input)

    @rpc(lock_attributes=(total.lock(),))
    def add(self, context: Context, input: int) -> RPCResult[int]:
        total.set(context, total.get(context) + input)
        return RPCResult(total.get(context))


LEDGER = Ledger()
KINDS: dict[str, Callable[[Context, int], RPCResult[int]]] = {
    "reading": LEDGER.read,
    "writing": LEDGER.write,
    "locked": LEDGER.add,
}


async def rpc_round_trips(client: AsyncClient, kind: str, count: int, width: int) -> dict[str, float]:
    """One caller of one Flow, then `width` callers of a Flow each."""
    method = KINDS[kind]
    names = [f"ledger-{kind}-{number}" for number in range(width)]
    await asyncio.gather(*(client.start_flow(LEDGER, name) for name in names))

    async def calls(name: str, times: int) -> list[float]:
        took = []
        for number in range(times):
            began = time.perf_counter()
            await client.invoke_rpc(method, name, number)
            took.append((time.perf_counter() - began) * 1000)
        return took

    await calls(names[0], 20)  # warm
    alone = await calls(names[0], count)
    began = time.perf_counter()
    await asyncio.gather(*(calls(name, count // 2) for name in names))
    together = time.perf_counter() - began
    return {
        "p50_ms": statistics.median(alone),
        "per_second": 1000 * len(alone) / sum(alone),
        f"per_second_with_{width}_callers": width * (count // 2) / together,
    }


def rpc_measures(client: AsyncClient, scale: float) -> list[tuple[str, Callable[[], Awaitable[dict[str, float]]]]]:
    """The lines of the benchmark's table."""

    def measure(kind: str) -> Callable[[], Awaitable[dict[str, float]]]:
        return lambda: rpc_round_trips(client, kind, max(20, int(200 * scale)), 50)

    return [(f"RPC round trips, {kind}", measure(kind)) for kind in KINDS]
