"""The code of deployments, where workers can fetch it once.

A worker process needs a few things that are the same for thousands of attempts: the packed code of a
deployment, a handle of the owner it reports to, and the owner's door for lanes. They lie in one object of Ray's
object store. A task gets a reference to it inside a list, which costs nothing and is not resolved by Ray; only a
worker that does not know the deployment yet fetches the object.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Any

import ray

from dex.registry import Registry
from dexray.attempts.code import CodeNotLoadable, load_registry
from dexray.cluster.lane_wire import Door

_KEPT = 64
_FETCH_SECONDS = 60.0


class CodeStore:
    """`load` gives the packed code of a deployment (from the journal) and raises LookupError when there is none."""

    def __init__(self, load: Callable[[str], Awaitable[bytes]]) -> None:
        self._load = load
        self._parcels: OrderedDict[tuple[str, int], list[Any]] = OrderedDict()

    def parcel(self, deployment_id: str, life: int) -> list[Any] | None:
        """What a task of this deployment takes along, or None when the code was not fetched yet."""
        key = (deployment_id, life)
        parcel = self._parcels.get(key)
        if parcel is not None:
            self._parcels.move_to_end(key)
        return parcel

    async def fetch(self, deployment_id: str, life: int, owner: Any, door: Door | None = None) -> list[Any]:
        """Puts the code of a deployment into the object store, together with the ways to the owner."""
        known = self.parcel(deployment_id, life)
        if known is not None:
            return known
        code = await self._load(deployment_id)
        known = self.parcel(deployment_id, life)  # another fetch may have been faster
        if known is not None:
            return known
        parcel = [ray.put((code, owner, door))]
        self._parcels[(deployment_id, life)] = parcel
        while len(self._parcels) > _KEPT:
            self._parcels.popitem(last=False)  # tasks on their way keep their own reference
        return parcel


class CodeCache:
    """The worker's half: registries and owners that this process knows. Thread-safe; one per process."""

    def __init__(self, kept: int = 32) -> None:
        self._kept = kept
        self._lock = threading.Lock()
        self._registries: OrderedDict[str, Registry] = OrderedDict()
        self._owners: OrderedDict[int, Any] = OrderedDict()
        self._doors: OrderedDict[int, Door | None] = OrderedDict()

    def known(self, deployment_id: str, life: int) -> tuple[Registry, Any] | None:
        """The loaded code of a deployment and the handle of an owner, when nothing has to be fetched for them."""
        registry, owner = self._registries.get(deployment_id), self._owners.get(life)
        return None if registry is None or owner is None else (registry, owner)

    def door(self, life: int) -> Door | None:
        """Where a known owner can be called by a socket."""
        return self._doors.get(life)

    def get(self, parcel: list[Any], deployment_id: str, life: int) -> tuple[Registry, Any]:
        """Fetches and loads what is not known yet; this blocks. Raises CodeNotLoadable."""
        known = self.known(deployment_id, life)
        return known if known is not None else self.load(self._fetch(parcel, deployment_id), deployment_id, life)

    def load(self, content: tuple[bytes, Any, Door | None], deployment_id: str, life: int) -> tuple[Registry, Any]:
        """The same with the content of the parcel at hand."""
        code, owner, door = content
        with self._lock:
            registry = self._registries.get(deployment_id)
            if registry is None:
                registry = self._registries[deployment_id] = load_registry(code)
            self._owners[life] = owner
            self._doors[life] = door
            for known in (self._registries, self._owners, self._doors):
                while len(known) > self._kept:
                    known.popitem(last=False)
        return registry, owner

    def _fetch(self, parcel: list[Any], deployment_id: str) -> tuple[bytes, Any, Door | None]:
        try:
            content: tuple[bytes, Any, Door | None] = ray.get(parcel[0], timeout=_FETCH_SECONDS)
        except ray.exceptions.RayError as error:
            raise CodeNotLoadable(deployment_id, f"it can't be fetched from the object store ({error})") from error
        return content


def why_not_loadable(error: BaseException, deployment_id: str) -> str:
    """The reason for an attempt's return, in words."""
    if isinstance(error, CodeNotLoadable):
        return str(error)
    return f"the code of deployment {deployment_id} can't be loaded: {type(error).__name__}: {error}"
