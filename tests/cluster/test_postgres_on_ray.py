"""The whole system on PostgreSQL: a URL is all that is different."""

from __future__ import annotations

import os
import signal
import time
from datetime import timedelta

import pytest

import dexray
from dex import DexServiceError, FlowStatus, StatusCode
from examples.patterns.critical_section import DEMO_EDITS, ContractEditRecord, contract_edit_flow, registry
from tests.cluster.engines import Engines
from tests.postgres import postgres_server

pytestmark = [pytest.mark.ray, pytest.mark.kill, pytest.mark.timeout(240)]


@pytest.mark.statement("B202", "D14")
def test_the_demo_survives_the_end_of_its_flow_actor_on_postgres(
    engines: Engines, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = postgres_server()
    url = server.new_database()
    name = url.partition("@/")[2].partition("?")[0]
    engines.database = url
    monkeypatch.setenv("DEXRAY_DATABASE", url)
    with dexray.connect(registry, namespace=engines.namespace) as client:
        client.start_flow(contract_edit_flow, "contract", DEMO_EDITS)
        deadline = time.monotonic() + 60
        while len(list(client.history("contract"))) < 12:  # several reviewers are under way
            assert time.monotonic() < deadline
            time.sleep(0.02)
        os.kill(engines.load().pid, signal.SIGKILL)
        result = client.wait_for_flow("contract", timeout=timedelta(seconds=120))
        assert result.status is FlowStatus.COMPLETED
        records = result.single_output(list[ContractEditRecord])
        assert sorted(record.reviewer for record in records) == sorted(edit.reviewer for edit in DEMO_EDITS)
        # One of the Directory, one of the FlowActor's journal, one of its searches if there were any.
        assert server.connections_to(name) <= 3
    ((status, epoch),) = server.ask("SELECT status, epoch FROM runs WHERE flow_id = 'contract'", name)
    assert status == "COMPLETED"
    assert epoch >= 2  # the second life of the FlowActor has claimed it


def test_a_database_that_can_not_be_used_is_said_why_and_without_its_password(engines: Engines) -> None:
    engines.database = postgres_server().url("nowhere").replace("postgres@", "postgres:hunter2@")
    with pytest.raises(DexServiceError) as refused:
        engines.connect(registry)
    assert refused.value.code is StatusCode.FAILED_PRECONDITION
    assert 'database "nowhere" does not exist' in str(refused.value)
    assert "postgres:***@" in str(refused.value)
    assert "hunter2" not in str(refused.value)
