"""Time travel: a run that begins where an earlier one was.

The past of a run is a line of records: its own, and before them, when it was forked itself, those of the run that it
was forked from up to the point of the fork, and so on back to a start. `Rewind` is fed this line from its beginning,
finds the point, keeps what the Flow was there, and collects what was written from outside afterwards. Nothing here
reads a journal.

    point                the new run begins
    ------------------   ---------------------------------------------------------------------------------------------
    BEGINNING            as the start left it: the start Step, if there is one, is ready
    HISTORY_EVENT_TIME   before the first record that was written at that time or later; but never before the start
    STEP_TYPE            as STEP_EXECUTION_ID, with the first execution of the type and the first of its methods
    STEP_EXECUTION_ID    before the first attempt of that method was handed out; when none ever was, after the record
                         that made the method pending

What the new run keeps and what not
- Attributes, Channels, open waits with their Timers, Step locals, inputs, outputs and the FlowConfig are as they were.
  Timers keep the time at which they are due; one whose time has passed fires at once.
- Step execution numbers, and the order of messages, go on from where they were at the point: an execution that the new
  run begins can bear the number of one that the old run began after it. Message ids stay.
- A method call that was under way or waited for a worker or for a retry begins anew: attempt 1, no checkpoint, no
  failure, no locks, and a snapshot of its own. Its durability is the one pinned when it became pending.
- The Flow's timeout is a timer of the run: it begins anew, unless it had fired by then.
- The request id of the start stays: the new run is the same Flow, as far as starts are concerned.
- Values of an Attribute with hard_delete_on_null that was deleted after the point, by anyone, are gone for good.

What came from outside after the point (messages and Attributes of clients, and all that RPCs did) is applied to the new
run at once, in its order, unless it is to be left out. Skipped Timers and changes of the FlowConfig are not: they were
meant for what happened then.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from msgspec.structs import replace as _replaced

from dexray.machine.commands import ApplyRpc, Fork, Publish, SetAttribute
from dexray.machine.events import (
    AnyEvent,
    AttemptStarted,
    AttributesWritten,
    EventRecorded,
    FlowForked,
    FlowStarted,
    MessageDeleted,
    MessagePublished,
    RpcApplied,
    StepCancelled,
    StepScheduled,
)
from dexray.machine.evolve import evolve
from dexray.machine.rpcs import marker
from dexray.machine.state import (
    READY,
    START,
    TIMEOUT,
    TIMEOUT_HANDLER,
    WAITING,
    Flow,
    StepState,
    decode_checkpoint,
    encode_checkpoint,
)
from dexray.machine.turn import Turn
from dexray.protocol.attempts import MovementSpec, RpcSucceeded, Writes

Write = Publish | SetAttribute | ApplyRpc

BEGINNING = "BEGINNING"
HISTORY_EVENT_TIME = "HISTORY_EVENT_TIME"
STEP_TYPE = "STEP_TYPE"
STEP_EXECUTION_ID = "STEP_EXECUTION_ID"


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """at: seconds since the epoch. step: a Step execution id. method: wait_for, execute or timeout."""

    kind: str
    at: float = 0.0
    step_type: str = ""
    step: str = ""
    method: str = ""

    def __str__(self) -> str:
        match self.kind:
            case "HISTORY_EVENT_TIME":
                return f"{self.kind} {self.at!r}"
            case "STEP_TYPE":
                return f"{self.kind} {self.step_type}"
            case "STEP_EXECUTION_ID":
                return f"{self.kind} {self.step} {self.method}"
        return self.kind


class NoSuchPoint(Exception):
    """Says what the past of the run lacks."""


@dataclass(slots=True)
class Cut:
    """Where the new run begins: after `index` events of record `seq` of run `run_id`."""

    run_id: str
    seq: int
    index: int
    checkpoint: bytes
    position: int  # of the first event behind it, in the whole past
    writes: list[tuple[int, Write]] = field(default_factory=list)


class Rewind:
    """Is fed the past of a run, record by record, and then asked for the cut.

    `hard_deleted`: the names of Attributes and AttributeMaps whose deleted values must not come back.
    """

    def __init__(self, point: Point, hard_deleted: Iterable[str] = ()) -> None:
        self._point = point
        self._hard = frozenset(hard_deleted)
        self._step, self._method = point.step, point.method
        self._flow = Flow()
        self._cut: Cut | None = None
        self._is_final = False
        self._position = 0  # how many events were fed
        self._begins_at_fork = False
        self._last_deletion: dict[str, int] = {}  # of Attributes with hard_delete_on_null

    def feed(self, run_id: str, seq: int, at: float, events: Sequence[AnyEvent], until: int | None = None) -> None:
        """The next record of the past. `until`: how many of its events belong to it, when not all do."""
        events = events[:until]
        if self._position == 0:
            self._begins_at_fork = isinstance(events[0], FlowForked)
        if not self._is_final:
            self._seek(run_id, seq, at, events)
        if self._cut is not None:
            self._collect(self._cut, events)
        self._position += len(events)

    def cut(self) -> Cut:
        """Where the new run begins, with what was written from outside afterwards. Raises NoSuchPoint."""
        cut = self._cut
        if cut is None:
            raise NoSuchPoint(self._what_is_missing())
        lost = {name for name, position in self._last_deletion.items() if position >= cut.position}
        if not lost:
            return cut
        flow = decode_checkpoint(cut.checkpoint)
        attributes = flow.state.attributes
        flow.state.attributes = {name: value for name, value in attributes.items() if name not in lost}
        writes = [(position, self._without_lost(position, write)) for position, write in cut.writes]
        return replace(cut, checkpoint=encode_checkpoint(flow), writes=writes)

    # The point --------------------------------------------------------------------------------------------------------

    def _seek(self, run_id: str, seq: int, at: float, events: Sequence[AnyEvent]) -> None:
        point = self._point
        if point.kind == HISTORY_EVENT_TIME and self._position and _micros(at) >= _micros(point.at):
            self._keep(run_id, seq, 0, 0)
            return
        for index, event in enumerate(events):
            if self._is_before_its_first_attempt(event):
                self._keep(run_id, seq, index, index)
                return
            evolve(self._flow, event, at)
            if isinstance(event, StepScheduled) and not self._step and event.step_type == point.step_type:
                self._step, self._method = event.step, event.method
            if self._is_start(index, events) and (
                point.kind == BEGINNING or (point.kind == HISTORY_EVENT_TIME and _micros(at) >= _micros(point.at))
            ):
                self._keep(run_id, seq, index + 1, index + 1)
                return
        if self._cut is None and self._is_pending():
            self._keep(run_id, seq, len(events), len(events), is_final=False)

    def _is_before_its_first_attempt(self, event: AnyEvent) -> bool:
        return (
            bool(self._step)
            and isinstance(event, AttemptStarted)
            and (event.step, event.method) == (self._step, self._method)
        )

    def _is_start(self, index: int, events: Sequence[AnyEvent]) -> bool:
        """This event is the last one of the start: what it and the start Step make."""
        if self._position or not isinstance(events[0], FlowStarted):
            return False
        following = events[1] if len(events) > 1 else None
        has_step = isinstance(following, StepScheduled) and following.from_step == START
        return index == (1 if has_step else 0)

    def _is_pending(self) -> bool:
        step = self._flow.state.steps.get(self._step) if self._step else None
        return step is not None and step.method == self._method and step.phase == READY

    def _keep(self, run_id: str, seq: int, index: int, offset: int, *, is_final: bool = True) -> None:
        checkpoint = encode_checkpoint(self._flow)
        self._cut = Cut(run_id, seq, index, checkpoint, self._position + offset)
        self._is_final = is_final

    def _what_is_missing(self) -> str:
        point = self._point
        if self._begins_at_fork:
            limits = (
                "; it was forked from a run that is not kept any more, and what was before the fork is gone with it"
            )
        else:
            limits = ""
        match point.kind:
            case "HISTORY_EVENT_TIME":
                return f"nothing happened at {point.at!r} (seconds since 1970) or later{limits}"
            case "STEP_TYPE":
                return f"no Step of type {point.step_type} was ever pending{limits}"
            case "STEP_EXECUTION_ID":
                return f"{point.method} of Step execution {point.step} was never pending{limits}"
        return f"its beginning is not known{limits}"

    # What came from outside -------------------------------------------------------------------------------------------

    def _collect(self, cut: Cut, events: Sequence[AnyEvent]) -> None:
        index = max(0, cut.position - self._position)
        while index < len(events):
            position = self._position + index
            event = events[index]
            match event:
                case MessagePublished(by=""):
                    together = [event]
                    while (following := _at(events, index + len(together))) is not None and (
                        isinstance(following, MessagePublished)
                        and (following.by, following.channel) == ("", event.channel)
                    ):
                        together.append(following)
                    messages = tuple((message.message_id, message.value) for message in together)
                    cut.writes.append((position, Publish(channel=event.channel, messages=messages)))
                    index += len(together)
                    continue
                case AttributesWritten(by=""):
                    cut.writes.extend(
                        (position, SetAttribute(name=name, value=value)) for name, value in event.attributes.items()
                    )
                case RpcApplied():
                    cut.writes.append((position, _rpc(event, events[index + 1 :])))
            self._note_deletions(event, position)
            index += 1

    def _note_deletions(self, event: AnyEvent, position: int) -> None:
        if self._hard and isinstance(event, AttributesWritten):
            for name, value in event.attributes.items():
                if value is None and name.partition("/")[0] in self._hard:
                    self._last_deletion[name] = position

    def _without_lost(self, position: int, write: Write) -> Write:
        """A write from outside, without values that were deleted for good afterwards."""

        def is_lost(name: str, value: bytes | None) -> bool:
            return value is not None and self._last_deletion.get(name, -1) > position

        match write:
            case SetAttribute(name=name, value=value) if is_lost(name, value):
                return SetAttribute(name=name, value=None)
            case ApplyRpc(result=result):
                kept = {
                    name: None if is_lost(name, value) else value for name, value in result.writes.attributes.items()
                }
                if kept != result.writes.attributes:
                    writes = _replaced(result.writes, attributes=kept)
                    return replace(write, result=_replaced(result, writes=writes))
        return write


def _at(events: Sequence[AnyEvent], index: int) -> AnyEvent | None:
    return events[index] if index < len(events) else None


def _micros(seconds: float) -> int:
    """Times are compared as people can write them: a datetime has no more."""
    return round(seconds * 1e6)


def _rpc(applied: RpcApplied, following: Sequence[AnyEvent]) -> ApplyRpc:
    """The RPC that this event and its own among those that follow amount to."""
    by = marker(applied.name)
    attributes: dict[str, bytes | None] = {}
    deletions: list[tuple[str, str]] = []
    publications: list[tuple[str, str, bytes]] = []
    recorded: list[tuple[str, bytes]] = []
    movements: list[MovementSpec] = []
    for event in following:
        match event:
            case AttributesWritten() if event.by == by:
                attributes |= event.attributes
            case MessageDeleted() if event.by == by:
                deletions.append((event.channel, event.message_id))
            case MessagePublished() if event.by == by:
                publications.append((event.channel, event.message_id, event.value))
            case EventRecorded() if event.step == by:
                recorded.append((event.name, event.value))
            case StepCancelled() if event.by == by:
                pass  # whom it cancels is decided anew, by the types that it names
            case StepScheduled() if event.from_step == by:
                movements.append(MovementSpec(event.step_type, event.input, event.override))
            case _:
                break
    result = RpcSucceeded(
        output=applied.output,
        writes=Writes(
            attributes=attributes,
            deletions=tuple(deletions),
            publications=tuple(publications),
            events=tuple(recorded),
        ),
        movements=tuple(movements),
        canceling=applied.canceling,
    )
    return ApplyRpc(name=applied.name, request_id=applied.request_id, input=applied.input, result=result)


# The new run ----------------------------------------------------------------------------------------------------------


def begin(turn: Turn, command: Fork) -> None:
    """The state at the point becomes that of the new run; its open waits look at what is due by now."""
    past = decode_checkpoint(command.checkpoint)
    state = past.state
    state.run_id = command.run_id
    state.started_at = turn.now
    if state.timeout and not state.timed_out:
        state.timeout_at = turn.now + state.timeout
    for step in state.steps.values():
        if step.phase != WAITING:
            _begin_anew(step, turn.now)
    turn.emit(
        FlowForked(
            command.flow_id,
            command.run_id,
            command.flow_type,
            command.from_run,
            command.point,
            command.reason,
            command.base_run,
            command.base_seq,
            command.base_index,
            command.writes is None,
            encode_checkpoint(Flow(state)),
        )
    )


def _begin_anew(step: StepState, now: float) -> None:
    step.phase = READY
    step.since = now
    step.attempt = 1
    step.first_started_at = 0.0
    step.retry_at = 0.0
    step.returned_because = ""
    step.deployment = ""
    step.has_heartbeat = False
    step.heartbeat = None
    step.last_failure = None
    step.may_have_run = False
    step.snapshot = None
    step.locks = ()
    step.overtaken = {}  # the run that waited for these SubFlows has started them


def method_named(step: str, method: str) -> str:
    """The method of a Step execution as the machine names it; the timeout handler has one alone."""
    return TIMEOUT if step.startswith(f"{TIMEOUT_HANDLER}-") else method
