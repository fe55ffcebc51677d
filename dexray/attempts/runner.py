"""One attempt of a handler, from its task to its result. It reads like the contents page of an attempt:

    resolve      the Flow, the Step and the method in the deployed code; code that lacks them returns the
                 attempt unrun
    decode       the input, by the type that the Step declares
    call         the handler, with a Context over the task's snapshot; frames of a generator go out as they come
    conclude     the deadline first; then check what was returned, encode it, and put big values aside

The way out is always an `AttemptResult`. Whatever user code raises, SystemExit and KeyboardInterrupt included,
is turned into data here (`failures`); so is a failure to decode, to check or to encode.

Stopping a handler is cooperative. Its deadline is judged by the reporter's clock: a synchronous handler can look at
`is_cancellation_requested()`, a generator is closed at its next frame, an asynchronous one gets
CancelledError. What a handler returns after its deadline is lost: the result is METHOD_TIMEOUT. A request to
stop reaches handlers the same way, but a handler that finishes its work all the same has its result reported,
and the owner decides what it is worth.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Generator
from types import CoroutineType, GeneratorType
from typing import Any

from msgspec.structs import replace

from dex.definitions import FlowDefinition, HandlerKind, RpcDefinition
from dex.errors import FlowDefinitionError, InvalidStepResultError, ValueMappingError
from dex.registry import Registry
from dex.step import StepOutput
from dex.wire.specs import EXECUTE, RPC, WAIT_FOR
from dexray.attempts.context import AsyncRpcContext, AsyncStepContext, RpcContext, StepContext
from dexray.attempts.failures import (
    canceled_failure,
    detail_of,
    failure_of,
    timeout_failure,
    type_name_of,
)
from dexray.attempts.reporter import Reporter
from dexray.attempts.results import checked_result
from dexray.attempts.rpcs import rpc_of
from dexray.attempts.runtime import AttemptRuntime
from dexray.protocol.attempts import AttemptFailed, AttemptResult, AttemptReturned, AttemptTask

TIMEOUT = "timeout"
"""The method of an attempt that runs `Flow.handle_timeout`."""

_SHORTEST_TIMER = 0.001


Raised = Callable[[BaseException], None]
"""Told of the exception that an attempt fails with, before it becomes data: for whoever runs in the same process."""


def run_sync(task: AttemptTask, registry: Registry, reporter: Reporter, raised: Raised | None = None) -> AttemptResult:
    """Runs one attempt on this thread and answers with its result; raises nothing.

    Meant for plain and generator handlers. An asynchronous one (code redeployed meanwhile) runs too, on an
    event loop of its own.
    """
    attempt = _prepare(task, registry, reporter, raised)
    if not isinstance(attempt, _Attempt):
        return attempt
    try:
        returned = attempt.call()
        if isinstance(returned, CoroutineType):
            return asyncio.run(_await(attempt, returned))
        if isinstance(returned, GeneratorType):
            returned = _drive(attempt, returned)
    except BaseException as error:
        return attempt.failed(error)
    return attempt.returned(returned)


async def run_async(
    task: AttemptTask, registry: Registry, reporter: Reporter, raised: Raised | None = None
) -> AttemptResult:
    """Runs one attempt in the current asyncio task and answers with its result.

    Cancelling that task, before or while it runs this, asks the handler to stop: it gets CancelledError. The
    request ends here: the answer is data all the same, and the task goes on. A handler that is not asynchronous
    runs at once, and blocks the event loop as long as it takes.
    """
    attempt = _prepare(task, registry, reporter, raised)
    if not isinstance(attempt, _Attempt):
        return attempt
    try:
        returned = attempt.call()
        if isinstance(returned, CoroutineType):
            return await _await(attempt, returned)
        if isinstance(returned, GeneratorType):
            returned = _drive(attempt, returned)
    except BaseException as error:
        return attempt.failed(error)
    else:
        return attempt.returned(returned)
    finally:
        await _absorb()


# Resolve and decode ---------------------------------------------------------------------------------------------------


class _Attempt:
    """A prepared attempt: the handler with its arguments, and what is needed to conclude it."""

    __slots__ = ("_arguments", "_method", "_raised", "context", "definition", "registry", "runtime", "task")

    def __init__(
        self,
        task: AttemptTask,
        registry: Registry,
        definition: FlowDefinition,
        runtime: AttemptRuntime,
        method: Callable[..., Any],
        kind: HandlerKind,
        arguments: tuple[Any, ...],
        raised: Raised | None,
    ) -> None:
        self.task = task
        self.registry = registry
        self.definition = definition
        self.runtime = runtime
        runtime.kind = kind
        is_async = kind is HandlerKind.ASYNC
        if task.key.method == RPC:
            self.context: StepContext = AsyncRpcContext(runtime) if is_async else RpcContext(runtime)
        else:
            self.context = AsyncStepContext(runtime) if is_async else StepContext(runtime)
        self._method = method
        self._arguments = arguments
        self._raised = raised

    def call(self) -> Any:
        return self._method(self.context, *self._arguments)

    def returned(self, returned: Any) -> AttemptResult:
        self.runtime.close()
        try:
            if self.runtime.is_past_deadline():
                return self._with_heartbeat(timeout_failure(self.task, "it returned after that"))
            return checked_result(returned, self.task, self.registry, self.definition, self.runtime)
        except BaseException as error:
            _tell(self._raised, error)
            return self._with_heartbeat(failure_of(error))

    def failed(self, error: BaseException) -> AttemptFailed:
        self.runtime.close()
        if not isinstance(error, asyncio.CancelledError | _DeadlinePassed):
            _tell(self._raised, error)
        return self._with_heartbeat(self._failure(error))

    def _failure(self, error: BaseException) -> AttemptFailed:
        if isinstance(error, _DeadlinePassed):
            return timeout_failure(self.task)
        is_cancelled = isinstance(error, asyncio.CancelledError)
        if self.runtime.is_past_deadline():
            late = "" if is_cancelled else f"after that it raised {type_name_of(error)}: {detail_of(error)}"
            return timeout_failure(self.task, late)
        if is_cancelled and self.context._is_asked_to_stop():
            return canceled_failure(self.task)
        return failure_of(error)

    def _with_heartbeat(self, failure: AttemptFailed) -> AttemptFailed:
        last = self.runtime.last_heartbeat
        return failure if last is None else replace(failure, heartbeat=last)


def _tell(raised: Raised | None, error: BaseException) -> None:
    if raised is not None:
        raised(error)


def _prepare(
    task: AttemptTask, registry: Registry, reporter: Reporter, raised: Raised | None
) -> _Attempt | AttemptResult:
    flow = registry.flows.get(task.flow_type)
    if flow is None:
        return _unknown(task, f"Flow {task.flow_type!r}")
    definition = registry.definition(task.flow_type)
    runtime = AttemptRuntime(task, definition, registry.codec_registry, reporter)
    if task.key.method == TIMEOUT:
        if definition.timeout_handler is None:
            return _unknown(task, f"handle_timeout in Flow {task.flow_type!r}")
        return _Attempt(
            task,
            registry,
            definition,
            runtime,
            flow.handle_timeout,
            definition.timeout_handler,
            (),
            raised,
        )
    if task.key.method == RPC:
        rpc = rpc_of(task, definition)
        if rpc is None:
            return _unknown(task, f"RPC {task.step_type!r} in Flow {task.flow_type!r}")
        return _prepare_rpc(task, registry, definition, runtime, rpc, raised)
    step = definition.steps.get(task.step_type)
    if step is None:
        return _unknown(task, f"Step {task.step_type!r} in Flow {task.flow_type!r}")
    method: Callable[..., Any]
    if task.key.method == EXECUTE:
        method, kind = step.step.execute, step.execute
    elif task.key.method == WAIT_FOR and step.wait_for is not None:
        method, kind = step.step.wait_for, step.wait_for
    else:
        return _unknown(task, f"{task.key.method} in Step {task.step_type!r} of Flow {task.flow_type!r}")
    try:
        value = runtime.decode(task.input, step.input_type, f"input of Step {task.step_type!r}")
    except BaseException as error:  # a codec of the user's may raise anything
        _tell(raised, error)
        return failure_of(error)
    return _Attempt(task, registry, definition, runtime, method, kind, (value,), raised)


def _prepare_rpc(
    task: AttemptTask,
    registry: Registry,
    definition: FlowDefinition,
    runtime: AttemptRuntime,
    rpc: RpcDefinition,
    raised: Raised | None,
) -> _Attempt | AttemptResult:
    where = f"input of RPC {rpc.name!r}"
    try:
        if rpc.has_input != bool(task.input):
            expected, got = ("an input", "none") if rpc.has_input else ("no input", "one")
            raise FlowDefinitionError(
                f"{where}: the handler that is deployed for Flow {task.flow_type!r} takes {expected}, the call has "
                f"{got}: call it with the code that is deployed, or deploy this code"
            )
        arguments = (runtime.decode(task.input, rpc.input_type, where),) if rpc.has_input else ()
    except BaseException as error:  # a codec of the user's may raise anything
        _tell(raised, error)
        return failure_of(error)
    method = getattr(definition.flow, rpc.method_name)
    return _Attempt(task, registry, definition, runtime, method, rpc.kind, arguments, raised)


def _unknown(task: AttemptTask, what: str) -> AttemptReturned:
    return AttemptReturned(reason=f"the deployed code has no {what} (deployment {task.deployment_id})")


# Call -----------------------------------------------------------------------------------------------------------------


class _DeadlinePassed(Exception):
    """A generator was closed at its frame, because the deadline had passed."""


def _drive(attempt: _Attempt, frames: Generator[Any, Any, Any]) -> Any:
    """Sends the frames of a generator handler as they come; returns what it returns."""
    try:
        frame = next(frames)
        while True:
            refusal = _send(attempt, frame, frames)
            if refusal is None and attempt.runtime.is_past_deadline():
                _close(frames)
                raise _DeadlinePassed
            frame = next(frames) if refusal is None else frames.throw(refusal)
    except StopIteration as stop:
        return stop.value


def _send(attempt: _Attempt, frame: object, frames: Generator[Any, Any, Any]) -> ValueMappingError | None:
    """A value that can't be encoded is refused where the handler yielded it; anything but a frame ends the attempt."""
    if not isinstance(frame, StepOutput):
        _close(frames)
        key = attempt.task.key
        raise InvalidStepResultError(
            attempt.task.flow_type,
            attempt.task.step_type,
            key.method,
            f"it yielded {type(frame).__name__}; a generator yields heartbeat(...) or what Stream.write returns",
        )
    try:
        if frame.stream is not None:
            attempt.runtime.send_stream(frame.stream, frame.value)
        else:
            attempt.runtime.heartbeat(frame.has_value, frame.value)
    except ValueMappingError as error:
        return error
    return None


def _close(frames: Generator[Any, Any, Any]) -> None:
    with contextlib.suppress(BaseException):  # its clean-up is user code, and its outcome is decided
        frames.close()


async def _await(attempt: _Attempt, handler: Awaitable[Any]) -> AttemptResult:
    current = asyncio.current_task()
    assert current is not None
    attempt.context._run_by(current)
    deadline = _Deadline(attempt.runtime, current)
    try:
        returned = await handler
    except BaseException as error:
        return attempt.failed(error)
    else:
        return attempt.returned(returned)
    finally:
        deadline.disarm()
        await _absorb()


async def _absorb() -> None:
    """Takes back the requests to stop that were meant for the handler, delivered to it or not."""
    current = asyncio.current_task()
    assert current is not None
    while current.cancelling():
        while current.cancelling():
            current.uncancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(0)


class _Deadline:
    """Cancels the task when the attempt's deadline passes on the reporter's clock, once."""

    __slots__ = ("_handler", "_loop", "_runtime", "_timer")

    def __init__(self, runtime: AttemptRuntime, handler: asyncio.Task[Any]) -> None:
        self._runtime = runtime
        self._handler = handler
        self._loop = asyncio.get_running_loop()
        self._timer = self._loop.call_later(runtime.task.timeout, self._look)

    def _look(self) -> None:
        left = self._runtime.deadline - self._runtime.reporter.now()
        if left > 0:
            self._timer = self._loop.call_later(max(left, _SHORTEST_TIMER), self._look)
        elif self._runtime.reporter.interrupts():
            self._handler.cancel()

    def disarm(self) -> None:
        self._timer.cancel()
