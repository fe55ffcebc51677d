"""What an owner remembers of the attempts it has handed out, and of the lots they travel in."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from dexray.cluster.dispatch import Bundle, Kind, Place, Ready
from dexray.cluster.shared_values import Shared
from dexray.protocol.attempts import AttemptKey


@dataclass(slots=True, eq=False)
class Handout:
    """One attempt on its way, from `run` to its end."""

    token: int
    key: AttemptKey
    kind: Kind
    is_async: bool
    deployment_id: str
    signature: bytes
    options: dict[str, Any]
    task: bytes  # encoded
    kill_after: float | None = None
    ready: Ready[Handout] | None = None  # None while its code is being fetched
    lot: SentLot | None = None  # None while it waits here
    begun: bool = False  # its worker said so
    canceled: bool = False
    values: Mapping[str, Shared] = field(default_factory=dict)  # large ones that it needs, in the object store
    detached: bool = False  # it has an actor of its own and is in no lot


@dataclass(slots=True, eq=False)
class SentLot:
    """One lot: a Ray task, a message to a lane, or a call to an async worker. `number` grows with each of an owner."""

    number: int
    bundle: Bundle[Handout]
    sent_at: float  # monotonic
    reference: Any = None  # of Ray; keeps the result alive until it is read
    worker: Any = None  # the async worker that has it
    node: str = ""  # where it runs, once that is known
    lane: Lane | None = None  # the Ray task that it began, if that may stay; or the one that it was sent to
    ray_canceled: bool = False  # taken out of Ray's queue, perhaps too late
    heard_of: bool = False
    answered: bool = False  # Ray has its outcome
    ended: bool = False
    open: set[int] = field(default_factory=set)  # tokens without a result

    @property
    def is_announced(self) -> bool:
        """Whether its worker tells before it begins."""
        return not self.bundle.short and self.worker is None and not self.is_on_lane

    @property
    def is_on_lane(self) -> bool:
        """Whether it was sent to a Ray task that another lot began."""
        return self.lane is not None and self.lane.root is not self


@dataclass(slots=True, eq=False)
class Lane:
    """A Ray task that may run more lots than its first one, the root."""

    root: SentLot
    place: Place
    lot: SentLot | None  # the one that it runs, or that is on its way
    connection: Any = None  # None: nothing can be sent, not yet or not any more

    @property
    def number(self) -> int:
        return self.root.number


def lost_with(lots: Iterable[SentLot], node: str, died_at: float, newest: Mapping[bytes, int]) -> list[SentLot]:
    """The open lots that are lost with a node which died at `died_at`.

    Ray does not always say so: a task that was pushed to a frozen node may never resolve. Lost are the lots
    that ran there. A lot of which nothing was heard may as well wait in a queue. But Ray's queue for one set
    of resources is first come first served, so it is lost if it was sent before the node died and a later one
    was heard of; `newest` has the number of the latest one heard of by resource signature.
    """
    return [
        lot
        for lot in lots
        if not lot.ended
        and lot.sent_at < died_at
        and (lot.node == node if lot.heard_of else lot.number < newest.get(lot.bundle.bucket.signature, 0))
    ]
