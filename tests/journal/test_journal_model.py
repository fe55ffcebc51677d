"""Random lives of runs under two owners: every journal does what the model does."""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from dexray.journal import Append, Journal, NewRun, Outcome, RequestAnswer, RunChange, open_journal
from tests.journal.conftest import empty, lent
from tests.journal.model import ModelJournal

RUNS = ("r1", "r2", "r3", "r4")
FLOWS = ("f1", "f2")
OWNERS = ("host-1", "host-2")

changes = st.none() | st.builds(
    RunChange,
    status=st.sampled_from([None, "COMPLETED", "FAILED"]),
    closed_at=st.sampled_from([None, 7.5]),
    next_wake=st.sampled_from([None, 0.0, 12.0]),
)
answers = st.lists(
    st.builds(RequestAnswer, st.sampled_from(FLOWS), st.sampled_from(["q1", "q2"]), st.binary(max_size=2)), max_size=2
).map(tuple)
stored = st.dictionaries(st.sampled_from(["h1", "h2"]), st.binary(max_size=2), max_size=1)
checkpoint = st.none() | st.binary(max_size=2)


class Life:
    """A journal and its model, and what each owner believes the epochs of its runs to be."""

    def __init__(self, journals: dict[str, Journal]) -> None:
        self.journals = journals
        self.model = ModelJournal()
        self.bodies = 0
        self.epochs: dict[str, dict[str, int]] = {owner: {} for owner in OWNERS}

    def append(self, data: st.DataObject, owner: str) -> None:
        batch = self._batch(data, owner)
        before = data.draw(st.sampled_from(["", "ask first", "ask after"]), "read_back")
        if before == "ask first":
            self._compare_read_back(batch, owner)
        expected = self.model.append(batch)
        assert self.journals[owner].append(batch) == expected
        if before == "ask after":
            told = self.journals[owner].read_back(batch)
            for outcome, verdict in zip(told, expected, strict=True):
                assert (outcome is Outcome.DURABLE) == (verdict is Outcome.DURABLE)

    def claim(self, data: st.DataObject, owner: str) -> None:
        run_ids = data.draw(st.lists(st.sampled_from(RUNS), max_size=3), "claimed")
        expected = self.model.claim(run_ids, owner)
        assert self.journals[owner].claim(run_ids, owner) == expected
        self.epochs[owner].update(expected)

    def reassign(self, data: st.DataObject, owner: str) -> None:
        other = OWNERS[1 - OWNERS.index(owner)]
        limit = data.draw(st.integers(0, 3), "limit")
        expected = self.model.reassign(other, owner, limit)
        assert sorted(self.journals[owner].reassign(other, owner, limit)) == sorted(expected)

    def remove(self, data: st.DataObject, owner: str) -> None:
        """The ids of runs are used again here, so all is cleared away at once."""
        run_id, journal = data.draw(st.sampled_from(RUNS), "removed"), self.journals[owner]
        assert journal.remove_run(run_id) == self.model.remove(run_id)
        while journal.clear_removed(data.draw(st.integers(1, 3), "cleared at once")):
            pass
        after = ""
        while True:
            _, after = journal.free_blobs(after, data.draw(st.integers(1, 3), "looked at together"))
            if not after:
                break

    def compare(self, owner: str) -> None:
        journal, model = self.journals[owner], self.model
        for run_id in RUNS:
            expected = model.runs.get(run_id)
            loaded = journal.load(run_id)
            assert journal.find_run(run_id) == (expected.row if expected else None)
            assert journal.records(run_id, 0, 1000) == (expected.records if expected else [])
            if expected is None:
                assert loaded is None
                continue
            assert loaded is not None
            seq, body = expected.checkpoint
            assert (loaded.row, loaded.checkpoint_seq, loaded.checkpoint) == (expected.row, seq, body)
            assert list(loaded.tail) == expected.records[seq:]
        for flow_id in FLOWS:
            found = journal.current_run(flow_id)
            assert (found.run_id if found else "") == model.current(flow_id)
            for request_id in ("q1", "q2"):
                assert journal.recorded_answer(flow_id, request_id) == model.answers.get((flow_id, request_id))
        assert journal.get_blobs(["h1", "h2"]) == model.blobs
        for name in OWNERS:
            mine = sorted(run_id for run_id, run in model.runs.items() if run.is_open and run.row.owner == name)
            assert [run.run_id for run in journal.open_runs(name, "", 10)] == mine
        listed, _ = journal.list_runs()
        assert {run.run_id for run in listed} == {run_id for run_id, run in model.runs.items() if run.row.is_current}

    def _compare_read_back(self, batch: Sequence[Append], owner: str) -> None:
        """Of records that were never written, the journal foretells what an append will say."""
        missing = [
            record for record in batch if record not in getattr(self.model.runs.get(record.run_id), "written", ())
        ]
        told = self.journals[owner].read_back(missing)
        trial = ModelJournal()
        trial.runs = {run_id: copy.deepcopy(run) for run_id, run in self.model.runs.items()}
        trial.answers = dict(self.model.answers)
        foretold = [None if outcome is Outcome.DURABLE else outcome for outcome in trial.append(missing)]
        assert told == foretold

    def _new_body(self) -> bytes:
        self.bodies += 1
        return str(self.bodies).encode()

    def _batch(self, data: st.DataObject, owner: str) -> list[Append]:
        batch: list[Append] = []
        ends = {run_id: len(run.written) for run_id, run in self.model.runs.items()}
        for _ in range(data.draw(st.integers(0, 6), "batch size")):
            run_id = data.draw(st.sampled_from(RUNS), "run")
            slip = data.draw(st.sampled_from([0, 0, 0, 0, 0, 1, -1]), "seq slips by")
            new_run = None
            if run_id not in ends or data.draw(st.integers(0, 9), "start again?") == 0:
                flow_id = data.draw(st.sampled_from(FLOWS), "flow")
                replaces = data.draw(st.sampled_from(["", self.model.current(flow_id), *RUNS]), "replaces")
                new_run = NewRun(flow_id, "Order", owner, f"start-{run_id}", float(len(batch)), replaces)
                self.epochs[owner].setdefault(run_id, 1)
            seq = 1 if new_run else ends[run_id] + 1 + slip
            ends[run_id] = seq
            batch.append(
                Append(
                    run_id,
                    self.epochs[owner].get(run_id, 1),
                    seq,
                    float(seq),
                    self._new_body(),
                    new_run=new_run,
                    change=data.draw(changes, "change"),
                    requests=data.draw(answers, "answers"),
                    blobs=data.draw(stored, "blobs"),
                    checkpoint=data.draw(checkpoint, "checkpoint"),
                )
            )
        return batch


@settings(max_examples=60, deadline=None, report_multiple_bugs=False)
@given(data=st.data())
def test_a_journal_does_what_the_model_does(data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as folder, opened("sqlite", Path(folder)) as (_, journals):
        compare_with_the_model(data, journals)


def test_a_journal_on_a_server_does_what_the_model_does_postgres(tmp_path: Path) -> None:
    """The journals stay open from one example to the next: to connect takes longer than an example."""
    with opened("postgres", tmp_path) as (url, journals):

        @settings(max_examples=60, deadline=None, report_multiple_bugs=False)
        @given(data=st.data())
        def check(data: st.DataObject) -> None:
            assert empty(url)
            compare_with_the_model(data, journals)

        check()


@contextmanager
def opened(backend: str, folder: Path) -> Iterator[tuple[str, dict[str, Journal]]]:
    """A journal for each owner."""
    with lent(backend, folder) as url:
        journals = {owner: open_journal(url) for owner in OWNERS}
        try:
            journals[OWNERS[0]].migrate()
            yield url, journals
        finally:
            for journal in journals.values():
                journal.close()


def compare_with_the_model(data: st.DataObject, journals: dict[str, Journal]) -> None:
    life = Life(journals)
    for _ in range(data.draw(st.integers(1, 10), "moves")):
        owner = data.draw(st.sampled_from(OWNERS), "owner")
        move = data.draw(
            st.sampled_from([life.append, life.append, life.append, life.claim, life.reassign, life.remove])
        )
        move(data, owner)
    life.compare(data.draw(st.sampled_from(OWNERS), "read by"))
