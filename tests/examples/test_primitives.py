"""The small examples of single primitives: their results, and the failure or the race that each is about."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from dex import FlowErrorType, FlowResult, FlowStatus, StartFlowOptions, StepDurability, StopFlowOptions
from dexray.testing import FlowTest
from examples.primitives import (
    channel,
    client_apis,
    custom_retry,
    durability,
    heartbeat,
    options_override,
    proceed_on_wait_failure,
    search,
    step,
    step_decision,
    step_execution_local,
    wait_types,
)
from examples.primitives.step_decision import Delivery
from tests.world import World, scenario


def outputs(result: FlowResult, value_type: Any = str) -> list[Any]:
    return [completion.decode(value_type) for completion in result.completions if completion.has_output]


async def failures(world: World, name: str) -> list[float]:
    """When attempts failed."""
    return [event.at for event in await world.history(name) if event.kind == "AttemptFailed"]


@scenario()
async def test_what_a_failed_attempt_wrote_is_gone_with_it(world: World) -> None:
    await world.deploy(step.flow)
    await world.start(step.flow, "bread", 60)
    assert outputs(await world.result("bread", 90)) == ["dough became bread at attempt 2, after 60 s of heating"]


@scenario()
async def test_a_step_that_waits_is_still_waiting_after_a_crash_and_heats_no_longer_for_it(world: World) -> None:
    await world.deploy(step.flow)
    await world.start(step.flow, "bread", 3600)
    await world.advance(1800)
    await world.restart()
    assert outputs(await world.result("bread", 1810)) == ["dough became bread at attempt 2, after 3600 s of heating"]


@scenario()
async def test_a_kitchen_cooks_orders_in_their_order_and_closes_after_a_quiet_while(world: World) -> None:
    await world.deploy(channel.flow)
    await world.start(channel.flow, "kitchen", timedelta(minutes=10))
    await world.publish("kitchen", channel.orders, "soup", "fish")
    await world.advance(500)
    assert await world.client.invoke_rpc(channel.flow.order, world.id("kitchen"), "cake") == 1
    await world.advance(500)  # the while begins anew with each order
    await world.publish("kitchen", channel.orders, "tea")
    assert outputs(await world.result("kitchen", 700), list[str]) == [["soup", "fish", "cake", "tea"]]


@scenario()
async def test_no_order_is_lost_or_cooked_twice_by_crashes(world: World) -> None:
    await world.deploy(channel.flow)
    await world.start(channel.flow, "kitchen", timedelta(minutes=10))
    for number in range(5):
        await world.publish("kitchen", channel.orders, f"dish {number}")
        await world.restart()
    assert outputs(await world.result("kitchen", 700), list[str]) == [[f"dish {number}" for number in range(5)]]


def test_the_guests_of_a_hotel_are_found() -> None:
    with FlowTest(search.registry) as test:
        client = test.client
        for name in ("Grand", "Petit"):
            search.check_in(client, name)
        assert list(search.questions(client, "Grand")) == [
            "from L'Aquila: Ada",
            "more than one night in quiet: Ada, Ben",
            "not from Rome, or one night: Ada, Cleo",
            "with a dog: Ben, Cleo",
            "five nights or seven: Ben, Cleo",
            "still here: Ada, Cleo",
            "of 3 guests",
        ]


@scenario()
async def test_a_guest_is_found_by_what_a_crash_has_not_undone(world: World) -> None:
    await world.deploy(search.flow)
    await world.start(search.flow, "guest", None, StartFlowOptions().with_attribute(search.nights, 1))
    await world.client.invoke_rpc(search.flow.stay_longer, world.id("guest"), 2)
    await world.restart()
    found = (await world.client.search_flows("nights = 3", 10)).flows
    assert [entry.flow_id for entry in found] == [world.id("guest")]
    assert await world.client.count_flows("nights = 1") == 0


def test_a_watchman_is_started_fed_watched_and_stopped() -> None:
    with FlowTest(client_apis.registry) as test:
        client = test.client
        assert list(client_apis.tour(client, "watchman")) == [
            "started 1 run",
            "watches at the harbour",
            "Watch-3 is open",
            "listed: True",
            "found: True",
            "2 bells in its history",
            "CANCELED",
        ]


@scenario()
async def test_the_next_attempt_comes_when_the_step_said_not_when_the_policy_would(world: World) -> None:
    await world.deploy(custom_retry.flow)
    await world.start(custom_retry.flow, "parcel", 3)
    assert outputs(await world.result("parcel")) == ["collected at attempt 3"]
    first, second = await failures(world, "parcel")
    assert 7 <= second - first < 8


@scenario()
async def test_attempts_end_even_when_each_asks_for_another(world: World) -> None:
    await world.deploy(custom_retry.flow)
    await world.start(custom_retry.flow, "parcel", 100)
    result = await world.result("parcel")
    assert result.error_type is FlowErrorType.WORKER_API_FAILED
    assert "still being sorted" in result.error_message
    assert len(await failures(world, "parcel")) == 5


@pytest.mark.parametrize("durability_of_flow", [StepDurability.SYNC, StepDurability.ASYNC])
@scenario()
async def test_screws_are_counted_and_paid_in_either_durability(
    world: World, durability_of_flow: StepDurability
) -> None:
    await world.deploy(durability.flow)
    await world.start(durability.flow, "screws", (0, 20), durability.with_durability(durability_of_flow))
    assert outputs(await world.result("screws")) == ["paid for 20 screws"]


@scenario()
async def test_an_import_goes_on_at_its_checkpoint(world: World) -> None:
    await world.deploy(heartbeat.flow)
    await world.start(heartbeat.flow, "import", 10)
    assert outputs(await world.result("import")) == ["attempt 2 imported rows 6 to 9"]


@scenario()
async def test_options_of_a_movement_are_for_that_execution_only(world: World) -> None:
    await world.deploy(options_override.flow)
    await world.start(options_override.flow, "deliveries")
    result = await world.result("deliveries")
    assert outputs(result) == ["Ben: delivered without an address", "Ada: delivered by the book"]


@scenario()
async def test_when_nobody_can_be_asked_the_list_price_is_taken(world: World) -> None:
    await world.deploy(proceed_on_wait_failure.flow)
    await world.start(proceed_on_wait_failure.flow, "asked", "Ada")
    await world.publish("asked", proceed_on_wait_failure.quotes, 80)
    assert outputs(await world.result("asked")) == ["80, says Ada"]
    await world.start(proceed_on_wait_failure.flow, "guessed", "nobody")
    assert outputs(await world.result("guessed")) == ["100, the list price: no supplier of that name"]
    assert len(await failures(world, "guessed")) == 2


@pytest.mark.parametrize(
    ("delivery", "status", "said"),
    [
        (Delivery(1, 9), FlowStatus.COMPLETED, ["delivered by train", "a letter follows"]),
        (Delivery(9, 3), FlowStatus.COMPLETED, ["a letter follows", "delivered by truck"]),
        (Delivery(9, 1, "urgent"), FlowStatus.COMPLETED, ["urgent by truck"]),
        (Delivery(9, 1, "broken"), FlowStatus.FAILED, []),
    ],
)
@scenario()
async def test_each_decision_ends_the_delivery_in_its_way(
    world: World, delivery: Delivery, status: FlowStatus, said: list[str]
) -> None:
    await world.deploy(step_decision.flow)
    await world.start(step_decision.flow, "parcel", delivery)
    result = await world.result("parcel")
    assert (result.status, outputs(result)) == (status, said)
    assert result.error_message == ("the parcel came broken by truck" if status is FlowStatus.FAILED else "")


@scenario()
async def test_a_race_that_ends_in_a_tie_has_one_winner(world: World) -> None:
    await world.deploy(step_decision.flow)
    await world.start(step_decision.flow, "parcel", Delivery(1, 1))
    assert len(outputs(await world.result("parcel"))) == 2  # one arrival, and the letter
    kinds = await world.kinds("parcel")
    assert kinds.count("StepCancelled") == 1


@scenario()
async def test_a_dead_end_leaves_the_flow_open_until_it_is_stopped(world: World) -> None:
    await world.deploy(step_decision.flow)
    await world.start(step_decision.flow, "parcel", Delivery(1, 9, "lost"))
    await world.until_phase("parcel", "WriteLetter-1", "waiting")
    await world.client.stop_flow(world.id("parcel"), StopFlowOptions())
    assert (await world.result("parcel")).status is FlowStatus.CANCELED


@scenario()
async def test_a_local_belongs_to_one_execution(world: World) -> None:
    await world.deploy(step_execution_local.flow)
    await world.start(step_execution_local.flow, "offers", ["Ada", "Ben"])
    await world.publish("offers", step_execution_local.answers, "Ben", "no")
    await world.restart()
    await world.publish("offers", step_execution_local.answers, "Ada", "yes")
    assert sorted(outputs(await world.result("offers"))) == ["offer 1 to Ada: yes", "offer 2 to Ben: no"]


@pytest.mark.parametrize(
    ("kind", "messages", "said"),
    [
        ("until", "tp", "left with pilot; 1 still there"),
        ("any", "t", "left with tug; 0 still there"),
        ("any", "", "left with calm weather; 0 still there"),
        ("all", "tpt", "left with pilot and tug and tug; 0 still there"),
        ("combination", "tp", "left with pilot and tug; 0 still there"),
        ("combination", "tt", "left with calm weather; 2 still there"),
        ("none", "", "left with nobody; 0 still there"),
    ],
)
@scenario()
async def test_a_ship_leaves_when_its_wait_is_met(world: World, kind: str, messages: str, said: str) -> None:
    await world.deploy(wait_types.flow)
    await world.start(wait_types.flow, "ship", kind)
    for message in messages:
        channel = wait_types.pilot if message == "p" else wait_types.tug
        await world.publish("ship", channel, channel.name)
    assert outputs(await world.result("ship")) == [said]
