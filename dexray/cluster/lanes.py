"""Lanes, the owner's end: attempts over a socket inside a living Ray task.

A Ray task costs its owner half a millisecond to submit, and two until its result is back. A message over a
socket costs a tenth of one. So the task that ran a lot stays for a moment and offers to run the next one of the
same resources and the same deployment. Ray stays the scheduler: a lane *is* a Ray task that holds its CPU, and
nothing runs outside of one.

What is true when something goes wrong:

- The reference of the Ray task is the truth about the process. When it fails, the lot that is on the lane has
  failed with it. When it has a value, that holds every result which the owner had not confirmed; a lot of the
  lane that is neither confirmed nor in the value never began, and is handed out again.
- The end of a connection says only that nothing more can be sent over it.
- Results may come twice, over the socket and by Ray. The owner counts each token once.
- `ray.cancel` never meets a lane: it is only for lots of which nothing was heard, and a lane begins with a word.

`Lanes` is the server and the book of Ray tasks that may become lanes. What to do with one is decided elsewhere:
`Dispatch.offer` says whether it is wanted.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from typing import Protocol

from dexray.cluster.attempt_messages import Finished
from dexray.cluster.dispatch import Place
from dexray.cluster.handouts import Lane, SentLot
from dexray.cluster.lane_wire import (
    HELLO_LIMIT,
    LIMIT,
    Begun,
    BrokenFrame,
    Bye,
    Door,
    Frames,
    Hello,
    Leave,
    Result,
    decode_from_worker,
    frame,
    run_frame,
)

logger = logging.getLogger("dexray.cluster.lanes")

HELLO_SECONDS = 5.0


class LaneHost(Protocol):
    """Who has to hear of lanes. Called in the event loop."""

    def lane_begun(self, lane: Lane) -> None:
        """The Ray task has left Ray's queue."""

    def lane_result(self, lane: Lane, number: int, finished: tuple[Finished, ...]) -> None:
        """A lot is done, and the lane waits: for a lot, or for `say_bye`."""

    def lane_leaves(self, lane: Lane) -> None:
        """The lane has waited long enough. `say_bye`, unless a lot is on its way."""

    def lane_closed(self, lane: Lane) -> None:
        """Nothing can be sent to the lane any more. Its Ray task will tell the rest."""

    def late_results(self, finished: tuple[Finished, ...]) -> None:
        """Results of a Ray task that was given up."""

    def lanes_work(self, work: bool) -> None:
        """Whether there are workers that can be reached."""


class Lanes:
    def __init__(self, host: LaneHost, loop: asyncio.AbstractEventLoop, life: int, linger: float) -> None:
        self._host = host
        self._loop = loop
        self._life = life
        self._linger = linger
        self._secret = secrets.token_bytes(32)
        self._server: asyncio.Server | None = None
        self._lanes: dict[int, Lane] = {}
        self._by_place: dict[Place, Lane] = {}
        self._connections: set[LaneConnection] = set()
        self._known = 0  # connections that said a right Hello
        self.door: Door | None = None

    async def start(self, address: str) -> None:
        """Listens at an address of this node. Without success there is no door, and all goes by Ray."""
        try:
            self._server = await self._loop.create_server(lambda: LaneConnection(self, self._loop), address, 0)
        except OSError as error:
            logger.warning("no socket for lanes at %s (%s): every lot of attempts is a Ray task", address, error)
            return
        port = self._server.sockets[0].getsockname()[1]
        self.door = Door(address, port, self._secret, self._linger)

    def close(self) -> None:
        """Workers that wait return at once."""
        self.door = None
        if self._server is not None:
            self._server.close()
        for connection in list(self._connections):
            connection.abort()

    # Ray tasks --------------------------------------------------------------------------------------------------------

    def add(self, root: SentLot, place: Place) -> None:
        """A Ray task was sent that may stay after its first lot."""
        root.lane = lane = Lane(root, place, lot=root)
        self._lanes[root.number] = self._by_place[place] = lane

    def at(self, place: Place) -> Lane:
        return self._by_place[place]

    def remove(self, lane: Lane) -> None:
        """The Ray task is over, or given up."""
        self._lanes.pop(lane.number, None)
        self._by_place.pop(lane.place, None)
        self._close(lane)

    def on_node(self, node: str) -> list[Lane]:
        return [lane for lane in self._lanes.values() if lane.root.node == node]

    def send(self, lane: Lane, lot: SentLot, data: bytes) -> None:
        lot.lane, lane.lot = lane, lot
        lane.connection.send(run_frame(lane.number, data))

    def say_bye(self, lane: Lane) -> None:
        if lane.connection is not None:
            lane.connection.send(frame(Bye(lane.number)))
            self._close(lane)

    def _close(self, lane: Lane) -> None:
        connection, lane.connection = lane.connection, None
        if connection is not None:
            connection.lanes.discard(lane)

    # Connections ------------------------------------------------------------------------------------------------------

    def connected(self, connection: LaneConnection) -> None:
        self._connections.add(connection)

    def is_welcome(self, hello: Hello) -> bool:
        if not hello.is_from(self._life, self._secret):
            return False
        self._known += 1
        self._host.lanes_work(True)
        return True

    def disconnected(self, connection: LaneConnection) -> None:
        self._connections.discard(connection)
        if connection.node is not None:
            self._known -= 1
            self._host.lanes_work(self._known > 0)
        for lane in list(connection.lanes):
            self._close(lane)
            self._host.lane_closed(lane)

    def heard(self, connection: LaneConnection, message: Begun | Result | Leave) -> None:
        lane = self._lanes.get(message.lane)
        match message:
            case Begun():
                if lane is not None and lane.connection is None:
                    lane.connection = connection
                    lane.root.node = connection.node or ""
                    connection.lanes.add(lane)
                    self._host.lane_begun(lane)
            case Result(number=number, finished=finished):
                if lane is not None and lane.connection is connection:
                    self._host.lane_result(lane, number, finished)
                else:
                    self._host.late_results(finished)
                    connection.send(frame(Bye(message.lane)))
            case Leave() if lane is not None and lane.connection is connection:
                self._host.lane_leaves(lane)


class LaneConnection(asyncio.Protocol):
    """From one worker process. `node` is None until it has said a right Hello."""

    def __init__(self, lanes: Lanes, loop: asyncio.AbstractEventLoop) -> None:
        self._book = lanes
        self._loop = loop
        self._frames = Frames(HELLO_LIMIT)
        self._transport: asyncio.Transport | None = None
        self._hello_due: asyncio.TimerHandle | None = None
        self.node: str | None = None
        self.lanes: set[Lane] = set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._hello_due = self._loop.call_later(HELLO_SECONDS, self.abort)
        self._book.connected(self)

    def data_received(self, data: bytes) -> None:
        self._frames.feed(data)
        try:
            for body in self._frames:
                self._heard(body)
                if self._transport is None:
                    return
        except BrokenFrame as error:
            logger.warning("a connection for lanes was closed: %s", error)
            self.abort()
        except Exception:
            logger.exception("a message of a lane could not be handled")
            self.abort()

    def _heard(self, body: bytes) -> None:
        message = decode_from_worker(body)
        if self.node is not None:
            if isinstance(message, Hello):
                raise BrokenFrame("a second Hello")
            self._book.heard(self, message)
        elif isinstance(message, Hello) and self._book.is_welcome(message):
            self.node = message.node
            self._frames.limit = LIMIT
            self._forget_hello()
        else:
            raise BrokenFrame("it did not begin with the secret of this owner")

    def send(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.write(data)

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        self._forget_hello()
        self._book.disconnected(self)

    def _forget_hello(self) -> None:
        if self._hello_due is not None:
            self._hello_due.cancel()
            self._hello_due = None
