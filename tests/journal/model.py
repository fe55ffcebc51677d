"""A journal in memory that is plain enough to be right by reading: what the real ones are compared with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from dexray.journal import Append, Outcome, Record, RunRow


@dataclass
class ModelRun:
    row: RunRow
    written: list[Append] = field(default_factory=list)
    checkpoint: tuple[int, bytes | None] = (0, None)

    @property
    def records(self) -> list[Record]:
        return [Record(record.seq, record.at, record.body) for record in self.written]

    @property
    def is_open(self) -> bool:
        return self.row.is_current and self.row.closed_at is None


class ModelJournal:
    def __init__(self) -> None:
        self.runs: dict[str, ModelRun] = {}
        self.answers: dict[tuple[str, str], bytes] = {}
        self.answered_by: dict[tuple[str, str], str] = {}
        self.blobs: dict[str, bytes] = {}

    def current(self, flow_id: str) -> str:
        for run_id, run in self.runs.items():
            if run.row.flow_id == flow_id and run.row.is_current:
                return run_id
        return ""

    def append(self, batch: Sequence[Append]) -> list[Outcome]:
        refused: dict[str, Outcome] = {}
        outcomes = []
        for record in batch:
            outcome = refused.get(record.run_id) or self._verdict(record)
            if outcome is Outcome.DURABLE:
                self._write(record)
            else:
                refused[record.run_id] = outcome
            outcomes.append(outcome)
        return outcomes

    def claim(self, run_ids: Sequence[str], owner: str) -> dict[str, int]:
        claimed = {}
        for run_id in set(run_ids):
            run = self.runs.get(run_id)
            if run is not None and run.row.owner == owner:
                run.row = replace(run.row, epoch=run.row.epoch + 1)
                claimed[run_id] = run.row.epoch
        return claimed

    def reassign(self, from_owner: str, to_owner: str, limit: int) -> list[str]:
        moved = [run for _, run in sorted(self.runs.items()) if run.is_open and run.row.owner == from_owner][:limit]
        for run in moved:
            run.row = replace(run.row, owner=to_owner, epoch=run.row.epoch + 1)
        return [run.row.flow_id for run in moved]

    def remove(self, run_id: str) -> bool:
        """Removes a run with all that it leaves, down to the blobs that no other run refers to."""
        run = self.runs.get(run_id)
        if run is None or run.row.closed_at is None:
            return False
        del self.runs[run_id]
        flow_id = run.row.flow_id
        left = [other for other in self.runs.values() if other.row.flow_id == flow_id]
        if left and not any(other.row.is_current for other in left):
            newest = max(left, key=lambda other: (other.row.started_at, other.row.run_id))
            newest.row = replace(newest.row, is_current=True)
        for key in [key for key, by in self.answered_by.items() if by == run_id and key[0] == flow_id]:
            del self.answers[key], self.answered_by[key]
        used = {digest for other in self.runs.values() for record in other.written for digest in record.blobs}
        self.blobs = {digest: body for digest, body in self.blobs.items() if digest in used}
        return True

    def _verdict(self, record: Append) -> Outcome:
        run = self.runs.get(record.run_id)
        again = any((request.flow_id, request.request_id) in self.answers for request in record.requests)
        if record.new_run is not None:
            current = self.current(record.new_run.flow_id)
            if current and (current != record.new_run.replaces or self.runs[current].is_open):
                return Outcome.CONFLICT
            return Outcome.DURABLE if run is None and record.seq == 1 and not again else Outcome.FENCED
        if again or run is None or run.row.epoch != record.epoch or record.seq != len(run.written) + 1:
            return Outcome.FENCED
        return Outcome.DURABLE

    def _write(self, record: Append) -> None:
        new = record.new_run
        if new is not None:
            if self.current(new.flow_id):
                old = self.runs[new.replaces]
                old.row = replace(old.row, is_current=False)
            row = RunRow(
                run_id=record.run_id,
                flow_id=new.flow_id,
                flow_type=new.flow_type,
                status="RUNNING",
                owner=new.owner,
                epoch=record.epoch,
                request_id=new.request_id,
                started_at=new.started_at,
                closed_at=None,
                next_wake=0.0,
                is_current=True,
            )
            self.runs[record.run_id] = ModelRun(row)
        run = self.runs[record.run_id]
        run.written.append(record)
        change = record.change
        if change is not None:
            run.row = replace(
                run.row,
                status=run.row.status if change.status is None else change.status,
                closed_at=run.row.closed_at if change.closed_at is None else change.closed_at,
                next_wake=run.row.next_wake if change.next_wake is None else change.next_wake,
            )
        for request in record.requests:
            self.answers.setdefault((request.flow_id, request.request_id), request.answer)
            self.answered_by.setdefault((request.flow_id, request.request_id), record.run_id)
        for digest, body in record.blobs.items():
            self.blobs.setdefault(digest, body)
        if record.checkpoint is not None:
            run.checkpoint = (record.seq, record.checkpoint)
