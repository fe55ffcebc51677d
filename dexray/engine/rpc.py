"""RPCs: handlers of a Flow that clients call.

A call goes through these stages. None of them holds up the Flow itself: its Steps go on, unless they want a lock of
the RPC.

    stage      what happens                                             refused when
    --------   ------------------------------------------------------   ------------------------------------------------
    code       the deployed code has the RPC; else it waits for some    none comes within the dispatch wait
    locks      all of them are free                                     one is held: at once
    slot       a worker has room; RPCs come before Steps                none has within the dispatch wait
    snapshot   the Flow as it is now, read when that is durable
    handler    runs on a worker, as an attempt that is tried once       it raises, its worker is lost, its time is over
    result     nothing is changed: the answer is given, and no trace
               is left. Else it is applied, recorded under the          it writes and the Flow is closed; a message is
               request id, and answered when that is durable            gone (isolated RPCs)

An RPC with locks is isolated, and so is one that is transactional: when anything has changed between its snapshot and
its result, nothing is applied and the handler runs again. The first run of each call is free; those that were overtaken
go on one by one, so that callers who overtake each other all come to their turn.

What is lost with its owner had no effect: a call that is repeated under its request id is served anew, or has its
recorded answer.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from dex.values import reference_of
from dex.wire.service import InvokeRpc, RpcAnswer, ServiceError, ServiceFailure
from dex.wire.specs import FlowSpec, RpcSpec
from dexray.engine import requests
from dexray.engine.hand_outs import references
from dexray.engine.live import LiveFlow, Lost
from dexray.engine.residents import revive
from dexray.engine.slots import Kind
from dexray.engine.values import read_blobs
from dexray.machine import commands, locks, rpcs
from dexray.machine.rpcs import Refusal
from dexray.machine.state import Flow, take_snapshot
from dexray.protocol.attempts import (
    METHOD_TIMEOUT,
    WORKER_CRASHED,
    AttemptFailed,
    AttemptKey,
    AttemptResult,
    AttemptReturned,
    AttemptTask,
    RpcSucceeded,
)
from dexray.protocol.ports import AttemptPort

if TYPE_CHECKING:
    from dexray.engine.host import FlowHost

RUNS = 5
"""How often the handler of an isolated RPC runs at most, while the data changes under it."""


@dataclass(slots=True, eq=False)
class _Call:
    """One request under way. `flow` is what its handler sees: the current run, or an earlier one that is only read."""

    request: InvokeRpc
    live: LiveFlow
    flow: Flow
    number: int
    until: float  # in the time of the event loop
    answer: asyncio.Future[RpcAnswer]
    locks: tuple[str, ...] = ()  # held
    gone: Exception | None = None  # why its Flow left this owner
    work: asyncio.Task[None] | None = None

    @property
    def what(self) -> str:
        return f"RPC {self.request.rpc!r}"


@dataclass(slots=True, eq=False)
class _Out:
    """An attempt on its way. `heard`: it is known to run, or has ended."""

    heard: asyncio.Future[None]
    result: asyncio.Future[AttemptResult]


@dataclass(slots=True)
class _Ran:
    result: RpcSucceeded
    isolated: bool
    data_version: int


class _Late(Exception):
    """The time is over."""


class _Overtaken(Exception):
    """The data that an isolated RPC saw has changed."""


class RpcDesk:
    """The RPCs of one host."""

    def __init__(self, host: FlowHost, port: AttemptPort) -> None:
        self._host = host
        self._port = port
        self._numbers = itertools.count(1)
        self._calls: dict[tuple[str, str], _Call] = {}  # by Flow ID and request id
        self._out: dict[AttemptKey, _Out] = {}
        self._slots: dict[Kind, deque[asyncio.Future[None]]] = {}
        self._undeployed: dict[str, dict[asyncio.Future[None], None]] = {}  # by Flow type

    def __len__(self) -> int:
        return len(self._calls)

    async def invoke(self, live: LiveFlow, request: InvokeRpc) -> RpcAnswer:
        """Serves a request once, however often it comes while it is under way."""
        name = (request.flow_id, request.request_id)
        if name not in self._calls:
            known = await requests.known_answer(self._host, live, request, RpcAnswer)
            if known is not None:
                return replace(known, blobs=await requests.attach_blobs(self._host, live, [known.output]))
        call = self._calls.get(name)
        if call is None:
            requests.check_trouble(live)
            if live.lost:
                raise Lost("the Flow has just left this owner")
            loop = asyncio.get_running_loop()
            timeout = request.timeout or self._timeout(live, request)
            call = self._calls[name] = _Call(
                request, live, live.flow, next(self._numbers), loop.time() + timeout, loop.create_future()
            )
            live.held += 1
            call.work = self._host.spawn(self._work(call))
            call.work.add_done_callback(lambda _: self._ended(name, call))
        # Whoever asked may leave: the call goes on, and a repeat finds it here.
        await asyncio.wait({call.answer})
        return call.answer.result()

    def _timeout(self, live: LiveFlow, request: InvokeRpc) -> float:
        spec = self._host.specs.get(live.flow.state.flow_type)
        known = spec.rpcs.get(request.rpc) if spec is not None else None
        return known.timeout if known is not None else RpcSpec(name=request.rpc).timeout

    async def _work(self, call: _Call) -> None:
        try:
            call.answer.set_result(await self._serve(call))
        except Exception as error:
            call.answer.set_exception(error)

    def _ended(self, name: tuple[str, str], call: _Call) -> None:
        self._calls.pop(name, None)
        call.live.held -= 1
        if not call.answer.done():
            call.answer.set_exception(call.gone or Lost("the engine has stopped"))
        call.answer.exception()  # whoever asked gets it; that nobody waits any more is no fault

    # What the host tells ----------------------------------------------------------------------------------------------

    def pump(self) -> None:
        """Gives slots to those who wait for one, in order. A kind that finds none stands aside."""
        for kind, queue in list(self._slots.items()):
            while queue:
                if queue[0].done():
                    queue.popleft()
                elif self._port.reserve(*kind):
                    queue.popleft().set_result(None)
                else:
                    break
            if not queue:
                del self._slots[kind]

    def code_came(self, flow_type: str) -> None:
        for waiting in self._undeployed.pop(flow_type, ()):
            if not waiting.done():
                waiting.set_result(None)

    def attempt_running(self, key: AttemptKey) -> None:
        out = self._out.get(key)
        if out is not None and not out.heard.done():
            out.heard.set_result(None)

    def attempt_finished(self, key: AttemptKey, result: AttemptResult) -> bool:
        """False when nobody waits for it any more."""
        out = self._out.get(key)
        if out is None or out.result.done():
            return False
        self.attempt_running(key)
        out.result.set_result(result)
        return True

    def leave(self, live: LiveFlow, reason: Exception) -> None:
        """The Flow is in trouble or has left this owner: its calls end, and have had no effect that is not durable."""
        for call in [call for call in self._calls.values() if call.live is live]:
            if call.work is not None and call.gone is None:
                call.gone = reason
                call.work.cancel()

    # A call -----------------------------------------------------------------------------------------------------------

    async def _serve(self, call: _Call) -> RpcAnswer:
        if call.request.run_id not in ("", call.live.run_id):
            call.flow = await self._earlier_run(call)
        try:
            answer = await self._conclude(call, await self._run(call))
            if answer is None:
                answer = await self._serve_in_turn(call)
        finally:
            if call.locks:
                locks.release_of_rpc(call.flow, call.locks, self._holder(call))
                self._host.touch(call.live)
        return answer

    async def _serve_in_turn(self, call: _Call) -> RpcAnswer:
        async with self._turn(call):
            for _ in range(RUNS - 1):
                answer = await self._conclude(call, await self._run(call))
                if answer is not None:
                    return answer
        raise _conflict(f"{call.what}: the data that its handler saw changed {RUNS} times while it ran; call again")

    @asynccontextmanager
    async def _turn(self, call: _Call) -> AsyncIterator[None]:
        turn = call.live.rpc_turn
        try:
            async with asyncio.timeout_at(call.until):
                await turn.acquire()
        except TimeoutError:
            raise self._over(call) from None
        try:
            yield
        finally:
            turn.release()

    async def _earlier_run(self, call: _Call) -> Flow:
        request, journal = call.request, self._host.journal
        row = await requests.look_up(self._host, lambda: journal.find_run(request.run_id))
        if row is None or row.flow_id != request.flow_id:
            raise ServiceError(
                "NOT_FOUND", f"Flow {request.flow_id!r} has no run {request.run_id!r}", "FLOW_NOT_EXISTS"
            )
        loaded = await requests.look_up(self._host, lambda: journal.load(request.run_id))
        if loaded is None:
            raise ServiceError("NOT_FOUND", f"run {request.run_id!r} was removed just now", "FLOW_NOT_EXISTS")
        earlier = revive(loaded, row.epoch)
        requests.check_trouble(earlier)
        return earlier.flow

    # The handler ------------------------------------------------------------------------------------------------------

    async def _run(self, call: _Call) -> _Ran:
        """Runs the handler once, over the Flow as it is when a worker is there for it."""
        until = min(asyncio.get_running_loop().time() + self._host.settings.dispatch_wait, call.until)
        returned = ""
        while True:
            flow_spec, spec = await self._code(call, until)
            wanted = tuple(sorted({*spec.locks, *call.request.locks}))
            self._check_locks(call, wanted)
            kind = (flow_spec.flow_type, rpcs.marker(spec.name), spec.is_async)
            await self._slot(call, kind, until, returned)
            ran = await self._attempt(call, spec, wanted, kind, until)
            if not isinstance(ran, AttemptReturned):
                return ran
            # It certainly did not run: another worker may have what this one lacks.
            returned = ran.reason
            await asyncio.sleep(min(self._host.settings.returned_delay, max(0.0, until - _now())))
            if _now() >= until:
                raise self._not_taken(call, returned)

    async def _code(self, call: _Call, until: float) -> tuple[FlowSpec, RpcSpec]:
        flow_type, name = call.flow.state.flow_type, call.request.rpc
        while True:
            flow_spec = self._host.specs.get(flow_type)
            spec = flow_spec.rpcs.get(name) if flow_spec is not None else None
            if flow_spec is not None and spec is not None:
                return flow_spec, spec
            waiting: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._undeployed.setdefault(flow_type, {})[waiting] = None
            try:
                await _by(waiting, until)
            except _Late:
                lacks = f"has no RPC {name!r}" if flow_spec is not None else "is not deployed"
                raise self._not_taken(call, f"the code of Flow type {flow_type} {lacks}") from None
            finally:
                others = self._undeployed.get(flow_type)
                if others is not None:
                    others.pop(waiting, None)
                    if not others:
                        del self._undeployed[flow_type]

    async def _slot(self, call: _Call, kind: Kind, until: float, returned: str) -> None:
        """Comes back with a slot that is reserved."""
        waiting: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._slots.setdefault(kind, deque()).append(waiting)
        self.pump()
        try:
            await _by(waiting, until)
        except BaseException as error:
            if waiting.done() and not waiting.cancelled():
                self._port.release(*kind)
            waiting.cancel()
            if isinstance(error, _Late):
                raise self._not_taken(call, returned or "no worker had room for it") from None
            raise

    async def _attempt(
        self, call: _Call, spec: RpcSpec, wanted: tuple[str, ...], kind: Kind, until: float
    ) -> _Ran | AttemptReturned:
        reserved = True
        try:
            self._take_locks(call, wanted)
            state = call.flow.state
            snapshot = take_snapshot(
                state,
                rpcs.load_of(spec, call.request.load_attribute_map_instances, call.request.load_channel_map_instances),
            )
            data_version = state.data_version
            if call.flow is call.live.flow:
                await requests.settled(self._host, call.live)
            task = rpcs.rpc_task(
                state,
                snapshot,
                spec,
                number=next(self._numbers),
                deployment=self._host.deployments.get(state.flow_type, ""),
                input=call.request.input,
                timeout=max(0.0, call.until - _now()),
                now=self._host.clock.now(),
            )
            task = replace(task, max_value_bytes=self._host.settings.max_value_bytes)
            task = await self._with_blobs(call, task)
            reserved = False
            result = await self._out_and_back(call, task, until)
        finally:
            if reserved:
                self._port.release(*kind)
        if isinstance(result, AttemptReturned):
            return result
        if isinstance(result, AttemptFailed):
            raise self._failed(call, result)
        assert isinstance(result, RpcSucceeded)
        isolated = spec.transactional or bool(wanted)
        return _Ran(result, isolated, data_version)

    async def _out_and_back(self, call: _Call, task: AttemptTask, until: float) -> AttemptResult:
        loop = asyncio.get_running_loop()
        out = self._out[task.key] = _Out(loop.create_future(), loop.create_future())
        self._port.run(task)
        try:
            try:
                await _by(out.heard, until)
            except _Late:
                why = self._port.waiting_for(task.key) or "no worker began it"
                raise self._not_taken(call, why) from None
            try:
                await _by(out.result, call.until)
            except _Late:
                raise self._over(call) from None
            return out.result.result()
        finally:
            del self._out[task.key]
            if not out.result.done():
                self._port.cancel(task.key)

    async def _with_blobs(self, call: _Call, task: AttemptTask) -> AttemptTask:
        hashes = references(task)
        if not hashes:
            return task
        given = {name: data for name, data in call.request.blobs.items() if name in hashes}
        while wanted := hashes - given.keys() - self._port.at_hand(task, hashes):
            read, lost = await requests.look_up(self._host, partial(read_blobs, self._host.journal, wanted))
            if lost:
                flow_id = call.request.flow_id
                raise ServiceError("DATA_LOSS", f"Flow {flow_id!r}, {call.what}: values that it reads are lost: {lost}")
            given.update(read)
        return replace(task, blobs=given)

    # Locks ------------------------------------------------------------------------------------------------------------

    def _holder(self, call: _Call) -> str:
        return f"{rpcs.marker(call.request.rpc)}#{call.number}"

    def _check_locks(self, call: _Call, wanted: tuple[str, ...]) -> None:
        if call.locks or not wanted:
            return
        taken = locks.taken(call.flow, wanted)
        if taken is not None:
            holder = locks.holder_of(call.flow, taken)
            raise _conflict(f"{call.what}: the lock of Attribute {taken!r} is held by {holder}; call again")

    def _take_locks(self, call: _Call, wanted: tuple[str, ...]) -> None:
        """Once for the whole call: when its handler has to run again, they have been held all the time."""
        self._check_locks(call, wanted)
        if wanted and not call.locks:
            locks.take_for_rpc(call.flow, wanted, self._holder(call))
            call.locks = wanted

    # The result -------------------------------------------------------------------------------------------------------

    async def _conclude(self, call: _Call, ran: _Ran) -> RpcAnswer | None:
        """The answer, when what the handler asked for is durable; None when it has to run again."""
        host, live, request, result = self._host, call.live, call.request, ran.result
        answer = RpcAnswer(output=result.output)
        if rpcs.changes_something(result):
            if call.flow is not live.flow:
                raise ServiceError(
                    "FAILED_PRECONDITION",
                    f"run {request.run_id} of Flow {request.flow_id!r} is {call.flow.state.status}, and "
                    f"{request.rpc} writes: leave run_id out to call it on the current run",
                    "FLOW_NOT_EXISTS",
                )

            def act() -> RpcAnswer:
                self._check_refusal(call, ran)
                host.execute(
                    live,
                    commands.ApplyRpc(
                        name=request.rpc,
                        request_id=request.request_id,
                        input=request.input if request.has_input else None,
                        result=result,
                    ),
                )
                live.pending.blobs.update(result.blobs)
                live.pending.blobs.update(request.blobs)
                return answer

            try:
                await requests.write_now(host, live, request, act)
            except _Overtaken:
                return None
        output = reference_of(result.output) if result.output is not None else None
        return replace(answer, blobs={output: result.blobs[output]}) if output is not None else answer

    def _check_refusal(self, call: _Call, ran: _Ran) -> None:
        state = call.live.flow.state
        spec = self._host.specs.get(state.flow_type)
        refusal = rpcs.refusal(state, spec, ran.result, isolated=ran.isolated, data_version=ran.data_version)
        match refusal:
            case Refusal.DATA_CHANGED:
                raise _Overtaken
            case Refusal.MESSAGE_GONE:
                raise ServiceError(
                    "NOT_FOUND",
                    f"{call.what}: a message that it deletes is not there, and nothing was applied",
                    "CHANNEL_MESSAGE_NOT_FOUND",
                )
            case Refusal.STEP_UNKNOWN:
                targets = ", ".join(movement.step_type for movement in ran.result.movements)
                raise ServiceError(
                    "ABORTED",
                    f"{call.what}: code was deployed while it ran that lacks a Step it starts ({targets}); nothing "
                    "was applied: call again",
                )

    # Errors -----------------------------------------------------------------------------------------------------------

    def _failed(self, call: _Call, failure: AttemptFailed) -> ServiceError:
        if failure.kind == METHOD_TIMEOUT:
            return self._over(call)
        if failure.kind == WORKER_CRASHED:
            return _final(
                f"{call.what}: its worker was lost ({failure.error_type}: {failure.detail}). Nothing was applied; what "
                f"the handler did outside may have happened. Call again, under request_id "
                f"{call.request.request_id!r} or a new one"
            )
        return ServiceError.of(
            ServiceFailure(
                code="FAILED_PRECONDITION",
                detail=f"{call.what}: its handler failed with {failure.error_type}: {failure.detail}",
                sub_status="WORKER_API_ERROR",
                worker_code="UNKNOWN",
                worker_error_type=failure.error_type,
                worker_error_detail=failure.detail,
            )
        )

    def _not_taken(self, call: _Call, why: str) -> ServiceError:
        if _now() >= call.until:
            return self._over(call, why)
        seconds = self._host.settings.dispatch_wait
        return _final(f"{call.what}: no worker took it within {seconds:g} s ({why}); nothing was done: call again")

    def _over(self, call: _Call, why: str = "") -> ServiceError:
        return ServiceError(
            "DEADLINE_EXCEEDED",
            f"{call.what}: its timeout is over{f' ({why})' if why else ''}, and nothing was applied. What the handler "
            "did outside may have happened; a longer one is @rpc(timeout=…)",
            "REQUEST_TIMEOUT",
        )


def _conflict(detail: str) -> ServiceError:
    return ServiceError.of(
        ServiceFailure(code="ABORTED", detail=detail, sub_status="WORKER_API_ERROR", worker_code="ABORTED")
    )


def _final(detail: str) -> ServiceError:
    return ServiceError.of(ServiceFailure(code="UNAVAILABLE", detail=detail, is_final=True))


def _now() -> float:
    return asyncio.get_running_loop().time()


async def _by(future: asyncio.Future[Any], until: float) -> None:
    """Returns when the future is done; _Late when the time is over first. The future is left alone."""
    if not future.done():
        await asyncio.wait({future}, timeout=max(0.0, until - _now()))
    if not future.done():
        raise _Late
