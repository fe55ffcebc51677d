"""Patterns of messages, state and people, under the virtual clock."""

from __future__ import annotations

import asyncio
import random

import pytest

from dex import AsyncClient, AttributeMatch, FlowNotActiveOrNotFoundError, FlowStatus, RpcLockConflictError
from dexray.testing import FlowTest
from examples.patterns import (
    drain_internal,
    entity_store,
    large_state,
    manual_intervention,
    recovery,
    responsive_update,
    wait_for_step_completion,
)
from examples.patterns.drain_external import DrainExternalFlow, submit
from examples.patterns.manual_intervention import ManualInterventionFlow
from tests.examples.kit import failed_at, outputs, run
from tests.world import World, scenario


@scenario()
async def test_every_page_is_printed_before_the_flow_ends(world: World) -> None:
    await world.deploy(drain_internal.flow)
    (printed,) = await run(world, drain_internal.flow, [("Emma", 40), ("Ulysses", 0), ("Dune", 7)], of=list[str])
    assert sorted(printed) == sorted(
        [f"Emma {number}" for number in range(1, 41)] + [f"Dune {number}" for number in range(1, 8)]
    )


@scenario()
async def test_without_a_book_nothing_is_printed_and_the_flow_ends(world: World) -> None:
    await world.deploy(drain_internal.flow)
    assert await run(world, drain_internal.flow, [], of=list[str]) == [[]]


class SlowCarrier:
    def __init__(self) -> None:
        self.parcels: dict[str, list[str]] = {}

    async def send(self, number: str, goods: list[str]) -> None:
        await asyncio.sleep(0.5)
        self.parcels.setdefault(number, goods)


@pytest.mark.statement("B124", "B128")
@scenario()
async def test_no_order_falls_into_the_gap_between_the_last_look_and_the_end(world: World) -> None:
    carrier = SlowCarrier()
    flow = DrainExternalFlow(carrier)
    await world.deploy(flow)
    chance = random.Random(7)
    orders = [f"order {number}" for number in range(60)]

    async def customer(order: str, at: float) -> None:
        await asyncio.sleep(at)
        await submit(world.client, flow, world.id("customer"), order)

    # Many arrive at the very moment in which a parcel is sent and the Flow ends.
    await asyncio.gather(*(customer(order, chance.choice([0, 0.25]) + 0.5 * chance.randrange(150)) for order in orders))
    await world.result("customer")
    sent = [order for goods in carrier.parcels.values() for order in goods]
    assert sorted(sent) == sorted(orders)
    runs = {number.partition("/")[0] for number in carrier.parcels}
    assert len(runs) > 3, "it never ended in between, so nothing was tried"


@scenario()
async def test_a_parcel_that_was_being_sent_at_a_crash_is_not_sent_twice(world: World) -> None:
    carrier = SlowCarrier()
    flow = DrainExternalFlow(carrier)
    await world.deploy(flow)
    await submit(world.client, flow, world.id("customer"), "a lamp")
    await world.until_phase("customer", "Pack-1", "running")
    await world.advance(0.6)
    await world.restart()
    await world.result("customer")
    assert list(carrier.parcels.values()) == [["a lamp"]]


@scenario()
async def test_two_who_change_a_profile_at_once_lose_nothing(world: World) -> None:
    await world.deploy(entity_store.flow)
    await world.start(entity_store.flow, "ada")
    profile = world.id("ada")

    async def change(name: str) -> int:
        while True:
            try:
                return await world.client.invoke_rpc(entity_store.flow.update, profile, {name: "x", "last": name})
            except RpcLockConflictError:
                await asyncio.sleep(0.01)

    revisions = await asyncio.gather(*(change(f"field {number}") for number in range(20)))
    assert sorted(revisions) == list(range(1, 21))
    assert len(await world.client.invoke_rpc(entity_store.flow.profile, profile)) == 21


def test_a_profile_is_kept_changed_and_closed() -> None:
    with FlowTest(entity_store.registry) as test:
        client = test.client
        client.start_flow(entity_store.flow, "ada")
        entity_store.update(client, "ada", {"name": "Ada", "phone": "12"})
        assert entity_store.update(client, "ada", {"phone": None}) == 2
        client.stop_flow("ada")
        assert client.wait_for_flow("ada").status is FlowStatus.CANCELED
        assert client.invoke_rpc(entity_store.flow.profile, "ada") == {"name": "Ada"}
        with pytest.raises(FlowNotActiveOrNotFoundError):
            entity_store.update(client, "ada", {"phone": "34"})


def test_large_state_is_kept_in_buckets_and_chunks() -> None:
    with FlowTest(large_state.registry) as test:
        client = test.client
        client.start_flow(large_state.flow, "w")
        assert large_state.work(client, "w") == ["bolts +100: 100 left", "nuts +20: 20 left", "bolts -30: 70 left"]


@scenario()
async def test_a_log_goes_over_from_one_chunk_to_the_next(world: World) -> None:
    flow = large_state.flow
    await world.deploy(flow)
    await world.start(flow, "w")
    count = large_state.CHUNK + 2
    numbers = [await world.client.invoke_rpc(flow.note, world.id("w"), f"entry {n}") for n in range(count)]
    assert numbers == list(range(count))
    for entry in (0, large_state.CHUNK - 1, large_state.CHUNK, count - 1):
        page = await world.client.invoke_rpc(flow.page, world.id("w"), entry, options=large_state.load_chunk(entry))
        assert page[entry % large_state.CHUNK] == f"entry {entry}"


class Payroll:
    """Pays nobody while it is closed."""

    def __init__(self) -> None:
        self.is_closed = True

    def pay(self, employee: str, key: str) -> str:
        if self.is_closed:
            raise ConnectionError("the payroll is closed")
        return f"{employee} is paid"


async def trouble(world: World, name: str) -> str | None:
    await world.client.wait_for_attribute_match(
        world.id(name), manual_intervention.needs_help, AttributeMatch.equal_to(True)
    )
    return await world.client.get_attribute(world.id(name), manual_intervention.trouble)


@scenario()
async def test_somebody_who_is_asked_may_have_it_tried_again_with_new_attempts(world: World) -> None:
    payroll = Payroll()
    flow = ManualInterventionFlow(payroll)
    await world.deploy(flow)
    await world.start(flow, "pay", "Ada")
    assert await trouble(world, "pay") == "the payroll is closed"
    await world.publish("pay", manual_intervention.retry, None)
    await world.until_phase("pay", "AskSomebody-2", "waiting")
    assert len(await failed_at(world, "pay")) == 4
    payroll.is_closed = False
    await world.restart()
    await world.publish("pay", manual_intervention.retry, None)
    assert outputs(await world.result("pay")) == ["Ada is paid"]


@scenario()
async def test_somebody_who_is_asked_may_leave_it_out(world: World) -> None:
    flow = ManualInterventionFlow(Payroll())
    await world.deploy(flow)
    await world.start(flow, "pay", "Ben")
    assert await trouble(world, "pay") == "the payroll is closed"
    await world.advance(30 * 86400)
    await world.publish("pay", manual_intervention.skip, "he has left")
    assert outputs(await world.result("pay")) == ["Ben is not paid: he has left"]


@pytest.mark.statement("B140", "B141")
@pytest.mark.parametrize(
    ("message", "said"),
    [
        ("Hello!", "by fax, because the mail server is down (NOT_COMPLETED)"),
        ("Dear Sir or Madam, …", "by fax, because the mail server is down (NOT_COMPLETED)"),
        ("x" * 21, "on the pile, because too long for a fax (NOT_COMPLETED)"),
    ],
)
@scenario()
async def test_each_level_takes_over_when_the_one_before_has_failed_for_good(
    world: World, message: str, said: str
) -> None:
    await world.deploy(recovery.flow)
    assert await run(world, recovery.flow, message) == [said]
    assert len(await failed_at(world, "flow")) == (4 if len(message) > 20 else 2)


@scenario()
async def test_an_order_is_answered_when_it_is_saved_and_long_before_it_is_packed(world: World) -> None:
    flow = wait_for_step_completion.flow
    await world.deploy(flow)
    order = world.id("order")
    began = asyncio.get_running_loop().time()
    said = await wait_for_step_completion.place_order(world.client, order, "a bicycle")
    assert said == f"thank you, your order is {order}"
    assert asyncio.get_running_loop().time() - began < 1
    assert await world.client.invoke_rpc(flow.how_is_it, order) == "a bicycle is ordered"
    assert await wait_for_step_completion.place_order(world.client, order, "a bicycle") == said
    assert outputs(await world.result("order")) == ["a bicycle is packed"]
    assert (await world.kinds("order")).count("FlowStarted") == 1


async def lift(world: World) -> tuple[AsyncClient, str]:
    await world.deploy(responsive_update.flow)
    await world.start(responsive_update.flow, "lift")
    return world.client, world.id("lift")


@scenario()
async def test_a_lift_is_awaited_by_its_step_its_height_and_the_floors_it_passes(world: World) -> None:
    client, flow_id = await lift(world)
    await responsive_update.by_step(client, flow_id, 3)
    assert await client.get_attribute(flow_id, responsive_update.height) == 3
    assert await responsive_update.by_attribute(client, flow_id, 1) == 1
    assert [floor async for floor in responsive_update.by_stream(client, flow_id, 5)] == [2, 3, 4, 5]


@scenario()
async def test_two_who_call_the_lift_at_once_each_wait_for_their_own_move(world: World) -> None:
    client, flow_id = await lift(world)
    await asyncio.gather(*(responsive_update.by_step(client, flow_id, 7) for _ in range(2)))
    assert await client.get_attribute(flow_id, responsive_update.started) == 2
