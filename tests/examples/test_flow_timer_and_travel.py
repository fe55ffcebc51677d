"""The examples of Flows, Timers, milestones and time travel, in process."""

from __future__ import annotations

import asyncio
import time
from datetime import timedelta
from pathlib import Path

from dex import AsyncClient, FlowTimeoutPolicy, Registry, StartFlowOptions
from dexray.journal import open_journal
from dexray.testing import InProcessEngine, VirtualClock, run_virtual
from examples.primitives import flow, milestones, time_travel, timer
from tests.examples.test_rpc_and_attribute import client_of


def test_a_campaign_is_started_once_updated_and_closed(tmp_path: Path) -> None:
    with client_of(flow.registry, tmp_path) as client:
        assert flow.campaign(client, "c") == ["started 1 time", "closed with 50 of 100", "50 were missing"]


def test_a_campaign_ends_by_itself_when_its_time_is_over(tmp_path: Path) -> None:
    async def main() -> str:
        journal = open_journal(tmp_path / "flows.db")
        journal.migrate()
        engine = InProcessEngine(flow.registry, journal, VirtualClock())
        await engine.start()
        client = AsyncClient(flow.registry, engine)
        options = StartFlowOptions(timeout=timedelta(days=30), timeout_policy=FlowTimeoutPolicy.HANDLER)
        await client.start_flow(flow.flow, "c", None, options.with_attribute(flow.goal, 10))
        await client.publish("c", flow.donations, 4)
        await asyncio.sleep(31 * 24 * 3600)
        result = await client.wait_for_flow("c")
        await engine.close()
        return result.single_output(str)

    assert run_virtual(main()) == "time is over, with 4 of 10"


def test_a_parcel_goes_back_when_its_week_is_cut_short(tmp_path: Path) -> None:
    with client_of(timer.registry, tmp_path) as client:
        client.start_flow(timer.flow, "p", "A small box")
        while not timer.is_kept(client, "p"):
            time.sleep(0.01)
        assert timer.send_back(client, "p") == "A small box goes back to its sender"


def test_a_parcel_is_collected(tmp_path: Path) -> None:
    with client_of(timer.registry, tmp_path) as client:
        client.start_flow(timer.flow, "p", "A small box")
        client.publish("p", timer.collected, "Ada")
        assert client.wait_for_flow("p").single_output(str) == "A small box was collected by Ada"


def test_an_order_is_answered_at_each_milestone(tmp_path: Path) -> None:
    with client_of(milestones.registry, tmp_path) as client:
        assert milestones.order(client, "o", 7) == [
            "your order is in our books",
            "at least 2 parcels are packed",
            "3 parcels went with Ada",
        ]


def test_a_quote_is_made_anew_with_the_right_prices_and_the_old_answer(tmp_path: Path) -> None:
    with client_of(Registry([time_travel.WRONG]), tmp_path) as client:
        assert time_travel.quote(client, "q") == "yes to 400 for a wheel"
    with client_of(Registry([time_travel.RIGHT]), tmp_path) as client:
        assert time_travel.quote_anew(client, "q") == "yes to 40 for a wheel"
        assert client.wait_for_flow("q").single_output(str) == "yes to 40 for a wheel"
