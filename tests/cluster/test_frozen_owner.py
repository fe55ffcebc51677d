"""A FlowActor is frozen, another takes its Flows over, and then it wakes up and goes on as if nothing had happened.

Meanwhile it keeps the CPUs that Ray has lent to it, so its heir may have to wait for them until then.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import ray
from ray.exceptions import RayError

import dexray
from dex import Client, Registry
from dexray.cluster.lease import LEASE, held_by_another, this_process
from dexray.cluster.protocol import flow_actor_name
from dexray.journal import Journal, JournalUnavailable, Outlived, open_journal
from tests.cluster.engines import Engines
from tests.cluster.kill_flows import Job, KillFlow, token
from tests.cluster.nodes import until
from tests.cluster.test_kill import check_flow, count_lines

FLOWS = 40
STALE, HEIR = flow_actor_name(1), flow_actor_name(0)

pytestmark = [pytest.mark.ray, pytest.mark.kill, pytest.mark.timeout(240)]


@pytest.mark.statement("B157", "B200", "B202")
def test_a_thawed_owner_commits_nothing_hands_out_nothing_and_lets_go(engines: Engines, tmp_path: Path) -> None:
    flow = KillFlow()
    first = engines.connect(Registry([flow]), flow_actors=2, max_flow_actors=2, lease_seconds=2)
    effects = tmp_path / "effects"
    effects.mkdir()
    flow_ids = [f"flow-{number}" for number in range(FLOWS)]
    for flow_id in flow_ids:
        first.start_flow(flow, flow_id, Job(str(effects), 1, 0.05))
    until(lambda: count_lines(effects) > FLOWS // 4, "the Steps do not run")
    stale = engines.load(STALE)
    try:
        journal = freeze_outside_a_commit(stale.pid, engines)
        taken = journal.reassign(STALE, HEIR, FLOWS)
        assert len(taken) > FLOWS // 4, "it had too little for a test"
        ray.get(ray.get_actor(HEIR, namespace=engines.namespace).adopt.remote(), timeout=60)
        with dexray.open_service(database=engines.database, namespace=engines.namespace) as engine:
            client = Client(Registry([flow]), engine)
            for flow_id in flow_ids:
                client.publish(flow_id, token, f"for-{flow_id}")
            until(lambda: any(was_interrupted(client, flow_id) for flow_id in taken), "the heir does not go on")
            os.kill(stale.pid, signal.SIGCONT)
            for flow_id in flow_ids:
                check_flow(client, flow_id, effects, got=f"for-{flow_id}")
            until(lambda: engines.load(STALE).attempts == 0 and engines.load(STALE).active == 0, "it does not let go")
            assert engines.load(STALE).pid == stale.pid, "it was not the one that was frozen"
            for flow_id in taken:
                row = journal.current_run(flow_id)
                assert row is not None
                assert (row.owner, row.status) == (HEIR, "COMPLETED")
        journal.close()
    finally:
        os.kill(stale.pid, signal.SIGCONT)


def test_an_owner_that_stays_frozen_is_started_again_and_its_flows_go_on(engines: Engines, tmp_path: Path) -> None:
    flow = KillFlow()
    client = engines.connect(Registry([flow]), flow_actors=2, max_flow_actors=2, frozen_seconds=6, request_timeout=120)
    effects = tmp_path / "effects"
    effects.mkdir()
    flow_ids = [f"flow-{number}" for number in range(FLOWS)]
    for flow_id in flow_ids:
        client.start_flow(flow, flow_id, Job(str(effects), 1, 0.05))
    until(lambda: count_lines(effects) > FLOWS // 4, "the Steps do not run")
    frozen = engines.load(STALE)
    assert frozen.active > 0
    os.kill(frozen.pid, signal.SIGSTOP)
    for flow_id in flow_ids:
        client.publish(flow_id, token, f"for-{flow_id}")
    for flow_id in flow_ids:
        check_flow(client, flow_id, effects, got=f"for-{flow_id}")
    assert engines.load(STALE).pid != frozen.pid


@pytest.mark.statement("B157", "B200")
def test_an_owner_whose_life_is_over_ends_its_process_and_the_next_life_goes_on(
    engines: Engines, tmp_path: Path
) -> None:
    """As when a former process, frozen while it began, begins late: Ray believes in the one that it has outlived."""
    flow = KillFlow()
    client = engines.connect(Registry([flow]), flow_actors=1, max_flow_actors=1, request_timeout=120)
    effects = tmp_path / "effects"
    effects.mkdir()
    client.start_flow(flow, "f", Job(str(effects), 1, 0.0))
    until(lambda: count_lines(effects) >= 2, "it does not come to its wait")
    pid = engines.load().pid
    former = open_journal(str(engines.database))
    former.begin_life(HEIR)
    client.publish("f", token, "for-f")
    check_flow(client, "f", effects, got="for-f")
    assert engines.load().pid != pid
    with pytest.raises(Outlived):
        former.claim([], HEIR)
    former.close()


def test_an_owner_begins_no_life_while_another_engine_has_the_database(engines: Engines, tmp_path: Path) -> None:
    """Two clusters whose FlowActors bear one name would end each other's lives in turns."""
    flow = KillFlow()
    client = engines.connect(Registry([flow]), flow_actors=1, max_flow_actors=1, lease_seconds=3600)
    client.start_flow(flow, "f", Job(str(tmp_path), 1, 0.0))
    journal = open_journal(str(engines.database))
    ours = journal.find_lease(LEASE)
    assert ours is not None
    now = time.time()
    journal.acquire_lease(LEASE, this_process("another"), now + 3600, now, take_from=ours.holder)
    assert held_by_another(journal, engines.config().cluster_id, now) is not None
    actor = ray.get_actor(HEIR, namespace=engines.namespace)
    journal.begin_life(HEIR)  # the other engine's
    former = engines.load().pid
    os.kill(former, signal.SIGKILL)
    until(lambda: engine_answers(actor), "Ray does not start it again")
    time.sleep(1.0)
    journal.claim([], HEIR)  # raises when a later life has begun
    journal.release_lease(LEASE, this_process("another"))
    assert engines.load().pid != former
    with pytest.raises(Outlived):
        journal.claim([], HEIR)
    journal.acquire_lease(LEASE, ours.holder, now + 3600, now)
    journal.close()


def engine_answers(actor: Any) -> bool:
    try:
        return bool(ray.get(actor.ping.remote(), timeout=10))
    except RayError:
        return False


def freeze_outside_a_commit(pid: int, engines: Engines) -> Journal:
    """On SQLite, a process that is frozen in the middle of a commit keeps the others waiting until it is killed."""
    while True:
        os.kill(pid, signal.SIGSTOP)
        try:
            open_journal(str(engines.database), patience=2.0).close()
            return open_journal(str(engines.database))
        except JournalUnavailable:
            os.kill(pid, signal.SIGCONT)
            time.sleep(0.02)


def was_interrupted(client: Client, flow_id: str) -> bool:
    return any(event.kind == "AttemptFailed" for event in client.history(flow_id))
