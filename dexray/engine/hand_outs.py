"""From a Step that is ready to an attempt that runs: places, code, slots, the record of the start, blobs, the watch.

A Step that became ready goes through these gates, in this order, and waits at the first one that is shut:

    gate      opens when                                            opened by
    -------   ---------------------------------------------------   -----------------------------------
    place     fewer than `active_flows` Flows have work under way   a Flow that comes to only wait
    code      the deployed code has the Step                        `FlowHost.deploy`
    slot      the AttemptPort has room for an attempt of its kind   `AttemptSink.slots_changed`
    journal   the record of its start is durable (SYNC)             the committer

Between the slot and the run a slot is reserved. Whatever happens to the Flow meanwhile, it is run or given back.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING

from msgspec.structs import replace

from dex.values import reference_of
from dex.wire.specs import FlowSpec, StepSpec
from dexray.engine.clock import LoopTime
from dexray.engine.live import LiveFlow
from dexray.engine.places import Places
from dexray.engine.slots import Kind, SlotQueues
from dexray.engine.values import read_blobs
from dexray.engine.watch import AttemptWatch
from dexray.machine import commands, locks
from dexray.machine.events import AttemptStarted
from dexray.machine.state import READY, RUNNING, TIMEOUT, StepState
from dexray.machine.tasks import attempt_task, payloads
from dexray.machine.turn import method_of
from dexray.protocol.attempts import VALUES_LOST, AttemptFailed, AttemptKey, AttemptReturned, AttemptTask
from dexray.protocol.ports import AttemptPort

if TYPE_CHECKING:
    from dexray.engine.host import FlowHost

logger = logging.getLogger("dexray.engine.hand_outs")


class HandOuts:
    """The ready Steps and the attempts of one host."""

    def __init__(self, host: FlowHost, port: AttemptPort) -> None:
        self._host = host
        self._port = port
        self._places = Places(host.settings.active_flows)
        self._bounded = host.settings.active_flows > 0
        self._held = host.settings.hold
        self._slots = SlotQueues(port, self._hand_out)
        self._undeployed: dict[str, dict[LiveFlow, None]] = {}  # Flow type -> Flows with Steps that wait for code
        # Timeouts are durations: they are measured on a clock that nobody sets.
        self.watch = AttemptWatch(LoopTime(), expired=host.attempt_expired, store=host.store_heartbeat)

    @property
    def waiting_flows(self) -> int:
        return self._places.waiting

    @property
    def waiting_steps(self) -> int:
        """Steps that wait for a slot, and Flows that wait for a place."""
        return len(self._slots) + self._places.waiting

    # Ready Steps ------------------------------------------------------------------------------------------------------

    def queue_fresh(self, live: LiveFlow) -> None:
        """Steps that became ready go to the queue of their kind, or wait for a place or for code."""
        fresh = live.flow.fresh
        if not fresh or live.lost or live.problem or not self._places.enter(live):
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

    def pump(self) -> None:
        if not self._held:
            self._slots.pump()

    def hold(self) -> None:
        """Hands out nothing more."""
        self._held = True

    async def drain(self, seconds: float) -> int:
        """Waits for the attempts that are out; the number of those that are out still."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.watch.emptied(), seconds)
        return len(self.watch)

    def code_came(self, flow_type: str) -> list[LiveFlow]:
        """Flows with Steps that waited for the code of this type: they are to be looked at again."""
        waiting = [live for live in self._undeployed.pop(flow_type, ()) if not live.lost and not live.problem]
        for live in waiting:
            live.flow.fresh.extend(live.flow.index.ready)
        return waiting

    def settle_place(self, live: LiveFlow) -> list[LiveFlow]:
        """Gives the Flow's place back when it has nothing under way; returns those that came in, to be looked at."""
        if self._bounded and self._places.is_inside(live) and not self._is_under_way(live):
            return self._places.leave(live)
        return []

    def _is_under_way(self, live: LiveFlow) -> bool:
        """An attempt is out, or a Step waits for nothing but a worker."""
        return (
            not live.lost
            and not live.problem
            and any(
                step.phase == RUNNING
                or ((step.phase == READY or step.id in live.flow.index.ready) and self._kind_of(live, step) is not None)
                for step in live.flow.state.steps.values()
            )
        )

    def _kind_of(self, live: LiveFlow, step: StepState) -> Kind | None:
        """None when the deployed code has no such Step."""
        flow_spec = self._spec_of(live)
        if flow_spec is None:
            return None
        if step.method == TIMEOUT:
            return (flow_spec.flow_type, step.step_type, flow_spec.timeout_handler_is_async)
        spec = flow_spec.steps.get(step.step_type)
        if spec is None:
            return None
        method = spec.wait_for if step.method == "wait_for" and spec.wait_for is not None else spec.execute
        return (flow_spec.flow_type, step.step_type, method.is_async)

    def _spec_of(self, live: LiveFlow) -> FlowSpec | None:
        return self._host.specs.get(live.flow.state.flow_type)

    def _step_spec(self, live: LiveFlow, step: StepState) -> StepSpec | None:
        if step.method == TIMEOUT:
            return None
        if step.override is not None:
            return step.override
        flow_spec = self._spec_of(live)
        return flow_spec.steps.get(step.step_type) if flow_spec is not None else None

    # Attempts ---------------------------------------------------------------------------------------------------------

    def _hand_out(self, live: LiveFlow, step_id: str) -> bool:
        """A slot is reserved for this Step: records the start, and has the attempt run when the record is durable."""
        state = live.flow.state
        deployment = self._host.deployments.get(state.flow_type, "")
        turn = self._host.execute(live, commands.HandOut(step=step_id, deployment=deployment), sync=False)
        if turn is None:
            return False
        if not any(isinstance(event, AttemptStarted) for event in turn.events):
            self._host.arm(live)  # a retry that is not due any more comes due again
            if live.flow.fresh:  # a Step that took over from it: this flush has looked at its Flow already
                asyncio.get_running_loop().call_soon(self._host.touch, live)
            return False
        try:
            step = state.steps[step_id]
            task = attempt_task(state, step, self._step_spec(live, step))
        except Exception as error:
            self._host.park(live, error)
            return False
        kind = self._kind_of(live, step)
        if kind is not None and task.is_async != kind[2]:  # its options were pinned before the code was deployed anew
            task = replace(task, is_async=kind[2])
        limit = self._host.settings.max_value_bytes
        if task.max_value_bytes != limit:
            task = replace(task, max_value_bytes=limit)
        live.pending.tasks.append((task, step.durability))
        return True

    def run(self, live: LiveFlow, task: AttemptTask) -> None:
        """Runs an attempt whose slot is reserved and whose start may be let out."""
        if live.lost or self._host.stopped:
            self.release(task)
            return
        self._host.counters["attempts"] += 1
        self.watch.handed_out(task)
        hashes = references(task)
        if hashes and hashes - self._port.at_hand(task, hashes):
            self._host.spawn(self._run_with_blobs(live, task, hashes))
        else:
            self._port.run(task)

    def adopt(self, live: LiveFlow) -> frozenset[str]:
        """Takes over what a former owner had handed out, as far as it survives its owner; the Steps whose attempts are
        out now as if they had been handed out here."""
        adopted = set()
        for step in live.flow.state.steps.values():
            if step.phase != RUNNING or not step.detached:
                continue
            spec = self._step_spec(live, step)
            task = attempt_task(live.flow.state, step, spec) if spec is not None else None
            if task is not None and self._port.adopt(task):  # without its code there is no telling how long it may take
                self.watch.handed_out(task)
                adopted.add(step.id)
        return frozenset(adopted)

    async def _run_with_blobs(self, live: LiveFlow, task: AttemptTask, hashes: set[str]) -> None:
        blobs: dict[str, bytes] = {}
        lost = ""
        try:
            # What was at hand may not be any more when the rest has been read.
            while not lost and (rest := hashes - blobs.keys() - self._port.at_hand(task, hashes)):
                read, lost = await self._host.read(partial(read_blobs, self._host.journal, rest))
                blobs.update(read)
        except Exception as error:
            logger.exception("Flow %r: the large values of an attempt can't be read", live.flow_id)
            self.release(task)
            self._host.attempt_finished(task.key, AttemptReturned(reason=f"its large values can't be read: {error}"))
            return
        if live.lost or not self.watch.is_out(task.key):  # the Flow, or the wish for this attempt, has gone meanwhile
            self.release(task)
        elif lost:
            self.release(task)
            key = task.key
            detail = (
                f"Flow {key.flow_id!r}, {key.method} of {key.step_execution_id}: values that it reads are lost: {lost}"
            )
            failure = AttemptFailed(error_type=VALUES_LOST, detail=detail, kind=VALUES_LOST, may_have_run=False)
            self._host.attempt_finished(key, failure)
        else:
            self._port.run(replace(task, blobs=blobs))

    def waits_for(self, live: LiveFlow, step: StepState) -> str:
        """What keeps a Step from running that the machine can't know of, its code or resources; "" when nothing
        does."""
        if step.phase == RUNNING:
            key = AttemptKey(live.flow_id, live.run_id, step.id, step.method, step.attempt)
            why = self._port.waiting_for(key)
            return f"attempt {step.attempt} of {step.method} to begin: {why}" if why else ""
        if step.id in live.flow.index.blocked:
            return self._lock_of(live, step)
        if step.id in live.flow.index.ready and self._kind_of(live, step) is None:
            what = "a timeout handler" if step.method == TIMEOUT else f"Step {step.step_type}"
            return f"code of Flow type {live.flow.state.flow_type} that has {what}: deploy it, and the Step goes on"
        return ""

    def _lock_of(self, live: LiveFlow, step: StepState) -> str:
        """Which lock it is that the Step found taken, and who holds it; "" when it is not known any more."""
        spec = self._step_spec(live, step)
        if spec is None and step.method != TIMEOUT:
            return ""
        taken = locks.taken(live.flow, method_of(live.flow.state, step, spec).locks)
        if taken is None:
            return ""
        holder = live.flow.index.locks.get(taken)
        holder = "an RPC" if holder is None else f"Step {holder}"
        return f"a lock on {taken} that {holder} holds"

    def cancel(self, key: AttemptKey) -> None:
        self.watch.forget(key)
        self._port.cancel(key)

    def settled(self, keys: Iterable[AttemptKey]) -> None:
        """The outcome of these detached attempts is durable."""
        for key in keys:
            self._port.settled(key)

    def release(self, task: AttemptTask) -> None:
        """The slot of an attempt that will not run."""
        self._port.release(task.flow_type, task.step_type, task.is_async)

    def forget(self, live: LiveFlow) -> None:
        """The Flow has left this owner: nothing of its attempts is judged here any more."""
        for step in live.flow.state.steps.values():
            self.watch.forget(AttemptKey(live.flow_id, live.run_id, step.id, step.method, step.attempt))


def references(task: AttemptTask) -> set[str]:
    """The content hashes of the large values that an attempt needs."""
    return {found for payload in payloads(task) if (found := reference_of(payload)) is not None}
