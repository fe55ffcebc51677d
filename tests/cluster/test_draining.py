"""Which FlowActors leave a node that is being removed, when and in what order: the policy, without Ray."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
from ray.exceptions import RayActorError

from dexray.cluster.draining import COMING_BACK, ENDING, MOVED, Leaving, Nodes, patience
from dexray.testing import run_virtual

FAR = 4e9


@dataclass
class Actor:
    """As a handle: `shutdown.remote(seconds)` can be awaited."""

    name: str
    log: list[tuple[Any, ...]]
    takes: float = 0.0
    fails: bool = False

    @property
    def shutdown(self) -> Actor:
        return self

    def remote(self, seconds: float) -> Any:
        self.log.append(("shutdown", self.name, seconds))

        async def end() -> None:
            await asyncio.sleep(self.takes)
            if self.fails:
                raise RayActorError

        return asyncio.ensure_future(end())


@dataclass
class Cluster:
    draining: Mapping[str, float] = field(default_factory=dict)
    staying: tuple[str, ...] = ("safe",)
    log: list[tuple[Any, ...]] = field(default_factory=list)
    actors: dict[str, Actor] = field(default_factory=dict)

    def leaving(self, here: str = "safe", drain_seconds: float = 5.0) -> Leaving:
        async def leave() -> None:
            self.log.append(("leave",))

        return Leaving(
            here=here,
            drain_seconds=drain_seconds,
            actor=lambda name: self.actors.setdefault(name, Actor(name, self.log)),
            moved=lambda name: self.log.append(("moved", name)),
            leave=leave,
            ask=lambda: Nodes(self.draining, self.staying),
            kill=lambda actor: self.log.append(("kill", actor.name)),
        )


def virtual(test: Callable[[Cluster], Coroutine[Any, Any, None]]) -> Callable[[Cluster], None]:
    def run(cluster: Cluster) -> None:
        run_virtual(test(cluster))

    run.__name__, run.__doc__ = test.__name__, test.__doc__
    return run


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


@virtual
async def test_a_flow_actor_on_a_node_that_is_removed_ends_in_order_and_is_started_elsewhere(cluster: Cluster) -> None:
    cluster.draining = {"going": 0.0}
    await cluster.leaving().look({"a": "going", "b": "safe"})
    await asyncio.sleep(1)
    assert cluster.log == [("shutdown", "a", 5.0), ("kill", "a"), ("moved", "a")]


@virtual
async def test_it_is_left_alone_when_there_is_no_other_node(cluster: Cluster) -> None:
    cluster.draining, cluster.staying = {"going": 0.0, "too": 0.0}, ()
    await cluster.leaving(here="too").look({"a": "going"})
    await asyncio.sleep(1)
    assert cluster.log == []


@virtual
async def test_it_is_told_once_while_it_ends_and_not_again_by_an_old_word_of_where_it_is(cluster: Cluster) -> None:
    cluster.draining = {"going": 0.0}
    cluster.actors["a"] = Actor("a", cluster.log, takes=4.0)
    leaving = cluster.leaving()
    for _ in range(5):
        await leaving.look({"a": "going"})
        await asyncio.sleep(2)
    assert [entry[0] for entry in cluster.log] == ["shutdown", "kill", "moved"]


@virtual
async def test_one_that_could_not_be_moved_is_told_again_later(cluster: Cluster) -> None:
    cluster.draining = {"going": 0.0}
    leaving = cluster.leaving()
    await leaving.look({"a": "going"})
    await asyncio.sleep(1)
    leaving._left["a"] = ("going", 0.0)  # as MOVED seconds later
    await leaving.look({"a": "going"})
    await asyncio.sleep(1)
    assert [entry[0] for entry in cluster.log] == ["shutdown", "kill", "moved"] * 2
    assert MOVED > 2 * COMING_BACK


@virtual
async def test_one_that_landed_on_the_next_node_to_go_moves_again(cluster: Cluster) -> None:
    cluster.draining = {"going": 0.0, "next": 0.0}
    leaving = cluster.leaving()
    await leaving.look({"a": "going"})
    await asyncio.sleep(1)
    await leaving.look({"a": "next"})
    await asyncio.sleep(1)
    assert [entry[0] for entry in cluster.log] == ["shutdown", "kill", "moved"] * 2


@virtual
async def test_one_that_does_not_answer_is_killed_all_the_same(cluster: Cluster) -> None:
    cluster.draining = {"going": 0.0}
    cluster.actors["a"] = Actor("a", cluster.log, takes=1e6)
    await cluster.leaving(drain_seconds=2.0).look({"a": "going"})
    await asyncio.sleep(1 + ENDING)
    assert cluster.log == [("shutdown", "a", 2.0)]
    await asyncio.sleep(2)
    assert cluster.log[1:] == [("kill", "a"), ("moved", "a")]


@virtual
async def test_one_that_dies_meanwhile_is_moved_all_the_same(cluster: Cluster) -> None:
    cluster.draining = {"going": 0.0}
    cluster.actors["a"] = Actor("a", cluster.log, takes=1.0, fails=True)
    await cluster.leaving().look({"a": "going"})
    await asyncio.sleep(2)
    assert cluster.log[1:] == [("kill", "a"), ("moved", "a")]


@virtual
async def test_the_directory_leaves_last(cluster: Cluster) -> None:
    cluster.draining = {"going": 0.0}
    cluster.actors["a"] = Actor("a", cluster.log, takes=3.0)
    leaving = cluster.leaving(here="going")
    await leaving.look({"a": "going"})
    await asyncio.sleep(1)
    await leaving.look({"a": "going"})
    assert ("leave",) not in cluster.log
    await asyncio.sleep(4)
    await leaving.look({"a": "safe"})
    assert cluster.log[-1] == ("leave",)


@virtual
async def test_a_move_ends_with_the_directory_s_work(cluster: Cluster) -> None:
    cluster.draining = {"going": 0.0}
    cluster.actors["a"] = Actor("a", cluster.log, takes=3.0)
    leaving = cluster.leaving()
    await leaving.look({"a": "going"})
    await asyncio.sleep(1)
    leaving.close()
    await asyncio.sleep(10)
    assert cluster.log == [("shutdown", "a", 5.0)]


@pytest.mark.parametrize(
    ("deadline", "expected"),
    [(0.0, 30.0), (1020.0, 20.0 - COMING_BACK), (1004.0, 0.0), (900.0, 0.0), (FAR, 30.0)],
    ids=["none said", "near", "too near", "past", "far"],
)
def test_attempts_may_run_until_shortly_before_the_deadline(deadline: float, expected: float) -> None:
    assert patience(deadline, 1000.0, 30.0) == expected
