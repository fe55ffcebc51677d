"""Patterns about time and polling, under the virtual clock."""

from __future__ import annotations

from datetime import timedelta
from itertools import pairwise

import pytest

from dex import FlowNotActiveOrNotFoundError, FlowStatus
from examples.patterns import (
    cron,
    graceful_timeout,
    inactivity_tracker,
    interruptible,
    polling,
    resettable_timer,
)
from examples.patterns.cron import CronFlow, Schedule
from examples.patterns.graceful_timeout import Game
from examples.patterns.interruptible import Archive
from examples.patterns.reminders import Invitation, ReminderFlow
from tests.examples.kit import away, failed_at, now, outputs, run
from tests.world import World, scenario

HOUR = timedelta(hours=1)


class Clockwork:
    """A job that notes when it ran; it breaks for good at the given number."""

    def __init__(self, breaks_at: int = 0) -> None:
        self.breaks_at = breaks_at
        self.ran_at: list[int] = []

    def __call__(self, number: int) -> str:
        if number == self.breaks_at:
            raise RuntimeError("it broke")
        self.ran_at.append(round(now()))
        return str(number)


@scenario()
async def test_a_schedule_runs_its_job_at_its_times_and_does_not_drift(world: World) -> None:
    job = Clockwork()
    flow = CronFlow(job)
    await world.deploy(flow)
    await world.advance(0.7)
    assert await run(world, flow, Schedule(HOUR, runs=40), timeout=41 * 3600) == [str(n) for n in range(1, 41)]
    assert [at - 3600 * number for number, at in enumerate(job.ran_at, 1)] == [job.ran_at[0] - 3600] * 40


@scenario()
async def test_a_run_at_once_and_a_run_left_out_move_no_other(world: World) -> None:
    job = Clockwork()
    flow = CronFlow(job)
    await world.deploy(flow)
    await world.start(flow, "cron", Schedule(HOUR, runs=3))
    await world.advance(600)
    await world.publish("cron", cron.run_now, None)  # the first
    await world.advance(3600)  # the second, at its hour
    await world.publish("cron", cron.skip_next, None)  # not that of the second hour
    await world.result("cron", 4 * 3600)
    assert [round(at / 60) for at in job.ran_at] == [10, 60, 180]


@scenario()
async def test_runs_that_were_missed_are_caught_up_with(world: World) -> None:
    job = Clockwork()
    flow = CronFlow(job)
    await world.deploy(flow)
    await world.start(flow, "cron", Schedule(HOUR, runs=5))
    await world.advance(60)
    await away(world, 3.5 * 3600)
    await world.result("cron", 4 * 3600)
    assert [round(at / 360) / 10 for at in job.ran_at] == [3.5, 3.5, 3.5, 4.0, 5.0]


@scenario()
async def test_a_run_that_fails_for_good_fails_the_schedule(world: World) -> None:
    job = Clockwork(breaks_at=2)
    flow = CronFlow(job)
    await world.deploy(flow)
    await world.start(flow, "cron", Schedule(HOUR, runs=5))
    result = await world.result("cron", 6 * 3600)
    assert (result.status, result.error_message) == (FlowStatus.FAILED, "run 2 failed: it broke")
    assert len(job.ran_at) == 1


@scenario()
async def test_a_game_that_is_won_in_time_is_won(world: World) -> None:
    await world.deploy(graceful_timeout.flow)
    assert await run(world, graceful_timeout.flow, Game(3, 10, 60)) == ["won after 3 moves"]
    assert await run(world, graceful_timeout.flow, Game(3, 1, 0), name="no limit") == ["won after 3 moves"]


@pytest.mark.parametrize("moves", [6, 7, 100])
@scenario()
async def test_when_time_is_over_the_table_is_cleared_once_and_nobody_moves_any_more(world: World, moves: int) -> None:
    """Six moves take as long as there is time: whoever comes first, there is one end."""
    await world.deploy(graceful_timeout.flow)
    await world.start(graceful_timeout.flow, "game", Game(moves, 10, 60))
    result = await world.result("game", 90)
    cleared = (await world.kinds("game")).count("EventRecorded")
    if result.status is FlowStatus.COMPLETED:
        assert (moves, cleared, outputs(result)) == (6, 0, ["won after 6 moves"])
    else:
        assert [e.step_execution_id for e in await world.history("game") if e.kind == "StepCancelled"] == ["Move-6"]
        assert (cleared, result.error_message) == (1, "time is over after 60 seconds; the table is cleared")


@scenario()
async def test_a_copy_that_is_not_stopped_is_complete(world: World) -> None:
    await world.deploy(interruptible.flow)
    archives = [Archive("letters", 3), Archive("photos", 5)]
    assert await run(world, interruptible.flow, archives) == ["letters: complete", "photos: complete"]


@scenario()
async def test_a_stop_ends_all_loops_at_their_next_slice_also_after_a_crash(world: World) -> None:
    await world.deploy(interruptible.flow)
    await world.start(
        interruptible.flow, "copy", [Archive("letters", 3), Archive("photos", 100), Archive("films", 9, 60)]
    )
    await world.advance(10.5)
    await world.client.invoke_rpc(interruptible.flow.stop, world.id("copy"), "Ada")
    await world.restart()
    assert outputs(await world.result("copy", 90)) == [
        "letters: complete",
        "photos: 10 of 100, stopped by Ada",
        "films: 0 of 9, stopped by Ada",
    ]


class Letterbox:
    def __init__(self, comes_at: int) -> None:
        self.comes_at = comes_at
        self.looked_at: list[float] = []

    def look(self, number: int) -> str | None:
        self.looked_at.append(round(now(), 1))
        return f"a letter, at look {number}" if number >= self.comes_at else None


def pauses(times: list[float]) -> list[float]:
    return [round(later - earlier) for earlier, later in pairwise(times)]


@scenario()
async def test_polling_by_timer_looks_at_even_distances_and_gives_up(world: World) -> None:
    box = Letterbox(5)
    flow = polling.TimerPollingFlow(box, timedelta(days=1), most=6)
    await world.deploy(flow)
    await world.start(flow, "some day", 1)
    await world.advance(5 * 86400)
    assert outputs(await world.result("some day")) == ["a letter, at look 5"]
    assert pauses(box.looked_at) == [86400] * 4
    box.comes_at = 10
    await world.start(flow, "never", 1)
    await world.advance(6 * 86400)
    assert (await world.result("never")).error_message == "nothing after 6 looks"


@scenario()
async def test_polling_by_retries_looks_at_growing_distances_until_its_time_is_over(world: World) -> None:
    box = Letterbox(6)
    flow = polling.RetryPollingFlow(box, timedelta(seconds=10), timedelta(hours=1))
    await world.deploy(flow)
    assert await run(world, flow, timeout=4000) == ["a letter, at look 6"]
    assert pauses(box.looked_at) == [10, 20, 40, 80, 100]
    box.comes_at = 1000
    await world.start(flow, "never")
    assert "the letterbox is empty" in (await world.result("never", 4000)).error_message
    assert now() < 2 * 3600


@scenario()
async def test_polling_in_a_loop_goes_on_where_it_was_after_a_crash(world: World) -> None:
    box = Letterbox(100)
    flow = polling.LoopPollingFlow(box, 30)
    await world.deploy(flow)
    await world.start(flow, "loop")
    await world.advance(30 * 50 + 1)
    await world.restart()
    assert outputs(await world.result("loop", 3600)) == ["a letter, at look 100"]
    assert len(box.looked_at) <= 102  # it did not begin anew
    assert len(await failed_at(world, "loop")) == 1


@scenario()
async def test_an_invitation_is_repeated_until_it_is_answered(world: World) -> None:
    sent: list[str] = []
    flow = ReminderFlow(lambda guest, text: sent.append(guest))
    await world.deploy(flow)
    await world.start(flow, "ada", Invitation("Ada", HOUR, 5 * HOUR))
    await world.advance(2.5 * 3600)
    assert await world.client.invoke_rpc(flow.answer, world.id("ada"), True) == "thank you"
    assert outputs(await world.result("ada")) == ["Ada comes"]
    assert sent == ["Ada", "Ada"]


@scenario()
async def test_an_answer_after_the_deadline_is_refused(world: World) -> None:
    flow = ReminderFlow(lambda guest, text: None)
    await world.deploy(flow)
    assert await run(world, flow, Invitation("Ben", HOUR, timedelta(hours=2, minutes=30)), timeout=9999) == [
        "Ben has not answered 2 reminders"
    ]
    with pytest.raises(FlowNotActiveOrNotFoundError):
        await world.client.invoke_rpc(flow.answer, world.id("flow"), True)


@scenario()
async def test_an_answer_at_the_very_deadline_counts_or_is_refused_but_never_both(world: World) -> None:
    flow = ReminderFlow(lambda guest, text: None)
    await world.deploy(flow)
    for number, early in enumerate([0.0, 0.001, 0.01]):
        name = f"guest {number}"
        await world.start(flow, name, Invitation("Cleo", HOUR, timedelta(minutes=10)))
        await world.advance(600 - early)
        try:
            await world.client.invoke_rpc(flow.answer, world.id(name), False)
            confirmed = True
        except FlowNotActiveOrNotFoundError:
            confirmed = False
        (said,) = outputs(await world.result(name))
        assert confirmed or said == "Cleo has not answered 0 reminders"


@scenario()
async def test_each_sign_of_life_starts_the_timer_anew(world: World) -> None:
    await world.deploy(resettable_timer.flow)
    await world.start(resettable_timer.flow, "machine", HOUR)
    for number in range(5):
        await world.advance(3500)
        await world.client.invoke_rpc(resettable_timer.flow.sign, world.id("machine"), f"sign {number}")
    last = now()
    assert outputs(await world.result("machine", 4000)) == ["silent since: sign 4"]
    assert 3600 <= now() - last < 3601


@scenario()
async def test_a_session_ends_when_its_user_has_done_nothing_for_an_hour(world: World) -> None:
    await world.deploy(inactivity_tracker.flow)
    await world.start(inactivity_tracker.flow, "session", (HOUR, HOUR))
    for _ in range(100):
        await world.advance(60)
        await world.client.invoke_rpc(inactivity_tracker.flow.act, world.id("session"))
    last = now()
    assert outputs(await world.result("session", 4000)) == ["ended after 100 actions"]
    assert 3600 <= now() - last < 3602
    steps = sum(kind == "StepCompleted" for kind in await world.kinds("session"))
    assert steps <= 3, "a Step for each action"


@scenario()
async def test_a_session_without_any_action_ends_too(world: World) -> None:
    await world.deploy(inactivity_tracker.flow)
    assert await run(world, inactivity_tracker.flow, (HOUR, HOUR), timeout=4000) == ["ended after 0 actions"]
