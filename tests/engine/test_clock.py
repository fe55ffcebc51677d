"""The engine's time: UTC that goes steadily, whoever sets the wall clock."""

from __future__ import annotations

import itertools
import logging
import time

import pytest

from dexray.engine.clock import CATCH_UP, LoopClock, time_passed

HOUR = 3600.0
NOON = 1_700_000_000.0


class Machine:
    """A machine with a wall clock that can be set, and time that passes."""

    def __init__(self) -> None:
        self.wall = NOON
        self.passed = 77.0

    def lasts(self, seconds: float) -> None:
        self.wall += seconds
        self.passed += seconds

    def clock(self) -> LoopClock:
        return LoopClock(wall=lambda: self.wall, passed=lambda: self.passed)


def test_it_shows_the_wall_clock_as_long_as_nobody_sets_it() -> None:
    machine = Machine()
    clock = machine.clock()
    for pause in (0.0, 0.001, 1.0, HOUR, 30 * 24 * HOUR):
        machine.lasts(pause)
        assert clock.now() == machine.wall


def test_drift_and_smears_are_followed() -> None:
    machine = Machine()
    clock = machine.clock()
    for _ in range(1000):
        machine.lasts(10.0)
        machine.wall += 0.05  # 5,000 ppm
        assert clock.now() == machine.wall


@pytest.mark.parametrize("step", [HOUR, -HOUR, 0.5, -0.5])
def test_when_the_wall_clock_is_set_no_time_has_passed(step: float) -> None:
    machine = Machine()
    clock = machine.clock()
    machine.lasts(10.0)
    before = clock.now()
    machine.wall += step
    assert clock.now() == pytest.approx(before, abs=1e-5)
    machine.lasts(60.0)
    assert clock.now() - before == pytest.approx(60.0, rel=CATCH_UP)


@pytest.mark.parametrize("step", [HOUR, -HOUR])
def test_it_meets_the_wall_clock_again_at_one_percent_and_stays_with_it(step: float) -> None:
    machine = Machine()
    clock = machine.clock()
    machine.wall += step
    last = clock.now()
    for _ in range(99):
        machine.lasts(HOUR)
        now = clock.now()
        assert HOUR * (1 - CATCH_UP) - 1e-3 <= now - last <= HOUR * (1 + CATCH_UP) + 1e-3
        assert now != pytest.approx(machine.wall, abs=1.0)
        last = now
    machine.lasts(1.01 * HOUR)
    assert clock.now() == machine.wall
    machine.lasts(1.0)
    assert clock.now() == machine.wall


def test_a_clock_that_is_set_there_and_back_has_not_moved() -> None:
    machine = Machine()
    clock = machine.clock()
    machine.wall += HOUR
    clock.now()
    machine.wall -= HOUR
    assert clock.now() == pytest.approx(machine.wall, abs=1e-5)


def test_a_step_between_two_looks_that_lie_far_apart_is_not_worked_off_at_once() -> None:
    machine = Machine()
    clock = machine.clock()
    begin = clock.now()
    machine.lasts(10 * HOUR)
    machine.wall += HOUR
    assert clock.now() - begin == pytest.approx(10 * HOUR, abs=1e-3)


def test_it_never_goes_back_when_the_wall_clock_does() -> None:
    machine = Machine()
    clock = machine.clock()
    seen = [clock.now()]
    for _ in range(50):
        machine.wall -= 60.0
        seen.append(clock.now())
        machine.lasts(0.5)
        seen.append(clock.now())
    assert all(later >= earlier - 1e-6 for earlier, later in itertools.pairwise(seen))


def test_the_sleep_of_the_machine_is_time_that_passed() -> None:
    machine = Machine()
    clock = machine.clock()
    begin = clock.now()
    machine.lasts(8 * HOUR)  # both clocks of a machine go on while it sleeps: see `time_passed`
    assert clock.now() - begin == 8 * HOUR
    name = "CLOCK_BOOTTIME" if hasattr(time, "CLOCK_BOOTTIME") else "CLOCK_MONOTONIC"
    assert time_passed() == pytest.approx(time.clock_gettime(getattr(time, name)), abs=60.0)


def test_a_new_clock_begins_with_the_wall_clock() -> None:
    machine = Machine()
    clock = machine.clock()
    machine.wall += HOUR
    clock.now()
    assert machine.clock().now() == machine.wall != clock.now()


def test_that_the_clock_was_set_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    machine = Machine()
    clock = machine.clock()
    machine.wall -= HOUR
    with caplog.at_level(logging.WARNING, logger="dexray.engine.clock"):
        clock.now()
        clock.now()
    assert [record.getMessage() for record in caplog.records] == [
        "the wall clock was set by -3600.0 s; durations that are under way stay as they are"
    ]


def test_timers_are_armed_early_rather_than_late_while_it_catches_up() -> None:
    machine = Machine()
    clock = machine.clock()
    assert clock._delay(NOON + 100.0) == 100.0
    machine.wall += HOUR  # it lags behind now, and goes faster
    assert clock._delay(clock.now() + 101.0) == pytest.approx(100.0)
    machine.wall -= 2 * HOUR  # it is ahead
    assert clock._delay(clock.now() + 100.0) == pytest.approx(100.0)
    assert clock._delay(clock.now() - 1.0) == 0.0
