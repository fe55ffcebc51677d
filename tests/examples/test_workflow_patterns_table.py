"""The 43 pattern examples as a whole: all are there, the table in the docs says what they say, and all of them run."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from dex import FlowStatus
from examples.workflow_patterns.catalogue import MalformedDocstring, Pattern, pattern_of, patterns, table
from tests.examples.pattern_story import Stage
from tests.world import World, scenario

ROOT = Path(__file__).parent.parent.parent
PAGE = ROOT / "docs" / "workflow_patterns.md"

NAMES = """Sequence; Parallel Split; Synchronization; Exclusive Choice; Simple Merge; Multi-Choice;
Structured Synchronizing Merge; Multi-Merge; Structured Discriminator; Arbitrary Cycles; Implicit Termination;
Multiple Instances without Synchronization; Multiple Instances with a priori Design-Time Knowledge;
Multiple Instances with a priori Run-Time Knowledge; Multiple Instances without a priori Run-Time Knowledge;
Deferred Choice; Interleaved Parallel Routing; Milestone; Cancel Task; Cancel Case; Structured Loop; Recursion;
Transient Trigger; Persistent Trigger; Cancel Region; Cancel Multiple Instance Activity;
Complete Multiple Instance Activity; Blocking Discriminator; Cancelling Discriminator; Structured Partial Join;
Blocking Partial Join; Cancelling Partial Join; Generalised AND-Join; Static Partial Join for Multiple Instances;
Cancelling Partial Join for Multiple Instances; Dynamic Partial Join for Multiple Instances;
Local Synchronizing Merge; General Synchronizing Merge; Critical Section; Interleaved Routing; Thread Merge;
Thread Split; Explicit Termination"""

SILENT = (2, 11, 17, 20)
"""Patterns whose example has no output."""

ALL = list(patterns())


def test_every_pattern_has_its_file_under_its_number_and_name() -> None:
    names = [" ".join(name.split()) for name in NAMES.split(";")]
    assert [(each.number, each.name) for each in ALL] == list(enumerate(names, 1))
    assert [int(each.module[4:6]) for each in ALL] == list(range(1, 44))


def test_the_table_of_the_docs_says_what_the_files_say() -> None:
    page = PAGE.read_text()
    assert "\n".join(line for line in page.splitlines() if line.startswith(("| ", "|--"))) == table()
    counted = {verdict: sum(each.verdict == verdict for each in ALL) for verdict in ("+", "+/-", "-")}
    assert "{+} patterns have +, {+/-} have +/-, {-} have -.".format_map(counted) in page
    for path in re.findall(r"\]\((\S+?)\)", page):
        assert (PAGE.parent / path).is_file(), path


def test_the_docs_explain_each_partial_verdict() -> None:
    explained = PAGE.read_text().partition("## What stands behind the +/-")[2]
    named = {int(number) for group in re.findall(r"\(((?:\d+, )*\d+)\)", explained) for number in group.split(", ")}
    assert {each.number for each in ALL if each.verdict != "+"} <= named


def test_a_docstring_without_a_verdict_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    from examples.workflow_patterns import wcp_01_sequence

    assert wcp_01_sequence.__doc__ is not None
    monkeypatch.setattr(wcp_01_sequence, "__doc__", wcp_01_sequence.__doc__.replace("Verdict: +", "Good:"))
    with pytest.raises(MalformedDocstring, match="wcp_01_sequence"):
        pattern_of("wcp_01_sequence")


async def plays_to_its_end(world: World, pattern: Pattern) -> None:
    flow_id = world.id(pattern.module)
    result = await pattern.example.play(world.client, flow_id)
    expected = FlowStatus.CANCELED if pattern.number == 20 else FlowStatus.COMPLETED
    assert result.status is expected, f"{pattern.module}: {result}"
    outputs = [completion for completion in result.completions if completion.has_output]
    assert bool(outputs) is (pattern.number not in SILENT), f"{pattern.module}: {result}"


@scenario(ray=True)
async def test_every_example_plays_to_its_end(world: World) -> None:
    """Some at once, with the input that a reader sees."""
    await world.deploy(*(flow for pattern in ALL for flow in pattern.example.flows))
    room = asyncio.Semaphore(8)

    async def plays(pattern: Pattern) -> None:
        async with room:
            await plays_to_its_end(world, pattern)

    async with asyncio.timeout(200), asyncio.TaskGroup() as group:
        for pattern in ALL:
            group.create_task(plays(pattern))


@pytest.mark.parametrize(
    ("number", "outputs"),
    [
        (7, [["engine is back", "ambulance is back"]]),
        (9, ["Ada", "Dan"]),
        (15, [["Eve", "Ada", "Ben", "Cleo", "Dan"]]),
        (27, [["north"]]),
        (31, [["left", "right"], ["left", "middle"]]),
        (36, [110]),
        (39, ["lamp", "broken: released", "fuse"]),
    ],
)
@scenario()
async def test_an_example_shows_what_its_pattern_is_about(world: World, number: int, outputs: list[object]) -> None:
    example = ALL[number - 1].example
    assert (await Stage(world, example).play(example.input, example.drive)).outputs == outputs


@pytest.mark.ray
def test_an_example_runs_as_a_module_and_tells_what_happened(tmp_path: Path) -> None:
    environment = {**os.environ, "DEXRAY_HOME": str(tmp_path), "DEXRAY_ADDRESS": "local"}
    done = subprocess.run(
        [sys.executable, "-m", "examples.workflow_patterns.wcp_16_deferred_choice"],
        env=environment,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    lines = done.stdout.splitlines()
    assert lines[:1] == ["WCP-16: Deferred Choice."], done.stderr
    assert [line.split()[-1] for line in lines[1:-1]] == ["Offer-1", "Hire-1"]
    assert lines[-1] == "COMPLETED Ada is hired"
