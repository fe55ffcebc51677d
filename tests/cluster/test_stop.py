"""`dexray.stop` ends the engine of a database in order, wherever it is called, and no Flow is harmed."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import dexray
from tests.cluster.notebook import CellFailed, Notebook

pytestmark = [pytest.mark.ray, pytest.mark.timeout(200)]

IMPORTS = """
import time
import ray
import dexray
from datetime import timedelta
from tests.cluster.connect_flows import Work, echo, registry, slow

def finished(client, flow_id):
    return client.wait_for_flow(flow_id, timeout=timedelta(seconds=60)).single_output(int)
"""


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("stop") / "flows.db"


@pytest.fixture(scope="module")
def owner(database: Path) -> Iterator[Notebook]:
    with Notebook(database.parent, {"DEXRAY_DATABASE": str(database)}) as made:
        made.run(IMPORTS)
        yield made


def dexray_stop(database: Path, *arguments: str) -> dict[str, object]:
    command = [sys.executable, "-m", "dexray", "stop", "--json", "--database", str(database), *arguments]
    answer = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert answer.returncode == 0, answer.stderr
    return dict(json.loads(answer.stdout))


def test_where_no_engine_works_nothing_is_stopped_and_nothing_started(tmp_path: Path) -> None:
    import ray

    stopped = dexray.stop(database=tmp_path / "nothing.db")
    assert (stopped.engine, stopped.interrupted) == ("", 0)
    assert not (tmp_path / "nothing.db").exists()
    assert not ray.is_initialized()
    assert dexray_stop(tmp_path / "nothing.db")["stopped"] is False


def test_attempts_that_run_finish_what_was_decided_is_written_and_the_next_engine_goes_on(
    owner: Notebook, database: Path
) -> None:
    owner.run("client = dexray.connect(registry)")
    owner.run("client.start_flow(slow, 'running', Work(2.0))")
    owner.run("client.start_flow(slow, 'long', Work(20.0))")
    owner.run("time.sleep(0.5)")
    stopped = dexray_stop(database, "--drain", "6")
    assert stopped["stopped"] is True
    assert stopped["interrupted"] == 1
    assert "namespace 'dexray'" in str(stopped["engine"])
    assert dexray_stop(database)["stopped"] is False
    owner.run("client = dexray.connect(registry)")
    assert owner.run("client.describe_flow('running').status.name") == "COMPLETED"
    kinds = owner.run("[event.kind for event in client.history('running')]")
    assert "AttemptFailed" not in kinds
    owner.run("client.stop_flow('long')")


def test_a_client_of_an_engine_that_was_stopped_is_told_to_try_again_and_goes_on_with_the_next(
    owner: Notebook, database: Path
) -> None:
    owner.run("client = dexray.connect(registry, request_timeout=0.5)")
    owner.run("client.start_flow(echo, 'before', 1)")
    assert owner.run("finished(client, 'before')") == 2
    dexray_stop(database)
    with pytest.raises(CellFailed, match="UNAVAILABLE"):
        owner.run("client.start_flow(echo, 'meanwhile', 1)")
    owner.run("again = dexray.connect(registry)")
    assert owner.run("finished(client, 'before')") == 2
    owner.run("client.start_flow(echo, 'after', 1)")
    assert owner.run("finished(client, 'after')") == 2
