"""The pool of FlowActors: who owns which Flow, when it grows, and what happens to Flows whose owner is gone."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import ray

import dexray
from dex import Client
from dexray.cluster.directory import make_flow_actor
from dexray.cluster.protocol import flow_actor_name
from dexray.journal import open_journal
from tests.cluster.connect_flows import Work, echo, gate, go, registry, slow
from tests.cluster.engines import Engines

pytestmark = [pytest.mark.ray, pytest.mark.timeout(120)]


def result_of(client: Client, flow_id: str, kind: type) -> Any:
    return client.wait_for_flow(flow_id, timeout=timedelta(seconds=60)).single_output(kind)


def owners(client: Client, flow_ids: list[str]) -> Counter[str]:
    return Counter(client.describe(flow_id).owner for flow_id in flow_ids)


def wait_until(is_so: Callable[[], bool], timeout: float = 40.0) -> None:
    deadline = time.monotonic() + timeout
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def start_gates(client: Client, count: int) -> list[str]:
    flow_ids = [f"gate-{number}" for number in range(count)]
    for flow_id in flow_ids:
        client.start_flow(gate, flow_id, 1)
    return flow_ids


def open_gates(client: Client, flow_ids: list[str]) -> None:
    for flow_id in flow_ids:
        client.publish(flow_id, go, flow_id)
    for flow_id in flow_ids:
        assert result_of(client, flow_id, str) == flow_id


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engines]:
    made = Engines(tmp_path_factory.mktemp("two"))
    yield made
    made.close()


class TestAPoolOfTwo:
    def test_flows_are_spread_over_both_and_every_client_finds_them(self, two: Engines) -> None:
        client = two.connect(registry, flow_actors=2, max_flow_actors=2)
        assert two.flow_actors() == ["flow-actor-0", "flow-actor-1"]
        for number in range(10):
            client.start_flow(slow, f"slow-{number}", Work(0.5))
        spread = owners(client, [f"slow-{number}" for number in range(10)])
        assert set(spread) == {"flow-actor-0", "flow-actor-1"}
        assert min(spread.values()) >= 3
        other = two.connect(registry)
        for number in range(10):
            assert result_of(other, f"slow-{number}", int) == 1

    def test_flows_of_a_pool_that_became_smaller_are_adopted_and_finish(self, two: Engines) -> None:
        client = two.connect(registry)
        flow_ids = start_gates(client, 6)
        client.start_flow(slow, "slow-a", Work(1.0))
        client.start_flow(slow, "slow-b", Work(1.0))
        assert len(owners(client, [*flow_ids, "slow-a", "slow-b"])) == 2
        two.next_cluster()
        client = two.connect(registry, flow_actors=1, max_flow_actors=1)
        assert two.flow_actors() == ["flow-actor-0"]
        assert result_of(client, "slow-a", int) <= 2
        assert result_of(client, "slow-b", int) <= 2
        assert owners(client, flow_ids) == {"flow-actor-0": 6}
        open_gates(client, flow_ids)

    def test_flows_of_owners_with_other_names_are_adopted_by_all(self, two: Engines) -> None:
        """As of an engine of another version, or of a pool that was three times as large."""
        client = two.connect(registry)
        flow_ids = [f"other-{number}" for number in range(4)]
        for flow_id in flow_ids:
            client.start_flow(gate, flow_id, 1)
        two.next_cluster()
        journal = open_journal(two.database)
        journal.reassign("flow-actor-0", "host-of-another-age", 2)
        journal.reassign("flow-actor-0", "flow-actor-31", 2)
        journal.close()
        client = two.connect(registry, flow_actors=2)
        assert owners(client, flow_ids) == {"flow-actor-0": 2, "flow-actor-1": 2}
        open_gates(client, flow_ids)


class TestNoSharing:
    def test_a_flow_actor_has_never_two_active_flows_and_the_pool_grows_to_its_bound(
        self, engines: Engines, tmp_path: Path
    ) -> None:
        client = engines.connect(registry, flows_per_actor=1, max_flow_actors=3)
        file = tmp_path / "lines"
        for number in range(6):
            client.start_flow(slow, f"slow-{number}", Work(1.0, str(file)))
        owner = {f"slow-{number}": client.describe(f"slow-{number}").owner for number in range(6)}
        for flow_id in owner:
            result_of(client, flow_id, int)
        assert engines.flow_actors() == ["flow-actor-0", "flow-actor-1", "flow-actor-2"]
        assert Counter(owner.values()) == {"flow-actor-0": 2, "flow-actor-1": 2, "flow-actor-2": 2}
        times: dict[str, list[tuple[float, float]]] = {}
        for line in file.read_text().splitlines():
            flow_id, began, ended, _ = line.split()
            times.setdefault(owner[flow_id], []).append((float(began), float(ended)))
        for spans in times.values():
            (_, first_end), (second_began, _) = sorted(spans)
            assert first_end <= second_began, "they overlapped in one FlowActor"

    def test_a_flow_that_only_waits_gives_its_flow_actor_back(self, engines: Engines) -> None:
        client = engines.connect(registry, flows_per_actor=1, max_flow_actors=1)
        flow_ids = start_gates(client, 4)
        client.start_flow(echo, "short", 1)
        assert result_of(client, "short", int) == 2
        open_gates(client, flow_ids)


class TestGrowing:
    def test_a_burst_of_short_flows_starts_no_process_and_long_ones_that_share_do(self, engines: Engines) -> None:
        client = engines.connect(registry, max_flow_actors=2)
        for number in range(100):
            client.start_flow(echo, f"short-{number}", number)
        for number in range(100):
            result_of(client, f"short-{number}", int)
        assert engines.flow_actors() == ["flow-actor-0"]
        # Long: older than 5 seconds; a crowd: more than two for each FlowActor, seen five times, once a second.
        for number in range(5):
            client.start_flow(slow, f"long-{number}", Work(11.0))
        wait_until(lambda: engines.flow_actors() == ["flow-actor-0", "flow-actor-1"])
        for number in range(6):
            client.start_flow(slow, f"later-{number}", Work(0.1))
        assert "flow-actor-1" in owners(client, [f"later-{number}" for number in range(6)])


def test_a_flow_actor_of_another_configuration_is_replaced_before_it_touches_the_database(engines: Engines) -> None:
    """Two clients begin an engine at the same time: the Directory is of one, the FlowActor of the other."""
    other = engines.database.with_name("other.db")
    actor = make_flow_actor(engines.config(database=other), flow_actor_name(0))
    ray.get(actor.__ray_ready__.remote(), timeout=60)
    client = engines.connect(registry)
    client.start_flow(echo, "f", 1)
    assert result_of(client, "f", int) == 2
    assert not other.exists()


def test_open_service_alone_needs_no_flow_actor_by_name(engines: Engines) -> None:
    with dexray.open_service(database=engines.database, namespace=engines.namespace) as service:
        client = Client(registry, service)
        assert client.health_check()
        assert client.list_flows().flows == ()
