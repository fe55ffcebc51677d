"""Nodes that are being taken away, and the FlowActors that leave them in time.

A node that is removed in order (by the autoscaler, by Kubernetes, by the cloud that takes a spot machine back, by
`ray drain-node`) is marked as draining first. Ray starts nothing new there, lets what runs go on, and takes the node
away when nothing is left on it, or at a deadline. A FlowActor would stay until it is killed. So the Directory looks for
such nodes, and moves each FlowActor that is on one:

    Directory                          FlowActor                       the same FlowActor, on another node
    sees its node drain  -- shutdown ->  hands out nothing more
                                         attempts end (`drain_seconds`)
                                         what was decided is written
                     <-  answer  ------  answers nothing more
    ray.kill(no_restart=False)  ------------------------------------>  is started by Ray, claims its runs, goes on

That is an orderly end and a beginning, both of which the engine knows anyway. What holds:

- Nothing is lost if any part of it fails: at worst the FlowActor is killed with its node, and comes back.
- It is bounded: by `drain_seconds`, by the deadline of the node, and by a time after which a FlowActor that does not
  answer is killed all the same.
- A FlowActor is moved only when there is a node to go to. If all of them drain, it works until the end.
- The Directory leaves when no FlowActor is left where it is.

Attempts that run on the node when their owner is elsewhere go on until the node is gone. Ray reports what was lost,
and the retry policies decide.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

import ray
from ray.exceptions import RayError

logger = logging.getLogger("dexray.cluster.directory")

ENDING = 15.0  # seconds beyond its drain for a FlowActor to write what it decided
COMING_BACK = 5.0  # seconds of a node's deadline that are left to Ray, to start the FlowActor elsewhere
MOVED = 15.0  # seconds after a move in which an old word about where the actor is does not count


@dataclass(frozen=True, slots=True)
class Nodes:
    """draining: the nodes that are being taken away, with the time (seconds since the epoch) at which they will be
    gone; 0.0 when that is not said. staying: the living others."""

    draining: Mapping[str, float]
    staying: Collection[str]


def ask_ray() -> Nodes:
    """Blocks for about a millisecond."""
    untyped: Any = ray
    draining = {
        str(node): milliseconds / 1000
        for node, milliseconds in untyped._private.state.state.get_draining_nodes().items()
    }
    if not draining:
        return Nodes({}, ())
    alive = [str(node["NodeID"]) for node in untyped.nodes() if node["Alive"]]
    return Nodes(draining, [node for node in alive if node not in draining])


def patience(deadline: float, now: float, drain_seconds: float) -> float:
    """How long attempts may run before their owner leaves.

    >>> patience(0.0, now=1000.0, drain_seconds=30.0)
    30.0
    >>> patience(1020.0, now=1000.0, drain_seconds=30.0)
    15.0
    """
    if not deadline:
        return drain_seconds
    return max(0.0, min(drain_seconds, deadline - now - COMING_BACK))


class Leaving:
    """Moves the actors of one engine off draining nodes.

    `look` is called every few seconds and returns at once. `actor(name)` is the handle of a FlowActor; `moved(name)`
    hears of each that has left; `leave` ends the Directory, to be started elsewhere.
    """

    def __init__(
        self,
        *,
        here: str,
        drain_seconds: float,
        actor: Callable[[str], Any],
        moved: Callable[[str], None],
        leave: Callable[[], Any],
        ask: Callable[[], Nodes] = ask_ray,
        kill: Callable[[Any], None] = lambda actor: ray.kill(actor, no_restart=False),
    ) -> None:
        self._here = here
        self._drain_seconds = drain_seconds
        self._actor = actor
        self._moved = moved
        self._leave = leave
        self._ask = ask
        self._kill = kill
        self._moves: dict[str, asyncio.Task[None]] = {}
        self._left: dict[str, tuple[str, float]] = {}  # who has just left which node, and when

    async def look(self, where: Mapping[str, str]) -> None:
        """where: the node of each FlowActor, as far as it is known."""
        nodes = await asyncio.to_thread(self._ask)
        if not nodes.draining or not nodes.staying:
            return
        for name, node in where.items():
            if node in nodes.draining and not self._is_leaving(name, node):
                logger.warning("%s leaves the node %s, which is being removed", name, node)
                move = self._move(name, node, nodes.draining[node])
                self._moves[name] = asyncio.get_running_loop().create_task(move)
        if self._here in nodes.draining and not self._moves:
            logger.warning("the Directory leaves the node %s, which is being removed", self._here)
            await self._leave()

    def close(self) -> None:
        for move in self._moves.values():
            move.cancel()

    def _is_leaving(self, name: str, node: str) -> bool:
        left, until = self._left.get(name, ("", 0.0))
        return name in self._moves or (left == node and time.monotonic() < until)

    async def _move(self, name: str, node: str, deadline: float) -> None:
        actor = self._actor(name)
        seconds = patience(deadline, time.time(), self._drain_seconds)
        try:
            await asyncio.wait_for(_answer(actor.shutdown.remote(seconds)), seconds + ENDING)
        except TimeoutError:
            logger.error("%s did not end in order within %g s, and is killed", name, seconds + ENDING)
        except RayError as error:
            logger.warning("%s has ended before it could leave in order: %s", name, error)
        try:
            self._kill(actor)
        except RayError as error:
            logger.warning("%s can't be moved: %s", name, error)
        finally:
            self._left[name] = (node, time.monotonic() + MOVED)
            del self._moves[name]
            self._moved(name)


async def _answer(reference: Any) -> Any:
    return await reference
