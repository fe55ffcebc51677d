"""What needs no engine, and how the process of the command behaves."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import Shell, shell

ROOT = Path(__file__).parents[2]


@pytest.fixture
def dexray(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Shell:
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("DEXRAY_")]:
        monkeypatch.delenv(name)
    return shell(None, monkeypatch)


def process(*arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """The command as a process of its own, without a terminal."""
    return subprocess.run(
        [sys.executable, "-c", "from dexray.cli import main; main()", *arguments],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "sdk"), str(ROOT)]), **environ},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_config_shows_each_setting_with_its_source(
    dexray: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pyproject.toml").write_text("[tool.dexray]\nflow_actors = 2\n")
    monkeypatch.setenv("DEXRAY_NAMESPACE", "mine")
    outcome = dexray("config", "--json", "--address", "10.0.0.1:6379")
    settings = {setting["name"]: setting for setting in outcome.data["settings"]}
    assert (settings["flow_actors"]["value"], settings["flow_actors"]["source"]) == (
        2,
        f"[tool.dexray] in {tmp_path / 'pyproject.toml'}",
    )
    assert (settings["namespace"]["value"], settings["namespace"]["source"]) == ("mine", "DEXRAY_NAMESPACE")
    assert (settings["address"]["value"], settings["address"]["source"]) == ("10.0.0.1:6379", "argument")
    assert settings["home"]["source"] == "default"
    shown = dexray("config").out
    assert "DEXRAY_NAMESPACE" in shown
    assert dexray.places == []


def test_config_shows_attribute_stores_without_their_passwords(dexray: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    stores = '{"shop": {"url": "postgresql://ann:geheim@db/shop", "table": "orders"}}'
    monkeypatch.setenv("DEXRAY_ATTRIBUTE_STORES", stores)
    outcome = dexray("config", "--json")
    (found,) = [entry for entry in outcome.data["settings"] if entry["name"] == "attribute_stores"]
    assert found["value"] == {"shop": {"url": "postgresql://ann:***@db/shop", "table": "orders"}}
    assert "geheim" not in outcome.out + dexray("config").out


def test_config_hides_passwords(dexray: Shell) -> None:
    url = "postgresql://ada:secret@db/flows"
    for outcome in (dexray("config", "--database", url), dexray("config", "--database", url, "--json")):
        assert "secret" not in outcome.out
        assert "postgresql://ada:***@db/flows" in outcome.out


def test_a_setting_that_cannot_be_used_exits_with_2_and_names_its_source(
    dexray: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DEXRAY_FLOW_ACTORS", "many")
    outcome = dexray("config")
    assert outcome.code == 2
    assert "DEXRAY_FLOW_ACTORS" in outcome.err
    assert dexray("config", "--json").error["type"] == "SettingsError"


def test_version_names_what_runs(dexray: Shell) -> None:
    data = dexray("version", "--json").data
    assert set(data) == {"dexray", "python", "ray"}
    assert data["dexray"] in dexray("version").out


def test_help_names_every_command(dexray: Shell) -> None:
    shown = dexray("--help").out
    for name in ("demo", "run", "flow", "visualize", "config", "version"):
        assert name in shown
    shown = dexray("flow", "--help").out
    for name in ("list", "show", "publish", "stop"):
        assert name in shown


def test_wrong_arguments_exit_with_2_in_text_and_in_json() -> None:
    outcome = process("flow", "show")
    assert (outcome.returncode, outcome.stdout) == (2, "")
    assert "FLOW_ID" in outcome.stderr
    outcome = process("flow", "show", "--json")
    assert (outcome.returncode, outcome.stdout) == (2, "")
    error = json.loads(outcome.stderr)["error"]
    assert (error["type"], error["exit_code"]) == ("UsageError", 2)
    assert "FLOW_ID" in error["message"]


def test_exit_codes_of_commands_reach_the_shell() -> None:
    assert process("version", "--json").returncode == 0
    assert process("run", "no_such_module:Flow").returncode == 2
    outcome = process("run", "no_such_module:Flow", "--json")
    assert outcome.returncode == 2
    assert json.loads(outcome.stderr)["error"]["type"] == "UsageProblem"


def test_output_without_a_terminal_has_no_colours() -> None:
    for arguments in (("config",), ("--help",), ("run", "x")):
        outcome = process(*arguments, FORCE_COLOR="1", TERM="xterm-256color")
        assert "\x1b" not in outcome.stdout + outcome.stderr


def test_looking_around_imports_neither_ray_nor_a_database() -> None:
    code = (
        "import sys\n"
        "from dexray.cli.app import app\n"
        "app(['config'], standalone_mode=False)\n"
        "print([name for name in ('ray', 'sqlalchemy', 'numpy') if name in sys.modules])"
    )
    outcome = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "sdk"), str(ROOT)])},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert outcome.stdout.splitlines()[-1] == "[]"


SWALLOWED = """
import signal, sys, time, weakref
from dexray.cli import app

class Thing:
    pass

def command():
    thing = Thing()
    callback = weakref.ref(thing, lambda _: signal.raise_signal(getattr(signal, sys.argv[1])))
    del thing  # the signal comes in the callback, out of which Python raises nothing
    print("still here", flush=True)
    time.sleep(60)

app.app = command
app.run()
"""


@pytest.mark.parametrize(("name", "code"), [("SIGINT", 130), ("SIGTERM", 143)])
def test_a_signal_that_python_drops_comes_again(name: str, code: int) -> None:
    outcome = subprocess.run([sys.executable, "-c", SWALLOWED, name], capture_output=True, text=True, timeout=50)
    assert (outcome.returncode, outcome.stdout, outcome.stderr) == (code, "still here\n", "")
