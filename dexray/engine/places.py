"""A bound on how many Flows of one owner may have Steps under way at the same time (`flows_per_actor`).

A Flow enters when it has something to run and leaves when it only waits, or has closed. Those that find no place wait in order.
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

    def enter(self, live: LiveFlow) -> bool:
        """True when the Flow is inside, or there is no bound. Else it stands in the queue."""
        if not self._limit or live in self._inside:
            return True
        if len(self._inside) < self._limit and (not self._queue or live in self._queued):
            self._inside.add(live)
            return True
        if live not in self._queued:
            self._queued.add(live)
            self._queue.append(live)
        return False

    def leave_if_done(self, live: LiveFlow) -> LiveFlow | None:
        """Gives the place back when the Flow has nothing under way; returns the next one in the queue, to be looked at."""
        if not self._limit:
            return None
        if live in self._inside and (live.lost or live.problem or not live.is_active):
            self._inside.discard(live)
        if self._queue and len(self._inside) < self._limit:
            following = self._queue.popleft()
            if following.lost or following.problem:
                self._queued.discard(following)
                return self.leave_if_done(live)
            # It stays known as queued until it has entered, so that nobody overtakes it.
            self._inside.add(following)
            self._queued.discard(following)
            return following
        return None
