"""Where the writers of a SQLite file queue: a kernel lock on a file beside it.

SQLite's own way of waiting for a writer is to look again after a while. Of several busy writers, one then holds the
file for seconds and others time out. A writer that sleeps in `flock` is woken when its turn comes, and a writer that
dies lets go, however it died.

The lock is a courtesy among writers, not what keeps the file whole: SQLite's own locks do that, also against writers
that don't queue here. So nothing breaks when someone deletes the lock file; the waiting merely gets worse until the
next start.

`flock` can wait forever or not at all, but a writer may be frozen while it holds the lock. So the waiting itself is
done in a helper thread, and only when the lock is taken; a wait that is given up leaves its file handle to the
helper, which lets go as soon as it gets it.
"""

from __future__ import annotations

import fcntl
import os
import threading


class WriterQueue:
    """A lock among processes, and among objects of one process; used by one thread at a time."""

    def __init__(self, path: str) -> None:
        """Raises OSError when the lock file can't be made."""
        self._path = path
        self._handle = self._open()

    def enter(self, timeout: float) -> bool:
        """Waits for its turn, at most `timeout` seconds; False when it did not come."""
        try:
            fcntl.flock(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return self._wait(timeout)
        return True

    def leave(self) -> None:
        fcntl.flock(self._handle, fcntl.LOCK_UN)

    def close(self) -> None:
        os.close(self._handle)

    def _open(self) -> int:
        return os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)

    def _wait(self, timeout: float) -> bool:
        waiter = _Waiter(self._handle)
        waiter.start()
        try:
            waiter.arrived.wait(timeout)
        except BaseException:  # an interrupt: nobody will leave for us
            if waiter.settle():
                self.leave()
            else:
                self._handle = self._open()
            raise
        if waiter.settle():
            return True
        self._handle = self._open()
        return False


class _Waiter(threading.Thread):
    def __init__(self, handle: int) -> None:
        super().__init__(name="dexray-writer-queue", daemon=True)
        self.arrived = threading.Event()
        self._handle = handle
        self._deciding = threading.Lock()
        self._given_up = False

    def run(self) -> None:
        fcntl.flock(self._handle, fcntl.LOCK_EX)
        with self._deciding:
            if self._given_up:
                os.close(self._handle)
            else:
                self.arrived.set()

    def settle(self) -> bool:
        """Whether the lock is held. If not, the handle is the thread's from now on."""
        with self._deciding:
            self._given_up = not self.arrived.is_set()
        return not self._given_up
