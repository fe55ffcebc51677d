"""What a producer writes down: one line of JSON an occurrence, in one write to the end of a file.

A line is whole or it is the last one of a life. What stands in a line has happened, for the kernel keeps what a
killed process wrote.

Lines: `begun` (a Flow and its plan), `asked` (a call is about to be sent, under this request id), `acked` (it was
acknowledged, with this answer), `refused` (an error, after which the call is repeated), `read` (an answer without an
effect), `ended` (how the Flow ended, as a client is told), `wrong` (an error that nothing explains).
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

Record = dict[str, Any]


class Records:
    def __init__(self, path: Path, producer: str) -> None:
        self._producer = producer
        self._handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        size = os.fstat(self._handle).st_size
        if size and os.pread(self._handle, 1, size - 1) != b"\n":
            os.write(self._handle, b"\n")  # the last line of a former life, cut off

    def write(self, what: str, flow: str, **data: Any) -> None:
        record = {"at": time.time(), "by": self._producer, "what": what, "flow": flow, **data}
        os.write(self._handle, (json.dumps(record) + "\n").encode())


def read_records(path: Path) -> Iterator[Record]:
    for line in path.read_text().splitlines():
        try:
            yield json.loads(line)
        except ValueError:
            continue  # cut off by the end of its life
