"""The FlowService of a cluster: finds the FlowActor that owns a Flow and puts the request to it.

A client keeps a `ClusterView` and remembers where its Flows were. A new Flow goes to the FlowActor with the least to
do; for another one that it does not know it asks any FlowActor, which says who is right, because the owner is in the
database. When an actor is away the outcome is unknown: the call fails as UNAVAILABLE, and the Client repeats it with
the same request id.

A handler's client has no connection of its own: its service is found by the namespace of the engine that runs it.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import OrderedDict
from typing import Any

import msgspec
import ray
from ray.exceptions import RayActorError, RayError

from dex.wire.service import AnswerT, Request, ServiceError, StartFlow, decode_answer, encode
from dexray.cluster.protocol import (
    DIRECTORY,
    ActorLoad,
    ClusterView,
    Elsewhere,
    Failed,
    Ok,
    Reply,
    decode_reply,
    decode_view,
)

REMEMBERED = 50_000  # Flows whose owner a client remembers
LOOK_UP_SECONDS = 10.0
VIEW_AGE = 1.0  # seconds after which a view is asked for again


class ClusterService:
    def __init__(self, directory: Any, namespace: str, view: ClusterView) -> None:
        self._directory = directory
        self._namespace = namespace
        self._view = view
        self._view_at = time.monotonic()
        self._refreshing: asyncio.Task[None] | None = None
        self._handles: dict[str, Any] = {}
        self._owners: OrderedDict[str, str] = OrderedDict()
        self._started: dict[str, int] = {}  # starts since the last view, by FlowActor

    @property
    def view(self) -> ClusterView:
        return self._view

    async def call(self, request: Request[AnswerT]) -> AnswerT:
        data = encode(request)
        owner = self._owners.get(request.flow_id) or await self._choose(request)
        for _ in range(5):
            reply = await self._ask(owner, data)
            match reply:
                case Ok(answer=answer):
                    self._remember(request.flow_id, owner)
                    return decode_answer(request, answer)
                case Failed(failure=failure):
                    raise ServiceError.of(failure)
                case Elsewhere(owner=owner):
                    if not self._is_there(owner):
                        await self._refresh()
                        if not self._is_there(owner):
                            owner = await self._heir_of(request.flow_id)
                case _:
                    raise ServiceError("INTERNAL", f"FlowActor {owner} answered {type(reply).__name__}")
        raise ServiceError("UNAVAILABLE", f"Flow {request.flow_id!r} is changing its owner; repeat")

    def _is_there(self, owner: str) -> bool:
        return any(load.name == owner for load in self._view.actors)

    async def _heir_of(self, flow_id: str) -> str:
        """The owner of a Flow whose owner is not in the pool any more: the pool was once larger, or another cluster's.
        Open Flows are moved when an engine begins, closed ones when somebody asks for them.
        """
        try:
            return str(await asyncio.wait_for(_awaitable(self._directory.heir_of.remote(flow_id)), 10.0))
        except (RayError, TimeoutError) as error:
            raise ServiceError("UNAVAILABLE", f"the Directory does not answer: {_one_line(error)}") from error

    async def close(self) -> None:
        if self._refreshing is not None:
            self._refreshing.cancel()

    async def _choose(self, request: Request[Any]) -> str:
        """Spread first: the FlowActor with the fewest active Flows, by the view and by what was started since."""
        if not isinstance(request, StartFlow):
            return self._view.actors[0].name
        if self._is_old():
            self._refreshed()
        least = self._pick(self._view)
        if self._view.flows_per_actor and self._busy(least) >= self._view.flows_per_actor:
            await self._update("place")
            if self._view.placed:
                return self._view.placed
        self._started[least.name] = self._started.get(least.name, 0) + 1
        return least.name

    def _is_old(self) -> bool:
        return time.monotonic() - self._view_at > VIEW_AGE

    def _refreshed(self) -> asyncio.Task[None]:
        """A look at the Directory that is under way from now on at the latest; it does not fail."""
        if self._refreshing is None:
            self._refreshing = asyncio.get_running_loop().create_task(self._refresh_quietly())
        return self._refreshing

    def _pick(self, view: ClusterView) -> ActorLoad:
        return min(view.actors, key=self._busy)

    def _busy(self, load: ActorLoad) -> int:
        return load.active + self._started.get(load.name, 0)

    async def _refresh_quietly(self) -> None:
        try:
            await self._refresh()
        except ServiceError:
            pass  # the next call will find out
        finally:
            self._refreshing = None

    async def _refresh(self) -> None:
        await self._update("view")

    async def _update(self, method: str) -> None:
        _check_connected()
        try:
            answer = getattr(self._directory, method).remote()
            reply = decode_reply(await asyncio.wait_for(_awaitable(answer), 10.0))
        except (RayError, TimeoutError) as error:
            if isinstance(error, RayActorError):
                await self._find_directory()
            raise ServiceError("UNAVAILABLE", f"the Directory does not answer: {_one_line(error)}") from error
        if isinstance(reply, Ok):
            self._view = decode_view(reply.answer)
            self._view_at = time.monotonic()
            self._started.clear()

    async def _find_directory(self) -> None:
        """The engine may have been ended and begun anew under the same name; then our handle is of its former one."""
        _check_connected()
        with contextlib.suppress(ValueError):
            self._directory = await asyncio.to_thread(ray.get_actor, DIRECTORY, namespace=self._namespace)

    async def _ask(self, owner: str, data: bytes) -> Reply:
        _check_connected()
        try:
            handle = self._handles.get(owner)
            if handle is None:
                handle = self._handles[owner] = await asyncio.to_thread(ray.get_actor, owner, namespace=self._namespace)
            return decode_reply(await handle.call.remote(data))
        except ValueError as error:
            self._handles.pop(owner, None)  # it comes back under its name, but perhaps as another actor
            raise ServiceError("UNAVAILABLE", f"FlowActor {owner} is not there (yet): {_one_line(error)}") from error
        except RayActorError as error:
            self._handles.pop(owner, None)  # it comes back under its name, but perhaps as another actor
            raise ServiceError("UNAVAILABLE", f"FlowActor {owner} is away: {_one_line(error)}") from error
        except RayError as error:
            raise ServiceError("UNAVAILABLE", f"Ray: {_one_line(error)}") from error
        except msgspec.MsgspecError as error:
            raise ServiceError("INTERNAL", f"FlowActor {owner} gave an answer that can't be read: {error}") from error

    def _remember(self, flow_id: str, owner: str) -> None:
        if flow_id:
            self._owners[flow_id] = owner
            if len(self._owners) > REMEMBERED:
                self._owners.popitem(last=False)


class HandlersService:
    """The FlowService of a client that a handler made: the engine in `namespace`, looked up with the first call."""

    def __init__(self, namespace: str) -> None:
        self._namespace = namespace
        self._service: ClusterService | None = None

    async def call(self, request: Request[AnswerT]) -> AnswerT:
        if self._service is None:
            directory, view = await look_up(self._namespace, LOOK_UP_SECONDS)
            self._service = ClusterService(directory, self._namespace, view)
        return await self._service.call(request)

    async def close(self) -> None:
        if self._service is not None:
            await self._service.close()


async def look_up(namespace: str, patience: float) -> tuple[Any, ClusterView]:
    """The Directory of an engine and what it says. ServiceError UNAVAILABLE when it does not answer in time."""
    try:
        directory: Any = await asyncio.to_thread(ray.get_actor, DIRECTORY, namespace=namespace)
        reply = decode_reply(await asyncio.wait_for(_awaitable(directory.view.remote()), patience))
    except (RayError, ValueError, TimeoutError) as error:
        raise ServiceError("UNAVAILABLE", f"the Directory does not answer: {_one_line(error)}") from error
    view = decode_view(reply.answer) if isinstance(reply, Ok) else ClusterView(())
    if not view.actors:
        raise ServiceError("UNAVAILABLE", "the Directory knows of no FlowActors yet")
    return directory, view


def _check_connected() -> None:
    """Ray would start a cluster of its own for a call without one."""
    if not ray.is_initialized():
        raise ServiceError("FAILED_PRECONDITION", "this process has left Ray: connect again")


async def _awaitable(reference: Any) -> Any:
    return await reference


def _one_line(error: BaseException) -> str:
    text = str(error).strip() or type(error).__name__
    return text.splitlines()[0][:300]
