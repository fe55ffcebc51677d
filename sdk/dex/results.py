"""What clients are told of Flows: their state, their results, and pages of a search.

Outputs are decoded when they are asked for, by the type that the caller expects: who reads a result need not have the
  Flow's code.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum
from typing import TYPE_CHECKING, TypeVar

from dex.values import CodecRegistry, Value, attach

if TYPE_CHECKING:
    from dex.wire.service import FlowOutcome

T = TypeVar("T")


class FlowStatus(Enum):
    """Where a run is: RUNNING until it is COMPLETED, FAILED, CANCELED or TERMINATED. Runs have no other status here;
    the rest of the names are there for code that names them.
    """

    RUNNING = "RUNNING"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    CANCELED = "CANCELED"
    TERMINATED = "TERMINATED"
    SERVER_SIDE_TIMEOUT_INTERNAL_ONLY = "SERVER_SIDE_TIMEOUT_INTERNAL_ONLY"
    CONTINUED_AS_NEW = "CONTINUED_AS_NEW"

    @property
    def is_terminal(self) -> bool:
        """Whether a run of this status has ended."""
        return self not in (FlowStatus.RUNNING, FlowStatus.CONTINUED_AS_NEW)


class FlowErrorType(Enum):
    """Why a Flow failed.

    STEP_DECISION_FAILED: a Step returned force_fail. WORKER_API_FAILED: a method failed for good, and no route led on.
    FLOW_TIMEOUT: its time was over. CLIENT_API_FAILED: a client stopped it so. INVALID_USER_FLOW_CODE: its code can't
    be used. INTERNAL: an error of the engine.
    """

    STEP_DECISION_FAILED = "STEP_DECISION_FAILED"
    CLIENT_API_FAILED = "CLIENT_API_FAILED"
    WORKER_API_FAILED = "WORKER_API_FAILED"
    INVALID_USER_FLOW_CODE = "INVALID_USER_FLOW_CODE"
    INTERNAL = "INTERNAL"
    FLOW_TIMEOUT = "FLOW_TIMEOUT"


@dataclass(frozen=True, slots=True)
class FlowInfo:
    """The latest run of a Flow. started_at is UTC."""

    flow_id: str
    run_id: str
    flow_type: str
    status: FlowStatus
    started_at: datetime


@dataclass(frozen=True, slots=True, eq=False)
class StepCompletion:
    """A Step execution that completed the Flow, gracefully or by force, with its output if it had one."""

    step_type: str
    step_execution_id: str
    payload: bytes | None = field(default=None, repr=False)
    codecs: CodecRegistry = field(default_factory=CodecRegistry, repr=False)

    @property
    def has_output(self) -> bool:
        """Whether `decode` has something to give; None is an output too."""
        return self.payload is not None

    def decode(self, value_type: type[T]) -> T:
        """The output. Raises ValueError without one, ValueMappingError when it has another type."""
        if self.payload is None:
            raise ValueError(f"Step execution {self.step_execution_id} completed without an output")
        value: T = self.codecs.decode(self.payload, value_type, where=f"output of {self.step_execution_id}")
        return value


@dataclass(frozen=True, slots=True, eq=False)
class FlowResult:
    """How a run ended, or a snapshot of one that has not: status, outputs in the order of their completion, and why
    it failed.
    """

    status: FlowStatus
    completions: tuple[StepCompletion, ...] = ()
    error_type: FlowErrorType | None = None
    error_message: str = ""

    @property
    def is_terminal(self) -> bool:
        """Whether the run has ended."""
        return self.status.is_terminal

    def single_output(self, value_type: type[T]) -> T:
        """The one output of the Flow.

        Raises ValueError when the run has not ended or has not exactly one output, ValueMappingError when it has
        another type.
        """
        if not self.is_terminal:
            raise ValueError(f"the Flow has no output yet: it is {self.status.name}")
        outputs = [completion for completion in self.completions if completion.has_output]
        if len(outputs) != 1:
            why = f" ({self.error_type.name}: {self.error_message})" if self.error_type is not None else ""
            raise ValueError(
                f"the Flow is {self.status.name}{why} with {len(outputs)} outputs, not one: read completions instead"
            )
        return outputs[0].decode(value_type)


def flow_result_of(outcome: FlowOutcome, codecs: CodecRegistry) -> FlowResult:
    """The result that a service's answer stands for. An error type that this version does not know is INTERNAL."""
    return FlowResult(
        status=FlowStatus[outcome.status],
        completions=tuple(
            StepCompletion(
                completion.step_type,
                completion.step_execution_id,
                None if completion.output is None else attach(completion.output, outcome.blobs),
                codecs,
            )
            for completion in outcome.completions
        ),
        error_type=FlowErrorType.__members__.get(outcome.error_type, FlowErrorType.INTERNAL)
        if outcome.error_type
        else None,
        error_message=outcome.error_message,
    )


@dataclass(frozen=True, slots=True)
class SearchFlowEntry:
    """One run found by a search. indexed_attributes: values by index key."""

    flow_id: str
    run_id: str
    flow_type: str
    status: FlowStatus
    started_at: datetime
    closed_at: datetime | None
    indexed_attributes: Mapping[str, Value]


@dataclass(frozen=True, slots=True)
class SearchFlowsPage:
    """Runs found; next_page_token "" is the end."""

    flows: tuple[SearchFlowEntry, ...]
    next_page_token: str


@dataclass(frozen=True, slots=True)
class HealthInfo:
    """How a service is: a word for its condition, its host, and how long the question took in seconds."""

    condition: str
    hostname: str
    duration_seconds: float


__all__ = [
    "FlowErrorType",
    "FlowInfo",
    "FlowResult",
    "FlowStatus",
    "HealthInfo",
    "SearchFlowEntry",
    "SearchFlowsPage",
    "StepCompletion",
    "flow_result_of",
]
