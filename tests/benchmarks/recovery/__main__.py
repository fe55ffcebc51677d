from __future__ import annotations

import argparse
import asyncio
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from dexray.journal import open_journal
from tests.benchmarks.__main__ import place_of
from tests.benchmarks.recovery import in_process, on_ray


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.recovery")
    parser.add_argument("flows", nargs="?", type=int, default=10_000)
    parser.add_argument("--database", default="sqlite", help="sqlite, postgres, or the URL of an empty one")
    parser.add_argument("--ray", action="store_true", help="on embedded Ray, instead of in process")
    parser.add_argument("--verbose", action="store_true")
    parser.add_argument("--fill", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.fill:  # the part of the first owner, which ends as by SIGKILL
        asyncio.run(in_process.fill(*options.fill, options.flows))
    with place_of(options.database) as database, tempfile.TemporaryDirectory() as folder:
        journal = open_journal(database)
        journal.migrate()
        gate = f"{folder}/gate"
        if options.ray:
            show(options, asyncio.run(on_ray.measure(database, journal, gate, options.flows)))
            return
        journal.close()
        again = [sys.executable, "-m", "tests.benchmarks.recovery", str(options.flows)]
        subprocess.run([*again, "--fill", database, gate], check=True)
        Path(gate).touch()
        show(options, asyncio.run(in_process.measure(database, gate, options.flows, options.verbose)))


def show(options: argparse.Namespace, figures: dict[str, float]) -> None:
    where = "embedded Ray" if options.ray else "in process"
    print(f"{options.flows} Flows, {options.database}, {where}, load {os.getloadavg()[0]:.1f}: ", end="")
    print("  ".join(f"{name} {figure:,.2f}" for name, figure in figures.items()), flush=True)


if __name__ == "__main__":
    main()
