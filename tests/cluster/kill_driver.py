"""A driver to be killed: starts Flows on an embedded Ray, says what was acknowledged, and waits for its end.

python -m tests.cluster.kill_driver DATABASE FOLDER COUNT
"""

from __future__ import annotations

import sys

import dexray
from dex import Registry
from tests.cluster.kill_flows import Job, KillFlow, token


def main(database: str, folder: str, count: int) -> None:
    flow = KillFlow()
    with dexray.connect(Registry([flow]), database=database, address="local", namespace="killed") as client:
        for number in range(count):
            client.start_flow(flow, f"flow-{number}", Job(folder, 1, 0.02))
            print(f"started flow-{number}", flush=True)
            client.publish(f"flow-{number}", token, f"for-{number}")
            print(f"published flow-{number}", flush=True)
        print("all", flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
