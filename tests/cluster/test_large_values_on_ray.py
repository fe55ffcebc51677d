"""Large values between real processes: by the object store while it has them, from the blob store when it has not."""

from __future__ import annotations

import hashlib
import os
import signal
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from dex import Client, FlowStatus, Registry
from dex.values import CodecRegistry, detach
from dexray.attempts import pack_registry
from dexray.cluster.shared_values import LOST, SHARE_FROM
from dexray.protocol.attempts import AttemptKey, AttemptReturned, AttemptTask, ExecuteSucceeded
from tests.cluster.engines import Engines
from tests.cluster.large_value_flows import FREIGHT, expected, go

pytestmark = pytest.mark.ray

COUNT = 2 * SHARE_FROM // 8


def eventually(look: Callable[[], bool], seconds: float = 120.0) -> None:
    end = time.monotonic() + seconds
    while not look():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.02)


def waits(client: Client, flow_id: str) -> bool:
    return [step.phase for step in client.describe(flow_id).steps] == ["waiting"]


def objects(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


@pytest.mark.statement("D12")
def test_the_next_attempt_reads_a_value_from_the_object_store(engines: Engines, tmp_path: Path) -> None:
    store = tmp_path / "values"
    client = engines.connect(Registry([FREIGHT], allow_async_handlers=True), blob_store=str(store), code_check=False)
    client.start_flow(FREIGHT, "f", COUNT)
    eventually(lambda: waits(client, "f"))
    (path,) = objects(store)  # it was written before the record that needs it
    body = path.read_bytes()
    assert hashlib.sha256(body).hexdigest() == path.name.partition("-")[0]
    path.unlink()  # now it is in the object store alone
    client.publish("f", go, True)
    result = client.wait_for_flow("f", timedelta(seconds=120))
    assert (result.status, result.single_output(float)) == (FlowStatus.COMPLETED, expected(COUNT))


@pytest.mark.kill
@pytest.mark.statement("D12")
def test_when_the_owner_has_died_its_successor_reads_the_value_from_the_blob_store(
    engines: Engines, tmp_path: Path
) -> None:
    store = tmp_path / "values"
    client = engines.connect(Registry([FREIGHT], allow_async_handlers=True), blob_store=str(store), code_check=False)
    client.start_flow(FREIGHT, "f", COUNT)
    eventually(lambda: waits(client, "f"))
    os.kill(engines.load().pid, signal.SIGKILL)
    client.publish("f", go, True)
    result = client.wait_for_flow("f", timedelta(seconds=120))
    assert (result.status, result.single_output(float)) == (FlowStatus.COMPLETED, expected(COUNT))
    client.delete_flow("f")
    eventually(lambda: objects(store) == [])


def test_without_a_blob_store_values_lie_in_the_database_and_workers_keep_to_the_limit(
    engines: Engines, tmp_path: Path
) -> None:
    registry = Registry([FREIGHT], allow_async_handlers=True)
    client = engines.connect(registry, max_value_bytes=3 * SHARE_FROM, code_check=False)
    client.start_flow(FREIGHT, "f", COUNT)
    eventually(lambda: waits(client, "f"))
    client.publish("f", go, True)
    assert client.wait_for_flow("f", timedelta(seconds=120)).single_output(float) == expected(COUNT)
    client.start_flow(FREIGHT, "too large", 2 * COUNT)
    result = client.wait_for_flow("too large", timedelta(seconds=120))
    assert result.status is FlowStatus.FAILED
    assert f"over the limit of {3 * SHARE_FROM:,}" in result.error_message


# A lost object --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("step_type", ["Measures", "AsyncMeasures"])
def test_an_attempt_whose_value_is_lost_goes_back_unrun_and_the_reference_is_forgotten(
    engines: Engines, step_type: str
) -> None:
    import ray

    from tests.cluster.handlers import make_registry
    from tests.cluster.owner import Owner

    code, deployment_id, _ = pack_registry(make_registry())
    owner: Any = ray.remote(Owner).options(num_cpus=0, max_concurrency=1000).remote({deployment_id: code})
    ray.get(owner.begin.remote(), timeout=60)
    blobs: dict[str, bytes] = {}
    text = "x" * SHARE_FROM
    reference = detach(CodecRegistry().encode_dynamic(text, where="input"), blobs)
    ((digest, body),) = blobs.items()

    def run(number: int) -> Any:
        task = AttemptTask(
            key=AttemptKey("f", "run", f"{step_type}-1", "execute", number),
            flow_type="Handlers",
            step_type=step_type,
            is_async=step_type.startswith("Async"),
            deployment_id=deployment_id,
            from_step_execution_id="",
            input=reference,
            timeout=60.0,
            heartbeat_timeout=60.0,
            first_attempt_at=time.time(),
        )
        ray.get(owner.submit.remote([task]), timeout=60)
        return ray.get(owner.wait_results.remote([task.key], 100.0), timeout=120)[0]

    ray.get(owner.share.remote(digest, body), timeout=60)
    assert isinstance(run(1), ExecuteSucceeded)
    ray.get(owner.lose.remote(digest), timeout=60)
    assert run(2) == AttemptReturned(reason=LOST)
    assert ray.get(owner.at_hand.remote(digest), timeout=60) is False
    ray.kill(owner)
