"""The command on a real Ray: the demo, and what is left after Ctrl-C."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import psutil  # type: ignore[import-untyped]
import pytest

pytestmark = [pytest.mark.ray, pytest.mark.timeout(240)]

ROOT = Path(__file__).parents[2]
MARK = "DEXRAY_TEST_MARK"


class Command:
    """The command as a process that leads a session of its own, by which all that comes from it is known."""

    def __init__(self, *arguments: str) -> None:
        environ = {name: value for name, value in os.environ.items() if not name.startswith(("DEXRAY_", "RAY_ADDRESS"))}
        self.process = subprocess.Popen(
            [sys.executable, "-c", "from dexray.cli import main; main()", *arguments],
            env={**environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "sdk"), str(ROOT)]), MARK: str(id(self))},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def line(self) -> str:
        assert self.process.stderr is not None
        line = self.process.stderr.readline()
        assert line, "the command ended early"
        return line

    def end(self, seconds: float) -> tuple[str, str]:
        """Waits for its end; what it wrote."""
        return self.process.communicate(timeout=seconds)

    def living(self) -> list[psutil.Process]:
        """The command and all its descendants, also those that left its session or lost their parent."""
        return [process for process in psutil.process_iter() if self._is_ours(process)]

    def _is_ours(self, process: psutil.Process) -> bool:
        try:
            if process.status() == psutil.STATUS_ZOMBIE:
                return False
            return os.getsid(process.pid) == self.process.pid or process.environ().get(MARK) == str(id(self))
        except (psutil.Error, OSError):
            return False

    def left_behind(self, seconds: float = 15.0) -> list[str]:
        _, alive = psutil.wait_procs(self.living(), timeout=seconds)
        return [f"{process.pid} {process.name()}" for process in alive]


@pytest.fixture
def run() -> Iterator[Callable[..., Command]]:
    """Starts commands; nothing of them outlives the test."""
    commands: list[Command] = []

    def start(*arguments: str) -> Command:
        commands.append(Command(*arguments))
        return commands[-1]

    yield start
    for command in commands:
        for process in command.living():
            process.kill()


def test_the_demo_ends_with_its_records_and_leaves_no_process(run: Callable[..., Command]) -> None:
    command = run("demo", "--json")
    out, err = command.end(200)
    assert (command.process.returncode, err) == (0, "")
    data = json.loads(out)
    outcomes = {record["reviewer"]: record["outcome"] for record in data["records"]}
    assert data["status"] == "COMPLETED"
    assert set(outcomes) == {"Ada", "Ben", "Cleo", "Dan", "Eve", "Finn"}
    assert outcomes["Ada"] == "canceled"
    edits = sorted(
        (record["started_at_millis"], record["finished_at_millis"])
        for record in data["records"]
        if record["finished_at_millis"] > record["started_at_millis"]
    )
    assert all(one[1] <= other[0] for one, other in pairwise(edits))
    assert command.left_behind() == []


@pytest.mark.parametrize(
    ("to_all", "moment"),
    [(False, "while Ray starts"), (True, "while the Flow runs")],
    ids=["to the command alone, while Ray starts", "as a terminal sends it, while the Flow runs"],
)
def test_ctrl_c_exits_with_130_and_leaves_no_process(run: Callable[..., Command], moment: str, to_all: bool) -> None:
    command = run("demo")
    assert "Starting an engine" in command.line()
    if moment == "while the Flow runs":
        while "EnterContractEdit-" not in command.line():
            pass
    else:
        end = time.monotonic() + 60
        while len(command.living()) < 3:
            assert time.monotonic() < end, "Ray did not start"
            time.sleep(0.05)
    if to_all:
        os.killpg(command.process.pid, signal.SIGINT)
    else:
        command.process.send_signal(signal.SIGINT)
    _, err = command.end(60)
    assert command.process.returncode == 130, err
    assert "interrupted" in err
    assert "Traceback" not in err
    assert command.left_behind() == []


def test_a_terminated_command_leaves_no_process_either(run: Callable[..., Command]) -> None:
    command = run("demo")
    while "EnterContractEdit-" not in command.line():
        pass
    command.process.terminate()
    command.end(60)
    assert command.process.returncode == 143
    assert command.left_behind() == []
