"""Polling, in three forms: look again and again whether something is there that tells nobody when it is.

- **By Timer** (`TimerPollingFlow`): each look is a Step execution, with a Timer between. For minutes to months. It can
  wait for messages besides, costs nothing in between, and each look is in the history.
- **By retries** (`RetryPollingFlow`): a look that finds nothing fails, and the RetryPolicy is the schedule, with
  growing pauses and an end. For seconds to hours; the least code.
- **In one Step** (`LoopPollingFlow`): an asynchronous handler looks, sleeps and sends heartbeats. For short pauses:
  hundreds of them share a process, and no look is a commit.

If a process dies in the middle: the Timer and the time of the next retry are in the database. The loop begins anew as
the next attempt, at the look that its last heartbeat told of.

Run it with `python -m examples.patterns.polling`.
"""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Protocol
from uuid import uuid4

from dex import (
    AsyncContext,
    Context,
    Flow,
    Registry,
    RetryPolicy,
    Step,
    StepDecision,
    StepList,
    StepOptions,
    Timer,
    Wait,
    force_fail,
    go_to,
    graceful_complete,
)


class Letterbox(Protocol):
    def look(self, number: int) -> str | None:
        """What is in it at the look of this number; None: nothing yet."""


class DemoLetterbox:
    def look(self, number: int) -> str | None:
        return f"a letter, at look {number}" if number == 3 else None


class NothingYet(Exception):
    pass


class Look(Step[int]):
    """Waits a while before every look but the first."""

    def __init__(self, box: Letterbox, pause: timedelta, most: int) -> None:
        self.box, self.pause, self.most = box, pause, most

    def wait_for(self, context: Context, input: int) -> Wait:
        return Wait.until(Timer.by_duration(self.pause)) if input > 1 else Wait.skip_immediately()

    def execute(self, context: Context, input: int) -> StepDecision:
        letter = self.box.look(input)
        if letter is not None:
            return graceful_complete(letter)
        return go_to(Look, input + 1) if input < self.most else force_fail(f"nothing after {input} looks")


class TimerPollingFlow(Flow[int]):
    """Start it with 1, the number of the first look."""

    def __init__(self, box: Letterbox, pause: timedelta, most: int = 1000) -> None:
        self.look = Look(box, pause, most)

    def get_steps(self) -> StepList[int]:
        return StepList.start_step(self.look)


class LookOrFail(Step[None]):
    def __init__(self, box: Letterbox, first_pause: timedelta, longest: timedelta) -> None:
        self.box, self.first_pause, self.longest = box, first_pause, longest

    def get_step_options(self) -> StepOptions:
        policy = RetryPolicy(initial_interval=self.first_pause, backoff_coefficient=2.0, total_duration=self.longest)
        return StepOptions(execute_retry=policy)

    def execute(self, context: Context, input: None) -> StepDecision:
        letter = self.box.look(context.attempt)
        if letter is None:
            raise NothingYet(f"the letterbox is empty at look {context.attempt}")
        return graceful_complete(letter)


class RetryPollingFlow(Flow[None]):
    def __init__(self, box: Letterbox, first_pause: timedelta, longest: timedelta = timedelta(hours=4)) -> None:
        self.look = LookOrFail(box, first_pause, longest)

    def get_steps(self) -> StepList[None]:
        return StepList.start_step(self.look)


class LookInLoop(Step[None]):
    def __init__(self, box: Letterbox, pause: float) -> None:
        self.box, self.pause = box, pause

    async def execute(self, context: AsyncContext, input: None) -> StepDecision:
        number = context.get_last_heartbeat_value(int) or 1
        while (letter := self.box.look(number)) is None:
            number += 1
            await context.heartbeat(number)
            await asyncio.sleep(self.pause)
        return graceful_complete(letter)


class LoopPollingFlow(Flow[None]):
    def __init__(self, box: Letterbox, pause: float) -> None:
        self.look = LookInLoop(box, pause)

    def get_steps(self) -> StepList[None]:
        return StepList.start_step(self.look)


by_timer = TimerPollingFlow(DemoLetterbox(), timedelta(seconds=1))
by_retries = RetryPollingFlow(DemoLetterbox(), timedelta(seconds=1))
in_loop = LoopPollingFlow(DemoLetterbox(), 0.2)
registry = Registry([by_timer, by_retries, in_loop], allow_async_handlers=True)


def main() -> None:
    import dexray

    with dexray.connect(registry) as client:
        number = uuid4()
        client.start_flow(by_timer, f"by-timer-{number}", 1)
        client.start_flow(by_retries, f"by-retries-{number}")
        client.start_flow(in_loop, f"in-loop-{number}")
        for way in ("in-loop", "by-timer", "by-retries"):
            print(f"{way:11}", client.wait_for_flow(f"{way}-{number}").single_output(str))


if __name__ == "__main__":
    main()
