"""When to look at Flows again without being told: one heap and one timer for all of them."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush

from dexray.engine.clock import Clock, Handle
from dexray.journal.interface import NEVER


class Alarm:
    """`due(flow_id)` is called when a time that was set for the Flow has come; it may be called once too often, never
    too late."""

    def __init__(self, clock: Clock, due: Callable[[str], None]) -> None:
        self._clock = clock
        self._due = due
        self._times: list[tuple[float, str]] = []
        self._handle: Handle | None = None
        self._set_for = NEVER

    def set(self, when: float, flow_id: str) -> None:
        heappush(self._times, (when, flow_id))
        if when < self._set_for:
            self._arm(when)

    def close(self) -> None:
        self._times.clear()
        if self._handle is not None:
            self._handle.cancel()

    def _arm(self, when: float) -> None:
        if self._handle is not None:
            self._handle.cancel()
        self._set_for = when
        self._handle = self._clock.call_at(when, self._ring)

    def _ring(self) -> None:
        self._handle = None
        self._set_for = NEVER
        now = self._clock.now()
        looked: set[str] = set()
        while self._times and self._times[0][0] <= now:
            _, flow_id = heappop(self._times)
            if flow_id not in looked:
                looked.add(flow_id)
                self._due(flow_id)
        if self._times and self._times[0][0] < self._set_for:
            self._arm(self._times[0][0])
