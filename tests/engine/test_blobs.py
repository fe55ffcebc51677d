"""Large values of Flows in a blob store: their way through Steps, and what is said when one is lost."""

from __future__ import annotations

from collections.abc import Callable, Collection
from pathlib import Path

import pytest
from msgspec.structs import replace

from dex import (
    AsyncClient,
    Attribute,
    ClientOptions,
    Context,
    DexServiceError,
    RetryPolicy,
    Step,
    StepDecision,
    StepOptions,
    go_to,
    graceful_complete,
)
from dex.values import BLOB_THRESHOLD, detach
from dexray.protocol.attempts import AttemptTask
from tests.engine.faulty import ScriptedPort
from tests.engine.rig import Machine, Rig, by_step, done, settle, virtual
from tests.machine.build import flow, movement, step
from tests.machine.build import go_to as next_step
from tests.machine.build import graceful_complete as complete
from tests.statements.kit import Made
from tests.world import InProcessWorld, World, scenario

LARGE = "x" * (BLOB_THRESHOLD + 1)

words = Attribute("words", str)


class First(Step[str]):
    def execute(self, context: Context, input: str) -> StepDecision:
        words.set(context, input + "!")
        return go_to(Second, input)


class Second(Step[str]):
    def get_step_options(self) -> StepOptions:
        return StepOptions(execute_retry=RetryPolicy(maximum_attempts=1))

    def execute(self, context: Context, input: str) -> StepDecision:
        return graceful_complete(f"{len(input)} {len(words.get(context) or '')}")


FLOW = Made(First(), Second(), has=(words,))


def stored(world: World) -> list[Path]:
    return [path for path in world.file("values").rglob("*") if path.is_file()]


@pytest.mark.statement("D12")
@scenario()
async def test_values_of_a_flow_lie_in_the_blob_store_and_go_with_it(world: World) -> None:
    assert isinstance(world, InProcessWorld)
    world.blob_store = str(world.file("values"))
    await world.deploy(FLOW)
    await world.start(FLOW, "f", LARGE)
    assert (await world.result("f")).single_output(str) == f"{len(LARGE)} {len(LARGE) + 1}"
    assert len(stored(world)) == 2
    await world.restart()
    assert await world.client.get_attribute(world.id("f"), words) == LARGE + "!"
    await world.client.delete_flow(world.id("f"))
    assert world.engine is not None
    await world.engine.host.retention.cleaned()
    assert stored(world) == []


@scenario()
async def test_a_lost_value_is_told_with_flow_step_hash_and_store(world: World) -> None:
    assert isinstance(world, InProcessWorld)
    world.blob_store = str(world.file("values"))
    await world.deploy(FLOW, hold=True)
    await world.start(FLOW, "f", LARGE)
    (path,) = stored(world)
    path.write_bytes(b"damaged")
    assert world.engine is not None
    world.engine.host._hand_outs._held = False
    world.engine.host.slots_changed()
    await world.until_phase("f", "First-1", "backoff")
    (step,) = (await world.describe("f")).steps
    assert step.last_failure is not None
    digest = path.name.partition("-")[0]
    for word in (repr(world.id("f")), "execute of First-1", digest, str(world.file("values")), "is damaged"):
        assert word in step.last_failure.detail


@scenario()
async def test_a_client_that_asks_for_a_lost_value_is_told(world: World) -> None:
    assert isinstance(world, InProcessWorld)
    world.blob_store = str(world.file("values"))
    await world.deploy(FLOW)
    await world.start(FLOW, "f", LARGE)
    await world.result("f")
    for path in stored(world):
        path.unlink()
    with pytest.raises(DexServiceError, match=r"DATA_LOSS: Flow .* is missing in the store"):
        await world.client.get_attribute(world.id("f"), words)


# Values that the port has at hand -------------------------------------------------------------------------------------


class _HasSome(ScriptedPort):
    """A port that brings some large values to attempts by itself. `then` is called after each question."""

    has: frozenset[str] = frozenset()
    then: Callable[[], None] = staticmethod(lambda: None)

    def at_hand(self, task: AttemptTask, hashes: Collection[str]) -> frozenset[str]:
        answer = self.has.intersection(hashes)
        self.then()
        return answer


async def begun(rig: Rig) -> tuple[Machine, _HasSome, dict[str, bytes]]:
    """A host whose Step First has given Second one large input and an Attribute; Second is not handed out yet."""
    blobs: dict[str, bytes] = {}
    one, two = detach(b"1" * 20_000, blobs), detach(b"2" * 20_000, blobs)
    rig.script = by_step(
        First=lambda task: done(next_step(movement("Second", one)), attributes={"words": two}, blobs=blobs)
    )
    host = await rig.host(replace(flow(step("First"), step("Second")), attributes=("words",)), slots=1)
    port = host.port
    port.__class__ = _HasSome
    assert isinstance(port, _HasSome)
    return host, port, blobs


@virtual
async def test_what_the_port_has_at_hand_is_not_read(rig: Rig) -> None:
    host, port, blobs = await begun(rig)
    port.has = frozenset(blobs)
    await host.start("f")
    await settle(200)
    (task,) = port.runs_of("Second")
    assert task.blobs == {}
    assert host.journal.calls["get_blobs"] == 0
    port.finish(task.key, done(complete()))
    await host.result("f")


@virtual
async def test_only_the_rest_is_read(rig: Rig) -> None:
    host, port, blobs = await begun(rig)
    first, second = sorted(blobs)
    port.has = frozenset({first})
    await host.start("f")
    await settle(200)
    (task,) = port.runs_of("Second")
    assert task.blobs == {second: blobs[second]}
    port.finish(task.key, done(complete()))


@virtual
async def test_what_is_at_hand_no_more_after_the_rest_was_read_is_read_as_well(rig: Rig) -> None:
    host, port, blobs = await begun(rig)
    port.has = frozenset({min(blobs)})
    asked = iter(range(100))

    def lose() -> None:
        if next(asked) == 1:
            port.has = frozenset()

    port.then = lose
    await host.start("f")
    await settle(200)
    (task,) = port.runs_of("Second")
    assert task.blobs == blobs
    assert host.journal.calls["get_blobs"] == 2
    port.finish(task.key, done(complete()))


# The limit ------------------------------------------------------------------------------------------------------------


class Grow(Step[int]):
    def execute(self, context: Context, input: int) -> StepDecision:
        return graceful_complete("x" * input)


GROW = Made(Grow(), name="Grow")


@pytest.mark.statement("D12")
@scenario()
async def test_handlers_keep_to_the_limit_of_the_engine_and_are_not_tried_again(world: World) -> None:
    await world.deploy(GROW, max_value_bytes=100_000)
    await world.start(GROW, "fits", 99_000)
    assert len((await world.result("fits")).single_output(str)) == 99_000
    await world.start(GROW, "too large", 100_001)
    result = await world.result("too large")
    assert result.error_message is not None
    assert "output of Step 'Grow': 100,006 bytes is over the limit of 100,000" in result.error_message
    assert [kind for kind in await world.kinds("too large") if kind == "AttemptFailed"] == ["AttemptFailed"]


@pytest.mark.statement("D12")
@scenario()
async def test_the_limit_may_be_raised(world: World) -> None:
    size = 65 * 1024 * 1024
    await world.deploy(GROW, max_value_bytes=66 * 1024 * 1024)
    world.client = AsyncClient(world.client.registry, world.client._service, ClientOptions(max_value_bytes=1 << 30))
    await world.start(GROW, "f", size)
    assert len((await world.result("f")).single_output(str)) == size
