"""Files that are there whole or not at all, which is what Steps need that may run twice.

A file is written under a name of its own beside its place, and renamed when it is on the disk. So a reader never sees
half of one; two attempts at once (one of them in a process that is thought dead) never write into each other's; and
whoever comes last leaves the same as whoever came first, if what is written depends on the input alone.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

PARTIAL = ".partial-"


@dataclass(frozen=True)
class Place:
    """Where a file is to be. `partial` is written first; what was not taken over is removed."""

    path: Path
    partial: Path

    def take(self) -> None:
        """What was written is whole, and comes to its place. It must be closed by now."""
        with self.partial.open("rb") as written:
            os.fsync(written.fileno())
        self.partial.replace(self.path)


@contextmanager
def place_for(path: Path) -> Iterator[Place]:
    path.parent.mkdir(parents=True, exist_ok=True)
    place = Place(path, path.with_name(f"{PARTIAL}{path.name}-{uuid4().hex}"))
    try:
        yield place
    finally:
        place.partial.unlink(missing_ok=True)


def write_whole(path: Path, write: Callable[[Path], object]) -> None:
    """Puts a file in its place; `write` fills the path that it gets. An error leaves the place as it was."""
    with place_for(path) as place:
        write(place.partial)
        place.take()


def write_json(path: Path, value: Any) -> None:
    """A dataclass, or what JSON knows, for people to read."""
    text = json.dumps(value if isinstance(value, (dict, list)) else asdict(value), indent=2, sort_keys=True)
    write_whole(path, lambda partial: partial.write_text(f"{text}\n"))


def sweep(folder: Path) -> int:
    """Removes what killed processes have left, once nobody writes there any more: how many there were."""
    left = list(folder.rglob(f"{PARTIAL}*"))
    for path in left:
        path.unlink(missing_ok=True)
    return len(left)
