"""Appends for the tests of the journal: what a test does not say is the same everywhere."""

from __future__ import annotations

from collections.abc import Mapping

from dexray.journal import Append, IndexEntry, NewRun, RequestAnswer, RunChange, StoreMark

CLOSED = RunChange("COMPLETED", 200.0)


def start(
    run_id: str,
    flow_id: str = "",
    *,
    owner: str = "host-1",
    flow_type: str = "Order",
    replaces: str = "",
    blobs_of: str = "",
    parent: str | None = None,
    epoch: int = 1,
    started_at: float = 100.0,
    change: RunChange | None = None,
    body: bytes = b"started",
    requests: tuple[RequestAnswer, ...] = (),
    blobs: Mapping[str, bytes] | None = None,
    index: Mapping[str, tuple[IndexEntry, ...]] | None = None,
    marks: tuple[StoreMark, ...] = (),
) -> Append:
    """The first record of a run; its Flow ID is `flow-of-<run>` unless told."""
    new_run = NewRun(
        flow_id or f"flow-of-{run_id}", flow_type, owner, f"request-of-{run_id}", started_at, replaces, blobs_of, parent
    )
    return Append(
        run_id,
        epoch,
        1,
        started_at,
        body,
        new_run=new_run,
        change=change,
        requests=requests,
        blobs=blobs or {},
        index=index or {},
        marks=marks,
    )


def record(
    run_id: str,
    seq: int,
    *,
    epoch: int = 1,
    body: bytes | None = None,
    change: RunChange | None = None,
    requests: tuple[RequestAnswer, ...] = (),
    blobs: Mapping[str, bytes] | None = None,
    index: Mapping[str, tuple[IndexEntry, ...]] | None = None,
    marks: tuple[StoreMark, ...] = (),
    checkpoint: bytes | None = None,
) -> Append:
    return Append(
        run_id,
        epoch,
        seq,
        100.0 + seq,
        f"{run_id} {seq} under {epoch}".encode() if body is None else body,
        change=change,
        requests=requests,
        blobs=blobs or {},
        index=index or {},
        marks=marks,
        checkpoint=checkpoint,
    )
