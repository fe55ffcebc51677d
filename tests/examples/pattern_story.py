"""A Flow of the workflow patterns, played in process under the virtual clock, and its history as a story with times."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from dex import AsyncClient, FlowResult, FlowStatus, HistoryEvent
from examples.workflow_patterns.common import Example
from tests.world import World

Meanwhile = Callable[[AsyncClient, str], Awaitable[None]]


@dataclass(frozen=True)
class Story:
    """How a Flow ended, and all that happened. Times are virtual seconds since its start."""

    flow_id: str
    result: FlowResult
    events: list[HistoryEvent]

    @property
    def outputs(self) -> list[Any]:
        anything: Any = Any
        return [done.decode(anything) for done in self.result.completions if done.has_output]

    @property
    def seconds(self) -> float:
        """How long the Flow took."""
        return self._at(self.events[-1])

    def _at(self, event: HistoryEvent) -> float:
        return round(event.at - self.events[0].at, 3)

    def _about(self, kind: str, types: tuple[str, ...]) -> list[HistoryEvent]:
        return [
            event
            for event in self.events
            if event.kind == kind and (not types or event.step_execution_id.rpartition("-")[0] in types)
        ]

    def completed(self, *types: str) -> list[str]:
        """The executions of these Steps (none: of all) that completed, in order."""
        return [event.step_execution_id for event in self._about("StepCompleted", types)]

    def cancelled(self, *types: str) -> list[str]:
        return [event.step_execution_id for event in self._about("StepCancelled", types)]

    def began(self, *types: str) -> list[float]:
        """When executions of these Steps were scheduled."""
        return [self._at(event) for event in self._about("StepScheduled", types)]

    def ended(self, *types: str) -> list[float]:
        """When executions of these Steps completed."""
        return [self._at(event) for event in self._about("StepCompleted", types)]

    def spans(self, *types: str) -> list[tuple[float, float]]:
        """From when to when each completed execution of these Steps was at work, in order of its end."""
        work = {
            event.step_execution_id: self._at(event)
            for event in self._about("AttemptStarted", types)
            if event.data["method"] == "execute"
        }
        return [(work[event.step_execution_id], self._at(event)) for event in self._about("StepCompleted", types)]

    def inputs(self, step_type: str) -> list[Any]:
        """The inputs with which executions of a Step were scheduled, in order."""
        return [event.data["input"] for event in self._about("StepScheduled", (step_type,))]


def overlapping(spans: list[tuple[float, float]]) -> list[tuple[tuple[float, float], tuple[float, float]]]:
    """Pairs of spans that have more than a point in common."""
    ordered = sorted(spans)
    return [
        (one, other)
        for number, one in enumerate(ordered)
        for other in ordered[number + 1 :]
        if other[0] < one[1] and one[0] < other[1]
    ]


@dataclass
class Stage:
    """Plays an example again and again in one world, with other inputs and other events. slots: how many attempts run
    at a time; with one, a Step that is started last begins to wait when all that it waits for has arrived."""

    world: World
    example: Example
    slots: int = 100
    played: int = 0

    async def play(
        self,
        input: Any = None,
        meanwhile: Meanwhile | None = None,
        *,
        status: FlowStatus | None = FlowStatus.COMPLETED,
        timeout: float = 10_000.0,
    ) -> Story:
        """Plays it to its end; `meanwhile` happens beside it. status: how it must end, None: anyhow."""
        if self.played == 0:
            await self.world.deploy(*self.example.flows, slots=self.slots)
        self.played += 1
        name = f"play-{self.played}"
        flow_id = self.world.id(name)
        await self.world.start(self.example.flow, name, input)
        if meanwhile is not None:
            await meanwhile(self.world.client, flow_id)
        result = await self.world.result(name, timeout)
        assert status is None or result.status is status, result
        return await self.story(flow_id, result)

    async def story(self, flow_id: str, result: FlowResult | None = None) -> Story:
        """What happened in any Flow; it must have closed."""
        result = await self.world.client.wait_for_flow(flow_id) if result is None else result
        return Story(flow_id, result, [event async for event in self.world.client.history(flow_id)])


def at(*moments: tuple[float, Meanwhile]) -> Meanwhile:
    """Events at times: seconds since the start, ascending."""

    async def happen(client: AsyncClient, flow_id: str) -> None:
        now = 0.0
        for when, what in moments:
            await asyncio.sleep(when - now)
            now = when
            await what(client, flow_id)

    return happen
