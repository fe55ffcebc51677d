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
from datetime import datetime, timedelta
from typing import Any, Final, TypeVar, overload

from dex import Attribute, AttributeMap, Channel, ChannelMap, Registry, Step
from dex.names import physical_name
from dex.step import step_type_of
from dexray.journal.interface import Journal
from dexray.testing.seen import (
    COMPLETED,
    OpenStep,
    PendingTimer,
    SeenRun,
    StepRun,
    counts,
    listed,
    open_steps,
    values_of,
)

T = TypeVar("T")

AnyStep = str | type[Step[Any]] | Step[Any]


class _Anything:
    def __repr__(self) -> str:
        return "ANYTHING"


ANYTHING: Final = _Anything()
"""Stands for any input or output, None too."""


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
        """Whether a Step execution was as expected."""
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
        return self._read(lambda journal: SeenRun(journal, self.registry, flow_id).ended())

    def open_steps(self, flow_id: str) -> list[OpenStep]:
        """The Step executions that have not ended, in the order in which they were scheduled."""
        return self._read(lambda journal: open_steps(journal, self.registry, flow_id))

    def timers_pending(self, flow_id: str) -> list[PendingTimer]:
        """What goes on by itself when its time comes, the next one first: Timers, retries, the Flow's timeout."""
        now = self.now()
        return self._read(lambda journal: SeenRun(journal, self.registry, flow_id).timers(now))

    @overload
    def messages_left(self, flow_id: str, channel: Channel[T], /) -> list[T]: ...

    @overload
    def messages_left(self, flow_id: str, channel: ChannelMap[T], instance: str, /) -> list[T]: ...

    def messages_left(self, flow_id: str, channel: Any, /, *instance: str) -> list[Any]:
        """The messages that no Step has consumed, the oldest first."""
        name = physical_name(channel.name, *instance) if instance else channel.name
        return self._read(lambda journal: SeenRun(journal, self.registry, flow_id).messages(name, channel.value_type))

    def channels_left(self, flow_id: str) -> dict[str, int]:
        """How many messages are left, by Channel (instances of a ChannelMap as `name/instance`); none are left out."""
        return self._read(lambda journal: SeenRun(journal, self.registry, flow_id).channel_sizes())

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
        return self._read(lambda journal: SeenRun(journal, self.registry, flow_id).attributes())

    def status(self, flow_id: str) -> str:
        """RUNNING, COMPLETED, FAILED, CANCELED or TERMINATED."""
        return self._read(lambda journal: SeenRun(journal, self.registry, flow_id).state.status)

    def story(self, flow_id: str) -> str:
        """All of the above in a few lines, for people. Failed assertions end with it."""
        now = self.now()
        return self._read(lambda journal: SeenRun(journal, self.registry, flow_id).story(now))

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
            return self._difference(flow_id, "messages left", [], counts(left)) if left else ""

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
            return self._difference(flow_id, "Attributes", values_of(expected), values_of(found))

        self._until(holds)

    def _difference(
        self, flow_id: str, what: str, expected: Sequence[Any], got: Sequence[Any], marks: Sequence[str] = ()
    ) -> str:
        lines = [f"{what} of Flow {flow_id!r} are not as expected", "  expected:", *listed(expected)]
        lines += ["  got:", *listed(got, marks)]
        return "\n".join([*lines, *self.story(flow_id).splitlines()])


def _mark(wanted: Sequence[Ran], runs: Sequence[StepRun]) -> list[str]:
    return [" " if index < len(wanted) and wanted[index].matches(run) else ">" for index, run in enumerate(runs)]
