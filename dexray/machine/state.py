"""What a Flow is between two commands: all that its events add up to.

`FlowState` and `StepState` are changed by `evolve` alone. Some fields are indexes over the rest (`waiters`, `due`,
`ready`, `blocked`, `locks`): they are not stored, and `restore` builds them anew.
"""

from __future__ import annotations

import heapq
from typing import Any

import msgspec
from msgspec import Struct, field

from dex.wire.service import Completion, FlowConfigSpec
from dex.wire.specs import EXECUTE, WAIT_FOR, LoadSpec, StepSpec, TimeoutHandlerSpec
from dexray.machine.events import Failure, UnreadableRecord
from dexray.protocol.attempts import ConditionResult, RecoveryError, WaitSpec
from dexray.protocol.subflows import SubFlowResult, SubFlowSpec

RUNNING_FLOW = "RUNNING"

# The phases of a method call of a Step execution. READY: may be handed out. RUNNING: handed out. BACKOFF: handed out
# again from `retry_at` on. WAITING: wait_for has succeeded and its conditions are open.
READY = "ready"
RUNNING = "running"
BACKOFF = "backoff"
WAITING = "waiting"

TIMEOUT = "timeout"
TIMEOUT_HANDLER = "sys:timeout_handler"
START = "__start__"

METHODS = (WAIT_FOR, EXECUTE, TIMEOUT)


class Message(Struct, frozen=True, array_like=True):
    """`ordinal` counts the messages of the run: messages that come back to a Channel find their old place by it."""

    id: str
    value: bytes
    ordinal: int


class Snapshot(Struct):
    """What attempt 1 of a method call saw, kept for its retries. `attributes` None stands for the current ones, in a
    checkpoint."""

    attributes: dict[str, bytes] | None
    sizes: dict[str, int]
    load: LoadSpec | None = None
    messages: dict[str, list[Message]] = field(default_factory=dict)


class StepState(Struct, kw_only=True):
    """One open Step execution."""

    id: str
    step_type: str
    number: int
    from_step: str
    input: bytes
    override: StepSpec | None = None
    recovery: RecoveryError | None = None
    method: str
    phase: str
    since: float
    attempt: int = 1
    durability: str
    first_started_at: float = 0.0  # 0: no attempt of this method call was handed out yet
    retry_at: float = 0.0
    returned_because: str = ""  # why the last hand-out came back, while it waits to be handed out again
    deployment: str = ""
    wait: WaitSpec | None = None
    due: tuple[float, ...] = ()
    fired: set[int] = field(default_factory=set)
    ended: dict[int, SubFlowResult] = field(default_factory=dict)  # by the index of the condition, while it waits
    overtaken: dict[int, SubFlowSpec] = field(default_factory=dict)  # by number: SubFlows that lost
    conditions: tuple[ConditionResult, ...] = ()
    consumed: list[tuple[str, Message]] = field(default_factory=list)
    locals: dict[str, bytes] = field(default_factory=dict)
    has_heartbeat: bool = False
    heartbeat: bytes | None = None
    last_failure: Failure | None = None
    may_have_run: bool = False  # an attempt of this method call failed that a worker may have run
    wait_for_failed: bool = False
    snapshot: Snapshot | None = None
    locks: tuple[str, ...] = ()  # held, by an attempt that is out or returned
    detached: bool = False  # the attempt that is out survives its owner


class FlowState(Struct, kw_only=True):
    flow_id: str = ""
    run_id: str = ""
    flow_type: str = ""
    request_id: str = ""
    parent: str = ""  # the Flow ID of the Flow whose SubFlow this is
    status: str = RUNNING_FLOW
    error_type: str = ""
    error_message: str = ""
    started_at: float = 0.0
    closed_at: float = 0.0
    config: FlowConfigSpec = FlowConfigSpec()
    timeout: float = 0.0
    timeout_policy: str = ""
    timeout_at: float = 0.0
    timeout_handler: TimeoutHandlerSpec | None = None
    timed_out: bool = False
    completing: bool = False  # a branch asked for graceful completion
    completions: list[Completion] = field(default_factory=list)
    counters: dict[str, int] = field(default_factory=dict)
    attributes: dict[str, bytes] = field(default_factory=dict)  # replaced on write, never changed: snapshots share it
    channels: dict[str, list[Message]] = field(default_factory=dict)  # never an empty list
    published: int = 0  # how many messages there were in this run
    steps: dict[str, StepState] = field(default_factory=dict)
    version: int = 0  # how many events it adds up
    data_version: int = 0  # counts the changes of Attributes and Channels: what isolated RPCs compare


class Indexes:
    """What can be told from the state but is wanted at once."""

    __slots__ = ("blocked", "due", "locks", "parents", "ready", "rpc_locks", "waiters", "waiting")

    def __init__(self) -> None:
        self.ready: dict[str, None] = {}  # Steps to hand out, oldest first
        self.blocked: dict[str, None] = {}  # Steps that found a lock taken
        self.locks: dict[str, str] = {}  # lock -> the Step that holds it
        self.rpc_locks: dict[str, str] = {}  # lock -> the RPC that holds it; RPCs live in memory alone, and so do these
        self.waiters: dict[str, dict[str, None]] = {}  # Channel -> Steps with a condition on it, oldest first
        self.waiting: set[str] = set()  # Steps in a wait
        self.parents: dict[str, int] = {}  # Steps that wait for SubFlows, and how many of these have not ended
        self.due: list[
            tuple[float, str, str, int]
        ] = []  # heap of (time, step, kind, index or attempt); may hold stale ones


class Flow:
    """A state with its indexes: what commands work on. `fresh` lists Steps that became ready, for the owner to take and
    clear."""

    __slots__ = ("fresh", "index", "state")

    def __init__(self, state: FlowState | None = None) -> None:
        self.state = state if state is not None else FlowState()
        self.fresh: list[str] = []
        self.index = Indexes()
        if state is not None:
            rebuild_indexes(self)

    @property
    def is_closed(self) -> bool:
        return self.state.status != RUNNING_FLOW

    @property
    def is_active(self) -> bool:
        """Some Step is under way: the Flow does more than wait for a message, a Timer or a SubFlow."""
        return len(self.state.steps) > len(self.index.waiting)

    def make_ready(self, step_id: str) -> None:
        self.index.ready[step_id] = None
        self.fresh.append(step_id)

    def unblock(self) -> None:
        """Locks were released: Steps that found one taken may try again, in the order in which they came."""
        if self.index.blocked:
            blocked = tuple(self.index.blocked)
            self.index.blocked.clear()
            for step_id in blocked:
                self.make_ready(step_id)

    def next_due(self) -> float | None:
        """The time at which `Due` has something to do, or None. May be early, never late."""
        return self.index.due[0][0] if self.index.due else None


def rebuild_indexes(flow: Flow) -> None:
    state, index = flow.state, flow.index
    if state.timeout_at and not state.timed_out and not flow.is_closed:
        index.due.append((state.timeout_at, "", TIMEOUT, 0))
    for step in state.steps.values():
        for lock in step.locks:
            index.locks[lock] = step.id
        if step.phase == READY:
            flow.make_ready(step.id)
        elif step.phase == BACKOFF:
            index.due.append((step.retry_at, step.id, "retry", step.attempt))
        elif step.phase == WAITING:
            index_wait(index, step)
    heapq.heapify(index.due)


def take_snapshot(state: FlowState, load: LoadSpec | None) -> Snapshot:
    """What a handler that is handed out now gets to see. Nothing in it changes when the state does."""
    snapshot = Snapshot(state.attributes, {name: len(queue) for name, queue in state.channels.items()}, load)
    if load is not None:
        wanted = {*load.channels, *load.channel_map_instances}
        prefixes = tuple(f"{name}/" for name in load.channel_maps)
        for name, queue in state.channels.items():
            if name in wanted or (prefixes and name.startswith(prefixes)):
                snapshot.messages[name] = list(queue)
    return snapshot


def set_back(flow: Flow, step: StepState) -> None:
    """A retry that was due is not any more: the clock was set back. It comes due again in its time."""
    index = flow.index
    if step.id in index.ready or step.id in index.blocked:
        index.ready.pop(step.id, None)
        index.blocked.pop(step.id, None)
        heapq.heappush(index.due, (step.retry_at, step.id, "retry", step.attempt))


def index_wait(index: Indexes, step: StepState) -> None:
    assert step.wait is not None
    index.waiting.add(step.id)
    for position, condition in enumerate(step.wait.conditions):
        if condition.kind == "channel":
            index.waiters.setdefault(condition.channel, {})[step.id] = None
        elif condition.kind == "subflow":
            index.parents[step.id] = index.parents.get(step.id, 0) + (position not in step.ended)
        elif condition.kind == "timer" and position not in step.fired:
            heapq.heappush(index.due, (step.due[position], step.id, "timer", position))


def forget_wait(index: Indexes, step: StepState) -> None:
    if step.wait is None:
        return
    index.waiting.discard(step.id)
    index.parents.pop(step.id, None)
    for condition in step.wait.conditions:
        if condition.kind == "channel":
            waiting = index.waiters.get(condition.channel)
            if waiting is not None:
                waiting.pop(step.id, None)
                if not waiting:
                    del index.waiters[condition.channel]


# Checkpoints ----------------------------------------------------------------------------------------------------------

CHECKPOINT_VERSION = 1


class Checkpoint(Struct):
    version: int
    state: FlowState


_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[Checkpoint] = msgspec.msgpack.Decoder(Checkpoint)


def encode_checkpoint(flow: Flow) -> bytes:
    """The state as bytes. Snapshots that still equal the current Attributes share them, in the bytes too."""
    shared: list[Snapshot] = []
    try:
        for step in flow.state.steps.values():
            if step.snapshot is not None and step.snapshot.attributes is flow.state.attributes:
                shared.append(step.snapshot)
                step.snapshot.attributes = None
        return _encoder.encode(Checkpoint(CHECKPOINT_VERSION, flow.state))
    finally:
        for snapshot in shared:
            snapshot.attributes = flow.state.attributes


def decode_checkpoint(body: bytes) -> Flow:
    try:
        checkpoint = _decoder.decode(body)
    except msgspec.MsgspecError as error:
        raise UnreadableRecord(f"checkpoint: {error}") from error
    if checkpoint.version != CHECKPOINT_VERSION:
        raise UnreadableRecord(f"checkpoint version {checkpoint.version}, this dexray reads {CHECKPOINT_VERSION}")
    for step in checkpoint.state.steps.values():
        if step.snapshot is not None and step.snapshot.attributes is None:
            step.snapshot.attributes = checkpoint.state.attributes
    return Flow(checkpoint.state)


def as_plain(flow: Flow) -> Any:
    """The state as plain data, for comparison and for people."""
    return msgspec.to_builtins(flow.state)
