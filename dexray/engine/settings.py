"""What an owner can be told, and what it tells of its load."""

from __future__ import annotations

from dataclasses import dataclass

from dex.values import DEFAULT_LIMIT
from dexray.settings import AttributeStore


@dataclass(frozen=True, slots=True, kw_only=True)
class HostSettings:
    """checkpoint_records / checkpoint_bytes: how long a tail may grow before a checkpoint rides with a record.
    idle_flows: how many Flows that only wait are kept in memory. outage_patience: seconds until a call that waits for
    the database fails as UNAVAILABLE. returned_delay: seconds before an attempt that a worker gave back because of its
    code is handed out again. recovery_width: how many Flows are loaded at once. active_flows: how
    many Flows may have Steps under way at the same time (0: no bound); the others wait for their turn. A Flow that
    comes to only wait (for a message, a Timer, a retry or its code) gives its place back. dispatch_wait: seconds within
    which a worker must take an RPC, or it is refused. longest_poll: seconds that one request may wait for something to
    come; the client asks again. hold: requests are answered, and no attempt is handed out. sweep_seconds: how often the
    owner looks in the database for Flows of its own that have work to do and that it does not know of (0: never): a
    former life of it that was believed dead may have started some after it looked first. max_value_bytes: the
    largest value that a handler may give, encoded. retention: seconds for which closed runs are kept, 0 for good.
    removes_runs: this owner is the one that removes runs whose time is over, whoever owns them. attribute_stores:
    the tables that Attributes are synced to; default_attribute_stores: those of Flows whose FlowConfig names none."""

    checkpoint_records: int = 200
    checkpoint_bytes: int = 256 * 1024
    idle_flows: int = 2_000
    outage_patience: float = 10.0
    returned_delay: float = 2.0
    recovery_width: int = 32
    active_flows: int = 0
    dispatch_wait: float = 10.0
    longest_poll: float = 60.0
    hold: bool = False
    sweep_seconds: float = 0.0
    max_value_bytes: int = DEFAULT_LIMIT
    retention: float = 0.0
    removes_runs: bool = False
    attribute_stores: tuple[AttributeStore, ...] = ()
    default_attribute_stores: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class HostLoad:
    """active: Flows with Steps under way; lasting: those of them older than a moment; queued: those that wait for a
    place."""

    active: int
    lasting: int
    queued: int
    in_memory: int
    attempts: int
