"""What a command writes, and how: for people or for programs, with or without a terminal."""

from __future__ import annotations

import errno
import json
import os
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import typer
from rich import box
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from dexray.cli.problems import data_of, exit_code_of, text_of

_WIDE = 200  # columns without a terminal: whoever reads a pipe wraps lines himself


class Terminal:
    """The two streams of a command. `json` is whether a program reads; `is_live` whether stderr can be redrawn."""

    def __init__(self, *, json: bool = False, debug: bool = False) -> None:
        self.json = json
        self.debug = debug
        self.out = _console(stderr=False)
        self.err = _console(stderr=True)

    @property
    def is_live(self) -> bool:
        return not self.json and sys.stderr.isatty() and not self.err.is_dumb_terminal

    @property
    def can_ask(self) -> bool:
        return not self.json and sys.stdin.isatty() and sys.stderr.isatty()

    def result(self, data: Any, *shown: RenderableType) -> None:
        """The result: `data` for programs, `shown` for people."""
        if self.json:
            typer.echo(json.dumps(data, indent=2, ensure_ascii=False))
            return
        for part in shown:
            self.out.print(part, soft_wrap=isinstance(part, str | Text))

    def remark(self, text: str) -> None:
        """What people want to know on the way; programs do not."""
        if not self.json:
            self.err.print(Text(text), soft_wrap=True)

    def error(self, error: BaseException) -> None:
        if self.debug:
            typer.echo("".join(traceback.format_exception(error)), err=True, nl=False)
        if self.json:
            typer.echo(json.dumps(data_of(error), ensure_ascii=False), err=True)
        else:
            self.err.print(Text.assemble(("error: ", "bold red"), text_of(error)), soft_wrap=True)

    def table(self, *columns: str) -> Table:
        """A table for people; lines around it only where there is a terminal."""
        style = box.ROUNDED if self.out.is_terminal else None
        table = Table(*columns, box=style, pad_edge=style is not None, header_style="bold")
        for column in table.columns:
            column.overflow = "fold"
        return table


@contextmanager
def command(*, json: bool, debug: bool) -> Iterator[Terminal]:
    """The frame of every command: an error becomes one clear line and an exit code."""
    terminal = Terminal(json=json, debug=debug)
    try:
        yield terminal
    except (typer.Exit, typer.Abort):
        raise
    except (Exception, KeyboardInterrupt) as error:
        if isinstance(error, OSError) and error.errno == errno.EPIPE:
            raise  # the reader of a pipe has left, which is no error of ours
        terminal.error(error)
        raise typer.Exit(exit_code_of(error)) from None


def _console(*, stderr: bool) -> Console:
    stream = sys.stderr if stderr else sys.stdout
    plain = not stream.isatty()
    width = _WIDE if plain and not os.environ.get("COLUMNS") else None
    return Console(
        stderr=stderr,
        width=width,
        highlight=False,
        emoji=False,
        markup=False,
        no_color=True if plain else None,
        force_terminal=False if plain else None,
    )
