"""Connecting: which Ray and which engine a process finds, who shares them, and when they end."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.notebook import CellFailed, Notebook, title_of

pytestmark = [pytest.mark.ray, pytest.mark.timeout(200)]

IMPORTS = """
import asyncio, threading
import ray
import dexray
from dex import DexServiceError
from dexray.cluster.protocol import DIRECTORY
from tests.cluster.connect_flows import echo, registry

def engine(namespace="dexray"):
    "The process of the Directory."
    return ray.get(ray.get_actor(DIRECTORY, namespace=namespace).pid.remote())

def works(client, flow_id):
    client.start_flow(echo, flow_id, 1)
    return client.wait_for_flow(flow_id).single_output(int) == 2
"""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def first(home: Path) -> Iterator[Notebook]:
    """A notebook that has connected with nothing but defaults."""
    with Notebook(home, {"DEXRAY_HOME": str(home / "dexray")}) as notebook:
        notebook.run(IMPORTS)
        notebook.run("client = dexray.connect(registry)")
        yield notebook


@pytest.fixture
def second(home: Path) -> Iterator[Notebook]:
    """Another process with the same home."""
    with Notebook(home, {"DEXRAY_HOME": str(home / "dexray")}) as notebook:
        notebook.run(IMPORTS)
        yield notebook


class TestAProcessOfItsOwn:
    def test_with_defaults_everything_is_started_on_a_database_under_home(self, first: Notebook, home: Path) -> None:
        assert first.run("works(client, 'defaults')")
        assert (home / "dexray" / "dexray.db").exists()

    def test_a_second_client_shares_the_engine_and_its_end_harms_nobody(self, first: Notebook) -> None:
        first.run("before = engine()\nother = dexray.connect(registry)")
        assert first.run("works(other, 'second')")
        assert first.run("before == engine()")
        first.run("other.close()")
        assert first.run("works(client, 'after-second')")
        assert first.run("before == engine()")

    def test_a_client_that_was_forgotten_does_not_keep_others_from_ending(self, first: Notebook) -> None:
        first.run("for again in range(3):\n    forgotten = dexray.connect(registry)")
        assert first.run("import gc\nfrom dexray.cluster.ray_session import session\ndel forgotten\ngc.collect()") >= 0
        assert first.run("len(session._stays)") == 1

    def test_any_thread_may_connect(self, first: Notebook) -> None:
        first.run(
            "made = []\n"
            "thread = threading.Thread(target=lambda: made.append(dexray.connect(registry)))\n"
            "thread.start()\n"
            "thread.join()"
        )
        assert first.run("works(made[0], 'from-a-thread')")
        first.run("made[0].close()")

    def test_connect_and_its_client_may_be_used_inside_a_running_event_loop(self, first: Notebook) -> None:
        """As cells of a notebook are."""
        cell = (
            "async def cell():\n"
            "    with dexray.connect(registry) as inner:\n"
            "        return works(inner, 'in-a-loop')\n"
            "asyncio.run(cell())"
        )
        assert first.run(cell)

    def test_connect_async_gives_an_async_client(self, first: Notebook) -> None:
        cell = (
            "async def main():\n"
            "    async with await dexray.connect_async(registry) as inner:\n"
            "        await inner.start_flow(echo, 'async', 1)\n"
            "        return (await inner.wait_for_flow('async')).single_output(int)\n"
            "asyncio.run(main())"
        )
        assert first.run(cell) == 2

    def test_connect_async_that_was_cancelled_leaves_no_client_behind(self, first: Notebook) -> None:
        cell = (
            "async def main():\n"
            "    connecting = asyncio.ensure_future(dexray.connect_async(registry))\n"
            "    await asyncio.sleep(0)\n"
            "    connecting.cancel()\n"
            "    await asyncio.wait([connecting])\n"
            "    return connecting.cancelled()\n"
            "asyncio.run(main()), len(session._stays)"
        )
        assert first.run(cell) == [True, 1]

    def test_another_database_in_the_same_namespace_is_refused(self, first: Notebook, tmp_path: Path) -> None:
        with pytest.raises(CellFailed) as refused:
            first.run(f"dexray.connect(registry, database={str(tmp_path / 'another.db')!r})")
        assert refused.value.kind == "DexServiceError"
        words = [
            "FAILED_PRECONDITION",
            "namespace 'dexray'",
            "dexray.db",
            str(tmp_path / "another.db"),
            "another namespace",
        ]
        assert all(word in refused.value.text for word in words), refused.value.text
        assert first.run("works(client, 'after-refusal')")

    def test_another_namespace_is_another_engine_in_the_same_ray(self, first: Notebook, tmp_path: Path) -> None:
        """It ends with its client, though Ray goes on."""
        path = str(tmp_path / "another.db")
        first.run(f"other = dexray.connect(registry, database={path!r}, namespace='another')")
        assert first.run("works(other, 'another-engine') and engine() != engine('another')")
        pid = first.run("engine('another')")
        first.run("other.close()")
        assert first.run("works(client, 'still-here')")
        assert pid not in [process.pid for process in first.family()]
        first.run(f"other = dexray.connect(registry, database={path!r}, namespace='another')")
        assert first.run("other.describe_flow('another-engine').status.name") == "COMPLETED"
        first.run("other.close()")

    def test_a_second_engine_on_the_database_is_refused_also_in_the_same_ray(self, first: Notebook) -> None:
        with pytest.raises(CellFailed, match=r"is in use by an engine on .*namespace 'dexray'"):
            first.run("dexray.connect(registry, namespace='another', lease_seconds=1)")
        assert first.run("works(client, 'not-disturbed')")

    def test_another_cluster_cant_be_reached_beside_the_one_at_hand(self, first: Notebook) -> None:
        with pytest.raises(CellFailed, match=r"connected to Ray at .* and can't connect to 10\.1\.2\.3:6379"):
            first.run("dexray.connect(registry, address='10.1.2.3:6379')")

    def test_ray_client_is_refused_by_name(self, first: Notebook) -> None:
        with pytest.raises(CellFailed, match=r"INVALID_ARGUMENT: address 'ray://head:10001': Ray Client"):
            first.run("dexray.connect(registry, address='ray://head:10001')")

    def test_a_definition_that_cant_be_packed_starts_and_ends_nothing(self, first: Notebook) -> None:
        cell = (
            "from dex import Flow, Registry\n"
            "class Locked(Flow[None]):\n"
            "    def __init__(self):\n"
            "        self.lock = threading.Lock()\n"
            "dexray.connect(Registry([Locked()]))"
        )
        with pytest.raises(CellFailed, match="FlowDefinitionError: Flow 'Locked' can't be deployed"):
            first.run(cell)
        assert first.run("works(client, 'after-locked')")


class TestTwoProcesses:
    def test_another_process_joins_the_engine_of_the_database(self, first: Notebook, second: Notebook) -> None:
        second.run("client = dexray.connect(registry)")
        assert second.run("works(client, 'joined')")
        assert second.run("engine()") == first.run("engine()")
        assert second.run("client.describe_flow('defaults').status.name") == "COMPLETED"
        second.run("client.close()")
        assert second.run("ray.is_initialized()") is False
        assert first.run("works(client, 'after-joined')")

    def test_settings_of_an_engine_that_is_there_already_are_not_taken_silently(
        self, first: Notebook, second: Notebook
    ) -> None:
        second.run("client = dexray.connect(registry, flow_actors=2, idle_flows=7)")
        assert "started with another flow_actors and idle_flows" in second.stderr

    def test_a_second_cluster_on_the_database_is_refused_and_told_who_has_it(
        self, first: Notebook, second: Notebook
    ) -> None:
        with pytest.raises(CellFailed) as refused:
            second.run("dexray.connect(registry, address='local')")
        assert refused.value.kind == "DexServiceError"
        words = ["FAILED_PRECONDITION", "dexray.db", f"process {first.run('engine()')}", "join it"]
        assert all(word in refused.value.text for word in words), refused.value.text
        assert second.run("ray.is_initialized()") is False
        assert first.run("works(client, 'after-second-cluster')")

    def test_a_client_whose_engine_has_ended_says_so(self, first: Notebook, second: Notebook, tmp_path: Path) -> None:
        path = str(tmp_path / "theirs.db")
        first.run(f"theirs = dexray.connect(registry, database={path!r}, namespace='theirs')")
        second.run(f"client = dexray.connect(registry, database={path!r}, namespace='theirs', request_timeout=0.5)")
        first.run("theirs.close()")
        with pytest.raises(CellFailed, match="UNAVAILABLE"):
            second.run("works(client, 'too-late')")
        first.run(f"theirs = dexray.connect(registry, database={path!r}, namespace='theirs')")
        assert second.run("works(client, 'again')"), "it works with the new engine of the same name"
        first.run("theirs.close()")


def test_a_process_that_joined_survives_the_end_of_the_ray_it_joined(home: Path) -> None:
    """Ray itself would end it a minute later."""
    environ = {"DEXRAY_HOME": str(home / "joined")}
    with Notebook(home, environ) as owner, Notebook(home, environ) as joined:
        owner.run(IMPORTS)
        owner.run("client = dexray.connect(registry)")
        joined.run(IMPORTS)
        joined.run("from dexray.cluster import ray_session\nray_session.LOOK_EVERY = ray_session.GONE_AFTER = 0.1")
        joined.run("client = dexray.connect(registry)")
        assert joined.run("works(client, 'joined')")
        owner.kill()  # its lease is not given back, but its holder can be seen to be dead
        joined.run("import time\nwhile ray.is_initialized():\n    time.sleep(0.05)")
        assert "has ended, and this process leaves it" in joined.stderr
        with pytest.raises(CellFailed, match="FAILED_PRECONDITION: this process has left Ray: connect again"):
            joined.run("works(client, 'too-late')")
        joined.run("client.close()\nclient = dexray.connect(registry)")
        assert joined.run("client.describe_flow('joined').status.name") == "COMPLETED"
        joined.run("client.close()")


def test_it_ends_with_its_last_client_and_the_next_program_goes_on(home: Path) -> None:
    environ = {"DEXRAY_HOME": str(home / "again")}
    with Notebook(home, environ) as notebook:
        notebook.run(IMPORTS)
        # The thread that connects first is gone when Ray is used: Ray must not end with it.
        notebook.run(
            "made = []\n"
            "thread = threading.Thread(target=lambda: made.append(dexray.connect(registry)))\n"
            "thread.start()\n"
            "thread.join()"
        )
        notebook.run("client = dexray.connect(registry)\nmade[0].close()")
        assert notebook.run("works(client, 'one')")
        assert len(notebook.family()) > 5
        notebook.run("client.close()\nclient.close()")
        assert notebook.run("ray.is_initialized()") is False
        wait_alone(notebook)
        assert notebook.stderr == ""
        notebook.run("client = dexray.connect(registry)")  # at once: the lease was given back
        assert notebook.run("client.describe_flow('one').status.name") == "COMPLETED"
        notebook.run("client.close()")


def wait_alone(notebook: Notebook, timeout: float = 10.0) -> None:
    """Until the notebook's process is the last of its family."""
    deadline = time.monotonic() + timeout
    while len(notebook.family()) > 1:
        assert time.monotonic() < deadline, [title_of(process) for process in notebook.family()]
        time.sleep(0.05)
