"""How many attempts are handed out, and which of them share a Ray task. A policy without Ray, clocks or threads.

A Ray task costs its owner about half a millisecond of CPU, whatever it does. A Step that queries a cache
takes less than that. So attempts of Steps that are known to be short may share a task, a **pack**, when there
are more of them than CPUs; an idle cluster gets one attempt a task and no delay. What is known of a Step type
is a moving average of how long its handlers ran. An unknown type is treated as a long one: it goes alone.

**Slots.** The engine reserves a slot, records the start, then runs the attempt. Slots bound what is handed
out and has not begun, because such an attempt can't be taken back by another owner and shows as started:

- unknown and long types: twice the CPUs (or GPUs, ... : whatever is scarce for their resources). One that
  reports that it runs gives room for the next. Attempts that need no scarce resource at all have this as the
  bound of all.
- short types: as much as fills a pack at every place;
- asynchronous handlers: some hundreds a process.

**Places.** Short attempts are sent to Ray only while fewer than two lots a CPU are on their way: one runs, one
waits. The others wait here, where the next lot takes many of them at once (the same trick as a group commit)
and where cancellation is free.

**Lanes** (see `lanes`). A Ray task that has run its lot may stay for a moment and take another. It keeps its
place for that time, because it keeps its CPU. Where lanes work, one place a CPU is enough: a lane gets its next
lot in a tenth of a millisecond, so nothing has to wait in Ray's queue for its sake. (Under a backlog that lasts,
one lot waits there all the same: an autoscaler sees only what is in Ray's queue.) A lane is let go when it
would be in the way: when a lot of this owner waits in Ray's queue for a CPU, when the attempt that has waited
longest is of another deployment, or when it has stayed so long that other users of the cluster should have
their turn.

**Buckets.** All this is counted for each set of resources by itself: a queue for a GPU must not stop the
rest. A type's resources are known from its last attempt; before the first one it counts as one of the
default.

A type whose attempts are declined (the code does not load on a worker) is offered again only after a pause
that doubles. A type that took its process down goes alone for a minute: a crash costs every attempt of its
pack a retry. A type whose attempts may be killed (`kill_after`) always goes alone: what is killed is a process.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

ItemT = TypeVar("ItemT")
Kind = tuple[str, str]
"""A Flow type and a Step type."""

DEFAULT = b""
"""The signature of the resources of a Step that asks for none."""

_BACKLOG_GAP = 0.25
"""Seconds between two refusals of one and the same backlog, at most."""

_PLAIN_OPTIONS = frozenset({"num_cpus", "memory", "resources", "runtime_env"})
"""With other options a Ray task ends with its lot: a GPU is too dear to idle (and Ray ends its process to free its
memory), and a strategy or a limit of calls is about each task."""


@dataclass(frozen=True, slots=True)
class DispatchSettings:
    """All times in seconds."""

    short: float = 0.02  # a type with a mean below is short
    samples: int = 2  # handlers seen before a type is known
    pack_time: float = 0.03  # expected work in a pack, at most
    pack_limit: int = 64  # attempts in a pack, at most
    pack_bytes: int = 256 * 1024  # encoded tasks in a pack, at most
    worthwhile: float = 0.005  # work that a lot should hold before another lot is begun
    lots_per_cpu: int = 2
    lane_worthwhile: float = 0.001  # the same as `worthwhile`, for lots that cost a message and no Ray task
    lane_hold: float = 0.2  # a Ray task stays no longer after its first lot
    lane_patience: float = 0.01  # a lot that has waited longer in Ray's queue lacks a CPU
    lane_demand: float = 1.0  # a backlog that lasts longer shows in Ray's queue
    lane_demand_patience: float = 0.1  # the same as `lane_patience` for the lot that shows it
    lane_bytes: int = 1024 * 1024  # a bigger task goes by Ray
    async_limit: int = 500  # asynchronous attempts a process
    async_processes: int = 1
    quarantine: float = 60.0
    decline_first: float = 1.0
    decline_longest: float = 30.0


class Durations:
    """A moving average of how long the handlers of each type run; outliers are cut, and so soon forgotten."""

    _WEIGHT = 0.25
    _LEAST = 0.0002  # what an attempt costs around its handler

    def __init__(self, settings: DispatchSettings) -> None:
        self._settings = settings
        self._known: dict[Kind, tuple[float, int]] = {}

    def observe(self, kind: Kind, seconds: float) -> None:
        cut = min(max(seconds, self._LEAST), 10 * self._settings.short)
        mean, count = self._known.get(kind, (cut, 0))
        self._known[kind] = (mean + self._WEIGHT * (cut - mean), count + 1)

    def expected(self, kind: Kind) -> float | None:
        """The mean of a known type (cut at ten times `short`), or None."""
        mean, count = self._known.get(kind, (0.0, 0))
        return mean if count >= self._settings.samples else None


class Slot:
    """The place of one attempt in a bucket, from its reservation to its end."""

    __slots__ = ("bucket", "cost", "freed", "kind", "running", "short")

    def __init__(self, bucket: Bucket[Any], kind: Kind, short: bool, cost: float) -> None:
        self.bucket = bucket
        self.kind = kind
        self.short = short
        self.cost = cost  # expected seconds, of short ones
        self.running = False
        self.freed = False


class Ready(Generic[ItemT]):
    """A reserved attempt that waits to be sent. `dropped` ones are not sent."""

    __slots__ = ("alone", "dropped", "group", "item", "size", "slot")

    def __init__(self, item: ItemT, slot: Slot, group: str, size: int, alone: bool = False) -> None:
        self.item = item
        self.slot = slot
        self.group = group  # attempts of different groups never share a lot
        self.size = size  # bytes
        self.alone = alone  # its Ray task runs nothing else, before or after
        self.dropped = False


class Place:
    """One Ray task, from its submission to its end, with all the lots that it runs."""

    __slots__ = ("bucket", "counts", "ended", "group", "stays_since")

    def __init__(self, bucket: Bucket[Any], group: str) -> None:
        self.bucket = bucket
        self.group = group
        self.counts = False  # it runs short attempts, or waits for some
        self.ended = False
        self.stays_since: float | None = None  # the end of its first lot, when it is a lane


@dataclass(slots=True, eq=False)
class Bundle(Generic[ItemT]):
    """Attempts that go out as one lot."""

    bucket: Bucket[ItemT]
    group: str
    items: tuple[ItemT, ...]
    short: bool
    place: Place | None = None  # None: an async worker
    over_lane: bool = False  # the place is a lane that is there already
    may_stay: bool = False  # its Ray task may become a lane


@dataclass(slots=True, eq=False)
class Bucket(Generic[ItemT]):
    """What is counted for one set of resources. `capacity` is how many attempts the cluster can run at once."""

    signature: bytes
    needs: dict[str, float]
    is_async: bool = False
    may_stay: bool = False
    capacity: int = 1
    ready: deque[Ready[ItemT]] = field(default_factory=deque)
    shorts: int = 0
    work: float = 0.0  # expected seconds of all short ones
    longs: int = 0  # not known to run
    running: int = 0  # long ones, and short ones that turned out long
    places: int = 0  # that count
    tasks: int = 0  # all places that have not ended
    in_queue: dict[Place, float] = field(default_factory=dict)  # those that are not known to have begun: sent when
    idle: list[Place] = field(default_factory=list)  # lanes without a lot; the latest is the last
    refused_since: float = -math.inf  # short attempts: the first refusal of those that follow each other closely
    refused_at: float = -math.inf  # the last one

    @property
    def handed_out(self) -> int:
        return self.shorts + self.longs + self.running


class Dispatch(Generic[ItemT]):
    """The policy of one owner. `now` is seconds on any clock that does not go back."""

    def __init__(self, settings: DispatchSettings | None = None) -> None:
        self.settings = settings or DispatchSettings()
        self.durations = Durations(self.settings)
        self._totals: dict[str, float] = {"CPU": 1.0}
        self._async: Bucket[ItemT] = Bucket(b"async", {}, is_async=True)
        self._buckets: dict[bytes, Bucket[ItemT]] = {}
        self._bucket_of: dict[tuple[Kind, bool], Bucket[ItemT]] = {}
        self._default = self._bucket(DEFAULT, {})
        self._reserved: dict[tuple[Kind, bool], list[Slot]] = {}
        self._alone_until: dict[Kind, float] = {}
        self._always_alone: set[Kind] = set()
        self._declined: dict[Kind, tuple[float, float]] = {}  # not before, the pause after the next try
        self._refused = False
        self.lanes_work = False  # workers can be reached: Ray tasks become lanes

    # Slots ------------------------------------------------------------------------------------------------------------

    def reserve(self, kind: Kind, is_async: bool, now: float) -> bool:
        if self._is_declined(kind, now):
            self._refused = True
            return False
        bucket = self._bucket_of.get((kind, is_async)) or (self._async if is_async else self._default)
        cost = self._cost(kind, now)
        if not self._has_room(bucket, cost):
            self._refused = True
            if cost is not None:
                if now - bucket.refused_at > _BACKLOG_GAP:
                    bucket.refused_since = now
                bucket.refused_at = now
            return False
        slot = Slot(bucket, kind, short=cost is not None, cost=cost or 0.0)
        self._count(slot, 1)
        self._reserved.setdefault((kind, is_async), []).append(slot)
        return True

    def release(self, kind: Kind, is_async: bool) -> None:
        """Gives back a reservation; one that was never made is no matter."""
        slot = self._pop(kind, is_async)
        if slot is not None:
            self.free(slot)

    def begun(self, slot: Slot) -> None:
        """The attempt is known to run: it no longer counts as waiting."""
        if not slot.running and not slot.freed:
            self._count(slot, -1)
            slot.running = True
            self._count(slot, 1)

    def free(self, slot: Slot) -> None:
        if not slot.freed:
            self._count(slot, -1)
            slot.freed = True

    def take_refused(self) -> bool:
        """Whether a reservation was refused since the last call."""
        refused, self._refused = self._refused, False
        return refused

    @property
    def handed_out(self) -> int:
        """All slots that are not free."""
        return sum(bucket.handed_out for bucket in self._all_buckets())

    # Sending ----------------------------------------------------------------------------------------------------------

    def enqueue(
        self,
        item: ItemT,
        kind: Kind,
        is_async: bool,
        signature: bytes,
        options: Mapping[str, Any],
        group: str,
        size: int,
        alone: bool = False,
    ) -> Ready[ItemT]:
        """Queues a reserved attempt, now that its resources are known (and learns them for the next of its kind).
        `alone`: it never shares a lot."""
        (self._always_alone.add if alone else self._always_alone.discard)(kind)
        in_process = is_async and signature == DEFAULT
        bucket = self._async if in_process else self._bucket(signature, options, is_async)
        self._bucket_of[(kind, is_async)] = bucket
        slot = self._pop(kind, is_async)
        if slot is None:  # run without a reservation: counted all the same
            slot = Slot(bucket, kind, short=False, cost=0.0)
            self._count(slot, 1)
        elif slot.bucket is not bucket:
            self._count(slot, -1)
            slot.bucket = bucket
            self._count(slot, 1)
        if alone and slot.short:
            self._count(slot, -1)
            slot.short, slot.cost = False, 0.0
            self._count(slot, 1)
        ready = Ready(item, slot, group, size, alone)
        bucket.ready.append(ready)
        return ready

    def enqueue_again(self, ready: Ready[ItemT], now: float) -> None:
        """Queues an attempt that was sent but did not begin, before all others, as what its type is now known to be."""
        slot = ready.slot
        self._count(slot, -1)
        cost = self._cost(slot.kind, now)
        slot.running, slot.short, slot.cost = False, cost is not None, cost or 0.0
        self._count(slot, 1)
        slot.bucket.ready.appendleft(ready)

    def plan(self, now: float = 0.0) -> Iterator[Bundle[ItemT]]:
        """The lots to send now."""
        for bucket in self._all_buckets():
            if bucket.ready:
                yield from self._plan_async(bucket) if bucket.is_async else self._plan_tasks(bucket, now)

    def _plan_async(self, bucket: Bucket[ItemT]) -> Iterator[Bundle[ItemT]]:
        waiting, bucket.ready = bucket.ready, deque()
        groups: dict[str, list[ItemT]] = {}
        for ready in waiting:
            if not ready.dropped:
                groups.setdefault(ready.group, []).append(ready.item)
        for group, items in groups.items():
            yield Bundle(bucket, group, tuple(items), short=False)

    def _plan_tasks(self, bucket: Bucket[ItemT], now: float) -> Iterator[Bundle[ItemT]]:
        shorts: deque[Ready[ItemT]] = deque()
        waiting, bucket.ready = bucket.ready, shorts
        for ready in waiting:
            if ready.dropped:
                continue
            if ready.slot.short:
                shorts.append(ready)
            else:
                yield self._bundle(bucket, ready, (ready.item,), self._take_idle(bucket, ready), now)
        places = self._places(bucket, now)
        while shorts:
            size = self._pack_size(bucket, len(shorts), places)
            lane = self._take_idle(bucket, shorts[0])
            if lane is None and bucket.places >= places:
                return
            first = shorts[0]
            yield self._bundle(bucket, first, self._pack(shorts, size), lane, now)

    def _bundle(
        self, bucket: Bucket[ItemT], first: Ready[ItemT], items: tuple[ItemT, ...], lane: Place | None, now: float
    ) -> Bundle[ItemT]:
        place = lane
        if place is None:
            place = Place(bucket, first.group)
            bucket.tasks += 1
            bucket.in_queue[place] = now
        short = first.slot.short
        self._count_place(place, short)
        may_stay = bucket.may_stay and not first.alone
        return Bundle(bucket, first.group, items, short, place, over_lane=lane is not None, may_stay=may_stay)

    def _pack_size(self, bucket: Bucket[ItemT], waiting: int, places: int) -> int:
        idle = bucket.capacity - bucket.places + len(bucket.idle)
        by_lane = self._has_lanes(bucket)
        shares = bucket.capacity if by_lane else places - bucket.places
        fair = 1 if waiting <= idle else math.ceil(waiting / max(1, shares))
        least = self.settings.lane_worthwhile if by_lane else self.settings.worthwhile
        worthwhile = math.ceil(least / bucket.ready[0].slot.cost) if waiting > 4 else 1
        return min(max(fair, worthwhile), self.settings.pack_limit)

    def _pack(self, shorts: deque[Ready[ItemT]], size: int) -> tuple[ItemT, ...]:
        first = shorts.popleft()
        items, work, weight = [first.item], first.slot.cost, first.size
        while shorts and len(items) < size:
            following = shorts[0]
            work += following.slot.cost
            weight += following.size
            if following.group != first.group or work > self.settings.pack_time or weight > self.settings.pack_bytes:
                break
            items.append(shorts.popleft().item)
        return tuple(items)

    # Places and lanes -------------------------------------------------------------------------------------------------

    def leave_place(self, bundle: Bundle[ItemT]) -> None:
        """The lot has ended and its Ray task with it, or it lasts so long that others must not wait for it."""
        if bundle.place is not None:
            self._count_place(bundle.place, False)

    def task_begun(self, place: Place) -> None:
        """The Ray task is known to have left Ray's queue."""
        place.bucket.in_queue.pop(place, None)

    def task_ended(self, place: Place) -> None:
        """The Ray task is over, or given up."""
        if not place.ended:
            place.ended = True
            place.bucket.tasks -= 1
            self.task_begun(place)
            self.withdraw(place)
            self._count_place(place, False)

    def offer(self, place: Place, now: float) -> bool:
        """A Ray task has run its lot and offers to stay. False: let it go; it keeps its place until it has ended."""
        bucket: Bucket[ItemT] = place.bucket
        if place.ended:
            return False
        self.task_begun(place)
        self._count_place(place, True)
        if place.stays_since is None:
            place.stays_since = now
        if now - place.stays_since > self.settings.lane_hold or self._is_short_of_cpus(bucket, now):
            return False
        first = next((ready for ready in bucket.ready if not ready.dropped), None)
        if first is not None and first.group != place.group:
            return False
        bucket.idle.append(place)
        return True

    def withdraw(self, place: Place) -> bool:
        """The lane takes no more lots. False: it was not idle."""
        if place not in place.bucket.idle:
            return False
        place.bucket.idle.remove(place)
        return True

    def take_unwanted(self) -> list[Place]:
        """After `plan`: idle lanes that hold the CPUs of attempts which can't go over them."""
        unwanted: list[Place] = []
        for bucket in self._buckets.values():
            if bucket.idle and bucket.ready:
                unwanted += bucket.idle
                bucket.idle.clear()
        return unwanted

    def _is_short_of_cpus(self, bucket: Bucket[ItemT], now: float) -> bool:
        if not bucket.in_queue:
            return False
        oldest = next(iter(bucket.in_queue.values()))
        if self._has_backlog(bucket, now):
            return bucket.tasks > bucket.capacity + 1 or now - oldest > self.settings.lane_demand_patience
        return bucket.tasks > bucket.capacity or now - oldest > self.settings.lane_patience

    def _has_backlog(self, bucket: Bucket[ItemT], now: float) -> bool:
        return now - bucket.refused_at < _BACKLOG_GAP and now - bucket.refused_since > self.settings.lane_demand

    def _take_idle(self, bucket: Bucket[ItemT], ready: Ready[ItemT]) -> Place | None:
        """The lane used last: the others may end, and leave their CPUs to others."""
        if ready.alone or ready.size > self.settings.lane_bytes:
            return None
        for index in range(len(bucket.idle) - 1, -1, -1):
            if bucket.idle[index].group == ready.group:
                return bucket.idle.pop(index)
        return None

    def _has_lanes(self, bucket: Bucket[ItemT]) -> bool:
        return self.lanes_work and bucket.may_stay

    def _count_place(self, place: Place, counts: bool) -> None:
        if place.counts is not counts:
            place.counts = counts
            place.bucket.places += 1 if counts else -1

    def lacking(self, signature: bytes, is_async: bool) -> dict[str, float]:
        """The resources of a bucket of which the whole cluster has less than one attempt needs, with what it has."""
        bucket = self._buckets.get(signature + b"async" if is_async else signature)
        if bucket is None:
            return {}
        has = self._totals
        return {name: has.get(name, 0.0) for name, amount in bucket.needs.items() if has.get(name, 0.0) < amount}

    # Learning ---------------------------------------------------------------------------------------------------------

    def ran(self, kind: Kind, seconds: float) -> None:
        """A handler of this type ran so long."""
        self.durations.observe(kind, seconds)
        self._declined.pop(kind, None)

    def crashed(self, kind: Kind, now: float) -> None:
        """An attempt of this type was in a process that died."""
        self._alone_until[kind] = now + self.settings.quarantine

    def declined(self, kind: Kind, now: float) -> float:
        """A worker could not run an attempt of this type; the seconds until the next is tried."""
        until, pause = self._declined.get(kind, (now, self.settings.decline_first))
        if until <= now:
            until = now + pause
            self._declined[kind] = (until, min(2 * pause, self.settings.decline_longest))
        return until - now

    def set_resources(self, totals: Mapping[str, float]) -> None:
        """What the whole cluster has, by Ray's names: CPU, GPU, memory, ..."""
        self._totals = dict(totals)
        for bucket in self._buckets.values():
            bucket.capacity = self._capacity(bucket.needs)

    # Inside -----------------------------------------------------------------------------------------------------------

    def _cost(self, kind: Kind, now: float) -> float | None:
        """Expected seconds of a short type; None for the others."""
        expected = self.durations.expected(kind)
        if expected is None or expected >= self.settings.short or kind in self._always_alone:
            return None
        alone_until = self._alone_until.get(kind)
        if alone_until is not None:
            if now < alone_until:
                return None
            del self._alone_until[kind]
        return expected

    def _is_declined(self, kind: Kind, now: float) -> bool:
        declined = self._declined.get(kind)
        if declined is None:
            return False
        until, pause = declined
        if now < until:
            return True
        self._declined[kind] = (now + pause, min(2 * pause, self.settings.decline_longest))  # this one is the try
        return False

    def _has_room(self, bucket: Bucket[ItemT], cost: float | None) -> bool:
        if bucket.is_async:
            return bucket.handed_out < self.settings.async_limit * self.settings.async_processes
        if cost is not None:
            lots = self._lots(bucket)
            full = bucket.shorts >= lots * self.settings.pack_limit or bucket.work >= lots * self.settings.pack_time
            return not full or bucket.shorts < lots
        unbounded = not bucket.needs
        return bucket.longs + (bucket.running if unbounded else 0) < max(
            2, self.settings.lots_per_cpu * bucket.capacity
        )

    def _lots(self, bucket: Bucket[ItemT]) -> int:
        """How many lots of short attempts are wanted here and on their way."""
        return max(2, self.settings.lots_per_cpu * bucket.capacity)

    def _places(self, bucket: Bucket[ItemT], now: float) -> int:
        if not self._has_lanes(bucket):
            return self._lots(bucket)
        return bucket.capacity + (1 if self._has_backlog(bucket, now) else 0)

    def _count(self, slot: Slot, change: int) -> None:
        bucket = slot.bucket
        if slot.running:
            bucket.running += change
        elif slot.short:
            bucket.shorts += change
            bucket.work = bucket.work + change * slot.cost if bucket.shorts else 0.0
        else:
            bucket.longs += change

    def _pop(self, kind: Kind, is_async: bool) -> Slot | None:
        slots = self._reserved.get((kind, is_async))
        return slots.pop() if slots else None

    def _all_buckets(self) -> tuple[Bucket[ItemT], ...]:
        return (self._async, *self._buckets.values())

    def _bucket(self, signature: bytes, options: Mapping[str, Any], is_async: bool = False) -> Bucket[ItemT]:
        key = signature + b"async" if is_async else signature
        bucket = self._buckets.get(key)
        if bucket is None:
            needs = needs_of(options, is_async)
            may_stay = _PLAIN_OPTIONS.issuperset(options)
            bucket = self._buckets[key] = Bucket(key, needs, may_stay=may_stay, capacity=self._capacity(needs))
        return bucket

    def _capacity(self, needs: Mapping[str, float]) -> int:
        """How many such attempts the cluster can run at once. At least 1: a queued one tells an autoscaler."""
        if not needs:
            return max(1, int(self._totals.get("CPU", 1.0)))
        return max(1, int(min(self._totals.get(name, 0.0) / amount for name, amount in needs.items())))


def needs_of(options: Mapping[str, Any], is_async: bool = False) -> dict[str, float]:
    """What one task with these options of Ray takes, by Ray's resource names. Default: a CPU, if synchronous."""
    needs: dict[str, Any] = {
        "CPU": options.get("num_cpus", 0 if is_async else 1),
        "GPU": options.get("num_gpus"),
        "memory": options.get("memory"),
        **(options.get("resources") or {}),
    }
    return {name: float(amount) for name, amount in needs.items() if isinstance(amount, int | float) and amount > 0}
