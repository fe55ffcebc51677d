"""A plan that fails, made smaller: actions are left out, and bad weather calmed, as long as the same check still
fails."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import fields, replace

from tests.simulation.cluster import Weather
from tests.simulation.kernel import bury
from tests.simulation.schedule import Plan, Result, Schedule


def run_plan(plan: Plan) -> Result:
    return Schedule(plan, trace=True).run()


def shrink(plan: Plan, failed: Result, *, tries: int = 400, run: Callable[[Plan], Result] = run_plan) -> Result:
    """The smallest plan found that fails in the same check, with its run."""
    check = failed.findings[0][0]
    best = run(plan)
    again = True
    while again and tries > 0:
        again = False
        for smaller in _smaller(best.plan):
            if tries <= 0:
                break
            tries -= 1
            result = run(smaller)
            if tries % 20 == 0:
                bury()
            if result.findings and result.findings[0][0] == check:
                best, again = result, True
                break
    return best


def _smaller(plan: Plan) -> Iterator[Plan]:
    count = len(plan.actions)
    size = count // 2
    while size:
        for begin in range(0, count, size):
            kept = plan.actions[:begin] + plan.actions[begin + size :]
            if kept:
                yield replace(plan, actions=kept)
        size //= 2
    if len(plan.owners) > 1:
        yield replace(plan, owners=plan.owners[:1])
    for one in fields(Weather):
        if getattr(plan.weather, one.name):
            yield replace(plan, weather=replace(plan.weather, **{one.name: 0.0}))
    if plan.likes.failing:
        yield replace(plan, likes=replace(plan.likes, failing=0.0))
    if plan.offsets:
        yield replace(plan, offsets={})
