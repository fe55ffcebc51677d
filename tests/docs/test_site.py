"""docs/ builds into a site without a warning: every link and every anchor leads somewhere."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.docs.blocks import ROOT


def build(config: Path, site: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "-f", str(config), "-d", str(site)],
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    done = build(ROOT / "docs" / "site" / "mkdocs.yml", tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "WARNING" not in done.stdout + done.stderr
    for page in (ROOT / "docs").glob("*.md"):
        built = tmp_path / "index.html" if page.stem == "index" else tmp_path / page.stem / "index.html"
        assert built.is_file(), page.name
    pattern = tmp_path / "source" / "examples" / "workflow_patterns" / "wcp_16_deferred_choice.py" / "index.html"
    assert "Wait" in pattern.read_text(), "links to examples lead to their code"


def test_the_links_of_the_readme_lead_somewhere() -> None:
    links = re.findall(r"\]\((?![a-z]+:)([^)#\s]+)", (ROOT / "README.md").read_text())
    assert len(links) >= 10
    assert [link for link in links if not (ROOT / link).exists()] == []
