"""A Registry packed on one machine and loaded on another."""

from __future__ import annotations

import importlib
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
import pytest

from dex.errors import FlowDefinitionError
from dex.registry import Registry
from dexray.attempts.code import PYTHON, CodeNotLoadable, load_registry, pack_registry
from dexray.protocol.attempts import ExecuteSucceeded
from tests.attempts.build import executed, payload, task_for, value_of

ORDERS = '''
"""A driver's own module, with all that makes packing hard."""
from __future__ import annotations

import enum
from collections.abc import Generator
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, Optional, TypedDict, TypeVar

import pydantic

import helpers
from dex.attribute import Attribute
from dex.channel import Channel
from dex.context import Context
from dex.decision import StepDecision, go_to, graceful_complete
from dex.flow import Flow, PersistenceSchema, StepList
from dex.registry import Registry
from dex.step import Step, StepOutput, heartbeat
from helpers import double

T = TypeVar("T")


class Size(enum.Enum):
    SMALL = "small"
    LARGE = "large"


class Place(NamedTuple):
    street: str
    number: int


class Extra(TypedDict):
    gift: bool
    sender: Place | None


class Customer(pydantic.BaseModel):
    name: str
    size: Size


@dataclass
class Tree:
    value: int
    left: Tree | None = None
    right: Optional[Tree] = None


@dataclass(frozen=True)
class Order:
    amount: int
    size: Size
    place: Place
    extra: Extra
    customer: Customer
    tree: Tree
    tags: list[str] = field(default_factory=list)


total = Attribute("total", int)
paid = Channel("paid", "Order" and str)


class Base(Step[T], Generic[T]):
    factor = 2

    def scaled(self, amount: int) -> int:
        return amount * self.factor


class Charge(Base[Order]):
    def __init__(self, channel: Channel[str]) -> None:
        self.channel = channel

    def execute(self, context: Context, input: Order) -> StepDecision:
        total.set(context, double(helpers.triple(self.scaled(input.amount))))
        self.channel.publish(context, input.customer.name)
        return go_to(Report, f"{input.size.value} {input.tree.left.value} {VERSION}")


class Report(Base[str]):
    def execute(self, context: Context, input: str) -> Generator[StepOutput, None, StepDecision]:
        super().scaled(1)
        yield heartbeat(input)
        assert registry.flows["Orders"] is flow
        return graceful_complete(input)


class Tell(Step):
    """Its input is named by its annotation alone."""

    def execute(self, context: Context, input: Extra) -> StepDecision:
        return graceful_complete(input["sender"].street)


class Orders(Flow[Order]):
    def get_steps(self) -> StepList[Order]:
        return StepList.start_step(Charge(paid)).other_steps(Report(), Tell())

    def get_persistence_schema(self) -> PersistenceSchema:
        return PersistenceSchema.of(total, paid)


VERSION = 1
flow = Orders()
registry = Registry([flow])


def example() -> Order:
    extra = {"gift": True, "sender": Place("Low Street", 2)}
    return Order(
        5, Size.LARGE, Place("High Street", 1), extra, Customer(name="Ann", size=Size.SMALL), Tree(1, Tree(2))
    )
'''

HELPERS = """
import sys

itself = sys.modules[__name__]


def double(number):
    return number * 2


def triple(number):
    return itself.double(number) + number
"""

WORKER = """
import sys
import msgspec
from dexray.attempts import load_registry, run_sync, SilentReporter
from dexray.protocol.attempts import AttemptTask

code, task, second = (open(path, "rb").read() for path in sys.argv[1:])
registry = load_registry(code)
for data in (task, second):
    result = run_sync(msgspec.msgpack.decode(data, type=AttemptTask), registry, SilentReporter())
    print(ascii(result))
assert "orders" not in sys.modules and "helpers" not in sys.modules
"""


@pytest.fixture
def driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., ModuleType]]:
    """Makes modules in a folder that only this process knows, and imports the last one."""
    monkeypatch.syspath_prepend(str(tmp_path))
    made: set[str] = set()

    def make(**sources: str) -> ModuleType:
        for name, source in sources.items():
            (tmp_path / f"{name}.py").write_text(textwrap.dedent(source))
            sys.modules.pop(name, None)
        made.update(sources)
        importlib.invalidate_caches()
        return [importlib.import_module(name) for name in sources][-1]

    yield make
    for name in made:
        sys.modules.pop(name, None)


def forget(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    """As on a worker: the modules are not there and can't be imported."""
    for name in names:
        del sys.modules[name]
    monkeypatch.setattr(sys, "path", [path for path in sys.path if not (Path(path) / f"{names[0]}.py").exists()])


def test_a_worker_runs_code_whose_modules_it_cannot_import(
    driver: Callable[..., ModuleType], monkeypatch: pytest.MonkeyPatch
) -> None:
    orders = driver(helpers=HELPERS, orders=ORDERS)
    code, deployment_id, spec = pack_registry(orders.registry)
    assert spec.deployment_id == deployment_id
    assert set(spec.flows["Orders"].steps) == {"Charge", "Report", "Tell"}

    example = orders.example()
    data = orders.registry.codec_registry.encode(example, orders.Order, where="test")
    extra = orders.registry.codec_registry.encode(example.extra, orders.Extra, where="test")
    forget(monkeypatch, "orders", "helpers")
    registry = load_registry(code)
    result = executed(registry, task_for("Orders", "Charge", raw_input=data))
    assert result.writes.attributes == {"total": payload(5 * 2 * 3 * 2)}
    assert [(name, value_of(value)) for name, _, value in result.writes.publications] == [("paid", "Ann")]
    movement = result.decision.movements[0]
    assert (movement.step_type, value_of(movement.input)) == ("Report", "large 2 1")
    report = executed(registry, task_for("Orders", "Report", "large 2 1"))
    assert value_of(report.decision.output) == "large 2 1"
    told = executed(registry, task_for("Orders", "Tell", raw_input=extra))
    assert value_of(told.decision.output) == "Low Street"


def test_packed_code_runs_in_a_process_of_its_own(driver: Callable[..., ModuleType], tmp_path: Path) -> None:
    orders = driver(helpers=HELPERS, orders=ORDERS)
    data = orders.registry.codec_registry.encode(orders.example(), orders.Order, where="test")
    files = {
        "code": pack_registry(orders.registry)[0],
        "first": msgspec.msgpack.encode(task_for("Orders", "Charge", raw_input=data, timeout=3e9)),
        "second": msgspec.msgpack.encode(task_for("Orders", "Report", "x", timeout=3e9)),
    }
    folder = tmp_path / "worker"
    folder.mkdir()
    for name, content in files.items():
        (folder / name).write_bytes(content)
    ran = subprocess.run(
        [sys.executable, "-c", WORKER, *files],
        cwd=folder,
        env={"PYTHONPATH": ":".join(path for path in sys.path if path and path != str(tmp_path))},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.count("ExecuteSucceeded") == 2, ran.stdout


@pytest.mark.statement("D16")
def test_two_deployments_in_one_process_do_not_touch_each_other(driver: Callable[..., ModuleType]) -> None:
    orders = driver(helpers=HELPERS, orders=ORDERS)
    old_code, old_id, _ = pack_registry(orders.registry)
    orders.VERSION = 2
    new_code, new_id, _ = pack_registry(orders.registry)
    assert old_id != new_id

    data = orders.registry.codec_registry.encode(orders.example(), orders.Order, where="test")
    registries = [load_registry(old_code), load_registry(new_code), load_registry(old_code), orders.registry]
    steps = [type(registry.definition("Orders").steps["Charge"].step) for registry in registries]
    assert len(set(steps)) == 4
    versions = []
    for registry in registries:
        result = executed(registry, task_for("Orders", "Charge", raw_input=data))
        versions.append(value_of(result.decision.movements[0].input)[-1])
    assert versions == ["1", "2", "1", "2"]


def test_the_deployment_id_names_the_content(driver: Callable[..., ModuleType]) -> None:
    orders = driver(helpers=HELPERS, orders=ORDERS)
    first = pack_registry(orders.registry)[1]
    assert pack_registry(orders.registry)[1] == first
    assert pack_registry(Registry([orders.flow]))[1] != ""
    helpers = driver(helpers=HELPERS.replace("number * 2", "number * 4"))
    orders.double = helpers.double
    assert pack_registry(orders.registry)[1] != first


def test_the_deployment_id_is_the_same_in_another_process(tmp_path: Path) -> None:
    (tmp_path / "helpers.py").write_text(HELPERS)
    plain = ORDERS.replace("class Customer(pydantic.BaseModel):", "@dataclass\nclass Customer:")
    (tmp_path / "orders.py").write_text(plain)
    script = "import orders; from dexray.attempts import pack_registry; print(pack_registry(orders.registry)[1])"
    environment = {"PYTHONPATH": ":".join([str(tmp_path), *filter(None, sys.path)])}
    ids = {
        subprocess.run(
            [sys.executable, "-c", script],
            cwd=tmp_path,
            env=environment | {"PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(ids) == 1


def test_an_installed_modules_definitions_stay_the_modules_own(driver: Callable[..., ModuleType]) -> None:
    """A Flow of an importable package that hands a module's Channel to a Step: one object on the worker, too."""
    installed = """
        from dex.channel import Channel
        from dex.context import Context
        from dex.decision import StepDecision, dead_end
        from dex.flow import Flow, PersistenceSchema, StepList
        from dex.step import Step

        paid = Channel("paid", str)

        class Charge(Step[str]):
            def __init__(self, channel):
                self.channel = channel

            def execute(self, context: Context, input: str) -> StepDecision:
                self.channel.publish(context, input)
                Pay.refunded.publish(context, input)
                return dead_end()

        class Pay(Flow[str]):
            refunded = Channel("refunded", str)

            def __init__(self):
                self.charge = Charge(paid)

            def get_steps(self):
                return StepList.start_step(self.charge)

            def get_persistence_schema(self):
                return PersistenceSchema.of(paid, Pay.refunded)
    """
    module = driver(site_pay=installed)
    module.__file__ = "/usr/lib/python3/dist-packages/site_pay.py"
    registry = load_registry(pack_registry(Registry([module.Pay()]))[0])
    definition = registry.definition("Pay")
    assert type(definition.flow) is module.Pay
    assert definition.channels["paid"] is module.paid
    result = executed(registry, task_for("Pay", "Charge", "x"))
    assert [name for name, _, _ in result.writes.publications] == ["paid", "refunded"]


def test_code_of_a_notebook_travels_whole(monkeypatch: pytest.MonkeyPatch, driver: Callable[..., ModuleType]) -> None:
    driver(helpers=HELPERS)
    main = ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", main)
    exec(compile(ORDERS, "<cell 1>", "exec", dont_inherit=True), vars(main))
    code, _, _ = pack_registry(vars(main)["registry"])
    data = vars(main)["registry"].codec_registry.encode(vars(main)["example"](), vars(main)["Order"], where="test")
    monkeypatch.setitem(sys.modules, "__main__", ModuleType("__main__"))
    forget(monkeypatch, "helpers")
    assert isinstance(executed(load_registry(code), task_for("Orders", "Charge", raw_input=data)), ExecuteSucceeded)


UNPICKLABLE = """
    import threading
    from dex.context import Context
    from dex.decision import StepDecision, dead_end
    from dex.flow import Flow, StepList
    from dex.step import Step

    lock = threading.Lock()

    class Charge(Step[str]):
        def execute(self, context: Context, input: str) -> StepDecision:
            {use}
            return dead_end()

    class Fine(Flow[None]):
        pass

    class Pay(Flow[str]):
        def __init__(self):
            self.charge = Charge()
            {hold}

        def get_steps(self):
            return StepList.start_step(self.charge)
"""


@pytest.mark.parametrize(
    ("use", "hold", "words"),
    [
        ("pass", "self.guard = threading.Lock()", "Pay.guard (of type lock)"),
        ("pass", "self.charge.guards = [threading.Lock()]", "Pay.charge.guards[0] (of type lock)"),
        ("lock.acquire()", "pass", "execute, global lock (of type lock)"),
    ],
)
def test_what_cannot_be_packed_is_named(driver: Callable[..., ModuleType], use: str, hold: str, words: str) -> None:
    module = driver(bad=UNPICKLABLE.format(use=use, hold=hold))
    with pytest.raises(FlowDefinitionError) as caught:
        pack_registry(Registry([module.Fine(), module.Pay()]))
    assert "Flow 'Pay' can't be deployed" in str(caught.value)
    assert words in str(caught.value)


def test_packing_leaves_no_module_registered_by_value(driver: Callable[..., ModuleType]) -> None:
    import cloudpickle

    orders = driver(helpers=HELPERS, orders=ORDERS)
    cloudpickle.register_pickle_by_value(sys.modules["helpers"])
    try:
        before = cloudpickle.list_registry_pickle_by_value()
        pack_registry(orders.registry)
        assert cloudpickle.list_registry_pickle_by_value() == before
    finally:
        cloudpickle.unregister_pickle_by_value(sys.modules["helpers"])


# What can't be loaded -------------------------------------------------------------------------------------------------


def refusal(code: bytes) -> CodeNotLoadable:
    with pytest.raises(CodeNotLoadable) as caught:
        load_registry(code)
    return caught.value


def installed_pay(driver: Callable[..., ModuleType]) -> tuple[bytes, str, Any]:
    module = driver(installed_pay=textwrap.dedent(UNPICKLABLE.format(use="pass", hold="pass")))
    module.__file__ = "/usr/lib/python3/dist-packages/installed_pay.py"
    return pack_registry(Registry([module.Pay()]))


def test_a_missing_module_is_named_with_the_way_out(
    driver: Callable[..., ModuleType], monkeypatch: pytest.MonkeyPatch
) -> None:
    code, deployment_id, _ = installed_pay(driver)
    forget(monkeypatch, "installed_pay")
    error = refusal(code)
    assert error.missing == "installed_pay"
    assert error.deployment_id == deployment_id
    assert deployment_id in str(error)
    assert "runtime_env" in str(error)


def test_another_version_of_a_module_is_named(driver: Callable[..., ModuleType]) -> None:
    code, _, _ = installed_pay(driver)
    driver(installed_pay="other = 1")
    assert "not the one of the driver" in str(refusal(code))


def test_code_of_another_python_is_refused(driver: Callable[..., ModuleType]) -> None:
    code, _, _ = installed_pay(driver)
    packed = msgspec.msgpack.decode(code)
    assert packed[1] == PYTHON
    packed[1] = "3.99"
    assert "Python 3.99" in str(refusal(msgspec.msgpack.encode(packed)))


@pytest.mark.parametrize("code", [b"", b"rubbish", msgspec.msgpack.encode(["id", PYTHON, b"rubbish"])])
def test_bytes_that_are_no_code_are_refused(code: bytes) -> None:
    refusal(code)
