"""One lot in a worker process: which attempt is next, what came of the others, what the owner must hear.

The attempts of a lot run one after another in the main thread. A second thread, the watchdog, looks every few
milliseconds and

- tells the owner of an attempt that runs longer than a moment, with a question that is answered when it is
  canceled;
- sends heartbeats, the newest of each attempt, at most every 200 ms, and Stream messages (`outbox`);
- when one attempt or the whole lot takes longer than a pack should, sends the results there are and gives the
  rest back unstarted.

- ends the whole process when an attempt that may be killed does not stop so long after it was canceled.

Nothing is lost by a message that goes astray: the answer of the Ray task holds all results again, and the
question is repeated. A handler in native code that never lets go of the GIL silences the watchdog. So
attempts that are not known to be short announce themselves before they run, and the owner waits for their
timeout.

An announced lot never ends before the owner has heard that it began. The owner may therefore take a lot out
of Ray's queue with `ray.cancel` as long as it has not heard of it; see `attempt_messages` for the race that
this avoids.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from typing import Protocol

from msgspec.structs import replace

from dexray.cluster.attempt_messages import Answer, Beat, Finished, Handed, Lot, LotResult, Question, Report
from dexray.cluster.outbox import MessageOutbox
from dexray.protocol.attempts import AttemptResult, AttemptReturned, Heartbeat
from dexray.protocol.streams import StreamWrite

MOMENT = 0.05
"""Seconds after which an attempt counts as running, and in which a pack should make progress."""

PACK_SECONDS = 0.1
BEAT_SECONDS = 0.2
WAIT_SECONDS = 30.0
ASK_AGAIN_SECONDS = 1.0
LOOK_SECONDS = 0.025
ACKNOWLEDGE_SECONDS = 5.0
STALE_SECONDS = 0.25
"""A lot that waited longer in a queue asks what was canceled meanwhile, before it runs anything."""

GIVEN_BACK = "another attempt took longer than expected"
DROPPED = "canceled before it began"


class Asked(Protocol):
    def wait(self, timeout: float) -> None:
        """Returns when the question was answered or can't be, or after `timeout` seconds."""


class OwnerLink(Protocol):
    """The way to the owner of a lot. Both methods return at once and raise nothing."""

    def report(self, report: Report) -> None: ...

    def ask(self, question: Question, answered: Callable[[Answer | None], None]) -> Asked:
        """`answered` is called on any thread, with None when the owner can't be reached."""
        ...


def _kill_this_process() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class LotRun:
    """The state of one lot. `look` is for the watchdog, `is_canceled` for all, the rest for the handlers' thread."""

    def __init__(
        self,
        lot: Lot,
        link: OwnerLink,
        worker: str,
        node: str,
        clock: Callable[[], float] = time.monotonic,
        kill: Callable[[], None] = _kill_this_process,
    ) -> None:
        self._lot = lot
        self._link = link
        self._worker = worker
        self._node = node
        self._clock = clock
        self._kill = kill
        self._kill_at: float | None = None  # of the current attempt
        self._lock = threading.Lock()
        self._next = 0
        self._end = len(lot.handed)  # attempts from here on were given back
        self._begun_at = clock()
        self._current: int | None = None
        self._current_since = 0.0
        self._asking: int | None = None
        self._ask_after = 0.0
        self._canceled: frozenset[int] = frozenset()
        self._finished: list[Finished] = []
        self._sent = 0  # of the finished ones
        self._beats: dict[int, Heartbeat | None] = {}
        self._checkpoint: Heartbeat | None = None  # the last one, for the next owner
        self._beat_after = 0.0
        self._announced: Asked | None = None
        self._outbox = MessageOutbox(self._send_messages, clock)
        self.on_cancel: Callable[[], None] | None = None

    # The thread of the handlers ---------------------------------------------------------------------------------------

    def begin(self, queued: float, is_known: bool = False) -> None:
        """Announces the lot where that is due. `queued`: seconds since it was sent, as far as clocks agree.
        `is_known`: the owner hears by a lane that it begins."""
        is_stale = queued >= STALE_SECONDS
        if is_stale or (self._lot.announce and not is_known):
            self._ask_at_begin()
        if is_stale and self._announced is not None:
            self._announced.wait(ACKNOWLEDGE_SECONDS)
            self._begun_at = self._clock()

    def announce(self) -> None:
        """The owner may not have heard that an announced lot began. Returns when it has."""
        if self._lot.announce:
            self._ask_at_begin().wait(ACKNOWLEDGE_SECONDS)

    def _ask_at_begin(self) -> Asked:
        tokens = tuple(handed.token for handed in self._lot.handed)
        begun = tokens if self._lot.announce else ()
        question = Question(self._lot.life, self._worker, self._node, begun=begun, about=tokens)
        self._announced = self._link.ask(question, self._answered)
        return self._announced

    def next(self) -> Handed | None:
        """The attempt to run now; None when there is none left."""
        with self._lock:
            while self._next < self._end:
                if self._next and self._is_late(self._clock()):
                    self._give_back()
                    return None
                handed = self._lot.handed[self._next]
                self._next += 1
                if handed.token in self._canceled:
                    self._finished.append(Finished(handed.token, AttemptReturned(reason=DROPPED)))
                    continue
                self._current, self._current_since, self._kill_at = handed.token, self._clock(), None
                return handed
            return None

    def done(self, result: AttemptResult, declined: bool = False) -> None:
        """The current attempt has ended."""
        self._outbox.flush()  # what it wrote is on its way before its result
        with self._lock:
            if self._current is None:
                return
            seconds = None if declined else self._clock() - self._current_since
            self._finished.append(Finished(self._current, result, seconds, declined))
            self._beats.pop(self._current, None)
            self._current = None
            if seconds is not None and seconds > MOMENT:
                self._give_back()

    def attach(self, life: int, token: int, link: OwnerLink) -> None:
        """The one attempt of this lot has another owner now, which knows it as `token`. It hears of the attempt, and
        what the last checkpoint was."""
        with self._lock:
            self._lot = replace(self._lot, life=life, handed=(replace(self._lot.handed[0], token=token),))
            self._link = link
            self._canceled, self._asking, self._ask_after, self._sent = frozenset(), None, 0.0, 0
            self._finished = [replace(finished, token=token) for finished in self._finished]
            if self._current is not None:
                self._current = token
                self._beats = {} if self._checkpoint is None else {token: self._checkpoint}

    def owner(self) -> tuple[int, OwnerLink, int]:
        """The owner of a lot of one attempt: its life, the way to it, and its token."""
        with self._lock:
            return self._lot.life, self._link, self._lot.handed[0].token

    def result(self) -> LotResult:
        """All results, when `next` has answered None. Waits until the owner knows that an announced lot began."""
        if self._announced is not None:
            self._announced.wait(ACKNOWLEDGE_SECONDS)
        with self._lock:
            return LotResult(tuple(self._finished))

    def is_canceled(self) -> bool:
        return self._current in self._canceled

    def heartbeat(self, heartbeat: Heartbeat | None) -> None:
        with self._lock:
            if self._current is None:
                return
            if heartbeat is not None or self._current not in self._beats:
                self._beats[self._current] = heartbeat
            if heartbeat is not None:
                self._checkpoint = heartbeat
            report = self._due_report(self._clock(), with_results=False)
        if report is not None:
            self._link.report(report)

    def stream(self, message: StreamWrite) -> None:
        self._outbox.add(message)
        self.heartbeat(None)

    def _send_messages(self, messages: tuple[StreamWrite, ...]) -> None:
        self._link.report(Report(self._lot.life, self._worker, messages=messages))

    # The watchdog -----------------------------------------------------------------------------------------------------

    def look(self) -> None:
        self._outbox.look()
        now = self._clock()
        question: Question | None = None
        with self._lock:
            current = self._current
            if current is not None and now - self._current_since > MOMENT:
                if self._asking != current and now >= self._ask_after and current not in self._canceled:
                    self._asking = current
                    question = Question(
                        self._lot.life, self._worker, self._node, begun=(current,), about=(current,), wait=WAIT_SECONDS
                    )
                self._give_back()
            elif self._is_late(now):
                self._give_back()
            self._kill_if_due(now)
            report = self._due_report(now, with_results=now - self._begun_at > MOMENT)
        if report is not None:
            self._link.report(report)
        if question is not None:
            asked = question
            self._link.ask(asked, lambda answer: self._watched(asked, answer))

    def _kill_if_due(self, now: float) -> None:
        """Under the lock: the attempt that this process dies for can't end meanwhile, and no other begin."""
        if self._current is None or self._current not in self._canceled:
            return
        kill_after = self._lot.handed[self._next - 1].task.kill_after
        if kill_after is None:
            return
        if self._kill_at is None:
            self._kill_at = now + kill_after
        elif now >= self._kill_at:
            self._kill()

    # Inside -----------------------------------------------------------------------------------------------------------

    def _is_late(self, now: float) -> bool:
        return now - self._begun_at > PACK_SECONDS

    def _give_back(self) -> None:
        rest = self._lot.handed[self._next : self._end]
        self._end = self._next
        self._finished.extend(Finished(handed.token, AttemptReturned(reason=GIVEN_BACK)) for handed in rest)

    def _due_report(self, now: float, with_results: bool) -> Report | None:
        beats: tuple[Beat, ...] = ()
        if self._beats and now >= self._beat_after:
            beats = tuple(Beat(token, heartbeat) for token, heartbeat in self._beats.items())
            self._beats.clear()
            self._beat_after = now + BEAT_SECONDS
        finished: tuple[Finished, ...] = ()
        if with_results and self._sent < len(self._finished):
            finished = tuple(self._finished[self._sent :])
            self._sent = len(self._finished)
        return Report(self._lot.life, self._worker, finished, beats) if beats or finished else None

    def _watched(self, question: Question, answer: Answer | None) -> None:
        with self._lock:
            if self._asking in question.about:
                self._asking = None
                if answer is None or answer.is_unknown:
                    self._ask_after = self._clock() + ASK_AGAIN_SECONDS
        self._answered(answer)

    def _answered(self, answer: Answer | None) -> None:
        if answer is None or not answer.canceled:
            return
        with self._lock:
            self._canceled = self._canceled.union(answer.canceled)
            is_current = self._current in self._canceled
            on_cancel = self.on_cancel
        if is_current and on_cancel is not None:
            on_cancel()


class Watchdog:
    """The second thread of a worker process. It sleeps for good once there was nothing to watch for a second."""

    def __init__(self, broken: Callable[[BaseException], None]) -> None:
        self._broken = broken
        self._run: LotRun | None = None
        self._asleep = False
        self._wake = threading.Event()
        self._thread: threading.Thread | None = None

    def watch(self, run: LotRun) -> None:
        self._run = run
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="dexray-watchdog", daemon=True)
            self._thread.start()
        elif self._asleep:
            self._wake.set()

    def leave(self) -> None:
        self._run = None

    def _work(self) -> None:
        active_at = time.monotonic()
        while True:
            run = self._run
            if run is not None:
                active_at = time.monotonic()
                try:
                    run.look()
                except Exception as error:  # a thread that watches must not end
                    self._broken(error)
            elif time.monotonic() - active_at > 1.0:
                self._sleep()
                active_at = time.monotonic()
                continue
            time.sleep(LOOK_SECONDS)

    def _sleep(self) -> None:
        self._asleep = True
        if self._run is None:
            self._wake.wait()
        self._asleep = False
        self._wake.clear()
