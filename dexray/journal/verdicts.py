"""Which records of a batch may be written: fencing, and one current run per Flow ID, with no SQL in it.

A batch is judged in its order, and earlier records count for later ones: a run may be created and appended to in one
batch, and a run may replace another that the same batch created. The first record of a run that is refused takes the
run's later records of the batch with it, with the same verdict; a hole in a history would be worse than a late one.
Other runs are not affected.

A request has one answer. A record that brings a second one is refused, whatever its epoch: its writer took up a call
that was done before, under another owner perhaps.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from dexray.journal.interface import Append, Outcome


class Standing(NamedTuple):
    """Where a run's history ends, and under which epoch it may be continued."""

    epoch: int
    last_seq: int


class Current(NamedTuple):
    """The current run of a Flow ID."""

    run_id: str
    is_open: bool


def judge(
    batch: Iterable[Append],
    runs: dict[str, Standing],
    current: dict[str, Current],
    answered: set[tuple[str, str]] | None = None,
) -> list[Outcome]:
    """One outcome per append, in order; DURABLE means that it may be written.

    `runs` has the standing of every run of the batch that the database knows, and of those whose blobs are
    inherited; `current` has the current run of the
    Flow IDs that the batch starts; `answered` the requests of the batch that have an answer, where that was looked up.
    All are brought up to where they will stand after the batch.
    """
    outcomes: list[Outcome] = []
    closed: set[str] = set()  # runs that the batch itself closes
    refused: dict[str, Outcome] = {}
    for record in batch:
        outcome = refused.get(record.run_id)
        if outcome is None:
            known = runs.get(record.run_id)
            if record.new_run is not None:
                outcome = _judge_start(
                    record, record.new_run.replaces, known, current.get(record.new_run.flow_id), closed
                )
                if record.new_run.blobs_of and record.new_run.blobs_of not in runs:
                    outcome = Outcome.CONFLICT  # it was removed, and its blobs may be gone
            elif known is None or known.epoch != record.epoch or known.last_seq + 1 != record.seq:
                # A run that isn't there, another owner's run, or a hole: in each case the writer does not know the
                # history's end.
                outcome = Outcome.FENCED
            else:
                outcome = Outcome.DURABLE
            if answered is not None and outcome is Outcome.DURABLE:
                outcome = _judge_requests(record, answered)
            if outcome is Outcome.DURABLE:
                if record.new_run is not None:
                    current[record.new_run.flow_id] = Current(record.run_id, is_open=True)
                if record.change is not None and record.change.closed_at is not None:
                    closed.add(record.run_id)
                runs[record.run_id] = Standing(record.epoch, record.seq)
            else:
                refused[record.run_id] = outcome
        outcomes.append(outcome)
    return outcomes


def _judge_start(
    record: Append, replaces: str, known: Standing | None, current: Current | None, closed: set[str]
) -> Outcome:
    if current is not None and current.run_id != replaces:
        return Outcome.CONFLICT
    if current is not None and current.is_open and current.run_id not in closed:
        return Outcome.CONFLICT  # the end of the old run is durable before a new one begins
    if known is not None or record.seq != 1:
        return Outcome.FENCED
    return Outcome.DURABLE


def _judge_requests(record: Append, answered: set[tuple[str, str]]) -> Outcome:
    """What was asked for is done already: its writer does not know of it, and would do it again."""
    requests = {(request.flow_id, request.request_id) for request in record.requests}
    if requests & answered:
        return Outcome.FENCED
    answered |= requests
    return Outcome.DURABLE
