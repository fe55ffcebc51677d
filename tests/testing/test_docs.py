"""The page on testing: each of its examples is a test that passes, and what it shows as printed is printed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import dexray.testing.flow_test  # noqa: F401 - here, so that tests inside of tests do not load it a second time

pytest_plugins = ["pytester"]

PAGE = Path(__file__).parents[2] / "docs" / "testing.md"
BLOCK = re.compile(r"(?:<!-- (\w+)(?:: (\w+))? -->\n)?```(\w+)\n(.*?)```", flags=re.S)
BLOCKS = [(kind, how, language, code) for kind, how, language, code in BLOCK.findall(PAGE.read_text())]


def test_every_example_of_the_page_passes(pytester: pytest.Pytester) -> None:
    examples = [code for kind, _, language, code in BLOCKS if language == "python"]
    assert all(kind == "test" for kind, _, language, _ in BLOCKS if language == "python"), "an example that is not run"
    pytester.makepyfile(test_page="\n\n".join(examples))
    result = pytester.runpytest_inprocess(
        "-p",
        "dexray.testing.pytest_plugin",
        "-p",
        "no:cacheprovider",
        "--strict-markers",
        "-o",
        "asyncio_mode=auto",
        "-o",
        "asyncio_default_fixture_loop_scope=function",
        "-s",
    )
    tests = sum(len(re.findall(r"^(?:async )?def test_", code, flags=re.M)) for code in examples)
    assert tests >= 14
    result.assert_outcomes(passed=tests + 1)  # one is run for two outcomes
    for kind, _, _, printed in BLOCKS:
        if kind == "output":
            assert printed in result.stdout.str()


def test_everything_that_is_public_is_on_the_page() -> None:
    from dexray.testing import FlowTest

    unmentioned = {"close", "registry", "begins", "ended", "raised"}  # of the engine's, or plain
    text = PAGE.read_text()
    names = {name for name in vars(FlowTest) if not name.startswith("_")} - {"on_ray"} - unmentioned
    assert [name for name in sorted(names) if name not in text] == []
