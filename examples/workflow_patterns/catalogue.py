"""The verdicts of all pattern examples as the table of `docs/workflow_patterns.md`: each is in its file's docstring.

`python -m examples.workflow_patterns.catalogue` prints the table.
"""

from __future__ import annotations

import importlib
import pkgutil
import re
from collections.abc import Iterator
from dataclasses import dataclass

import examples.workflow_patterns as package
from examples.workflow_patterns.common import Example

_TITLE = re.compile(r"WCP-(\d+): (.+)\.")
_VERDICT = re.compile(r"Verdict: (\+/-|\+|-) (.+)")


@dataclass(frozen=True)
class Pattern:
    """One pattern: what its file says. verdict: "+" direct support, "+/-" partial support, "-" none."""

    number: int
    name: str
    verdict: str
    reason: str
    module: str
    example: Example

    @property
    def row(self) -> str:
        path = f"../examples/workflow_patterns/{self.module}.py"
        return f"| {self.number} | [{self.name}]({path}) | {self.verdict} | {self.reason} |"


class MalformedDocstring(ValueError):
    """A pattern's docstring lacks a part."""


def pattern_of(module: str) -> Pattern:
    """The pattern of a module of this package. Raises MalformedDocstring when its docstring lacks a part."""
    loaded = importlib.import_module(f"{package.__name__}.{module}")
    paragraphs = [" ".join(part.split()) for part in (loaded.__doc__ or "").strip().split("\n\n")]
    title, verdict = _TITLE.fullmatch(paragraphs[0]), _VERDICT.fullmatch(paragraphs[-1])
    if title is None or verdict is None or not any(part.startswith("Criterion: ") for part in paragraphs):
        raise MalformedDocstring(
            f'{module}: its docstring must begin with "WCP-<number>: <Name>.", have a paragraph that begins with '
            f'"Criterion: ", and end with "Verdict: +", "+/-" or "-" and the reason'
        )
    return Pattern(int(title[1]), title[2], verdict[1], verdict[2], module, loaded.example)


def patterns() -> Iterator[Pattern]:
    """All patterns, by number."""
    for module in sorted(found.name for found in pkgutil.iter_modules(package.__path__)):
        if module.startswith("wcp_"):
            yield pattern_of(module)


def table() -> str:
    """The table in Markdown."""
    return "\n".join(["| # | pattern | verdict | reason |", "|--:|---|:-:|---|", *(each.row for each in patterns())])


if __name__ == "__main__":
    print(table())
