"""A Flow's pending outcome as the next record of its run: the events, and what rides along with them."""

from __future__ import annotations

from dex.wire.specs import FlowSpec
from dexray.engine.indexing import index_changes
from dexray.engine.live import LiveFlow, Pending
from dexray.engine.marking import store_marks
from dexray.engine.settings import HostSettings
from dexray.journal.interface import Append, RunChange
from dexray.machine.events import FlowClosed, encode_record
from dexray.machine.state import encode_checkpoint

CHECKPOINT_ANYWAY = 10_000  # records without a checkpoint, after which one is written however large the state is


def next_record(live: LiveFlow, pending: Pending, now: float, settings: HostSettings, spec: FlowSpec | None) -> Append:
    """The next record of the run, and the Flow's counters moved on. Nothing has changed when it raises."""
    body = encode_record(pending.events)
    checkpoint = _checkpoint(live, len(body), settings)
    index = index_changes(live, pending, spec)
    marks = store_marks(live, pending, settings, spec)
    live.seq += 1
    live.last_used = now
    return Append(
        run_id=live.run_id,
        epoch=live.epoch,
        seq=live.seq,
        at=now,
        body=body,
        new_run=pending.new_run,
        change=_change(live, pending),
        requests=tuple(pending.requests),
        blobs=pending.blobs,
        checkpoint=checkpoint,
        index=index,
        marks=marks,
    )


def _change(live: LiveFlow, pending: Pending) -> RunChange | None:
    state = live.flow.state
    wake = live.next_wake()
    closed = any(isinstance(event, FlowClosed) for event in pending.events)
    if not closed and wake == live.stored_wake:
        return None
    live.stored_wake = wake
    return RunChange(
        status=state.status if closed else None, closed_at=state.closed_at if closed else None, next_wake=wake
    )


def _checkpoint(live: LiveFlow, size: int, settings: HostSettings) -> bytes | None:
    records, tail = live.records_since_checkpoint + 1, live.bytes_since_checkpoint + size
    checkpoint = None
    # A state larger than the usual tail is not written (nor encoded) again for each tail: the cost per record stays
    # bounded.
    if (records >= settings.checkpoint_records or tail >= settings.checkpoint_bytes) and _is_worth(
        live.checkpoint_size, records, tail
    ):
        checkpoint = encode_checkpoint(live.flow)
        live.checkpoint_size = len(checkpoint)
        if not _is_worth(live.checkpoint_size, records, tail):
            checkpoint = None
    live.records_since_checkpoint = 0 if checkpoint is not None else records
    live.bytes_since_checkpoint = 0 if checkpoint is not None else tail
    return checkpoint


def _is_worth(checkpoint_size: int, records: int, tail: int) -> bool:
    return checkpoint_size <= 4 * tail or records >= CHECKPOINT_ANYWAY
