"""The notebooks run from top to bottom in a real kernel, and an interrupt in the middle harms no Flow."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import nbformat
import pytest
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient

NOTEBOOKS = Path(__file__).parents[2] / "examples" / "notebooks"

pytestmark = [pytest.mark.ray, pytest.mark.timeout(500)]


@pytest.fixture(autouse=True)
def home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A kernel takes the environment of this process: a home and a Ray of its own."""
    for name in os.environ:
        if name.startswith(("DEXRAY_", "RAY_ADDRESS", "RAY_AUTH_MODE", "RAY_JOB")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("DEXRAY_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("DEXRAY_ADDRESS", "local")
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")


class Kernel(NotebookClient):
    """Runs cells, and says when one has shown something."""

    def __init__(self, notebook: Any) -> None:
        super().__init__(notebook, timeout=200, kernel_name="python3", kernel_manager_class=AsyncKernelManager)
        self.has_shown = asyncio.Event()

    def output(self, *arguments: Any) -> Any:
        shown = super().output(*arguments)
        self.has_shown.set()
        return shown


async def run(name: str) -> list[str]:
    """What each code cell shows. A cell with the tag `interrupt` is interrupted as soon as it has shown something."""
    notebook: Any = nbformat.read(NOTEBOOKS / name, as_version=4)
    client = Kernel(notebook)
    async with client.async_setup_kernel():
        for number, cell in enumerate(notebook.cells):
            if cell.cell_type != "code":
                continue
            client.has_shown.clear()
            executing = asyncio.ensure_future(client.async_execute_cell(cell, number))
            if "interrupt" in cell.metadata.get("tags", ()):
                await client.has_shown.wait()
                assert client.km is not None
                await client.km.interrupt_kernel()
            await executing
    return [shown(cell) for cell in notebook.cells if cell.cell_type == "code"]


def shown(cell: Any) -> str:
    """The text below a cell."""
    return "".join(output.get("text") or output.get("data", {}).get("text/plain", "") for output in cell.outputs)


async def test_the_first_flow_is_defined_started_watched_told_and_done_in_five_cells() -> None:
    _, started, watched, published, result = await run("first_flow.ipynb")
    assert started.strip("'")  # the ID of the run
    assert watched.startswith("loaf 1 of 3 is done\nloaf 2 of 3 is done\nloaf 3 of 3 is done\n")
    assert "Taste-1 waits for 1 message on opinion" in watched
    assert published
    assert result == "'3 loaves, and they are crisp'"


@pytest.mark.statement("D8")
async def test_a_flow_that_is_parked_gets_the_new_step_and_outlives_an_interrupted_kernel() -> None:
    parked, _, interrupted, came_back, result = await run("redefine_a_step.ipynb")
    assert "Approve-1 waits for 1 message on agreed" in parked
    assert interrupted == "waiting for order-1 ...\ninterrupted\n"
    assert came_back.startswith("RUNNING\nApprove-1 waits for 1 message on agreed")
    assert result == "'Ada agreed to 42, tax included'"


@pytest.mark.parametrize("path", sorted(NOTEBOOKS.glob("*.ipynb")), ids=lambda path: path.stem)
def test_a_notebook_is_kept_without_outputs(path: Path) -> None:
    notebook: Any = nbformat.read(path, as_version=4)
    assert all(not cell.outputs for cell in notebook.cells if cell.cell_type == "code")
