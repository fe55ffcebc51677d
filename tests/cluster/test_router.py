"""Where the SubFlows of a FlowActor's Flows are started, by the view of the loads: without Ray, there is nobody to
call but ourselves."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from typing import Any

import pytest

from dex.wire.service import Started, StartFlow, encode
from dexray.cluster import router
from dexray.cluster.protocol import ActorLoad, ClusterView, Ok

ME = "flow-actor-1"


class Counted(router._Service):
    """Notes who is asked."""

    def __init__(self, view: ClusterView) -> None:
        async def here(data: bytes) -> bytes:
            raise AssertionError("it is not asked")

        super().__init__(None, "test", view, ME, here)
        self.asked: Counter[str] = Counter()

    async def _ask(self, owner: str, data: bytes) -> Any:
        self.asked[owner] += 1
        return Ok(encode(Started(run_id="r")))

    async def _update(self, method: str) -> None:
        """The Directory says what it said before."""
        self._view_at = time.monotonic()
        self._started.clear()


def starts(count: int, *active: int, flows_per_actor: int = 0) -> Counter[str]:
    loads = tuple(ActorLoad(f"flow-actor-{index}", active=number) for index, number in enumerate(active))
    counted = Counted(ClusterView(loads, flows_per_actor=flows_per_actor))

    async def start() -> None:
        for number in range(count):
            await counted.call(StartFlow(flow_id=f"child-{number}", flow_type="Child", input=b"\xc0", request_id="q"))

    asyncio.run(start())
    return counted.asked


def test_children_stay_with_the_owner_of_their_parent_though_others_have_less_to_do() -> None:
    assert starts(500, 0, 10, 0) == {ME: 500}


def test_children_go_elsewhere_when_their_owner_has_much_more_to_do() -> None:
    found = starts(3_000, 0, 0)
    assert found[ME] + found["flow-actor-0"] == 3_000
    assert found[ME] - found["flow-actor-0"] == pytest.approx(router.NEAR, abs=2)
    assert starts(10, 0, router.NEAR + 100) == {"flow-actor-0": 10}


def test_children_are_spread_where_flows_are_not_to_share() -> None:
    assert starts(30, 0, 0, 0, flows_per_actor=100) == {f"flow-actor-{index}": 10 for index in range(3)}


def test_an_owner_that_the_view_does_not_know_sends_its_children_to_others() -> None:
    assert starts(4, 7) == {"flow-actor-0": 4}


def test_what_was_started_since_an_old_view_is_not_held_against_an_owner() -> None:
    """The children of a minute ago have ended meanwhile; the Directory is asked before anything goes elsewhere."""
    counted = Counted(ClusterView((ActorLoad("flow-actor-0"), ActorLoad(ME))))

    async def start_many() -> None:
        async def start(number: int) -> None:
            await counted.call(StartFlow(flow_id=f"c{number}", flow_type="Child", input=b"\xc0", request_id="q"))

        for wave in range(3):
            await asyncio.gather(*(start(wave * 1_000 + number) for number in range(router.NEAR)))
            counted._view_at -= 60.0

    asyncio.run(start_many())
    assert counted.asked == {ME: 3 * router.NEAR}
