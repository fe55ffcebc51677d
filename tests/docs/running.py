"""Runs the Python of a page from top to bottom, as a reader would type it, over an engine in this process.

`dexray.connect` gives a client of a FlowTest: time is virtual, and a second connect is a new engine on the same
journal. What a block prints is compared with the comment behind each `print(...)`, or with the output block below it.
"""

from __future__ import annotations

import ast
import contextlib
import io
import sys
import tokenize
import types
from pathlib import Path
from typing import Any

import pytest

import dexray
from dex import AsyncClient, Client, Registry
from dexray.settings import resolve
from dexray.testing import FlowTest
from tests.docs.blocks import Block, is_as_shown


class OutputDiffers(AssertionError):
    """A page shows something else than what its code prints."""


class OnePage:
    """The engine and the module in which the blocks of one page run. A context manager."""

    def __init__(self, page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._module = types.ModuleType(f"page_{page.stem.lower()}")
        self._engine: FlowTest | None = None
        monkeypatch.setitem(sys.modules, self._module.__name__, self._module)
        monkeypatch.setitem(vars(dexray), "connect", self.connect)
        monkeypatch.setitem(vars(dexray), "connect_async", self.connect_async)

    def __enter__(self) -> OnePage:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> None:
        if self._engine is not None:
            self._engine.__exit__(kind, error, trace)

    def connect(self, registry: Registry, **settings: Any) -> Client:
        return self._connected(registry, settings).client

    async def connect_async(self, registry: Registry, **settings: Any) -> AsyncClient:
        return self._connected(registry, settings).async_client

    def _connected(self, registry: Registry, settings: dict[str, Any]) -> FlowTest:
        if self._engine is None:
            found, _ = resolve(settings)
            self._engine = FlowTest(
                registry,
                attribute_stores=found.attribute_stores,
                default_attribute_stores=found.default_attribute_stores,
            )
        else:
            self._engine.restart(registry=registry)
        return self._engine

    def run(self, block: Block, output: Block | None) -> None:
        """Runs a block and compares what it prints. Its traceback names the lines of the page."""
        code = compile("\n" * (block.line - 1) + block.text, str(block.page), "exec", dont_inherit=True)
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(code, vars(self._module))
        shown = commented_output(block) if output is None else output.text
        if not is_as_shown(printed.getvalue(), shown):
            raise OutputDiffers(f"{block} shows\n{shown}\nand prints\n{printed.getvalue()}")


def commented_output(block: Block) -> str:
    """The comments behind the `print(...)` of a block, one a line."""
    prints = {
        node.end_lineno
        for node in ast.walk(ast.parse(block.text))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print"
    }
    tokens = tokenize.generate_tokens(io.StringIO(block.text).readline)
    comments = [each for each in tokens if each.type == tokenize.COMMENT and each.start[0] in prints]
    return "".join(each.string.removeprefix("#").strip() + "\n" for each in comments)
