"""What can go wrong on a real cluster, on request: a worker process that dies, a database that is away.

`FaultyJournal` stands before a journal like a wire that can be cut: before a call, so that nothing of it happens, or
after it, when the work is done and nobody hears of it. `WorkerDeaths` watches attempts, and lets some of them end as if
their process had been killed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from dexray.journal.interface import Append, JournalUnavailable
from dexray.protocol.attempts import WORKER_CRASHED, AttemptFailed, AttemptResult, AttemptTask

BEFORE, AFTER = "before", "after"


class FaultyJournal:
    """A `Journal`. `down` cuts every call off before its work; `fail` cuts single calls off; `out_for` makes an outage.

    now: seconds on the clock by which outages are measured.
    """

    def __init__(self, inner: Any, now: Callable[[], float]) -> None:
        self.inner = inner
        self.down = False
        self.down_until = 0.0
        self.calls: Counter[str] = Counter()
        self.faults = 0
        self.met: Callable[[str], None] = lambda operation: None
        """Told of each fault of `fail` when it has happened."""
        self._now = now
        self._next: dict[str, list[str]] = {}

    def fail(self, operation: str, *when: str) -> None:
        """The next calls of one operation: each BEFORE or AFTER its work, or "" for none."""
        self._next.setdefault(operation, []).extend(when)

    def out_for(self, seconds: float) -> None:
        """An outage, from now on."""
        self.down_until = self._now() + seconds

    def calm(self) -> None:
        """No more faults."""
        self.down, self.down_until = False, 0.0
        self._next.clear()

    def append(self, batch: Sequence[Append]) -> Any:
        return self._call("append", batch)

    def __getattr__(self, operation: str) -> Any:
        def call(*args: Any, **named: Any) -> Any:
            return self._call(operation, *args, **named)

        return call

    def _call(self, operation: str, *args: Any, **named: Any) -> Any:
        self.calls[operation] += 1
        fault = self._fault(operation)
        if fault == BEFORE:
            raise self._cut(operation)
        answer = getattr(self.inner, operation)(*args, **named)
        if fault == AFTER:
            raise self._cut(operation)
        return answer

    def _fault(self, operation: str) -> str:
        if self.down or (self.down_until and self._now() < self.down_until):
            return BEFORE
        waiting = self._next.get(operation)
        fault = waiting.pop(0) if waiting else ""
        if fault:
            self.met(operation)
        return fault

    def _cut(self, operation: str) -> JournalUnavailable:
        self.faults += 1
        return JournalUnavailable(f"the wire was cut ({operation})")


@dataclass(slots=True, eq=False)
class WorkerDeath:
    """A worker that is to die on an attempt: the `left`-th one of the Step's method from now on."""

    step_type: str
    method: str
    when: str
    flow_id: str
    left: int
    seen: int = 0

    def __str__(self) -> str:
        where = f" of Flow {self.flow_id!r}" if self.flow_id else ""
        return (
            f"kill_worker_on_attempt({self.step_type!r}, {self.left + self.seen}, method={self.method!r}){where}: "
            f"there were {self.seen} such attempts"
        )

    def meets(self, task: AttemptTask, when: str) -> bool:
        return (
            self.when == when
            and self.step_type == task.step_type
            and self.method == task.key.method
            and self.flow_id in ("", task.key.flow_id)
        )


class WorkerDeaths:
    """Those that are still to come."""

    def __init__(self) -> None:
        self.to_come: list[WorkerDeath] = []

    def begins(self, task: AttemptTask) -> AttemptFailed | None:
        return self._killed(task, BEFORE)

    def ended(self, task: AttemptTask, result: AttemptResult) -> AttemptResult:
        return self._killed(task, AFTER) or result

    def _killed(self, task: AttemptTask, when: str) -> AttemptFailed | None:
        killed = None
        for death in list(self.to_come):
            if death.meets(task, when):
                death.seen += 1
                death.left -= 1
                if death.left == 0:
                    self.to_come.remove(death)
                    killed = AttemptFailed(
                        error_type="WorkerCrashedError",
                        detail=f"the worker process was killed {when} the handler ran, as FlowTest was asked to do",
                        kind=WORKER_CRASHED,
                    )
        return killed
