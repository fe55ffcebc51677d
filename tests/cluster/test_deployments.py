"""Deployed code: it is in the database, the newest runs, and what does not load on a worker is never deployed."""

from __future__ import annotations

import importlib.util
import re
import sys
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import dexray
from dex import (
    Client,
    Context,
    DexServiceError,
    Flow,
    FlowDefinitionError,
    IdReusePolicy,
    Registry,
    StartFlowOptions,
    Step,
    StepDecision,
    StepList,
    graceful_complete,
)
from dexray.journal import open_journal
from tests.cluster.connect_flows import Work, echo, gate, go, registry, slow
from tests.cluster.engines import Engines

pytestmark = [pytest.mark.ray, pytest.mark.timeout(120)]

SHOP = """
from dex import Channel, Context, Flow, PersistenceSchema, Registry, Step, StepDecision, StepList, Wait, go_to
from dex import graceful_complete

VERSION = "{version}"
paid = Channel("paid", bool)


class {step}(Step[int]):
    def wait_for(self, context: Context, input: int) -> Wait:
        return Wait.until(paid.for_one())

    def execute(self, context: Context, input: int) -> StepDecision:
        return go_to(Ship, VERSION)


class Ship(Step[str]):
    def wait_for(self, context: Context, input: str) -> Wait:
        return Wait.until(paid.for_one())

    def execute(self, context: Context, input: str) -> StepDecision:
        return graceful_complete(f"charged by {{input}}, shipped by {{VERSION}}")


class Order(Flow[int]):
    def get_steps(self) -> StepList[int]:
        return StepList.start_step({step}()).other_steps(Ship())

    def get_persistence_schema(self) -> PersistenceSchema:
        return PersistenceSchema.of(paid)


flow = Order()
registry = Registry([flow])
"""


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engines]:
    """One engine for tests that do not mind what was deployed before."""
    made = Engines(tmp_path_factory.mktemp("shared"))
    yield made
    made.close()


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """`shop("v1")` is the module of the first version, loaded as if its file had been edited since."""

    def load(version: str, step: str = "Charge") -> ModuleType:
        path = tmp_path / f"{version}.py"
        path.write_text(SHOP.format(version=version, step=step))
        return load_module("shop", path)

    yield load
    sys.modules.pop("shop", None)


def load_module(name: str, path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def result_of(client: Client, flow_id: str, kind: type = str) -> Any:
    return client.wait_for_flow(flow_id, timeout=timedelta(seconds=60)).single_output(kind)


def wait_until(is_so: Callable[[], bool], timeout: float = 30.0) -> None:
    deadline = time.monotonic() + timeout
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def deployments_of(client: Client, flow_id: str) -> dict[str, set[str]]:
    """Which deployments ran the attempts of each Step, as the history says."""
    found: dict[str, set[str]] = {}
    for event in client.history(flow_id):
        if event.kind == "AttemptStarted":
            found.setdefault(event.step_execution_id, set()).add(event.data["deployment"])
    return found


class TestRedeploying:
    @pytest.mark.statement("D16")
    def test_the_newest_code_runs_the_next_attempt_and_history_says_which_ran(
        self, shared: Engines, shop: Callable[..., Any]
    ) -> None:
        old = shop("v1")
        client = shared.connect(old.registry)
        client.start_flow(old.flow, "moved-on", 1)
        client.start_flow(old.flow, "parked", 1)
        client.publish("moved-on", old.paid, True)
        wait_until(lambda: client.describe("moved-on").steps[0].step_type == "Ship")
        new = shop("v2")
        client = shared.connect(new.registry)
        client.publish("moved-on", new.paid, True)
        client.publish("parked", new.paid, True, True)
        assert result_of(client, "moved-on") == "charged by v1, shipped by v2"
        assert result_of(client, "parked") == "charged by v2, shipped by v2"
        moved_on, parked = deployments_of(client, "moved-on"), deployments_of(client, "parked")
        (first,) = parked["Charge-1"] - parked["Ship-1"]
        (second,) = parked["Ship-1"] - moved_on["Charge-1"]
        assert moved_on["Charge-1"] == {first}, "the wait and its execute, before the new code"
        assert parked["Charge-1"] == {first, second}, "the wait by the old code, its execute by the new"
        assert moved_on["Ship-1"] == {first, second}

    @pytest.mark.statement("D16")
    def test_a_step_that_is_gone_pauses_its_flow_and_is_named(self, shared: Engines, shop: Callable[..., Any]) -> None:
        old = shop("v1")
        client = shared.connect(old.registry)
        client.start_flow(old.flow, "gone-step", 1)
        wait_until(lambda: client.describe("gone-step").steps[0].phase == "waiting")
        renamed = shop("v2", step="Bill")
        client = shared.connect(renamed.registry)
        client.publish("gone-step", renamed.paid, True, True)
        wait_until(lambda: client.describe("gone-step").steps[0].phase != "waiting")
        problem = client.describe("gone-step").problem
        assert re.search(r"Order\b.*\bCharge\b", problem), problem
        client.start_flow(renamed.flow, "new-step", 1)
        client.publish("new-step", renamed.paid, True, True)
        assert result_of(client, "new-step") == "charged by v2, shipped by v2"
        back = shop("v3")
        client = shared.connect(back.registry)
        assert result_of(client, "gone-step") == "charged by v3, shipped by v3"
        assert client.describe("gone-step").problem == ""

    def test_flows_of_other_types_keep_their_code(self, shared: Engines, shop: Callable[..., Any]) -> None:
        old = shop("v1")
        client = shared.connect(old.registry)
        client.start_flow(old.flow, "other-types", 1)
        shared.connect(Registry([echo]))
        client.publish("other-types", old.paid, True, True)
        assert result_of(client, "other-types") == "charged by v1, shipped by v1"

    def test_the_same_code_deployed_again_is_the_same_deployment(
        self, shared: Engines, shop: Callable[..., Any]
    ) -> None:
        module = shop("v1")
        for flow_id in ("one", "two"):
            client = shared.connect(module.registry)
            client.start_flow(module.flow, flow_id, 1)
            client.publish(flow_id, module.paid, True, True)
            result_of(client, flow_id)
        assert deployments_of(client, "one") == deployments_of(client, "two")


class TestCodeThatDoesNotLoad:
    @pytest.fixture
    def broken(self, tmp_path: Path, shop: Callable[..., Any]) -> Callable[[ModuleType, str], Registry]:
        """A newer version of a shop, whose Flow needs what is installed here and on no worker."""

        def make(old: ModuleType, content: str) -> Registry:
            folder = tmp_path / "site-packages"
            folder.mkdir()
            (folder / "only_here.py").write_text(content)
            only_here = load_module("only_here", folder / "only_here.py")

            class Order(old.Order):  # type: ignore[name-defined,misc]
                helper = only_here.Helper()

            return Registry([Order()])

        return make

    @pytest.fixture(autouse=True)
    def not_here(self) -> Iterator[None]:
        yield
        sys.modules.pop("only_here", None)

    @pytest.mark.statement("D16")
    def test_it_is_refused_by_the_module_s_name_and_the_code_in_force_stays(
        self, shared: Engines, shop: Callable[..., Any], broken: Callable[[ModuleType, str], Registry]
    ) -> None:
        old = shop("v1")
        client = shared.connect(old.registry)
        client.start_flow(old.flow, "refused", 1)
        with pytest.raises(FlowDefinitionError, match=r"was not deployed.*'only_here' is not on this worker"):
            shared.connect(broken(old, "class Helper: pass"))
        client.publish("refused", old.paid, True, True)
        assert result_of(client, "refused") == "charged by v1, shipped by v1"
        assert client.describe("refused").problem == ""

    def test_nothing_of_it_is_in_the_database(
        self, shared: Engines, shop: Callable[..., Any], broken: Callable[[ModuleType, str], Registry]
    ) -> None:
        old = shop("v1")
        shared.connect(old.registry)
        journal = open_journal(shared.database)
        before = journal.newest_deployments()
        with pytest.raises(FlowDefinitionError, match="only_here"):
            shared.connect(broken(old, "class Helper: pass"))
        assert journal.newest_deployments() == before
        journal.close()

    def test_without_the_check_it_is_deployed_and_its_flows_wait_for_a_better_one(
        self, shared: Engines, shop: Callable[..., Any], broken: Callable[[ModuleType, str], Registry]
    ) -> None:
        old = shop("v1")
        bad = broken(old, "class Helper: pass")
        client = shared.connect(bad, code_check=False)
        client.start_flow(next(iter(bad.flows.values())), "unchecked", 1)
        client = shared.connect(old.registry)
        client.publish("unchecked", old.paid, True, True)
        assert result_of(client, "unchecked") == "charged by v1, shipped by v1"


class TestClassesOfNoModule:
    def test_a_local_class(self, shared: Engines) -> None:
        word = "local"

        class Say(Step[str]):
            def execute(self, context: Context, input: str) -> StepDecision:
                return graceful_complete(f"{word} {input}")

        class Local(Flow[str]):
            def get_steps(self) -> StepList[str]:
                return StepList.start_step(Say())

        flow = Local()
        client = shared.connect(Registry([flow]))
        client.start_flow(flow, "f", "class")
        assert result_of(client, "f") == "local class"


class TestTheNextCluster:
    @pytest.mark.statement("D8", "D16", "B202")
    def test_it_goes_on_without_the_script_that_started_the_flows(self, engines: Engines, tmp_path: Path) -> None:
        """The script is `__main__` of a process, and is deleted; both its process and its Ray are killed."""
        from tests.cluster.notebook import Program

        script = tmp_path / "orders.py"
        script.write_text(
            SHOP.format(version="the script", step="Charge")
            + "import dexray, sys\n"
            + f"client = dexray.connect(registry, database={str(engines.database)!r}, address='local')\n"
            + "for number in range(5):\n"
            + "    client.start_flow(flow, f'order-{number}', number)\n"
            + "    client.publish(f'order-{number}', paid, True, True)\n"
            + "    print('started', flush=True)\n"
            + "client.start_flow(flow, 'unpaid', 1)\n"
            + "print('all', flush=True)\n"
            + "sys.stdin.read()\n"
        )
        with Program([str(script)], tmp_path) as program:
            while program.line() != "all":
                continue
            script.unlink()
            for process in program.family():
                process.kill()
            program.wait_gone(agents=90.0)
        with dexray.open_service(database=engines.database, namespace=engines.namespace) as service:
            client = Client(registry, service)
            for number in range(5):
                assert result_of(client, f"order-{number}") == "charged by the script, shipped by the script"
            wait_until(lambda: client.describe("unpaid").steps[0].phase == "waiting")

    @pytest.mark.statement("D8", "B200")
    def test_flows_go_on_by_themselves_when_nobody_asks_for_them(self, engines: Engines, tmp_path: Path) -> None:
        client = engines.connect(registry)
        client.start_flow(slow, "working", Work(1.0, str(tmp_path / "lines")))
        client.start_flow(gate, "waiting", 2)
        wait_until(lambda: client.describe("working").steps[0].phase == "running")
        engines.next_cluster()
        with dexray.open_service(database=engines.database, namespace=engines.namespace) as service:
            wait_until(lambda: (tmp_path / "lines").exists())
            client = Client(registry, service)
            client.publish("waiting", go, "ab")
            assert result_of(client, "waiting") == "abab"
            assert result_of(client, "working", int) == 2, "its first attempt was interrupted"

    def test_an_engine_without_code_says_what_a_flow_waits_for(self, engines: Engines) -> None:
        client = engines.connect(Registry([echo]))
        with pytest.raises(DexServiceError, match=r"FAILED_PRECONDITION.*'Slow' is not deployed"):
            Client(registry, client._client._service).start_flow(slow, "f", Work(0.0))  # type: ignore[arg-type]
        client.start_flow(echo, "after", 1)
        assert result_of(client, "after", int) == 2


# Owners that are gone -------------------------------------------------------------------------------------------------


def test_flows_that_closed_under_an_owner_which_is_not_there_any_more_can_be_read_started_again_and_deleted(
    engines: Engines,
) -> None:
    """The next engine has fewer FlowActors."""
    client = engines.connect(registry, flow_actors=2, max_flow_actors=2)
    flow_ids = [f"closed-{number}" for number in range(6)]
    for flow_id in flow_ids:
        client.start_flow(echo, flow_id, 1)
        client.wait_for_flow(flow_id)
    owned = [flow_id for flow_id in flow_ids if client.describe(flow_id).owner == "flow-actor-1"]
    assert len(owned) >= 3
    engines.next_cluster()
    client = engines.connect(registry, flow_actors=1, max_flow_actors=1, request_timeout=20)
    assert engines.flow_actors() == ["flow-actor-0"]
    assert client.wait_for_flow(owned[0]).single_output(int) == 2
    assert [event.kind for event in client.history(owned[0])][-1] == "FlowClosed"
    client.start_flow(echo, owned[1], 10, StartFlowOptions(id_reuse_policy=IdReusePolicy.ALLOW_IF_NOT_RUNNING))
    assert client.wait_for_flow(owned[1]).single_output(int) == 11
    client.delete_flow(owned[2])
    with pytest.raises(DexServiceError, match="NOT_FOUND"):
        client.describe(owned[2])
    assert client.describe(owned[0]).owner == "flow-actor-0"
