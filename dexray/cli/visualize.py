"""`dexray visualize`: the picture of Flows, and what is wrong with them."""

from __future__ import annotations

import io
import json as jsonlib
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Final

import typer
from rich.console import Console, RenderableType

from dexray.cli.options import Debug, Json
from dexray.cli.problems import FAILED, UsageProblem
from dexray.cli.target import load_flows
from dexray.cli.terminal import command

_WIDE: Final = 200  # columns of a file, as of a pipe


def visualize(
    target: Annotated[
        str,
        typer.Argument(metavar="TARGET", help="module:Flow, module:registry or a whole module; a .py file works too."),
    ],
    mermaid: Annotated[bool, typer.Option("--mermaid", help="Draw a Mermaid flowchart (not with --json).")] = False,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="Write the picture to a file. [default: stdout]")
    ] = None,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Show the Steps of Flows from their source, and what is wrong with them. No Flow runs.

    Exits with 1 when there are errors, such as a method that reads state it does not select; warnings are none.
    """
    with command(json=json, debug=debug) as terminal:
        if json and mermaid:
            raise UsageProblem("--json and --mermaid don't go together: choose one")
        from dexray.visualize import analyse, data_of, mermaid_of, text_of
        from dexray.visualize.text import diagnostic_text

        registry, flow_types = load_flows(target)
        report = analyse(registry, flow_types)
        if out is not None:
            if json:
                _write(out, jsonlib.dumps(data_of(report), indent=2, ensure_ascii=False) + "\n")
            else:
                _write(out, mermaid_of(report) if mermaid else _plain(text_of(report)))
        elif mermaid:
            typer.echo(mermaid_of(report), nl=False)
        else:
            terminal.result(data_of(report), *text_of(report))
        if mermaid or out is not None:
            for found in report.diagnostics:
                terminal.remark(diagnostic_text(found).plain)
        errors, flows = len(report.errors), len(report.flows)
        warnings = len(report.diagnostics) - errors
        terminal.remark(f"{_counted(flows, 'Flow')}, {_counted(errors, 'error')}, {_counted(warnings, 'warning')}")
        if errors:
            raise typer.Exit(FAILED)


def _write(out: Path, text: str) -> None:
    try:
        out.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageProblem(f"--out {out}: the file can't be written: {error.strerror or error}") from error


def _plain(parts: Iterable[RenderableType]) -> str:
    console = Console(file=io.StringIO(), width=_WIDE, no_color=True, highlight=False, emoji=False, markup=False)
    with console.capture() as captured:
        for part in parts:
            console.print(part, soft_wrap=True)
    return captured.get()


def _counted(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"
