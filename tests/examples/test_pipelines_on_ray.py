"""Pipelines on real Ray, with real SIGKILLs in the middle."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import TypeVar

import pytest

from dex import AttributeMatch, Client
from dexray.cluster.protocol import flow_actor_name
from dexray.testing import FlowTest
from examples.pipelines.batch.__main__ import main as batch_demo
from examples.pipelines.batch.__main__ import make_files
from examples.pipelines.batch.flow import Folders, Manifest, decisions
from examples.pipelines.train.flow import Epoch, Plan, progress, stage
from examples.pipelines.train.models import Card, Models
from tests.cluster.engines import Engines
from tests.examples.pipeline_parts import slow_batch, slow_batches, slow_training, slow_trainings, whole_files
from tests.world import ray_database

pytestmark = [pytest.mark.ray, pytest.mark.kill, pytest.mark.timeout(500)]

T = TypeVar("T")
PATIENCE = timedelta(seconds=150)


@pytest.fixture
def engines(tmp_path: Path) -> Iterator[Engines]:
    made = Engines(tmp_path)
    yield made
    made.close()


def trained(client: Client) -> list[Epoch]:
    """All epochs, in the order in which they were told."""
    page = client.list_stream_messages("digits", progress, page_size=1_000)
    return [message.value for message in reversed(page.messages)]


def until_trained(client: Client, is_so: Callable[[Epoch], bool]) -> Epoch:
    return until(lambda: [epoch for epoch in trained(client) if is_so(epoch)])[-1]


def until(find: Callable[[], list[T]]) -> list[T]:
    """What is found, as soon as there is something."""
    deadline = time.monotonic() + PATIENCE.total_seconds()
    while not (found := find()):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return found


def kill_a_worker(client: Client, flow_id: str, at_work: Callable[[], list[int]]) -> None:
    """SIGKILL to a process that is at work, and to another one until an attempt has died of it: the first may have
    been between two attempts."""
    killed: set[int] = set()
    while not crashed(client, flow_id):
        process = until(lambda: [process for process in at_work() if process not in killed])[-1]
        killed.add(process)
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)
        deadline = time.monotonic() + 2.0
        while not crashed(client, flow_id) and time.monotonic() < deadline:
            time.sleep(0.05)


def crashed(client: Client, flow_id: str) -> bool:
    return any(event.kind == "AttemptFailed" for event in client.history(flow_id))


def writers(folder: Path) -> list[int]:
    """The processes that have written half a file, and are about to write the other half."""
    found = []
    for path in folder.glob(".partial-*"):
        with contextlib.suppress(FileNotFoundError, ValueError):
            found.append(int(path.read_text()))
    return found


def undisturbed(plan: Plan) -> Card:
    """The card of a training in process, where nothing happens to it."""
    with FlowTest(slow_trainings) as test:
        test.client.start_flow(slow_training, "digits", plan)
        return Models(Path(plan.folder)).card("digits")


@pytest.mark.statement("B157", "B202")
def test_a_training_whose_worker_and_owner_are_killed_finds_the_same_model_and_repeats_no_epoch_but_the_last(
    engines: Engines, tmp_path: Path
) -> None:
    """First the worker of a candidate in the first round; then the process that owns the Flow, in the finals."""
    plan = Plan(str(tmp_path / "models"), first_epochs=4, all_epochs=9, finalists=1, good_enough=1.5)
    client = engines.connect(slow_trainings, flow_actors=1, max_flow_actors=1)
    client.start_flow(slow_training, "digits", plan)
    kill_a_worker(client, "digits", lambda: [epoch.process for epoch in trained(client) if epoch.epoch > 1])
    until_trained(client, lambda epoch: epoch.epoch > plan.first_epochs)
    os.kill(engines.load(flow_actor_name(0)).pid, signal.SIGKILL)

    client.wait_for_attribute_match("digits", stage, AttributeMatch.equal_to("waiting for approval"))
    assert client.invoke_rpc(slow_training.decide, "digits", (True, "Ada")) == "thank you, Ada"
    assert client.wait_for_flow("digits", timeout=PATIENCE).single_output(str) == "digits is released by Ada"
    told = trained(client)
    first_round = [epoch for epoch in told if epoch.epoch <= plan.first_epochs]
    for candidate in {epoch.candidate for epoch in first_round if epoch.attempt > 1}:
        attempts = [[e.epoch for e in first_round if (e.candidate, e.attempt) == (candidate, n)] for n in (1, 2)]
        assert attempts[1][0] >= max(attempts[0], default=1), "it did not go on where it was"
    finals = [epoch for epoch in told if epoch.epoch > plan.first_epochs]
    assert {epoch.attempt for epoch in finals} == {1}, "a detached training was disturbed by the end of its owner"
    assert Models(tmp_path / "models").card("digits") == undisturbed(replace(plan, folder=str(tmp_path / "there")))


def test_a_batch_whose_worker_is_killed_in_the_middle_of_a_file_writes_the_same_files(
    engines: Engines, tmp_path: Path
) -> None:
    folders = Folders(str(tmp_path / "raw"), str(tmp_path / "clean"))
    make_files(Path(folders.source), 4)
    client = engines.connect(slow_batches)
    client.start_flow(slow_batch, "batch", folders)
    kill_a_worker(client, "batch", lambda: writers(Path(folders.target)))
    client.publish("batch", decisions, "skip")
    done = client.wait_for_flow("batch", timeout=PATIENCE).single_output(Manifest)
    assert [bad.file for bad in done.skipped] == ["month-04.csv"]

    with FlowTest(slow_batches) as test:
        there = replace(folders, target=str(tmp_path / "there"))
        test.client.start_flow(slow_batch, "batch", there)
        test.client.publish("batch", decisions, "skip")
        assert test.client.wait_for_flow("batch").single_output(Manifest) == done
    assert whole_files(tmp_path / "clean") == whole_files(tmp_path / "there")


def test_the_batch_prints_what_a_newcomer_wants_to_see(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DEXRAY_DATABASE", ray_database())
    monkeypatch.setenv("DEXRAY_NAMESPACE", "dexray-world")
    batch_demo(["--demo"])
    printed = capsys.readouterr().out
    assert "in quarantine: month-06.csv: CSV parse error" in printed
    assert "6 files, 502 rows (20 dropped), 0 skipped" in printed
