"""What happened in a schedule, for whoever has to find out why it failed."""

from __future__ import annotations

from tests.simulation.schedule import Result

LAST = 60  # lines of a trace that are told


def story(result: Result) -> str:
    plan = result.plan
    lines = [f"seed {plan.seed}: {result.flows} Flows, {result.steps} Flow-steps, {result.faults.total()} faults"]
    if not result.findings:
        return "\n".join([*lines, "nothing was found"])
    lines.append(f"owners {', '.join(plan.owners)}; {plan.weather}; clocks off by {plan.offsets or 'nothing'}")
    lines.append("what was asked for, and what fate did:")
    lines += [f"  {action}" for action in plan.actions]
    if result.lines is not None:
        left_out = len(result.lines) - LAST
        lines.append("what came of it:" + (f" (the last {LAST} lines of {len(result.lines)})" if left_out > 0 else ""))
        lines += [f"  {line[:220]}" for line in result.lines[-LAST:]]
    lines += [f"VIOLATED {check}: {what}" for check, what in result.findings[:3]]
    lines.append(f"replay: python -m tests.simulation --seed {plan.seed} --trace")
    return "\n".join(lines)
