"""The same seed and the same code give the same run, to the byte, whatever the process."""

from __future__ import annotations

import os
import subprocess
import sys

CODE = """
import hashlib
from tests.simulation.schedule import run_seed
digest = hashlib.sha256()
for seed in range(60):
    result = run_seed(seed, trace=True)
    digest.update(f"{seed} {result.digest} {result.callbacks} {result.steps} {result.findings}".encode())
print(digest.hexdigest())
"""


def test_two_processes_with_other_hash_seeds_see_the_same_run() -> None:
    running = [
        subprocess.Popen(
            [sys.executable, "-c", CODE],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(sys.path)},
            stdout=subprocess.PIPE,
            text=True,
        )
        for seed in ("1", "4711")
    ]
    digests = [process.communicate(timeout=250)[0].strip() for process in running]
    assert [process.returncode for process in running] == [0, 0]
    assert digests[0] == digests[1] != ""
