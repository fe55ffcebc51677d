"""RayFlowTest: the same face over a real local cluster."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from dex import Registry
from dexray.testing import FlowTestError, Ran, RayFlowTest
from dexray.testing.on_ray import keep_ray
from tests.testing.flows import HOUR, ORDERS, SHOES, Approve, Quote, approval, order, sleeper
from tests.world import ray_database

pytestmark = pytest.mark.ray


@pytest.fixture(scope="module", autouse=True)
def ray_of_this_process() -> None:
    ray_database()  # the one that all tests of this process share


@pytest.fixture
def test() -> Iterator[RayFlowTest]:
    with RayFlowTest(ORDERS) as test:
        yield test


async def test_what_holds_in_process_holds_on_a_cluster(test: RayFlowTest) -> None:
    test.client.start_flow(order, "order", SHOES)
    test.assert_steps_run("order", Ran(Quote, input=SHOES))
    test.assert_open_steps("order", Approve)
    test.assert_attributes("order", {"price": 42})
    (timer,) = test.timers_pending("order")
    assert timedelta(days=29) < timer.left <= timedelta(days=30)
    await test.async_client.publish("order", approval, "Ada")
    assert (await test.async_client.wait_for_flow("order")).single_output(str) == "Ada agreed to 42"
    test.assert_steps_run("order", Quote, Ran(Approve, output="Ada agreed to 42"))
    test.assert_no_messages_left("order")
    assert test.status("order") == "COMPLETED"
    test._patience = 0.5
    with pytest.raises(AssertionError, match="Steps run of Flow 'order'"):
        test.assert_steps_run("order", Approve)
    test.deploy(Registry([order, sleeper]))
    test.client.start_flow(sleeper, "f", timedelta(seconds=1))
    test.advance(1)
    assert test.client.wait_for_flow("f").is_terminal
    with pytest.raises(FlowTestError, match="advance_at_most"):
        test.advance(HOUR)
    with pytest.raises(AttributeError, match="virtual_time"):
        test.restart()
    with pytest.raises(AttributeError, match="no attribute 'rewind'"):
        test.rewind()


def test_flow_ids_of_one_test_are_unknown_to_the_next() -> None:
    folders: list[Path] = []
    with keep_ray():
        for _ in range(2):
            with RayFlowTest(ORDERS) as test:
                test.client.start_flow(order, "order", SHOES)
                folders.append(test._folder)
                assert folders[-1].exists()
            test.close()
    assert not any(folder.exists() for folder in folders)
