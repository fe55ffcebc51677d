"""A worker's end of a lane: a Ray task that has run its lot offers itself for another.

    Begun -> (the lot runs) -> Result -> wait -> Run -> (the lot runs) -> Result -> ... -> Leave -> Bye

The Ray task keeps its CPU by Ray's own rules while it stays, and only for a moment: when no lot comes within
`linger` seconds it asks to leave. It may not simply go, because a lot may be on its way.

The socket is only ever a shortcut. When it can't be opened, breaks, or a result is too big for it, the task
returns what the owner has not confirmed as the value of the Ray task, as if there were no lanes. A later frame
of the owner confirms the result before it, so that is the last lot's result at most. From this the owner knows
more: a lot that it sent, and that the value of the Ray task does not contain, never began.

A process keeps one connection for each life of an owner, for all Ray tasks that it runs for it one after another.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import time
from collections import OrderedDict
from collections.abc import Callable

from dexray.cluster.attempt_messages import Lot, LotResult
from dexray.cluster.lane_wire import (
    LIMIT,
    Begun,
    BrokenFrame,
    Bye,
    Door,
    Frames,
    FromOwner,
    FromWorker,
    Hello,
    Leave,
    Result,
    Run,
    decode_from_owner,
    frame,
)
from dexray.cluster.shared_values import has_large_values

logger = logging.getLogger("dexray.cluster.worker")

CONNECT_SECONDS = 0.25
SEND_SECONDS = 2.0
BYE_SECONDS = 1.0
AGAIN_SECONDS = 60.0
"""After a connection that could not be opened, before the next try: a filtered port must not cost every lot a wait."""

KEPT = 8
_READ = 256 * 1024


class Broken(Exception):
    """The connection is of no more use."""


class Connection:
    """To one life of an owner. Every method raises Broken, and only that."""

    def __init__(self, door: Door, life: int, node: str) -> None:
        self.door = door
        self._frames = Frames()
        try:
            self._socket = socket.create_connection((door.host, door.port), timeout=CONNECT_SECONDS)
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except OSError as error:
            raise Broken(str(error)) from error
        self.send(frame(Hello(life, door.secret, node)))

    def send(self, data: bytes) -> None:
        try:
            self._socket.settimeout(SEND_SECONDS)
            self._socket.sendall(data)
        except OSError as error:
            raise Broken(str(error)) from error

    def receive(self, seconds: float) -> FromOwner | None:
        """The next frame, or None when none has come in so long."""
        until = time.monotonic() + seconds
        try:
            while (body := self._frames.next()) is None:
                left = until - time.monotonic()
                if left <= 0:
                    return None
                self._socket.settimeout(left)
                data = self._socket.recv(_READ)
                if not data:
                    raise Broken("the owner closed the connection")
                self._frames.feed(data)
            return decode_from_owner(body)
        except TimeoutError:
            return None
        except (OSError, BrokenFrame) as error:
            raise Broken(str(error)) from error

    def is_gone(self) -> bool:
        """Whether the owner has closed it while nobody looked."""
        try:
            self._socket.settimeout(0)
            return self._socket.recv(1, socket.MSG_PEEK) == b""
        except (BlockingIOError, InterruptedError):
            return False
        except OSError:
            return True

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.close()


class WorkerLanes:
    """The connections of this process, by the life of their owner."""

    def __init__(self) -> None:
        self._connections: OrderedDict[int, Connection] = OrderedDict()
        self._not_before: dict[int, float] = {}

    def begin(self, door: Door | None, lot: Lot, node: str) -> WorkerLane | None:
        """Tells the owner that a lot begins whose Ray task may stay. None: there is no way but Ray."""
        if door is None or not lot.may_stay:
            return None
        try:
            connection = self._connection(door, lot.life, node)
            if connection is None:
                return None
            connection.send(frame(Begun(lot.number)))
        except Broken as error:
            self._drop(lot.life, error)
            return None
        return WorkerLane(lot.number, connection, lambda error: self._drop(lot.life, error))

    def close(self) -> None:
        for life in list(self._connections):
            self._connections.pop(life).close()

    def _connection(self, door: Door, life: int, node: str) -> Connection | None:
        connection = self._connections.get(life)
        if connection is not None and not connection.is_gone():
            self._connections.move_to_end(life)
            return connection
        self._close_gone()
        if time.monotonic() < self._not_before.get(life, 0.0):
            return None
        try:
            connection = self._connections[life] = Connection(door, life, node)
        except Broken as error:
            logger.info("the owner of attempts can't be reached by a socket (%s): results go by Ray", error)
            self._not_before = {life: time.monotonic() + AGAIN_SECONDS}
            return None
        while len(self._connections) > KEPT:
            self._connections.popitem(last=False)[1].close()
        return connection

    def _close_gone(self) -> None:
        for life, connection in list(self._connections.items()):
            if connection.is_gone():
                self._connections.pop(life).close()

    def _drop(self, life: int, error: Broken) -> None:
        logger.info("a connection to an owner of attempts broke: %s", error)
        connection = self._connections.pop(life, None)
        if connection is not None:
            connection.close()


class WorkerLane:
    """One Ray task that stays. `number` is that of its first lot."""

    def __init__(self, number: int, connection: Connection, broken: Callable[[Broken], None]) -> None:
        self._number = number
        self._connection = connection
        self._broken = broken
        self.confirmed = False  # the owner has answered: it knows that this Ray task began

    def serve(self, result: LotResult, run: Callable[[Lot], LotResult]) -> LotResult:
        """Delivers the result of the first lot, then runs what comes. Returns what has to go back by Ray."""
        number = self._number
        try:
            while True:
                if not self._deliver(Result(self._number, number, result.finished)):
                    return result
                match self._next():
                    case Run(lane=self._number, lot=lot):
                        number, result = lot.number, LotResult(())
                        self.confirmed = True
                        result = run(lot)
                    case Bye(lane=self._number):
                        self.confirmed = True
                        return LotResult(())
                    case other:
                        raise Broken(f"unexpected: {other!r}"[:200])
        except Broken as error:
            self._broken(error)
            return result

    def _deliver(self, message: Result) -> bool:
        if has_large_values(message.finished):
            return False  # Ray shares them
        data = frame(message)
        if len(data) > LIMIT:
            return False
        self._connection.send(data)
        return True

    def _next(self) -> FromOwner:
        received = self._connection.receive(self._connection.door.linger)
        if received is None:
            leave: FromWorker = Leave(self._number)
            self._connection.send(frame(leave))
            received = self._connection.receive(BYE_SECONDS)
        if received is None:
            raise Broken(f"the owner did not answer in {BYE_SECONDS:g} s")
        return received
