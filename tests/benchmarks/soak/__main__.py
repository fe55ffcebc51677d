"""`python -m tests.benchmarks.soak --minutes N --seed S`: see the package."""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from tests.benchmarks.soak.audit import Audit, audit
from tests.benchmarks.soak.evidence import Archive, read_all, write_evidence
from tests.benchmarks.soak.faults import Faults
from tests.benchmarks.soak.processes import Nodes, Producers
from tests.benchmarks.soak.producer import RETENTION
from tests.postgres import PostgresServer

DATABASE = "soak"
LOST_FOR = 120.0  # seconds after the loss of its head in which a cluster has to have ended: Ray gives it 60
LOOK_EVERY = 5.0  # seconds between two looks for closed runs
LEAST_PER_MINUTE = 3  # Flows completed: a soak that does less has shown nothing


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.soak", description="Mixed work under faults.")
    parser.add_argument("--minutes", type=float, default=3.0, help="how long faults happen (default 3)")
    parser.add_argument("--seed", type=int, default=1, help="of the Flows and of the faults")
    parser.add_argument("--producers", type=int, default=2, help="client processes (default 2)")
    parser.add_argument("--pace", type=float, default=6.0, help="mean seconds between faults (default 6)")
    parser.add_argument("--settle", type=float, default=240.0, help="seconds for all to settle afterwards")
    parser.add_argument("--no-faults", action="store_true", help="the work alone")
    parser.add_argument("--keep", action="store_true", help="keep the folder of the run even if all is well")
    return parser.parse_args()


def soak(folder: Path, options: argparse.Namespace) -> tuple[Audit, Counter[str]]:
    server = PostgresServer()
    nodes, producers = None, None
    try:
        url = server.new_database(DATABASE)
        (folder / "database").write_text(url)
        (folder / "effects").touch()
        (folder / "ray").mkdir()
        nodes = Nodes(folder)
        producers = Producers(folder, [f"p{number}" for number in range(options.producers)], options.seed)
        wait_until_under_way(folder, producers)
        faults = Faults(options.seed, options.pace, nodes, producers, server, DATABASE, folder / "faults.jsonl")
        archive = Archive(server.url(DATABASE))
        looked = time.monotonic()
        end = time.monotonic() + options.minutes * 60
        while time.monotonic() < end:
            producers.look_after()
            if not options.no_faults:
                faults.tick()
            if time.monotonic() - looked > LOOK_EVERY:
                archive.look()
                looked = time.monotonic()
            time.sleep(0.2)
        faults.end()
        (folder / "stop").touch()
        settled_by = time.monotonic() + options.settle
        while not producers.all_done and time.monotonic() < settled_by:
            producers.look_after()
            if time.monotonic() - looked > LOOK_EVERY:
                archive.look()
                looked = time.monotonic()
            time.sleep(0.2)
        took = time.monotonic() - settled_by + options.settle
        faults.note(f"settled after {took:.0f} s" if producers.all_done else "not settled in time")
        evidence = read_all(folder, server.url(DATABASE))
        archive.add_to(evidence)
        found = audit(evidence, least=int(options.minutes * LEAST_PER_MINUTE), retention=RETENTION)
        for process in nodes.left_of_lost_ones(LOST_FOR):
            found.add("a process of a lost cluster lives", process)
        if not producers.all_done:
            found.add("unsettled", f"clients that still wait {options.settle:g} s after the last fault")
        for what in producers.unexpected:
            faults.note(what)
        if found.violations:
            write_evidence(folder, evidence, found)
        found.figures["settled_s"] = round(took)
        found.figures["clients_ended_early"] = len(producers.unexpected)
        return found, faults.counts
    finally:
        if producers is not None:
            producers.close()
        if nodes is not None:
            nodes.close()
        server.close()


def wait_until_under_way(folder: Path, producers: Producers, patience: float = 180.0) -> None:
    """Until the first Flow has ended: a cluster that has never worked is no target. A busy machine takes its time."""
    deadline = time.monotonic() + patience
    while time.monotonic() < deadline:
        producers.look_after()
        if any('"what": "ended"' in path.read_text() for path in folder.glob("records-*.jsonl")):
            return
        time.sleep(0.5)
    raise TimeoutError(f"no Flow has ended within {patience:g} s; see {folder}")


def main() -> int:
    options = arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # in order: nothing stays behind
    folder = Path(tempfile.mkdtemp(prefix="soak-", dir="/tmp"))  # sockets bear no long paths
    began = time.monotonic()
    keep = True
    try:
        found, faults = soak(folder, options)
        keep = bool(found.violations) or options.keep
    finally:
        if not keep:
            shutil.rmtree(folder, ignore_errors=True)
    for violation in found.violations[:40]:
        print(f"VIOLATION {violation}")
    if keep:
        print(f"the run is in {folder}")
    line = {
        "seed": options.seed,
        "minutes": round((time.monotonic() - began) / 60, 1),
        **found.figures,
        "faults": sum(faults.values()),
        **dict(sorted(faults.items())),
        "violations": len(found.violations),
    }
    print(json.dumps(line))
    return 1 if found.violations else 0


if __name__ == "__main__":
    sys.exit(main())
