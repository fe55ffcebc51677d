"""Heartbeats: signs of life, and checkpoints for the next attempt."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from dex import AsyncContext, StepDecision, graceful_complete
from tests.statements.kit import Made, events
from tests.statements.test_timeouts import DAY, ONCE, Does, every, seconds
from tests.world import World, scenario


def seen_by(context: AsyncContext) -> list[Any]:
    return [context.has_last_heartbeat_value(), context.get_last_heartbeat_value(object)]


class Scripted(Made):
    """One Step: attempt n does `script[n - 1](context)` and fails; the attempt after them tells what it finds."""

    def __init__(self, *script: Any, **options: Any) -> None:
        self.found: list[list[Any]] = []

        async def act(context: AsyncContext, input: None) -> StepDecision:
            self.found.append(seen_by(context))
            if context.attempt <= len(script):
                await script[context.attempt - 1](context)
                raise RuntimeError("and again")
            return graceful_complete(self.found)

        super().__init__(Does(act, execute_retry=every(1), **options), name="Scripted")


def beats(*values: Any) -> Any:
    """Sends heartbeats: `...` is one without a value."""

    async def script(context: AsyncContext) -> None:
        for value in values:
            await (context.heartbeat() if value is ... else context.heartbeat(value))

    return script


async def found(world: World, flow: Made) -> list[Any]:
    await world.deploy(flow)
    await world.start(flow, "f", None)
    return list((await world.result("f", timeout=DAY)).single_output(list))


NOTHING = [False, None]


@pytest.mark.statement("B175", "B176", "B177", "B181")
@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ([beats()], [NOTHING, NOTHING]),
        ([beats(7)], [NOTHING, [True, 7]]),
        ([beats(1, 2, 3)], [NOTHING, [True, 3]]),
        ([beats(None)], [NOTHING, [True, None]]),
        ([beats(...)], [NOTHING, NOTHING]),
        ([beats(1, ...)], [NOTHING, NOTHING]),
        ([beats(..., 1)], [NOTHING, [True, 1]]),
        ([beats(1), beats()], [NOTHING, [True, 1], [True, 1]]),
        ([beats(1), beats(...)], [NOTHING, [True, 1], NOTHING]),
        ([beats(1), beats(2), beats()], [NOTHING, [True, 1], [True, 2], [True, 2]]),
    ],
)
@scenario()
async def test_the_next_attempt_finds_the_last_checkpoint(world: World, script: list[Any], expected: list[Any]) -> None:
    assert await found(world, Scripted(*script)) == expected


@pytest.mark.statement("B173", "B201")
@scenario()
async def test_heartbeats_keep_an_attempt_alive_and_silence_ends_it(world: World) -> None:
    ended: list[float] = []

    async def act(context: AsyncContext, input: int) -> StepDecision:
        began = asyncio.get_running_loop().time()
        for _ in range(input):
            await asyncio.sleep(9)
            await context.heartbeat()
        ended.append(asyncio.get_running_loop().time() - began)
        if context.attempt == 1:
            await asyncio.sleep(11)
        return graceful_complete(context.attempt)

    flow = Made(Does(act, execute_retry=every(1), heartbeat_timeout=seconds(10)), name="Alive")
    await world.deploy(flow)
    await world.start(flow, "f", 50)
    assert (await world.result("f", timeout=DAY)).single_output(int) == 2
    assert ended == pytest.approx([450, 450], abs=0.1)
    (failed,) = await events(world, "f", "AttemptFailed")
    assert failed.data["failure"]["kind"] == "HEARTBEAT_TIMEOUT"
    started = (await events(world, "f", "AttemptStarted"))[0]
    assert failed.at - started.at == pytest.approx(460, abs=0.1)


@pytest.mark.statement("B175", "B180")
@pytest.mark.parametrize("way", ["HEARTBEAT_TIMEOUT", "METHOD_TIMEOUT"])
@scenario()
async def test_the_last_value_reaches_the_attempt_after_a_timeout(world: World, way: str) -> None:
    async def script(context: AsyncContext) -> None:
        for number in range(40):
            await context.heartbeat(number)
            await asyncio.sleep(0.01)
        await asyncio.sleep(3600)

    options = {"execute_method_timeout": seconds(20)} if way == "METHOD_TIMEOUT" else {}
    assert await found(world, Scripted(script, **options)) == [NOTHING, [True, 39]]
    (failed,) = await events(world, "f", "AttemptFailed")
    assert failed.data["failure"]["kind"] == way


@pytest.mark.statement("B178", "B179")
@scenario()
async def test_a_heartbeat_waits_for_no_storage_and_only_the_newest_of_a_batch_is_kept(world: World) -> None:
    async def script(context: AsyncContext) -> None:
        began = asyncio.get_running_loop().time()
        for number in range(1000):
            await context.heartbeat(number)
        assert asyncio.get_running_loop().time() == began
        await asyncio.sleep(5)

    assert await found(world, Scripted(script)) == [NOTHING, [True, 999]]
    stored = await events(world, "f", "HeartbeatStored")
    assert len(stored) == 2


@pytest.mark.statement("B175", "B180", "B202")
@scenario()
async def test_after_a_crash_the_next_attempt_gets_what_was_stored(world: World) -> None:
    async def script(context: AsyncContext) -> None:
        await context.heartbeat("early")
        await asyncio.sleep(5)
        await context.heartbeat("stored")
        await asyncio.sleep(5)
        await context.heartbeat("stored last")
        await context.heartbeat("sent, not stored")
        await asyncio.sleep(3600)

    flow = Scripted(script, heartbeat_timeout=timedelta(hours=2))
    await world.deploy(flow)
    await world.start(flow, "f", None)
    await world.advance(10.2)
    (open_step,) = (await world.describe("f")).steps
    assert (open_step.has_heartbeat, open_step.heartbeat) == (True, "stored last")
    await world.restart()
    assert (await world.result("f")).single_output(list) == [NOTHING, [True, "stored last"]]


@pytest.mark.statement("D9")
@scenario()
async def test_a_heartbeat_of_an_attempt_that_is_over_is_refused(world: World) -> None:
    async def act(context: AsyncContext, input: None) -> StepDecision:
        if context.attempt == 1:
            await context.heartbeat("first")
            try:
                await asyncio.sleep(100)
            except asyncio.CancelledError:
                await asyncio.sleep(3)
                await context.heartbeat("a zombie's")
                raise
        if context.attempt == 2:
            await asyncio.sleep(9)
            raise RuntimeError("third")
        return graceful_complete(seen_by(context))

    flow = Made(Does(act, execute_retry=every(1), heartbeat_timeout=seconds(10)), name="Zombie")
    await world.deploy(flow)
    await world.start(flow, "f", None)
    assert (await world.result("f", timeout=DAY)).single_output(list) == [True, "first"]


@pytest.mark.statement("B156", "B173")
@scenario()
async def test_the_attempt_that_was_never_heard_of_uses_up_its_policy(world: World) -> None:
    async def act(context: AsyncContext, input: None) -> None:
        await asyncio.sleep(3600)

    flow = Made(Does(act, execute_retry=ONCE, heartbeat_timeout=seconds(10)), name="Silent")
    await world.deploy(flow)
    await world.start(flow, "f", None)
    assert "HEARTBEAT_TIMEOUT" in (await world.result("f")).error_message
