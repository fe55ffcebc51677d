"""A connection to PostgreSQL that is cut between two statements, or between COMMIT and its answer.

The invariant: after a `JournalUnavailable`, `read_back` tells for each record whether it is there, and what it says
stays true. Whoever writes what is missing, and repeats the calls that are not appends, ends where an undisturbed life
ends: nothing is there twice, and nothing is missing.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence

import pytest

from dexray.journal import (
    NEVER,
    Append,
    Journal,
    JournalUnavailable,
    NewMessage,
    Outcome,
    RequestAnswer,
    RunChange,
    StoredDeployment,
    open_journal,
)
from tests.journal.builders import CLOSED, record, start
from tests.postgres import postgres_server
from tests.wire_proxy import Cut, Wire

DURABLE, FENCED, CONFLICT = Outcome.DURABLE, Outcome.FENCED, Outcome.CONFLICT

COMMIT = b"COMMIT\0"  # not the isolation level READ COMMITTED

pytestmark = [pytest.mark.statement("D14")]


class Place:
    """A database, a journal that reaches it over a wire, and one that reaches it directly."""

    def __init__(self) -> None:
        self.server = postgres_server()
        self.url = self.server.new_database()
        self.name = self.url.partition("@/")[2].partition("?")[0]
        self.wire = Wire(self.server)
        self.witness = open_journal(self.url)
        self.witness.migrate()
        self.journal = open_journal(self.wire.url(self.name), patience=10.0)
        self.journal.append([start("r1", "f1"), record("r1", 2), start("r2", "f2")])

    def close(self) -> None:
        self.journal.close()
        self.witness.close()
        self.wire.__exit__(None, None, None)
        self.server.drop_database(self.url)

    def ask(self, question: str) -> list[tuple[object, ...]]:
        return self.server.ask(question, self.name)

    def everything(self) -> dict[str, object]:
        """All rows of all tables that calls write."""
        tables = ["runs", "events", "checkpoints", "requests", "blobs", "blob_refs", "deployments", "leases", "streams"]
        tables += ["flow_deployments", "stream_messages"]
        return {table: sorted(self.ask(f"SELECT {table}::text FROM {table}")) for table in tables}


@pytest.fixture
def place() -> Iterator[Place]:
    made = Place()
    yield made
    made.close()


def settle(journal: Journal, batch: Sequence[Append]) -> list[Outcome]:
    """As the committer does: reads back what is there, writes what is not, until all is known."""
    known: dict[int, Outcome] = {}
    for _ in range(5):
        left = [index for index in range(len(batch)) if index not in known]
        try:
            for index, outcome in zip(left, journal.read_back([batch[index] for index in left]), strict=True):
                if outcome is not None:
                    known[index] = outcome
            left = [index for index in left if index not in known]
            if left:
                known.update(zip(left, journal.append([batch[index] for index in left]), strict=True))
            return [known[index] for index in range(len(batch))]
        except JournalUnavailable:
            continue
    raise AssertionError("never settled")


ANSWER = RequestAnswer("f1", "q1", b"yes")
APPENDS: dict[str, list[Append]] = {
    "a start": [start("r3", "f3", requests=(RequestAnswer("f3", "q", b"started"),))],
    "a start in another's place": [
        record("r1", 3, change=CLOSED),
        start("r3", "f1", replaces="r1", blobs_of="r1", blobs={"h": b"body"}),
    ],
    "a record": [record("r1", 3)],
    "a record with an answer": [record("r1", 3, requests=(ANSWER,), change=RunChange(next_wake=NEVER))],
    "a record with a checkpoint and blobs": [record("r1", 3, checkpoint=b"state", blobs={"h": b"body"})],
    "a close": [record("r1", 3, change=RunChange(status="COMPLETED", closed_at=9.0))],
    "a batch": [record("r1", 3), start("r3", "f3"), record("r2", 2), record("r3", 2), record("r1", 4)],
}
REPEATABLE: dict[str, Callable[[Journal], object]] = {
    "a move to another owner": lambda journal: journal.reassign("host-1", "host-2", 10),
    "blobs": lambda journal: journal.put_blobs("r1", {"h1": b"one", "h2": b"two"}),
    "a deployment": lambda journal: journal.put_deployment(StoredDeployment("d1", 1.0, b"spec", b"code"), ["A", "B"]),
    "a lease": lambda journal: journal.acquire_lease("engine", "me", 20.0, now=10.0),
    "the end of a lease": lambda journal: journal.release_lease("engine", "me"),
}


@pytest.mark.parametrize("how", list(Cut), ids=lambda how: how.name)
@pytest.mark.parametrize("kind", APPENDS)
def test_a_commit_that_is_cut_off_happens_once(place: Place, kind: str, how: Cut) -> None:
    batch = APPENDS[kind]
    place.wire.cut_when(COMMIT, how)
    with pytest.raises(JournalUnavailable):
        place.journal.append(batch)
    assert place.wire.cuts == 1
    told = place.journal.read_back(batch)
    # Without an end, the server may still have been at work: reading back waited for it.
    expected = None if how is Cut.BEFORE else DURABLE
    assert told == [expected] * len(batch)
    assert settle(place.journal, batch) == [DURABLE] * len(batch)
    after = place.everything()
    assert place.journal.read_back(batch) == [DURABLE] * len(batch)
    for run_id in ("r1", "r2", "r3"):
        seqs = [found.seq for found in place.witness.records(run_id, 0, 100)]
        assert seqs == list(range(1, len(seqs) + 1))
    assert place.everything() == after == undisturbed(lambda journal: journal.append(batch))


@pytest.mark.parametrize("how", [Cut.BEFORE, Cut.AFTER], ids=lambda how: how.name)
@pytest.mark.parametrize("kind", REPEATABLE)
def test_other_commits_that_are_cut_off_can_be_repeated(place: Place, kind: str, how: Cut) -> None:
    call = REPEATABLE[kind]
    place.wire.cut_when(COMMIT, how)
    with pytest.raises(JournalUnavailable):
        call(place.journal)
    call(place.journal)
    assert place.everything() == undisturbed(call)


def undisturbed(call: Callable[[Journal], object]) -> dict[str, object]:
    """What is in a database after a call that nothing happened to."""
    place = Place()
    try:
        call(place.journal)
        return place.everything()
    finally:
        place.close()


def test_a_claim_that_is_cut_off_and_repeated_still_fences_the_epochs_before(place: Place) -> None:
    place.wire.cut_when(COMMIT, Cut.AFTER)
    with pytest.raises(JournalUnavailable):
        place.journal.claim(["r1"], "host-1")
    (epoch,) = place.journal.claim(["r1"], "host-1").values()
    assert epoch == 3
    assert place.witness.append([record("r1", 3, epoch=1)]) == [FENCED]
    assert place.journal.append([record("r1", 3, epoch=epoch)]) == [DURABLE]


@pytest.mark.parametrize("how", [Cut.BEFORE, Cut.AFTER], ids=lambda how: how.name)
def test_wherever_a_batch_is_cut_off_it_happens_once(place: Place, how: Cut) -> None:
    """The connection ends at the first piece that the client sends, at the second one, and so on."""
    seq = 2
    for piece in range(1, 100):
        seq += 1
        batch = [record("r1", seq, checkpoint=str(seq).encode()), start(f"n{seq}", f"flow-{seq}")]
        place.wire.cut_at(piece, how)
        cuts = place.wire.cuts
        try:
            outcomes = place.journal.append(batch)
        except JournalUnavailable:
            outcomes = settle(place.journal, batch)
        assert outcomes == [DURABLE, DURABLE]
        assert [found.seq for found in place.witness.records("r1", 0, 1000)] == list(range(1, seq + 1))
        if place.wire.cuts == cuts:  # there is no such piece any more
            break
    assert piece > 2
    assert len(place.ask("SELECT * FROM runs WHERE run_id LIKE 'n%'")) == piece


def wait_until(what: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_reading_back_waits_for_a_commit_that_is_still_under_way(place: Place) -> None:
    """The client is cut off while the server is in the middle of COMMIT. Until that is over, nobody can know."""
    place.ask(
        "CREATE FUNCTION hold() RETURNS trigger LANGUAGE plpgsql AS "
        "'BEGIN PERFORM pg_advisory_xact_lock_shared(42); RETURN NULL; END'"
    )
    place.ask(
        "CREATE CONSTRAINT TRIGGER hold AFTER INSERT ON events DEFERRABLE INITIALLY DEFERRED FOR EACH ROW "
        "EXECUTE FUNCTION hold()"
    )
    import psycopg

    batch = [record("r1", 3), start("r3", "f3")]
    told: list[Outcome | None] = []
    with psycopg.connect(place.server.url(place.name), autocommit=True) as gate:
        gate.execute("SELECT pg_advisory_lock(42)")
        place.wire.cut_when(COMMIT, Cut.WITHOUT_END)
        with pytest.raises(JournalUnavailable):
            place.journal.append(batch)
        reading = threading.Thread(target=lambda: told.extend(place.journal.read_back(batch)))
        reading.start()
        waiting = (
            "SELECT 1 FROM pg_locks JOIN pg_database ON database = pg_database.oid AND datname = current_database() "
            "WHERE locktype = 'advisory' AND NOT granted"
        )
        wait_until(lambda: len(place.ask(waiting)) == 2 or not reading.is_alive())
        assert told == []
    reading.join(60)
    assert told == [DURABLE, DURABLE]
    assert [found.seq for found in place.witness.records("r1", 0, 10)] == [1, 2, 3]


def test_a_connection_that_died_while_nobody_used_it_is_replaced(place: Place) -> None:
    place.wire.cut_all()
    assert place.journal.append([record("r1", 3)]) == [DURABLE]
    place.wire.cut_all()
    assert place.journal.find_run("r1") is not None
    place.wire.cut_all()
    assert place.journal.load("r1") is not None


def test_while_the_wire_is_down_every_call_is_unavailable_at_once_and_then_goes_on(place: Place) -> None:
    place.wire.down()
    calls: list[Callable[[], object]] = [
        lambda: place.journal.append([record("r1", 3)]),
        lambda: place.journal.find_run("r1"),
        lambda: place.journal.load("r1"),
        lambda: place.journal.claim(["r1"], "host-1"),
        lambda: place.journal.append_messages([NewMessage("f1", "s", 1.0, "me", b"x", 100)]),
        place.journal.migrate,
    ]
    for call in calls:
        with pytest.raises(JournalUnavailable, match="can't be reached"):
            call()
    place.wire.down(False)
    assert place.journal.append([record("r1", 3)]) == [DURABLE]
    assert place.server.connections_to(place.name) == 2
