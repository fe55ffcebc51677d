"""What goes into an attempt of a handler, and what comes out of it.

The engine builds an `AttemptTask`, the cluster carries it to a worker, `dexray.attempts.run` answers with one
`AttemptResult`. An attempt is named by (run id, Step execution id, method, attempt number): `AttemptKey`. A result
whose key is not current is refused.
"""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from dex.values import DEFAULT_LIMIT
from dex.wire.specs import StepSpec
from dexray.protocol.subflows import SubFlowSpec

NOT_STARTED = "NOT_STARTED"
NOT_COMPLETED = "NOT_COMPLETED"


class Wire(Struct, frozen=True, omit_defaults=True):
    pass


class AttemptKey(Wire, frozen=True):
    flow_id: str
    run_id: str
    step_execution_id: str
    method: str  # wait_for, execute, timeout or rpc
    attempt: int


class RecoveryError(Wire, frozen=True):
    error_type: str
    detail: str
    attempt_progress: str = NOT_COMPLETED


class ConditionResult(Wire, frozen=True):
    """The outcome of one condition of a wait, in declaration order. kind: timer, channel or subflow."""

    kind: str
    condition_id: str = ""
    fired: bool = False  # timer: fired or skipped
    channel: str = ""  # physical name
    messages: tuple[bytes, ...] = ()  # what this condition consumed
    subflow_id: str = ""
    subflow_status: str = ""
    subflow_completions: tuple[tuple[str, str, bytes | None], ...] = ()
    subflow_error_type: str = ""
    subflow_error_message: str = ""


class AttemptTask(Wire, frozen=True, kw_only=True):
    key: AttemptKey
    flow_type: str
    step_type: str
    deployment_id: str
    from_step_execution_id: str
    input: bytes
    timeout: float  # seconds from hand-out
    heartbeat_timeout: float
    first_attempt_at: float  # seconds since the epoch, UTC
    attributes: dict[str, bytes] = {}  # all plain Attributes, and selected map instances, by physical name
    attribute_keys: tuple[str, ...] = ()  # physical names of all map instances that exist
    loaded_attribute_maps: tuple[str, ...] = ()  # maps loaded whole
    loaded_attribute_instances: tuple[str, ...] = ()  # physical names selected one by one
    channel_sizes: dict[str, int] = {}  # physical names; absent: empty
    loaded_channels: dict[str, tuple[tuple[str, bytes], ...]] = {}  # physical name: (message id, value), selected ones
    loaded_channel_maps: tuple[str, ...] = ()  # maps loaded whole
    conditions: tuple[ConditionResult, ...] = ()  # execute only
    locals: dict[str, bytes] = {}
    has_heartbeat: bool = False
    heartbeat: bytes | None = None
    recovery_error: RecoveryError | None = None
    wait_for_failed: bool = False
    blobs: dict[str, bytes] = {}
    resources: dict[str, Any] = {}
    is_async: bool = False
    max_value_bytes: int = DEFAULT_LIMIT  # of each value that the handler gives
    kill_after: float | None = None  # seconds from a cancel or timeout until its process is killed; None: never
    detached: bool = False  # survives the owner that hands it out; the next one adopts it


class ConditionSpec(Wire, frozen=True):
    """A condition as a handler returned it. Durations in seconds; channel bounds: at_most None is unbounded."""

    kind: str  # timer, channel, subflow
    condition_id: str = ""
    duration: float = 0.0
    channel: str = ""
    at_least: int = 0
    at_most: int | None = None
    subflow: SubFlowSpec | None = None


class WaitSpec(Wire, frozen=True):
    """kind: skip_immediately, all_of, any_of, any_combination_of. Combinations hold indexes into conditions."""

    kind: str
    conditions: tuple[ConditionSpec, ...] = ()
    combinations: tuple[tuple[int, ...], ...] = ()


class MovementSpec(Wire, frozen=True):
    step_type: str
    input: bytes
    override: StepSpec | None = None  # the Step's spec with the movement's options applied, when it has any


class DecisionSpec(Wire, frozen=True, kw_only=True):
    """kind: next, graceful_complete, force_complete, force_complete_if_channels_empty, force_fail, dead_end."""

    kind: str
    movements: tuple[MovementSpec, ...] = ()
    output: bytes | None = None  # None: no output; an output of None is the payload of None
    reason: str = ""
    channels: tuple[str, ...] = ()
    fallback: MovementSpec | None = None
    canceling: tuple[str, ...] = ()
    canceling_siblings: tuple[str, ...] = ()


class Writes(Wire, frozen=True, kw_only=True):
    """What a handler staged, in the order of its calls within each kind."""

    attributes: dict[str, bytes | None] = {}  # None: delete
    deletions: tuple[tuple[str, str], ...] = ()  # channel, message id
    publications: tuple[tuple[str, str, bytes], ...] = ()  # channel, message id, value
    events: tuple[tuple[str, bytes], ...] = ()  # record_event
    locals: dict[str, bytes] = {}


class WaitForSucceeded(Wire, frozen=True, tag="wait", kw_only=True):
    wait: WaitSpec
    writes: Writes = Writes()
    blobs: dict[str, bytes] = {}


class ExecuteSucceeded(Wire, frozen=True, tag="decision", kw_only=True):
    decision: DecisionSpec
    writes: Writes = Writes()
    blobs: dict[str, bytes] = {}


class RpcSucceeded(Wire, frozen=True, tag="rpc", kw_only=True):
    """What an RPC handler returned: its output (None: a procedure), Steps to start and types of Steps to cancel."""

    output: bytes | None = None
    writes: Writes = Writes()
    movements: tuple[MovementSpec, ...] = ()
    canceling: tuple[str, ...] = ()
    blobs: dict[str, bytes] = {}


class AttemptFailed(Wire, frozen=True, tag="failed", kw_only=True):
    """Why an attempt failed. error_type is the qualified class name of the user's exception, or one of ours."""

    error_type: str
    detail: str
    trace: str = ""
    kind: str = "HANDLER_ERROR"
    retry_after: float | None = None
    retryable: bool = True
    worker: str = ""
    heartbeat: Heartbeat | None = None  # the last one, flushed on failure
    may_have_run: bool = True  # False: it certainly never reached a worker, and can't be tried again as it is


class AttemptReturned(Wire, frozen=True, tag="returned", kw_only=True):
    """The attempt certainly did not run: the same number is handed out again. reason is shown by describe."""

    reason: str


class Heartbeat(Wire, frozen=True):
    """has_value False: the checkpoint is cleared. An implicit heartbeat (a Stream message) is None on the wire of
    frames."""

    has_value: bool
    value: bytes | None = None


AttemptResult = WaitForSucceeded | ExecuteSucceeded | RpcSucceeded | AttemptFailed | AttemptReturned

HANDLER_ERROR = "HANDLER_ERROR"
METHOD_TIMEOUT = "METHOD_TIMEOUT"
HEARTBEAT_TIMEOUT = "HEARTBEAT_TIMEOUT"
STARTED_ATTEMPT_INTERRUPTED = "STARTED_ATTEMPT_INTERRUPTED"
WORKER_CRASHED = "WORKER_CRASHED"
INVALID_RESULT = "INVALID_RESULT"
VALUES_LOST = "VALUES_LOST"


def interrupted(detail: str) -> AttemptFailed:
    """The failure of an attempt whose owner ended, and of which nobody will hear any more."""
    return AttemptFailed(error_type=STARTED_ATTEMPT_INTERRUPTED, detail=detail, kind=STARTED_ATTEMPT_INTERRUPTED)
