"""Runs that are not there any more: those whose time was over, and those that a client has deleted; and no others."""

from __future__ import annotations

from tests.benchmarks.soak.audit_clients import Add
from tests.benchmarks.soak.evidence import Evidence

SLACK = 150.0  # seconds after which a run whose time is over has to be gone, through whatever faults
CLOCK = 0.5  # seconds by which an engine may be ahead of the wall


def audit_removal(evidence: Evidence, retention: float, add: Add) -> None:
    asked: set[str] = set()
    acked: set[str] = set()
    for records in evidence.records.values():
        for record in records:
            if record.get("key") == "delete":
                {"asked": asked, "acked": acked}.get(record["what"], set()).add(record["flow"])
    for run in evidence.runs:
        rows = evidence.rows.get(run.run_id, [])
        closed_at = rows[-1].at if rows and run.is_closed else None
        missed_at = evidence.removed.get(run.run_id)
        if missed_at is not None and run.flow_id not in asked:
            if closed_at is None or not retention or missed_at < closed_at + retention - CLOCK:
                age = "open" if closed_at is None else f"closed for {missed_at - closed_at:.1f} s"
                add("removed too early", f"run {run.run_id} is gone, and was {age}", run.flow_id)
        elif missed_at is None and run.flow_id in acked:
            add("not removed", f"its deletion was acknowledged, and run {run.run_id} is there", run.flow_id)
        elif missed_at is None and retention and closed_at is not None:
            over = evidence.read_at - closed_at - retention
            if over > SLACK:
                add("not removed", f"the time of run {run.run_id} was over {over:.0f} s ago", run.flow_id)
