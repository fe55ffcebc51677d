"""What a journal promises, whatever database is behind it.

The journal is a dumb, durable, fenced log: bodies are opaque bytes. All methods block and are called from the
owner's journal thread; one object serves one owner. Any method may raise `JournalUnavailable`: the database
is away, and for `append` the outcome is unknown until `read_back` tells.

Rules
- An append is the next record of one run. Within a call and over calls, appends of one run carry consecutive
  sequence numbers from 1.
- A record is refused (FENCED) when the run's epoch in the database is not the record's; nothing of a refused
  record is stored, and the other runs' records of the same call are not affected.
- A record is refused (FENCED) as well when it answers a request that an earlier record has answered: what it
  does was done before.
- A record that starts a run is refused (CONFLICT) when its Flow ID has a current run other than the one it
  says it replaces, when that one is still open, or when the run whose blobs it refers to is not there any more.
- Every record is refused (FENCED), and every claim (`Outlived`), of a journal object whose owner has begun a later
  life elsewhere. Epochs keep each run's history single; this keeps a process that was given up, and wakes up, from
  going on with runs that its heir has not touched yet.
- A run that is removed is gone for every reader at once. A blob is there as long as a run refers to it, and for a
  removed run until it is cleared away: whoever writes a record that needs a blob finds it there, or puts it there.
- What `append` reported as DURABLE survives the loss of the machine (SQLite: WAL with synchronous=FULL).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

from dexray.search import Condition


class JournalUnavailable(Exception):
    """The database can't be reached or refuses service for now; the cause is chained. Retry later."""


class JournalRefused(Exception):
    """The database can't be used as it is: an unknown schema version, a read-only file, no permission. Says
    what to do.
    """


class Outlived(Exception):
    """A later life of this owner has begun: whoever gets this is not the owner any more, of any run."""


class Outcome(Enum):
    DURABLE = "DURABLE"
    FENCED = "FENCED"
    CONFLICT = "CONFLICT"


@dataclass(frozen=True, slots=True)
class NewRun:
    """The run row that a start record creates. `replaces` is the run of the same Flow ID that was current until
    now ("" for none).
    """

    flow_id: str
    flow_type: str
    owner: str
    request_id: str
    started_at: float
    replaces: str = ""
    blobs_of: str = ""  # a run whose blobs the new one refers to as well from now on
    parent: str | None = None  # of a SubFlow: the Flow ID of its parent


@dataclass(frozen=True, slots=True)
class RunChange:
    """Changes of a run's row that ride with a record; None leaves a column as it is.

    `next_wake` is when the owner must look at the run again without being told: 0 while it has work under
    way, a time (seconds since the epoch) while it only waits with a Timer, and `NEVER` while it waits for
    messages alone. A new owner loads runs by it.
    """

    status: str | None = None
    closed_at: float | None = None
    next_wake: float | None = None


NEVER = 253402300800.0  # the year 10000


@dataclass(frozen=True, slots=True)
class RequestAnswer:
    """The recorded answer of a write request, kept beside the record that it caused; scoped to its Flow ID."""

    flow_id: str
    request_id: str
    answer: bytes


@dataclass(frozen=True, slots=True)
class IndexEntry:
    """One thing by which a search finds a run. `word`, `whole` and `real` hold the value, as its IndexType says; an
    entry without any says that the key has a value. `shown` is the value as JSON text, where the entry does not say it.
    """

    key: str
    type: str  # an IndexType name
    word: str | None = None
    whole: int | None = None
    real: float | None = None
    shown: str | None = None


@dataclass(frozen=True, slots=True)
class StoreMark:
    """The row of this Flow ID in an Attribute store is behind, and `image` is what it is to become. A later mark of the
    row takes this one's place.
    """

    store: str
    flow_id: str
    image: bytes


@dataclass(frozen=True, slots=True)
class StoredMark:
    """A mark with the record that made it. `marked_at` is when the row fell behind, also after later marks."""

    store: str
    flow_id: str
    run_id: str
    seq: int
    marked_at: float
    image: bytes


@dataclass(frozen=True, slots=True)
class Append:
    run_id: str
    epoch: int
    seq: int
    at: float
    body: bytes
    new_run: NewRun | None = None
    change: RunChange | None = None
    requests: tuple[RequestAnswer, ...] = ()
    blobs: Mapping[str, bytes] = field(default_factory=dict)
    checkpoint: bytes | None = None  # the state after this record
    # By source (an Attribute): the entries that it has from this record on, instead of those that it had.
    index: Mapping[str, tuple[IndexEntry, ...]] = field(default_factory=dict)
    marks: tuple[StoreMark, ...] = ()


@dataclass(frozen=True, slots=True)
class RunRow:
    run_id: str
    flow_id: str
    flow_type: str
    status: str
    owner: str
    epoch: int
    request_id: str
    started_at: float
    closed_at: float | None
    next_wake: float
    is_current: bool


@dataclass(frozen=True, slots=True)
class FoundRun:
    """A run that a search found, with the first entry of each source, which says what its value is."""

    row: RunRow
    entries: tuple[IndexEntry, ...]


@dataclass(frozen=True, slots=True)
class Record:
    seq: int
    at: float
    body: bytes


@dataclass(frozen=True, slots=True)
class LoadedRun:
    """A run as the database has it: the newest checkpoint with its sequence number, and the records after it."""

    row: RunRow
    checkpoint: bytes | None
    checkpoint_seq: int
    tail: tuple[Record, ...]


@dataclass(frozen=True, slots=True)
class StoredDeployment:
    deployment_id: str
    deployed_at: float
    spec: bytes
    code: bytes


@dataclass(frozen=True, slots=True)
class Lease:
    """Which cluster works on this database. `holder` describes a process so that its death can be told on the
    same host.
    """

    name: str
    holder: str
    expires_at: float


@dataclass(frozen=True, slots=True)
class NewMessage:
    """A message for a Stream that keeps about `capacity` bytes of payloads."""

    flow_id: str
    stream: str
    created_at: float
    source: str
    payload: bytes
    capacity: int


@dataclass(frozen=True, slots=True)
class StoredMessage:
    """`seq` counts the messages of a Stream from 1 and never goes back."""

    seq: int
    created_at: float
    source: str
    payload: bytes


class Journal(Protocol):
    def migrate(self) -> None:
        """Creates or upgrades the schema, safely against other processes doing the same."""

    def append(self, batch: Sequence[Append]) -> list[Outcome]:
        """Writes a batch in one transaction: one outcome per append, in order."""

    def read_back(self, batch: Sequence[Append]) -> list[Outcome | None]:
        """After a JournalUnavailable from `append`: DURABLE for records that are there, None for those that
        are not, FENCED or CONFLICT where they can't get there any more."""

    def begin_life(self, owner: str) -> None:
        """From now on this object speaks for the newest life of `owner`, and an object that spoke for it before is
        outlived: its appends are FENCED, its claims raise `Outlived`. One that never began a life is not judged by
        it."""

    def claim(self, run_ids: Sequence[str], owner: str) -> dict[str, int]:
        """Raises the epoch of each run that `owner` owns; returns the new epochs. Runs of other owners are left out.
        Raises `Outlived`, and no epoch, when a later life of the owner has begun."""

    def reassign(self, from_owner: str, to_owner: str, limit: int) -> list[str]:
        """Moves up to `limit` open runs (current and not closed) of one owner to another, raising their epochs;
        returns Flow IDs.
        """

    def move(self, run_id: str, from_owner: str, to_owner: str) -> bool:
        """Moves one run, open or closed, from one owner to another, raising its epoch. False: it was not that owner's
        any more."""
        ...

    def current_run(self, flow_id: str) -> RunRow | None: ...

    def current_runs(self, flow_ids: Iterable[str]) -> list[RunRow]:
        """The current runs of those Flow IDs that have one."""

    def find_run(self, run_id: str) -> RunRow | None: ...

    def load(self, run_id: str) -> LoadedRun | None: ...

    def load_all(self, run_ids: Iterable[str]) -> dict[str, LoadedRun]:
        """Those that there are, by run id, as `load` has them. All at once: it is up to the caller how many."""

    def records(self, run_id: str, after_seq: int, limit: int) -> list[Record]:
        """Records for history, oldest first; none of a run that was removed."""

    def open_runs(self, owner: str, after_run_id: str, limit: int, due_by: float = NEVER) -> list[RunRow]:
        """Open runs of an owner in the order of run_id, a page at a time; those whose next wake is not after
        `due_by`."""

    def owners_of_open_runs(self) -> dict[str, int]:
        """How many open runs each owner has."""

    def list_runs(
        self, *, status: str = "", flow_type: str = "", page_size: int = 100, page_token: str = ""
    ) -> tuple[list[RunRow], str]:
        """Current runs, newest start first, paging stable under writes; the token "" ends."""

    def search_runs(
        self, condition: Condition, *, latest_only: bool, page_size: int = 100, page_token: str = ""
    ) -> tuple[list[FoundRun], str]:
        """Runs that satisfy a condition, otherwise like `list_runs`. latest_only: no run that another has replaced."""

    def count_runs(self, condition: Condition, *, latest_only: bool) -> int: ...

    def index_types(self, keys: Iterable[str]) -> dict[str, tuple[str, ...]]:
        """The IndexTypes that entries have under these keys; a key without entries is left out."""

    def recorded_answer(self, flow_id: str, request_id: str) -> bytes | None: ...

    def find_marks(self, store: str, flow_ids: Iterable[str]) -> list[StoredMark]:
        """The marks that rows of an Attribute store have at this moment."""

    def list_marks(self, store: str, after_flow_id: str, limit: int) -> list[tuple[str, float]]:
        """Flow IDs whose rows in a store are behind, with the time since when; in order, a page at a time."""

    def clear_marks(self, marks: Sequence[StoredMark]) -> None:
        """The rows are what these marks say. One that a later mark has taken the place of stays."""

    def put_blobs(self, run_id: str, blobs: Mapping[str, bytes]) -> None: ...

    def get_blobs(self, hashes: Iterable[str]) -> dict[str, bytes]:
        """Those that there are, whole and undamaged."""

    def about_blobs(self, hashes: Iterable[str]) -> str:
        """Why `get_blobs` left these out just now, in words."""

    def delete_orphans(self) -> int:
        """Deletes what crashed writers have left in the blob store, when it is old; how many objects."""

    def put_deployment(self, deployment: StoredDeployment, flow_types: Sequence[str]) -> None:
        """Stores code by content (once) and makes it the newest deployment of these Flow types."""

    def newest_deployments(self) -> dict[str, str]:
        """Flow type -> deployment id."""

    def get_deployment(self, deployment_id: str) -> StoredDeployment | None: ...

    def acquire_lease(self, name: str, holder: str, expires_at: float, now: float, take_from: str = "") -> Lease:
        """Takes or renews a lease when it is free, expired, held by `holder`, or held by `take_from`; returns
        the lease as it then is.
        """

    def find_lease(self, name: str) -> Lease | None:
        """The lease as it is, expired or not."""

    def release_lease(self, name: str, holder: str) -> None: ...

    def runs_of(self, flow_id: str) -> list[RunRow]:
        """All runs of a Flow ID, newest start first."""

    def closed_runs(self, before: float, after: tuple[float, str], limit: int) -> list[RunRow]:
        """Runs that were closed before a time, in the order of (closed_at, run_id), from behind `after` on."""

    def remove_run(self, run_id: str) -> bool:
        """Removes a closed run: it is gone for every reader at once, with its answers to requests. The newest run that
        its Flow ID still has is the current one then; with the last one the Flow ID's Streams go as well. False when
        there is no such run, or it is open."""

    def clear_removed(self, limit: int) -> bool:
        """Deletes up to `limit` records (and such) of runs that were removed. False when nothing was left to delete."""

    def free_blobs(self, after: str, limit: int) -> tuple[int, str]:
        """Deletes blobs that no run refers to, among those with the next `limit` hashes behind `after`. Returns how
        many they were, and the hash to go on from: "" at the end."""

    def append_messages(self, batch: Sequence[NewMessage]) -> None:
        """Appends messages to their Streams, in order, and trims these, oldest first. Fenced by nothing."""

    def read_messages(
        self, flow_id: str, stream: str, after_seq: int, limit: int, max_bytes: int = 1 << 20
    ) -> list[StoredMessage]:
        """Messages of a Stream, oldest first: at most `limit`, and at most `max_bytes` of payloads, but at least one
        where there is one. An `after_seq` beyond the last message is taken for 0."""

    def list_messages(self, flow_id: str, stream: str, before_seq: int, limit: int) -> list[StoredMessage]:
        """Messages of a Stream, newest first; a `before_seq` of 0 begins with the newest."""

    def close(self) -> None: ...
