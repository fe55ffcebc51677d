"""Many schedules, on several cores, and what they add up to."""

from __future__ import annotations

import multiprocessing
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from tests.simulation.kernel import bury, undisturbed
from tests.simulation.schedule import Result, run_seed

BURY_EVERY = 2  # schedules: what is small stays in the processor's cache


@dataclass
class Tally:
    schedules: int = 0
    steps: int = 0
    flows: int = 0
    seconds: float = 0.0
    closed: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    features: Counter[str] = field(default_factory=Counter)
    failed: list[int] = field(default_factory=list)
    findings: list[tuple[int, str, str]] = field(default_factory=list)

    def add(self, result: Result) -> None:
        self.schedules += 1
        self.steps += result.steps
        self.flows += result.flows
        self.closed += result.closed
        self.faults += result.faults
        self.features += result.features
        if result.findings:
            self.failed.append(result.plan.seed)
            self.findings.append((result.plan.seed, *result.findings[0]))

    def merge(self, other: Tally) -> None:
        self.schedules += other.schedules
        self.steps += other.steps
        self.flows += other.flows
        self.closed += other.closed
        self.faults += other.faults
        self.features += other.features
        self.failed += other.failed
        self.findings += other.findings

    def line(self) -> str:
        rate = self.schedules / self.seconds if self.seconds else 0.0
        seeds = f" (seeds {', '.join(map(str, self.failed[:8]))})" if self.failed else ""
        return (
            f"{self.schedules} schedules ({rate:.0f} a second), {self.flows} Flows, {self.steps} Flow-steps, "
            f"{self.closed['COMPLETED']} completed, {self.faults.total()} faults, {len(self.failed)} violations{seeds}"
        )

    def coverage(self) -> str:
        counts = self.features + Counter({f"fault: {name}": count for name, count in self.faults.items()})
        return "\n".join(f"{count:10d}  {name}" for name, count in sorted(counts.items()))


def in_order(seeds: Iterator[int], seconds: float) -> Tally:
    """One after the other, in this process, for so many seconds."""
    tally, began = Tally(), time.monotonic()
    with undisturbed():
        for seed in seeds:
            tally.add(run_seed(seed))
            if tally.schedules % BURY_EVERY == 0:
                bury()
            if time.monotonic() - began > seconds or len(tally.failed) >= 20:
                break
    tally.seconds = time.monotonic() - began
    return tally


def _part(first: int, step: int, seconds: float) -> Tally:
    return in_order(iter(range(first, 1 << 62, step)), seconds)


def campaign(first: int, seconds: float, jobs: int) -> Tally:
    """Seeds from `first` on, on several cores."""
    if jobs <= 1:
        return _part(first, 1, seconds)
    with multiprocessing.get_context("spawn").Pool(jobs) as pool:
        parts = pool.starmap(_part, [(first + job, jobs, seconds) for job in range(jobs)])
    tally = Tally(seconds=max(part.seconds for part in parts))
    for part in parts:
        tally.merge(part)
    tally.failed.sort()
    return tally
