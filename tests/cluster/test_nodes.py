"""Nodes that are lost without a word, with whatever of the engine runs there.

The invariants are those of test_kill, checked from the outside: each Flow comes to its one result with the one message
that was published for it; each Step execution completes once; each attempt leaves at most one line of effect, and there
is a line of attempt n + 1 only where the history says why attempt n failed.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

import dexray
from dex import Client, Registry
from tests.cluster import kill_flows
from tests.cluster.kill_flows import Job, KillFlow, token
from tests.cluster.nodes import ENGINE, Nodes, engine_actors, node_of, until
from tests.cluster.notebook import Program
from tests.cluster.test_kill import check_flow, count_lines
from tests.postgres import postgres_server

NAMESPACE = "node-tests"
FLOWS = 60
FLOW_ACTORS = 2

pytestmark = [pytest.mark.ray, pytest.mark.kill, pytest.mark.timeout(280)]


@pytest.fixture(scope="module")
def nodes() -> Iterator[Nodes]:
    with Nodes() as nodes:
        yield nodes


@pytest.fixture(scope="module")
def flow() -> KillFlow:
    return KillFlow()


@pytest.fixture(scope="module")
def client(nodes: Nodes, flow: KillFlow, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    with dexray.connect(
        Registry([flow]),
        database=tmp_path_factory.mktemp("nodes") / "flows.db",
        address=nodes.address,
        namespace=NAMESPACE,
        flow_actors=FLOW_ACTORS,
        max_flow_actors=FLOW_ACTORS,
        request_timeout=90,
        engine_resource=ENGINE,
    ) as client:
        yield client


def raylet(nodes: Nodes, victim: object) -> None:
    nodes.kill_raylet(victim)


def node_and_another(nodes: Nodes, victim: object) -> None:
    nodes.kill_nodes([victim, nodes.workers.pop()])


@pytest.mark.statement("B157", "B199", "B200", "B202")
@pytest.mark.parametrize("kill", [raylet, node_and_another], ids=lambda kill: kill.__name__)
def test_flows_survive_the_loss_of_the_node_with_all_of_the_engine(
    kill: Callable[[Nodes, object], None], nodes: Nodes, client: Client, flow: KillFlow, tmp_path: Path
) -> None:
    victim = nodes.next_engine()
    assert {node_of(NAMESPACE, name) for name in engine_actors(FLOW_ACTORS)} == {victim.node_id}
    flow_ids = [f"{kill.__name__}-{number}" for number in range(FLOWS)]
    for flow_id in flow_ids:
        client.start_flow(flow, flow_id, Job(str(tmp_path), 1, 0.02))
    for flow_id in flow_ids[: FLOWS // 2]:
        client.publish(flow_id, token, f"for-{flow_id}")
    until(lambda: count_lines(tmp_path) > FLOWS // 2, "the Steps do not run")
    kill(nodes, victim)
    for flow_id in flow_ids[FLOWS // 2 :]:
        client.publish(flow_id, token, f"for-{flow_id}")
    failures: Counter[str] = Counter()
    for flow_id in flow_ids:
        failures.update(check_flow(client, flow_id, tmp_path, got=f"for-{flow_id}"))
    assert sum(failures.values()) >= 1, "it was killed too late to matter"
    assert all(node_of(NAMESPACE, name) == nodes.engine.node_id for name in engine_actors(FLOW_ACTORS))


DRIVER = """
import sys
import dexray
from dex import Registry

def main(database, address, namespace, folder, count):
    flow = KillFlow()
    with dexray.connect(Registry([flow]), database=database, address=address, namespace=namespace,
                        flow_actors=2, max_flow_actors=2) as client:
        for number in range(int(count)):
            client.start_flow(flow, f"flow-{number}", Job(folder, 1, 0.02))
            client.publish(f"flow-{number}", token, f"for-flow-{number}")
            print(f"flow-{number}", flush=True)
        sys.stdin.read()

if __name__ == "__main__":
    main(*sys.argv[1:])
"""


@pytest.mark.statement("B202", "D8", "D14", "D16")
def test_a_new_cluster_goes_on_when_the_head_is_lost_with_all_nodes_and_the_driver(tmp_path: Path) -> None:
    """On PostgreSQL. The Flows are of the driver's own script, which is gone with it: the database has their code."""
    server = postgres_server()
    url = server.new_database()
    effects = tmp_path / "effects"
    effects.mkdir()
    script = tmp_path / "driver.py"
    script.write_text(Path(kill_flows.__file__).read_text() + DRIVER)
    with Nodes(workers=0) as nodes:
        arguments = [str(script), url, nodes.address, NAMESPACE, str(effects), str(FLOWS)]
        with Program(arguments, tmp_path, nodes.environ) as driver:
            started = [driver.line() for _ in range(FLOWS)]
            until(lambda: count_lines(effects) > FLOWS, "the Steps do not run")
            psutil.Process(driver.process.pid).suspend()
            nodes.kill()
            driver.kill()
    script.unlink()
    assert count_lines(effects) < 5 * FLOWS, "there was nothing left to do"

    with Nodes(workers=0) as nodes:
        command = ["-m", "dexray", "flow", "list", "--all", "--json"]
        place = ["--database", url, "--address", nodes.address, "--namespace", NAMESPACE]
        listed = subprocess.run([sys.executable, *command, *place], capture_output=True, text=True, timeout=120)
        assert listed.returncode == 0, listed.stderr
        assert {entry["flow_id"] for entry in json.loads(listed.stdout)["flows"]} == set(started)
        with dexray.open_service(database=url, address=nodes.address, namespace=NAMESPACE) as engine:
            client = Client(Registry([]), engine)
            for flow_id in started:
                check_flow(client, flow_id, effects, got=f"for-{flow_id}")
    server.drop_database(url)
