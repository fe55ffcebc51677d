"""Graceful timeout: when its time is over, a Flow tidies up and then fails, with a reason of its own.

The timeout of a Flow (`StartFlowOptions.timeout`, `handle_timeout`) is set by whoever starts it. Here the Flow itself
knows how long its work may take: a Timer runs in a branch beside the work. Whichever comes first ends the other, and
the time's end cancels the work before it clears the table, so that the two never meet.

If a process dies in the middle: the Timer goes on in the database. When the time was over meanwhile, it fires as soon
as there is a process again.

Run it with `python -m examples.patterns.graceful_timeout`.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from uuid import uuid4

from dex import (
    Context,
    Flow,
    Registry,
    Step,
    StepDecision,
    StepList,
    StepMovement,
    Timer,
    Wait,
    dead_end,
    force_complete,
    force_fail,
    go_to,
    go_to_many,
)


@dataclass(frozen=True)
class Game:
    """The moves that it takes, the seconds for each of them, and the seconds that all may take; 0 for no limit."""

    moves: int
    seconds_a_move: int
    limit: int


class Begin(Step[Game]):
    def execute(self, context: Context, input: Game) -> StepDecision:
        return go_to_many(StepMovement.of(Move, (input, 1)), StepMovement.of(Clock, input))


class Move(Step[tuple[Game, int]]):
    def wait_for(self, context: Context, input: tuple[Game, int]) -> Wait:
        game, _ = input
        return Wait.until(Timer.by_duration(timedelta(seconds=game.seconds_a_move)))

    def execute(self, context: Context, input: tuple[Game, int]) -> StepDecision:
        game, number = input
        if number < game.moves:
            return go_to(Move, (game, number + 1))
        return force_complete(f"won after {number} moves")


class Clock(Step[Game]):
    def wait_for(self, context: Context, input: Game) -> Wait:
        if not input.limit:
            return Wait.skip_immediately()
        return Wait.until(Timer.by_duration(timedelta(seconds=input.limit)))

    def execute(self, context: Context, input: Game) -> StepDecision:
        if not input.limit:
            return dead_end()
        return go_to(ClearTable, input.limit).with_canceling_steps(Move)


class ClearTable(Step[int]):
    def execute(self, context: Context, input: int) -> StepDecision:
        context.record_event("cleared", True)
        return force_fail(f"time is over after {input} seconds; the table is cleared")


class GracefulTimeoutFlow(Flow[Game]):
    def get_steps(self) -> StepList[Game]:
        return StepList.start_step(Begin).other_steps(Move, Clock, ClearTable)


flow = GracefulTimeoutFlow()
registry = Registry([flow])


def main() -> None:
    import dexray

    with dexray.connect(registry) as client:
        for game in (Game(moves=2, seconds_a_move=0, limit=60), Game(moves=100, seconds_a_move=1, limit=2)):
            flow_id = f"game-{uuid4()}"
            client.start_flow(flow, flow_id, game)
            result = client.wait_for_flow(flow_id)
            print(result.error_message or result.single_output(str))


if __name__ == "__main__":
    main()
