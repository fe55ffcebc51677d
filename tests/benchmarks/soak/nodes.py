"""The process that owns the Ray cluster of a soak: a head and two worker nodes on this machine.

    python -m tests.benchmarks.soak.nodes FOLDER

Prints a line `soak: {"address": …}` when the nodes are there. Each line `add` on its standard input adds a worker
node; the end of its input ends the cluster. All processes of the cluster come of this one.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from ray.cluster_utils import Cluster

MARK = "soak: "
CPUS = 1
CONFIG = {
    # A node that does not answer is given up after 10 to 30 s: some frozen ones have been replaced when they thaw.
    "health_check_initial_delay_ms": 10_000,
    "health_check_period_ms": 2_000,
    "health_check_timeout_ms": 5_000,
    "health_check_failure_threshold": 4,
    # On a busy machine processes start slowly. Ray would start more of them, which makes it worse.
    "worker_register_timeout_seconds": 240,
    "enable_worker_prestart": False,
    "prestart_worker_first_driver": False,
}


def main(folder: str) -> None:
    node: dict[str, Any] = {"num_cpus": CPUS, "object_store_memory": 80 * 1024 * 1024}
    head = {**node, "include_dashboard": False, "temp_dir": folder, "_system_config": CONFIG}
    cluster: Any = Cluster(initialize_head=True, head_node_args=head)
    for _ in range(2):
        cluster.add_node(**node)
    say({"address": cluster.address})
    for _ in sys.stdin:
        try:
            cluster.add_node(**node)
            say({"added": True})
        except Exception as error:  # the head was lost meanwhile: whoever asked will look again
            say({"added": False, "error": str(error)})
    cluster.shutdown()


def say(what: dict[str, Any]) -> None:
    print(MARK + json.dumps(what), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
