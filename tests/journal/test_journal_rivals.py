"""Owners that write at the same time what only one of them may write.

The invariants: a history has no hole and no record twice; its epochs never go down; every record that a writer was
told is durable is in it, and none that it was told is fenced; what an owner has claimed and loaded is not made longer
by one that came before it; one run of a Flow ID is current.
"""

from __future__ import annotations

import threading
from collections import Counter

import pytest
from sqlalchemy import create_engine, select

from dexray.journal import Journal, Outcome
from dexray.journal.schema import events
from tests.journal.builders import CLOSED, record, start
from tests.journal.conftest import OpenJournal

DURABLE, FENCED, CONFLICT = Outcome.DURABLE, Outcome.FENCED, Outcome.CONFLICT
OWNERS, ROUNDS = 4, 25


def together(number: int, work: object) -> None:
    assert callable(work)
    errors: list[BaseException] = []

    def run(index: int) -> None:
        try:
            work(index)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(index,)) for index in range(number)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert errors == []


@pytest.mark.statement("B202")
def test_owners_that_fight_for_a_run_leave_one_history(
    journal_url: str, journal: Journal, another: OpenJournal
) -> None:
    """Each believes that it is the owner: it claims, loads and writes until it is fenced, and then again."""
    journal.append([start("r1"), start("r2")])
    journals = [another() for _ in range(OWNERS)]
    told: list[list[tuple[str, bytes, Outcome]]] = [[] for _ in range(OWNERS)]
    loads: list[tuple[str, int, int]] = []
    begin = threading.Barrier(OWNERS)

    def fight(index: int) -> None:
        mine = journals[index]
        begin.wait()
        for number in range(ROUNDS):
            epochs = mine.claim(["r1", "r2"], "host-1")
            ends = {}
            for run_id in epochs:
                loaded = mine.load(run_id)
                assert loaded is not None
                ends[run_id] = loaded.tail[-1].seq
                loads.append((run_id, epochs[run_id], ends[run_id]))
            for seq in (1, 2):
                order = ["r1", "r2"] if index % 2 else ["r2", "r1"]
                batch = [
                    record(
                        run_id,
                        ends[run_id] + seq,
                        epoch=epochs[run_id],
                        body=f"{index} {number} {seq}".encode(),
                        blobs={f"h{(index + n) % 3}": b"shared" for n in range(2)},
                    )
                    for run_id in order
                ]
                outcomes = mine.append(batch)
                told[index] += [(each.run_id, each.body, end) for each, end in zip(batch, outcomes, strict=True)]

    together(OWNERS, fight)
    engine = create_engine(journal_url)
    with engine.connect() as connection:
        columns = select(events.c.seq, events.c.epoch, events.c.body).order_by(events.c.seq)
        histories = {
            run_id: [tuple(row) for row in connection.execute(columns.where(events.c.run_id == run_id))]
            for run_id in ("r1", "r2")
        }
    engine.dispose()
    for run_id, history in histories.items():
        assert [seq for seq, _, _ in history] == list(range(1, len(history) + 1))
        epochs = [epoch for _, epoch, _ in history]
        assert epochs == sorted(epochs)
        for _, claimed, end in [load for load in loads if load[0] == run_id]:
            assert all(epoch >= claimed for epoch in epochs[end:])
        durable = [body for each in told for of, body, outcome in each if of == run_id and outcome is DURABLE]
        assert Counter(body for _, _, body in history[1:]) == Counter(durable)
    outcomes = Counter(outcome for each in told for _, _, outcome in each)
    assert set(outcomes) <= {DURABLE, FENCED}
    assert outcomes[DURABLE] >= 2


@pytest.mark.parametrize("replaces", ["", "old"])
def test_of_starts_of_one_flow_id_at_the_same_time_one_wins(
    journal: Journal, another: OpenJournal, replaces: str
) -> None:
    flows = 20
    if replaces:
        journal.append([start(f"old-{flow}", f"flow-{flow}", change=CLOSED) for flow in range(flows)])
    journals = [another() for _ in range(OWNERS)]
    outcomes: list[list[Outcome]] = [[] for _ in range(flows)]
    begin = [threading.Barrier(OWNERS) for _ in range(flows)]

    def begin_all(index: int) -> None:
        for flow in range(flows):
            new = start(f"new-{flow}-{index}", f"flow-{flow}", replaces=f"old-{flow}" if replaces else "")
            begin[flow].wait()
            outcomes[flow] += journals[index].append([new])

    together(OWNERS, begin_all)
    expected = sorted([DURABLE, *[CONFLICT] * (OWNERS - 1)], key=str)
    assert [sorted(each, key=str) for each in outcomes] == [expected] * flows
    assert len(journal.list_runs()[0]) == flows


def test_one_lease_has_one_holder(journal: Journal, another: OpenJournal) -> None:
    journals = [another() for _ in range(OWNERS)]
    rounds = 15
    holders: list[set[str]] = [set() for _ in range(rounds)]
    begin = [threading.Barrier(OWNERS) for _ in range(rounds)]

    def acquire(index: int) -> None:
        for number in range(rounds):
            begin[number].wait()
            lease = journals[index].acquire_lease(f"lease-{number}", f"holder-{index}", 20.0, now=10.0)
            holders[number].add(lease.holder)

    together(OWNERS, acquire)
    assert [len(each) for each in holders] == [1] * rounds
