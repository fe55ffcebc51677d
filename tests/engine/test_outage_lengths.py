"""The database is away for 1, 30 and 300 seconds, at each point of a Flow's life.

The invariants: no Flow fails and no Step is retried for it; callers hear UNAVAILABLE within the patience and may repeat
their request; a short while after the database is back, everything has gone on; the history is that of a life without
an outage.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from dex.wire import service as s
from tests.engine.faulty import give_up
from tests.engine.rig import NIL, Machine, Rig, by_step, code_of, done, settle, virtual, wait
from tests.engine.test_outage import ORDER, STEPS, WHOLE_LIFE, kinds, until_answered
from tests.machine.build import go_to, graceful_complete, one, until

PATIENCE = 3.0
LENGTHS = [1.0, 30.0, 300.0]

START = s.StartFlow(flow_id="f", flow_type="Demo", input=NIL, request_id="start", fresh=True)
PUBLISH = s.Publish(flow_id="f", channel="news", values=(b"\x01",), request_id="publish", fresh=True)

Scene = Callable[[Rig, Machine, float], Awaitable[None]]


async def away(host: Machine, seconds: float) -> None:
    host.journal.out_for(seconds)
    await settle()


async def in_start(rig: Rig, host: Machine, seconds: float) -> None:
    rig.script = STEPS
    await away(host, seconds)
    await heard_in_time(host, START, seconds)
    await until_answered(host, PUBLISH, 1_000)


async def in_publish(rig: Rig, host: Machine, seconds: float) -> None:
    rig.script = STEPS
    await host.call(START)
    await host_waits(host)
    await away(host, seconds)
    await heard_in_time(host, PUBLISH, seconds)


async def in_wait_for(rig: Rig, host: Machine, seconds: float) -> None:
    rig.script = by_step(Ask_execute=done(go_to("Tell")), Tell=done(graceful_complete(NIL)))
    await host.call(START)
    await away(host, seconds)
    host.port.finish(host.port.only("Ask"), wait(until(one("news"))))
    await until_answered(host, PUBLISH, 1_000)


async def in_execute(rig: Rig, host: Machine, seconds: float) -> None:
    rig.script = by_step(Ask_wait_for=wait(until(one("news"))), Tell=done(graceful_complete(NIL)))
    await host.call(START)
    await host_waits(host)
    await host.call(PUBLISH)
    await away(host, seconds)
    host.port.finish(host.port.only("Ask"), done(go_to("Tell")))


async def in_close(rig: Rig, host: Machine, seconds: float) -> None:
    rig.script = by_step(Ask_wait_for=wait(until(one("news"))), Ask_execute=done(go_to("Tell")))
    await host.call(START)
    await host_waits(host)
    await host.call(PUBLISH)
    await settle()
    await away(host, seconds)
    host.port.finish(host.port.only("Tell"), done(graceful_complete(NIL)))


SCENES: list[Scene] = [in_start, in_publish, in_wait_for, in_execute, in_close]


async def host_waits(host: Machine) -> None:
    """Until the Flow waits for its message, and that is durable."""
    for _ in range(100):
        if list((await host.phases("f")).values()) == ["waiting"]:
            await host.host._committer.drained()
            return
        await settle()
    raise AssertionError(await host.phases("f"))


async def heard_in_time(host: Machine, request: s.StartFlow | s.Publish, seconds: float) -> None:
    """The caller hears of the outage within the patience, and its repeats have the effect of one request."""
    loop = asyncio.get_running_loop()
    begin = loop.time()
    error = await give_up(host.call(request))
    if seconds > PATIENCE:
        assert code_of(error) == "UNAVAILABLE"
    assert loop.time() - begin < PATIENCE + 0.5
    if error is not None:
        await until_answered(host, request, 1_000)


async def finishes_soon(host: Machine, begin: float, seconds: float) -> None:
    loop = asyncio.get_running_loop()
    while True:
        error = await give_up(answer := asyncio.ensure_future(host.result("f", timeout=60.0)))
        if error is None:
            break
        assert code_of(error) in ("UNAVAILABLE", "DEADLINE_EXCEEDED")
        assert loop.time() - begin < seconds + 100.0
    outcome = answer.result()
    assert outcome.status == "COMPLETED"
    assert seconds <= loop.time() - begin < seconds + 5.0
    assert host.host.outage is None


@pytest.mark.statement("D14")
@pytest.mark.parametrize("seconds", LENGTHS)
@pytest.mark.parametrize("scene", SCENES, ids=lambda scene: scene.__name__)
@virtual
async def test_an_outage_pauses_a_flow_and_leaves_no_mark(rig: Rig, scene: Scene, seconds: float) -> None:
    host = await rig.host(ORDER, outage_patience=PATIENCE)
    begin = asyncio.get_running_loop().time()
    await scene(rig, host, seconds)
    await finishes_soon(host, begin, seconds)
    ((run, _, _),) = rig.runs("f")
    assert sorted(kinds(rig, run)) == sorted(WHOLE_LIFE)
    assert [seq for seq, _, _ in rig.records(run)] == list(range(1, len(rig.records(run)) + 1))
    assert len(host.port.ran) == 3


@pytest.mark.statement("D14")
@pytest.mark.parametrize("seconds", LENGTHS)
@virtual
async def test_an_outage_in_recovery_pauses_it(rig: Rig, seconds: float) -> None:
    rig.script = by_step(Ask_wait_for=None)
    first = await rig.host(ORDER)
    for number in range(5):
        await first.start(f"f{number}")
    await first.crash()
    rig.script = STEPS
    second = await rig.host(ORDER, outage_patience=PATIENCE)
    second.journal.out_for(seconds)
    begin = asyncio.get_running_loop().time()
    error = await give_up(second.describe("f0"))
    assert error is None or code_of(error) == "UNAVAILABLE"
    assert asyncio.get_running_loop().time() - begin < PATIENCE + 0.5
    await second.host.recovered()
    assert seconds <= asyncio.get_running_loop().time() - begin < seconds + 5.0
    for number in range(5):
        await second.publish(f"f{number}", "news", NIL)
        assert (await second.result(f"f{number}")).status == "COMPLETED"
    for number in range(5):
        ((run, _, _),) = rig.runs(f"f{number}")
        assert len(rig.events(run, "AttemptFailed")) == 1  # the attempt that the first host had handed out
