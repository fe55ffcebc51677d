"""Every example is tested, tells how to run it, and what becomes of it when a process dies."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted(path.relative_to(ROOT) for path in (ROOT / "examples").rglob("*.py") if not path.name.startswith("_"))


def imported(file: Path) -> set[str]:
    """The modules and names that a file imports, in full."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found


TESTED = {
    name for file in (ROOT / "tests").rglob("test_*.py") if "examples" in file.read_text() for name in imported(file)
}
PIPELINES = ROOT / "examples" / "pipelines"
DESCRIBED = [path for path in EXAMPLES if path.parts[1] in ("patterns", "products")] + [
    Path("examples/pipelines/agent.py"),
    Path("examples/pipelines/ray_data.py"),
    *(path.relative_to(ROOT) for path in PIPELINES.glob("*/__init__.py")),
]


@pytest.mark.parametrize("path", EXAMPLES, ids=str)
def test_each_example_is_imported_by_a_test(path: Path) -> None:
    assert ".".join(path.with_suffix("").parts) in TESTED, f"{path} has no test: write one in tests/examples"


@pytest.mark.parametrize("path", DESCRIBED, ids=str)
def test_each_example_tells_how_to_run_it_and_what_becomes_of_it_when_a_process_dies(path: Path) -> None:
    text = ast.get_docstring(ast.parse((ROOT / path).read_text())) or ""
    assert f"python -m {'.'.join(path.with_suffix('').parts)}".removesuffix(".__init__") in text
    assert "If a process dies in the middle" in text


@pytest.mark.parametrize("path", DESCRIBED, ids=str)
def test_the_readme_lists_each_example(path: Path) -> None:
    assert str(path.relative_to("examples")) in (ROOT / "examples" / "README.md").read_text()
