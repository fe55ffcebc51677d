"""The Context that a handler is given: what it may know of its attempt, over the runtime behind it."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any, TypeVar

from dex.context import UNSET, AsyncContext, AttemptProgress, Context, RecoveryErrorInfo
from dexray.attempts.runtime import AttemptRuntime

T = TypeVar("T")


class StepContext(Context):
    """The Context of a synchronous handler; `_runtime` is what Channels and Attributes look for."""

    __slots__ = ("_handler", "_runtime")

    def __init__(self, runtime: AttemptRuntime) -> None:
        self._runtime = runtime
        self._handler: asyncio.Task[Any] | None = None

    @property
    def flow_id(self) -> str:
        return self._runtime.task.key.flow_id

    @property
    def run_id(self) -> str:
        return self._runtime.task.key.run_id

    @property
    def step_execution_id(self) -> str:
        return self._runtime.task.key.step_execution_id

    @property
    def from_step_execution_id(self) -> str:
        return self._runtime.task.from_step_execution_id

    @property
    def attempt(self) -> int:
        return self._runtime.task.key.attempt

    @property
    def first_attempt_at(self) -> datetime:
        return datetime.fromtimestamp(int(self._runtime.task.first_attempt_at), UTC)

    @property
    def recovery_error(self) -> RecoveryErrorInfo | None:
        error = self._runtime.task.recovery_error
        if error is None:
            return None
        return RecoveryErrorInfo(
            detail=error.detail,
            error_type=error.error_type,
            attempt_progress=AttemptProgress[error.attempt_progress],
        )

    def has_last_heartbeat_value(self) -> bool:
        return self._runtime.task.has_heartbeat

    def get_last_heartbeat_value(self, value_type: type[T], /) -> T | None:
        value: T | None = self._runtime.last_heartbeat_value(value_type)
        return value

    def has_timer_fired(self, index: int | None = None) -> bool:
        return self._runtime.has_timer_fired(index)

    def wait_for_method_failed(self) -> bool:
        return self._runtime.task.wait_for_failed

    def is_cancellation_requested(self) -> bool:
        return self._is_asked_to_stop() or self._runtime.is_past_deadline()

    def set_step_execution_local(self, key: str, value: Any) -> None:
        self._runtime.set_local(key, value)

    def get_step_execution_local(self, key: str, value_type: type[T], /) -> T | None:
        value: T | None = self._runtime.get_local(key, value_type)
        return value

    def record_event(self, name: str, value: Any) -> None:
        self._runtime.record_event(name, value)

    def _run_by(self, handler: asyncio.Task[Any]) -> None:
        """Names the asyncio task that runs the handler: cancelling it is a request to stop."""
        self._handler = handler

    def _is_asked_to_stop(self) -> bool:
        return (self._handler is not None and self._handler.cancelling() > 0) or self._runtime.reporter.is_canceled()


class RpcContext(StepContext):
    """The Context of an RPC handler: one attempt, and no Step around it. What needs a Step is a ValueError."""

    __slots__ = ()

    @property
    def step_execution_id(self) -> str:
        """The marker of the RPC, `__rpc/<name>`."""
        return self._runtime.task.step_type

    def has_timer_fired(self, index: int | None = None) -> bool:
        raise self._needs_a_step("has_timer_fired")

    def set_step_execution_local(self, key: str, value: Any) -> None:
        raise self._needs_a_step("set_step_execution_local")

    def get_step_execution_local(self, key: str, value_type: type[T], /) -> T | None:
        raise self._needs_a_step("get_step_execution_local")

    def _needs_a_step(self, what: str) -> ValueError:
        return ValueError(
            f"{what} belongs to a Step, and this is {self._runtime.name}: an RPC has no wait, no locals and no "
            "heartbeats. Keep values in Attributes, or start a Step with RPCResult(..., next_steps=...)"
        )


class AsyncStepContext(StepContext, AsyncContext):
    """The Context of an asynchronous handler."""

    __slots__ = ()

    async def heartbeat(self, value: Any = UNSET) -> None:
        """Sends a checkpoint and lets other handlers run. Without a value it clears the stored one; None is one."""
        self._runtime.heartbeat(value is not UNSET, None if value is UNSET else value)
        await asyncio.sleep(0)


class AsyncRpcContext(RpcContext, AsyncContext):
    """The Context of an asynchronous RPC handler."""

    __slots__ = ()

    async def heartbeat(self, value: Any = UNSET) -> None:
        raise self._needs_a_step("heartbeat")
