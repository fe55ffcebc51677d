"""All that can happen in small worlds, for what is easiest to get wrong: waits, cancellation, closing, retries,
conditional completion, SubFlows. `python -m tests.simulation --small` walks the full ones."""

from __future__ import annotations

import pytest

from tests.simulation.mutants import MUTANTS
from tests.simulation.small import World, explore
from tests.simulation.small_worlds import COUNTED, IDLE, REDUCED

FOUND_HERE = {  # seeded bugs, and a world that shows each of them
    "any_of prefers Channels to Timers": "waits",
    "a Channel condition takes one message more than its maximum": "waits",
    "every ready Channel of an any_of is consumed": "waits",
    "a publication wakes no waiter": "waits",
    "Timers fire a second early": "waits",
    "a late result of an older attempt is taken": "retry",
    "a result is taken though the Step is not running": "retry",
    "a retry comes before its time": "retry",
    "a new owner does not interrupt what was handed out": "retry",
    "a cancelled Step keeps the messages that it consumed": "cancel",
    "graceful completion does not wait for the other branches": "close",
    "a dead end after a graceful completion leaves the Flow open": "a SubFlow",
}


@pytest.mark.statement("B88", "B89", "B106", "B113", "B115", "B124", "B125", "B127", "B128", "D6")
@pytest.mark.parametrize("name", REDUCED)
def test_every_interleaving_keeps_the_rules(name: str) -> None:
    stories, crashes = REDUCED[name]
    count = explore(stories, crashes)
    assert count.ends
    assert count.outcomes["COMPLETED"]
    assert count.interleavings > count.states > crashes


def test_two_flows_that_share_nothing_meet_together_what_each_meets_alone() -> None:
    pair = World((COUNTED, IDLE), 2, 100_000)
    pair.explore()
    for number, story in enumerate((COUNTED, IDLE)):
        alone = World((story,) if number == 0 else (IDLE,), 2, 100_000)
        alone.explore()
        assert len(pair.met(number)) == len(alone.met(0)) > 20


@pytest.mark.parametrize("what", FOUND_HERE)
def test_a_seeded_bug_is_met_in_a_small_world(what: str) -> None:
    (one,) = (one for one in MUTANTS if one.what == what)
    with one.applied(), pytest.raises(AssertionError, match="after: "):
        explore(*REDUCED[FOUND_HERE[what]])
