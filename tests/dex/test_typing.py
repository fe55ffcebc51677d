"""The types of the public surface, as mypy --strict sees them: what must pass and what must not."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parent.parent


@pytest.fixture(name="reported", scope="module")
def _reported() -> dict[str, dict[int, str]]:
    """Errors by file and line."""
    checked = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "tests/dex/typing_ok.py", "tests/dex/typing_bad.py"],
        cwd=ROOT,
        env={**os.environ, "MYPYPATH": "sdk"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert checked.returncode in (0, 1), checked.stderr
    found: dict[str, dict[int, str]] = {"typing_ok.py": {}, "typing_bad.py": {}}
    for file, line, text in re.findall(r"^tests/dex/(typing_\w+\.py):(\d+): error: (.*)$", checked.stdout, re.M):
        found[file][int(line)] = text
    return found


def test_what_users_write_type_checks(reported: dict[str, dict[int, str]]) -> None:
    assert reported["typing_ok.py"] == {}


def test_mistakes_are_reported_where_they_are_made(reported: dict[str, dict[int, str]]) -> None:
    lines = (HERE / "typing_bad.py").read_text().splitlines()
    marked = {number for number, line in enumerate(lines, 1) if line.endswith("# error")}
    assert set(reported["typing_bad.py"]) == marked
