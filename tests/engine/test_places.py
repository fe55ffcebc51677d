"""`active_flows`: never more Flows at work than places; in order; nobody starves and nobody keeps a place idle."""

from __future__ import annotations

import asyncio
import random

import pytest
from msgspec.structs import replace

from dex.wire.specs import RetrySpec
from tests.engine.faulty import give_up
from tests.engine.rig import NIL, Machine, Rig, by_step, done, failed, settle, virtual, wait, with_channels
from tests.machine.build import complete_if_empty, flow, go_to, graceful_complete, method, one, step, until

WORK = with_channels(flow(step("A"), step("B"), step("C")), "news")
THREE = by_step(A=done(go_to("B")), B=done(go_to("C", "C")), C=done(graceful_complete()))
ASK = with_channels(flow(step("Ask", wait_for=True), step("A")), "news")


def at_work(host: Machine) -> set[str]:
    return {key.flow_id for key in host.port.out}


@pytest.mark.parametrize("places", [1, 3])
@virtual
async def test_never_more_flows_are_at_work_than_there_are_places(rig: Rig, places: int) -> None:
    most = 0

    def watched(task: object) -> object:
        nonlocal most
        most = max(most, len(at_work(host)))
        return THREE(task)

    rig.script = watched
    host = await rig.host(WORK, active_flows=places)
    host.port.seconds = 0.01
    await asyncio.gather(*(host.start(f"f{number:02}", fresh=True) for number in range(20)))
    for number in range(20):
        assert (await host.result(f"f{number:02}")).status == "COMPLETED"
    assert most == places
    order = list(dict.fromkeys(task.key.flow_id for task in host.port.ran))
    assert order == sorted(order)


@virtual
async def test_a_flow_that_waits_gives_its_place_back_and_stands_in_line_again(rig: Rig) -> None:
    rig.script = by_step(Ask_wait_for=wait(until(one("news"))), Ask_execute=None)
    host = await rig.host(ASK, active_flows=1)
    for name in "abc":
        await host.start(name)
    await asyncio.sleep(1)
    for name in "abc":
        assert await host.phases(name) == {"Ask-1": "waiting"}
    for name in "cab":
        await host.publish(name, "news", NIL)
    for name in "cab":
        await asyncio.sleep(1)
        assert at_work(host) == {name}
        host.port.finish(host.port.only("Ask"), done(graceful_complete()))
        assert (await host.result(name)).status == "COMPLETED"


async def fence(rig: Rig, host: Machine) -> None:
    host.journal.inner.reassign("one", "two", 1)
    assert await give_up(host.publish("a", "news", NIL, fresh=True)) is not None


async def park(rig: Rig, host: Machine) -> None:
    broken = replace(complete_if_empty("news", fallback="A"), fallback=None)
    await host.publish("a", "news", NIL)
    host.port.finish(host.port.only("A"), done(broken))


async def stop(rig: Rig, host: Machine) -> None:
    await host.stop("a")


async def replace_it(rig: Rig, host: Machine) -> None:
    await host.start("a", id_reuse_policy="ALLOW_TERMINATE_IF_RUNNING")


async def back_off(rig: Rig, host: Machine) -> None:
    host.port.finish(host.port.only("A"), failed(retry_after=1000.0))


async def lose_its_code(rig: Rig, host: Machine) -> None:
    host.port.finish(host.port.only("A"), done(go_to("C")))
    host.deploy(with_channels(flow(step("A"), step("B")), "news"), replace(WORK, flow_type="Other"))


@pytest.mark.parametrize("what", [fence, park, stop, replace_it, back_off, lose_its_code])
@virtual
async def test_a_flow_that_stops_working_keeps_nobody_waiting(rig: Rig, what: object) -> None:
    """However it stops: closed, replaced, another's, in trouble, in a long backoff, without its code."""
    rig.script = by_step(A=None, B=None)
    host = await rig.host(WORK, replace(WORK, flow_type="Other"), active_flows=1)
    await host.start("a", fresh=True)
    await host.start("b", "Other", fresh=True)
    await asyncio.sleep(1)
    assert at_work(host) == {"a"}
    assert host.host.load_report().queued == 1
    await what(rig, host)  # type: ignore[operator]
    await asyncio.sleep(5)
    assert "b" in at_work(host)
    assert host.host.load_report().queued <= 1


@virtual
async def test_a_flow_in_backoff_gets_its_turn_again(rig: Rig) -> None:
    rig.script = by_step(A=lambda task: failed() if task.key.attempt < 3 else done(graceful_complete()))
    quick = method(retry=RetrySpec(initial=1.0))
    host = await rig.host(flow(step("A", quick)), active_flows=1)
    host.port.seconds = 0.5
    await asyncio.gather(*(host.start(f"f{number}", fresh=True) for number in range(10)))
    for number in range(10):
        assert (await host.result(f"f{number}")).status == "COMPLETED"


@pytest.mark.parametrize("seed", range(5))
@virtual
async def test_random_work_in_few_places_all_ends(rig: Rig, seed: int) -> None:
    dice = random.Random(seed)

    def script(task: object) -> object:
        assert len(at_work(host)) <= 2
        return dice.choice(
            [done(go_to("A")), done(graceful_complete()), done(graceful_complete()), failed(), wait(until(one("news")))]
            if task.key.method == "wait_for"  # type: ignore[attr-defined]
            else [done(go_to("A", "Ask")), done(graceful_complete()), done(graceful_complete()), failed()]
        )

    def fitting(task: object) -> object:
        result = script(task)
        if task.key.method == "wait_for" and not hasattr(result, "wait") and not hasattr(result, "error_type"):  # type: ignore[attr-defined]
            return wait(until(one("news")))
        return result

    rig.script = fitting
    host = await rig.host(ASK, active_flows=2, slots=3)
    host.port.seconds = 0.01
    await asyncio.gather(*(host.start(f"f{number}", fresh=True) for number in range(12)))
    for _ in range(300):
        await asyncio.sleep(2)
        for number in range(12):
            if rig.runs(f"f{number}")[0][1] == "RUNNING" and dice.random() < 0.3:
                await give_up(host.publish(f"f{number}", "news", NIL))
        if not rig.rows("SELECT 1 FROM runs WHERE status = 'RUNNING'"):
            break
    assert not rig.rows("SELECT flow_id FROM runs WHERE status = 'RUNNING'")
    await settle()
