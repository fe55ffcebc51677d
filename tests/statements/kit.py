"""Flows in one line, and what tests ask of results and histories."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from dex import Flow, FlowResult, HistoryEvent, PersistenceSchema, Step, StepList
from tests.world import World


class Made(Flow[Any]):
    """A Flow of these Steps, the first of which starts it. `has`: its Attributes and Channels."""

    def __init__(self, *steps: Step[Any], has: Iterable[Any] = (), name: str = "Made") -> None:
        self.steps = steps
        self.has = tuple(has)
        self.name = name

    def get_flow_type(self) -> str:
        return self.name

    def get_steps(self) -> StepList[Any]:
        return StepList.start_step(self.steps[0]).other_steps(*self.steps[1:])

    def get_persistence_schema(self) -> PersistenceSchema:
        return PersistenceSchema.of(*self.has)


def outputs(result: FlowResult, value_type: Any = Any) -> list[tuple[str, Any]]:
    """The outputs with the Step executions they are of; None where there is none."""
    return [
        (completion.step_execution_id, completion.decode(value_type) if completion.has_output else None)
        for completion in result.completions
    ]


async def events(world: World, name: str, *kinds: str) -> list[HistoryEvent]:
    """The events of these kinds in a Flow's history, in order."""
    return [event for event in await world.history(name) if event.kind in kinds]


async def steps_of(world: World, name: str, kind: str) -> list[str]:
    """The Step executions that events of a kind are about, in order."""
    return [event.step_execution_id for event in await events(world, name, kind)]


def note_down(path: str, line: str) -> None:
    """What a handler does outside: it stays, whatever becomes of the attempt."""
    with open(path, "a") as file:
        file.write(f"{line}\n")


async def noted_down(world: World, path: Path, *lines: str) -> None:
    """Waits for the lines that handlers note down, exactly these."""

    async def there() -> bool:
        return len(lines_of(path)) >= len(lines)

    await world.until(there)
    assert lines_of(path) == [*lines]


def lines_of(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []
