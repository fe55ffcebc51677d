"""Fresh schedules from the command line.

    python -m tests.simulation --seconds 60              fresh schedules for a minute, on both cores
    python -m tests.simulation --seconds 60 --seed 7     from seed 7 on
    python -m tests.simulation --seed 7 --trace          one schedule, with all that happened in it
    python -m tests.simulation --mutants                 every seeded bug: is it caught?
    python -m tests.simulation --small                   the full small worlds, exhaustively
    python -m tests.simulation --coverage --seconds 20   what the schedules exercised, and how often

Ends with one line: schedules, Flow-steps, faults, violations; the exit code is 1 if there were any. A Flow-step is a
method call of a Step whose outcome was committed.
"""

from __future__ import annotations

import argparse
import os
import sys

from tests.simulation.campaign import Tally, campaign
from tests.simulation.schedule import draw, run_seed
from tests.simulation.shrink import shrink
from tests.simulation.story import story


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation")
    parser.add_argument("--seconds", type=float, default=0.0)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--trace", action="store_true")
    parser.add_argument("--mutants", action="store_true")
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--coverage", action="store_true")
    options = parser.parse_args()
    if options.mutants:
        from tests.simulation.mutants import hunt

        return hunt()
    if options.small:
        from tests.simulation.small_worlds import FULL, tour

        return tour(FULL)
    if options.seed is not None and not options.seconds:
        result = run_seed(options.seed, trace=options.trace)
        print("\n".join(result.lines or ()))
        print(story(result))
        return 1 if result.findings else 0
    first = options.seed if options.seed is not None else int.from_bytes(os.urandom(4), "big")
    tally = campaign(first, options.seconds or 30.0, options.jobs)
    if options.coverage:
        print(tally.coverage())
    for seed, check, evidence in tally.findings[:8]:
        print(f"seed {seed}: {check}: {evidence[:300]}", flush=True)
    for seed in tally.failed[:1]:
        print(story(shrink(draw(seed), run_seed(seed))))
    print(tally.line())
    return 1 if tally.failed else 0


if __name__ == "__main__":
    sys.exit(main())


__all__ = ["Tally"]
