"""The `preStop` hook of the manifest, word for word, as a kubelet would run it: in a shell of its own, with no more
than what the image has and KubeRay sets. In a pod one sees no processes but the pod's, by which Ray tells which node it
is on; that much is made for the hook here.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

import dexray
from dex import Registry
from tests.cluster.kill_flows import Job, KillFlow, token
from tests.cluster.nodes import ENGINE, Nodes, engine_actors, node_of, processes_of, until
from tests.cluster.test_deploy_files import KUBERAY
from tests.cluster.test_kill import count_lines

NAMESPACE = "pre-stop-tests"
FLOWS = 10

pytestmark = [pytest.mark.ray, pytest.mark.kill, pytest.mark.timeout(240)]


IN_A_POD = """
import os
import psutil

everywhere = psutil.process_iter
in_the_pod = {int(pid) for pid in os.environ.get("POD", "").split()}
psutil.process_iter = lambda *a, **named: (one for one in everywhere(*a, **named) if one.pid in in_the_pod)
"""


def hook() -> list[str]:
    manifest = yaml.safe_load(KUBERAY.read_text())
    (group, *_) = manifest["spec"]["workerGroupSpecs"]
    (container, *_) = group["template"]["spec"]["containers"]
    command: list[str] = container["lifecycle"]["preStop"]["exec"]["command"]
    return command


@pytest.mark.statement("B157", "B202")
def test_the_hook_of_the_manifest_drains_the_pod_that_it_runs_in(tmp_path: Path) -> None:
    flow = KillFlow()
    (tmp_path / "sitecustomize.py").write_text(IN_A_POD)
    with (
        Nodes(workers=0) as nodes,
        dexray.connect(
            Registry([flow]),
            database=tmp_path / "flows.db",
            address=nodes.address,
            namespace=NAMESPACE,
            engine_resource=ENGINE,
            max_flow_actors=1,
        ) as client,
    ):
        effects = tmp_path / "effects"
        effects.mkdir()
        for number in range(FLOWS):
            client.start_flow(flow, f"flow-{number}", Job(str(effects), 1, 0.1))
        until(lambda: count_lines(effects) > FLOWS, "no Flow is under way")
        pod = nodes.next_engine()
        assert {node_of(NAMESPACE, name) for name in engine_actors(1)} == {pod.node_id}

        environ = {
            "PATH": f"{os.path.dirname(sys.executable)}:/usr/bin:/bin",
            "HOME": str(tmp_path),
            "RAY_ADDRESS": nodes.address,  # set by KubeRay
            "PYTHONPATH": str(tmp_path),
            "POD": " ".join(str(process.pid) for process in processes_of(pod)),
            **nodes.environ,
            "RAY_AUTH_TOKEN_PATH": str(Path.home() / ".ray" / "auth_token"),
        }
        with subprocess.Popen(hook(), env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as shell:
            try:
                until(lambda: pod.node_id not in nodes.alive(), "the pod is not left")
            finally:
                shell.kill()  # other clusters of this machine have raylets too, and it would wait for them
                assert shell.stdout is not None
                said = shell.stdout.read().decode()
        assert "command not found" not in said
        for number in range(FLOWS):
            client.publish(f"flow-{number}", token, "go")
        for number in range(FLOWS):
            assert client.wait_for_flow(f"flow-{number}").single_output(list) == ["go"]
            assert "AttemptFailed" not in [event.kind for event in client.history(f"flow-{number}")]
        assert {node_of(NAMESPACE, name) for name in engine_actors(1)} == {nodes.engine.node_id}


def test_the_hook_ends_when_no_raylet_is_left_and_waits_while_there_is_one(tmp_path: Path) -> None:
    """Its loop alone, over a /proc of our making."""
    loop = hook()[2].partition(";")[2].replace("/proc/", f"{tmp_path}/")
    assert str(tmp_path) in loop
    (tmp_path / "17").mkdir()
    comm = tmp_path / "17" / "comm"
    comm.write_text("raylet\n")
    with subprocess.Popen(["/bin/bash", "-c", loop], env={"PATH": "/usr/bin:/bin"}) as shell:
        with pytest.raises(subprocess.TimeoutExpired):
            shell.wait(1.5)
        comm.write_text("bash\n")
        assert shell.wait(30) == 0
