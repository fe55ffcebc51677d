"""The SubFlow example, in process and in virtual time."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from dex import AsyncClient, FlowStatus
from dexray.journal import open_journal
from dexray.testing import InProcessEngine, VirtualClock, run_virtual
from examples.primitives.subflow import DEMO, Carrier, Parcel, parcel_flow, registry


async def answers_of(client: AsyncClient, parcel: Parcel) -> list[str]:
    await client.start_flow(parcel_flow, "p", parcel)
    return (await client.wait_for_flow("p")).single_output(list[str])


async def client_of(folder: Path) -> tuple[AsyncClient, InProcessEngine]:
    journal = open_journal(folder / "flows.db")
    journal.migrate()
    engine = InProcessEngine(registry, journal, VirtualClock())
    await engine.start()
    return AsyncClient(registry, engine), engine


# C5, C54
@pytest.mark.statement("B19", "B95", "B97")
def test_the_best_of_those_who_answered_in_time_carries_the_parcel(tmp_path: Path) -> None:
    async def main() -> None:
        client, engine = await client_of(tmp_path)
        assert await answers_of(client, DEMO) == [
            "SubFlow:p-CompareAnswers-1-0 is COMPLETED",
            "SubFlow:p-CompareAnswers-1-1 is COMPLETED",
            "SubFlow:p-CompareAnswers-1-2 is FAILED Rock declined",
            "SubFlow:p-CompareAnswers-1-3 is RUNNING",
            "Snail carries it",
        ]
        assert (await client.describe("SubFlow:p-CompareAnswers-1-3")).status == "RUNNING"
        await asyncio.sleep(86400)
        late = await client.wait_for_flow("SubFlow:p-CompareAnswers-1-3")
        assert late.status is FlowStatus.CANCELED
        await engine.crash()

    run_virtual(main())


def test_nobody_is_waited_for_when_all_have_answered(tmp_path: Path) -> None:
    async def main() -> None:
        client, engine = await client_of(tmp_path)
        parcel = Parcel([Carrier("Rock", 0, 1), Carrier("Stone", 0, 2)], seconds=10**6)
        assert (await answers_of(client, parcel))[-1] == "nobody carries it"
        assert asyncio.get_running_loop().time() < 60
        await engine.crash()

    run_virtual(main())
