"""The life of an embedded Ray: however a program ends, none of its processes stays behind.

Measured with Ray 2.60: `close()` and Ctrl-C take 1.5 seconds. After SIGKILL or SIGTERM of the program the kernel kills
Ray's servers at once, and workers end when they lose them: in 28 trials the last process was gone after 1.6 to 2.9
seconds, but for one in which Ray's two agents (which hold nothing of ours) waited a minute for the dead GCS.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.cluster.notebook import CellFailed, Notebook, Program, title_of

pytestmark = [pytest.mark.ray, pytest.mark.kill, pytest.mark.timeout(200)]

IMPORTS = """
import ray
import dexray
from tests.cluster.connect_flows import Work, echo, registry, slow
"""

PROGRAM = """
import sys, time
import dexray
from tests.cluster.connect_flows import Work, echo, registry, slow

client = dexray.connect(registry, address="local")
client.start_flow(slow, "slow", Work(60.0))
client.start_flow(echo, "echo", 1)
client.wait_for_flow("echo")
print("flows run", flush=True)
"""


@pytest.fixture
def notebook(tmp_path: Path) -> Iterator[Notebook]:
    with Notebook(tmp_path, {"DEXRAY_HOME": str(tmp_path / "home")}) as made:
        made.run(IMPORTS)
        yield made


@pytest.fixture
def program(tmp_path: Path) -> Iterator[Callable[[str], Program]]:
    """Runs PROGRAM and what is given, until Flows run."""
    made: list[Program] = []

    def start(rest: str) -> Program:
        script = tmp_path / "program.py"
        script.write_text(PROGRAM + rest)
        made.append(Program([str(script)], tmp_path, {"DEXRAY_HOME": str(tmp_path / "home")}))
        assert made[0].line() == "flows run"
        return made[0]

    yield start
    for one in made:
        one.__exit__(None, None, None)


def wait_until(is_so: Callable[[], bool], timeout: float = 30.0) -> None:
    deadline = time.monotonic() + timeout
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def runs(program: Program, name: str) -> bool:
    """Whether a process of the family has this in its command line or title."""
    return any(name in title_of(process) for process in program.family())


def is_alone(program: Program) -> bool:
    return len(program.family()) <= 1


class TestCtrlC:
    def test_in_every_stage_of_connect_and_of_close_it_leaves_a_notebook_as_before(self, notebook: Notebook) -> None:
        """A notebook's process lives on after Ctrl-C, so nothing ends by itself."""
        for stage in ("gcs_server", "raylet/raylet", "ray::Directory"):
            notebook.begin("client = dexray.connect(registry, address='local')")
            wait_until(lambda stage=stage: runs(notebook, stage))
            notebook.ctrl_c()
            with pytest.raises(CellFailed, match="KeyboardInterrupt"):
                notebook.result()
            wait_until(lambda: is_alone(notebook))
            assert notebook.run("ray.is_initialized()") is False
        notebook.run("client = dexray.connect(registry, address='local')")
        notebook.run("client.start_flow(echo, 'f', 1)")
        notebook.begin("client.close()")
        wait_until(lambda: not runs(notebook, "ray::FlowActor"))
        notebook.ctrl_c()
        with contextlib.suppress(CellFailed):  # or it had ended when the signal came
            notebook.result()
        wait_until(lambda: is_alone(notebook))
        assert notebook.run("ray.is_initialized()") is False
        assert notebook.stderr == ""

    def test_a_call_that_is_interrupted_leaves_the_client_as_it_was(self, notebook: Notebook, tmp_path: Path) -> None:
        notebook.run("client = dexray.connect(registry)")
        notebook.run("client.start_flow(slow, 'slow', Work(60.0))")
        begun = tmp_path / "begun"  # before that, it would be the reading of the cell that is interrupted
        notebook.begin(f"open({str(begun)!r}, 'w').close()\nclient.wait_for_flow('slow')")
        wait_until(begun.exists)
        time.sleep(0.2)  # into the call
        notebook.ctrl_c()
        with pytest.raises(CellFailed, match="KeyboardInterrupt"):
            notebook.result()
        assert notebook.run("client.describe_flow('slow').status.name") == "RUNNING"
        notebook.run("client.start_flow(echo, 'f', 1)")
        assert notebook.run("client.wait_for_flow('f').single_output(int)") == 2

    def test_while_flows_run_it_ends_a_program_and_all_of_ray(self, program: Callable[[str], Program]) -> None:
        running = program("with client:\n    client.wait_for_flow('slow')\n")
        running.ctrl_c()
        assert running.ends() in (-signal.SIGINT, 130), running.stderr
        running.wait_gone()
        assert running.stderr.strip().endswith("KeyboardInterrupt")


class TestOtherEnds:
    def test_a_killed_program_takes_ray_along(self, program: Callable[[str], Program]) -> None:
        running = program("time.sleep(60)\n")
        assert runs(running, "ray::FlowActor")
        running.kill()
        running.wait_gone(agents=90.0)

    def test_sigterm_ends_it_as_the_program_wishes(self, program: Callable[[str], Program]) -> None:
        """Ray's own handler is not put in place of the program's, or of none."""
        running = program("time.sleep(60)\n")
        os.kill(running.process.pid, signal.SIGTERM)
        assert running.ends() == -signal.SIGTERM
        running.wait_gone(agents=90.0)
        assert running.stderr == ""

    def test_a_program_that_fails_without_close_ends_quickly_with_its_own_error_only(
        self, program: Callable[[str], Program]
    ) -> None:
        running = program("print(time.time(), flush=True)\nraise LookupError('mine')\n")
        began = float(running.line())
        assert running.ends() == 1
        assert time.time() - began < 10.0
        running.wait_gone()
        assert running.stderr.count("Traceback") == 1
        assert running.stderr.strip().endswith("LookupError: mine")


TALKING = """
import logging
import sys

import dexray
from dex import AsyncContext, Context, Flow, Registry, RetryPolicy, Step, StepDecision, StepList, StepOptions, go_to

class Pays(Step[int]):
    def execute(self, context: Context, input: int) -> StepDecision:
        print(f"order {input} is paid")
        logging.getLogger("shop").warning("order %s was dear", input)
        return go_to(Ships, input)

class Ships(Step[int]):
    async def execute(self, context: AsyncContext, input: int) -> StepDecision:
        print(f"order {input} is on its way")
        return go_to(Breaks, input)

class Breaks(Step[int]):
    def get_step_options(self) -> StepOptions:
        return StepOptions(execute_retry=RetryPolicy(maximum_attempts=1))

    def execute(self, context: Context, input: int) -> StepDecision:
        raise LookupError(f"no parcel for {input}")

class Order(Flow[int]):
    def get_steps(self) -> StepList[int]:
        return StepList.start_step(Pays()).other_steps(Ships(), Breaks())

order = Order()
registry = Registry([order], allow_async_handlers=True)
with dexray.connect(registry, address="local") as client:
    for number in range(3):
        client.start_flow(order, f"order-{number}", number)
    for number in range(3):
        assert client.wait_for_flow(f"order-{number}").status.name == "FAILED"
    print("all have ended", flush=True)
    sys.stdin.readline()
"""


def test_what_handlers_print_and_why_they_fail_is_shown_where_the_embedded_engine_was_started(tmp_path: Path) -> None:
    """Each line of each worker, none folded with another's. Of the engine itself there is nothing to see."""
    script = tmp_path / "talking.py"
    script.write_text(TALKING)
    said = {f"order {number} is {what}" for number in range(3) for what in ("paid", "on its way")}
    with Program([str(script)], tmp_path, {"DEXRAY_HOME": str(tmp_path / "home")}) as program:
        lines = [program.line() for _ in range(1 + len(said))]
        assert {text for text in said if any(text in line for line in lines)} == said, lines
        for number in range(3):
            wait_until(lambda number=number: f"LookupError: no parcel for {number}\n" in program.stderr)  # type: ignore[misc]
            wait_until(lambda number=number: f"order {number} was dear\n" in program.stderr)  # type: ignore[misc]
            told = f"Flow 'order-{number}' (Order): execute of Breaks-1 (attempt 1) failed with builtins.LookupError"
            assert program.stderr.count(told) == 1
        assert "Deprecat" not in program.stderr, program.stderr
