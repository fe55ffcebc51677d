"""The simulator in CI: a fixed set of schedules, and some that nobody has run before."""

from __future__ import annotations

import os

import pytest

from tests.simulation.campaign import in_order
from tests.simulation.schedule import draw, run_seed
from tests.simulation.shrink import shrink
from tests.simulation.story import story

FIXED = 300
SECONDS = 10.0  # of fresh ones


def tell(seed: int) -> str:
    return story(shrink(draw(seed), run_seed(seed), tries=150))


@pytest.mark.statement("D8", "D9", "D14", "B75", "B88", "B89", "B97", "B127", "B128", "B152")
def test_nothing_is_lost_or_doubled_in_the_fixed_schedules() -> None:
    tally = in_order(iter(range(FIXED)), seconds=600.0)
    assert not tally.failed, tell(tally.failed[0])
    assert tally.schedules == FIXED
    # It can't pass by failing, nor by doing nothing.
    assert tally.closed["COMPLETED"] > tally.schedules
    assert tally.steps > 4 * tally.schedules


def test_nothing_is_lost_or_doubled_in_fresh_schedules() -> None:
    first = int.from_bytes(os.urandom(4), "big")
    tally = in_order(iter(range(first, first + 100_000)), seconds=SECONDS)
    assert not tally.failed, tell(tally.failed[0])
