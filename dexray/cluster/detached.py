"""Detached attempts: those that survive the FlowActor that handed them out.

Ray ends a task when the process that submitted it dies, and a Step of ten hours should not die with the process that
keeps its books. Detached actors belong to the cluster, not to their maker. So such an attempt is a detached actor of
its own, whose name says which attempt it is:

    owner                      detached actor                             next owner
    makes it, calls `run` ->   the handler runs
    (dies)                     asks whether it is wanted: no answer
                                                                      <-  loads the Flow, knows the name: `attach`
                               heartbeats, questions, Stream messages ->
                               the handler returns, the result waits
                                                                      <-  `result`; when it is durable, `ray.kill`

What holds, whoever dies when:

- One attempt has one actor: its name is taken until it is gone.
- The result waits in the actor until an owner says that its outcome is durable (`settled`). An owner that dies between
  hearing it and committing it costs nothing.
- Two owners may hear of one result, a stale one and the new one. The journal takes the commit of one.
- An actor that nobody wants ends by itself: an owner says so, or there was no owner to ask for an hour.
- An actor that is gone when the next owner comes has been interrupted, like any other attempt.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import ray
from ray.exceptions import ActorUnavailableError, RayError

from dexray.cluster.attempt_messages import Finished, decode_result
from dexray.cluster.detached_worker import DetachedAttempt, name_of
from dexray.cluster.handouts import Handout
from dexray.cluster.inbox import Inbox
from dexray.cluster.ray_errors import Meaning, RayFailure, failure_of
from dexray.protocol.attempts import WORKER_CRASHED, AttemptFailed, AttemptKey, AttemptReturned, interrupted

logger = logging.getLogger("dexray.cluster.attempts")

PATIENCE = 60.0  # seconds for an actor that is there to answer its next owner
LOOK_AGAIN = 1.0


class DetachedHost(Protocol):
    """The attempts of one owner, as its detached ones see them."""

    def detached_finished(self, finished: Finished) -> None: ...


@dataclass(slots=True, eq=False)
class _Actor:
    """The actor of one attempt. `answered`: `run` is over, whether with a result or with the end of the actor."""

    handout: Handout
    handle: Any = None
    reference: Any = None  # of the call whose outcome is waited for; Ray keeps that as long as we keep this
    answered: bool = False
    settled: bool = False


class DetachedAttempts:
    def __init__(
        self, host: DetachedHost, loop: asyncio.AbstractEventLoop, life: int, owner: Any, namespace: str, inbox: Inbox
    ) -> None:
        self._host = host
        self._loop = loop
        self._life = life
        self._owner = owner
        self._namespace = namespace
        self._inbox = inbox
        self._actors: dict[AttemptKey, _Actor] = {}
        self._classes: dict[bytes, Any] = {}

    def awaits(self, token: int) -> bool:
        """Whether this is an attempt whose result is here, and not yet durable."""
        return any(actor.handout.token == token and not actor.settled for actor in self._actors.values())

    def send(self, handout: Handout, parcel: list[Any], data: bytes) -> None:
        """Makes the actor and lets it run the attempt. Raises what Ray has against its resources."""
        name = name_of(handout.key)
        options = self._class_for(handout).options(name=name, namespace=self._namespace, lifetime="detached")
        handle = options.remote()
        self._wait(_Actor(handout, handle), handle.run.remote(parcel, data))

    async def adopt(self, handout: Handout) -> None:
        """Takes over the actor that another owner made; ends the attempt when there is none."""
        actor = self._actors[handout.key] = _Actor(handout)
        deadline = self._loop.time() + PATIENCE
        while True:
            try:
                name = name_of(handout.key)
                actor.handle = await asyncio.to_thread(ray.get_actor, name, namespace=self._namespace)
                attached = actor.handle.attach.remote(self._life, handout.token, self._owner)
                await asyncio.wait_for(_outcome(attached), PATIENCE)
                break
            except ActorUnavailableError as error:
                if self._loop.time() > deadline:
                    self._lost(actor, str(error))
                    return
                await asyncio.sleep(LOOK_AGAIN)
            except (ValueError, RayError, TimeoutError) as error:
                self._lost(actor, f"{type(error).__name__}: {error}".splitlines()[0])
                return
        logger.info("attempt %s goes on under a new owner", name)
        self._wait(actor, actor.handle.result.remote())

    def settled(self, key: AttemptKey) -> None:
        """The outcome of the attempt is durable, or nobody wants it: the actor may go when its handler has returned."""
        actor = self._actors.get(key)
        if actor is not None:
            actor.settled = True
            if actor.answered:
                self._end(actor)

    def kill(self, key: AttemptKey) -> None:
        """Ends the actor whatever it does."""
        actor = self._actors.get(key)
        if actor is not None:
            self._end(actor)

    # Inside -----------------------------------------------------------------------------------------------------------

    def _wait(self, actor: _Actor, reference: Any) -> None:
        self._actors[actor.handout.key] = actor
        actor.reference = reference
        self._inbox.when_ready(reference, lambda value: self._answered(actor, value))

    def _answered(self, actor: _Actor, value: object) -> None:
        handout = actor.handout
        if isinstance(value, ActorUnavailableError):  # a link is broken, and the handler runs on
            self._loop.create_task(self.adopt(handout))
            return
        actor.answered = True
        if isinstance(value, bytes):
            for finished in decode_result(value).finished:
                self._host.detached_finished(finished)
        else:
            failure = failure_of(value)
            self._host.detached_finished(Finished(handout.token, *_what_came_of(failure)))
        if actor.settled or handout.canceled:
            self._end(actor)

    def _lost(self, actor: _Actor, why: str) -> None:
        actor.answered = True
        self._end(actor)
        result = interrupted(f"it was detached, but its process is gone or does not answer ({why})")
        self._host.detached_finished(Finished(actor.handout.token, result))

    def _end(self, actor: _Actor) -> None:
        if self._actors.get(actor.handout.key) is actor:
            del self._actors[actor.handout.key]
        if actor.handle is not None:
            ray.kill(actor.handle, no_restart=True)

    def _class_for(self, handout: Handout) -> Any:
        key = handout.signature + b"async" if handout.is_async else handout.signature
        made = self._classes.get(key)
        if made is None:
            options: Mapping[str, Any] = {"num_cpus": 0 if handout.is_async else 1, **handout.options}
            untyped: Callable[..., Any] = ray.remote
            made = self._classes[key] = untyped(
                **{**options, "max_restarts": 0, "max_task_retries": 0, "concurrency_groups": {"owner": 2, "result": 8}}
            )(DetachedAttempt)
        return made


def _what_came_of(failure: RayFailure) -> tuple[AttemptFailed | AttemptReturned, None, bool]:
    """The result, seconds and `declined` of an attempt whose actor has ended."""
    if failure.meaning is Meaning.NOT_RUN:
        return AttemptReturned(reason=f"{failure.error_type}: {failure.detail}"), None, True
    crash = AttemptFailed(
        error_type=failure.error_type, detail=failure.detail, trace=failure.trace, kind=WORKER_CRASHED
    )
    return crash, None, False


async def _outcome(reference: Any) -> Any:
    return await reference
