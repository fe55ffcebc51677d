"""Why a Flow is where it is, in one sentence for each open Step."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

from dex.wire.service import FailureDescription, FlowDescription, StepDescription

LONGEST_DETAIL: Final = 200
"""Characters of a failure's detail."""


def explained(flow: FlowDescription) -> tuple[str, ...]:
    """One sentence for each open Step; before them one about what keeps the whole Flow, when something does."""
    steps = tuple(map(_sentence, flow.steps))
    if not flow.problem:
        return steps
    return (f"Flow {flow.flow_id} does not go on: {flow.problem}.", *steps)


def _sentence(step: StepDescription) -> str:
    call = f"attempt {step.attempt} of {step.method}"
    if step.phase == "running" and step.waits_for == f"{call} to finish":
        doing = f"runs {call}"
    else:
        doing = f"waits for {step.waits_for}"
    failure = f"; {_failed(step.last_failure)}" if step.last_failure is not None else ""
    return f"{step.step_execution_id} {doing}, since {_time(step.since)}{failure}."


def _failed(failure: FailureDescription) -> str:
    detail = " ".join(failure.detail.split())
    if len(detail) > LONGEST_DETAIL:
        detail = detail[: LONGEST_DETAIL - 1] + "…"
    return f"attempt {failure.attempt} failed with {failure.error_type}" + (f": {detail}" if detail else "")


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")
