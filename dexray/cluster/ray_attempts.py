"""Attempts on Ray: the AttemptPort of a FlowActor.

    run -> dispatch (which attempts, in which lots) -> a Ray task, a lane or an async worker -> results -> the sink

Everything here happens in the event loop of the owner; callbacks of Ray's threads only put what they got into
an inbox. Nothing is ever awaited for an attempt: a callback costs less CPU than a future or a coroutine, and
CPU of the owner is what limits attempts a second.

What is promised to the engine:

- Every attempt that was run ends, once: with its result, with a failure when its process or node is gone, or
  silently when it was canceled before it began. The time limits are the engine's; it cancels what is overdue.
- A slot comes back at that end, or a grace time after `cancel`, whatever the handler does.
- An attempt whose lot took too long is sent again from here, without a word to the engine: it did not run.
- An attempt that no worker can run (its code does not load, Ray refuses its resources) goes back with the
  reason, and its kind gets no slots for a while.

- Large values go from one attempt to the next by references of Ray (`shared_values`).

The owner actor forwards two methods: `async def report(data, ...)` to `on_report` and `async def canceled(data)`
to `canceled_keys`. The second is a long poll, one for each attempt that runs longer than a moment, so the
actor's `max_concurrency` must be far above the number of attempts it can have running.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import ray

from dexray.cluster.async_pool import AsyncPool, PoolWorker
from dexray.cluster.attempt_messages import (
    Answer,
    Finished,
    Question,
    decode_question,
    decode_report,
    decode_result,
    encode,
    encode_lot,
    encode_task,
    resource_signature,
)
from dexray.cluster.cluster_watch import ClusterWatch
from dexray.cluster.code_store import CodeStore
from dexray.cluster.detached import DetachedAttempts
from dexray.cluster.dispatch import Bundle, Dispatch, DispatchSettings, Ready
from dexray.cluster.handouts import Handout, Lane, SentLot, lost_with
from dexray.cluster.inbox import Inbox, LongPolls
from dexray.cluster.lanes import Lanes
from dexray.cluster.ray_errors import Meaning, RayFailure, failure_of
from dexray.cluster.shared_values import SharedValues, as_arguments, views, with_values
from dexray.cluster.worker_task import run_lot
from dexray.engine.hand_outs import references
from dexray.protocol.attempts import (
    WORKER_CRASHED,
    AttemptFailed,
    AttemptKey,
    AttemptResult,
    AttemptReturned,
    AttemptTask,
)
from dexray.protocol.ports import AttemptPort, AttemptSink

logger = logging.getLogger("dexray.cluster.attempts")

_NO_RESULT = RayFailure(Meaning.CRASHED, "dexray.NoResult", "the worker sent no result")


@dataclass(frozen=True, slots=True)
class AttemptSettings:
    """All times in seconds."""

    dispatch: DispatchSettings = field(default_factory=DispatchSettings)
    cancel_grace: float = 10.0  # after it the slot of a canceled attempt is free, even if the handler goes on
    refresh: float = 5.0  # how often the cluster is asked for its CPUs and nodes
    lost_node_grace: float = 10.0  # after a node's death, for Ray to say itself what was lost
    lanes: bool = True  # Ray tasks may stay and take more lots over a socket
    linger: float = 0.01  # how long one stays without a lot
    crash_slack: float = 0.02  # between Ray's word that a process died and the end of what it had sent by socket
    blocked: float = 5.0  # an async process that is silent for so long when asked gets no more attempts
    kill_slack: float = 2.0  # for a worker to end itself, before Ray is asked to end it
    shared_bytes: int = 512 * 1024 * 1024  # of large values that are kept in the object store for the next attempts
    shared_seconds: float = 120.0  # how long one is kept there that nobody asks for
    assume_begun: float = 1.0  # how often lots are looked at of which nothing was heard


class RayAttempts(AttemptPort):
    """Call `await start()` once; before it, attempts are dispatched as if the cluster had one CPU."""

    def __init__(
        self,
        *,
        sink: AttemptSink,
        owner: Any,
        code: CodeStore,
        loop: asyncio.AbstractEventLoop,
        namespace: str = "",
        settings: AttemptSettings | None = None,
    ) -> None:
        """namespace: Ray's, where detached attempts and the clients of handlers find the engine."""
        self._sink = sink
        self._owner = owner
        self._code = code
        self._loop = loop
        self._settings = settings or AttemptSettings()
        self._namespace = namespace
        self._life = random.SystemRandom().getrandbits(62)
        self._dispatch: Dispatch[Handout] = Dispatch(self._settings.dispatch)
        self._handouts: dict[int, Handout] = {}
        self._by_key: dict[AttemptKey, Handout] = {}
        self._lots: dict[int, SentLot] = {}
        self._numbers = 0
        self._inbox = Inbox(loop)
        self._lanes = Lanes(self, loop, self._life, self._settings.linger)
        self._pool = AsyncPool(self._settings.dispatch.async_processes, self._inbox.when_ready, self._worker_lost)
        self._detached = DetachedAttempts(self, loop, self._life, owner, namespace, self._inbox)
        self._remotes: dict[bytes, Any] = {}
        self._values = SharedValues(self._settings.shared_bytes, self._settings.shared_seconds, loop.time)
        self._is_flushing = False
        self._is_notifying = False
        self._polls = LongPolls(loop)
        self._watch = ClusterWatch(
            loop,
            self._settings.refresh,
            self._settings.lost_node_grace,
            resources=self._set_resources,
            node_lost=self._node_lost,
        )
        self._background: set[asyncio.Task[None]] = set()
        self._newest_heard: dict[bytes, int] = {}  # the latest lot that is known to have begun, by resource signature

    async def start(self) -> None:
        """Asks the cluster for its CPUs, and again every few seconds from now on; opens the door for lanes."""
        if self._settings.lanes:
            untyped: Any = ray.util
            await self._lanes.start(untyped.get_node_ip_address())
        await self._watch.start()

    async def close(self) -> None:
        """Ends the async workers and the background work. Attempts that run are left to themselves."""
        self._watch.close()
        self._lanes.close()
        for task in list(self._background):
            task.cancel()
        self._pool.close()

    def prestart_async(self) -> None:
        """Starts the processes for asynchronous handlers now, not at the first attempt."""
        self._pool.prestart()

    @property
    def handed_out(self) -> int:
        """Slots that are taken."""
        return self._dispatch.handed_out

    # AttemptPort ------------------------------------------------------------------------------------------------------

    def reserve(self, flow_type: str, step_type: str, is_async: bool) -> bool:
        return self._dispatch.reserve((flow_type, step_type), is_async, self._loop.time())

    def release(self, flow_type: str, step_type: str, is_async: bool) -> None:
        self._dispatch.release((flow_type, step_type), is_async)
        self._slot_is_free()

    def at_hand(self, task: AttemptTask, hashes: Collection[str]) -> frozenset[str]:
        return frozenset() if task.detached else frozenset(self._values.find(hashes))

    def run(self, task: AttemptTask) -> None:
        handout = self._hand_out(task)
        handout.values = self._values.find(references(task) - task.blobs.keys())
        if self._code.parcel(task.deployment_id, self._life) is not None:
            self._enqueue(handout)
        else:
            self._spawn(self._fetch_code(handout))

    def adopt(self, task: AttemptTask) -> bool:
        handout = self._hand_out(task)
        self._queue(handout).dropped = True  # it has been sent
        self._spawn(self._detached.adopt(handout))
        return True

    def settled(self, key: AttemptKey) -> None:
        self._detached.settled(key)

    def _hand_out(self, task: AttemptTask) -> Handout:
        self._numbers += 1
        handout = Handout(
            token=self._numbers,
            key=task.key,
            kind=(task.flow_type, task.step_type),
            is_async=task.is_async,
            deployment_id=task.deployment_id,
            signature=resource_signature(task.resources),
            options=task.resources,
            task=encode_task(task),
            kill_after=task.kill_after,
            detached=task.detached,
        )
        self._handouts[handout.token] = self._by_key[task.key] = handout
        return handout

    def cancel(self, key: AttemptKey) -> None:
        handout = self._by_key.get(key)
        if handout is None or handout.canceled:
            return
        handout.canceled = True
        lot = handout.lot
        if handout.detached:
            self._cancel_detached(handout)
            return
        if lot is None:
            if handout.ready is not None:
                handout.ready.dropped = True
                self._end(handout)
            return
        if lot.worker is not None:
            self._pool.cancel(lot, self._life, handout.token)
        elif lot.is_announced and not lot.heard_of:
            lot.ray_canceled = True
            ray.cancel(lot.reference, force=False, recursive=False)  # it can't be about to end: see lot_run
        self._polls.answer(handout.token)
        self._loop.call_later(self._settings.cancel_grace, self._abandon, handout)
        if handout.kill_after is not None and lot.worker is None:
            self._loop.call_later(handout.kill_after + self._settings.kill_slack, self._kill, lot)

    def _cancel_detached(self, handout: Handout) -> None:
        if not handout.begun:
            self._detached.kill(handout.key)
            if handout.ready is not None:
                self._end(handout)
            return
        self._polls.answer(handout.token)
        self._loop.call_later(self._settings.cancel_grace, self._abandon, handout)
        if handout.kill_after is not None:
            self._loop.call_later(handout.kill_after + self._settings.kill_slack, self._detached.kill, handout.key)

    def waiting_for(self, key: AttemptKey) -> str:
        handout = self._by_key.get(key)
        if handout is None or handout.begun or (handout.lot is not None and handout.lot.heard_of):
            return ""
        if handout.ready is None:
            return f"the code of deployment {handout.deployment_id} is being fetched"
        lacking = self._dispatch.lacking(handout.signature, handout.is_async)
        if lacking:
            has = ", ".join(f"{amount:g} {name}" if amount else f"no {name}" for name, amount in lacking.items())
            return f"waiting for resources {handout.options}: the cluster has {has}"
        if handout.options:
            return f"waiting for a worker with resources {handout.options}"
        return "waiting for a worker"

    # What workers say -------------------------------------------------------------------------------------------------

    def on_report(self, data: bytes, shared: Sequence[Any] = (), content: Sequence[Any] = ()) -> None:
        """News of running attempts. `content` is what the reference in `shared` leads to: large values of results."""
        report = decode_report(data)
        values = self._received(shared[0], report.values, content) if report.values else {}
        for message in report.messages:  # of whatever life: they outlive their attempt
            self._sink.stream_written(message)
        if report.life != self._life:
            return
        for beat in report.beats:
            handout = self._handouts.get(beat.token)
            if handout is not None and not handout.canceled:
                self._has_begun(handout)
                self._sink.attempt_heartbeat(handout.key, beat.heartbeat)
        for finished in report.finished:
            self._finished(with_values(finished, values))

    def _received(self, reference: Any, names: Sequence[str], content: Sequence[Any]) -> dict[str, memoryview]:
        """Large values that came beside results: the next attempts that need them get the reference."""
        values = views(names, content[1:])
        self._values.keep(reference, values)
        self._loop.call_later(self._settings.shared_seconds + 1.0, self._values.trim)
        return values

    async def canceled_keys(self, data: bytes) -> bytes:
        """Which attempts of a question are canceled; those that are no longer known are, too."""
        question = decode_question(data)
        if question.life != self._life:
            return encode(await self._answer_to_stranger(question))
        for token in question.begun:
            handout = self._handouts.get(token)
            if handout is not None:
                if handout.lot is not None:
                    handout.lot.node = question.node
                self._has_begun(handout)
        canceled = self._canceled_of(question.about)
        if question.wait > 0 and not canceled:
            await self._polls.wait(question.about, question.wait)
            canceled = self._canceled_of(question.about)
        return encode(Answer(canceled))

    async def _answer_to_stranger(self, question: Question) -> Answer:
        """What an attempt hears that another life of this owner had handed out."""
        if question.detached is None or self._by_key.get(question.detached) is not None:
            return Answer(question.about) if question.detached is None else Answer(is_unknown=True)
        try:
            wanted = await self._sink.is_wanted(question.detached)
        except Exception as error:  # the Flow is another owner's, or can't be loaded now
            logger.info("whether attempt %s is wanted is not known: %s", question.detached, error)
            return Answer(is_unknown=True)
        return Answer(is_unknown=True) if wanted else Answer(question.about)

    # Sending ----------------------------------------------------------------------------------------------------------

    async def _fetch_code(self, handout: Handout) -> None:
        try:
            await self._code.fetch(handout.deployment_id, self._life, self._owner, self._lanes.door)
        except Exception as error:
            logger.warning("the code of deployment %s can't be read: %s", handout.deployment_id, error)
            reason = f"the code of deployment {handout.deployment_id} can't be read: {error}"
            self._finished(Finished(handout.token, AttemptReturned(reason=reason), declined=True))
            return
        if handout.canceled:
            self._end(handout)
        else:
            self._enqueue(handout)

    def _enqueue(self, handout: Handout) -> None:
        ready = self._queue(handout)
        if handout.detached:
            ready.dropped = True
            self._send_detached(handout)
        else:
            self._flush_soon()

    def _queue(self, handout: Handout) -> Ready[Handout]:
        ready = handout.ready = self._dispatch.enqueue(
            handout,
            handout.kind,
            handout.is_async,
            handout.signature,
            handout.options,
            group=handout.deployment_id,
            size=len(handout.task),
            alone=handout.kill_after is not None or handout.detached or bool(handout.values and not handout.is_async),
        )
        return ready

    def _send_detached(self, handout: Handout) -> None:
        try:
            parcel = self._code.parcel(handout.deployment_id, self._life)
            if parcel is None:
                raise LookupError(f"the code of deployment {handout.deployment_id} was dropped")
            data = encode_lot(
                self._life, {handout.token: handout.task}, time.time(), announce=True, namespace=self._namespace
            )
            self._detached.send(handout, parcel, data)
        except Exception as error:
            logger.warning("Ray refuses the detached attempt %s: %s", handout.key, error)
            reason = f"Ray refuses the attempt: {error}"
            self._finished(Finished(handout.token, AttemptReturned(reason=reason), declined=True))

    def detached_finished(self, finished: Finished) -> None:
        self._finished(finished)

    def _flush_soon(self) -> None:
        if not self._is_flushing:
            self._is_flushing = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._is_flushing = False
        for bundle in self._dispatch.plan(self._loop.time()):
            self._send(bundle)
        for place in self._dispatch.take_unwanted():
            self._lanes.say_bye(self._lanes.at(place))

    def _send(self, bundle: Bundle[Handout]) -> None:
        self._numbers += 1
        lot = SentLot(self._numbers, bundle, self._loop.time(), open={handout.token for handout in bundle.items})
        self._lots[lot.number] = lot
        for handout in bundle.items:
            handout.lot = lot
        if bundle.place is not None and bundle.over_lane:
            self._send_over(self._lanes.at(bundle.place), lot)
            return
        may_stay = bundle.may_stay and self._lanes.door is not None
        try:
            parcel = self._code.parcel(bundle.group, self._life)
            if parcel is None:
                raise LookupError(f"the code of deployment {bundle.group} was dropped")
            shared, places = as_arguments(handout.values for handout in bundle.items)
            data = self._encoded(lot, not bundle.short and not bundle.bucket.is_async, may_stay, places)
            if bundle.bucket.is_async:
                reference = self._pool.send(lot, parcel, data, shared)
            elif shared:
                reference = self._remote(bundle.items[0]).remote(parcel, data, shared)
            else:
                reference = self._remote(bundle.items[0]).remote(parcel, data)
        except Exception as error:
            logger.warning("Ray refuses attempts of %s: %s", bundle.items[0].kind, error)
            self._task_over(lot)
            self._not_run(lot, f"Ray refuses the attempt: {error}")
            return
        lot.reference = reference
        if may_stay and bundle.place is not None:
            self._lanes.add(lot, bundle.place)
        if bundle.short or bundle.bucket.is_async:
            self._loop.call_later(self._settings.assume_begun, self._assume_begun, lot)
        self._inbox.when_ready(reference, partial(self._lot_answered, lot))

    def _send_over(self, lane: Lane, lot: SentLot) -> None:
        """A lane is a free CPU: what is sent begins at once."""
        lot.node, lot.heard_of = lane.root.node, True
        self._lanes.send(lane, lot, self._encoded(lot, announce=False, may_stay=False))
        if not lot.bundle.short:
            for handout in lot.bundle.items:
                self._has_begun(handout)
        else:
            self._loop.call_later(self._settings.assume_begun, self._assume_begun, lot)

    def _encoded(
        self, lot: SentLot, announce: bool, may_stay: bool, values: Mapping[str, tuple[int, int]] | None = None
    ) -> bytes:
        tasks = {handout.token: handout.task for handout in lot.bundle.items}
        needs = {handout.token: tuple(handout.values) for handout in lot.bundle.items if handout.values}
        return encode_lot(
            self._life, tasks, time.time(), announce, lot.number, may_stay, self._namespace, values, needs
        )

    def _remote(self, handout: Handout) -> Any:
        key = handout.signature + b"async" if handout.is_async else handout.signature
        remote = self._remotes.get(key)
        if remote is None:
            options: Mapping[str, Any] = {"num_cpus": 0 if handout.is_async else 1, **handout.options}
            remote = self._remotes[key] = ray.remote(run_lot).options(
                **{**options, "max_retries": 0, "name": "dexray.attempts"}
            )
        return remote

    # Ends -------------------------------------------------------------------------------------------------------------

    def _lot_answered(self, lot: SentLot, value: object) -> None:
        lot.answered = True
        self._heard_of(lot)
        connected = lot.lane is not None and lot.lane.connection is not None
        last = self._task_over(lot)
        if isinstance(value, bytes | list):
            result = decode_result(value if isinstance(value, bytes) else value[0])
            values = self._received(lot.reference, result.values, value) if isinstance(value, list) else {}
            for finished in result.finished:
                self._finished(with_values(finished, values))
            if lot.worker is None:
                self._lot_failed(lot, _NO_RESULT)
                if last is not None:
                    self._not_begun(last)
            else:
                lot.worker.is_up = True
        elif lot.worker is not None and failure_of(value).broke_process:
            self._worker_lost(lot.worker, value)
        elif connected:  # what the process said before it died may still be in the socket
            self._loop.call_later(self._settings.crash_slack, self._task_failed, lot, last, failure_of(value))
        else:
            self._task_failed(lot, last, failure_of(value))

    def _task_over(self, lot: SentLot) -> SentLot | None:
        """A Ray task has ended, or is given up. The lot that is on its lane, other than its first."""
        if lot.bundle.place is not None:
            self._dispatch.task_ended(lot.bundle.place)
            self._flush_soon()
        lane = lot.lane
        if lane is None:
            return None
        self._lanes.remove(lane)
        return lane.lot if lane.lot is not lot else None

    def _task_failed(self, lot: SentLot, last: SentLot | None, failure: RayFailure) -> None:
        self._lot_failed(lot, failure)
        if last is not None:
            if failure.meaning is not Meaning.CRASHED:
                failure = replace(failure, meaning=Meaning.CRASHED)
            self._lot_failed(last, failure)

    def _not_begun(self, lot: SentLot) -> None:
        """The Ray task ended before the lot reached it: see `worker_lane`."""
        for handout in self._open_of(lot):
            self._finished(Finished(handout.token, AttemptReturned(reason="the Ray task ended before it began")))
        self._close_lot(lot)

    def _lot_failed(self, lot: SentLot, failure: RayFailure) -> None:
        """Ends what is still open in a lot."""
        if failure.meaning is Meaning.NOT_RUN:
            self._not_run(lot, f"{failure.error_type}: {failure.detail}")
            return
        for handout in self._open_of(lot):
            if failure.meaning is Meaning.CANCELED and handout.canceled:
                self._end(handout)
                continue
            others = len(lot.bundle.items) - 1
            shared = f" ({others} other attempts shared the process)" if others and not handout.begun else ""
            if failure.broke_process:
                self._dispatch.crashed(handout.kind, self._loop.time())
            crash = AttemptFailed(
                error_type=failure.error_type,
                detail=failure.detail + shared,
                trace=failure.trace,
                kind=WORKER_CRASHED,
            )
            self._finished(Finished(handout.token, crash))
        self._close_lot(lot)

    def _not_run(self, lot: SentLot, reason: str) -> None:
        for handout in self._open_of(lot):
            self._finished(Finished(handout.token, AttemptReturned(reason=reason), declined=True))
        self._close_lot(lot)

    def _worker_lost(self, worker: PoolWorker, error: object) -> None:
        self._pool.drop(worker)
        failure = failure_of(error)
        for lot in list(worker.lots):
            if worker.is_up or lot.heard_of:
                self._lot_failed(lot, failure)
            else:
                self._not_run(lot, f"the async worker process could not start: {failure.detail}")

    def _finished(self, finished: Finished) -> None:
        handout = self._handouts.get(finished.token)
        if handout is None:
            return
        result: AttemptResult = finished.result
        if finished.seconds is not None:
            self._dispatch.ran(handout.kind, finished.seconds)
        if finished.lacking:
            self._values.forget(finished.lacking)
        elif isinstance(result, AttemptReturned) and not finished.declined:
            self._given_back(handout)
            return
        if finished.declined:
            pause = self._dispatch.declined(handout.kind, self._loop.time())
            self._loop.call_later(pause, self._slot_is_free)
        self._end(handout)
        self._sink.attempt_finished(handout.key, result)

    def _given_back(self, handout: Handout) -> None:
        """Its worker did not begin it. It goes out again under a new token, or ends here when it was canceled."""
        lot, ready = handout.lot, handout.ready
        if handout.canceled or lot is None or ready is None:
            self._end(handout)
            return
        self._leave(handout)
        del self._handouts[handout.token]
        self._numbers += 1
        handout.token = self._numbers
        handout.begun = False
        self._handouts[handout.token] = handout
        self._dispatch.enqueue_again(ready, self._loop.time())
        self._flush_soon()

    def _end(self, handout: Handout) -> None:
        """The attempt is over for its owner: its slot is free."""
        self._handouts.pop(handout.token, None)
        if self._by_key.get(handout.key) is handout:
            del self._by_key[handout.key]
        if handout.ready is None:
            self._dispatch.release(handout.kind, handout.is_async)
        else:
            self._dispatch.free(handout.ready.slot)
        self._polls.answer(handout.token)
        self._leave(handout)
        self._slot_is_free()

    def _leave(self, handout: Handout) -> None:
        lot, handout.lot = handout.lot, None
        if lot is not None:
            lot.open.discard(handout.token)
            if not lot.open:
                self._close_lot(lot)

    def _close_lot(self, lot: SentLot) -> None:
        if lot.ended:
            return
        lot.ended = True
        if lot.worker is not None:
            lot.worker.lots.discard(lot)
        self._lots.pop(lot.number, None)
        if lot.lane is None:
            self._dispatch.leave_place(lot.bundle)
        self._flush_soon()

    def _abandon(self, handout: Handout) -> None:
        if self._handouts.get(handout.token) is handout:
            logger.warning("a canceled attempt did not end in %g s: %s", self._settings.cancel_grace, handout.key)
            if handout.lot is not None and handout.lot.worker is not None:
                self._pool.check(handout.lot.worker, self._loop, self._settings.blocked)
            if handout.lot is not None:
                self._dispatch.leave_place(handout.lot.bundle)
            self._end(handout)

    def _kill(self, lot: SentLot) -> None:
        """The worker could not end itself: a handler in native code holds the GIL. Ray ends it, and only while it runs
        this very lot."""
        if not lot.answered:
            logger.warning("the worker of %s is killed: its handler did not stop", lot.bundle.items[0].key)
            ray.cancel(lot.reference, force=True, recursive=False)

    def _open_of(self, lot: SentLot) -> list[Handout]:
        return [self._handouts[token] for token in sorted(lot.open) if token in self._handouts]

    def _slot_is_free(self) -> None:
        if not self._is_notifying:
            self._is_notifying = True
            self._loop.call_soon(self._notify)

    def _notify(self) -> None:
        self._is_notifying = False
        if self._dispatch.take_refused():
            self._sink.slots_changed()

    # Lanes: a LaneHost ------------------------------------------------------------------------------------------------

    def lane_begun(self, lane: Lane) -> None:
        root = lane.root
        if root.is_announced:
            for handout in self._open_of(root):
                self._has_begun(handout)
        root.heard_of = True
        self._heard_of(root)

    def lane_result(self, lane: Lane, number: int, finished: tuple[Finished, ...]) -> None:
        self.late_results(finished)
        lot, lane.lot = lane.lot, None
        if lot is None or lot.number != number:
            logger.warning("a lane sent the result of a lot that it did not have")
            self._lanes.say_bye(lane)
        elif lane.root.ray_canceled or not self._dispatch.offer(lane.place, self._loop.time()):
            self._lanes.say_bye(lane)
        if lot is not None:
            self._lot_failed(lot, _NO_RESULT)
        self._flush_soon()

    def lane_leaves(self, lane: Lane) -> None:
        if lane.lot is None:
            self._dispatch.withdraw(lane.place)
            self._lanes.say_bye(lane)

    def lane_closed(self, lane: Lane) -> None:
        self._dispatch.withdraw(lane.place)

    def late_results(self, finished: tuple[Finished, ...]) -> None:
        for one in finished:
            self._finished(one)

    def lanes_work(self, work: bool) -> None:
        self._dispatch.lanes_work = work

    # Running attempts and cancellation --------------------------------------------------------------------------------

    def _has_begun(self, handout: Handout) -> None:
        lot = handout.lot
        if handout.begun or (lot is None and not handout.detached):
            return
        handout.begun = True
        if handout.ready is not None:
            self._dispatch.begun(handout.ready.slot)
        if lot is not None:
            lot.heard_of = True
            self._heard_of(lot)
            self._dispatch.leave_place(lot.bundle)
        if not handout.canceled:
            self._sink.attempt_running(handout.key)
        self._slot_is_free()
        self._flush_soon()

    def _assume_begun(self, lot: SentLot) -> None:
        """A handler that never lets go of the GIL, or of its event loop, can silence its process before that has said
        that it begins. Its timeouts have to count all the same. Async workers have no queue; a lot of tasks has begun
        when a later one of the same resources has, since Ray's queue is first come first served."""
        if lot.ended:
            return
        if lot.worker is not None:
            has_begun = lot.worker.is_up
        else:
            has_begun = lot.heard_of or lot.number < self._newest_heard.get(lot.bundle.bucket.signature, 0)
        if has_begun:
            for handout in self._open_of(lot):
                self._has_begun(handout)
        else:
            self._loop.call_later(self._settings.assume_begun, self._assume_begun, lot)

    def _heard_of(self, lot: SentLot) -> None:
        if lot.is_on_lane:
            return  # it says nothing about Ray's queue
        if lot.bundle.place is not None:
            self._dispatch.task_begun(lot.bundle.place)
        signature = lot.bundle.bucket.signature
        self._newest_heard[signature] = max(lot.number, self._newest_heard.get(signature, 0))

    def _canceled_of(self, tokens: Iterable[int]) -> tuple[int, ...]:
        return tuple(token for token in tokens if self._is_canceled(token))

    def _is_canceled(self, token: int) -> bool:
        handout = self._handouts.get(token)
        return not self._detached.awaits(token) if handout is None else handout.canceled

    # The cluster ------------------------------------------------------------------------------------------------------

    def _set_resources(self, totals: Mapping[str, float]) -> None:
        self._dispatch.set_resources(totals)
        self._slot_is_free()
        self._flush_soon()

    def _node_lost(self, node: str, died_at: float) -> None:
        for lane in self._lanes.on_node(node):
            if lane.root.sent_at < died_at:
                self._task_over(lane.root)
        for lot in lost_with(list(self._lots.values()), node, died_at, self._newest_heard):
            logger.warning("nothing was heard of %d attempts on the lost node %s", len(lot.open), node)
            detail = f"the node {node} died, and nothing was heard of the attempt since"
            self._lot_failed(lot, RayFailure(Meaning.CRASHED, "dexray.NodeLost", detail))
            self._task_over(lot)

    def _spawn(self, work: Any) -> None:
        task: asyncio.Task[None] = self._loop.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)
