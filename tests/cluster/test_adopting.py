"""A FlowActor that is given Flows again and again looks for them no more often than it has to; without Ray."""

from __future__ import annotations

import asyncio
from typing import Any

from dexray.cluster.flow_actor import FlowActor


class Host:
    """Each `recover` waits until it is let go."""

    def __init__(self) -> None:
        self.looks: list[asyncio.Event] = []

    async def recover(self) -> None:
        self.looks.append(asyncio.Event())
        await self.looks[-1].wait()


def actor_around(host: Host) -> FlowActor:
    actor = object.__new__(FlowActor)  # whose constructor wants to be in a Ray actor
    actor._adopting, actor._given = None, False

    async def up() -> Any:
        return host

    actor._up = up  # type: ignore[method-assign]
    return actor


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


def test_flows_that_are_given_during_a_look_are_seen_by_one_more() -> None:
    async def story() -> None:
        host = Host()
        actor = actor_around(host)
        for _ in range(50):
            await actor.adopt()
        await settle()
        assert len(host.looks) == 1
        host.looks[0].set()
        await settle()
        assert len(host.looks) == 1, "all were told before it began to look"
        await actor.adopt()
        await settle()
        for _ in range(50):
            await actor.adopt()
        host.looks[1].set()
        await settle()
        assert len(host.looks) == 3, "those that came during the second look may have been missed by it"
        host.looks[2].set()
        await settle()
        assert len(host.looks) == 3

    asyncio.run(story())
