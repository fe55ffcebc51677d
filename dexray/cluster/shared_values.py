"""Large values on their way from one attempt to the next through Ray: the owner's side, and the worker's.

A value of `SHARE_FROM` bytes or more leaves a worker beside the result and not in it: as a buffer of its own, which Ray
puts into shared memory. The owner keeps the reference under the hash of the content. An attempt that needs the value
gets the reference, and its worker, on the same node, reads the very memory.

The object store is a shortcut and never the only place. A value is in the database, or in the blob store, before the
record that refers to it is written; so when a reference leads nowhere (the owner or the node that had the object is
gone, or the owner has let go of it) the attempt goes back unrun, the owner forgets the reference, and the next hand-out
reads the value from where it is kept. A worker believes a reference, and not a hash: what a reference leads to was put
there by a worker of the same owner, and Ray's objects do not change.

What goes with a lot: `Lot.values` says for each hash in which of the references it is, and where in that; the attempts
say which hashes they need (`Handed.needs`).
"""

from __future__ import annotations

import logging
import pickle
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar, cast

from msgspec.structs import replace
from ray.exceptions import RayError

from dexray.cluster.attempt_messages import Finished, Lot
from dexray.protocol.attempts import AttemptReturned

logger = logging.getLogger("dexray.cluster.values")

SHARE_FROM = 1 << 20
FETCH_SECONDS = 60.0
LOST = "a large value is not in the object store any more: it is read from where it is kept"


# The owner's side -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Shared:
    """Where a value is: in an object of Ray, which is a list, at `index`."""

    reference: Any
    index: int
    size: int


class SharedValues:
    """The references that an owner keeps, up to `limit` bytes of values; the longest unused go first, and those that
    nobody has asked for within `seconds`."""

    def __init__(self, limit: int, seconds: float, now: Callable[[], float]) -> None:
        self._limit = limit
        self._seconds = seconds
        self._now = now
        self._kept: OrderedDict[str, tuple[Shared, float]] = OrderedDict()
        self._size = 0

    def __len__(self) -> int:
        return len(self._kept)

    def keep(self, reference: Any, values: Mapping[str, memoryview]) -> None:
        """The object of a reference is a list, and these values follow its first item, in this order."""
        for index, (digest, body) in enumerate(values.items(), 1):
            self.forget([digest])
            self._kept[digest] = (Shared(reference, index, body.nbytes), self._now())
            self._size += body.nbytes
        self.trim()

    def find(self, hashes: Iterable[str]) -> dict[str, Shared]:
        found: dict[str, Shared] = {}
        for digest in hashes:
            kept = self._kept.get(digest)
            if kept is not None:
                found[digest] = kept[0]
                self._kept[digest] = (kept[0], self._now())
                self._kept.move_to_end(digest)
        return found

    def forget(self, hashes: Iterable[str]) -> None:
        for digest in hashes:
            kept = self._kept.pop(digest, None)
            if kept is not None:
                self._size -= kept[0].size

    def trim(self) -> None:
        """Lets go of what is too much or too old."""
        while self._kept:
            digest, (_, used_at) = next(iter(self._kept.items()))
            if self._size <= self._limit and self._now() - used_at < self._seconds:
                return
            self.forget([digest])


def as_arguments(found: Iterable[Mapping[str, Shared]]) -> tuple[list[Any], dict[str, tuple[int, int]]]:
    """The references of a lot, each once; and for each value the number of its reference, and its index there."""
    references: list[Any] = []
    numbers: dict[Any, int] = {}
    places: dict[str, tuple[int, int]] = {}
    for values in found:
        for digest, shared in values.items():
            if shared.reference not in numbers:
                numbers[shared.reference] = len(references)
                references.append(shared.reference)
            places[digest] = (numbers[shared.reference], shared.index)
    return references, places


def with_values(finished: Finished, values: Mapping[str, memoryview]) -> Finished:
    """The result with the values that came beside it. They are views of shared memory, and bytes-like."""
    if not finished.values:
        return finished
    result: Any = finished.result
    mine = {digest: values[digest] for digest in finished.values}
    return replace(finished, result=replace(result, blobs={**result.blobs, **mine}))


# The worker's side ----------------------------------------------------------------------------------------------------

MessageT = TypeVar("MessageT", bound="HasFinished")


class HasFinished(Protocol):
    @property
    def finished(self) -> tuple[Finished, ...]: ...


def apart(message: MessageT) -> tuple[MessageT, dict[str, bytes]]:
    """A message without the large values in its results, and these."""
    values: dict[str, bytes] = {}
    lighter = tuple(_apart(finished, values) for finished in message.finished)
    if not values:
        return message, values
    return cast(MessageT, replace(cast(Any, message), finished=lighter, values=tuple(values))), values


def _apart(finished: Finished, values: dict[str, bytes]) -> Finished:
    blobs: Mapping[str, bytes] = getattr(finished.result, "blobs", {})
    large = {digest: body for digest, body in blobs.items() if len(body) >= SHARE_FROM}
    if not large:
        return finished
    values.update(large)
    small = {digest: body for digest, body in blobs.items() if digest not in large}
    result: Any = finished.result
    return replace(finished, result=replace(result, blobs=small), values=tuple(large))


def has_large_values(finished: Collection[Finished]) -> bool:
    return any(len(body) >= SHARE_FROM for one in finished for body in getattr(one.result, "blobs", {}).values())


def buffers(values: Mapping[str, bytes]) -> list[Any]:
    """Values so wrapped that Ray copies each once, into shared memory."""
    return [pickle.PickleBuffer(body) for body in values.values()]


def views(names: Sequence[str], received: Sequence[Any]) -> dict[str, memoryview]:
    """What buffers have become where they arrive."""
    return {digest: memoryview(body) for digest, body in zip(names, received, strict=True)}


def given(lot: Lot, fetched: Sequence[Any]) -> Lot | tuple[Finished, ...]:
    """The lot with the values that its attempts need: `fetched` has for each reference the list, or what went wrong.
    When some are not to be had, all attempts go back, those that need them with word of it."""
    values: dict[str, bytes] = {}
    for digest, (number, index) in lot.values.items():
        content = fetched[number]
        if not isinstance(content, BaseException):
            values[digest] = cast(bytes, memoryview(content[index]))
    lacking = lot.values.keys() - values.keys()
    if not lacking:
        handed = tuple(
            replace(
                one,
                task=replace(one.task, blobs={**one.task.blobs, **{digest: values[digest] for digest in one.needs}}),
            )
            if one.needs
            else one
            for one in lot.handed
        )
        return replace(lot, handed=handed)
    logger.info("%d large values of a lot are not in the object store", len(lacking))
    returned = AttemptReturned(reason=LOST)
    return tuple(
        Finished(one.token, returned, lacking=tuple(digest for digest in one.needs if digest in lacking))
        for one in lot.handed
    )


def fetch(get: Callable[[Any], Any], references: Sequence[Any]) -> list[Any]:
    """The objects of references, or the errors that stand for them."""
    fetched: list[Any] = []
    for reference in references:
        try:
            fetched.append(get(reference))
        except RayError as error:
            fetched.append(error)
    return fetched
