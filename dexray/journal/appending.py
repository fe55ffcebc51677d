"""`append` and `read_back`: the hot path of the journal.

A batch costs one SELECT for the epochs and ends of all its runs, one executemany for the records, and one statement
more for each kind of thing that rides along. Changes of one run within a batch are folded into one, so a run's row is
written once a batch at most.

Whether the writer's owner has begun a later life is learned on the way: the row that has it is read with the epochs,
and by itself only for a batch that does nothing but start runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from sqlalchemy import Connection, bindparam, delete, func, insert, select, update

from dexray.journal import marks, schema
from dexray.journal.blobs import NotStaged, Staged
from dexray.journal.database import Database, Prepared
from dexray.journal.interface import Append, IndexEntry, NewRun, Outcome, RunChange
from dexray.journal.verdicts import Current, Standing, judge

BLOBS = "blobs"
"""The lock between those who refer to blobs and the one who frees them."""

ASK_FROM = 1 << 20  # bytes of a blob

RUNNING = "RUNNING"  # the status of a run until a record changes it


class Appender:
    """The prepared statements of one database's hot path."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self.life: tuple[str, int] | None = None  # the owner that the journal speaks for, and which life of it
        runs, events, owners = schema.runs, schema.events, schema.owners
        newest_life = select(owners.c.life).where(owners.c.owner == bindparam("owner"))
        last_seq = select(func.max(events.c.seq)).where(events.c.run_id == runs.c.run_id).scalar_subquery()
        # Locked on databases where a transaction does not have the whole file to itself: in one order, so that two
        # writers don't wait for each other.
        standings = (
            select(newest_life.scalar_subquery(), runs.c.run_id, runs.c.epoch, last_seq)
            .where(database.among(runs.c.run_id))
            .order_by(runs.c.run_id)
            .with_for_update(of=runs)
        )
        current = select(runs.c.flow_id, runs.c.run_id, runs.c.closed_at.is_(None))
        current = current.where(database.among(runs.c.flow_id), runs.c.is_current)
        present = select(events.c.epoch, events.c.body).where(
            events.c.run_id == bindparam("run_id"), events.c.seq == bindparam("seq")
        )
        # The run is named: by the Flow ID alone, a start that was judged a moment ago could retire another start's run.
        retire = (
            update(runs)
            .values(is_current=False)
            .where(runs.c.run_id == bindparam("of_run"), runs.c.flow_id == bindparam("of_flow"), runs.c.is_current)
        )

        self._standings = self._prepare(standings, "owner", "ids")
        self._current = self._prepare(current, "ids")
        self._newest_life = self._prepare(newest_life, "owner")
        self._present = self._prepare(present, "run_id", "seq")
        self._retire = self._prepare(retire, "is_current", "of_run", "of_flow")
        self._insert_runs = self._prepare(insert(runs), *runs.columns.keys())
        self._insert_events = self._prepare(insert(events), *events.columns.keys())
        # Not "if new": a request that is answered a second time breaks the key, and the batch is judged with more care.
        self._insert_requests = self._prepare(insert(schema.requests), *schema.requests.columns.keys())
        answered = select(schema.requests.c.run_id).where(
            schema.requests.c.flow_id == bindparam("flow_id"), schema.requests.c.request_id == bindparam("request_id")
        )
        self._answered = self._prepare(answered, "flow_id", "request_id")
        self._insert_blobs = self._prepare(database.insert_if_new(schema.blobs), *schema.blobs.columns.keys())
        places = schema.blob_places
        self._insert_places = self._prepare(database.insert_if_new(places), *places.columns.keys())
        self._known = self._prepare(select(schema.blobs.c.hash).where(database.among(schema.blobs.c.hash)), "ids")
        self._insert_refs = self._prepare(database.insert_if_new(schema.blob_refs), *schema.blob_refs.columns.keys())
        index = schema.attribute_index
        stale = delete(index).where(index.c.run_id == bindparam("of_run"), index.c.source == bindparam("of_source"))
        self._forget_entries = self._prepare(stale, "of_run", "of_source")
        self._insert_entries = self._prepare(insert(index), *index.columns.keys())
        self._put_checkpoints = self._prepare(database.upsert(schema.checkpoints), *schema.checkpoints.columns.keys())
        self._put_marks = self._prepare(marks.put(database), *schema.store_marks.columns.keys())
        theirs = select(bindparam("heir", type_=schema.Ident), schema.blob_refs.c.hash)
        theirs = theirs.where(schema.blob_refs.c.run_id == bindparam("of_run"))
        self._inherit_refs = self._prepare(
            insert(schema.blob_refs).from_select(["run_id", "hash"], theirs), "heir", "of_run"
        )
        # Only the columns that change are named: to name an indexed one costs the index, whatever is written.
        self._changes: dict[tuple[str, ...], Prepared] = {}

    def append(
        self,
        connection: Connection,
        batch: Sequence[Append],
        *,
        careful: bool = False,
        staged: Staged | None = None,
    ) -> list[Outcome]:
        """`careful`: looks up first which requests have an answer. Without it, the database refuses the whole batch for
        one that has. `staged`: where the large values lie, when that is not here. Raises NotStaged when they do not lie
        there any more."""
        if staged is not None:
            self._check_staged(connection, staged)
        answered = self._answers(connection, batch) if careful else None
        standing = self._standing(connection, batch)
        if standing is None:
            return [Outcome.FENCED] * len(batch)
        outcomes = judge(batch, *standing, answered)
        self._store(
            connection,
            [record for record, outcome in zip(batch, outcomes, strict=True) if outcome is Outcome.DURABLE],
            staged,
        )
        return outcomes

    def _check_staged(self, connection: Connection, staged: Staged) -> None:
        staged.check_age()
        if staged.known:
            self._database.hold(connection, BLOBS, shared=True)
            ids = self._database.ids(staged.known)
            if len(self._known.rows(connection, (ids,))) < len(staged.known):
                raise NotStaged

    def read_back(self, connection: Connection, batch: Sequence[Append]) -> list[Outcome | None]:
        """A record is there when it is ours: the same place may have been taken by another owner's record since."""
        there = [
            any(
                tuple(row) == (record.epoch, record.body)
                for row in self._present.rows(connection, (record.run_id, record.seq))
            )
            for record in batch
        ]
        missing = [record for record, found in zip(batch, there, strict=True) if not found]
        standing = self._standing(connection, missing)
        if standing is None:
            return [Outcome.DURABLE if found else Outcome.FENCED for found in there]
        verdicts = iter(judge(missing, *standing, self._answers(connection, missing)))
        outcomes: list[Outcome | None] = []
        for found in there:
            verdict = Outcome.DURABLE if found else next(verdicts)
            outcomes.append(None if verdict is Outcome.DURABLE and not found else verdict)
        return outcomes

    def put_blobs(
        self, connection: Connection, blobs: Iterable[tuple[str, str, bytes]], staged: Staged | None = None
    ) -> None:
        """Stores (run_id, hash, body); of bodies that were staged, where they lie."""
        rows = sorted(blobs, key=lambda row: row[1])  # in one order, or two writers could wait for each other
        # Against the one who frees blobs: one that is there, and is not written again, must not go before the
        # reference to it is seen.
        self._database.hold(connection, BLOBS, shared=True)
        if staged is None:
            known = self._large_and_known(connection, rows)
            new = [(digest, len(body), body) for _, digest, body in rows if digest not in known]
            self._insert_blobs.many(connection, new)
        else:
            placed = [(digest, len(body), staged.names[digest]) for _, digest, body in rows if digest in staged.names]
            self._insert_blobs.many(connection, [(digest, size, b"") for digest, size, _ in placed])
            self._insert_places.many(connection, [(digest, staged.store, name) for digest, _, name in placed])
        self._insert_refs.many(connection, [(run_id, digest) for run_id, digest, _ in rows])

    def _large_and_known(self, connection: Connection, rows: Sequence[tuple[str, str, bytes]]) -> set[str]:
        """Large ones that are there already: to hand them to the database, only for it to leave them aside, would take
        longer than to ask. They can't go away any more before this transaction ends."""
        large = {digest for _, digest, body in rows if len(body) >= ASK_FROM}
        if not large:
            return set()
        return {digest for (digest,) in self._known.rows(connection, (self._database.ids(large),))}

    def _answers(self, connection: Connection, batch: Sequence[Append]) -> set[tuple[str, str]]:
        requests = {(request.flow_id, request.request_id) for record in batch for request in record.requests}
        return {request for request in requests if self._answered.rows(connection, request)}

    def _prepare(self, statement: Any, *parameters: str) -> Prepared:
        return Prepared(statement, self._database.dialect, parameters)

    def _standing(
        self, connection: Connection, batch: Sequence[Append]
    ) -> tuple[dict[str, Standing], dict[str, Current]] | None:
        """What the batch is judged by; None when its writer is outlived."""
        owner, life = self.life or ("", None)
        run_ids = {record.run_id for record in batch}
        run_ids.update(record.new_run.blobs_of for record in batch if record.new_run and record.new_run.blobs_of)
        rows = self._standings.rows(connection, (owner, self._database.ids(run_ids)))
        if life is not None:
            newest = rows or self._newest_life.rows(connection, (owner,))
            if not newest or newest[0][0] != life:
                return None
        standings = {run_id: Standing(epoch, last_seq or 0) for _, run_id, epoch, last_seq in rows}
        flow_ids = {record.new_run.flow_id for record in batch if record.new_run is not None}
        if not flow_ids:
            return standings, {}
        current = self._current.rows(connection, (self._database.ids(flow_ids),))
        return standings, {flow_id: Current(run_id, bool(is_open)) for flow_id, run_id, is_open in current}

    def _store(self, connection: Connection, records: Sequence[Append], staged: Staged | None) -> None:
        events: list[tuple[Any, ...]] = []
        new_runs: dict[str, tuple[Append, NewRun]] = {}
        current: dict[str, str] = {}
        replacing: list[tuple[Any, ...]] = []
        changes: dict[str, RunChange] = {}
        requests: list[tuple[Any, ...]] = []
        blobs: list[tuple[str, str, bytes]] = []
        checkpoints: dict[str, tuple[Any, ...]] = {}
        index: dict[tuple[str, str], tuple[IndexEntry, ...]] = {}
        behind: dict[tuple[str, str], tuple[Any, ...]] = {}
        for record in records:
            run_id = record.run_id
            events.append((run_id, record.seq, record.epoch, record.at, record.body))
            if record.new_run is not None:
                new_runs[run_id] = (record, record.new_run)
                current[record.new_run.flow_id] = run_id
                if record.new_run.replaces:
                    replacing.append((False, record.new_run.replaces, record.new_run.flow_id))
            if record.change is not None:
                changes[run_id] = _folded(changes.get(run_id), record.change)
            for key, answer in _first_answers(record).items():
                requests.append((*key, run_id, answer))
            for digest, body in record.blobs.items():
                blobs.append((run_id, digest, body))
            if record.checkpoint is not None:
                checkpoints[run_id] = (run_id, record.seq, record.checkpoint)
            for source, entries in record.index.items():
                index[run_id, source] = entries
            for mark in record.marks:
                row = (mark.store, mark.flow_id, run_id, record.seq, record.at, mark.image)
                behind[mark.store, mark.flow_id] = row

        # Old runs make room before new ones come: the database allows one current run of a Flow ID at any moment.
        self._retire.many(connection, replacing)
        self._insert_runs.many(
            connection,
            [_new_row(record, new, changes.pop(record.run_id, None), current) for record, new in new_runs.values()],
        )
        self._insert_events.many(connection, events)
        self._change_runs(connection, changes)
        self._insert_requests.many(connection, requests)
        heirs = [(record.run_id, new.blobs_of) for record, new in new_runs.values() if new.blobs_of]
        self._inherit_refs.many(connection, heirs)
        if blobs:
            self.put_blobs(connection, blobs, staged)
        self._put_checkpoints.many(connection, list(checkpoints.values()))
        if index:
            self._forget_entries.many(connection, [place for place in index if place[0] not in new_runs])
            self._insert_entries.many(
                connection, [row for place, entries in index.items() for row in _rows(place, entries)]
            )
        # In one order, or two writers could wait for each other: a row is its Flow ID's, and may change its owner.
        self._put_marks.many(connection, [behind[place] for place in sorted(behind)])

    def _change_runs(self, connection: Connection, changes: dict[str, RunChange]) -> None:
        rows: dict[tuple[str, ...], list[tuple[Any, ...]]] = {}
        for run_id, change in changes.items():
            values = {name: value for name in RunChange.__slots__ if (value := getattr(change, name)) is not None}
            if values:
                rows.setdefault(tuple(values), []).append((*values.values(), run_id))
        for columns, parameters in rows.items():
            prepared = self._changes.get(columns)
            if prepared is None:
                statement = update(schema.runs).where(schema.runs.c.run_id == bindparam("of_run"))
                statement = statement.values({name: bindparam(name) for name in columns})
                prepared = self._changes[columns] = self._prepare(statement, *columns, "of_run")
            prepared.many(connection, parameters)


def _rows(place: tuple[str, str], entries: Sequence[IndexEntry]) -> Iterable[tuple[Any, ...]]:
    run_id, source = place
    for position, entry in enumerate(entries):
        yield (
            run_id,
            entry.key,
            source,
            position,
            entry.type,
            entry.word,
            entry.whole,
            entry.real,
            entry.shown,
        )


def _first_answers(record: Append) -> dict[tuple[str, str], bytes]:
    answers: dict[tuple[str, str], bytes] = {}
    for request in record.requests:
        answers.setdefault((request.flow_id, request.request_id), request.answer)
    return answers


def _folded(earlier: RunChange | None, later: RunChange) -> RunChange:
    if earlier is None:
        return later
    return RunChange(
        status=earlier.status if later.status is None else later.status,
        closed_at=earlier.closed_at if later.closed_at is None else later.closed_at,
        next_wake=earlier.next_wake if later.next_wake is None else later.next_wake,
    )


def _new_row(record: Append, new: NewRun, change: RunChange | None, current: dict[str, str]) -> tuple[Any, ...]:
    change = change or RunChange()
    return (
        record.run_id,
        new.flow_id,
        new.flow_type,
        RUNNING if change.status is None else change.status,
        new.owner,
        record.epoch,
        new.request_id,
        new.started_at,
        change.closed_at,
        0.0 if change.next_wake is None else change.next_wake,
        current[new.flow_id] == record.run_id,
        new.parent,
    )
