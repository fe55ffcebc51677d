"""What a commit of the journal costs here. A plain script that prints medians; nothing is asserted.

PYTHONPATH=sdk:. python tests/benchmarks/journal.py [folder]

Run ids sort by their time here. Records of runs that live at the same time then lie together in the keys, and 100
starts cost half of what they cost with random ids.
"""

from __future__ import annotations

import os
import random
import statistics
import sys
import tempfile
import time
import uuid
from collections.abc import Callable

from dexray.journal import Append, Journal, NewRun, RequestAnswer, RunChange, open_journal

BODY = 300


def _median_ms(repeats: int, prepare: Callable[[], Callable[[], object]]) -> str:
    times = []
    for _ in range(repeats):
        call = prepare()
        started = time.perf_counter()
        call()
        times.append((time.perf_counter() - started) * 1e3)
    times.sort()
    return f"median {statistics.median(times):6.3f} ms   p95 {times[int(len(times) * 0.95)]:6.3f} ms"


class Runs:
    """Runs of one owner in a journal, and the next record of each."""

    def __init__(self, journal: Journal, count: int) -> None:
        self.journal = journal
        self.last_seq: dict[str, int] = {}
        for first in range(0, count, 500):
            self.journal.append(self.starts(min(500, count - first)))

    def starts(self, count: int) -> list[Append]:
        batch = []
        for _ in range(count):
            run_id = f"{time.time_ns() // 1000:014x}{uuid.uuid4().hex[:18]}"
            self.last_seq[run_id] = 1
            new = NewRun(f"flow-{run_id}", "Order", "host-1", uuid.uuid4().hex, time.time())
            batch.append(Append(run_id, 1, 1, time.time(), os.urandom(BODY), new_run=new))
        return batch

    def records(self, count: int, **more: object) -> list[Append]:
        batch = []
        for run_id in random.sample(list(self.last_seq), count):
            self.last_seq[run_id] += 1
            batch.append(Append(run_id, 1, self.last_seq[run_id], time.time(), os.urandom(BODY), **more))  # type: ignore[arg-type]
        return batch

    def write(self, batch: list[Append]) -> Callable[[], object]:
        return lambda: self.journal.append(batch)


def main() -> None:
    with tempfile.TemporaryDirectory(dir=sys.argv[1] if len(sys.argv) > 1 else None) as folder:
        journal = open_journal(f"{folder}/journal.db")
        journal.migrate()
        runs = Runs(journal, 1_000)
        some = next(iter(runs.last_seq))
        change = RunChange(next_wake=5.0)

        def appends(count: int, **more: object) -> Callable[[], Callable[[], object]]:
            return lambda: runs.write(runs.records(count, **more))

        def answered() -> Callable[[], object]:
            answer = RequestAnswer("flow-1", uuid.uuid4().hex, b"ok")
            return runs.write(runs.records(1, requests=(answer,), change=change))

        for what, repeats, prepare in (
            ("1 record", 1500, appends(1)),
            ("10 records of as many runs", 500, appends(10)),
            ("100 records of as many runs", 300, appends(100)),
            ("1 record, change and answer", 500, answered),
            ("100 records, each with a change", 150, appends(100, change=change)),
            ("100 starts", 100, lambda: runs.write(runs.starts(100))),
            ("find_run", 1000, lambda: lambda: journal.find_run(some)),
            ("load", 1000, lambda: lambda: journal.load(some)),
        ):
            print(f"{what:32} {_median_ms(repeats, prepare)}")
        journal.close()


if __name__ == "__main__":
    main()
