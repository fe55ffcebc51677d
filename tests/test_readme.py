"""The README's promises that can be run: its Flow, word for word, as a newcomer runs it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

README = Path(__file__).parent.parent / "README.md"


@pytest.mark.ray
def test_the_flow_of_the_readme_runs_as_it_stands(tmp_path: Path) -> None:
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(), flags=re.S)
    script = tmp_path / "order.py"
    script.write_text(blocks[0])
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
