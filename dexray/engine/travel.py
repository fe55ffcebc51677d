"""Time travel: a new run of a Flow, from a point of its past.

    read        the past of the current run, page by page, up to its present: the point is found, or the call refused
    terminate   the current run, if it is open; its end is durable before anything else happens
    read on     what came between, its last writes from outside among it: whatever a client was told is in the past now
    begin       the new run, which takes the Flow ID over from the old one; this is one record, with the call's answer

A crash between the end of the old run and the beginning of the new one leaves a terminated Flow. The repeat of the call
goes on from there: the point is where it was.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from dex.wire.service import ServiceError, Started, TimeTravel, encode
from dexray.engine import requests
from dexray.engine.live import LiveFlow, Lost, Pending
from dexray.journal.interface import NewRun, Record, RequestAnswer
from dexray.machine import commands, timetravel
from dexray.machine.events import AnyEvent, FlowForked, UnreadableRecord, decode_record
from dexray.machine.state import decode_checkpoint
from dexray.machine.timetravel import Cut, NoSuchPoint, Point, Rewind

if TYPE_CHECKING:
    from dexray.engine.host import FlowHost

PAGE = 500  # records


async def time_travel(host: FlowHost, request: TimeTravel) -> Started:
    point = _point(request)
    for _ in range(50):
        live = await requests.find(host, request.flow_id)
        live.held += 1
        try:
            # A fresh call, too: one that was under way for long comes after its own repeat.
            known = await _known(host, live, request)
            if known is not None:
                return known
            cut = await _prepare(host, live, request, point)
            texts = await _indexed_texts(host, live, cut)
            if host.flows.get(request.flow_id) is live:
                return await _begin(host, live, request, point, cut, texts)
        except Lost:
            if host.stopped:
                raise
        finally:
            live.held -= 1
    raise ServiceError("UNAVAILABLE", f"Flow {request.flow_id!r} is being started by others again and again; repeat")


def _point(request: TimeTravel) -> Point:
    method = timetravel.method_named(request.step, request.method)
    return Point(
        kind=request.point, at=request.history_event_time, step_type=request.step_type, step=request.step, method=method
    )


async def _known(host: FlowHost, live: LiveFlow, request: TimeTravel) -> Started | None:
    """What the first call of this request id was answered."""
    await requests.settled(host, live)
    flow_id, request_id = request.flow_id, request.request_id
    stored = await requests.look_up(host, lambda: host.journal.recorded_answer(flow_id, request_id))
    return None if stored is None else msgspec.msgpack.decode(stored, type=Started)


async def _prepare(host: FlowHost, live: LiveFlow, request: TimeTravel, point: Point) -> Cut:
    """The point, with all that came after it. The run has ended by then."""
    requests.check_trouble(live)
    spec = host.specs.get(live.flow.state.flow_type)
    if spec is None:
        raise ServiceError(
            "FAILED_PRECONDITION",
            f"Flow type {live.flow.state.flow_type!r} is not deployed: connect with a Registry that has it",
        )
    past = _Past(host, Rewind(point, spec.hard_deleted))
    try:
        await requests.settled(host, live)
        await past.read(live.run_id)
        _check_writes(host, live, past.rewind.cut(), request)
        if not live.flow.is_closed:
            requests.check_trouble(live)
            if live.lost:
                raise Lost("the Flow has just left this owner")
            reason = f"time travel to {point}" + (f": {request.reason}" if request.reason else "")
            host.execute(live, commands.Stop(stop_type="TERMINATE", reason=reason))
        await requests.settled(host, live)
        await past.read_on()
        return past.rewind.cut()
    except NoSuchPoint as error:
        raise ServiceError("NOT_FOUND", f"no such point in the past of run {live.run_id}: {error}") from error


def _check_writes(host: FlowHost, live: LiveFlow, cut: Cut, request: TimeTravel) -> None:
    """The code that is deployed must know the Steps that RPCs have started."""
    if request.skip_writes_reapply:
        return
    spec = host.specs[live.flow.state.flow_type]
    for _, write in cut.writes:
        if isinstance(write, commands.ApplyRpc):
            gone = sorted({movement.step_type for movement in write.result.movements} - spec.steps.keys())
            if gone:
                raise ServiceError(
                    "FAILED_PRECONDITION",
                    f"RPC {write.name} was called after the point and started {', '.join(gone)}, which the deployed "
                    f"code of {spec.flow_type} lacks: deploy a version that has it, or use skip_writes_reapply",
                )


async def _indexed_texts(host: FlowHost, live: LiveFlow, cut: Cut) -> dict[str, bytes]:
    """The large values of indexed Attributes that the new run may begin with: its index is made of them."""
    spec = host.specs.get(live.flow.state.flow_type)
    if spec is None or not spec.indexes:
        return {}
    attributes = list(decode_checkpoint(cut.checkpoint).state.attributes.items())
    for _, write in cut.writes:
        if isinstance(write, commands.SetAttribute):
            attributes.append((write.name, write.value or b""))
        elif isinstance(write, commands.ApplyRpc):
            attributes.extend((name, value or b"") for name, value in write.result.writes.attributes.items())
    values = [value for name, value in attributes if value and name.partition("/")[0] in spec.indexes]
    return await requests.attach_blobs(host, live, [*values])


async def _begin(
    host: FlowHost, live: LiveFlow, request: TimeTravel, point: Point, cut: Cut, texts: dict[str, bytes]
) -> Started:
    state = live.flow.state
    answer = Started(run_id=host.new_id())
    pending = Pending(
        new_run=NewRun(
            state.flow_id,
            state.flow_type,
            host.owner,
            state.request_id,
            host.clock.now(),
            replaces=state.run_id,
            blobs_of=state.run_id,
            parent=state.parent or None,
        ),
        requests=[RequestAnswer(request.flow_id, request.request_id, encode(answer))],
        blobs=texts,
    )
    fork = commands.Fork(
        flow_id=state.flow_id,
        run_id=answer.run_id,
        flow_type=state.flow_type,
        from_run=state.run_id,
        point=str(point),
        reason=request.reason,
        base_run=cut.run_id,
        base_seq=cut.seq,
        base_index=cut.index,
        checkpoint=cut.checkpoint,
        writes=None if request.skip_writes_reapply else tuple(write for _, write in cut.writes),
    )
    begun = host.start_run(fork, pending)
    requests.check_trouble(begun)
    await requests.patiently(host, requests.when_durable(begun))
    return answer


@dataclass(slots=True)
class _Past:
    """Feeds the past of a run to a Rewind. `read` begins, `read_on` goes on where it ended."""

    host: FlowHost
    rewind: Rewind
    run_id: str = ""
    after: int = 0  # the last record of the run that was fed
    _segments: list[tuple[str, int, int]] = field(default_factory=list)  # of ancestors: run, last record, its events

    async def read(self, run_id: str) -> None:
        await self._find_ancestors(run_id)
        for ancestor, seq, index in reversed(self._segments):
            self.run_id, self.after = ancestor, 0
            await self.read_on(seq, index)
        self.run_id, self.after = run_id, 0
        await self.read_on()

    async def read_on(self, last: int | None = None, index: int | None = None) -> None:
        """The records that are there now; up to `index` events of record `last`."""
        journal = self.host.journal
        while True:
            limit = PAGE if last is None else min(PAGE, last - self.after)
            page = await requests.look_up(self.host, partial(journal.records, self.run_id, self.after, limit))
            self._feed(page, last, index)
            if len(page) < PAGE:
                break
        if last is not None and self.after < last:
            raise ServiceError("UNAVAILABLE", f"run {self.run_id} was removed while its past was read; repeat")

    def _feed(self, page: Sequence[Record], last: int | None, index: int | None) -> None:
        for record in page:
            until = index if record.seq == last else None
            if until != 0:
                self.rewind.feed(self.run_id, record.seq, record.at, self._decode(record), until)
            self.after = record.seq

    async def _find_ancestors(self, run_id: str) -> None:
        """The runs that it was forked from, newest first. One that is not kept any more ends the line."""
        journal = self.host.journal
        while True:
            first = await requests.look_up(self.host, partial(journal.records, run_id, 0, 1))
            if not first:
                if self._segments:
                    self._segments.pop()
                return
            self.run_id = run_id
            begun = self._decode(first[0])[0]
            if not isinstance(begun, FlowForked):
                return
            run_id = begun.base_run
            self._segments.append((run_id, begun.base_seq, begun.base_index))

    def _decode(self, record: Record) -> list[AnyEvent]:
        try:
            return decode_record(record.body)
        except UnreadableRecord as error:
            raise ServiceError(
                "INTERNAL", f"record {record.seq} of run {self.run_id} can't be read: {error}"
            ) from error
