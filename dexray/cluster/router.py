"""The way from one FlowActor to the Flows of the others: what a client does, from inside.

A FlowActor puts requests of its own Flows (the starts and ends of SubFlows) to whoever owns the other Flow. A request
that turns out to be for itself takes the short way. The Directory is asked for a view when the first request is made.

Ray may never answer for a node that froze, so every call has an end here; the Flow that wanted it tries again. And a
FlowActor takes a bounded number of calls at a time: long polls for more children than `POLLS` are made short, and the
children are looked at in turns.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from msgspec.structs import replace

from dex.wire.service import AnswerT, Request, ServiceError, StartFlow, WaitForFlow
from dexray.cluster.protocol import ActorLoad, ClusterView, Reply, decode_reply
from dexray.cluster.service import ClusterService, look_up

PATIENCE = 30.0  # seconds for an answer, beyond what a request itself asks to wait
POLLS = 400
"""Long polls of one FlowActor at a time. A FlowActor takes 10,000 calls at once, from 16 FlowActors and all clients."""
NEAR = 1_000
"""Active Flows that a FlowActor may have more than another, and still keeps the SubFlows of its Flows."""
SHORT_POLL = 2.0  # seconds, when there are more children than polls


class OwnerRouter:
    """The `Router` of the FlowActor `me`, whose own calls go to `here`."""

    def __init__(self, me: str, here: Callable[[bytes], Awaitable[bytes]], namespace: str) -> None:
        self._me = me
        self._here = here
        self._namespace = namespace
        self._service: asyncio.Task[ClusterService] | None = None
        self._polls = asyncio.Semaphore(POLLS)

    async def call(self, request: Request[AnswerT]) -> AnswerT:
        service = await self._find_service()
        if not isinstance(request, WaitForFlow):
            return await self._bounded(service.call(request), PATIENCE)
        async with self._polls:
            wait = min(request.timeout, SHORT_POLL) if self._polls.locked() else request.timeout
            poll: Any = replace(request, timeout=wait)
            answer: AnswerT = await self._bounded(service.call(poll), wait + PATIENCE)
            return answer

    async def _bounded(self, answer: Awaitable[AnswerT], seconds: float) -> AnswerT:
        try:
            return await asyncio.wait_for(answer, seconds)
        except TimeoutError as error:
            raise ServiceError("UNAVAILABLE", f"no FlowActor answered within {seconds:g} s") from error

    async def _find_service(self) -> ClusterService:
        if self._service is None or (self._service.done() and self._service.exception() is not None):
            self._service = asyncio.get_running_loop().create_task(self._make_service())
        return await asyncio.shield(self._service)

    async def _make_service(self) -> ClusterService:
        directory, view = await look_up(self._namespace, PATIENCE)
        return _Service(directory, self._namespace, view, self._me, self._here)


class _Service(ClusterService):
    """A ClusterService that knows where it is."""

    def __init__(
        self,
        directory: Any,
        namespace: str,
        view: ClusterView,
        me: str,
        here: Callable[[bytes], Awaitable[bytes]],
    ) -> None:
        super().__init__(directory, namespace, view)
        self._me = me
        self._here = here

    async def _choose(self, request: Request[Any]) -> str:
        # What was started since a view that is old may have ended long ago.
        if isinstance(request, StartFlow) and self._is_old() and self._pick(self._view).name != self._me:
            await asyncio.shield(self._refreshed())
        return await super()._choose(request)

    def _pick(self, view: ClusterView) -> ActorLoad:
        """A SubFlow stays with its parent's owner: a child elsewhere costs the two of them four times as much, and is
        told of by a long poll. Only when this one has much more to do than another is it worth it; or when Flows are
        not to share at all."""
        least = super()._pick(view)
        mine = next((load for load in view.actors if load.name == self._me), None)
        if mine is None or view.flows_per_actor or self._busy(mine) > self._busy(least) + NEAR:
            return least
        return mine

    async def _ask(self, owner: str, data: bytes) -> Reply:
        if owner == self._me:
            return decode_reply(await self._here(data))
        return await super()._ask(owner, data)
