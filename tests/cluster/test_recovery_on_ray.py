"""Flows in every phase, and all processes of the engine killed at once."""

from __future__ import annotations

import importlib.util
import os
import signal
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from types import ModuleType

import pytest
import ray

from dex import Context, Flow, Registry, Step, StepDecision, StepList, graceful_complete
from tests.benchmarks.recovery.flows import BACKOFF, HELD, HELD_HERE, MESSAGE, PARENT, REGISTRY, TIMED, nudge
from tests.cluster.engines import Engines
from tests.cluster.nodes import until

EACH = 5
SECONDS = 5

pytestmark = [pytest.mark.ray, pytest.mark.kill, pytest.mark.timeout(280)]


@pytest.fixture
def only_here(tmp_path: Path) -> Iterator[ModuleType]:
    """A module that is installed here and on no worker."""
    folder = tmp_path / "site-packages"
    folder.mkdir()
    (folder / "only_here.py").write_text("class Helper: pass")
    spec = importlib.util.spec_from_file_location("only_here", folder / "only_here.py")
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules["only_here"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    del sys.modules["only_here"]


def test_all_flows_go_on_but_one_whose_code_does_not_load_and_that_says_so(
    engines: Engines, only_here: ModuleType, tmp_path: Path
) -> None:
    class Needs(Step[None]):
        def execute(self, context: Context, input: None) -> StepDecision:
            return graceful_complete(1)

    class Broken(Flow[None]):
        helper = only_here.Helper()

        def get_steps(self) -> StepList[None]:
            return StepList.start_step(Needs())

    gate = tmp_path / "gate"
    settings = {"flow_actors": 2, "max_flow_actors": 2, "request_timeout": 200}
    broken = Broken()
    engines.connect(Registry([broken]), code_check=False, **settings).start_flow(broken, "broken")
    client = engines.connect(REGISTRY, **settings)
    flows = {
        "message": (MESSAGE, None),
        "timer": (TIMED, float(SECONDS)),
        "parent": (PARENT, float(SECONDS)),
        "backoff": (BACKOFF, SECONDS),
        "held": (HELD, str(gate)),
        "here": (HELD_HERE, str(gate)),
    }
    names = [f"{name}-{number}" for name in flows for number in range(EACH)]
    for name in names:
        flow, input = flows[name.partition("-")[0]]
        client.start_flow(flow, name, input)  # type: ignore[arg-type]

    def phases() -> set[str]:
        return {step.phase for name in names for step in client.describe(name).steps}

    until(lambda: phases() >= {"running", "waiting", "backoff"}, "they do not come to where they are to stand")
    pids = [engines.load(name).pid for name in engines.flow_actors()]
    pids.append(ray.get(engines.directory().pid.remote(), timeout=60))
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    gate.touch()
    for number in range(EACH):
        client.publish(f"message-{number}", nudge, 1)
    for name in names:
        result = client.wait_for_flow(name, timeout=timedelta(seconds=200))
        assert result.single_output(int) == 1, name
    described = client.describe("broken")
    assert described.status == "RUNNING"
    (step,) = described.steps
    assert "only_here" in step.waits_for
    assert not set(pids) & {engines.load(name).pid for name in engines.flow_actors()}
