"""The children of an owner's Flows: started when the wait that asks for them is durable, listened to until they end.

The parent is the one who is interested, so it pulls. A child knows nothing of its parent, nothing has to reach the
parent from a child, and nothing durable is sent: what is to be done follows at any moment from the parent's state
(`dexray.machine.subflows`), and is taken up again by whoever owns the parent next. Doing it twice does no harm.

    start    under a request id that follows from the parent's run, the Step execution and the number of the SubFlow, so
             that a repeat gets the same run; the child may be any owner's (`Router`)
    listen   to a child in the memory of this very host without a poll, to another by long polls of its owner
    tell     the machine how it ended, as the command `EndSubFlow`

Any of these may fail: the child's owner is away, its code is not deployed, the database does not answer. It is tried
again for as long as the parent waits, and `describe` of the parent says why. What is not known is not guessed: a child
that can't be found any more is started again, under the same request id.

A parent that waits for a child stays in memory. One that was met without it (another condition won) still sees to it
that the child is started, for as long as the Step is open; then each goes its own way.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dex.wire.service import AnswerT, FlowOutcome, Request, ServiceError, StartFlow, WaitForFlow
from dexray.engine.live import LiveFlow, Lost
from dexray.engine.starting import subflow_policy
from dexray.machine import commands
from dexray.machine.events import AnyEvent, ConditionsMet, FlowClosed, StepCancelled, StepCompleted, StepFailed
from dexray.machine.state import StepState
from dexray.machine.subflows import Wanted, wanted
from dexray.protocol.ports import Router
from dexray.protocol.subflows import SubFlowResult, start_request_id, subflow_id

if TYPE_CHECKING:
    from dexray.engine.host import FlowHost

logger = logging.getLogger("dexray.engine.subflows")

POLL = 60.0  # seconds of a long poll for a child that is elsewhere
FIRST_PAUSE = 0.05
LONGEST_PAUSE = 5.0


@dataclass(slots=True, eq=False)
class Child:
    """A child that is seen to. `is_awaited` turns False when its end is of no interest any more."""

    live: LiveFlow
    step: str
    flow_id: str
    wanted: Wanted
    is_fresh: bool  # nobody can have asked for it before
    is_awaited: bool
    is_started: bool = False
    trouble: str = ""
    task: asyncio.Task[None] | None = None


class SubFlows:
    """The children of one host's Flows. `LiveFlow.children` holds them by Step execution."""

    def __init__(self, host: FlowHost, router: Router | None) -> None:
        self._host = host
        self._router: Router = router if router is not None else _Here(host)
        self._again = asyncio.Event()  # replaced each time it is set

    # What the host tells ----------------------------------------------------------------------------------------------

    def begin(self, live: LiveFlow, steps: Iterable[str]) -> None:
        """The waits of these Steps are durable."""
        self._see_to(live, steps, fresh=True)

    def resume(self, live: LiveFlow) -> None:
        """The Flow has come to this owner, or this run began in the middle: whatever it wants is seen to."""
        parents = [step.id for step in live.flow.state.steps.values() if step.overtaken]
        self._see_to(live, (*live.flow.index.parents, *parents), fresh=False)

    def follow(self, live: LiveFlow, events: Iterable[AnyEvent]) -> None:
        """These events were applied to a Flow with children: whose wait is over is not listened to any more."""
        for event in events:
            if isinstance(event, ConditionsMet):
                self._leave(live, event.step)
            elif isinstance(event, StepCancelled | StepCompleted | StepFailed):
                self._leave(live, event.step)
                live.children.pop(event.step, None)
            elif isinstance(event, FlowClosed):
                for step in list(live.children):
                    self._leave(live, step)
                live.children.clear()

    def forget(self, live: LiveFlow) -> None:
        """The Flow is in trouble or has left this owner: others see to its children, or nobody."""
        children, live.children = live.children, {}
        for child in (child for of_step in children.values() for child in of_step.values()):
            if child.task is not None:
                child.task.cancel()

    def code_came(self) -> None:
        """Children that could not be started may be able to now."""
        again, self._again = self._again, asyncio.Event()
        again.set()

    def waits_for(self, live: LiveFlow, step: StepState) -> str:
        """What keeps the children of a waiting Step from coming to their end, in words; "" when nothing does."""
        children = live.children.get(step.id, {}).values()
        troubled = [child for child in children if child.trouble and child.is_awaited]
        if not troubled:
            return ""
        more = f", and {len(troubled) - 1} more" if len(troubled) > 1 else ""
        return f"SubFlow {troubled[0].flow_id}: {troubled[0].trouble}{more}"

    # Children ---------------------------------------------------------------------------------------------------------

    def _see_to(self, live: LiveFlow, steps: Iterable[str], *, fresh: bool) -> None:
        for step_id in steps:
            step = live.flow.state.steps.get(step_id)
            if step is None or step_id in live.children:
                continue
            children = live.children[step_id] = {
                one.number: Child(
                    live,
                    step_id,
                    subflow_id(live.flow_id, step_id, one.number),
                    one,
                    is_fresh=fresh,
                    is_awaited=one.index is not None,
                )
                for one in wanted(step)
            }
            for child in children.values():
                child.task = self._host.spawn(self._accompany(child))

    def _leave(self, live: LiveFlow, step_id: str) -> None:
        """A start that is under way goes on; listening ends."""
        for child in live.children.get(step_id, {}).values():
            child.is_awaited = False
            if child.is_started and child.task is not None:
                child.task.cancel()

    async def _accompany(self, child: Child) -> None:
        """From the start of a child to its end."""
        pause = FIRST_PAUSE
        while True:
            again = self._again
            try:
                outcome = await self._see_off(child)
            except Exception as error:
                if not self._is_still_wanted(child):
                    return
                self._note(child, error)
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(again.wait(), pause)
                    pause = FIRST_PAUSE
                    continue
                pause = min(pause * 2, LONGEST_PAUSE)
            else:
                pause, child.trouble = FIRST_PAUSE, ""
                if outcome is not None:
                    self._tell(child, outcome)
                if outcome is not None or not child.is_awaited:
                    return

    async def _see_off(self, child: Child) -> FlowOutcome | None:
        """One try: the outcome, or None when it has not ended yet."""
        if not child.is_started:
            await self._start(child)
            child.is_started, child.trouble = True, ""
        return await self._listen(child) if child.is_awaited else None

    async def _start(self, child: Child) -> None:
        from dexray.engine.requests import attach_blobs

        spec, live = child.wanted.spec, child.live
        fresh, child.is_fresh = child.is_fresh, False
        request = StartFlow(
            flow_id=child.flow_id,
            flow_type=spec.flow_type,
            input=spec.input,
            request_id=start_request_id(live.run_id, child.step, child.wanted.number),
            fresh=fresh,
            id_reuse_policy=subflow_policy(spec.reuse_policy),
            timeout=spec.timeout,
            timeout_policy=spec.timeout_policy,
            timeout_handler=spec.timeout_handler,
            config=spec.config,
            attributes=spec.attributes,
            blobs=await attach_blobs(self._host, live, [spec.input, *spec.attributes.values()]),
            parent=live.flow_id,
        )
        await self._router.call(request)

    async def _listen(self, child: Child) -> FlowOutcome | None:
        here = self._host.flows.get(child.flow_id)
        if here is not None and not here.problem:
            return await self._listen_here(here)
        try:
            return await self._router.call(WaitForFlow(flow_id=child.flow_id, timeout=POLL))
        except ServiceError as error:
            if error.failure.sub_status == "LONG_POLL_TIMEOUT":
                return None
            if error.failure.code == "NOT_FOUND":
                child.is_started = False
            raise

    async def _listen_here(self, here: LiveFlow) -> FlowOutcome:
        from dexray.engine.requests import outcome, settled

        if here.flow.is_closed:
            await settled(self._host, here)
        else:
            closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            here.closed_waiters[closed] = None
            try:
                await closed
            finally:
                here.closed_waiters.pop(closed, None)
        return await outcome(self._host, here)

    def _tell(self, child: Child, outcome: FlowOutcome) -> None:
        live, index = child.live, child.wanted.index
        if index is None or not self._is_still_wanted(child) or not child.is_awaited:
            return
        child.is_awaited, child.task = False, None
        del live.children[child.step][child.wanted.number]
        result = SubFlowResult(
            outcome.status, outcome.run_id, outcome.completions, outcome.error_type, outcome.error_message
        )
        command = commands.EndSubFlow(step=child.step, number=child.wanted.number, index=index, result=result)
        turn = self._host.execute(live, command, sync=False)
        if turn is not None and turn.events and outcome.blobs:
            live.pending.blobs.update(outcome.blobs)

    def _is_still_wanted(self, child: Child) -> bool:
        live = child.live
        here = live.children.get(child.step, {}).get(child.wanted.number)
        return here is child and not live.lost and not live.problem

    def _note(self, child: Child, error: Exception) -> None:
        if isinstance(error, ServiceError):
            trouble = error.failure.detail
        elif isinstance(error, Lost):
            trouble = str(error)
        else:
            logger.error("SubFlow %r is tried again", child.flow_id, exc_info=error)
            trouble = f"{type(error).__name__}: {error}"
        if not child.trouble:
            logger.warning("SubFlow %r is tried again: %s", child.flow_id, trouble)
        child.trouble = trouble


class _Here:
    """The way to other owners where there are none."""

    def __init__(self, host: FlowHost) -> None:
        self._host = host

    async def call(self, request: Request[AnswerT]) -> AnswerT:
        answer: Any = await self._host.call(request)  # type: ignore[arg-type]
        return answer  # type: ignore[no-any-return]
