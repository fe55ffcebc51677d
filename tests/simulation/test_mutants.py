"""The tester is tested: bugs put in on purpose are caught. Here are those that a few schedules find;
`python -m tests.simulation --mutants` hunts all of them."""

from __future__ import annotations

import pytest

from tests.simulation.mutants import MUTANTS, caught_by

QUICK = (
    "any_of prefers Channels to Timers",
    "a publication wakes no waiter",
    "Timers fire a second early",
    "a retry comes before its time",
    "one attempt too many",
    "of a fan-out the last Step is forgotten",
    "graceful completion does not wait for the other branches",
    "locks are not looked at",
    "retries see the Attributes as they are now",
    "execute is not told the locals of wait_for",
    "answers leave before they are durable",
    "attempts run before their start is durable",
    "a new owner does not interrupt what was handed out",
    "a new owner does not claim",
    "after an unknown outcome the batch is taken for written",
    "a slot is not given back when its record was refused",
    "after an unknown outcome the batch is written again without a look",
    "Attributes are told from memory",
    "a Flow that has closed is started anew whatever the policy says",
    "a detached attempt is interrupted with its owner",
    "a detached attempt that came too late is let go at once",
    "a life that was given up may write",
    "epochs are not compared",
    "two current runs of a Flow ID are allowed",
    "a record is lost now and then, though it was called durable",
    "the books try Channels before Timers",
)


def test_there_are_seeded_bugs_in_every_part() -> None:
    assert len(MUTANTS) >= 50
    assert {one.where for one in MUTANTS} == {"machine", "host", "journal", "auditor"}
    assert len({one.what for one in MUTANTS}) == len(MUTANTS)


@pytest.mark.parametrize("what", QUICK)
def test_a_seeded_bug_is_caught(what: str) -> None:
    (one,) = (one for one in MUTANTS if one.what == what)
    assert caught_by(one, limit=1500, seconds=200.0) is not None
