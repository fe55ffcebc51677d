"""The Critical Section example: no two edits overlap, and each reviewer has one record, however each of them leaves."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Awaitable, Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import TypeVar

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dex import AsyncClient, FlowStatus, StopFlowOptions, StopType
from dex.wire.service import HistoryEvent
from dexray.journal import open_journal
from dexray.testing import InProcessEngine, VirtualClock, run_virtual
from examples.patterns import critical_section
from examples.patterns.critical_section import (
    CONTRACT_EDIT_TOKEN,
    DEMO_EDITS,
    ContractEdit,
    ContractEditRecord,
    contract_edit_flow,
    registry,
)

T = TypeVar("T")

FLAGS = ("should_fail_handoff", "should_fail_edit", "should_withdraw", "should_cancel_handoff")


@pytest.fixture(autouse=True)
def virtual_millis(monkeypatch: pytest.MonkeyPatch) -> None:
    """Handlers read the virtual clock, as they sleep by it."""
    monkeypatch.setattr(
        critical_section, "current_time_millis", lambda: round(asyncio.get_running_loop().time() * 1000)
    )


class Run:
    """One Flow on an engine in this process."""

    flow_id = "contract"

    def __init__(self, client: AsyncClient, engine: InProcessEngine) -> None:
        self.client = client
        self.engine = engine

    async def start(self, *edits: ContractEdit) -> None:
        await self.client.start_flow(contract_edit_flow, self.flow_id, list(edits))

    async def records(self) -> dict[str, ContractEditRecord]:
        """The records by reviewer, after the checks that every run must pass."""
        async with asyncio.timeout(3600):  # of virtual time
            result = await self.client.wait_for_flow(self.flow_id)
        assert result.status is FlowStatus.COMPLETED
        records = result.single_output(list[ContractEditRecord])
        reviewers = [record.reviewer for record in records]
        reports = [
            event.data["value"]["reviewer"]
            for event in await self.history()
            if event.kind == "MessagePublished" and event.data["channel"] == "contractEditFinished"
        ]
        assert sorted(reports) == sorted(reviewers) == sorted(set(reviewers)), "not one record of each reviewer"
        assert not overlapping(records)
        return {record.reviewer: record for record in records}

    async def outcomes(self) -> dict[str, str]:
        return {reviewer: record.outcome for reviewer, record in (await self.records()).items()}

    async def history(self) -> list[HistoryEvent]:
        return [event async for event in self.client.history(self.flow_id)]


def overlapping(records: list[ContractEditRecord]) -> list[tuple[str, str]]:
    """Pairs of edits that were under way at the same time; one that never began took no time, and overlaps none."""
    edits = [record for record in records if record.finished_at_millis > record.started_at_millis]
    edits.sort(key=lambda record: record.started_at_millis)
    return [
        (one.reviewer, other.reviewer)
        for one, other in pairwise(edits)
        if other.started_at_millis < one.finished_at_millis
    ]


def on_engine(folder: Path, scenario: Callable[[Run], Awaitable[T]]) -> T:
    async def main() -> T:
        journal = open_journal(folder / "flows.db")
        journal.migrate()
        engine = InProcessEngine(registry, journal, VirtualClock())
        await engine.start()
        async with AsyncClient(registry, engine) as client:
            try:
                return await scenario(Run(client, engine))
            finally:
                await engine.close()
                journal.close()

    return run_virtual(main())


def named(events: list[HistoryEvent], kind: str) -> list[str]:
    return [event.step_execution_id for event in events if event.kind == kind]


@pytest.mark.statement("B231", "B233", "B234", "B235", "B248", "B249", "B253")
def test_edits_of_many_reviewers_never_overlap_and_each_leaves_one_record(tmp_path: Path) -> None:
    async def scenario(run: Run) -> None:
        await run.start(*(ContractEdit(f"reviewer {number}") for number in range(6)))
        records = await run.records()
        assert {record.outcome for record in records.values()} == {"saved"}
        assert len(records) == 6
        assert all(record.finished_at_millis - record.started_at_millis >= 399 for record in records.values())
        events = await run.history()
        assert len(named(events, "ConditionsMet")) == 7  # one turn each, and the join

    on_engine(tmp_path, scenario)


@pytest.mark.statement("B236", "B244", "B250")
def test_a_failed_handoff_is_tried_twice_and_then_gives_the_token_back(tmp_path: Path) -> None:
    async def scenario(run: Run) -> None:
        await run.start(ContractEdit("Ada", should_fail_handoff=True), ContractEdit("Ben"))
        assert await run.outcomes() == {"Ada": "failed", "Ben": "saved"}
        events = await run.history()
        failed = [event for event in events if event.kind == "AttemptFailed"]
        assert [event.step_execution_id for event in failed] == ["EnterContractEdit-1"] * 2
        assert failed[1].at - failed[0].at >= 1.0
        assert named(events, "StepExecuteFailed") == ["EnterContractEdit-1"]

    on_engine(tmp_path, scenario)


@pytest.mark.statement("B236", "B244", "B251")
def test_a_save_that_fails_twice_is_reported_failed_and_gives_the_token_back(tmp_path: Path) -> None:
    async def scenario(run: Run) -> None:
        await run.start(ContractEdit("Ada", should_fail_edit=True), ContractEdit("Ben"))
        records = await run.records()
        assert {name: record.outcome for name, record in records.items()} == {"Ada": "failed", "Ben": "saved"}
        assert records["Ada"].finished_at_millis > records["Ada"].started_at_millis
        assert named(await run.history(), "AttemptFailed") == ["SaveContractEdit-1"] * 2

    on_engine(tmp_path, scenario)


@pytest.mark.statement("B238", "B252")
def test_a_withdrawn_edit_leaves_early_and_gives_the_token_back_in_the_same_commit(tmp_path: Path) -> None:
    async def scenario(run: Run) -> None:
        await run.start(ContractEdit("Ada", should_withdraw=True), ContractEdit("Ben"))
        assert await run.outcomes() == {"Ada": "withdrawn", "Ben": "saved"}
        events = await run.history()
        published = [event.data["channel"] for event in events if event.data.get("by") == "EditContract-1"]
        assert published == ["contractEditFinished", "contractEditToken"]

    on_engine(tmp_path, scenario)


@pytest.mark.statement("B115", "B239", "B240", "D6")
def test_a_handoff_cancelled_with_the_token_in_hand_returns_it_and_is_reported_once(tmp_path: Path) -> None:
    async def scenario(run: Run) -> None:
        await run.start(
            ContractEdit("Ada", should_cancel_handoff=True), ContractEdit("Ben", should_cancel_handoff=True)
        )
        assert await run.outcomes() == {"Ada": "canceled", "Ben": "canceled"}
        events = await run.history()
        cancelled = {event.step_execution_id: event.data for event in events if event.kind == "StepCancelled"}
        token_back = [step for step, data in cancelled.items() if "contractEditToken" in data.get("returned", {})]
        assert set(cancelled) == {"EnterHesitantly-1", "EnterHesitantly-2"}
        assert token_back, "nobody was cancelled with the token in hand"
        for step in cancelled:
            assert not [event for event in events if event.kind == "MessagePublished" and event.data["by"] == step]
        assert named(events, "StepExecuteFailed") == []

    on_engine(tmp_path, scenario)


@pytest.mark.statement("B239", "B246")
def test_the_token_of_a_cancelled_handoff_is_the_old_one_and_lets_another_reviewer_in(tmp_path: Path) -> None:
    async def scenario(run: Run) -> None:
        await run.start(ContractEdit("Ada", should_cancel_handoff=True), ContractEdit("Ben"))
        assert await run.outcomes() == {"Ada": "canceled", "Ben": "saved"}
        tokens = [
            event.data["by"]
            for event in await run.history()
            if event.kind == "MessagePublished" and event.data["channel"] == "contractEditToken"
        ]
        assert tokens == ["StartContractEdits-1", "SaveContractEdit-1"]

    on_engine(tmp_path, scenario)


@pytest.mark.statement("B241")
@pytest.mark.parametrize(("hesitation", "outcome"), [(0.5, "saved"), (5.0, "canceled")])
def test_a_cancellation_that_comes_too_late_changes_nothing_and_reports_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hesitation: float, outcome: str
) -> None:
    monkeypatch.setattr(critical_section, "HESITATION_SECONDS", hesitation)

    async def scenario(run: Run) -> None:
        await run.start(ContractEdit("Ada", should_cancel_handoff=True), ContractEdit("Ben"))
        outcomes = await run.outcomes()
        assert outcomes == {"Ada": outcome, "Ben": "saved"}

    on_engine(tmp_path, scenario)


@pytest.mark.statement("B240", "B241", "B250")
def test_a_handoff_that_fails_while_it_is_to_be_cancelled_is_reported_once(tmp_path: Path) -> None:
    async def scenario(run: Run) -> None:
        both = ContractEdit("Ada", should_cancel_handoff=True, should_fail_handoff=True)
        await run.start(both, ContractEdit("Ben"))
        outcomes = await run.outcomes()
        assert outcomes["Ada"] in ("failed", "canceled")
        assert outcomes["Ben"] == "saved"

    on_engine(tmp_path, scenario)


@pytest.mark.statement("B243")
def test_stopping_the_flow_ends_every_branch(tmp_path: Path) -> None:
    async def scenario(run: Run) -> None:
        await run.start(ContractEdit("Ada"), ContractEdit("Ben"))
        await asyncio.sleep(0.3)
        await run.client.stop_flow(run.flow_id, StopFlowOptions(type=StopType.CANCEL))
        result = await run.client.wait_for_flow(run.flow_id)
        assert result.status is FlowStatus.CANCELED
        assert (await run.client.describe(run.flow_id)).steps == ()

    on_engine(tmp_path, scenario)


@pytest.mark.statement("B246", "B255")
def test_a_second_token_lets_two_reviewers_in_at_once(tmp_path: Path) -> None:
    async def scenario(run: Run) -> None:
        await run.start(*(ContractEdit(f"reviewer {number}") for number in range(4)))
        await run.client.publish(run.flow_id, CONTRACT_EDIT_TOKEN, "a token too many")
        result = await run.client.wait_for_flow(run.flow_id)
        assert overlapping(result.single_output(list[ContractEditRecord]))

    on_engine(tmp_path, scenario)


edits = st.lists(
    st.fixed_dictionaries({flag: st.booleans() for flag in FLAGS}).map(lambda flags: ContractEdit("", **flags)),
    max_size=7,
).map(lambda drawn: [replace(edit, reviewer=f"reviewer {number}") for number, edit in enumerate(drawn)])


@pytest.mark.statement("B253")
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(edits=edits, hesitation=st.sampled_from([0.0, 0.9, 1.0, 1.1, 2.5, 60.0]))
def test_any_mix_of_exits_leaves_one_record_each_and_no_overlap(
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
    edits: list[ContractEdit],
    hesitation: float,
) -> None:
    monkeypatch.setattr(critical_section, "HESITATION_SECONDS", hesitation)

    async def scenario(run: Run) -> None:
        await run.start(*edits)
        outcomes = await run.outcomes()
        assert set(outcomes) == {edit.reviewer for edit in edits}
        for edit in edits:
            assert outcomes[edit.reviewer] in possible(edit)

    on_engine(tmp_path_factory.mktemp("mix"), scenario)


def possible(edit: ContractEdit) -> set[str]:
    outcomes = {"canceled"} if edit.should_cancel_handoff else set()
    if edit.should_fail_handoff:
        return outcomes | {"failed"}
    if edit.should_withdraw:
        return outcomes | {"withdrawn"}
    return outcomes | {"failed" if edit.should_fail_edit else "saved"}


DEMO_OUTCOMES = {
    "Ada": "canceled",
    "Ben": "saved",
    "Cleo": "failed",
    "Dan": "withdrawn",
    "Eve": "failed",
    "Finn": "saved",
}


@pytest.mark.statement("B236", "B239", "B253")
def test_the_demo_shows_every_way_out(tmp_path: Path) -> None:
    async def scenario(run: Run) -> None:
        await run.start(*DEMO_EDITS)
        assert await run.outcomes() == DEMO_OUTCOMES
        (cancelled,) = [event for event in await run.history() if event.kind == "StepCancelled"]
        assert cancelled.data["returned"] == {"contractEditToken": 1, "contractEditSeat/Ada": 1}

    on_engine(tmp_path, scenario)


@pytest.mark.ray
@pytest.mark.statement("B253")
def test_the_example_runs_as_a_script_on_ray(tmp_path: Path) -> None:
    root = Path(critical_section.__file__).parents[2]
    script = subprocess.run(
        [sys.executable, critical_section.__file__],
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(root / "sdk"), str(root)]),
            "DEXRAY_DATABASE": str(tmp_path / "flows.db"),
            "DEXRAY_ADDRESS": "local",
        },
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert script.returncode == 0, script.stderr
    outcomes = [tuple(line.split()[:2]) for line in script.stdout.splitlines()]
    assert sorted(outcomes) == sorted(DEMO_OUTCOMES.items())
