"""The life of a Step execution: the one place that moves it from phase to phase.

    phase      what happens                       next phase
    --------   --------------------------------   ----------------------------------------------------------------
    (none)     a movement, the start, a route     ready: of wait_for if the Step has one, else of execute
    ready      handed out                         running
    running    wait_for succeeded                 waiting; or ready for execute at once when nothing is to be waited for
    running    execute succeeded                  (gone) after its decision is applied
    running    failed, attempts left              backoff, then running again as the next attempt
    running    wait_for failed for good           ready for execute (PROCEED), or the Flow fails
    running    execute failed for good            (gone) and its recovery Step ready, or the Flow fails
    running    certainly did not run              backoff, then running again as the same attempt
    waiting    conditions met                     ready for execute
    any        cancelled, or the Flow closed      (gone); messages that it consumed go back when it was cancelled

The timeout handler of a Flow is a Step execution too, of the type `sys:timeout_handler` with the one method `timeout`.
"""

from __future__ import annotations

from dex.wire.specs import ASYNC, EXECUTE, WAIT_FOR, FailureRoute, LoadSpec, MethodSpec, RetrySpec, StepSpec
from dexray.machine import closing, conditions
from dexray.machine.events import (
    AttemptFailed,
    AttemptReturned,
    AttemptStarted,
    AttributesWritten,
    EventRecorded,
    Failure,
    HeartbeatStored,
    MessageDeleted,
    MessagePublished,
    StepCancelled,
    StepCompleted,
    StepFailed,
    StepScheduled,
    WaitForAbandoned,
)
from dexray.machine.locks import is_free
from dexray.machine.retries import backoff, next_attempt_at
from dexray.machine.state import BACKOFF, READY, RUNNING, TIMEOUT, TIMEOUT_HANDLER, StepState, set_back
from dexray.machine.turn import Turn, UnknownStep, method_of, running_step
from dexray.protocol.attempts import (
    INVALID_RESULT,
    NOT_COMPLETED,
    NOT_STARTED,
    AttemptKey,
    DecisionSpec,
    ExecuteSucceeded,
    Heartbeat,
    MovementSpec,
    RecoveryError,
    WaitForSucceeded,
    Writes,
    interrupted,
)
from dexray.protocol.attempts import AttemptFailed as FailedResult
from dexray.protocol.attempts import AttemptReturned as ReturnedResult

_NO_LOAD = LoadSpec()


def schedule(
    turn: Turn,
    step_type: str,
    payload: bytes,
    *,
    from_step: str,
    override: StepSpec | None = None,
    recovery: RecoveryError | None = None,
) -> None:
    spec = override if override is not None else turn.deployed_step(step_type)
    first = spec.wait_for if spec.wait_for is not None else spec.execute
    number = turn.state.counters.get(step_type, 0) + 1
    turn.emit(
        StepScheduled(
            f"{step_type}-{number}",
            step_type,
            number,
            from_step,
            payload,
            WAIT_FOR if spec.wait_for is not None else EXECUTE,
            turn.durability(first),
            override,
            recovery,
        )
    )


def schedule_timeout_handler(turn: Turn) -> None:
    handler = turn.state.timeout_handler
    turn.emit(
        StepScheduled(
            f"{TIMEOUT_HANDLER}-1",
            TIMEOUT_HANDLER,
            1,
            "",
            b"\xc0",
            TIMEOUT,
            turn.durability(handler.method if handler is not None else None),
        )
    )


def hand_out(turn: Turn, step_id: str, deployment: str) -> bool:
    """Records the start of the pending attempt. False when there is nothing to start: it is not pending or not due, a
    lock is taken, or no attempt is left."""
    step = turn.state.steps.get(step_id)
    if step is None or step.phase not in (READY, BACKOFF):
        turn.flow.index.ready.pop(step_id, None)
        return False
    if step.phase == BACKOFF and step.retry_at > turn.now:
        set_back(turn.flow, step)
        return False
    spec = None if step.method == TIMEOUT else turn.step_spec(step)
    method = method_of(turn.state, step, spec)
    if _has_no_attempt_left(step, method):
        assert step.last_failure is not None
        _exhausted(turn, step, spec, step.last_failure)
        return False
    # An attempt that returned has its locks still, whatever locks code deployed meanwhile asks for.
    locks = step.locks or method.locks
    if locks and not step.locks and not is_free(turn.flow, locks):
        turn.flow.index.ready.pop(step_id, None)
        turn.flow.index.blocked[step_id] = None
        return False
    load = method.load if method.load != _NO_LOAD else None
    turn.emit(AttemptStarted(step.id, step.method, step.attempt, deployment, locks, load, method.detached))
    return True


def _has_no_attempt_left(step: StepState, method: MethodSpec) -> bool:
    """An attempt that failed while its code was not deployed could not be held against its policy then: now it can."""
    return bool(
        method.retry.attempts
        and step.attempt > method.retry.attempts
        and step.last_failure is not None
        and not step.returned_because
    )


def running(turn: Turn, key: AttemptKey) -> StepState | None:
    """The Step whose running attempt this is; None when the key is not current: the result is late."""
    return running_step(turn.state, key)


def store_heartbeat(turn: Turn, key: AttemptKey, heartbeat: Heartbeat) -> None:
    step = running(turn, key)
    if step is not None and (step.has_heartbeat, step.heartbeat) != (heartbeat.has_value, heartbeat.value):
        turn.emit(HeartbeatStored(step.id, heartbeat.has_value, heartbeat.value))


def wait_for_succeeded(turn: Turn, step: StepState, result: WaitForSucceeded) -> None:
    conditions.begin(turn, step, result.wait, result.writes.locals)
    apply_writes(turn, step.id, result.writes)
    conditions.evaluate_waiters(turn)  # who waited before takes first
    conditions.evaluate(turn, step)


def execute_succeeded(turn: Turn, step: StepState, result: ExecuteSucceeded) -> None:
    """Order of one commit: the Step itself ends, Attribute writes, deletions, publications, cancellations, then what
    follows."""
    decision = result.decision
    unknown = _unknown_target(turn, decision)
    if unknown is not None:
        attempt_failed(turn, step, unknown)
        return
    source, from_step = step.id, step.from_step
    turn.emit(StepCompleted(step.id, decision.kind, decision.output))
    apply_writes(turn, source, result.writes)
    cancel_selected(turn, decision.canceling, by=source, siblings=decision.canceling_siblings, siblings_of=from_step)
    if decision.kind == "next":
        move(turn, decision.movements, from_step=source)
    else:
        closing.apply(turn, decision, step.step_type, source)


def _unknown_target(turn: Turn, decision: DecisionSpec) -> FailedResult | None:
    movements = (*decision.movements, *((decision.fallback,) if decision.fallback is not None else ()))
    for movement in movements:
        try:
            turn.deployed_step(movement.step_type)
        except UnknownStep as error:
            return FailedResult(error_type="dex.FlowDefinitionError", detail=str(error), kind=INVALID_RESULT)
    return None


def move(turn: Turn, movements: tuple[MovementSpec, ...], *, from_step: str) -> None:
    for movement in movements:
        schedule(turn, movement.step_type, movement.input, from_step=from_step, override=movement.override)


def apply_writes(turn: Turn, by: str, writes: Writes) -> None:
    if writes.attributes:
        turn.emit(AttributesWritten(writes.attributes, by))
    for channel, message_id in writes.deletions:
        if any(message.id == message_id for message in turn.state.channels.get(channel, ())):
            turn.emit(MessageDeleted(channel, message_id, by))
    for channel, message_id, value in writes.publications:
        turn.emit(MessagePublished(channel, message_id, value, by))
        turn.dirty[channel] = None
    for name, value in writes.events:
        turn.emit(EventRecorded(by, name, value))


def cancel_selected(
    turn: Turn, types: tuple[str, ...], *, by: str, siblings: tuple[str, ...] = (), siblings_of: str = ""
) -> None:
    """The set is decided here, in one look: Steps that this decision starts are not in it, the deciding Step is gone
    already."""
    if not types and not siblings:
        return
    chosen = [
        step.id
        for step in turn.state.steps.values()
        if step.step_type in types or (step.step_type in siblings and step.from_step == siblings_of)
    ]
    for step_id in chosen:
        cancel(turn, step_id, by=by)


def cancel(turn: Turn, step_id: str, *, by: str) -> None:
    returned: dict[str, int] = {}
    for channel, _ in turn.state.steps[step_id].consumed:
        returned[channel] = returned.get(channel, 0) + 1
    turn.emit(StepCancelled(step_id, by, returned))


def attempt_failed(turn: Turn, step: StepState, result: FailedResult) -> None:
    """Retry, or let the failure policy decide."""
    if result.heartbeat is not None:
        heartbeat = result.heartbeat
        if (step.has_heartbeat, step.heartbeat) != (heartbeat.has_value, heartbeat.value):
            turn.emit(HeartbeatStored(step.id, heartbeat.has_value, heartbeat.value))
    failure = Failure(
        result.error_type,
        result.detail,
        result.kind,
        step.attempt,
        turn.now,
        result.trace,
        result.worker,
        result.may_have_run,
    )
    spec = turn.known_spec(step)
    retry_at: float | None = None
    if spec is None and step.method != TIMEOUT:
        # The Step is not deployed now, so its policy and its route are not known: it waits for its code, and does not
        # fail.
        retry_at = turn.now + backoff(RetrySpec(), step.attempt)
    elif result.retryable:
        retry_at = next_attempt_at(
            method_of(turn.state, step, spec).retry,
            attempt=step.attempt,
            first_started_at=step.first_started_at,
            now=turn.now,
            retry_after=result.retry_after,
        )
    turn.emit(AttemptFailed(step.id, step.method, failure, retry_at))
    if retry_at is None:
        _exhausted(turn, step, spec, failure)


def _exhausted(turn: Turn, step: StepState, spec: StepSpec | None, failure: Failure) -> None:
    recovery = RecoveryError(failure.error_type, failure.detail, _progress(step))
    if step.method == WAIT_FOR:
        assert spec is not None
        if spec.proceed_on_wait_failure:
            turn.emit(WaitForAbandoned(step.id, recovery, turn.durability(spec.execute)))
            return
        route, payload = None, b""
    elif step.method == EXECUTE:
        assert spec is not None
        route, payload = spec.failure_route, step.input
    else:
        handler = turn.state.timeout_handler
        route, payload = (handler.failure_route if handler is not None else None), b"\xc0"
    from_step = step.id
    turn.emit(StepFailed(step.id, step.method, failure, route.step_type if route is not None else ""))
    if route is None:
        closing.fail_for_step(turn, from_step, failure)
    else:
        _take_route(turn, route, payload, from_step, recovery)


def _progress(step: StepState) -> str:
    """The furthest that an attempt of this method call came. Under ASYNC one that was rolled back may have run, too."""
    return NOT_COMPLETED if step.may_have_run or step.durability == ASYNC else NOT_STARTED


def _take_route(turn: Turn, route: FailureRoute, payload: bytes, from_step: str, recovery: RecoveryError) -> None:
    schedule(turn, route.step_type, payload, from_step=from_step, override=route.override, recovery=recovery)


def attempt_returned(turn: Turn, step: StepState, result: ReturnedResult, again_at: float) -> None:
    reason = result.reason or "it did not run"
    turn.emit(AttemptReturned(step.id, step.method, step.attempt, reason, again_at))


def misplaced(step: StepState, result: WaitForSucceeded | ExecuteSucceeded) -> FailedResult:
    """A Wait where a decision was due, or the other way round."""
    return FailedResult(
        error_type="dex.errors.InvalidStepResultError",
        detail=f"{step.method} of {step.id} was answered with {type(result).__name__}",
        kind=INVALID_RESULT,
    )


def interrupt(turn: Turn, but: frozenset[str]) -> None:
    """What was handed out before this owner came has failed: nobody will hear of it any more, `but` of these Steps."""
    for step in [step for step in turn.state.steps.values() if step.phase == RUNNING and step.id not in but]:
        if turn.flow.is_closed:
            return
        attempt_failed(
            turn,
            step,
            interrupted("the owner of this Flow ended while the attempt was out; whether it ran to its end is unknown"),
        )
