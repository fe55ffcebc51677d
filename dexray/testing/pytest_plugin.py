"""The pytest plugin: the fixtures `flow_test` and `ray_flow_test`, and the flag `--dexray-on`.

    def test_an_order_that_nobody_approves(flow_test):
        test = flow_test(Registry([order]))
        test.client.start_flow(order, "order-7", 14)
        ...

`flow_test(...)` makes a `FlowTest`, and with `--dexray-on=ray` a `RayFlowTest`: the same test on a real local cluster.
`ray_flow_test(...)` makes a `RayFlowTest` always. Both end with the test, and take what their classes take. A test that
needs virtual time or faults is marked `@pytest.mark.virtual_time`: it is left out on Ray.

pytest imports this module at its start, whoever uses it: so it imports nothing else before a fixture is used.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Protocol

import pytest

if TYPE_CHECKING:
    from dex import Registry
    from dexray.testing.flow_test import FlowTest
    from dexray.testing.on_ray import RayFlowTest

PROCESS, RAY = "process", "ray"


class MakeFlowTest(Protocol):
    """`flow_test`. Options that only one of the engines has are ignored by the other."""

    def __call__(
        self, registry: Registry, *, patience: timedelta = ..., advance_at_most: timedelta = ..., **options: Any
    ) -> FlowTest: ...


class MakeRayFlowTest(Protocol):
    """`ray_flow_test`."""

    def __call__(self, registry: Registry, **options: Any) -> RayFlowTest: ...


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("dexray", "Flows of dexray")
    group.addoption(
        "--dexray-on",
        choices=(PROCESS, RAY),
        default=PROCESS,
        help="where the fixture flow_test runs Flows: in this process under a virtual clock (default), or on a real "
        "local Ray cluster",
    )
    group.addoption(
        "--dexray-address",
        default="local",
        help='the Ray cluster for Flows of tests: its address, or "local" (default) for one that ends with the tests',
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "virtual_time: needs a virtual clock or faults: left out with --dexray-on=ray, where time is real"
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--dexray-on") == RAY:
        left_out = pytest.mark.skip(reason="needs virtual time, and on Ray (--dexray-on=ray) time is real")
        for item in items:
            if item.get_closest_marker("virtual_time") is not None:
                item.add_marker(left_out)


@pytest.fixture
def flow_test(request: pytest.FixtureRequest) -> Iterator[MakeFlowTest]:
    """Makes a FlowTest of a Registry; with `--dexray-on=ray` a RayFlowTest, which has the same face."""
    if request.config.getoption("--dexray-on") == RAY:
        make: Any = request.getfixturevalue("ray_flow_test")
        yield make
        return
    from dexray.testing.flow_test import FlowTest

    failed_before = request.session.testsfailed
    made: list[FlowTest] = []

    def in_process(registry: Registry, **options: Any) -> FlowTest:
        options = {name: value for name, value in options.items() if name not in _ONLY_ON_RAY}
        made.append(FlowTest(registry, **options))
        return made[-1]

    yield in_process
    has_failed = request.session.testsfailed > failed_before
    with ExitStack() as stack:
        for test in made:
            stack.callback(_end, test, has_failed)


_ONLY_ON_RAY = frozenset({"patience", "advance_at_most"})
_ONLY_IN_PROCESS = frozenset({"skip_time", "skip_at_most", "raise_errors", "begins", "slots"})


def _end(test: FlowTest, has_failed: bool) -> None:
    """Faults that a failed test did not come to are no news."""
    from dexray.testing.errors import FlowTestError

    try:
        test.close()
    except FlowTestError:
        if not has_failed:
            raise


@pytest.fixture(scope="session")
def _dexray_ray(request: pytest.FixtureRequest) -> Iterator[str]:
    """One Ray for all tests."""
    from dexray.testing.on_ray import keep_ray

    address = request.config.getoption("--dexray-address")
    with keep_ray(address):
        yield address


@pytest.fixture
def ray_flow_test(_dexray_ray: str) -> Iterator[MakeRayFlowTest]:
    """Makes a RayFlowTest of a Registry, on the local cluster that all tests of this run share."""
    from dexray.testing.on_ray import RayFlowTest

    with ExitStack() as stack:

        def on_ray(registry: Registry, **options: Any) -> RayFlowTest:
            options = {name: value for name, value in options.items() if name not in _ONLY_IN_PROCESS}
            return stack.enter_context(RayFlowTest(registry, **{"address": _dexray_ray, **options}))

        yield on_ray
