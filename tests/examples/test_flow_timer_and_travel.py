"""The examples of Flows, Timers, milestones and time travel, in process."""

from __future__ import annotations

from datetime import timedelta

from dex import FlowTimeoutPolicy, Registry, StartFlowOptions
from dexray.testing import FlowTest
from examples.primitives import flow, milestones, time_travel, timer


def test_a_campaign_is_started_once_updated_and_closed() -> None:
    with FlowTest(flow.registry) as test:
        client = test.client
        assert flow.campaign(client, "c") == ["started 1 time", "closed with 50 of 100", "50 were missing"]


def test_a_campaign_ends_by_itself_when_its_time_is_over() -> None:
    with FlowTest(flow.registry) as test:
        options = StartFlowOptions(timeout=timedelta(days=30), timeout_policy=FlowTimeoutPolicy.HANDLER)
        test.client.start_flow(flow.flow, "c", None, options.with_attribute(flow.goal, 10))
        test.client.publish("c", flow.donations, 4)
        test.advance(timedelta(days=31))
        assert test.client.wait_for_flow("c").single_output(str) == "time is over, with 4 of 10"


def test_a_parcel_goes_back_when_its_week_is_cut_short() -> None:
    with FlowTest(timer.registry) as test:
        client = test.client
        client.start_flow(timer.flow, "p", "A small box")
        assert timer.is_kept(client, "p")
        assert timer.send_back(client, "p") == "A small box goes back to its sender"


def test_a_parcel_is_collected() -> None:
    with FlowTest(timer.registry) as test:
        client = test.client
        client.start_flow(timer.flow, "p", "A small box")
        client.publish("p", timer.collected, "Ada")
        assert client.wait_for_flow("p").single_output(str) == "A small box was collected by Ada"


def test_an_order_is_answered_at_each_milestone() -> None:
    with FlowTest(milestones.registry) as test:
        client = test.client
        assert milestones.order(client, "o", 7) == [
            "your order is in our books",
            "at least 2 parcels are packed",
            "3 parcels went with Ada",
        ]


def test_a_quote_is_made_anew_with_the_right_prices_and_the_old_answer() -> None:
    with FlowTest(Registry([time_travel.WRONG])) as test:
        client = test.client
        assert time_travel.quote(client, "q") == "yes to 400 for a wheel"
        test.restart(registry=Registry([time_travel.RIGHT]))
        client = test.client
        assert time_travel.quote_anew(client, "q") == "yes to 40 for a wheel"
        assert client.wait_for_flow("q").single_output(str) == "yes to 40 for a wheel"
