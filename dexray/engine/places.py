"""A bound on how many Flows of one owner may have Steps under way at the same time (`flows_per_actor`).

A Flow enters when it has something to run and leaves when it only waits, has closed, or is not this owner's any more.
Those that find no place wait in order, and nobody overtakes them.
"""

from __future__ import annotations

from collections import deque

from dexray.engine.live import LiveFlow


class Places:
    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._inside: set[LiveFlow] = set()
        self._queue: deque[LiveFlow] = deque()
        self._queued: set[LiveFlow] = set()

    @property
    def waiting(self) -> int:
        return len(self._queue)

    def is_inside(self, live: LiveFlow) -> bool:
        return live in self._inside

    def enter(self, live: LiveFlow) -> bool:
        """True when the Flow is inside, or there is no bound. Else it stands in the queue."""
        if not self._limit or live in self._inside:
            return True
        if len(self._inside) < self._limit and not self._queue:
            self._inside.add(live)
            return True
        if live not in self._queued:
            self._queued.add(live)
            self._queue.append(live)
        return False

    def leave(self, live: LiveFlow) -> list[LiveFlow]:
        """Gives the Flow's place back; returns those of the queue that are inside now instead, to be looked at."""
        self._inside.discard(live)
        entered: list[LiveFlow] = []
        while self._queue and len(self._inside) < self._limit:
            following = self._queue.popleft()
            self._queued.discard(following)
            if not following.lost and not following.problem:
                self._inside.add(following)
                entered.append(following)
        return entered
