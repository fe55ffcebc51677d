"""The README's promises that can be run: its Flow, word for word, as a newcomer runs it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.blocks import ROOT, blocks_of


@pytest.mark.ray
def test_the_flow_of_the_readme_runs_as_it_stands(tmp_path: Path) -> None:
    first = next(block for block in blocks_of(ROOT / "README.md") if block.language == "python")
    script = tmp_path / "order.py"
    script.write_text(first.text)
    environment = {**os.environ, "DEXRAY_HOME": str(tmp_path / "home"), "DEXRAY_ADDRESS": "local"}
    done = subprocess.run(
        [sys.executable, str(script)],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.stdout.splitlines()[-1:] == ["Ada agreed to 42"], done.stderr
