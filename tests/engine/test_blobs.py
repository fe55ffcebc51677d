"""Large values of Flows in a blob store: their way through Steps, and what is said when one is lost."""

from __future__ import annotations

from pathlib import Path

import pytest

from dex import (
    Attribute,
    Context,
    DexServiceError,
    RetryPolicy,
    Step,
    StepDecision,
    StepOptions,
    go_to,
    graceful_complete,
)
from dex.values import BLOB_THRESHOLD
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
