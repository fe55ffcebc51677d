"""A journal in memory that obeys the same interface as the real ones, for millions of schedules.

`Database` is the truth that all owners share, `MemoryJournal` one owner's connection to it. The rules of appends are
written out here once more, and not taken from `dexray.journal.verdicts`: the journal conformance suite runs over this
one too. `Database.taps` are told of every record that became durable and of every change of an owner, as it happens.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from dexray.journal.interface import (
    NEVER,
    Append,
    Journal,
    Lease,
    LoadedRun,
    NewMessage,
    Outcome,
    Outlived,
    Record,
    RunRow,
    StoredDeployment,
    StoredMessage,
)
from dexray.journal.rows import Position, page_token, position_of

DURABLE, FENCED, CONFLICT = Outcome.DURABLE, Outcome.FENCED, Outcome.CONFLICT


class Tap(Protocol):
    def durable(self, who: str, record: Append) -> None: ...

    def refused(self, who: str, record: Append, there: Append | None) -> None: ...

    def owned(self, who: str, run_id: str, epoch: int) -> None: ...

    def lives(self, who: str, owner: str) -> None: ...


class Run:
    """A row of `runs` with its records."""

    __slots__ = (
        "checkpoint",
        "closed_at",
        "epoch",
        "flow_id",
        "flow_type",
        "is_current",
        "next_wake",
        "owner",
        "records",
        "request_id",
        "run_id",
        "started_at",
        "status",
    )

    def __init__(self, record: Append) -> None:
        new = record.new_run
        assert new is not None
        self.run_id = record.run_id
        self.flow_id = new.flow_id
        self.flow_type = new.flow_type
        self.status = "RUNNING"
        self.owner = new.owner
        self.epoch = record.epoch
        self.request_id = new.request_id
        self.started_at = new.started_at
        self.closed_at: float | None = None
        self.next_wake = 0.0
        self.is_current = True
        self.records: list[Append] = []
        self.checkpoint: tuple[int, bytes | None] = (0, None)

    @property
    def is_open(self) -> bool:
        return self.is_current and self.closed_at is None

    def row(self) -> RunRow:
        return RunRow(
            self.run_id,
            self.flow_id,
            self.flow_type,
            self.status,
            self.owner,
            self.epoch,
            self.request_id,
            self.started_at,
            self.closed_at,
            self.next_wake,
            self.is_current,
        )


class Database:
    def __init__(self) -> None:
        self.runs: dict[str, Run] = {}
        self.order: list[str] = []  # run ids, sorted
        self.current: dict[str, Run] = {}
        self.answers: dict[tuple[str, str], bytes] = {}
        self.blobs: dict[str, bytes] = {}
        self.deployments: dict[str, StoredDeployment] = {}
        self.newest: dict[str, str] = {}
        self.leases: dict[str, Lease] = {}
        self.lives: dict[str, int] = {}
        self.streams: dict[tuple[str, str], tuple[int, list[StoredMessage]]] = {}
        self.taps: list[Tap] = []

    def verdict(self, record: Append) -> Outcome:
        """Whether the record may be written now."""
        run = self.runs.get(record.run_id)
        again = any((request.flow_id, request.request_id) in self.answers for request in record.requests)
        if record.new_run is not None:
            current = self.current.get(record.new_run.flow_id)
            if current is not None and (current.run_id != record.new_run.replaces or current.is_open):
                return CONFLICT
            return DURABLE if run is None and record.seq == 1 and not again else FENCED
        if again or run is None or run.epoch != record.epoch or record.seq != len(run.records) + 1:
            return FENCED
        return DURABLE

    def write(self, who: str, record: Append) -> None:
        run = self.runs.get(record.run_id)
        new = record.new_run
        if new is not None:
            old = self.current.get(new.flow_id)
            if old is not None:
                old.is_current = False
            run = self.runs[record.run_id] = self.current[new.flow_id] = Run(record)
            insort(self.order, record.run_id)
            for tap in self.taps:
                tap.owned(who, record.run_id, record.epoch)
        assert run is not None
        run.records.append(record)
        change = record.change
        if change is not None:
            if change.status is not None:
                run.status = change.status
            if change.closed_at is not None:
                run.closed_at = change.closed_at
            if change.next_wake is not None:
                run.next_wake = change.next_wake
        for request in record.requests:
            self.answers.setdefault((request.flow_id, request.request_id), request.answer)
        for digest, body in record.blobs.items():
            self.blobs.setdefault(digest, body)
        if record.checkpoint is not None:
            run.checkpoint = (record.seq, record.checkpoint)
        for tap in self.taps:
            tap.durable(who, record)

    def refuse(self, who: str, record: Append) -> None:
        run = self.runs.get(record.run_id)
        there = run.records[record.seq - 1] if run is not None and record.seq <= len(run.records) else None
        for tap in self.taps:
            tap.refused(who, record, there)


class MemoryJournal(Journal):
    def __init__(self, database: Database, who: str = "") -> None:
        self.database = database
        self.who = who
        self.life: tuple[str, int] | None = None

    def migrate(self) -> None:
        pass

    def close(self) -> None:
        pass

    # Appends

    def append(self, batch: Sequence[Append]) -> list[Outcome]:
        database = self.database
        if self._is_outlived():
            return [FENCED] * len(batch)
        outcomes: list[Outcome] = []
        refused: dict[str, Outcome] = {}
        for record in batch:
            outcome = refused.get(record.run_id) if refused else None
            if outcome is None:
                outcome = database.verdict(record)
                if outcome is DURABLE:
                    database.write(self.who, record)
                else:
                    refused[record.run_id] = outcome
                    database.refuse(self.who, record)
            outcomes.append(outcome)
        return outcomes

    def read_back(self, batch: Sequence[Append]) -> list[Outcome | None]:
        """As if those that are missing were written now; but they are not."""
        runs = self.database.runs
        outcomes: list[Outcome | None] = []
        ends: dict[str, int] = {}
        current = {name: run.run_id for name, run in self.database.current.items()}
        is_open = {run.run_id for run in self.database.current.values() if run.is_open}
        outlived = self._is_outlived()
        refused: dict[str, Outcome] = {}
        answered = set(self.database.answers)
        for record in batch:
            run = runs.get(record.run_id)
            if run is not None and record.seq <= len(run.records):
                there = run.records[record.seq - 1]
                if (there.epoch, there.body) == (record.epoch, record.body):
                    outcomes.append(DURABLE)
                    continue
            outcome = FENCED if outlived else refused.get(record.run_id)
            if outcome is None:
                end = ends.get(record.run_id, len(run.records) if run is not None else 0)
                if record.new_run is not None:
                    found = current.get(record.new_run.flow_id, "")
                    if found not in ("", record.new_run.replaces) or found in is_open:
                        outcome = CONFLICT
                    elif end or run is not None or record.seq != 1:
                        outcome = FENCED
                elif not end or (run is not None and run.epoch != record.epoch) or record.seq != end + 1:
                    outcome = FENCED
                requests = {(request.flow_id, request.request_id) for request in record.requests}
                if outcome is None and requests & answered:
                    outcome = FENCED
                if outcome is None:
                    if record.new_run is not None:
                        current[record.new_run.flow_id] = record.run_id
                        is_open.add(record.run_id)
                    if record.change is not None and record.change.closed_at is not None:
                        is_open.discard(record.run_id)
                    answered |= requests
                    ends[record.run_id] = record.seq
                else:
                    refused[record.run_id] = outcome
            outcomes.append(outcome)
        return outcomes

    # Owners

    def begin_life(self, owner: str) -> None:
        lives = self.database.lives
        lives[owner] = lives.get(owner, 0) + 1
        self.life = (owner, lives[owner])
        for tap in self.database.taps:
            tap.lives(self.who, owner)

    def _is_outlived(self) -> bool:
        return self.life is not None and self.database.lives[self.life[0]] != self.life[1]

    def claim(self, run_ids: Sequence[str], owner: str) -> dict[str, int]:
        if self._is_outlived():
            raise Outlived(f"a later life of {owner} has begun")
        claimed = {}
        for run_id in run_ids:
            run = self.database.runs.get(run_id)
            if run is not None and run.owner == owner and run_id not in claimed:
                run.epoch += 1
                claimed[run_id] = run.epoch
                for tap in self.database.taps:
                    tap.owned(self.who, run_id, run.epoch)
        return claimed

    def reassign(self, from_owner: str, to_owner: str, limit: int) -> list[str]:
        if from_owner == to_owner:
            raise ValueError(f"Runs of owner {from_owner!r} can't be reassigned to itself.")
        runs = (self.database.runs[run_id] for run_id in self.database.order)
        moved = [run for run in runs if run.is_open and run.owner == from_owner][: max(0, limit)]
        for run in moved:
            run.owner = to_owner
            run.epoch += 1
            for tap in self.database.taps:
                tap.owned("", run.run_id, run.epoch)
        return [run.flow_id for run in moved]

    def move(self, run_id: str, from_owner: str, to_owner: str) -> bool:
        run = self.database.runs.get(run_id)
        if run is None or run.owner != from_owner:
            return False
        run.owner = to_owner
        run.epoch += 1
        for tap in self.database.taps:
            tap.owned("", run.run_id, run.epoch)
        return True

    # Runs

    def current_run(self, flow_id: str) -> RunRow | None:
        run = self.database.current.get(flow_id)
        return None if run is None else run.row()

    def current_runs(self, flow_ids: Iterable[str]) -> list[RunRow]:
        found = (self.current_run(flow_id) for flow_id in flow_ids)
        return [row for row in found if row is not None]

    def find_run(self, run_id: str) -> RunRow | None:
        run = self.database.runs.get(run_id)
        return None if run is None else run.row()

    def load(self, run_id: str) -> LoadedRun | None:
        run = self.database.runs.get(run_id)
        if run is None:
            return None
        seq, checkpoint = run.checkpoint
        return LoadedRun(run.row(), checkpoint, seq, tuple(map(_record, run.records[seq:])))

    def load_all(self, run_ids: Iterable[str]) -> dict[str, LoadedRun]:
        found = {run_id: self.load(run_id) for run_id in run_ids}
        return {run_id: loaded for run_id, loaded in found.items() if loaded is not None}

    def records(self, run_id: str, after_seq: int, limit: int) -> list[Record]:
        run = self.database.runs.get(run_id)
        after = max(0, after_seq)
        return [] if run is None else list(map(_record, run.records[after : after + max(0, limit)]))

    def open_runs(self, owner: str, after_run_id: str, limit: int, due_by: float = NEVER) -> list[RunRow]:
        runs = self.database.runs
        found = (runs[run_id] for run_id in self.database.order if run_id > after_run_id)
        due = [run for run in found if run.is_open and run.owner == owner and run.next_wake <= due_by]
        return [run.row() for run in due[: max(0, limit)]]

    def owners_of_open_runs(self) -> dict[str, int]:
        counts: dict[str, int] = {}
        for run in self.database.runs.values():
            if run.is_open:
                counts[run.owner] = counts.get(run.owner, 0) + 1
        return counts

    def list_runs(
        self, *, status: str = "", flow_type: str = "", page_size: int = 100, page_token: str = ""
    ) -> tuple[list[RunRow], str]:
        if page_size < 1:
            raise ValueError(f"A page of {page_size} runs can't be listed: page_size is at least 1.")
        found = sorted(
            (
                run
                for run in self.database.runs.values()
                if run.is_current and status in ("", run.status) and flow_type in ("", run.flow_type)
            ),
            key=lambda run: (-run.started_at, run.run_id),
        )
        if page_token:
            last = position_of(page_token)
            found = [run for run in found if (-run.started_at, run.run_id) > (-last.started_at, last.run_id)]
        page = [run.row() for run in found[:page_size]]
        more = len(found) > page_size
        return page, _token(Position(page[-1].started_at, page[-1].run_id)) if more else ""

    def recorded_answer(self, flow_id: str, request_id: str) -> bytes | None:
        return self.database.answers.get((flow_id, request_id))

    # Blobs, deployments, leases

    def put_blobs(self, run_id: str, blobs: Mapping[str, bytes]) -> None:
        for digest, body in blobs.items():
            self.database.blobs.setdefault(digest, body)

    def get_blobs(self, hashes: Iterable[str]) -> dict[str, bytes]:
        found = self.database.blobs
        return {digest: found[digest] for digest in sorted(hashes) if digest in found}

    def put_deployment(self, deployment: StoredDeployment, flow_types: Sequence[str]) -> None:
        self.database.deployments.setdefault(deployment.deployment_id, deployment)
        self.database.newest.update(dict.fromkeys(flow_types, deployment.deployment_id))

    def newest_deployments(self) -> dict[str, str]:
        return dict(self.database.newest)

    def get_deployment(self, deployment_id: str) -> StoredDeployment | None:
        return self.database.deployments.get(deployment_id)

    def acquire_lease(self, name: str, holder: str, expires_at: float, now: float, take_from: str = "") -> Lease:
        held = self.database.leases.get(name)
        if held is not None and held.expires_at > now and held.holder not in (holder, take_from or holder):
            return held
        lease = self.database.leases[name] = Lease(name, holder, expires_at)
        return lease

    def find_lease(self, name: str) -> Lease | None:
        return self.database.leases.get(name)

    def release_lease(self, name: str, holder: str) -> None:
        held = self.database.leases.get(name)
        if held is not None and held.holder == holder:
            del self.database.leases[name]

    # Streams

    def append_messages(self, batch: Sequence[NewMessage]) -> None:
        capacities: dict[tuple[str, str], int] = {}
        for message in batch:
            key = (message.flow_id, message.stream)
            last, kept = self.database.streams.get(key, (0, []))
            kept = [*kept, StoredMessage(last + 1, message.created_at, message.source, message.payload)]
            self.database.streams[key] = (last + 1, kept)
            capacities[key] = message.capacity
        for key, capacity in capacities.items():
            last, kept = self.database.streams[key]
            while len(kept) > 1 and sum(len(one.payload) for one in kept) > capacity:
                kept = kept[1:]
            self.database.streams[key] = (last, kept)

    def read_messages(
        self, flow_id: str, stream: str, after_seq: int, limit: int, max_bytes: int = 1 << 20
    ) -> list[StoredMessage]:
        last, kept = self.database.streams.get((flow_id, stream), (0, []))
        if after_seq > last:
            after_seq = 0
        found: list[StoredMessage] = []
        size = 0
        for message in kept:
            if message.seq > after_seq and len(found) < limit:
                size += len(message.payload)
                if found and size > max_bytes:
                    break
                found.append(message)
        return found

    def list_messages(self, flow_id: str, stream: str, before_seq: int, limit: int) -> list[StoredMessage]:
        _, kept = self.database.streams.get((flow_id, stream), (0, []))
        found = [message for message in reversed(kept) if not before_seq or message.seq < before_seq]
        return found[: max(0, limit)]


def _record(written: Append) -> Record:
    return Record(written.seq, written.at, written.body)


def _token(position: Position) -> str:
    return page_token(position)


__all__ = ["Any", "Database", "MemoryJournal", "Run", "Tap"]
