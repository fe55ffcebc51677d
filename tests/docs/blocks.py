"""The code of the README and of docs/, block by block.

A fenced block may have a mark in the line above it, which readers do not see:

    <!-- test -->          Python with tests in it: all such blocks of a page are one test file
    <!-- file: shop.py --> a file; it is there for the commands that follow
    <!-- output -->        what the Python block before it prints

Python without a mark is run where it stands. `console` blocks hold commands behind `$ ` and what they print; `...` in
either output stands for anything. `bash` blocks are for readers: their `dexray` commands are only parsed.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]

_BLOCK = re.compile(
    r"(?:^<!-- (?P<mark>\w+)(?:: (?P<argument>[^\n]+))? -->\n)?^```(?P<language>\w*)\n(?P<text>.*?)^```$",
    flags=re.S | re.M,
)


@dataclass(frozen=True, slots=True)
class Block:
    """`line` is the line of the page in which its text begins."""

    page: Path
    line: int
    language: str
    mark: str
    argument: str
    text: str

    def __str__(self) -> str:
        return f"{self.page.name}:{self.line}"


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def blocks_of(page: Path) -> list[Block]:
    return blocks_in(page, page.read_text())


def blocks_in(page: Path, text: str) -> list[Block]:
    return [
        Block(
            page,
            text.count("\n", 0, found.start("text")) + 1,
            found["language"],
            found["mark"] or "",
            (found["argument"] or "").strip(),
            found["text"],
        )
        for found in _BLOCK.finditer(text)
    ]


def commands_in(block: Block) -> list[tuple[str, str]]:
    """The commands of a console block, each with the output that is shown for it."""
    pieces = re.split(r"^\$ (.*)\n?", block.text, flags=re.M)
    return [(command, shown) for command, shown in zip(pieces[1::2], pieces[2::2], strict=True)]


def is_as_shown(printed: str, shown: str) -> bool:
    """Whether an output is what a page shows; `...` stands for anything, blanks at the ends of lines do not count."""
    parts = "\n".join(line.rstrip() for line in shown.strip("\n").splitlines()).split("...")
    pattern = ".*".join(re.escape(part) for part in parts)
    plain = "\n".join(line.rstrip() for line in printed.strip("\n").splitlines())
    return re.fullmatch(pattern, plain, flags=re.S) is not None
