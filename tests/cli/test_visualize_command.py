"""`dexray visualize`: targets, forms of output and exit codes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import Shell, shell

ROOT = Path(__file__).parents[2]

GOOD = """
from dex import Channel, Context, Flow, PersistenceSchema, Registry, Step, StepDecision, StepList, StepOptions
from dex import graceful_complete

queue = Channel("queue", int)


class Count(Step[None]):
    def get_step_options(self) -> StepOptions:
        return StepOptions(execute_load_channels=(queue,))

    def execute(self, context: Context, input: None) -> StepDecision:
        return graceful_complete(len(queue.pending_messages(context)))


class Counting(Flow[None]):
    def get_steps(self) -> StepList[None]:
        return StepList.start_step(Count())

    def get_persistence_schema(self) -> PersistenceSchema:
        return PersistenceSchema.of(queue)


class Other(Flow[None]):
    pass


class NeedsArguments(Flow[None]):
    def __init__(self, name: str) -> None:
        pass
"""
BAD = GOOD.replace("execute_load_channels=(queue,)", "")


@pytest.fixture
def dexray(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Shell:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "good.py").write_text(GOOD)
    (tmp_path / "bad.py").write_text(BAD)
    return shell(None, monkeypatch)


def test_the_picture_of_a_file_has_all_its_flows(dexray: Shell) -> None:
    outcome = dexray("visualize", "good.py")
    assert outcome.code == 0
    assert [line for line in outcome.out.splitlines() if line.startswith("Flow")] == ["Flow Counting", "Flow Other"]
    assert outcome.err.splitlines() == ["2 Flows, 0 errors, 0 warnings"]
    assert dexray.places == []


@pytest.mark.statement("B193", "C87")
def test_errors_exit_with_1_and_name_file_line_and_option(dexray: Shell, tmp_path: Path) -> None:
    outcome = dexray("visualize", "bad.py:Counting")
    line = 1 + BAD.splitlines().index("        return graceful_complete(len(queue.pending_messages(context)))")
    assert outcome.code == 1
    (error,) = [line for line in outcome.out.splitlines() if line.startswith("error:")]
    assert error.startswith(f"error: bad.py:{line}: Flow 'Counting', Step 'Count', execute: ")
    assert error.endswith("Add to its StepOptions: execute_load_channels=(queue,)")
    assert outcome.err.splitlines() == ["1 Flow, 1 error, 0 warnings"]


@pytest.mark.statement("C87")
def test_json_is_one_document_with_the_diagnostics_in_it(dexray: Shell) -> None:
    outcome = dexray("visualize", "bad.py", "--json")
    assert (outcome.code, outcome.err) == (1, "")
    assert (outcome.data["schema_version"], len(outcome.data["flows"])) == ("1.0", 2)
    (found,) = outcome.data["diagnostics"]
    assert (found["severity"], found["code"], found["file"], found["step"], found["method"], found["option"]) == (
        "error",
        "unselected-read",
        "bad.py",
        "Count",
        "execute",
        "execute_load_channels=(queue,)",
    )


@pytest.mark.statement("C87")
def test_mermaid_is_a_chart_on_stdout_and_findings_on_stderr(dexray: Shell) -> None:
    outcome = dexray("visualize", "bad.py:Counting", "--mermaid")
    assert outcome.code == 1
    assert outcome.out.startswith("flowchart TD\n")
    assert "error" not in outcome.out
    assert outcome.err.splitlines()[0].startswith("error: bad.py:")


@pytest.mark.statement("C87")
@pytest.mark.parametrize(("form", "begin"), [((), "Flow Counting\n"), (("--mermaid",), "flow"), (("--json",), "{\n")])
def test_out_writes_the_picture_to_a_file(dexray: Shell, tmp_path: Path, form: tuple[str, ...], begin: str) -> None:
    outcome = dexray("visualize", "good.py:Counting", *form, "--out", "picture")
    assert (outcome.code, outcome.out) == (0, "")
    assert (tmp_path / "picture").read_text().startswith(begin)
    outcome = dexray("visualize", "good.py:Counting", *form, "--out", "no/folder/picture")
    assert (outcome.code, outcome.out) == (2, "")


@pytest.mark.statement("C87")
@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("good.py", "--mermaid", "--json"), "don't go together"),
        (("good.py:Missing",), "has no 'Missing': its Flows are Counting"),
        (("good.py:queue",), "is no Flow"),
        (("good.py:NeedsArguments",), "name an instance of it"),
        (("empty.py",), "has no Flow"),
        (("several.py",), "several Registries (one, two): name one, as several.py:one"),
        (("missing.py",), "there is no file"),
        (("no_such_module",), "there is no module"),
        (("",), "no target"),
    ],
)
def test_what_can_not_be_used_exits_with_2(
    dexray: Shell, tmp_path: Path, arguments: tuple[str, ...], problem: str
) -> None:
    (tmp_path / "empty.py").write_text("x = 1\n")
    (tmp_path / "several.py").write_text(GOOD + "\none = Registry([Counting()])\ntwo = Registry([Other()])\n")
    outcome = dexray("visualize", *arguments)
    assert (outcome.code, outcome.out) == (2, "")
    assert problem in " ".join(outcome.err.replace("\\n", "\n").split())


def test_a_registry_names_all_its_flows_and_a_module_its_only_registry(dexray: Shell, tmp_path: Path) -> None:
    (tmp_path / "both.py").write_text(GOOD + "\nregistry = Registry([Other()])\nsame = registry\n")
    for target in ("both.py", "both.py:registry", "both.py:Other"):
        outcome = dexray("visualize", target, "--json")
        assert [flow["type"] for flow in outcome.data["flows"]] == ["Other"], target


def test_no_ray_is_started_or_imported() -> None:
    code = (
        "import sys\n"
        "from dexray.cli.app import app\n"
        "app(['visualize', 'examples.patterns.critical_section:registry'], standalone_mode=False)\n"
        "print([name for name in ('ray', 'sqlalchemy', 'dexray.engine') if name in sys.modules])"
    )
    outcome = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "sdk"), str(ROOT)])},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert outcome.stdout.splitlines()[-1] == "[]"


def test_other_commands_do_not_load_what_reads_source() -> None:
    code = (
        "import sys\n"
        "from dexray.cli.app import app\n"
        "app(['version'], standalone_mode=False)\n"
        "print('dexray.visualize' in sys.modules)"
    )
    outcome = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "sdk"), str(ROOT)])},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert outcome.stdout.splitlines()[-1] == "False"
