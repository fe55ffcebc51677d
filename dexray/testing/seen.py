"""A Flow as its journal has it, in the types of the registered code: the values that a test looks at.

Of a closed Flow everything is there as well: its state has forgotten the messages that were left, its records have not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from dex import Attribute, AttributeMap, Registry
from dex.values import attach, reference_of
from dexray.engine.residents import revive
from dexray.journal.interface import Journal
from dexray.machine import events
from dexray.machine.describe import waits_for
from dexray.machine.evolve import evolve
from dexray.machine.state import BACKOFF, WAITING, Flow, FlowState, Message, decode_checkpoint
from dexray.testing.errors import FlowTestError

COMPLETED, FAILED, CANCELLED = "completed", "failed", "cancelled"

_PAGE: Final = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRun:
    """A Step execution that has ended. outcome: completed, failed (for good) or cancelled. decision: what execute
    decided, like "next" or "graceful_complete". attempts: those of execute, or of wait_for if it came no further.
    errors: those of attempts that failed, as `type: detail`."""

    step_type: str
    step_execution_id: str
    input: Any
    outcome: str
    decision: str = ""
    output: Any = None
    attempts: int = 1
    errors: tuple[str, ...] = ()
    ended_at: datetime

    def __str__(self) -> str:
        output = f" -> {self.output!r}" if self.output is not None else ""
        tries = f", {self.attempts} attempts" if self.attempts > 1 else ""
        errors = f" ({'; '.join(self.errors)})" if self.errors else ""
        return f"{self.step_execution_id}({self.input!r}) {self.decision or self.outcome}{output}{tries}{errors}"


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenStep:
    """A Step execution that has not ended. phase: ready, running, backoff or waiting. waits_for: in words."""

    step_type: str
    step_execution_id: str
    input: Any
    method: str
    phase: str
    attempt: int
    waits_for: str
    last_error: str = ""

    def __str__(self) -> str:
        error = f" (last error: {self.last_error})" if self.last_error else ""
        return f"{self.step_execution_id}({self.input!r}) {self.phase}: {self.waits_for}{error}"


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingTimer:
    """A time at which a Flow goes on by itself. kind: timer (a Timer of a wait), retry, or timeout (of the Flow).
    left: from now on; negative when it is overdue, because nobody was there."""

    kind: str
    step_execution_id: str
    condition_id: str
    due: datetime
    left: timedelta

    def __str__(self) -> str:
        where = f" of {self.step_execution_id}" if self.step_execution_id else ""
        name = f" {self.condition_id!r}" if self.condition_id else ""
        return f"{self.kind}{name}{where} in {self.left}"


class SeenRun:
    """The current run of a Flow, as the journal has it."""

    def __init__(self, journal: Journal, registry: Registry, flow_id: str) -> None:
        row = journal.current_run(flow_id)
        loaded = journal.load(row.run_id) if row is not None else None
        if row is None or loaded is None:
            raise FlowTestError(f"there is no Flow {flow_id!r}: it was not started, or its start is not committed yet")
        self._journal = journal
        self._registry = registry
        self._run_id = row.run_id
        live = revive(loaded, row.epoch)
        if live.problem:
            raise FlowTestError(f"Flow {flow_id!r} can't be read: {live.problem}")
        self.flow: Flow = live.flow

    @property
    def state(self) -> FlowState:
        return self.flow.state

    def ended(self) -> list[StepRun]:
        inputs: dict[str, tuple[str, bytes]] = {}
        attempts: dict[str, int] = {}
        errors: dict[str, list[str]] = {}
        found: list[StepRun] = []

        def end(step: str, outcome: str, at: float, decision: str = "", output: bytes | None = None) -> None:
            step_type, given = inputs[step]
            found.append(
                StepRun(
                    step_type=step_type,
                    step_execution_id=step,
                    input=self._input(step_type, given),
                    outcome=outcome,
                    decision=decision,
                    output=None if output is None else self._decode(output, Any, f"output of {step}"),
                    attempts=attempts.get(step, 0),
                    errors=tuple(errors.get(step, ())),
                    ended_at=datetime.fromtimestamp(at, UTC),
                )
            )

        for at, event in self._events():
            match event:
                case events.FlowForked():  # what was open then ends here
                    for step in decode_checkpoint(event.checkpoint).state.steps.values():
                        inputs[step.id] = (step.step_type, step.input)
                        attempts[step.id] = step.attempt
                case events.StepScheduled():
                    inputs[event.step] = (event.step_type, event.input)
                case events.AttemptStarted():
                    attempts[event.step] = event.attempt
                case events.AttemptFailed():
                    errors.setdefault(event.step, []).append(f"{event.failure.error_type}: {event.failure.detail}")
                case events.StepCompleted() if event.step in inputs:
                    end(event.step, COMPLETED, at, event.decision, event.output)
                case events.StepFailed() if event.step in inputs:
                    end(event.step, FAILED, at)
                case events.StepCancelled() if event.step in inputs:
                    end(event.step, CANCELLED, at)
        return found

    def _events(self) -> list[tuple[float, events.AnyEvent]]:
        found: list[tuple[float, events.AnyEvent]] = []
        seq = 0
        while records := self._journal.records(self._run_id, seq, _PAGE):
            for record in records:
                seq = record.seq
                found += [(record.at, event) for event in events.decode_record(record.body)]
        return found

    def open(self) -> list[OpenStep]:
        return [
            OpenStep(
                step_type=step.step_type,
                step_execution_id=step.id,
                input=self._input(step.step_type, step.input),
                method=step.method,
                phase=step.phase,
                attempt=step.attempt,
                waits_for=waits_for(self.flow, step),
                last_error=f"{step.last_failure.error_type}: {step.last_failure.detail}" if step.last_failure else "",
            )
            for step in self.state.steps.values()
        ]

    def timers(self, now: datetime) -> list[PendingTimer]:
        found: list[PendingTimer] = []

        def add(kind: str, at: float, step: str = "", name: str = "") -> None:
            due = datetime.fromtimestamp(at, UTC)
            found.append(PendingTimer(kind=kind, step_execution_id=step, condition_id=name, due=due, left=due - now))

        if self.flow.is_closed:
            return []
        if self.state.timeout_at and not self.state.timed_out:
            add("timeout", self.state.timeout_at)
        for step in self.state.steps.values():
            if step.phase == BACKOFF:
                add("retry", step.retry_at, step.id)
            for index, condition in enumerate(step.wait.conditions if step.wait is not None else ()):
                if condition.kind == "timer" and index not in step.fired and step.phase == WAITING:
                    add("timer", step.due[index], step.id, condition.condition_id)
        return sorted(found, key=lambda timer: timer.due)

    def messages(self, name: str, value_type: Any) -> list[Any]:
        where = f"message of Channel {name!r}"
        return [self._decode(message.value, value_type, where) for message in self._channels().get(name, ())]

    def channel_sizes(self) -> dict[str, int]:
        return {name: len(queue) for name, queue in self._channels().items()}

    def _channels(self) -> dict[str, list[Message]]:
        """Those of a closed Flow as they were when it closed: its state has forgotten them."""
        if not self.flow.is_closed:
            return self.state.channels
        flow = Flow()
        for at, event in self._events():
            if isinstance(event, events.FlowClosed):
                break
            evolve(flow, event, at)
        return flow.state.channels

    def attributes(self) -> dict[str, Any]:
        known = self._registry.definition(self.state.flow_type).attributes
        return {
            name: self._decode(value, _type_of(known.get(name.partition("/")[0])), f"Attribute {name!r}")
            for name, value in self.state.attributes.items()
        }

    def story(self, now: datetime) -> str:
        state = self.state
        error = f" ({state.error_type}: {state.error_message})" if state.error_type else ""
        lines = [
            f"Flow {state.flow_id!r} of type {state.flow_type} is {state.status}{error} at {now:%Y-%m-%d %H:%M:%S}"
        ]
        parts: list[tuple[str, Sequence[Any]]] = [
            ("Steps run", self.ended()),
            ("open Steps", self.open()),
            ("timers pending", self.timers(now)),
            ("messages left", counts(self.channel_sizes())),
            ("Attributes", values_of(self.attributes())),
        ]
        for title, things in parts:
            if things:
                lines += [f"  {title}:", *listed(things)]
        return "\n".join(lines)

    def _input(self, step_type: str, payload: bytes) -> Any:
        steps = self._registry.definition(self.state.flow_type).steps
        hint = steps[step_type].input_type if step_type in steps else Any
        return self._decode(payload, hint, f"input of Step {step_type!r}") if payload else None

    def _decode(self, payload: bytes, hint: Any, where: str) -> Any:
        large = reference_of(payload)
        if large is not None:
            payload = attach(payload, self._journal.get_blobs({large}))
        return self._registry.codec_registry.decode(payload, hint, where=where)


def open_steps(journal: Journal, registry: Registry, flow_id: str) -> list[OpenStep]:
    """The Step executions of a Flow that have not ended. FlowTestError when there is no such Flow."""
    return SeenRun(journal, registry, flow_id).open()


def _type_of(definition: Attribute[Any] | AttributeMap[Any] | None) -> Any:
    return Any if definition is None else definition.value_type


def listed(things: Sequence[Any], marks: Sequence[str] = ()) -> list[str]:
    marks = marks or [" "] * len(things)
    return [f"  {mark} {_text(thing)}" for thing, mark in zip(things, marks, strict=True)] or ["    (none)"]


def _text(thing: Any) -> str:
    return str(thing) if isinstance(thing, StepRun | OpenStep | PendingTimer | str | timedelta) else repr(thing)


def counts(channels: Mapping[str, int]) -> list[str]:
    return [f"{name}: {count}" for name, count in sorted(channels.items())]


def values_of(values: Mapping[str, Any]) -> list[str]:
    return [f"{name} = {value!r}" for name, value in sorted(values.items())]
