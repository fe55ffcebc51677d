"""The owner of Flows: commands in, records to the journal, effects out.

How a command goes: `execute` lets the machine decide and applies the outcome to the Flow in memory; what came of it
collects in the Flow's `Pending`. Once in a turn of the event loop, `_flush` hands out ready Steps as far as there are
slots (the starts join the same records) and submits one record for each Flow touched. When the committer says that a
record is durable, `_released` lets out its effects: attempts to run, attempts to cancel, answers to clients, those who
wait for the end.

Memory runs ahead of the journal, and only what is durable is let out. So when a record is refused, everything after it
in that Flow is wrong too: the Flow is dropped, its waiters are told, and the next call loads it from the journal.

An owner has lives, one after the other, and the journal knows the newest. A host whose life is over (its process was
given up, and was only frozen, or cut off) is refused by the journal, in whatever run; then it steps down.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine, Iterable
from functools import partial
from typing import Any, TypeVar

from msgspec.structs import replace

from dex.wire.service import Answer, AnyRequest, ServiceError
from dex.wire.specs import ASYNC, RPC, DeploymentSpec, FlowSpec
from dexray.engine.alarm import Alarm
from dexray.engine.clock import Blocking, BlockingInline, Clock
from dexray.engine.committer import Closed, GroupCommitter
from dexray.engine.hand_outs import HandOuts, references
from dexray.engine.live import LiveFlow, Lost, Pending
from dexray.engine.questions import Questions
from dexray.engine.records import next_record
from dexray.engine.requests import not_active
from dexray.engine.residents import Residents
from dexray.engine.retention import Retention
from dexray.engine.rpc import RpcDesk
from dexray.engine.settings import HostLoad, HostSettings
from dexray.engine.stores import StoreDesk
from dexray.engine.streams import StreamDesk
from dexray.engine.subflows import SubFlows
from dexray.journal.interface import Append, Journal, JournalUnavailable, Outcome, Outlived
from dexray.machine import commands
from dexray.machine.decide import decide
from dexray.machine.events import FlowClosed
from dexray.machine.state import Flow, StepState
from dexray.machine.turn import Turn, running_step
from dexray.protocol.attempts import AttemptFailed, AttemptKey, AttemptResult, AttemptReturned, Heartbeat
from dexray.protocol.ports import AttemptPort, Router
from dexray.protocol.streams import StreamWrite
from dexray.settings import AttributeStore
from dexray.stores import StoreTable

logger = logging.getLogger("dexray.engine")

T = TypeVar("T")


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
        router: Router | None = None,
        open_journal: Callable[[], Journal] | None = None,
        store_thread: Callable[[str], Blocking] | None = None,
        open_store: Callable[[AttributeStore], StoreTable] = StoreTable,
        outlived: Callable[[], None] = lambda: None,
    ) -> None:
        """router: the way to Flows that may be another owner's; None when there is no other owner.
        open_journal: makes one more object of the same journal, for searches; None has them use `journal`.
        store_thread: makes the thread in which an Attribute store is spoken to; None has it done in the event loop.
        outlived: called when this host has stepped down, because a later life of its owner has begun.
        """
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
            spawn=self.spawn,
            now=clock.now,
            arrived=self._arrived,
            wake_at=lambda when, flow_id: self._alarm.set(when, flow_id),
            crowded=lambda: self._hand_outs.waiting_steps > self.settings.idle_flows,
            limit=self.settings.idle_flows,
            width=self.settings.recovery_width,
        )
        self.flows = self.residents.flows
        self.specs: dict[str, FlowSpec] = {}
        self.deployments: dict[str, str] = {}  # Flow type -> deployment id
        self.counters: dict[str, int] = {"late_results": 0, "refused_records": 0, "attempts": 0}
        self.stopped = False
        self._hand_outs = HandOuts(self, attempts)
        self.rpcs = RpcDesk(self, attempts)
        self.subflows = SubFlows(self, router)
        self.streams = StreamDesk(self)
        self.questions = Questions(self, open_journal)
        self.retention = Retention(self)
        self.stores = StoreDesk(self, store_thread or (lambda _: BlockingInline()), open_store)
        self._committer = GroupCommitter(journal, blocking)
        self._touched: dict[LiveFlow, None] = {}
        self._flush_scheduled = False
        self._slots_freed = False
        self._alarm = Alarm(clock, self._due)
        self._tasks: dict[asyncio.Task[None], None] = {}  # in one order, that a run can be repeated
        self._recovering: asyncio.Task[None] | None = None
        self._looking: asyncio.Task[None] | None = None
        self._outlived = outlived
        self._stepping_down: asyncio.Task[None] | None = None

    # Life -------------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begins to work, and to resume the open Flows of this owner in the background."""
        self._committer.start()
        self._recovering = self.spawn(self._begin())
        if self.settings.sweep_seconds:
            self.spawn(self._sweep(self.settings.sweep_seconds))
        if self.settings.removes_runs:
            self.spawn(self.retention.run())

    async def _sweep(self, every: float) -> None:
        while True:
            await asyncio.sleep(every)
            await self._look_after_life()
            await self.residents.sweep()

    async def _begin(self) -> None:
        await self.read(partial(self.journal.begin_life, self.owner))
        await self.recover()

    async def _look_after_life(self) -> None:
        """Steps down if a later life of this owner has begun."""
        with contextlib.suppress(Lost):
            await self.read(partial(self.journal.claim, (), self.owner))

    def _step_down(self, why: Outlived) -> None:
        if not self.stopped:
            logger.warning("%s: this one steps down", why)
            self.stopped = True
            self._stepping_down = asyncio.get_running_loop().create_task(self._end_life())

    async def _end_life(self) -> None:
        await self.abandon()
        self._outlived()

    async def recover(self) -> None:
        """Goes on with what the journal has for this owner to do."""
        self.stores.recover()
        await self.residents.recover()

    async def recovered(self) -> None:
        if self._recovering is not None:
            await self._recovering

    async def stop(self, drain: float = 0.0) -> int:
        """Ends in order: nothing more is taken, what was decided is written; in an outage, for as long as a call would
        wait. Attempts that are out have `drain` seconds to finish; those that are out then are left to the next owner,
        for whom they were interrupted; the number of these."""
        if self._stepping_down is not None:
            await self._stepping_down
            return 0
        self._hand_outs.hold()
        await self._written()  # starts that are on their way to the journal become attempts that are out
        left = await self._hand_outs.drain(drain)
        if left:
            level = logging.WARNING if drain else logging.INFO  # whoever gives them no time knows
            logger.log(level, "%d attempts did not end within %g s and are interrupted", left, drain)
        await self.streams.drained()
        self.stopped = True
        await self._written()
        await self.stores.drained()
        await self.abandon()
        return left

    async def _written(self) -> None:
        """Returns when all that was decided is written; in an outage, after as long as a call would wait."""
        if self._touched:
            self._flush()
        if self._committer.unavailable is None:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._committer.drained(), self.settings.outage_patience)

    async def abandon(self) -> None:
        """Ends at once, as a crash would."""
        self.stopped = True
        self.stores.end()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._committer.close()
        await self.questions.close()
        await self.stores.close()
        self._alarm.close()
        for live in list(self.flows.values()):
            self.drop(live, Lost("the engine has stopped"))
        self._hand_outs.watch.close()
        self.residents.close()

    def deploy(self, deployment: DeploymentSpec) -> None:
        """Makes this the code of its Flow types. Steps that waited for code are looked at again."""
        for flow_type, spec in deployment.flows.items():
            self.specs[flow_type] = spec
            self.deployments[flow_type] = deployment.deployment_id
            for live in self._hand_outs.code_came(flow_type):
                self.touch(live)
            self.rpcs.code_came(flow_type)
        self.subflows.code_came()
        stopped = [
            live for live in self.flows.values() if live.problem and live.flow.state.flow_type in deployment.flows
        ]
        for live in stopped:  # the new code may be what it needs: load it and see
            self.drop(live, Lost("its code was deployed anew"))
        if stopped:
            self.spawn(self.residents.resume([live.flow_id for live in stopped]))

    def hurry(self) -> None:
        """Writes what was decided so far without waiting for company: for whoever wants to read it in the journal."""
        if self._touched:
            self._flush()
        self._committer.hurry()

    # Commands ---------------------------------------------------------------------------------------------------------

    def execute(self, live: LiveFlow, command: commands.Command, *, sync: bool = True) -> Turn | None:
        """Lets the machine decide one command of one Flow. None when the Flow got into trouble: see `live.problem`."""
        try:
            begins = command if isinstance(command, commands.Start | commands.Fork) else live.flow.state
            flow_type = begins.flow_type
            at = live.pending.at = live.pending.at or self.clock.now()
            turn = decide(live.flow, command, self.specs.get(flow_type), at)
        except Exception as error:
            self.park(live, error)
            return None
        if turn.events:
            live.pending.events.extend(turn.events)
            live.pending.sync = live.pending.sync or sync
        if turn.cancels:
            live.pending.cancels.extend(turn.cancels)
        if turn.parents:
            live.pending.parents.extend(turn.parents)
        if live.children:
            self.subflows.follow(live, turn.events)
        if turn.events or live.flow.fresh:
            self.touch(live)
        if live.pending.is_empty:
            live.pending.at = 0.0  # nothing came of it: the next command has its own time
        return turn

    def start_run(self, command: commands.Start | commands.Fork, pending: Pending) -> LiveFlow:
        """A new run, in memory. It is real when its record is durable: the journal may refuse it as a second run of its
        Flow ID."""
        live = LiveFlow(Flow(), epoch=1, seq=0)
        live.pending = pending
        self.execute(live, command)
        if live.problem:
            live.lost = True  # it never was: nothing of it is written
        else:
            self.residents.add(live)
        return live

    def touch(self, live: LiveFlow) -> None:
        """The Flow is to be looked at: it has Steps to hand out, or a record to be written."""
        self._touched[live] = None
        self.request_flush()

    def request_flush(self) -> None:
        if not self._flush_scheduled and not self.stopped:
            self._flush_scheduled = True
            asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        self._flush_scheduled = True  # what is touched from here on is part of this flush
        self._slots_freed = False
        if not self.stopped:
            for live in list(self._touched):
                self._hand_outs.queue_fresh(live)
            self.rpcs.pump()
            self._hand_outs.pump()
        touched, self._touched = self._touched, {}
        self._flush_scheduled = False
        self.residents.room()
        for live in touched:
            if not live.lost and not live.problem:
                self._submit(live)
            self._touch_all(self._hand_outs.settle_place(live))
        if self._slots_freed:  # by this flush itself, after it had found none
            self.request_flush()

    def _touch_all(self, flows: Iterable[LiveFlow]) -> None:
        for live in flows:
            self.touch(live)

    # Records ----------------------------------------------------------------------------------------------------------

    def _submit(self, live: LiveFlow) -> None:
        pending = live.pending
        if pending.is_empty:
            return
        try:
            spec = self.specs.get(live.flow.state.flow_type)
            append = next_record(live, pending, pending.at or self.clock.now(), self.settings, spec)
        except Exception as error:
            self.park(live, error)
            return
        live.pending = Pending()
        if live.waits is not None:
            live.waits.look(live.flow.state, pending.events, append.seq)
        if pending.sync:
            live.sync_in_flight += 1
        elif not live.sync_in_flight and self.outage is None:
            self._run_ahead(live, pending)
        self.arm(live)
        self._committer.submit(
            append,
            lambda outcome: self._appended(live, append, pending, outcome),
            lazy=not pending.sync and not pending.tasks and not pending.whens,
        )

    def _run_ahead(self, live: LiveFlow, pending: Pending) -> None:
        """Only ASYNC completions brought this record about: ASYNC attempts in it need not wait for it. Those with large
        values do: the values may be in records that are still on their way. So do detached ones: they would outlive an
        owner whose record is refused, and stand in the way of the attempt that the journal knows."""
        ahead = [
            task
            for task, durability in pending.tasks
            if durability == ASYNC and not task.detached and not references(task)
        ]
        if ahead:
            pending.tasks = [entry for entry in pending.tasks if not any(entry[0] is task for task in ahead)]
            for task in ahead:
                self._hand_outs.run(live, task)

    def _appended(self, live: LiveFlow, append: Append, pending: Pending, outcome: Outcome | Exception) -> None:
        seq = append.seq
        if outcome is Outcome.DURABLE:
            if append.marks:
                self.stores.marked(append)
            if pending.sync:
                live.sync_in_flight -= 1
            live.durable_seq = seq
            self._released(live, pending)
            return
        if isinstance(outcome, Closed):
            self._give_up(pending, Lost(str(outcome)))
            return
        self.counters["refused_records"] += 1
        why = outcome.value if isinstance(outcome, Outcome) else f"{type(outcome).__name__}: {outcome}"
        reason = Lost(f"record {seq} of run {live.run_id} was refused: {why}")
        self._give_up(pending, reason)
        if isinstance(outcome, Exception):
            self.park(live, outcome)
        elif not live.problem:
            self.drop(live, reason)
        if outcome is Outcome.FENCED and not self.stopped and (self._looking is None or self._looking.done()):
            self._looking = self.spawn(self._look_after_life())

    def _give_up(self, pending: Pending, reason: Exception) -> None:
        """What was not written has not happened: slots are free again, and who waited is told."""
        for task, _ in pending.tasks:
            self._hand_outs.release(task)
        for when in pending.whens:
            when(reason)

    def _released(self, live: LiveFlow, pending: Pending) -> None:
        if pending.parents:
            self.subflows.begin(live, pending.parents)
        if pending.new_run is not None:
            self.subflows.resume(live)
        for task, _ in pending.tasks:
            self._hand_outs.run(live, task)
        for key in pending.cancels:
            self._hand_outs.cancel(key)
        if pending.settled:
            self._hand_outs.settled(pending.settled)
        for when in pending.whens:
            when(None)
        if any(isinstance(event, FlowClosed) for event in pending.events):
            live.durable_closed = True
            live.confirmed_at = asyncio.get_running_loop().time()
            live.tell_closed(None)
        if live.waits is not None:
            live.waits.durable(live.durable_seq, not_active(live) if live.durable_closed else None)
        live.tell_history(None)
        live.tell_settled(live.durable_seq)

    def waits_for(self, live: LiveFlow, step: StepState) -> str:
        """What keeps a Step from running that the machine can't know of: code or resources; "" when nothing does."""
        return self._hand_outs.waits_for(live, step) or self.subflows.waits_for(live, step)

    # Attempts: AttemptSink --------------------------------------------------------------------------------------------

    def attempt_running(self, key: AttemptKey) -> None:
        if key.method == RPC:
            self.rpcs.attempt_running(key)
        else:
            self._hand_outs.watch.running(key)

    def attempt_heartbeat(self, key: AttemptKey, heartbeat: Heartbeat | None) -> None:
        self._hand_outs.watch.heartbeat(key, heartbeat)

    def stream_written(self, message: StreamWrite) -> None:
        self.streams.take(message)

    def attempt_finished(self, key: AttemptKey, result: AttemptResult) -> None:
        if key.method == RPC:
            if not self.rpcs.attempt_finished(key, result):
                self.counters["late_results"] += 1
            return
        beat = self._hand_outs.watch.forget(key)
        live = self._current(key)
        if live is None:
            self.counters["late_results"] += 1
            self.request_flush()
            return  # a detached one keeps its result, for whoever has the Flow now
        if isinstance(result, AttemptFailed) and result.heartbeat is None and beat is not None:
            result = replace(result, heartbeat=beat)
        again_at = self.clock.now() + self.settings.returned_delay if isinstance(result, AttemptReturned) else 0.0
        step = live.flow.state.steps.get(key.step_execution_id)
        sync = step is None or step.durability != ASYNC
        blobs = getattr(result, "blobs", None)
        detached = step is not None and step.detached
        turn = self.execute(live, commands.FinishAttempt(key=key, result=result, again_at=again_at), sync=sync)
        if turn is not None and not turn.events:
            self.counters["late_results"] += 1
            self._let_go(live, key)
        else:
            if blobs:
                live.pending.blobs.update(blobs)
            if detached:
                live.pending.settled.append(key)
        self.request_flush()

    def _let_go(self, live: LiveFlow, key: AttemptKey) -> None:
        """Nobody here wants this attempt any more. A detached one may go when that is durable, and not before: if it
        never is, the next owner wants it."""
        target = live.seq + (0 if live.pending.is_empty else 1)
        if live.durable_seq >= target:
            self._hand_outs.settled([key])
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        future.add_done_callback(lambda done: None if done.exception() else self._hand_outs.settled([key]))
        live.settled_waiters.append((target, future))

    async def is_wanted(self, key: AttemptKey) -> bool:
        from dexray.engine.requests import look_for, settled

        live = await look_for(self, key.flow_id)
        if live is None:
            return False
        if running_step(live.flow.state, key) is not None:
            return True
        await settled(self, live)
        return False

    def slots_changed(self) -> None:
        self._slots_freed = True
        self.request_flush()

    def attempt_expired(self, key: AttemptKey, failure: AttemptFailed) -> None:
        """The watch has lost patience with an attempt."""
        self._hand_outs.cancel(key)
        self.attempt_finished(key, failure)

    def store_heartbeat(self, key: AttemptKey, heartbeat: Heartbeat) -> None:
        live = self._current(key)
        if live is not None:
            self.execute(live, commands.StoreHeartbeat(key=key, heartbeat=heartbeat), sync=False)

    def _current(self, key: AttemptKey) -> LiveFlow | None:
        """The Flow of an attempt, if it is here, sound, and still in the attempt's run."""
        live = self.flows.get(key.flow_id)
        return live if live is not None and not live.problem and live.run_id == key.run_id else None

    # Time -------------------------------------------------------------------------------------------------------------

    def arm(self, live: LiveFlow) -> None:
        """Sets the alarm for the next time at which the Flow has something to do by itself."""
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
                self.arm(live)
        elif self.residents.is_away(flow_id):
            self.residents.resume_soon(flow_id)

    # Coming and going -------------------------------------------------------------------------------------------------

    def _arrived(self, live: LiveFlow) -> None:
        """What a former owner had handed out is lost, if it can't be adopted; what fell due meanwhile is due now."""
        if not live.flow.is_closed and not live.problem:
            self.execute(live, commands.Interrupt(but=self._hand_outs.adopt(live)))
            self.execute(live, commands.Due())
            self.arm(live)
            self.subflows.resume(live)

    async def read(self, call: Callable[[], T], blocking: Blocking | None = None) -> T:
        """A blocking call of the journal that is repeated while the database is away, for as long as it takes.
        blocking: runs it; the host's own unless told."""
        blocking = self.blocking if blocking is None else blocking
        delay = 0.05
        while True:
            try:
                return await blocking(call)
            except Outlived as error:
                self._step_down(error)
                raise Lost(str(error)) from error
            except JournalUnavailable as error:
                logger.warning("the database is away: %s", error)
                await asyncio.sleep(delay)
                delay = min(delay * 2, 2.0)

    def drop(self, live: LiveFlow, reason: Exception) -> None:
        """Forgets a Flow that is not ours, or not what we thought; whoever waits for it is told."""
        if live.lost:
            return
        self.residents.forget(live)
        self._hand_outs.forget(live)
        self.rpcs.leave(live, reason)
        self.subflows.forget(live)
        pending, live.pending = live.pending, Pending()
        self._give_up(pending, reason)
        live.tell_all(reason)
        self._touch_all(self._hand_outs.settle_place(live))

    def removed(self, flow_id: str, run_id: str) -> None:
        """A run is not in the journal any more: it leaves memory as well."""
        live = self.flows.get(flow_id)
        if live is not None and live.run_id == run_id:
            self.drop(live, Lost("the run was removed"))

    def park(self, live: LiveFlow, error: Exception) -> None:
        """This Flow is in trouble that is not its owner's to solve: it stops here, with its evidence, and the others go
        on.

        What was decided but not yet submitted is dropped with the state in memory; the journal keeps what it has.
        """
        if live.problem or live.lost:
            return
        logger.error("Flow %r stops here", live.flow_id, exc_info=error)
        live.problem = f"{type(error).__name__}: {error}"
        pending, live.pending = live.pending, Pending()
        reason = ServiceError("INTERNAL", f"Flow {live.flow_id!r} has stopped: {live.problem}")
        self._give_up(pending, reason)
        self.rpcs.leave(live, reason)
        self.subflows.forget(live)
        live.tell_closed(reason)
        if live.waits is not None:
            live.waits.end(reason)
        live.tell_unsettled(reason)
        self._touch_all(self._hand_outs.settle_place(live))

    def spawn(self, coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """A background task that ends with the host; a failure is logged."""
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks[task] = None
        task.add_done_callback(self._spawned_done)
        return task

    def _spawned_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.pop(task, None)
        if not task.cancelled() and task.exception() is not None:
            logger.error("a background task of the engine failed", exc_info=task.exception())

    # Requests ---------------------------------------------------------------------------------------------------------

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
            queued=self._hand_outs.waiting_flows,
            in_memory=len(self.flows),
            attempts=len(self._hand_outs.watch),
        )

    @property
    def outage(self) -> JournalUnavailable | None:
        return self._committer.unavailable
