"""What can happen to a Flow: the words of its journal.

An event is a fact. It has a kind and a version, together its tag in the journal (`StepScheduled/1`). Fields are only
ever added at the end, with a default; an event whose meaning changes gets the next version and the old one stays
readable. A record of the journal is a list of events, the outcome of one command.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec import Struct

from dex.wire.service import Completion, FlowConfigSpec
from dex.wire.specs import LoadSpec, StepSpec, TimeoutHandlerSpec
from dexray.protocol.attempts import RecoveryError, WaitSpec


class Event(Struct, frozen=True, array_like=True):
    """`step` names the Step execution that an event is about, where it is about one."""


class FlowStarted(Event, frozen=True, array_like=True, tag="FlowStarted/1"):
    flow_id: str
    run_id: str
    flow_type: str
    request_id: str
    input: bytes
    attributes: dict[str, bytes]
    config: FlowConfigSpec
    timeout: float = 0.0
    timeout_policy: str = ""
    timeout_at: float = 0.0  # 0: no timeout
    timeout_handler: TimeoutHandlerSpec | None = None
    replaces: str = ""
    parent: str = ""  # the Flow ID of the Flow whose SubFlow this is


class StepScheduled(Event, frozen=True, array_like=True, tag="StepScheduled/1"):
    step: str
    step_type: str
    number: int
    from_step: str
    input: bytes
    method: str
    durability: str
    override: StepSpec | None = None
    recovery: RecoveryError | None = None


class AttemptStarted(Event, frozen=True, array_like=True, tag="AttemptStarted/1"):
    """The attempt is handed out: its snapshot is pinned (attempt 1) and its locks are taken."""

    step: str
    method: str
    attempt: int
    deployment: str = ""
    locks: tuple[str, ...] = ()
    load: LoadSpec | None = None
    detached: bool = False


class HeartbeatStored(Event, frozen=True, array_like=True, tag="HeartbeatStored/1"):
    step: str
    has_value: bool
    value: bytes | None = None


class Failure(Struct, frozen=True, array_like=True):
    error_type: str
    detail: str
    kind: str
    attempt: int
    at: float
    trace: str = ""
    worker: str = ""
    may_have_run: bool = True


class AttemptFailed(Event, frozen=True, array_like=True, tag="AttemptFailed/1"):
    """retry_at: when the next attempt may start; None when there is none."""

    step: str
    method: str
    failure: Failure
    retry_at: float | None = None


class AttemptReturned(Event, frozen=True, array_like=True, tag="AttemptReturned/1"):
    """The attempt certainly did not run. It keeps number, snapshot and locks, and may be handed out again from
    `again_at` on."""

    step: str
    method: str
    attempt: int
    reason: str
    again_at: float


class AttributesWritten(Event, frozen=True, array_like=True, tag="AttributesWritten/1"):
    attributes: dict[str, bytes | None]  # None: deleted
    by: str


class MessageDeleted(Event, frozen=True, array_like=True, tag="MessageDeleted/1"):
    channel: str
    message_id: str
    by: str


class MessagePublished(Event, frozen=True, array_like=True, tag="MessagePublished/1"):
    channel: str
    message_id: str
    value: bytes
    by: str


class EventRecorded(Event, frozen=True, array_like=True, tag="EventRecorded/1"):
    """A user's own event (`context.record_event`)."""

    step: str
    name: str
    value: bytes


class WaitStarted(Event, frozen=True, array_like=True, tag="WaitStarted/1"):
    """wait_for succeeded. `due` holds the time of each Timer, in the order of the conditions; 0 for others."""

    step: str
    wait: WaitSpec
    due: tuple[float, ...]
    locals: dict[str, bytes]


class TimerFired(Event, frozen=True, array_like=True, tag="TimerFired/1"):
    step: str
    index: int
    skipped: bool = False


class SubFlowEnded(Event, frozen=True, array_like=True, tag="SubFlowEnded/1"):
    """The child that condition `index` of the wait asked for has closed, and this is how."""

    step: str
    index: int
    flow_id: str
    status: str
    completions: tuple[Completion, ...] = ()
    error_type: str = ""
    error_message: str = ""
    run_id: str = ""


class ConditionsMet(Event, frozen=True, array_like=True, tag="ConditionsMet/1"):
    """The wait is over. `consumed` holds, for each winning Channel condition, its index and the ids of the messages it
    took."""

    step: str
    winners: tuple[int, ...]
    consumed: tuple[tuple[int, tuple[str, ...]], ...]
    durability: str


class WaitForAbandoned(Event, frozen=True, array_like=True, tag="WaitForAbandoned/1"):
    """wait_for failed for good and the Step proceeds to execute all the same."""

    step: str
    recovery: RecoveryError
    durability: str


class StepCompleted(Event, frozen=True, array_like=True, tag="StepCompleted/1"):
    step: str
    decision: str
    output: bytes | None = None


class StepFailed(Event, frozen=True, array_like=True, tag="StepFailed/1"):
    """A method failed for good. `route` names the Step that takes over, "" when none does."""

    step: str
    method: str
    failure: Failure
    route: str = ""


class StepCancelled(Event, frozen=True, array_like=True, tag="StepCancelled/1"):
    """`returned`: how many consumed messages go back to the front of each Channel, in their original order."""

    step: str
    by: str
    returned: dict[str, int]


class FlowTimedOut(Event, frozen=True, array_like=True, tag="FlowTimedOut/1"):
    policy: str
    skipped: bool = False  # a client had it come before its time


class FlowClosed(Event, frozen=True, array_like=True, tag="FlowClosed/1"):
    """`completion`: the output of a Step that completed the Flow because it found the Channels empty."""

    status: str
    error_type: str = ""
    error_message: str = ""
    completion: Completion | None = None


class RpcApplied(Event, frozen=True, array_like=True, tag="RpcApplied/1"):
    """An RPC changed the Flow. What it wrote follows in the same record, by `__rpc/<name>`."""

    name: str
    request_id: str
    input: bytes | None = None
    output: bytes | None = None
    canceling: tuple[str, ...] = ()


class FlowConfigUpdated(Event, frozen=True, array_like=True, tag="FlowConfigUpdated/1"):
    """The fields that were given; the others are as they were."""

    config: FlowConfigSpec


class FlowForked(Event, frozen=True, array_like=True, tag="FlowForked/1"):
    """A run that time travel began. `checkpoint` is what it begins with, and takes no look at another run.

    It is what the Flow was when `base_index` events of record `base_seq` of run `base_run` had happened: of the run
    that was current until now (`from_run`), or of one that this one was forked from. What was written from outside
    after that point follows in the same record, unless it was to be left out.
    """

    flow_id: str
    run_id: str
    flow_type: str
    from_run: str
    point: str
    reason: str
    base_run: str
    base_seq: int
    base_index: int
    skip_writes: bool
    checkpoint: bytes


AnyEvent = (
    FlowStarted
    | StepScheduled
    | AttemptStarted
    | HeartbeatStored
    | AttemptFailed
    | AttemptReturned
    | AttributesWritten
    | MessageDeleted
    | MessagePublished
    | EventRecorded
    | WaitStarted
    | TimerFired
    | SubFlowEnded
    | ConditionsMet
    | WaitForAbandoned
    | StepCompleted
    | StepFailed
    | StepCancelled
    | FlowTimedOut
    | FlowClosed
    | RpcApplied
    | FlowConfigUpdated
    | FlowForked
)

_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[list[AnyEvent]] = msgspec.msgpack.Decoder(list[AnyEvent])


class UnreadableRecord(Exception):
    """A record that this version of dexray can't read: written by a newer one, or damaged."""


def encode_record(events: Sequence[AnyEvent]) -> bytes:
    return _encoder.encode(events)


def decode_record(body: bytes) -> list[AnyEvent]:
    try:
        return _decoder.decode(body)
    except msgspec.MsgspecError as error:
        raise UnreadableRecord(
            f"{error}; was it written by a newer version of dexray? Upgrade every process that opens this database"
        ) from error


def kind_of(event: AnyEvent) -> str:
    return type(event).__name__
