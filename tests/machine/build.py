"""Small words for the tests of the machine: Flows in one line, an attempt from its hand-out to its result in
another.

A `Bench` holds one run of one Flow under a clock that moves only when told. It keeps every record it got, as
bytes, and after every command it replays the newest record into a second Flow, its shadow: the two must stay
equal, every invariant must hold, and every Step that is ready must have been offered to its owner.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from hypothesis import HealthCheck, settings

from dex.wire.specs import FailureRoute, FlowSpec, LoadSpec, MethodSpec, RetrySpec, StepSpec
from dexray.machine import commands, invariants
from dexray.machine.decide import decide
from dexray.machine.events import AnyEvent, decode_record, encode_record
from dexray.machine.evolve import evolve
from dexray.machine.state import (
    BACKOFF,
    RUNNING,
    TIMEOUT,
    WAITING,
    Flow,
    StepState,
    as_plain,
    decode_checkpoint,
    encode_checkpoint,
)
from dexray.machine.tasks import attempt_task
from dexray.machine.turn import Turn, key_of
from dexray.protocol.attempts import (
    AttemptFailed,
    AttemptKey,
    AttemptResult,
    AttemptReturned,
    AttemptTask,
    ConditionSpec,
    DecisionSpec,
    ExecuteSucceeded,
    Heartbeat,
    MovementSpec,
    WaitForSucceeded,
    WaitSpec,
    Writes,
)

NOON = 1_800_000_000.0
HANDLER = "sys:timeout_handler-1"


def examples(count: int, **more: Any) -> settings:
    """So many examples in CI; HYPOTHESIS_PROFILE=deep tries thirty times as many."""
    factor = 30 if os.environ.get("HYPOTHESIS_PROFILE") == "deep" else 1
    return settings(
        max_examples=count * factor,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
        **more,
    )


# Definitions ----------------------------------------------------------------------------------------------------------


def method(
    *,
    attempts: int = 0,
    retry: RetrySpec | None = None,
    durability: str = "",
    locks: Sequence[str] = (),
    load: LoadSpec | None = None,
    timeout: float = 7200.0,
) -> MethodSpec:
    return MethodSpec(
        retry=retry if retry is not None else RetrySpec(attempts=attempts),
        durability=durability,
        locks=tuple(locks),
        load=load if load is not None else LoadSpec(),
        timeout=timeout,
    )


def step(
    name: str,
    execute: MethodSpec | None = None,
    *,
    wait_for: MethodSpec | bool = False,
    proceed: bool = False,
    route: str | FailureRoute | None = None,
) -> StepSpec:
    waiting = MethodSpec() if wait_for is True else wait_for or None
    return StepSpec(
        step_type=name,
        wait_for=waiting,
        execute=execute if execute is not None else MethodSpec(),
        proceed_on_wait_failure=proceed,
        failure_route=FailureRoute(step_type=route) if isinstance(route, str) else route,
    )


def flow(*steps: StepSpec, start: str | None = "first") -> FlowSpec:
    """A Flow of these Steps that starts with the first of them; `start=None` for one without a start Step."""
    begin = steps[0].step_type if start == "first" and steps else None
    return FlowSpec(flow_type="Demo", start_step=begin, steps={one.step_type: one for one in steps})


# Waits ----------------------------------------------------------------------------------------------------------------


def one(channel: str, name: str = "") -> ConditionSpec:
    return exactly(channel, 1, name)


def exactly(channel: str, count: int, name: str = "") -> ConditionSpec:
    return ConditionSpec("channel", name, channel=channel, at_least=count, at_most=count)


def at_least(channel: str, count: int) -> ConditionSpec:
    return ConditionSpec("channel", channel=channel, at_least=count, at_most=None)


def at_most(channel: str, count: int) -> ConditionSpec:
    return ConditionSpec("channel", channel=channel, at_least=0, at_most=count)


def between(channel: str, low: int, high: int) -> ConditionSpec:
    return ConditionSpec("channel", channel=channel, at_least=low, at_most=high)


def timer(seconds: float, name: str = "") -> ConditionSpec:
    return ConditionSpec("timer", name, duration=seconds)


def until(condition: ConditionSpec) -> WaitSpec:
    return WaitSpec("all_of", (condition,))


def all_of(*conditions: ConditionSpec) -> WaitSpec:
    return WaitSpec("all_of", conditions)


def any_of(*conditions: ConditionSpec) -> WaitSpec:
    return WaitSpec("any_of", conditions)


def any_combination_of(conditions: Sequence[ConditionSpec], *groups: Sequence[int]) -> WaitSpec:
    return WaitSpec("any_combination_of", tuple(conditions), tuple(tuple(group) for group in groups))


SKIP = WaitSpec("skip_immediately")


# Decisions ------------------------------------------------------------------------------------------------------------


def movement(target: str, payload: bytes = b"in", override: StepSpec | None = None) -> MovementSpec:
    return MovementSpec(target, payload, override)


def go_to(
    *targets: str | MovementSpec, canceling: Sequence[str] = (), canceling_siblings: Sequence[str] = ()
) -> DecisionSpec:
    movements = tuple(movement(target) if isinstance(target, str) else target for target in targets)
    return DecisionSpec(
        kind="next", movements=movements, canceling=tuple(canceling), canceling_siblings=tuple(canceling_siblings)
    )


def graceful_complete(output: bytes | None = None, *, canceling: Sequence[str] = ()) -> DecisionSpec:
    return DecisionSpec(kind="graceful_complete", output=output, canceling=tuple(canceling))


def force_complete(output: bytes | None = None) -> DecisionSpec:
    return DecisionSpec(kind="force_complete", output=output)


def force_fail(reason: str = "no") -> DecisionSpec:
    return DecisionSpec(kind="force_fail", reason=reason)


def dead_end(*, canceling: Sequence[str] = (), canceling_siblings: Sequence[str] = ()) -> DecisionSpec:
    return DecisionSpec(kind="dead_end", canceling=tuple(canceling), canceling_siblings=tuple(canceling_siblings))


def complete_if_empty(*channels: str, fallback: str, output: bytes | None = None) -> DecisionSpec:
    return DecisionSpec(
        kind="force_complete_if_channels_empty", channels=channels, fallback=movement(fallback), output=output
    )


# The bench ------------------------------------------------------------------------------------------------------------


def picture(flow: Flow) -> dict[str, Any]:
    """All that a Flow is, its indexes included, in a form in which two equal Flows are equal.

    Indexes may differ in order and in stale entries of the heap; what they will do when time passes may not.
    """
    state, index = flow.state, flow.index
    to_start = set(index.ready) | set(index.blocked)
    timers: set[tuple[str, int]] = set()
    flow_timeout = False
    for due, step_id, kind, number in index.due:
        if kind == TIMEOUT:
            flow_timeout = flow_timeout or not state.timed_out
            continue
        known = state.steps.get(step_id)
        if known is None:
            continue
        if kind == "retry" and known.phase == BACKOFF and known.attempt == number and due == known.retry_at:
            to_start.add(step_id)
        elif kind == "timer" and known.phase == WAITING and number not in known.fired and due == known.due[number]:
            timers.add((step_id, number))
    return {
        "state": as_plain(flow),
        "to start": to_start,
        "timers": timers,
        "flow timeout": flow_timeout,
        "locks": dict(index.locks),
        "waiters": {channel: set(waiting) for channel, waiting in index.waiters.items()},
    }


def replay(records: Sequence[tuple[float, bytes]]) -> Flow:
    flow = Flow()
    for at, body in records:
        for event in decode_record(body):
            evolve(flow, event, at)
    return flow


class Bench:
    """One run of one Flow, driven by hand."""

    def __init__(self, *steps: StepSpec, spec: FlowSpec | None = None, now: float = NOON) -> None:
        self.spec: FlowSpec | None = spec if spec is not None else flow(*steps)
        self.now = now
        self.flow = Flow()
        self.shadow = Flow()
        self.records: list[tuple[float, bytes]] = []
        self.events: list[AnyEvent] = []
        self.last = Turn(self.flow, self.spec, now)
        self.offered: set[str] = set()  # what an owner has taken from `fresh` and not handed out yet
        self._message = 0

    def do(self, command: commands.Command) -> Turn:
        """One command at the present time. Its events are kept as a record, and the shadow is given them to replay."""
        before = picture(self.flow) if self.flow.is_closed else None
        turn = self.last = decide(self.flow, command, self.spec, self.now)
        if before is not None:
            assert not turn.events
            assert picture(self.flow) == before
        if turn.events:
            body = encode_record(turn.events)
            self.records.append((self.now, body))
            decoded = decode_record(body)
            assert decoded == turn.events
            self.events.extend(decoded)
            for event in decoded:
                evolve(self.shadow, event, self.now)
        self.check()
        return turn

    def check(self) -> None:
        self.offered.update(self.flow.fresh)
        self.flow.fresh.clear()
        invariants.check_all(self.flow)
        assert picture(self.flow) == picture(self.shadow)
        assert self.offered >= set(self.flow.index.ready), "a ready Step that its owner never hears of"

    # What clients do

    def start(self, payload: bytes = b"in", **options: Any) -> Bench:
        self.do(
            commands.Start(
                flow_id="flow", run_id="run", flow_type="Demo", request_id="request", input=payload, **options
            )
        )
        return self

    def publish(self, channel: str, *values: bytes) -> Turn:
        return self.do(
            commands.Publish(channel=channel, messages=tuple((self.message_id(), value) for value in values))
        )

    def message_id(self) -> str:
        self._message += 1
        return f"m{self._message}"

    def set(self, name: str, value: bytes | None) -> Turn:
        return self.do(commands.SetAttribute(name=name, value=value))

    def stop(self, stop_type: str, reason: str = "") -> Turn:
        return self.do(commands.Stop(stop_type=stop_type, reason=reason))

    # What workers do

    def key(self, step_id: str) -> AttemptKey:
        return key_of(self.flow.state, self.step(step_id))

    def try_hand_out(self, step_id: str, deployment: str = "d1") -> bool:
        self.offered.discard(step_id)
        self.do(commands.HandOut(step=step_id, deployment=deployment))
        state = self.flow.state.steps.get(step_id)
        return bool(self.last.events) and state is not None and state.phase == RUNNING

    def hand_out(self, step_id: str, deployment: str = "d1") -> AttemptTask:
        assert self.try_hand_out(step_id, deployment), f"{step_id} could not be handed out"
        return self.task(step_id)

    def task(self, step_id: str) -> AttemptTask:
        state = self.step(step_id)
        spec = None
        if state.method != TIMEOUT:
            spec = state.override if state.override is not None else self._spec().steps[state.step_type]
        return attempt_task(self.flow.state, state, spec)

    def finish(self, step_id: str, result: AttemptResult, again_at: float = 0.0) -> Turn:
        """The result of the attempt that is out; it is handed out first when it is not."""
        if self.step(step_id).phase != RUNNING:
            self.hand_out(step_id)
        return self.do(commands.FinishAttempt(key=self.key(step_id), result=result, again_at=again_at))

    def succeed(self, step_id: str, decision: DecisionSpec, **writes: Any) -> Turn:
        return self.finish(step_id, ExecuteSucceeded(decision=decision, writes=self.writes(**writes)))

    def wait(self, step_id: str, wait: WaitSpec, **writes: Any) -> Turn:
        return self.finish(step_id, WaitForSucceeded(wait=wait, writes=self.writes(**writes)))

    def fail(self, step_id: str, error_type: str = "ValueError", detail: str = "broken", **more: Any) -> Turn:
        return self.finish(step_id, AttemptFailed(error_type=error_type, detail=detail, **more))

    def give_back(self, step_id: str, reason: str = "no such code here", after: float = 0.0) -> Turn:
        return self.finish(step_id, AttemptReturned(reason=reason), again_at=self.now + after)

    def heartbeat(self, step_id: str, value: bytes | None) -> Turn:
        """A checkpoint; None clears it."""
        return self.do(commands.StoreHeartbeat(key=self.key(step_id), heartbeat=Heartbeat(value is not None, value)))

    def writes(
        self,
        *,
        publish: Sequence[tuple[str, bytes]] = (),
        attributes: Mapping[str, bytes | None] | None = None,
        delete: Sequence[tuple[str, str]] = (),
        events: Sequence[tuple[str, bytes]] = (),
        locals: Mapping[str, bytes] | None = None,
    ) -> Writes:
        return Writes(
            attributes=dict(attributes or {}),
            deletions=tuple(delete),
            publications=tuple((channel, self.message_id(), value) for channel, value in publish),
            events=tuple(events),
            locals=dict(locals or {}),
        )

    # What time and fate do

    def advance(self, seconds: float) -> Turn:
        self.now += seconds
        return self.do(commands.Due())

    def crash(self) -> Turn:
        """The owner is gone; a new one rebuilds the Flow from the records and learns what is lost."""
        self.flow = replay(self.records)
        self.offered.clear()
        return self.do(commands.Interrupt())

    def checkpoint(self) -> None:
        """The Flow goes on from the bytes of a checkpoint."""
        before = picture(self.flow)
        self.flow = decode_checkpoint(encode_checkpoint(self.flow))
        self.offered.clear()
        assert picture(self.flow) == before
        self.check()

    # What can be seen

    def _spec(self) -> FlowSpec:
        assert self.spec is not None
        return self.spec

    def step(self, step_id: str) -> StepState:
        return self.flow.state.steps[step_id]

    def phase(self, step_id: str) -> str:
        """The method and the phase, as in `execute ready`."""
        state = self.step(step_id)
        return f"{state.method} {state.phase}"

    @property
    def open(self) -> list[str]:
        return list(self.flow.state.steps)

    @property
    def closed(self) -> bool:
        return self.flow.is_closed

    @property
    def status(self) -> str:
        return self.flow.state.status

    @property
    def outputs(self) -> list[tuple[str, str, bytes | None]]:
        return [(done.step_type, done.step_execution_id, done.output) for done in self.flow.state.completions]

    def queue(self, channel: str) -> list[bytes]:
        return [message.value for message in self.flow.state.channels.get(channel, ())]

    def consumed(self, step_id: str) -> list[bytes]:
        return [message.value for _, message in self.step(step_id).consumed]

    def results(self, step_id: str) -> list[tuple[bool, tuple[bytes, ...]]]:
        """Of each condition of the finished wait: whether it fired, and its messages."""
        return [(condition.fired, condition.messages) for condition in self.step(step_id).conditions]

    def of(self, kind: type[Any]) -> list[Any]:
        """All events of one kind so far."""
        return [event for event in self.events if isinstance(event, kind)]
