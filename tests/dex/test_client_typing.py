"""The clients' types, checked by mypy on a file that says which of its lines are wrong."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[1]


def test_mypy_refuses_exactly_the_lines_that_are_marked_as_errors(tmp_path: Path) -> None:
    source = HERE / "typing_client.py"
    marked = {
        number for number, line in enumerate(source.read_text().splitlines(), 1) if line.rstrip().endswith("# error")
    }
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--config-file=", "--cache-dir", str(tmp_path), str(source)],
        cwd=ROOT,
        env={**os.environ, "MYPYPATH": str(ROOT / "sdk")},
        capture_output=True,
        text=True,
        timeout=240,
    )
    found = {int(number) for number in re.findall(r"typing_client\.py:(\d+): error", done.stdout)}
    assert found == marked, done.stdout + done.stderr
