"""What a commit of the journal costs here. A plain script that prints medians; nothing is asserted.

PYTHONPATH=sdk:. python -m tests.benchmarks.journal [folder | postgres [round trip in ms]]

With "postgres", a private server on this machine that syncs; the round trip is added by a relay, as a network would.

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
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

from dexray.journal import Append, Journal, NewRun, RequestAnswer, RunChange, open_journal
from tests.postgres import durable_server
from tests.wire_proxy import Wire

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


@contextmanager
def opened(arguments: list[str]) -> Iterator[Journal]:
    """The journal that the arguments name, migrated."""
    with ExitStack() as stack:
        if arguments[:1] != ["postgres"]:
            folder = stack.enter_context(tempfile.TemporaryDirectory(dir=arguments[0] if arguments else None))
            journal = open_journal(f"{folder}/journal.db")
        else:
            server = stack.enter_context(durable_server())
            url = server.new_database("flows")
            delay = float(arguments[1]) / 2000 if len(arguments) > 1 else 0.0
            if delay:
                url = stack.enter_context(Wire(server, delay)).url("flows")
            journal = open_journal(url)
        journal.migrate()
        try:
            yield journal
        finally:
            journal.close()


def main() -> None:
    with opened(sys.argv[1:]) as journal:
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


if __name__ == "__main__":
    main()
