"""A Flow in the memory of its owner, and the records of it that are on their way to the journal."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from dexray.journal.interface import NEVER, NewRun, RequestAnswer
from dexray.machine.events import AnyEvent
from dexray.machine.state import Flow
from dexray.protocol.attempts import AttemptKey, AttemptTask

if TYPE_CHECKING:
    from dexray.engine.subflows import Child
    from dexray.engine.waiters import Waits


class Lost(Exception):
    """The record was refused: this host does not own the Flow any more, or another run took its place. Ask again."""


@dataclass(slots=True)
class Pending:
    """A record in the making: what the commands of one turn of the event loop came to."""

    at: float = 0.0  # the time of all its commands, and of its record: a replay sees what was seen then
    events: list[AnyEvent] = field(default_factory=list)
    tasks: list[tuple[AttemptTask, str]] = field(default_factory=list)  # with the method's durability
    cancels: list[AttemptKey] = field(default_factory=list)
    settled: list[AttemptKey] = field(default_factory=list)  # detached attempts whose outcome this is
    parents: list[str] = field(default_factory=list)  # Steps whose waits ask for SubFlows
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
        "checkpoint_size",
        "children",
        "closed_waiters",
        "confirmed_at",
        "durable_closed",
        "durable_seq",
        "epoch",
        "flow",
        "held",
        "history_waiters",
        "indexed_steps",
        "last_used",
        "lost",
        "pending",
        "problem",
        "queued",
        "records_since_checkpoint",
        "rpc_turn",
        "seq",
        "settled_waiters",
        "stored_wake",
        "sync_in_flight",
        "waits",
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
        self.confirmed_at = _loop_time()  # when a closed run was known to be the current one
        self.armed = 0.0  # the due time that the owner's alarm knows of
        self.stored_wake = 0.0
        self.sync_in_flight = 0
        self.records_since_checkpoint = 0
        self.bytes_since_checkpoint = 0
        self.checkpoint_size = 0  # of the last one that was encoded
        self.held = 0  # requests that are in the middle of something, and want the Flow to stay in memory
        self.queued: set[str] = set()  # Steps that stand in a queue for a slot
        self.rpc_turn = asyncio.Lock()  # isolated RPCs that were overtaken go one by one
        self.last_used = 0.0
        self.children: dict[str, dict[int, Child]] = {}  # SubFlows that are seen to, by Step execution and number
        self.answers: OrderedDict[str, asyncio.Future[bytes]] = OrderedDict()  # recent write requests by id
        # Those who wait, in the order in which they came.
        self.closed_waiters: dict[asyncio.Future[None], None] = {}
        self.history_waiters: dict[asyncio.Future[None], None] = {}
        self.settled_waiters: list[tuple[int, asyncio.Future[None]]] = []
        # Step types that a search finds it by; None: it came from the journal, and they are not known here.
        self.indexed_steps: tuple[str, ...] | None = None if seq else ()
        self.waits: Waits | None = None  # for Step executions and Attributes

    @property
    def flow_id(self) -> str:
        return self.flow.state.flow_id

    @property
    def run_id(self) -> str:
        return self.flow.state.run_id

    @property
    def is_active(self) -> bool:
        return self.flow.is_active

    def next_wake(self) -> float:
        if self.flow.is_closed:
            return NEVER
        if self.is_active or self.flow.index.parents:  # a new owner has to see to the SubFlows
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
            and not self.waits
            and not self.problem
            and not self.held
            and not self.children
            and (self.flow.is_closed or not self.is_active)
        )

    # Those who wait ---------------------------------------------------------------------------------------------------

    def tell_closed(self, error: Exception | None) -> None:
        for future in self.closed_waiters:
            _tell(future, error)
        self.closed_waiters.clear()

    def tell_history(self, error: Exception | None) -> None:
        for future in self.history_waiters:
            _tell(future, error)
        self.history_waiters.clear()

    def tell_settled(self, seq: int) -> None:
        """Records up to `seq` are durable."""
        while self.settled_waiters and self.settled_waiters[0][0] <= seq:
            _tell(self.settled_waiters.pop(0)[1], None)

    def tell_unsettled(self, error: Exception) -> None:
        """What was not submitted yet never will be."""
        for target, future in self.settled_waiters:
            if target > self.seq:
                _tell(future, error)
        self.settled_waiters = [entry for entry in self.settled_waiters if entry[0] <= self.seq]

    def tell_all(self, error: Exception) -> None:
        self.tell_closed(error)
        self.tell_history(error)
        if self.waits is not None:
            self.waits.end(error)
        for _, future in self.settled_waiters:
            _tell(future, error)
        self.settled_waiters.clear()


def _tell(future: asyncio.Future[None], error: Exception | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(None)
    else:
        future.set_exception(error)
        future.exception()  # whoever waits gets it; that nobody waits any more is no fault


def _loop_time() -> float:
    try:
        return asyncio.get_running_loop().time()
    except RuntimeError:  # who only looks at a journal has no loop, and asks nothing that depends on it
        return 0.0
