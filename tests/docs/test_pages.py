"""Whatever code the README and docs/ show is run: Python, the commands of consoles, and what they print."""

from __future__ import annotations

import itertools
import re
import shlex
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

import dexray.testing.flow_test  # noqa: F401 - here, so that tests inside of tests do not load it a second time
from dexray.cli.app import app
from tests.docs.blocks import PAGES, Block, blocks_in, blocks_of, commands_in, is_as_shown, name_of
from tests.docs.running import OnePage, OutputDiffers

pytest_plugins = ["pytester"]

ON_RAY = ["docs/tutorial.md"]
"""Pages whose files and commands are run on a real cluster instead (`test_tutorial_on_ray`)."""

LANGUAGES = {"python", "console", "bash", "text", "mermaid", "toml", "json", "yaml", "sql", ""}
"""Those that say nothing that could be run, or that are run."""

IN_PROCESS = [page for page in PAGES if name_of(page) not in ON_RAY]


def run_page(blocks: list[Block], folder: Path, monkeypatch: pytest.MonkeyPatch) -> int:
    """Runs the blocks of a page from top to bottom, in `folder`; how many were run."""
    monkeypatch.chdir(folder)
    monkeypatch.delenv("COLUMNS", raising=False)
    ran = 0
    with OnePage(blocks[0].page, monkeypatch) as page:
        for block, following in zip(blocks, [*blocks[1:], None], strict=True):
            if block.mark == "file":
                (folder / block.argument).write_text(block.text)
            elif block.language == "python" and not block.mark:
                page.run(block, following if following is not None and following.mark == "output" else None)
            elif block.language == "console":
                for command, shown in commands_in(block):
                    assert command.startswith("dexray "), f"{block}: {command!r} can't be run here"
                    printed = CliRunner().invoke(app, shlex.split(command)[1:]).stdout
                    if not is_as_shown(printed, shown):
                        raise OutputDiffers(f"{block}: `{command}` shows\n{shown}\nand prints\n{printed}")
            else:
                continue
            ran += 1
    return ran


@pytest.mark.parametrize("page", IN_PROCESS, ids=name_of)
def test_the_code_of_a_page_runs_and_prints_what_it_shows(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if blocks := blocks_of(page):
        run_page(blocks, tmp_path, monkeypatch)


@pytest.mark.parametrize(
    "page", [page for page in PAGES if any(block.mark == "test" for block in blocks_of(page))], ids=name_of
)
def test_the_tests_of_a_page_pass(page: Path, pytester: pytest.Pytester) -> None:
    blocks = blocks_of(page)
    examples = [block.text for block in blocks if block.mark == "test"]
    pytester.makepyfile(test_page="\n\n".join(examples))
    result = pytester.runpytest_inprocess(
        "-p",
        "dexray.testing.pytest_plugin",
        "-p",
        "no:cacheprovider",
        "--strict-markers",
        "-W",
        "ignore::pytest.PytestAssertRewriteWarning",  # whoever reads docstrings has imported the plugin
        "-o",
        "asyncio_mode=auto",
        "-o",
        "asyncio_default_fixture_loop_scope=function",
        "-s",
    )
    outcomes = result.parseoutcomes()
    assert set(outcomes) - {"warnings"} == {"passed"}, outcomes  # whatever the modules around it warn of
    assert outcomes["passed"] >= sum(len(re.findall(r"^(?:async )?def test_", code, flags=re.M)) for code in examples)
    for block, output in itertools.pairwise(blocks):
        if output.mark == "output":
            assert output.text in result.stdout.str(), f"{block} prints something else than {output}"


def test_no_code_is_left_out() -> None:
    for page in PAGES:
        text = page.read_text()
        blocks = blocks_of(page)
        assert len(re.findall(r"^\s*```", text, flags=re.M)) == 2 * len(blocks), f"{page.name}: a fence in a list?"
        for block in blocks:
            assert block.language in LANGUAGES, f"{block}: {block.language!r} is not run"
            assert block.mark in ("", "test", "file", "output"), f"{block}: no such mark: {block.mark!r}"
        has_tests = any(block.mark == "test" for block in blocks)
        for block in blocks:
            if has_tests and block.language == "python":
                assert block.mark in ("test", "file"), f"{block}: an example that is not run"


def test_the_commands_that_are_shown_exist() -> None:
    shown = 0
    for page in PAGES:
        for block in blocks_of(page):
            if block.language not in ("bash", "console"):
                continue
            for line in block.text.splitlines():
                arguments = shlex.split(line.removeprefix("$ "), comments=True)
                if "&&" in arguments:
                    arguments = arguments[arguments.index("&&") + 1 :]
                if arguments[:1] == ["dexray"]:
                    _parse(arguments[1:], f"{block}: {line}")
                    shown += 1
    assert shown >= 10


def _parse(arguments: list[str], where: str) -> None:
    command = typer.main.get_command(app)
    context = None
    while True:
        try:
            context = command.make_context(command.name, list(arguments), parent=context)
            if not hasattr(command, "resolve_command"):
                return
            rest = [*context._protected_args, *context.args]
            _, found, arguments = command.resolve_command(context, rest)
            assert found is not None
            command = found
        except Exception as error:
            raise AssertionError(f"{where}: {error}") from error


# What the above would see ---------------------------------------------------------------------------------------------


def page_of(tmp_path: Path, text: str) -> list[Block]:
    return blocks_in(tmp_path / "page.md", text)


@pytest.mark.parametrize(
    "text",
    [
        "```python\nprint(6 * 7)  # 41\n```\n",
        "```python\nprint(6 * 7)\n```\n",
        "```python\nprint(6 * 7)\n```\n\n<!-- output -->\n```text\n41\n```\n",
        "```python\nx = 1  # 41\n```\n\n<!-- output -->\n```text\n41\n```\n",
        "```console\n$ dexray version\n3.14\n```\n",
    ],
)
def test_an_output_that_differs_is_seen(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(OutputDiffers, match=r"page\.md:\d"):
        run_page(page_of(tmp_path, text), tmp_path, monkeypatch)


def test_blocks_of_a_page_share_what_they_define(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (
        "```python\nx = 42  # no output\n```\n\ntext\n\n```python\nprint(x)  # 42\nprint('a ' + 'b')  # a ...\n```\n\n"
        "```python\nfor each in (1, 2):\n    print(each)\n```\n\n<!-- output -->\n```text\n1\n2\n```\n"
    )
    assert run_page(page_of(tmp_path, text), tmp_path, monkeypatch) == 3


def test_an_error_names_the_line_of_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "# A page\n\n```python\nx = 1\nx / 0\n```\n"
    with pytest.raises(ZeroDivisionError) as failed:
        run_page(page_of(tmp_path, text), tmp_path, monkeypatch)
    assert failed.traceback[-1].lineno + 1 == 5
    assert str(failed.traceback[-1].path) == str(tmp_path / "page.md")
