"""What one attempt costs in its own process, without anything around it: microseconds per attempt.

python -m tests.benchmarks.attempts
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass

from dex.attribute import Attribute
from dex.channel import Channel
from dex.context import AsyncContext, Context
from dex.decision import StepDecision, dead_end, go_to
from dex.flow import Flow, PersistenceSchema, StepList
from dex.registry import Registry
from dex.step import Step
from dexray.attempts import SilentReporter, run_async, run_sync
from dexray.protocol.attempts import AttemptKey, AttemptTask, ExecuteSucceeded

ROUNDS = 5_000


@dataclass
class Order:
    name: str
    amount: int
    price: float


total = Attribute("total", int)
paid = Channel("paid", str)


class Trivial(Step[Order]):
    def execute(self, context: Context, input: Order) -> StepDecision:
        return dead_end()


class Busy(Step[Order]):
    def execute(self, context: Context, input: Order) -> StepDecision:
        total.set(context, total.get(context) + input.amount)
        paid.publish(context, input.name)
        return go_to(Busy, input)


class Waiting(Step[Order]):
    async def execute(self, context: AsyncContext, input: Order) -> StepDecision:
        await asyncio.sleep(0)
        return dead_end()


class Bench(Flow[Order]):
    def get_steps(self) -> StepList[Order]:
        return StepList.start_step(Trivial()).other_steps(Busy(), Waiting())

    def get_persistence_schema(self) -> PersistenceSchema:
        return PersistenceSchema.of(total, paid)


REGISTRY = Registry([Bench()], allow_async_handlers=True)
REPORTER = SilentReporter()


def task(step_type: str) -> AttemptTask:
    return AttemptTask(
        key=AttemptKey("flow", "run", f"{step_type}-1", "execute", 1),
        flow_type="Bench",
        step_type=step_type,
        deployment_id="bench",
        from_step_execution_id="__start__",
        input=REGISTRY.codec_registry.encode(Order("x", 1, 2.5), Order, where="input"),
        timeout=7200.0,
        heartbeat_timeout=60.0,
        first_attempt_at=0.0,
    )


def measured(name: str, run: Callable[[], object]) -> None:
    run()
    began = time.perf_counter()
    run()
    print(f"{name:30} {(time.perf_counter() - began) / ROUNDS * 1e6:7.1f} µs")


def many(step_type: str) -> None:
    given = task(step_type)
    for _ in range(ROUNDS):
        assert type(run_sync(given, REGISTRY, REPORTER)) is ExecuteSucceeded


async def many_async() -> None:
    given = task("Waiting")
    for _ in range(ROUNDS // 100):
        await asyncio.gather(*(run_async(given, REGISTRY, REPORTER) for _ in range(100)))


if __name__ == "__main__":
    measured("run_sync, trivial execute", lambda: many("Trivial"))
    measured("run_sync, 4 state operations", lambda: many("Busy"))
    measured("run_async, 100 at once", lambda: asyncio.run(many_async()))
