"""What the pattern examples share: how one is described, played against an engine, and run from a shell.

Each file of this folder ends in an `example`, and runs by `python -m examples.workflow_patterns.wcp_01_sequence`.
"""

from __future__ import annotations

import asyncio
import importlib
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from dex import AsyncClient, Flow, FlowNotFoundError, FlowResult, Registry


@dataclass(frozen=True)
class Task:
    """A piece of work: its name, and the seconds that it takes."""

    name: str
    seconds: float = 0.0


@dataclass(frozen=True)
class Example:
    """A Flow with an input to show it with.

    children: the Flows that it starts as SubFlows. drive: what the outside world does while it runs, given a client
    and the Flow ID.
    """

    flow: Flow[Any]
    input: Any = None
    children: tuple[Flow[Any], ...] = ()
    drive: Callable[[AsyncClient, str], Awaitable[None]] | None = None

    @property
    def flows(self) -> tuple[Flow[Any], ...]:
        return (self.flow, *self.children)

    async def play(self, client: AsyncClient, flow_id: str) -> FlowResult:
        """Starts the Flow, does what the outside world does, and waits for the end."""
        await client.start_flow(self.flow, flow_id, self.input)
        if self.drive is not None:
            await self.drive(client, flow_id)
        return await client.wait_for_flow(flow_id)


async def appear(client: AsyncClient, flow_id: str) -> None:
    """Waits until there is such a Flow: a SubFlow begins a moment after the Step that waits for it."""
    while True:
        try:
            await client.describe_flow(flow_id)
        except FlowNotFoundError:
            await asyncio.sleep(0.05)
        else:
            return


async def story(client: AsyncClient, flow_id: str) -> list[str]:
    """What happened, a line for each end of a Step, with the seconds since the Flow began."""
    lines: list[str] = []
    began: float | None = None
    async for event in client.history(flow_id):
        began = event.at if began is None else began
        if event.kind in ("StepCompleted", "StepCancelled", "StepExecuteFailed", "StepWaitForFailed"):
            lines.append(f"{event.at - began:6.2f} s  {event.kind[4:].lower():9}  {event.step_execution_id}")
    return lines


async def _show(example: Example, title: str) -> None:
    import dexray

    registry = Registry(list(example.flows), allow_async_handlers=True)
    async with await dexray.connect_async(registry) as client:
        flow_id = f"{example.flow.get_flow_type()}-{uuid4()}"
        result = await example.play(client, flow_id)
        print(title, *await story(client, flow_id), sep="\n")
        anything: Any = Any
        print(result.status.name, *(done.decode(anything) for done in result.completions if done.has_output))


def show() -> None:
    """Runs the example of the module that Python was started with, by its real name: workers find it by that."""
    spec = sys.modules["__main__"].__spec__
    if spec is None:
        raise SystemExit("run it as a module: python -m examples.workflow_patterns.wcp_01_sequence")
    named = importlib.import_module(spec.name)
    asyncio.run(_show(named.example, (named.__doc__ or "").partition("\n")[0]))
