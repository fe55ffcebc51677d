"""Flows in one line, and what their source tells."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from dex import (
    Context,
    Flow,
    PersistenceSchema,
    Registry,
    Step,
    StepDecision,
    StepList,
    StepOptions,
    Wait,
    graceful_complete,
)
from dexray.visualize import Diagnostic, Report, Severity, analyse, data_of


class Made(Flow[Any]):
    """A Flow of these Steps, the first of which starts it. `has`: its Attributes, Channels and Streams."""

    def __init__(self, *steps: Step[Any], has: Iterable[Any] = ()) -> None:
        self.steps = steps
        self.has = tuple(has)

    def get_steps(self) -> StepList[Any]:
        return StepList.start_step(self.steps[0]).other_steps(*self.steps[1:]) if self.steps else StepList.empty()

    def get_persistence_schema(self) -> PersistenceSchema:
        return PersistenceSchema.of(*self.has)


class Does(Step[None]):
    """A Step whose execute is followed by nothing; `options` are its options."""

    options: StepOptions | None = None

    def get_step_options(self) -> StepOptions | None:
        return self.options

    def execute(self, context: Context, input: None) -> StepDecision:
        return graceful_complete()


class Waits(Does):
    def wait_for(self, context: Context, input: None) -> Wait:
        return Wait.skip_immediately()


def report_of(flow: Flow[Any]) -> Report:
    return analyse(Registry([flow], allow_async_handlers=True))


def findings(flow: Flow[Any], code: str = "") -> list[Diagnostic]:
    return [found for found in report_of(flow).diagnostics if not code or found.code == code]


def errors(flow: Flow[Any]) -> list[Diagnostic]:
    return [found for found in findings(flow) if found.severity is Severity.ERROR]


def reads(flow: Flow[Any]) -> list[tuple[str, str, str]]:
    """The unselected reads: Step or "", method, and the definition."""
    return [(found.step, found.method, found.definition) for found in findings(flow, "unselected-read")]


def step_data(flow: Flow[Any], name: str) -> dict[str, Any]:
    (found,) = [step for step in data_of(report_of(flow))["flows"][0]["steps"] if step["name"] == name]
    return dict(found)


def passed_on(function: Callable[..., Any]) -> Callable[..., Any]:
    """A decorator of the usual kind."""
    import functools

    @functools.wraps(function)
    def wrapper(*arguments: Any, **keywords: Any) -> Any:
        return function(*arguments, **keywords)

    return wrapper
