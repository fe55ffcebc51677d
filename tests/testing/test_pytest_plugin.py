"""The pytest plugin, as a project that uses it sees it."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import dexray.testing.flow_test  # noqa: F401 - here, so that tests inside of tests do not load it a second time
import tests.testing.flows  # noqa: F401

pytest_plugins = ["pytester"]

PLUGIN = "dexray.testing.pytest_plugin"

QUIET = ("-p", "no:cacheprovider", "--strict-markers", "-o", "asyncio_default_fixture_loop_scope=function")

FLOWS = """
from datetime import timedelta
import pytest
from dex import Registry
from tests.testing.flows import MONTH, ORDERS, SHOES, Approve, Quote, approval, order
"""


def outcomes(pytester: pytest.Pytester, tests: str, *options: str) -> pytest.RunResult:
    pytester.makepyfile(FLOWS + tests)
    return pytester.runpytest_inprocess("-p", PLUGIN, *QUIET, *options)


SAME_TEST = """
def test_an_order_is_approved(flow_test):
    test = flow_test(ORDERS, patience=timedelta(seconds=60), skip_time=True)
    test.client.start_flow(order, "order", SHOES)
    test.assert_open_steps("order", Approve)
    test.client.publish("order", approval, "Ada")
    assert test.client.wait_for_flow("order").single_output(str) == "Ada agreed to 42"
    test.assert_steps_run("order", Quote, Approve)
    print("on Ray:", test.on_ray)

@pytest.mark.virtual_time
def test_an_order_is_forgotten(flow_test):
    test = flow_test(ORDERS)
    test.client.start_flow(order, "order", SHOES)
    test.advance(MONTH)
    test.assert_steps_run("order", Quote, Approve)
"""


def test_tests_run_in_this_process_unless_told_otherwise(pytester: pytest.Pytester) -> None:
    result = outcomes(pytester, SAME_TEST, "-s")
    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines(["*on Ray: False*"])


ON_RAY = """
def test_on_ray_whatever_the_flag_says(ray_flow_test):
    test = ray_flow_test(ORDERS, raise_errors=True)
    test.client.start_flow(order, "order", SHOES)
    test.assert_steps_run("order", Quote)
    assert test.on_ray
"""


@pytest.mark.ray
def test_by_one_flag_the_same_tests_run_on_a_cluster_and_those_of_virtual_time_are_left_out(
    pytester: pytest.Pytester,
) -> None:
    pytester.makepyfile(FLOWS + SAME_TEST + ON_RAY)
    result = pytester.runpytest_subprocess(  # its Ray ends with it
        "-p", PLUGIN, *QUIET, "--dexray-on=ray", "-s", "-rs"
    )
    result.assert_outcomes(passed=2, skipped=1)
    result.stdout.fnmatch_lines(["*on Ray: True*", "*SKIPPED*needs virtual time*"])


def test_a_test_may_have_several_and_each_ends_with_it(pytester: pytest.Pytester) -> None:
    result = outcomes(
        pytester,
        """
made = []

def test_two(flow_test):
    for _ in range(2):
        made.append(flow_test(ORDERS))
        made[-1].client.start_flow(order, "order", SHOES)

def test_they_are_closed(flow_test):
    for test in made:
        with pytest.raises(RuntimeError, match="closed"):
            test.client.health_check()
""",
    )
    result.assert_outcomes(passed=2)


def test_asynchronous_tests_use_it_too(pytester: pytest.Pytester) -> None:
    result = outcomes(
        pytester,
        """
async def test_async(flow_test):
    test = flow_test(ORDERS)
    await test.async_client.start_flow(order, "order", SHOES)
    await test.async_client.wait_for_flow("order")
""",
        "-o",
        "asyncio_mode=auto",
    )
    result.assert_outcomes(passed=1)


def test_a_fault_that_was_not_met_is_an_error_of_a_test_that_passed_only(pytester: pytest.Pytester) -> None:
    result = outcomes(
        pytester,
        """
def test_passes(flow_test):
    flow_test(ORDERS).fail_commit(nth=900)

def test_fails(flow_test):
    flow_test(ORDERS).fail_commit(nth=900)
    assert False
""",
    )
    result.assert_outcomes(passed=1, failed=1, errors=1)
    result.stdout.fnmatch_lines(["*FaultNotMet: faults were asked for*fail_commit('before', nth=900)*"])


def test_what_handlers_raised_is_told_below_a_failure(pytester: pytest.Pytester) -> None:
    result = outcomes(
        pytester,
        """
from tests.testing.flows import acting

def act(context, input):
    raise LookupError("no shoes")

def test_fails(flow_test):
    test = flow_test(Registry([flow := acting(act)]))
    test.client.start_flow(flow, "f", None)
    test.assert_steps_run("f", "Act")
""",
    )
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*LookupError: no shoes*"])


def test_the_help_names_the_flag(pytester: pytest.Pytester) -> None:
    result = pytester.runpytest_inprocess("-p", PLUGIN, *QUIET, "--help")
    result.stdout.fnmatch_lines(["*--dexray-on={process,ray}*"])
    result = pytester.runpytest_inprocess("-p", PLUGIN, *QUIET, "--fixtures")
    result.stdout.fnmatch_lines_random(["flow_test*", "ray_flow_test*"])


def test_who_does_not_use_it_pays_for_nothing() -> None:
    heavy = "{'ray', 'sqlalchemy', 'msgspec', 'cloudpickle', 'dex', 'dexray.engine', 'asyncio'}"
    program = (
        f"import sys, pytest; before = set(sys.modules); import {PLUGIN}; "
        f"print(sorted({heavy} & (set(sys.modules) - before)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.strip() == "[]"


def test_in_process_tests_do_not_import_ray(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        FLOWS
        + """
import sys

def test_order(flow_test):
    test = flow_test(ORDERS)
    test.client.start_flow(order, "order", SHOES)
    test.client.wait_for_flow("order")
    assert "ray" not in sys.modules
"""
    )
    pytester.runpytest_subprocess("-p", PLUGIN, *QUIET).assert_outcomes(passed=1)


def test_it_is_installed_under_the_name_that_makes_naming_it_twice_harmless() -> None:
    """pytest loads a plugin once by its name: `-p` knows it by its module's."""
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    assert project["entry-points"]["pytest11"] == {PLUGIN: PLUGIN}
