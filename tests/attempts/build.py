"""Tasks made by hand, and a reporter that remembers what it was told."""

from __future__ import annotations

from typing import Any

from dex.registry import Registry
from dex.values import CodecRegistry
from dexray.attempts.runner import run_sync
from dexray.protocol.attempts import (
    AttemptFailed,
    AttemptKey,
    AttemptTask,
    ExecuteSucceeded,
    Heartbeat,
    WaitForSucceeded,
)
from dexray.protocol.streams import StreamWrite

CODECS = CodecRegistry()
STARTED_AT = 1_000_000.0


def payload(value: Any) -> bytes:
    return CODECS.encode_dynamic(value, where="test")


def value_of(data: bytes | None, value_type: Any = object) -> Any:
    assert data is not None
    return CODECS.decode(data, value_type, where="test")


class RecordingReporter:
    """Remembers heartbeats; its clock and its cancellation are the test's."""

    def __init__(self, now: float = STARTED_AT) -> None:
        self.heartbeats: list[Heartbeat | None] = []
        self.streams: list[StreamWrite] = []
        self.canceled = False
        self.time = now

    def heartbeat(self, heartbeat: Heartbeat | None) -> None:
        self.heartbeats.append(heartbeat)

    def stream(self, message: StreamWrite) -> None:
        self.streams.append(message)

    def interrupts(self) -> bool:
        return True

    def is_canceled(self) -> bool:
        return self.canceled

    def now(self) -> float:
        return self.time


def task_for(
    flow_type: str,
    step_type: str,
    value: Any = None,
    *,
    method: str = "execute",
    attempt: int = 1,
    timeout: float = 60.0,
    raw_input: bytes | None = None,
    **fields: Any,
) -> AttemptTask:
    """A task of attempt `attempt` of `<step_type>-1`, with anything else in `fields`."""
    given: dict[str, Any] = {
        "deployment_id": "deployment",
        "from_step_execution_id": "__start__",
        "heartbeat_timeout": 60.0,
        "first_attempt_at": STARTED_AT,
    } | fields
    return AttemptTask(
        key=AttemptKey("flow", "run", f"{step_type}-1", method, attempt),
        flow_type=flow_type,
        step_type=step_type,
        input=payload(value) if raw_input is None else raw_input,
        timeout=timeout,
        **given,
    )


def run(registry: Registry, task: AttemptTask, reporter: RecordingReporter | None = None) -> Any:
    return run_sync(task, registry, reporter or RecordingReporter())


def executed(registry: Registry, task: AttemptTask, reporter: RecordingReporter | None = None) -> ExecuteSucceeded:
    result = run(registry, task, reporter)
    assert isinstance(result, ExecuteSucceeded), result
    return result


def waited(registry: Registry, task: AttemptTask, reporter: RecordingReporter | None = None) -> WaitForSucceeded:
    result = run(registry, task, reporter)
    assert isinstance(result, WaitForSucceeded), result
    return result


def failed(registry: Registry, task: AttemptTask, reporter: RecordingReporter | None = None) -> AttemptFailed:
    result = run(registry, task, reporter)
    assert isinstance(result, AttemptFailed), result
    return result
