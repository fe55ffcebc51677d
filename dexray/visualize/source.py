"""From a function to its source: the syntax tree and the place."""

from __future__ import annotations

import ast
import linecache
import os
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FunctionType
from typing import Final, TypeAlias

FunctionNode: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda

_LIBRARIES: Final = tuple(
    os.path.join(os.path.realpath(path), "")
    for path in {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
)


@dataclass(frozen=True, slots=True, order=True)
class Where:
    """A line of a file. The file is named from the current folder when it lies in it."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


class Sources:
    """The syntax trees of files, each parsed once."""

    def __init__(self) -> None:
        self._functions: dict[str, dict[tuple[str, int], list[FunctionNode]]] = {}

    def node_of(self, function: FunctionType) -> FunctionNode | None:
        """The definition of a function, None when its source isn't there or can't be told from another's."""
        code = function.__code__
        if code.co_filename not in self._functions:
            self._functions[code.co_filename] = _functions(code.co_filename, function)
        found = self._functions[code.co_filename].get((code.co_name, code.co_firstlineno), [])
        return found[0] if len(found) == 1 else None


def _functions(file: str, function: FunctionType) -> dict[tuple[str, int], list[FunctionNode]]:
    found: dict[tuple[str, int], list[FunctionNode]] = {}
    linecache.checkcache(file)
    try:
        tree = ast.parse("".join(linecache.getlines(file, function.__globals__)))
    except (SyntaxError, ValueError):
        return found
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
            found.setdefault((node.name, first), []).append(node)
        elif isinstance(node, ast.Lambda):
            found.setdefault(("<lambda>", node.lineno), []).append(node)
    return found


def where(code: CodeType, node: ast.AST | None = None) -> Where:
    line = getattr(node, "lineno", None)
    return Where(_short(code.co_filename), code.co_firstlineno if line is None else line)


def is_library(code: CodeType) -> bool:
    """Whether a function is part of Python or of an installed package."""
    file = os.path.realpath(code.co_filename)
    return not os.path.exists(file) or file.startswith(_LIBRARIES)


def own_nodes(node: FunctionNode) -> Iterator[ast.AST]:
    """The nodes of a function's body without those of functions and classes in it."""
    pending: list[ast.AST] = [node.body] if isinstance(node, ast.Lambda) else list(node.body)
    while pending:
        found = pending.pop()
        yield found
        if not isinstance(found, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef):
            pending.extend(ast.iter_child_nodes(found))


def is_generator(node: FunctionNode) -> bool:
    return any(isinstance(found, ast.Yield | ast.YieldFrom) for found in own_nodes(node))


def _short(file: str) -> str:
    try:
        return str(Path(file).resolve().relative_to(Path.cwd()))
    except (OSError, ValueError):
        return file
