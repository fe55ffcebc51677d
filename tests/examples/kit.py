"""What tests of examples ask of a Flow."""

from __future__ import annotations

import asyncio
from typing import Any

from dex import AsyncClient, Flow, FlowResult, Registry, StartFlowOptions
from tests.world import InProcessWorld, World


def outputs(result: FlowResult, value_type: Any = str) -> list[Any]:
    """The outputs of a Flow, in the order in which they came."""
    return [completion.decode(value_type) for completion in result.completions if completion.has_output]


async def run(
    world: World,
    flow: Flow[Any],
    input: Any = None,
    *,
    name: str = "flow",
    timeout: float = 60.0,
    options: StartFlowOptions | None = None,
    of: Any = str,
) -> list[Any]:
    """Runs a deployed Flow to its end: its outputs."""
    await world.start(flow, name, input, options)
    return outputs(await world.result(name, timeout), of)


async def failed_at(world: World, name: str) -> list[float]:
    """When attempts of a Flow failed."""
    return [event.at for event in await world.history(name) if event.kind == "AttemptFailed"]


async def away(world: World, seconds: float) -> None:
    """The engine ends by a crash, and is back after a time."""
    assert isinstance(world, InProcessWorld)
    assert world.engine is not None
    await world.engine.crash()
    await world.advance(seconds)
    await world._begin(world.engine.registry)


class Dying:
    """Makes clients that are never answered when they call something for the first time, though it has its effect."""

    def __init__(self, call: str) -> None:
        self.call = call
        self.called: list[str] = []

    def __call__(self, registry: Registry) -> AsyncClient:
        client = AsyncClient(registry)
        method = getattr(client, self.call)

        async def hanging(*arguments: Any, **options: Any) -> Any:
            answer = await method(*arguments, **options)
            if (what := str(arguments)) not in self.called:
                self.called.append(what)
                await asyncio.sleep(10**9)
            return answer

        setattr(client, self.call, hanging)
        return client

    async def restart(self, world: World, count: int) -> None:
        """Kills the engine when so many calls have been made for the first time."""

        async def made() -> bool:
            return len(self.called) >= count

        await world.until(made)
        await world.restart()


def now() -> float:
    """Virtual seconds since the test began."""
    return asyncio.get_running_loop().time()
