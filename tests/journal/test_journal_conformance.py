"""What every journal does with appends and owners, whatever database is behind it."""

from __future__ import annotations

import pytest

from dexray.journal import NEVER, Append, Journal, Outcome, Outlived, Record, RequestAnswer, RunChange, RunRow
from tests.journal.builders import CLOSED, record, start
from tests.journal.conftest import OpenJournal

DURABLE, FENCED, CONFLICT = Outcome.DURABLE, Outcome.FENCED, Outcome.CONFLICT


def bodies(journal: Journal, run_id: str) -> list[bytes]:
    return [found.body for found in journal.records(run_id, 0, 10_000)]


class TestAppending:
    def test_a_start_creates_the_run_and_its_first_record(self, journal: Journal) -> None:
        assert journal.append([start("r1", "f1", owner="host-9", started_at=12.5, body=b"\x00hi")]) == [DURABLE]
        assert journal.find_run("r1") == RunRow(
            run_id="r1",
            flow_id="f1",
            flow_type="Order",
            status="RUNNING",
            owner="host-9",
            epoch=1,
            request_id="request-of-r1",
            started_at=12.5,
            closed_at=None,
            next_wake=0.0,
            is_current=True,
        )
        assert journal.records("r1", 0, 10) == [Record(1, 12.5, b"\x00hi")]

    def test_a_start_may_carry_the_epoch_it_likes(self, journal: Journal) -> None:
        assert journal.append([start("r1", epoch=7)]) == [DURABLE]
        assert journal.append([record("r1", 2, epoch=1)]) == [FENCED]
        assert journal.append([record("r1", 2, epoch=7)]) == [DURABLE]

    def test_records_follow_over_calls_and_within_a_call(self, journal: Journal) -> None:
        assert journal.append([start("r1"), record("r1", 2), record("r1", 3)]) == [DURABLE] * 3
        assert journal.append([record("r1", 4)]) == [DURABLE]
        assert [found.seq for found in journal.records("r1", 0, 10)] == [1, 2, 3, 4]

    def test_an_empty_batch_is_nothing(self, journal: Journal) -> None:
        assert journal.append([]) == []

    def test_an_empty_body_is_a_record(self, journal: Journal) -> None:
        assert journal.append([start("r1", body=b""), record("r1", 2, body=b"")]) == [DURABLE, DURABLE]
        assert bodies(journal, "r1") == [b"", b""]

    def test_a_thousand_appends_are_one_batch(self, journal: Journal) -> None:
        batch: list[Append] = [start(f"r{n:03}") for n in range(250)]
        for seq in (2, 3, 4):
            batch += [record(f"r{n:03}", seq) for n in range(250)]
        assert journal.append(batch) == [DURABLE] * 1000
        assert [found.seq for found in journal.records("r249", 0, 10)] == [1, 2, 3, 4]
        assert journal.owners_of_open_runs() == {"host-1": 250}

    def test_what_was_appended_is_there_for_a_journal_opened_later(
        self, journal: Journal, another: OpenJournal
    ) -> None:
        journal.append([start("r1"), record("r1", 2, body=b"two")])
        journal.close()
        assert bodies(another(), "r1") == [b"started", b"two"]

    @pytest.mark.parametrize("flow_id", ["a/b:c#d?e%f@g", 'it\'s "quoted"', "naïve 東京 🚀", "\\u0000", "[1]", " "])
    def test_any_text_is_a_flow_id(self, journal: Journal, flow_id: str) -> None:
        assert journal.append([start("r1", flow_id)]) == [DURABLE]
        assert journal.append([start("r2", flow_id)]) == [CONFLICT]
        found = journal.current_run(flow_id)
        assert found is not None
        assert found.flow_id == flow_id


class TestChanges:
    def test_a_change_touches_only_what_it_names(self, journal: Journal) -> None:
        journal.append([start("r1", change=RunChange(next_wake=50.0))])
        journal.append([record("r1", 2, change=RunChange(status="COMPLETED", closed_at=60.0))])
        found = journal.find_run("r1")
        assert found is not None
        assert (found.status, found.closed_at, found.next_wake) == ("COMPLETED", 60.0, 50.0)

    def test_of_several_changes_in_a_batch_the_last_word_counts_for_each_column(self, journal: Journal) -> None:
        journal.append([start("new", change=RunChange(next_wake=1.0)), start("old")])
        journal.append(
            [
                record("old", 2, change=RunChange(status="FAILED", next_wake=3.0)),
                record("old", 3, change=RunChange(closed_at=4.0)),
                record("old", 4, change=RunChange(next_wake=NEVER)),
                record("old", 5, change=RunChange()),
                record("new", 2, change=RunChange(next_wake=9.0)),
            ]
        )
        old, new = journal.find_run("old"), journal.find_run("new")
        assert old is not None
        assert new is not None
        assert (old.status, old.closed_at, old.next_wake) == ("FAILED", 4.0, NEVER)
        assert (new.status, new.closed_at, new.next_wake) == ("RUNNING", None, 9.0)

    def test_a_run_may_be_created_changed_and_closed_in_one_batch(self, journal: Journal) -> None:
        change = RunChange(status="COMPLETED", closed_at=3.0)
        assert journal.append([start("r1"), record("r1", 2, change=change)]) == [DURABLE, DURABLE]
        found = journal.find_run("r1")
        assert found is not None
        assert (found.status, found.closed_at) == ("COMPLETED", 3.0)
        assert journal.open_runs("host-1", "", 10) == []


class TestFencing:
    def test_an_owner_that_lost_the_run_is_fenced_and_leaves_no_trace(
        self, journal: Journal, another: OpenJournal
    ) -> None:
        journal.append([start("r1", "f1", owner="old")])
        successor = another()
        assert successor.reassign("old", "new", 10) == ["f1"]
        late = record(
            "r1",
            2,
            change=RunChange(status="FAILED", closed_at=1.0),
            requests=(RequestAnswer("f1", "q1", b"late"),),
            blobs={"h1": b"late"},
            checkpoint=b"late",
        )
        assert journal.append([late]) == [FENCED]
        loaded = journal.load("r1")
        assert loaded is not None
        assert (loaded.row.status, loaded.row.owner, loaded.row.closed_at) == ("RUNNING", "new", None)
        assert (loaded.checkpoint, len(loaded.tail)) == (None, 1)
        assert journal.recorded_answer("f1", "q1") is None
        assert journal.get_blobs(["h1"]) == {}
        assert successor.append([record("r1", 2, epoch=2)]) == [DURABLE]

    def test_a_refused_run_does_not_hold_up_the_others_of_the_batch(self, journal: Journal) -> None:
        journal.append([start("mine"), start("lost")])
        journal.claim(["lost"], "host-1")
        outcomes = journal.append([record("mine", 2), record("lost", 2), record("mine", 3), start("fresh")])
        assert outcomes == [DURABLE, FENCED, DURABLE, DURABLE]
        assert [len(bodies(journal, run_id)) for run_id in ("mine", "lost", "fresh")] == [3, 1, 1]

    def test_the_first_refused_record_takes_the_later_ones_of_its_run_along(self, journal: Journal) -> None:
        journal.append([start("r1")])
        # The second record would fit on its own: it is refused because what its writer wrote before it is not there.
        assert journal.append([record("r1", 2, epoch=9), record("r1", 2)]) == [FENCED, FENCED]
        assert journal.append([record("r1", 2)]) == [DURABLE]

    @pytest.mark.parametrize("seq", [1, 2, 4, 5])
    def test_a_record_that_is_not_the_next_one_is_fenced(self, journal: Journal, seq: int) -> None:
        journal.append([start("r1"), record("r1", 2)])
        assert journal.append([record("r1", seq, body=b"out of turn")]) == [FENCED]
        assert b"out of turn" not in bodies(journal, "r1")

    def test_a_record_of_a_run_that_nobody_started_is_fenced(self, journal: Journal) -> None:
        assert journal.append([record("ghost", 1), record("ghost", 2)]) == [FENCED, FENCED]
        assert journal.find_run("ghost") is None

    def test_a_start_that_is_not_the_first_record_is_fenced(self, journal: Journal) -> None:
        begun = start("r1")
        late = Append("r1", 1, 2, begun.at, begun.body, new_run=begun.new_run)
        assert journal.append([late]) == [FENCED]

    def test_a_run_can_be_continued_after_it_was_replaced(self, journal: Journal) -> None:
        journal.append([start("r1", "f1", change=CLOSED)])
        outcomes = journal.append([start("r2", "f1", replaces="r1"), record("r1", 2)])
        assert outcomes == [DURABLE, DURABLE]


class TestOneCurrentRun:
    def test_a_second_run_of_a_flow_id_is_in_conflict(self, journal: Journal, another: OpenJournal) -> None:
        assert journal.append([start("r1", "f1")]) == [DURABLE]
        assert another().append([start("r2", "f1"), record("r2", 2)]) == [CONFLICT, CONFLICT]
        assert journal.find_run("r2") is None
        assert bodies(journal, "r2") == []

    def test_of_two_starts_in_one_batch_the_first_wins(self, journal: Journal) -> None:
        outcomes = journal.append([start("r1", "f1"), start("r2", "f1"), record("r2", 2), record("r1", 2)])
        assert outcomes == [DURABLE, CONFLICT, CONFLICT, DURABLE]

    def test_a_start_replaces_the_run_that_it_names(self, journal: Journal) -> None:
        journal.append([start("r1", "f1", change=CLOSED)])
        assert journal.append([start("r2", "f1", replaces="r1")]) == [DURABLE]
        current, old = journal.current_run("f1"), journal.find_run("r1")
        assert current is not None
        assert old is not None
        assert (current.run_id, old.is_current) == ("r2", False)

    @pytest.mark.statement("B51")
    def test_a_run_that_is_open_is_not_replaced(self, journal: Journal, another: OpenJournal) -> None:
        """Whoever wants it gone ends it first: its end is durable, or there is no new run."""
        journal.append([start("r1", "f1"), record("r1", 2)])
        late = [start("r2", "f1", replaces="r1"), record("r2", 2)]
        assert another().append(late) == [CONFLICT, CONFLICT]
        assert another().read_back(late) == [CONFLICT, CONFLICT]
        current = journal.current_run("f1")
        assert current is not None
        assert current.run_id == "r1"
        assert journal.append([record("r1", 3, change=CLOSED), start("r2", "f1", replaces="r1")]) == [DURABLE, DURABLE]
        assert journal.append([start("r3", "f1", replaces="r2"), record("r2", 2, change=CLOSED)]) == [CONFLICT, DURABLE]

    def test_a_start_that_names_a_run_of_the_past_is_in_conflict(self, journal: Journal) -> None:
        journal.append([start("r1", "f1", change=CLOSED)])
        journal.append([start("r2", "f1", replaces="r1")])
        assert journal.append([start("r3", "f1", replaces="r1")]) == [CONFLICT]

    def test_a_closed_run_stays_current_until_it_is_replaced(self, journal: Journal) -> None:
        journal.append([start("r1", "f1", change=RunChange(status="COMPLETED", closed_at=1.0))])
        assert journal.append([start("r2", "f1")]) == [CONFLICT]
        assert journal.append([start("r2", "f1", replaces="r1")]) == [DURABLE]

    def test_runs_may_replace_each_other_within_a_batch(self, journal: Journal) -> None:
        journal.append([start("r1", "f1", change=CLOSED)])
        outcomes = journal.append(
            [
                start("r2", "f1", replaces="r1", change=CLOSED),
                start("r3", "f1", replaces="r2"),
                start("r4", "f1", replaces="r2"),
            ]
        )
        assert outcomes == [DURABLE, DURABLE, CONFLICT]
        rows = [journal.find_run(run_id) for run_id in ("r1", "r2", "r3")]
        assert [row is not None and row.is_current for row in rows] == [False, False, True]

    def test_a_start_leaves_the_runs_of_other_flow_ids_alone(self, journal: Journal) -> None:
        journal.append([start("r1", "f1")])
        assert journal.append([start("r2", "f2", replaces="r1"), start("r3", "f3", replaces="r3")]) == [DURABLE] * 2
        assert [run.run_id for run in journal.open_runs("host-1", "", 10)] == ["r1", "r2", "r3"]

    def test_a_start_that_is_sent_again_is_refused(self, journal: Journal) -> None:
        journal.append([start("r1", "f1", change=CLOSED)])
        assert journal.append([start("r1", "f1")]) == [CONFLICT]
        journal.append([start("r2", "f1", replaces="r1", change=CLOSED)])
        assert journal.append([start("r1", "f1", replaces="r2")]) == [FENCED]


class TestReadingBack:
    def test_it_tells_what_is_there_from_what_is_not(self, journal: Journal) -> None:
        journal.append([start("r1"), record("r1", 2)])
        batch = [start("r1"), record("r1", 2), record("r1", 3), start("r2"), record("r2", 2)]
        assert journal.read_back(batch) == [DURABLE, DURABLE, None, None, None]
        assert journal.append(batch[2:]) == [DURABLE, DURABLE, DURABLE]
        assert journal.read_back(batch) == [DURABLE] * 5

    def test_a_record_is_durable_even_if_its_run_was_lost_since(self, journal: Journal) -> None:
        journal.append([start("r1")])
        journal.claim(["r1"], "host-1")
        assert journal.read_back([start("r1"), record("r1", 2)]) == [DURABLE, FENCED]

    def test_the_record_of_another_owner_in_the_same_place_is_not_ours(self, journal: Journal) -> None:
        journal.append([start("r1")])
        journal.claim(["r1"], "host-1")
        journal.append([record("r1", 2, epoch=2, body=b"same words")])
        assert journal.read_back([record("r1", 2, epoch=1, body=b"same words")]) == [FENCED]
        assert journal.read_back([record("r1", 2, epoch=2, body=b"other words")]) == [FENCED]
        assert journal.read_back([record("r1", 2, epoch=2, body=b"same words")]) == [DURABLE]

    def test_a_start_that_came_too_late_is_in_conflict(self, journal: Journal) -> None:
        journal.append([start("r1", "f1")])
        assert journal.read_back([start("r2", "f1"), record("r2", 2)]) == [CONFLICT, CONFLICT]

    def test_a_run_that_was_replaced_since_is_still_there(self, journal: Journal) -> None:
        journal.append([start("r1", "f1"), record("r1", 2, change=CLOSED)])
        journal.append([start("r2", "f1", replaces="r1")])
        assert journal.read_back([start("r1", "f1")]) == [DURABLE]

    def test_refused_records_read_back_as_refused(self, journal: Journal) -> None:
        journal.append([start("r1", "f1")])
        batch = [record("r1", 2), start("r2", "f1"), record("r1", 9), record("ghost", 3)]
        assert journal.read_back(batch) == [None, CONFLICT, FENCED, FENCED]
        assert journal.append(batch) == [DURABLE, CONFLICT, FENCED, FENCED]
        assert journal.read_back(batch) == [DURABLE, CONFLICT, FENCED, FENCED]

    def test_of_an_empty_batch_there_is_nothing_to_tell(self, journal: Journal) -> None:
        assert journal.read_back([]) == []


class TestOwners:
    def test_a_claim_raises_the_epoch_of_own_runs_only(self, journal: Journal) -> None:
        journal.append([start("a"), start("b"), start("c", owner="other")])
        assert journal.claim(["a", "b", "c", "ghost", "a"], "host-1") == {"a": 2, "b": 2}
        assert journal.claim(["a"], "host-1") == {"a": 3}
        assert journal.append([record("a", 2, epoch=3), record("c", 2)]) == [DURABLE, DURABLE]

    def test_no_runs_are_claimed_by_naming_none(self, journal: Journal) -> None:
        journal.append([start("a")])
        assert journal.claim([], "host-1") == {}

    def test_a_hundred_thousand_ids_are_not_too_many(self, journal: Journal) -> None:
        journal.append([start("a")])
        assert journal.claim([f"ghost-{n}" for n in range(100_000)] + ["a"], "host-1") == {"a": 2}

    def test_open_runs_move_up_to_a_limit(self, journal: Journal) -> None:
        journal.append([start(run_id, f"f-{run_id}", owner="old") for run_id in "abc"])
        journal.append([start("d", owner="other"), start("closed", owner="old", change=RunChange(closed_at=1.0))])
        journal.append([start("past", "p", owner="old", change=CLOSED)])
        journal.append([start("now", "p", owner="new", replaces="past")])
        assert journal.reassign("old", "new", 0) == []
        assert sorted(journal.reassign("old", "new", 2)) == ["f-a", "f-b"]
        assert journal.reassign("old", "new", 2) == ["f-c"]
        assert journal.reassign("old", "new", 2) == []
        assert journal.owners_of_open_runs() == {"new": 4, "other": 1}
        moved = journal.find_run("a")
        assert moved is not None
        assert (moved.owner, moved.epoch) == ("new", 2)

    def test_one_run_moves_open_or_closed_and_only_from_its_owner(self, journal: Journal) -> None:
        journal.append([start("a", owner="old"), start("closed", "c", owner="old", change=RunChange(closed_at=1.0))])
        for run_id in ("a", "closed"):
            assert journal.move(run_id, "old", "new") is True
            assert journal.move(run_id, "old", "another") is False
            moved = journal.find_run(run_id)
            assert moved is not None
            assert (moved.owner, moved.epoch) == ("new", 2)
        assert journal.move("ghost", "old", "new") is False

    def test_runs_are_not_reassigned_to_the_owner_they_have(self, journal: Journal) -> None:
        with pytest.raises(ValueError, match="host-1"):
            journal.reassign("host-1", "host-1", 10)


class TestLives:
    """An owner that was given up and wakes up is not the owner any more, of whatever run."""

    def test_a_later_life_fences_the_one_before_in_every_run_that_it_has_not_touched(
        self, journal: Journal, another: OpenJournal
    ) -> None:
        journal.begin_life("host-1")
        assert journal.append([start("r1"), start("r2")]) == [DURABLE, DURABLE]
        heir = another()
        heir.begin_life("host-1")
        assert journal.append([record("r1", 2), start("r3"), record("r3", 2)]) == [FENCED] * 3
        assert journal.append([start("r3")]) == [FENCED]
        assert journal.append([record("r1", 2)]) == [FENCED]
        assert (bodies(journal, "r1"), journal.find_run("r3")) == ([b"started"], None)
        assert heir.append([record("r1", 2), start("r3")]) == [DURABLE, DURABLE]

    def test_a_life_that_is_over_claims_nothing(self, journal: Journal, another: OpenJournal) -> None:
        journal.begin_life("host-1")
        journal.append([start("r1")])
        assert journal.claim(["r1"], "host-1") == {"r1": 2}
        heir = another()
        heir.begin_life("host-1")
        with pytest.raises(Outlived, match="host-1"):
            journal.claim(["r1"], "host-1")
        with pytest.raises(Outlived):
            journal.claim([], "host-1")
        run = journal.find_run("r1")
        assert run is not None
        assert run.epoch == 2
        assert heir.claim(["r1"], "host-1") == {"r1": 3}

    def test_what_a_life_has_written_is_told_to_it_when_it_is_over(
        self, journal: Journal, another: OpenJournal
    ) -> None:
        journal.begin_life("host-1")
        journal.append([start("r1")])
        another().begin_life("host-1")
        assert journal.read_back([start("r1"), record("r1", 2), start("r2")]) == [DURABLE, FENCED, FENCED]

    def test_the_life_of_one_owner_is_nothing_to_another(self, journal: Journal, another: OpenJournal) -> None:
        journal.begin_life("host-1")
        for owner in ("host-2", "host-2", "host-10", "host"):
            another().begin_life(owner)
        assert journal.append([start("r1"), record("r1", 2)]) == [DURABLE, DURABLE]
        assert journal.claim(["r1"], "host-1") == {"r1": 2}

    def test_who_never_began_a_life_is_not_judged_by_it(self, journal: Journal, another: OpenJournal) -> None:
        journal.append([start("r1")])
        another().begin_life("host-1")
        assert journal.append([record("r1", 2), start("r2")]) == [DURABLE, DURABLE]
        assert journal.claim(["r1"], "host-1") == {"r1": 2}


class TestAnswers:
    @pytest.mark.statement("D8")
    def test_the_first_answer_to_a_request_is_kept(self, journal: Journal) -> None:
        first, second = RequestAnswer("f1", "q1", b"first"), RequestAnswer("f1", "q1", b"second")
        assert journal.append([start("r1", "f1", requests=(first, second))]) == [DURABLE]
        assert journal.recorded_answer("f1", "q1") == b"first"

    @pytest.mark.statement("D8")
    def test_a_record_that_answers_a_request_again_is_refused(self, journal: Journal) -> None:
        """Its writer took up a call that was done before: it must not be done twice, by whatever owner."""
        answer = RequestAnswer("f1", "q1", b"first")
        journal.append([start("r1", "f1", requests=(answer,))])
        batch = [record("r1", 2, requests=(RequestAnswer("f1", "q1", b"again"),)), record("r1", 3), start("r2", "f2")]
        assert journal.append(batch) == [FENCED, FENCED, DURABLE]
        assert journal.recorded_answer("f1", "q1") == b"first"
        assert bodies(journal, "r1") == [b"started"]
        assert journal.append([record("r1", 2)]) == [DURABLE]

    @pytest.mark.statement("D8")
    def test_of_two_records_of_a_batch_that_answer_one_request_the_first_counts(self, journal: Journal) -> None:
        journal.append([start("r1", "f1")])
        answer = RequestAnswer("f1", "q1", b"first")
        assert journal.append([record("r1", 2, requests=(answer,)), record("r1", 3, requests=(answer,))]) == [
            DURABLE,
            FENCED,
        ]
        assert journal.recorded_answer("f1", "q1") == b"first"

    @pytest.mark.statement("D8")
    def test_a_start_that_was_done_before_begins_no_second_run(self, journal: Journal) -> None:
        answer = RequestAnswer("f1", "start:c1", b"r1")
        journal.append([start("r1", "f1", requests=(answer,), change=CLOSED)])
        assert journal.append([start("r2", "f1", replaces="r1", requests=(answer,))]) == [FENCED]
        found = journal.current_run("f1")
        assert found is not None
        assert found.run_id == "r1"

    @pytest.mark.statement("D8")
    def test_answers_are_scoped_to_their_flow_id_and_outlive_its_runs(self, journal: Journal) -> None:
        journal.append([start("r1", "f1", requests=(RequestAnswer("f1", "q1", b"of f1"),), change=CLOSED)])
        journal.append([start("r2", "f2", requests=(RequestAnswer("f2", "q1", b"of f2"),))])
        journal.append([start("r3", "f1", replaces="r1")])
        assert journal.recorded_answer("f1", "q1") == b"of f1"
        assert journal.recorded_answer("f2", "q1") == b"of f2"
        assert journal.recorded_answer("f1", "q2") is None

    def test_a_record_may_answer_several_requests(self, journal: Journal) -> None:
        answers = tuple(RequestAnswer("f1", f"q{n}", bytes([n])) for n in range(3))
        journal.append([start("r1", "f1", requests=answers)])
        assert [journal.recorded_answer("f1", f"q{n}") for n in range(3)] == [b"\0", b"\1", b"\2"]


class TestCheckpoints:
    def test_a_run_loads_from_its_newest_checkpoint_and_the_records_after_it(self, journal: Journal) -> None:
        journal.append([start("r1"), record("r1", 2, checkpoint=b"at 2"), record("r1", 3, checkpoint=b"at 3")])
        journal.append([record("r1", 4), record("r1", 5)])
        loaded = journal.load("r1")
        assert loaded is not None
        assert (loaded.checkpoint, loaded.checkpoint_seq) == (b"at 3", 3)
        assert [found.seq for found in loaded.tail] == [4, 5]
        assert loaded.row == journal.find_run("r1")

    def test_a_newer_checkpoint_takes_the_place_of_the_one_before(self, journal: Journal) -> None:
        journal.append([start("r1"), record("r1", 2, checkpoint=b"at 2")])
        journal.append([record("r1", 3, checkpoint=b"")])
        loaded = journal.load("r1")
        assert loaded is not None
        assert (loaded.checkpoint, loaded.checkpoint_seq, loaded.tail) == (b"", 3, ())

    def test_without_a_checkpoint_all_records_are_the_tail(self, journal: Journal) -> None:
        journal.append([start("r1"), record("r1", 2)])
        loaded = journal.load("r1")
        assert loaded is not None
        assert (loaded.checkpoint, loaded.checkpoint_seq) == (None, 0)
        assert [found.seq for found in loaded.tail] == [1, 2]

    def test_a_checkpoint_takes_no_history_away(self, journal: Journal) -> None:
        journal.append([start("r1"), record("r1", 2, checkpoint=b"at 2")])
        assert [found.seq for found in journal.records("r1", 0, 10)] == [1, 2]

    def test_there_is_nothing_to_load_of_a_run_that_is_not_there(self, journal: Journal) -> None:
        assert journal.load("ghost") is None

    def test_many_runs_load_together_as_each_does_alone(self, journal: Journal) -> None:
        journal.append([start(f"r{n}", f"f{n}") for n in range(5)])
        journal.append([record("r0", 2), record("r0", 3), record("r1", 2, checkpoint=b"r1 at 2"), record("r1", 3)])
        journal.append([record("r2", 2, checkpoint=b"r2 at 2")])
        wanted = ["r3", "ghost", "r1", "r0", "r2"]
        loaded = journal.load_all(wanted)
        assert loaded == {run_id: journal.load(run_id) for run_id in ("r0", "r1", "r2", "r3")}
        assert [record.seq for record in loaded["r0"].tail] == [1, 2, 3]
        assert ([record.seq for record in loaded["r1"].tail], loaded["r1"].checkpoint) == ([3], b"r1 at 2")
        assert loaded["r2"].tail == ()
        assert journal.load_all([]) == {}

    def test_the_current_runs_of_many_flows_are_found_together(self, journal: Journal) -> None:
        journal.append([start("r0", "f0"), start("r1", "f1", change=CLOSED), start("r2", "f2")])
        journal.append([start("again", "f1", replaces="r1")])
        found = journal.current_runs(["f1", "ghost", "f2"])
        assert sorted(row.run_id for row in found) == ["again", "r2"]
        assert found == [row for row in map(journal.current_run, [row.flow_id for row in found]) if row is not None]
        assert journal.current_runs([]) == []
