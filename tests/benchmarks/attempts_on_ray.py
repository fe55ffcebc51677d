"""How fast attempts run on a local Ray: PYTHONPATH=sdk:. python tests/benchmarks/attempts_on_ray.py

Prints attempts a second, the latency of one idle attempt from `run` to `attempt_finished`, and CPU of the owner's
process an attempt.
"""

from __future__ import annotations

import os
import time
from typing import Any

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("RAY_DISABLE_IMPORT_WARNING", "1")

import ray

from dex.values import CodecRegistry
from dexray.attempts.code import pack_registry
from dexray.cluster.dispatch import DispatchSettings
from dexray.cluster.ray_attempts import AttemptSettings
from dexray.protocol.attempts import AttemptKey, AttemptTask
from tests.cluster.handlers import make_registry
from tests.cluster.owner import Owner

CODECS = CodecRegistry()
ALONE = AttemptSettings(dispatch=DispatchSettings(pack_limit=1))
BY_RAY = AttemptSettings(lanes=False)
ALONE_BY_RAY = AttemptSettings(dispatch=DispatchSettings(pack_limit=1), lanes=False)


def tasks_of(deployment_id: str, step_type: str, value: Any, count: int, name: str) -> list[AttemptTask]:
    payload = CODECS.encode_dynamic(value, where="benchmark")
    return [
        AttemptTask(
            key=AttemptKey(f"{name}-{number}", "run", f"{step_type}-1", "execute", 1),
            flow_type="Handlers",
            step_type=step_type,
            deployment_id=deployment_id,
            from_step_execution_id="",
            input=payload,
            timeout=60.0,
            heartbeat_timeout=60.0,
            first_attempt_at=time.time(),
            is_async=step_type.startswith("Async"),
        )
        for number in range(count)
    ]


def measure(title: str, settings: AttemptSettings | None, step_type: str, value: Any, count: int) -> None:
    code, deployment_id, _ = pack_registry(make_registry())
    owner = ray.remote(Owner).options(num_cpus=0, max_concurrency=1000).remote({deployment_id: code}, settings)
    ray.get(owner.begin.remote())

    def run(number: int, name: str) -> tuple[float, float]:
        tasks = tasks_of(deployment_id, step_type, value, number, name)
        before = ray.get(owner.state.remote())["cpu"]
        started = time.perf_counter()
        ray.get(owner.run_all.remote(tasks), timeout=300)
        elapsed = time.perf_counter() - started
        return elapsed, ray.get(owner.state.remote())["cpu"] - before

    latencies = []
    for number in range(60):
        tasks = tasks_of(deployment_id, step_type, value, 1, f"idle-{number}")
        latencies.append(ray.get(owner.run_all.remote(tasks)))
    latencies = sorted(latencies[10:])
    run(count // 4, "warm")
    elapsed, cpu = run(count, "load")
    lots = ray.get(owner.state.remote())["lots"]
    print(
        f"{title:34} {count / elapsed:8.0f} attempts/s   idle p50 {latencies[len(latencies) // 2] * 1e3:5.2f} ms   "
        f"p90 {latencies[len(latencies) * 9 // 10] * 1e3:5.2f} ms   owner {cpu / count * 1e3:5.3f} ms CPU   {lots} lots"
    )
    ray.get(owner.end.remote())
    ray.kill(owner)


if __name__ == "__main__":
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, configure_logging=False)
    for way, alone, packed in (("lanes", ALONE, None), ("by Ray", ALONE_BY_RAY, BY_RAY)):
        measure(f"sync, {way}, one attempt a lot", alone, "Quick", 1, 2000)
        measure(f"sync, {way}, packed", packed, "Quick", 1, 20000)
        measure(f"sync of 5 ms, {way}, packed", packed, "Sleeps", 0.005, 1000)
    measure("async", None, "AsyncEcho", 0.0, 10000)
    measure("async of 50 ms", None, "AsyncEcho", 0.05, 5000)
    ray.shutdown()
