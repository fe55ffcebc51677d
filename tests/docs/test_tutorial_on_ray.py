"""The tutorial, from its first to its last command, on a real cluster."""

from __future__ import annotations

import contextlib
import io
import linecache
import os
import runpy
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dexray.cli.app import app
from tests.docs.blocks import ROOT, blocks_of, commands_in, is_as_shown
from tests.world import ray_database

PAGE = ROOT / "docs" / "tutorial.md"


@contextlib.contextmanager
def a_new_program(folder: Path) -> Iterator[None]:
    """Modules of the folder are imported anew, as a new process does."""
    before = set(sys.modules)
    linecache.clearcache()
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))
        for name in set(sys.modules) - before:
            if str(getattr(sys.modules[name], "__file__", None)).startswith(str(folder)):
                del sys.modules[name]


def run(command: str, folder: Path) -> str:
    """Runs a command in this process, which is connected to Ray already; what it prints."""
    program, *arguments = shlex.split(command)
    if program == "python":
        printed = io.StringIO()
        with a_new_program(folder), contextlib.redirect_stdout(printed):
            runpy.run_path(str(folder / arguments[0]), run_name="__main__")
        lines = printed.getvalue().splitlines(keepends=True)
        return "".join(line for line in lines if "(raylet)" not in line)  # what Ray thinks of a slow machine
    if program == "dexray":
        with a_new_program(folder):
            result = CliRunner().invoke(app, arguments)
        assert result.exit_code == 0, f"{command}: {result.output}"
        return result.stdout
    assert program == "pytest", command
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--rootdir", str(folder), *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "sdk"), str(ROOT)])},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    return done.stdout


@pytest.mark.ray
def test_the_tutorial_goes_as_it_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ray_database()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # files change within a second
    monkeypatch.setenv("DEXRAY_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("DEXRAY_NAMESPACE", f"tutorial-{os.getpid()}")
    for name in ("DEXRAY_ADDRESS", "DEXRAY_DATABASE", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)
    commands = 0
    for block in blocks_of(PAGE):
        if block.mark == "file":
            (tmp_path / block.argument).write_text(block.text)
        elif block.language == "console":
            for command, shown in commands_in(block):
                printed = run(command, tmp_path)
                assert is_as_shown(printed, shown), f"{block}: `{command}` shows\n{shown}\nand prints\n{printed}"
                commands += 1
        else:
            assert block.language == "bash", f"{block} is not run"
    assert commands >= 8
