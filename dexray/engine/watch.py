"""The owner's judgement of attempts that are out: method timeouts and heartbeat timeouts.

Both count from the moment the worker reports that the handler runs, so that queueing for resources counts toward
neither. The worker keeps the deadline too and stops by itself; the owner's judgement is for workers that can't.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from dexray.engine.clock import Clock, Handle
from dexray.protocol.attempts import (
    HEARTBEAT_TIMEOUT,
    METHOD_TIMEOUT,
    AttemptFailed,
    AttemptKey,
    AttemptTask,
    Heartbeat,
)

GRACE = 1.0  # seconds for a worker's own timeout report to arrive first


@dataclass(slots=True)
class _Watched:
    timeout: float
    heartbeat_timeout: float
    deadline: float = 0.0  # 0: not known to run yet
    silent_at: float = 0.0
    handle: Handle | None = None
    beat: Heartbeat | None = None  # the newest that is not stored yet
    beat_handle: Handle | None = None


class AttemptWatch:
    def __init__(
        self,
        clock: Clock,
        *,
        expired: Callable[[AttemptKey, AttemptFailed], None],
        store: Callable[[AttemptKey, Heartbeat], None],
        store_every: float = 0.5,
    ) -> None:
        self._clock = clock
        self._expired = expired
        self._store = store
        self._store_every = store_every
        self._watched: dict[AttemptKey, _Watched] = {}
        self._empty = asyncio.Event()
        self._empty.set()

    def __len__(self) -> int:
        return len(self._watched)

    def handed_out(self, task: AttemptTask) -> None:
        self._watched[task.key] = _Watched(task.timeout, task.heartbeat_timeout)
        self._empty.clear()

    async def emptied(self) -> None:
        """Returns when no attempt is out."""
        await self._empty.wait()

    def is_out(self, key: AttemptKey) -> bool:
        return key in self._watched

    def close(self) -> None:
        for key in list(self._watched):
            self.forget(key)

    def running(self, key: AttemptKey) -> None:
        watched = self._watched.get(key)
        if watched is None or watched.deadline:
            return
        now = self._clock.now()
        watched.deadline = now + watched.timeout + GRACE
        watched.silent_at = now + watched.heartbeat_timeout
        self._arm(key, watched)

    def heartbeat(self, key: AttemptKey, heartbeat: Heartbeat | None) -> None:
        """A sign of life. A checkpoint is stored at most every `store_every` seconds, the newest of each batch."""
        self.running(key)
        watched = self._watched.get(key)
        if watched is None:
            return
        watched.silent_at = self._clock.now() + watched.heartbeat_timeout
        if heartbeat is None:
            return
        if watched.beat_handle is None:
            self._store_now(key, watched, heartbeat)
        else:
            watched.beat = heartbeat

    def _store_newest(self, key: AttemptKey, watched: _Watched) -> None:
        watched.beat_handle = None
        if watched.beat is not None and self._watched.get(key) is watched:
            beat, watched.beat = watched.beat, None
            self._store_now(key, watched, beat)

    def _store_now(self, key: AttemptKey, watched: _Watched, beat: Heartbeat) -> None:
        self._store(key, beat)
        watched.beat_handle = self._clock.call_at(
            self._clock.now() + self._store_every, lambda: self._store_newest(key, watched)
        )

    def forget(self, key: AttemptKey) -> Heartbeat | None:
        """The attempt is over. Returns a checkpoint that was not stored yet."""
        watched = self._watched.pop(key, None)
        if watched is None:
            return None
        if not self._watched:
            self._empty.set()
        for handle in (watched.handle, watched.beat_handle):
            if handle is not None:
                handle.cancel()
        return watched.beat

    def _arm(self, key: AttemptKey, watched: _Watched) -> None:
        watched.handle = self._clock.call_at(min(watched.deadline, watched.silent_at), lambda: self._look(key, watched))

    def _look(self, key: AttemptKey, watched: _Watched) -> None:
        if self._watched.get(key) is not watched:
            return
        now = self._clock.now()
        if now >= watched.deadline:
            self._expired(
                key,
                AttemptFailed(
                    error_type=METHOD_TIMEOUT,
                    detail=f"the attempt ran longer than its method timeout of {watched.timeout:g} s",
                    kind=METHOD_TIMEOUT,
                    heartbeat=watched.beat,
                ),
            )
        elif now >= watched.silent_at:
            self._expired(
                key,
                AttemptFailed(
                    error_type=HEARTBEAT_TIMEOUT,
                    detail=f"neither a heartbeat nor a Stream message for {watched.heartbeat_timeout:g} s",
                    kind=HEARTBEAT_TIMEOUT,
                    heartbeat=watched.beat,
                ),
            )
        else:
            self._arm(key, watched)
