"""The journal of a run as events for people: numbered from 1, payloads in readable form."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from dex.values import to_readable
from dex.wire.service import GetHistory, HistoryEvent, HistoryPage, ServiceError
from dex.wire.specs import WAIT_FOR
from dexray.journal.interface import Record
from dexray.machine.events import AnyEvent, StepFailed, UnreadableRecord, decode_record, kind_of

if TYPE_CHECKING:
    from dexray.engine.host import FlowHost

_PAGE = 500
_NOT_SHOWN = ("step", "checkpoint")


async def history_page(host: FlowHost, run_id: str, request: GetHistory, *, closed: bool) -> HistoryPage:
    from dexray.engine.requests import look_up, not_there

    events: list[HistoryEvent] = []
    seq, number = request.place if request.run_id == run_id and request.place[1] <= request.after else (0, 0)
    place = (seq, number)
    while True:
        wanted = min(_PAGE, request.limit - len(events) + 1)  # hardly a record is without an event
        records = await look_up(host, partial(host.journal.records, run_id, seq, wanted))
        for record in records:
            seq = record.seq
            for event in _events(run_id, record):
                number += 1
                if number <= request.after:
                    continue
                if len(events) == request.limit:
                    return HistoryPage(run_id=run_id, events=tuple(events), closed=closed, more=True, place=place)
                events.append(readable_event(number, event, record.at))
            place = (seq, number)
        if len(records) < wanted:
            if closed and await look_up(host, partial(host.journal.find_run, run_id)) is None:
                raise not_there(request.flow_id, run_id)  # removed meanwhile: this is not its end
            return HistoryPage(run_id=run_id, events=tuple(events), closed=closed, place=place)


def _events(run_id: str, record: Record) -> list[AnyEvent]:
    try:
        return decode_record(record.body)
    except UnreadableRecord as error:
        raise ServiceError("INTERNAL", f"record {record.seq} of run {run_id} can't be read: {error}") from error


def readable_event(number: int, event: AnyEvent, at: float) -> HistoryEvent:
    data = {name: _readable(getattr(event, name)) for name in event.__struct_fields__ if name not in _NOT_SHOWN}
    return HistoryEvent(
        number=number,
        kind=_shown_kind(event),
        at=at,
        step_execution_id=getattr(event, "step", ""),
        data={name: value for name, value in data.items() if value not in (None, "", (), {}, [])},
    )


def _shown_kind(event: AnyEvent) -> str:
    """The kind as in the journal; the final failure of a method by the names that users know."""
    if isinstance(event, StepFailed):
        return "StepWaitForFailed" if event.method == WAIT_FOR else "StepExecuteFailed"
    return kind_of(event)


def _readable(value: Any) -> Any:
    if isinstance(value, bytes):
        return to_readable(value)
    if isinstance(value, msgspec.Struct):
        fields = {name: _readable(getattr(value, name)) for name in value.__struct_fields__}
        return {name: field for name, field in fields.items() if field not in (None, "", [], {}, ())}
    if isinstance(value, dict):
        return {key: _readable(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [_readable(item) for item in value]
    return value
