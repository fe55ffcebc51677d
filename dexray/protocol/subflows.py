"""SubFlows between those who ask for them, those who start them, and those who read how they ended.

A child belongs to a Step execution of its parent and to its place among the SubFlow conditions of the wait. Both its
Flow ID and the request id of its start follow from these, so that whoever owns the parent, and however often, asks for
one and the same child.
"""

from __future__ import annotations

from msgspec import Struct

from dex.wire.service import Completion, FlowConfigSpec
from dex.wire.specs import TimeoutHandlerSpec

RUNNING = "RUNNING"


class SubFlowSpec(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is to be started, as the client's `StartFlow` has it. reuse_policy: the name of a SubFlowReusePolicy."""

    flow_type: str
    input: bytes
    reuse_policy: str
    timeout: float = 0.0  # seconds, 0: none
    timeout_policy: str = ""  # "", FAIL, CANCEL or HANDLER
    timeout_handler: TimeoutHandlerSpec | None = None
    config: FlowConfigSpec = FlowConfigSpec()
    attributes: dict[str, bytes] = {}  # physical names


class SubFlowResult(Struct, frozen=True, array_like=True, omit_defaults=True):
    """How a child ended. status: a terminal FlowStatus name."""

    status: str
    run_id: str = ""
    completions: tuple[Completion, ...] = ()
    error_type: str = ""
    error_message: str = ""


def subflow_id(parent_flow_id: str, step_execution_id: str, number: int) -> str:
    """The Flow ID of the `number`-th SubFlow of a wait, counted from 0 in order of declaration.

    >>> subflow_id("order-7", "Ship-1", 0)
    'SubFlow:order-7-Ship-1-0'
    """
    return f"SubFlow:{parent_flow_id}-{step_execution_id}-{number}"


def start_request_id(parent_run_id: str, step_execution_id: str, number: int) -> str:
    """The request id of a child's start. Another run of the parent asks anew: then the reuse policy decides."""
    return f"subflow:{parent_run_id}/{step_execution_id}/{number}"


def parent_of(request_id: str) -> tuple[str, str] | None:
    """The run and the Step execution of the parent that a start request id names; None when it names none.

    >>> parent_of(start_request_id("run-1", "Ship-1", 0))
    ('run-1', 'Ship-1')
    """
    kind, _, place = request_id.partition(":")
    run_id, _, rest = place.partition("/")
    step, _, _ = rest.rpartition("/")
    return (run_id, step) if kind == "subflow" and run_id and step else None
