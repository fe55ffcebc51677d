"""The files that people start clusters with: `cluster.yaml` and the KubeRay manifest."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
LAUNCHER = ROOT / "cluster.yaml"
KUBERAY = ROOT / "examples" / "deploy" / "kuberay.yaml"
HEALTH = {"initial_delay_ms", "period_ms", "timeout_ms", "failure_threshold"}


@pytest.fixture(scope="module")
def launcher() -> Any:
    return yaml.safe_load(LAUNCHER.read_text())


@pytest.fixture(scope="module")
def kuberay() -> Any:
    return yaml.safe_load(KUBERAY.read_text())


def workers(kuberay: Any) -> Iterator[tuple[str, Any, Any]]:
    """Each worker group's name, its pod and Ray's container in it."""
    for group in kuberay["spec"]["workerGroupSpecs"]:
        pod = group["template"]["spec"]
        yield group["groupName"], pod, pod["containers"][0]


def environ(container: Any) -> dict[str, Any]:
    return {entry["name"]: entry.get("value", entry.get("valueFrom")) for entry in container["env"]}


class TestTheLauncher:
    def test_ray_takes_it(self, launcher: Any) -> None:
        from ray.autoscaler._private.util import prepare_config, validate_config

        validate_config(prepare_config(launcher))

    def test_rays_own_schema_would_find_a_slip(self, launcher: Any) -> None:
        import jsonschema
        from ray.autoscaler._private.util import prepare_config, validate_config

        with pytest.raises(jsonschema.ValidationError, match="idle_timeout"):
            validate_config({**prepare_config(launcher), "idle_timeout": 5})

    def test_cpu_and_gpu_workers_come_and_go(self, launcher: Any) -> None:
        types = launcher["available_node_types"]
        head = types.pop(launcher["head_node_type"])
        assert head["resources"]["CPU"] == 0, "Steps would run beside the GCS"
        assert all(kind["min_workers"] < kind["max_workers"] for kind in types.values())
        assert sorted("GPU" in kind["resources"] for kind in types.values()) == [False, True]
        assert sum(kind["max_workers"] for kind in types.values()) <= launcher["max_workers"]
        types[launcher["head_node_type"]] = head

    def test_the_engine_is_on_the_head_so_that_idle_workers_can_go(self, launcher: Any) -> None:
        assert launcher["available_node_types"]["head"]["resources"]["engine"] == 1
        assert any("DEXRAY_ENGINE_RESOURCE=engine" in command for command in launcher["setup_commands"])
        (start,) = [line for line in launcher["head_start_ray_commands"] if "ray start" in line]
        assert '"engine": 1' in start

    def test_every_node_has_dexray_and_no_secret_is_written_down(self, launcher: Any) -> None:
        assert any("dexray[postgres]" in command for command in launcher["setup_commands"])
        uncommented = re.sub(r"#.*", "", LAUNCHER.read_text())
        assert "postgresql://" not in uncommented
        for start in ("head_start_ray_commands", "worker_start_ray_commands"):
            (command,) = [line for line in launcher[start] if "ray start" in line]
            assert ". ~/.dexray/cluster.env" in command.partition("ray start")[0], "the URL is not in its environment"

    def test_the_loss_of_a_node_is_seen_soon(self, launcher: Any) -> None:
        head = " ".join(launcher["head_start_ray_commands"])
        assert set(re.findall(r"RAY_health_check_(\w+)=", head)) == HEALTH
        assert "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S" in " ".join(launcher["worker_start_ray_commands"])


class TestTheManifest:
    def test_it_is_a_ray_cluster_whose_head_runs_no_steps(self, kuberay: Any) -> None:
        assert (kuberay["apiVersion"], kuberay["kind"]) == ("ray.io/v1", "RayCluster")
        assert kuberay["spec"]["headGroupSpec"]["rayStartParams"]["num-cpus"] == "0"
        assert json.loads(json.loads(kuberay["spec"]["headGroupSpec"]["rayStartParams"]["resources"])) == {"engine": 1}
        head = kuberay["spec"]["headGroupSpec"]["template"]["spec"]["containers"][0]
        assert environ(head)["DEXRAY_ENGINE_RESOURCE"] == "engine"
        assert kuberay["spec"]["enableInTreeAutoscaling"] is True

    def test_the_database_comes_from_a_secret_on_every_pod(self, kuberay: Any) -> None:
        head = kuberay["spec"]["headGroupSpec"]["template"]["spec"]["containers"][0]
        for container in [head, *(container for _, _, container in workers(kuberay))]:
            assert environ(container)["DEXRAY_DATABASE"] == {"secretKeyRef": {"name": "dexray-database", "key": "url"}}
        assert {f"RAY_health_check_{name}" for name in HEALTH} <= environ(head).keys()

    def test_cpu_and_gpu_workers_come_and_go(self, kuberay: Any) -> None:
        gpus = {name: container["resources"]["limits"].get("nvidia.com/gpu") for name, _, container in workers(kuberay)}
        assert gpus == {"cpu": None, "gpu": "1"}
        for group in kuberay["spec"]["workerGroupSpecs"]:
            assert group["minReplicas"] <= group["replicas"] < group["maxReplicas"]

    def test_a_pod_drains_before_it_ends_and_has_the_time_for_it(self, kuberay: Any) -> None:
        import click
        from ray.scripts.scripts import drain_node

        for _, pod, container in workers(kuberay):
            shell, flag, script = container["lifecycle"]["preStop"]["exec"]["command"]
            assert (shell, flag) == ("/bin/bash", "-c")
            program, name, *arguments = shlex.split(script.partition(";")[0])
            assert (program, name) == ("ray", "drain-node")
            given = drain_node.make_context("drain-node", arguments, token_normalize_func=None)
            assert isinstance(given, click.Context), "Ray has it, with these options"
            deadline = given.params["deadline_remaining_seconds"]
            waits = int(re.search(r"seq (\d+)", script)[1])  # type: ignore[index]
            assert deadline <= waits < pod["terminationGracePeriodSeconds"]
            assert (
                float(environ(container)["RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S"])
                < (pod["terminationGracePeriodSeconds"])
            )
