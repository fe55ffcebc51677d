"""The owner of Flows: commands in, records to the journal, effects out.

How a command goes: `execute` lets the machine decide and applies the outcome to the Flow in memory; what came of it collects in the Flow's
`Pending`. Once in a turn of the event loop, `flush` hands out ready Steps as far as there are slots (the starts join the same records) and
submits one record for each Flow touched. When the committer says that a record is durable, `_released` lets out its effects: attempts to
run, attempts to cancel, answers to clients, those who wait for the end.

Memory runs ahead of the journal, and only what is durable is let out. So when a record is refused, everything after it in that Flow is
wrong too: the Flow is dropped, its waiters are told, and the next call loads it from the journal.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, TypeVar

from dex.values import reference_of
from dex.wire.service import Answer, AnyRequest, ServiceError
from dex.wire.specs import ASYNC, DeploymentSpec, FlowSpec, StepSpec
from msgspec.structs import replace

from dexray.engine.alarm import Alarm
from dexray.engine.clock import Blocking, Clock
from dexray.engine.committer import GroupCommitter
from dexray.engine.live import LiveFlow, Lost, Pending
from dexray.engine.places import Places
from dexray.engine.residents import Residents
from dexray.engine.slots import SlotQueues
from dexray.engine.watch import AttemptWatch
from dexray.journal.interface import Append, Journal, JournalUnavailable, Outcome, RunChange
from dexray.machine import commands
from dexray.machine.decide import decide
from dexray.machine.events import AttemptStarted, FlowClosed, encode_record
from dexray.machine.state import TIMEOUT, Flow, StepState, encode_checkpoint
from dexray.machine.tasks import attempt_task, payloads
from dexray.machine.turn import Turn
from dexray.protocol.attempts import (
    AttemptFailed,
    AttemptKey,
    AttemptResult,
    AttemptReturned,
    AttemptTask,
    Heartbeat,
)
from dexray.protocol.ports import AttemptPort

logger = logging.getLogger("dexray.engine")

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class HostSettings:
    """checkpoint_records / checkpoint_bytes: how long a tail may grow before a checkpoint rides with a record.
    idle_flows: how many Flows that only wait are kept in memory. outage_patience: seconds until a call that waits for the database fails as
    UNAVAILABLE. returned_delay: seconds before an attempt that a worker gave back because of its code is handed out again.
    recovery_width: how many Flows are loaded at once when an owner starts. active_flows: how many Flows may have Steps under way at the
    same time (0: no bound); the others wait for their turn, and a Flow that comes to only wait gives its place back."""

    checkpoint_records: int = 200
    checkpoint_bytes: int = 256 * 1024
    idle_flows: int = 2_000
    outage_patience: float = 10.0
    returned_delay: float = 2.0
    recovery_width: int = 32
    active_flows: int = 0


@dataclass(frozen=True, slots=True)
class HostLoad:
    """active: Flows with Steps under way; lasting: those of them older than a moment; queued: those that wait for a place."""

    active: int
    lasting: int
    queued: int
    in_memory: int
    attempts: int


class FlowHost:
    def __init__(
        self,
        *,
        owner: str,
        journal: Journal,
        attempts: AttemptPort,
        clock: Clock,
        blocking: Blocking,
        new_id: Callable[[], str],
        settings: HostSettings | None = None,
    ) -> None:
        self.owner = owner
        self.journal = journal
        self.clock = clock
        self.blocking = blocking
        self.new_id = new_id
        self.settings = settings if settings is not None else HostSettings()
        self.residents = Residents(
            owner=owner,
            journal=journal,
            read=self.read,
            now=clock.now,
            arrived=self._arrived,
            wake_at=lambda when, flow_id: self._alarm.set(when, flow_id),
            limit=self.settings.idle_flows,
            width=self.settings.recovery_width,
        )
        self.flows = self.residents.flows
        self.specs: dict[str, FlowSpec] = {}
        self.deployments: dict[str, str] = {}  # Flow type -> deployment id
        self.counters: dict[str, int] = {"late_results": 0, "refused_records": 0, "attempts": 0}
        self._attempts = attempts
        self._watch = AttemptWatch(clock, expired=self._expired, store=self._store_heartbeat)
        self._committer = GroupCommitter(journal, blocking)
        self._slots = SlotQueues(attempts, self._hand_out)
        self._touched: dict[LiveFlow, None] = {}
        self._flush_scheduled = False
        self._alarm = Alarm(clock, self._due)
        self._places = Places(self.settings.active_flows)
        self._undeployed: dict[str, dict[LiveFlow, None]] = {}  # Flow type -> Flows with Steps that wait for code
        self._tasks: set[asyncio.Task[None]] = set()
        self._recovering: asyncio.Task[None] | None = None
        self._stopped = False

    # Life ---------------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begins to work, and to resume the open Flows of this owner in the background."""
        self._committer.start()
        self._recovering = self._spawn(self.residents.recover())

    async def recovered(self) -> None:
        if self._recovering is not None:
            await self._recovering

    async def stop(self) -> None:
        """Ends in order: nothing more is taken, what was decided is written. Attempts that are out are left to the next owner."""
        self._stopped = True
        if self._touched:
            self._flush()
        if self._committer.unavailable is None:
            await self._committer.drained()
        await self.abandon()

    async def abandon(self) -> None:
        """Ends at once, as a crash would."""
        self._stopped = True
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._committer.close()
        self._alarm.close()
        for live in list(self.flows.values()):
            self._drop(live, Lost("the engine has stopped"))

    def deploy(self, deployment: DeploymentSpec) -> None:
        """Makes this the code of its Flow types. Steps that waited for code are looked at again."""
        for flow_type, spec in deployment.flows.items():
            self.specs[flow_type] = spec
            self.deployments[flow_type] = deployment.deployment_id
            for live in self._undeployed.pop(flow_type, ()):
                live.flow.fresh.extend(live.flow.index.ready)
                self._touch(live)
        stopped = [
            live for live in self.flows.values() if live.problem and live.flow.state.flow_type in deployment.flows
        ]
        for live in stopped:  # the new code may be what it needs: load it and see
            self._drop(live, Lost("its code was deployed anew"))
        if stopped:
            self._spawn(self.residents.resume([live.flow_id for live in stopped]))

    # Commands -------------------------------------------------------------------------------------------------------------

    def execute(self, live: LiveFlow, command: commands.Command, *, sync: bool = True) -> Turn | None:
        """Lets the machine decide one command of one Flow. None when the Flow got into trouble, which `live.problem` then tells."""
        try:
            flow_type = command.flow_type if isinstance(command, commands.Start) else live.flow.state.flow_type
            turn = decide(live.flow, command, self.specs.get(flow_type), self.clock.now())
        except Exception as error:
            self._park(live, error)
            return None
        if turn.events:
            live.pending.events.extend(turn.events)
            live.pending.sync = live.pending.sync or sync
        if turn.cancels:
            live.pending.cancels.extend(turn.cancels)
        if turn.events or live.flow.fresh:
            self._touch(live)
        return turn

    def start_run(self, command: commands.Start, pending: Pending) -> LiveFlow:
        """A new run, in memory. It is real when its record is durable: the journal may refuse it as a second run of its Flow ID."""
        live = LiveFlow(Flow(), epoch=1, seq=0)
        live.pending = pending
        self.flows[command.flow_id] = live
        self.execute(live, command)
        self.residents.add(live)
        return live

    def _touch(self, live: LiveFlow) -> None:
        self._touched[live] = None
        self.request_flush()

    def request_flush(self) -> None:
        if not self._flush_scheduled and not self._stopped:
            self._flush_scheduled = True
            asyncio.get_running_loop().call_soon(self._flush)

    def touch(self, live: LiveFlow) -> None:
        """A record of this Flow is to be written though no event came of it: an answer to remember."""
        self._touch(live)

    def _flush(self) -> None:
        self._flush_scheduled = True  # what is touched from here on is part of this flush
        for live in list(self._touched):
            self._queue_fresh(live)
        self._slots.pump()
        touched, self._touched = self._touched, {}
        self._flush_scheduled = False
        for live in touched:
            if not live.lost and not live.problem:
                self._submit(live)
            next_in = self._places.leave_if_done(live)
            if next_in is not None:
                self._touch(next_in)

    def _queue_fresh(self, live: LiveFlow) -> None:
        fresh = live.flow.fresh
        if not fresh or not self._places.enter(live):
            return
        state = live.flow.state
        for step_id in fresh:
            step = state.steps.get(step_id)
            if step is None or step_id not in live.flow.index.ready:
                continue
            kind = self._kind_of(live, step)
            if kind is None:
                self._undeployed.setdefault(state.flow_type, {})[live] = None
            else:
                self._slots.put(kind, live, step_id)
        fresh.clear()

    def _kind_of(self, live: LiveFlow, step: StepState) -> tuple[str, str, bool] | None:
        flow_spec = self.specs.get(live.flow.state.flow_type)
        if flow_spec is None:
            return None
        if step.method == TIMEOUT:
            return (flow_spec.flow_type, step.step_type, flow_spec.timeout_handler_is_async)
        spec = flow_spec.steps.get(step.step_type)
        if spec is None:
            return None
        method = spec.wait_for if step.method == "wait_for" and spec.wait_for is not None else spec.execute
        return (flow_spec.flow_type, step.step_type, method.is_async)

    def step_spec(self, live: LiveFlow, step: StepState) -> StepSpec | None:
        if step.override is not None:
            return step.override
        flow_spec = self.specs.get(live.flow.state.flow_type)
        return flow_spec.steps.get(step.step_type) if flow_spec is not None else None

    def _hand_out(self, live: LiveFlow, step_id: str) -> bool:
        """A slot is reserved for this Step: records the start, and has the attempt run when the record is durable."""
        state = live.flow.state
        turn = self.execute(
            live, commands.HandOut(step=step_id, deployment=self.deployments.get(state.flow_type, "")), sync=False
        )
        if turn is None or not any(isinstance(event, AttemptStarted) for event in turn.events):
            return False
        step = state.steps[step_id]
        task = attempt_task(state, step, self.step_spec(live, step) if step.method != TIMEOUT else None)
        live.pending.tasks.append((task, step.durability))
        return True

    # Records ----------------------------------------------------------------------------------------------------------------

    def _submit(self, live: LiveFlow) -> None:
        pending = live.pending
        if pending.is_empty:
            return
        live.pending = Pending()
        live.last_used = now = self.clock.now()
        live.seq += 1
        seq = live.seq
        body = encode_record(pending.events)
        live.records_since_checkpoint += 1
        live.bytes_since_checkpoint += len(body)
        append = Append(
            run_id=live.run_id,
            epoch=live.epoch,
            seq=seq,
            at=now,
            body=body,
            new_run=pending.new_run,
            change=self._change(live, pending),
            requests=tuple(pending.requests),
            blobs=pending.blobs,
            checkpoint=self._checkpoint(live),
        )
        if pending.sync:
            live.sync_in_flight += 1
        else:
            # Only ASYNC completions brought this record about: ASYNC attempts in it may run ahead of it.
            # (Not those that need blobs: these are in the journal only with the record.)
            early = [] if live.sync_in_flight else [entry for entry in pending.tasks if _may_run_ahead(*entry)]
            if early:
                pending.tasks = [entry for entry in pending.tasks if entry not in early]
                for task, _ in early:
                    self._run(live, task)
        self._arm(live)
        self._committer.submit(
            append,
            lambda outcome: self._appended(live, seq, pending, outcome),
            lazy=not pending.sync and not pending.tasks and not pending.whens,
        )

    def _change(self, live: LiveFlow, pending: Pending) -> RunChange | None:
        state = live.flow.state
        wake = live.next_wake()
        closed = any(isinstance(event, FlowClosed) for event in pending.events)
        if not closed and wake == live.stored_wake:
            return None
        live.stored_wake = wake
        return RunChange(
            status=state.status if closed else None, closed_at=state.closed_at if closed else None, next_wake=wake
        )

    def _checkpoint(self, live: LiveFlow) -> bytes | None:
        if (
            live.records_since_checkpoint < self.settings.checkpoint_records
            and live.bytes_since_checkpoint < self.settings.checkpoint_bytes
        ):
            return None
        checkpoint = encode_checkpoint(live.flow)
        # A state larger than the usual tail is not written again for each tail: the cost per record stays bounded.
        if len(checkpoint) > 4 * live.bytes_since_checkpoint and live.records_since_checkpoint < 10_000:
            return None
        live.records_since_checkpoint = 0
        live.bytes_since_checkpoint = 0
        return checkpoint

    def _appended(self, live: LiveFlow, seq: int, pending: Pending, outcome: Outcome) -> None:
        if outcome is not Outcome.DURABLE:
            self.counters["refused_records"] += 1
            reason = Lost(f"record {seq} of run {live.run_id} was refused: {outcome.value}")
            for when in pending.whens:
                when(reason)
            self._drop(live, reason)
            return
        if pending.sync:
            live.sync_in_flight -= 1
        live.durable_seq = seq
        self._released(live, pending)

    def _released(self, live: LiveFlow, pending: Pending) -> None:
        for task, _ in pending.tasks:
            self._run(live, task)
        for key in pending.cancels:
            self._watch.forget(key)
            self._attempts.cancel(key)
        for when in pending.whens:
            when(None)
        if any(isinstance(event, FlowClosed) for event in pending.events):
            live.durable_closed = True
            for future in live.closed_waiters:
                if not future.done():
                    future.set_result(None)
            live.closed_waiters.clear()
        for future in live.history_waiters:
            if not future.done():
                future.set_result(None)
        live.history_waiters.clear()
        while live.settled_waiters and live.settled_waiters[0][0] <= live.durable_seq:
            _, settled = live.settled_waiters.pop(0)
            if not settled.done():
                settled.set_result(None)

    def _run(self, live: LiveFlow, task: AttemptTask) -> None:
        if live.lost:
            self._attempts.release(task.flow_type, task.step_type, task.is_async)
            return
        self.counters["attempts"] += 1
        self._watch.handed_out(task)
        hashes = {found for payload in payloads(task) if (found := reference_of(payload)) is not None}
        if hashes:
            self._spawn(self._run_with_blobs(live, task, hashes))
        else:
            self._attempts.run(task)

    async def _run_with_blobs(self, live: LiveFlow, task: AttemptTask, hashes: set[str]) -> None:
        blobs = await self.read(lambda: self.journal.get_blobs(hashes))
        if live.lost:
            self._attempts.release(task.flow_type, task.step_type, task.is_async)
        else:
            self._attempts.run(replace(task, blobs=blobs))

    # Attempts: AttemptSink ----------------------------------------------------------------------------------------------------

    def attempt_running(self, key: AttemptKey) -> None:
        self._watch.running(key)

    def attempt_heartbeat(self, key: AttemptKey, heartbeat: Heartbeat | None) -> None:
        self._watch.heartbeat(key, heartbeat)

    def attempt_finished(self, key: AttemptKey, result: AttemptResult) -> None:
        beat = self._watch.forget(key)
        live = self.flows.get(key.flow_id)
        if live is None or live.problem or live.run_id != key.run_id:
            self.counters["late_results"] += 1
            self.request_flush()
            return
        if isinstance(result, AttemptFailed) and result.heartbeat is None and beat is not None:
            result = replace(result, heartbeat=beat)
        again_at = self.clock.now() + self.settings.returned_delay if isinstance(result, AttemptReturned) else 0.0
        step = live.flow.state.steps.get(key.step_execution_id)
        sync = step is None or step.durability != ASYNC
        blobs = getattr(result, "blobs", None)
        turn = self.execute(live, commands.FinishAttempt(key=key, result=result, again_at=again_at), sync=sync)
        if turn is not None and not turn.events:
            self.counters["late_results"] += 1
        elif blobs:
            live.pending.blobs.update(blobs)
        self.request_flush()

    def slots_changed(self) -> None:
        self.request_flush()

    def _expired(self, key: AttemptKey, failure: AttemptFailed) -> None:
        self._attempts.cancel(key)
        self.attempt_finished(key, failure)

    def _store_heartbeat(self, key: AttemptKey, heartbeat: Heartbeat) -> None:
        live = self.flows.get(key.flow_id)
        if live is not None and not live.problem and live.run_id == key.run_id:
            self.execute(live, commands.StoreHeartbeat(key=key, heartbeat=heartbeat), sync=False)

    # Time ---------------------------------------------------------------------------------------------------------------------

    def _arm(self, live: LiveFlow) -> None:
        due = live.flow.next_due()
        if due is not None and due != live.armed:
            live.armed = due
            self._alarm.set(due, live.flow_id)

    def _due(self, flow_id: str) -> None:
        live = self.flows.get(flow_id)
        if live is not None:
            live.armed = 0.0
            if not live.problem:
                self.execute(live, commands.Due())
                self._arm(live)
        elif self.residents.is_away(flow_id):
            self._spawn(self.residents.resume([flow_id]))

    # Coming and going -----------------------------------------------------------------------------------------------------------

    async def load(self, flow_id: str) -> LiveFlow | None:
        """The Flow, from memory or from the journal; None when there is none. NotMine when another owner has it."""
        return await self.residents.load(flow_id)

    def _arrived(self, live: LiveFlow) -> None:
        """What a former owner had handed out is lost; what fell due meanwhile is due now."""
        if not live.flow.is_closed:
            self.execute(live, commands.Interrupt())
            self.execute(live, commands.Due())
            self._arm(live)

    async def read(self, call: Callable[[], T]) -> T:
        """A blocking call of the journal that is repeated while the database is away."""
        delay = 0.05
        while True:
            try:
                return await self.blocking(call)
            except JournalUnavailable as error:
                logger.warning("the database is away: %s", error)
                await asyncio.sleep(delay)
                delay = min(delay * 2, 2.0)

    def _drop(self, live: LiveFlow, reason: Exception) -> None:
        """Forgets a Flow that is not ours, or not what we thought; whoever waits for it is told."""
        if live.lost:
            return
        self.residents.forget(live)
        for step in live.flow.state.steps.values():
            self._watch.forget(AttemptKey(live.flow_id, live.run_id, step.id, step.method, step.attempt))
        whens, live.pending = live.pending.whens, Pending()
        for when in whens:
            when(reason)
        waiting = [*live.closed_waiters, *live.history_waiters, *(future for _, future in live.settled_waiters)]
        for future in waiting:
            if not future.done():
                future.set_exception(reason)
        live.closed_waiters.clear()
        live.history_waiters.clear()
        live.settled_waiters.clear()

    def _park(self, live: LiveFlow, error: Exception) -> None:
        """This Flow is in trouble that is not its owner's to solve: it stops here, with its evidence, and the others go on.

        What was decided but not yet submitted is dropped with the state in memory; the journal keeps what it has.
        """
        logger.exception("Flow %r stops here: %s", live.flow_id, error)
        live.problem = f"{type(error).__name__}: {error}"
        whens, live.pending = live.pending.whens, Pending()
        reason = ServiceError("INTERNAL", f"Flow {live.flow_id!r} has stopped: {live.problem}")
        for when in whens:
            when(reason)

    def _spawn(self, coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._spawned_done)
        return task

    def _spawned_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            logger.error("a background task of the engine failed", exc_info=task.exception())

    # Requests -------------------------------------------------------------------------------------------------------------------

    async def call(self, request: AnyRequest) -> Answer:
        """Answers a client. Raises ServiceError, or NotMine when another owner has the Flow."""
        from dexray.engine.requests import answer

        return await answer(self, request)

    def load_report(self) -> HostLoad:
        """How much this owner has to do, for those who place Flows."""
        now = self.clock.now()
        active = [live for live in self.flows.values() if not live.flow.is_closed and live.is_active]
        return HostLoad(
            active=len(active),
            lasting=sum(1 for live in active if now - live.flow.state.started_at > 5.0),
            queued=self._places.waiting,
            in_memory=len(self.flows),
            attempts=len(self._watch),
        )

    @property
    def outage(self) -> JournalUnavailable | None:
        return self._committer.unavailable


def _may_run_ahead(task: AttemptTask, durability: str) -> bool:
    return durability == ASYNC and all(reference_of(payload) is None for payload in payloads(task))
