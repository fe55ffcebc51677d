"""A connection to PostgreSQL that a server which has stopped answering can't hold for ever."""

from __future__ import annotations

import time
from collections.abc import Generator
from typing import Any

import psycopg


class DeadlineConnection(psycopg.Connection[Any]):
    """A connection that gives up a server which does not answer until `give_up_at`, a time of `time.monotonic`."""

    give_up_at = float("inf")

    def wait(self, gen: Any, *args: Any, **named: Any) -> Any:
        return super().wait(self._within_time(gen), *args, **named)

    def _within_time(self, gen: Any) -> Generator[Any, Any, Any]:
        """The driver's coroutine; the driver wakes it now and then with 0 when nothing came from the server."""
        ready: Any = None
        while True:
            try:
                wanted = gen.send(ready)
            except StopIteration as end:
                return end.value
            ready = yield wanted
            if not ready and time.monotonic() > self.give_up_at:
                self.pgconn.finish()
                raise psycopg.OperationalError("the server does not answer, its connection is given up")
