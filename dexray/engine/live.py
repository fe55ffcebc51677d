"""A Flow in the memory of its owner, and the records of it that are on their way to the journal."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

from dexray.journal.interface import NEVER, NewRun, RequestAnswer
from dexray.machine.events import AnyEvent
from dexray.machine.state import WAITING, Flow
from dexray.protocol.attempts import AttemptKey, AttemptTask


class Lost(Exception):
    """The record was refused: this host does not own the Flow any more, or another run took its place. Ask again."""


@dataclass(slots=True)
class Pending:
    """A record in the making: what the commands of one turn of the event loop came to."""

    events: list[AnyEvent] = field(default_factory=list)
    tasks: list[tuple[AttemptTask, str]] = field(default_factory=list)  # with the method's durability
    cancels: list[AttemptKey] = field(default_factory=list)
    requests: list[RequestAnswer] = field(default_factory=list)
    blobs: dict[str, bytes] = field(default_factory=dict)
    whens: list[Callable[[Exception | None], None]] = field(default_factory=list)
    new_run: NewRun | None = None
    sync: bool = False  # something in it must be durable before what follows is let out

    @property
    def is_empty(self) -> bool:
        return not (self.events or self.requests or self.new_run)


class LiveFlow:
    """`seq` is the number of the last record that was submitted, `durable_seq` of the last one known to be durable."""

    __slots__ = (
        "answers",
        "armed",
        "bytes_since_checkpoint",
        "closed_waiters",
        "durable_closed",
        "durable_seq",
        "epoch",
        "flow",
        "history_waiters",
        "last_used",
        "lost",
        "pending",
        "problem",
        "queued",
        "records_since_checkpoint",
        "seq",
        "settled_waiters",
        "stored_wake",
        "sync_in_flight",
    )

    def __init__(self, flow: Flow, *, epoch: int, seq: int) -> None:
        self.flow = flow
        self.epoch = epoch
        self.seq = seq
        self.durable_seq = seq
        self.pending = Pending()
        self.lost = False
        self.problem = ""
        self.durable_closed = flow.is_closed
        self.armed = 0.0  # the due time that the owner's alarm knows of
        self.stored_wake = 0.0
        self.sync_in_flight = 0
        self.records_since_checkpoint = 0
        self.bytes_since_checkpoint = 0
        self.queued: set[str] = set()  # Steps that stand in a queue for a slot
        self.last_used = 0.0
        self.answers: OrderedDict[str, asyncio.Future[bytes]] = OrderedDict()  # recent write requests by id
        self.closed_waiters: set[asyncio.Future[None]] = set()
        self.history_waiters: set[asyncio.Future[None]] = set()
        self.settled_waiters: list[tuple[int, asyncio.Future[None]]] = []

    @property
    def flow_id(self) -> str:
        return self.flow.state.flow_id

    @property
    def run_id(self) -> str:
        return self.flow.state.run_id

    @property
    def is_active(self) -> bool:
        """Some Step is under way: the Flow does more than wait for a message or a Timer."""
        return any(step.phase != WAITING for step in self.flow.state.steps.values())

    def next_wake(self) -> float:
        if self.flow.is_closed:
            return NEVER
        if self.is_active:
            return 0.0
        due = self.flow.next_due()
        return NEVER if due is None else due

    @property
    def is_idle(self) -> bool:
        """May leave memory: nothing is under way, on its way to the journal, or waited for."""
        return (
            self.pending.is_empty
            and self.seq == self.durable_seq
            and not self.closed_waiters
            and not self.history_waiters
            and not self.settled_waiters
            and not self.problem
            and (self.flow.is_closed or not self.is_active)
        )
