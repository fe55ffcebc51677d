"""What the cluster has and which of its nodes are gone, asked every few seconds in a thread.

A node that died is reported a while later: Ray fails most of what ran there by itself, and knows the reasons.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Any

import ray

logger = logging.getLogger("dexray.cluster.attempts")


class ClusterWatch:
    """`resources(totals)` hears what the whole cluster has, `node_lost(node, died_at)` of a node that is gone.
    `died_at` is the loop's time when the loss was seen."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        every: float,
        grace: float,
        resources: Callable[[Mapping[str, float]], None],
        node_lost: Callable[[str, float], None],
    ) -> None:
        self._loop = loop
        self._every = every
        self._grace = grace
        self._resources = resources
        self._node_lost = node_lost
        self._nodes: set[str] = set()
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        await self.look()
        self._task = self._loop.create_task(self._keep_looking())

    def close(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def look(self) -> None:
        totals, nodes = await asyncio.to_thread(_ask)
        for node in self._nodes - nodes:
            self._loop.call_later(self._grace, self._node_lost, node, self._loop.time())
        self._nodes = nodes
        self._resources(totals)

    async def _keep_looking(self) -> None:
        while True:
            await asyncio.sleep(self._every)
            try:
                await self.look()
            except Exception as error:
                logger.warning("the cluster could not be asked for its resources: %s", error)


def _ask() -> tuple[dict[str, float], set[str]]:
    untyped: Any = ray
    return untyped.cluster_resources(), {node["NodeID"] for node in untyped.nodes() if node["Alive"]}
