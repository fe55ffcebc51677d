"""The page on testing tells of everything that a FlowTest has; `tests.docs` runs its examples."""

from __future__ import annotations

from pathlib import Path

from dexray.testing import FlowTest

PAGE = Path(__file__).parents[2] / "docs" / "testing.md"


def test_everything_that_is_public_is_on_the_page() -> None:
    unmentioned = {"close", "registry", "begins", "ended", "raised"}  # of the engine's, or plain
    text = PAGE.read_text()
    names = {name for name in vars(FlowTest) if not name.startswith("_")} - {"on_ray"} - unmentioned
    assert [name for name in sorted(names) if name not in text] == []
