"""What a test can see of a Flow, and say of it: read from the journal, so it is the same on every engine.

Everything here is what was committed. A Step that runs has done nothing yet; a message that a Step consumed is gone
from its Channel. Inputs, messages and Attributes come with the types of the code that is registered; outputs, which
declare no type, come as plain data (objects as dicts).

    >>> Ran("Approve", input=42)
    Ran('Approve', input=42)
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final, TypeVar, overload

from dex import Attribute, AttributeMap, Channel, ChannelMap, Registry, Step
from dex.names import physical_name
from dex.step import step_type_of
from dex.values import attach, reference_of
from dexray.engine.residents import revive
from dexray.journal.interface import Journal
from dexray.machine import events
from dexray.machine.describe import waits_for
from dexray.machine.evolve import evolve
from dexray.machine.state import BACKOFF, WAITING, Flow, FlowState, Message, decode_checkpoint
from dexray.testing.errors import FlowTestError

T = TypeVar("T")

AnyStep = str | type[Step[Any]] | Step[Any]

COMPLETED, FAILED, CANCELLED = "completed", "failed", "cancelled"

_PAGE: Final = 10_000


class _Anything:
    def __repr__(self) -> str:
        return "ANYTHING"


ANYTHING: Final = _Anything()


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


class Ran:
    """What is expected of a Step execution that has ended; what is left out may be anything."""

    def __init__(
        self,
        step: AnyStep,
        *,
        input: Any = ANYTHING,
        output: Any = ANYTHING,
        outcome: str = COMPLETED,
        attempts: int | None = None,
    ) -> None:
        self.step = step if isinstance(step, str) else step_type_of(step)
        self.input = input
        self.output = output
        self.outcome = outcome
        self.attempts = attempts

    def matches(self, run: StepRun) -> bool:
        return (
            self.step in (run.step_type, run.step_execution_id)
            and self.outcome == run.outcome
            and (self.input is ANYTHING or _same(self.input, run.input))
            and (self.output is ANYTHING or _same(self.output, run.output))
            and (self.attempts is None or self.attempts == run.attempts)
        )

    def __repr__(self) -> str:
        parts = [repr(self.step)]
        for name in ("input", "output"):
            if getattr(self, name) is not ANYTHING:
                parts.append(f"{name}={getattr(self, name)!r}")
        if self.outcome != COMPLETED:
            parts.append(f"outcome={self.outcome!r}")
        if self.attempts is not None:
            parts.append(f"attempts={self.attempts}")
        return f"Ran({', '.join(parts)})"


def _same(expected: Any, got: Any) -> bool:
    return bool(expected == got) and isinstance(expected, bool) == isinstance(got, bool)


class Looking(ABC):
    """The eyes of a test. The methods take a Flow ID and look at its current run."""

    @property
    @abstractmethod
    def registry(self) -> Registry: ...

    @abstractmethod
    def now(self) -> datetime:
        """The time as the engine has it, UTC."""

    @abstractmethod
    def _read(self, read: Callable[[Journal], T]) -> T:
        """Reads the journal, when what was decided is in it."""

    def _until(self, holds: Callable[[], str]) -> None:
        """Raises AssertionError when `holds` says what is wrong. A real cluster is given time to get there."""
        __tracebackhide__ = True
        wrong = holds()
        if wrong:
            raise AssertionError(wrong)

    # Looking ----------------------------------------------------------------------------------------------------------

    def steps_run(self, flow_id: str) -> list[StepRun]:
        """The Step executions that have ended, in the order in which they did."""
        return self._read(lambda journal: _Run(journal, self.registry, flow_id).ended())

    def open_steps(self, flow_id: str) -> list[OpenStep]:
        """The Step executions that have not ended, in the order in which they were scheduled."""
        return self._read(lambda journal: open_steps(journal, self.registry, flow_id))

    def timers_pending(self, flow_id: str) -> list[PendingTimer]:
        """What goes on by itself when its time comes, the next one first: Timers, retries, the Flow's timeout."""
        now = self.now()
        return self._read(lambda journal: _Run(journal, self.registry, flow_id).timers(now))

    @overload
    def messages_left(self, flow_id: str, channel: Channel[T], /) -> list[T]: ...

    @overload
    def messages_left(self, flow_id: str, channel: ChannelMap[T], instance: str, /) -> list[T]: ...

    def messages_left(self, flow_id: str, channel: Any, /, *instance: str) -> list[Any]:
        """The messages that no Step has consumed, the oldest first."""
        name = physical_name(channel.name, *instance) if instance else channel.name
        return self._read(lambda journal: _Run(journal, self.registry, flow_id).messages(name, channel.value_type))

    def channels_left(self, flow_id: str) -> dict[str, int]:
        """How many messages are left, by Channel (instances of a ChannelMap as `name/instance`); none are left out."""
        return self._read(lambda journal: _Run(journal, self.registry, flow_id).channel_sizes())

    @overload
    def attribute(self, flow_id: str, attribute: Attribute[T], /) -> T | None: ...

    @overload
    def attribute(self, flow_id: str, attribute: AttributeMap[T], instance: str, /) -> T | None: ...

    def attribute(self, flow_id: str, attribute: Any, /, *instance: str) -> Any:
        """The committed value, None where there is none; of a closed Flow too."""
        name = physical_name(attribute.name, *instance) if instance else attribute.name
        return self.attributes(flow_id).get(name)

    def attributes(self, flow_id: str) -> dict[str, Any]:
        """All committed Attributes by name (instances of an AttributeMap as `name/instance`)."""
        return self._read(lambda journal: _Run(journal, self.registry, flow_id).attributes())

    def status(self, flow_id: str) -> str:
        """RUNNING, COMPLETED, FAILED, CANCELED or TERMINATED."""
        return self._read(lambda journal: _Run(journal, self.registry, flow_id).state.status)

    def story(self, flow_id: str) -> str:
        """All of the above in a few lines, for people. Failed assertions end with it."""
        now = self.now()
        return self._read(lambda journal: _Run(journal, self.registry, flow_id).story(now))

    # Asserting --------------------------------------------------------------------------------------------------------

    def assert_steps_run(self, flow_id: str, *expected: AnyStep | Ran) -> None:
        """These Step executions have ended, in this order, and no others. A Step (its class, an instance, its type or
        its execution id) means that it completed; `Ran` says more."""
        __tracebackhide__ = True
        wanted = [step if isinstance(step, Ran) else Ran(step) for step in expected]

        def holds() -> str:
            runs = self.steps_run(flow_id)
            if len(runs) == len(wanted) and all(want.matches(run) for want, run in zip(wanted, runs, strict=True)):
                return ""
            return self._difference(flow_id, "Steps run", wanted, runs, _mark(wanted, runs))

        self._until(holds)

    def assert_open_steps(self, flow_id: str, *expected: AnyStep) -> None:
        """These Step executions, and no others, have not ended; in any order."""
        __tracebackhide__ = True
        wanted = sorted(step if isinstance(step, str) else step_type_of(step) for step in expected)

        def holds() -> str:
            found = self.open_steps(flow_id)
            names = sorted(
                step.step_execution_id if step.step_execution_id in wanted else step.step_type for step in found
            )
            return "" if names == wanted else self._difference(flow_id, "open Steps", wanted, found)

        self._until(holds)

    def assert_no_messages_left(self, flow_id: str) -> None:
        """Every message of every Channel was consumed."""
        __tracebackhide__ = True

        def holds() -> str:
            left = self.channels_left(flow_id)
            return self._difference(flow_id, "messages left", [], _counts(left)) if left else ""

        self._until(holds)

    def assert_messages_left(self, flow_id: str, channel: Channel[Any], /, *expected: Any) -> None:
        """These messages, the oldest first, and no others are left in a Channel."""
        __tracebackhide__ = True

        def holds() -> str:
            left = self.messages_left(flow_id, channel)
            if left == list(expected):
                return ""
            return self._difference(flow_id, f"messages left on Channel {channel.name!r}", expected, left)

        self._until(holds)

    def assert_timers_pending(self, flow_id: str, *expected: timedelta) -> None:
        """As many Timers, retries and timeouts are pending, and they are due in these durations from now, the next one
        first; to a second."""
        __tracebackhide__ = True

        def holds() -> str:
            found = self.timers_pending(flow_id)
            lefts = [timer.left for timer in found]
            second = timedelta(seconds=1)
            if len(lefts) == len(expected) and all(
                abs(left - want) < second for left, want in zip(lefts, expected, strict=True)
            ):
                return ""
            return self._difference(flow_id, "timers pending", expected, found)

        self._until(holds)

    def assert_attributes(self, flow_id: str, expected: Mapping[str, Any]) -> None:
        """These Attributes have these values. Others may be there."""
        __tracebackhide__ = True

        def holds() -> str:
            found = self.attributes(flow_id)
            if all(name in found and _same(value, found[name]) for name, value in expected.items()):
                return ""
            return self._difference(flow_id, "Attributes", _values(expected), _values(found))

        self._until(holds)

    def _difference(
        self, flow_id: str, what: str, expected: Sequence[Any], got: Sequence[Any], marks: Sequence[str] = ()
    ) -> str:
        lines = [f"{what} of Flow {flow_id!r} are not as expected", "  expected:", *_listed(expected)]
        lines += ["  got:", *_listed(got, marks)]
        return "\n".join([*lines, *self.story(flow_id).splitlines()])


def _listed(things: Sequence[Any], marks: Sequence[str] = ()) -> list[str]:
    marks = marks or [" "] * len(things)
    return [f"  {mark} {_text(thing)}" for thing, mark in zip(things, marks, strict=True)] or ["    (none)"]


def _text(thing: Any) -> str:
    return str(thing) if isinstance(thing, StepRun | OpenStep | PendingTimer | str | timedelta) else repr(thing)


def _mark(wanted: Sequence[Ran], runs: Sequence[StepRun]) -> list[str]:
    return [" " if index < len(wanted) and wanted[index].matches(run) else ">" for index, run in enumerate(runs)]


def _counts(channels: Mapping[str, int]) -> list[str]:
    return [f"{name}: {count}" for name, count in sorted(channels.items())]


def _values(values: Mapping[str, Any]) -> list[str]:
    return [f"{name} = {value!r}" for name, value in sorted(values.items())]


class _Run:
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
            ("messages left", _counts(self.channel_sizes())),
            ("Attributes", _values(self.attributes())),
        ]
        for title, things in parts:
            if things:
                lines += [f"  {title}:", *_listed(things)]
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
    return _Run(journal, registry, flow_id).open()


def _type_of(definition: Attribute[Any] | AttributeMap[Any] | None) -> Any:
    return Any if definition is None else definition.value_type
