"""What can be asked of a Flow. A command is a wish: the machine answers with the events that come of it, which may be
none."""

from __future__ import annotations

from dataclasses import dataclass, field

from dex.wire.service import FlowConfigSpec
from dex.wire.specs import TimeoutHandlerSpec
from dexray.protocol.attempts import AttemptKey, AttemptResult, Heartbeat, RpcSucceeded
from dexray.protocol.subflows import SubFlowResult


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    flow_id: str
    run_id: str
    flow_type: str
    request_id: str
    input: bytes
    attributes: dict[str, bytes] = field(default_factory=dict)
    config: FlowConfigSpec = field(default_factory=FlowConfigSpec)
    timeout: float = 0.0
    timeout_policy: str = ""
    timeout_handler: TimeoutHandlerSpec | None = None
    replaces: str = ""
    parent: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Publish:
    channel: str
    messages: tuple[tuple[str, bytes], ...]  # (message id, value)


@dataclass(frozen=True, slots=True, kw_only=True)
class SetAttribute:
    name: str
    value: bytes | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    stop_type: str  # CANCEL, TERMINATE, FAIL
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class HandOut:
    """The attempt of a ready Step is about to be sent to a worker: a slot is reserved."""

    step: str
    deployment: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreHeartbeat:
    key: AttemptKey
    heartbeat: Heartbeat


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishAttempt:
    key: AttemptKey
    result: AttemptResult
    again_at: float = 0.0  # for a returned attempt: when it may be handed out again


@dataclass(frozen=True, slots=True, kw_only=True)
class EndSubFlow:
    """A child has closed that the wait of a Step asked for: its `number`-th SubFlow, which is condition `index`."""

    step: str
    number: int
    index: int
    result: SubFlowResult


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplyRpc:
    """An RPC handler has returned: what it asks for is to be applied. Ask `rpcs.refusal` first."""

    name: str
    request_id: str
    input: bytes | None
    result: RpcSucceeded


@dataclass(frozen=True, slots=True, kw_only=True)
class SkipTimer:
    """A Timer is to count as fired now. Ask `timers.find` for its place first; None is the Flow's timeout."""

    step: str
    index: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateConfig:
    config: FlowConfigSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Fork:
    """The first command of a run that begins where another one was: see `timetravel`."""

    flow_id: str
    run_id: str
    flow_type: str
    from_run: str
    point: str
    reason: str
    base_run: str
    base_seq: int
    base_index: int
    checkpoint: bytes
    writes: tuple[Publish | SetAttribute | ApplyRpc, ...] | None  # None: they are left out


@dataclass(frozen=True, slots=True, kw_only=True)
class Due:
    """Time has passed: Timers, retries and the Flow's timeout that are due now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Interrupt:
    """A new owner took over: what its predecessor had handed out is lost, but for Steps whose attempts it adopts."""

    but: frozenset[str] = frozenset()


Command = (
    Start
    | Publish
    | SetAttribute
    | Stop
    | EndSubFlow
    | ApplyRpc
    | SkipTimer
    | UpdateConfig
    | Fork
    | HandOut
    | StoreHeartbeat
    | FinishAttempt
    | Due
    | Interrupt
)
