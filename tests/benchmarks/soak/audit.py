"""The audit: what must not be, whatever was killed when.

`audit` looks at every Flow by three witnesses that know nothing of each other: the records of the clients, the lines of
the handlers, the rows of the journal. `audit_journal` judges the rows by themselves, `audit_clients` what the clients
were told.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from tests.benchmarks.soak.audit_clients import audit_clients
from tests.benchmarks.soak.audit_journal import audit_run
from tests.benchmarks.soak.audit_removal import audit_removal
from tests.benchmarks.soak.evidence import Evidence, open_runs


@dataclass(slots=True)
class Audit:
    """`violations`, each a line; `flows`: the Flow IDs that they name. `figures`: how much was looked at."""

    violations: list[str] = field(default_factory=list)
    flows: list[str] = field(default_factory=list)
    figures: dict[str, Any] = field(default_factory=dict)

    def add(self, kind: str, text: str, flow: str = "") -> None:
        self.violations.append(f"{kind}: {flow + ': ' if flow else ''}{text}")
        if flow:
            self.flows.append(flow)


def audit(evidence: Evidence, *, least: int, retention: float = 0.0) -> Audit:
    """least: so many Flows have to be COMPLETED. retention: seconds for which closed runs are kept; 0: for good."""
    found = Audit()
    effects: Counter[tuple[str, str, int]] = Counter(
        (effect.run or effect.flow, effect.step, effect.attempt) for effect in evidence.effects
    )
    for run in evidence.runs:
        audit_run(run, evidence.rows.get(run.run_id, []), effects, partial(found.add, flow=run.flow_id))
    for run in open_runs(evidence):
        found.add("unsettled", f"run {run.run_id} of {run.flow_type} is {run.status}", run.flow_id)
    flow_of = {effect.run or effect.flow: effect.flow for effect in evidence.effects}
    for (run_or_flow, step, attempt), count in effects.items():
        # An ASYNC attempt may run again under its number: its start may not have been committed when its owner died.
        if count > 1 and not step.startswith("RelaxedBranch"):
            text = f"attempt {attempt} of {step} ran {count} times"
            found.add("an attempt ran twice", text, flow_of[run_or_flow])
    audit_clients(evidence, found.add)
    audit_removal(evidence, retention, found.add)
    completed = Counter(run.flow_type for run in evidence.runs if run.status == "COMPLETED")
    if completed.total() < least:
        found.add("too few", f"{completed.total()} Flows are COMPLETED, at least {least} are wanted")
    found.figures = figures_of(evidence)
    return found


def figures_of(evidence: Evidence) -> dict[str, Any]:
    tags = Counter(event[0] for rows in evidence.rows.values() for row in rows for event in row.events)
    said = Counter(record["what"] for records in evidence.records.values() for record in records)
    return {
        "flows": len(evidence.runs),
        "completed": sum(run.status == "COMPLETED" for run in evidence.runs),
        "steps": tags["StepCompleted/1"],
        "attempts_failed": tags["AttemptFailed/1"],
        "messages": tags["MessagePublished/1"],
        "rpcs": tags["RpcApplied/1"],
        "timers": tags["TimerFired/1"],
        "travels": tags["FlowForked/1"],
        "removed": len(evidence.removed),
        "acknowledged": said["acked"],
        "calls_repeated": said["refused"],
        "owners_changed": sum(len({row.epoch for row in rows}) - 1 for rows in evidence.rows.values() if rows),
    }
