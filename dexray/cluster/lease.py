"""One engine for one database: the lease.

The Directory holds the lease and renews it. Another engine that is pointed at the same database is refused while the
lease is alive, and takes over when it has expired, or at once when the holder can be seen to be dead (same machine, and
its process is gone). Correctness does not rest on the lease: the journal's epochs fence every append. The lease is for
people: two notebooks on one file get an error that says so, instead of stealing each other's Flows. It tells where the
engine is, too, so that the second notebook can join it.
"""

from __future__ import annotations

import logging
import os
import socket
import time
from dataclasses import dataclass
from pathlib import Path

import msgspec
from msgspec import Struct

from dexray.cluster.ray_session import answers
from dexray.journal import Journal, JournalRefused, JournalUnavailable, Lease, open_journal
from dexray.settings import masked

logger = logging.getLogger("dexray.cluster.lease")

LEASE = "engine"


class Holder(Struct, frozen=True, kw_only=True):
    """A process, so described that its death can be told from the same machine.

    `cluster` is the same for an engine's later Directories. `space` is the kernel's id of the processes that it can
    see: in another container on the same machine a pid means another process. `address` and `namespace` lead to the
    engine: Ray's address, and the namespace in it.
    """

    cluster: str
    host: str
    boot: str
    pid: int
    began: str
    space: str = ""
    address: str = ""
    namespace: str = ""


def this_process(cluster: str, *, address: str = "", namespace: str = "") -> str:
    holder = Holder(
        cluster=cluster,
        host=socket.gethostname(),
        boot=_boot_id(),
        pid=os.getpid(),
        began=_began(os.getpid()),
        space=_pid_space(),
        address=address,
        namespace=namespace,
    )
    return msgspec.json.encode(holder).decode()


def _boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def _pid_space() -> str:
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""


def _began(pid: int) -> str:
    """When a process began, in the kernel's own count: a pid that was used again has another one. "" when there is no
    such process.
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return ""
    fields = stat.rpartition(")")[2].split()
    return "" if fields[0] in ("Z", "X") else fields[19]


def _is_visible(holder: Holder) -> bool:
    """Whether this process can see if the holder lives."""
    here = (socket.gethostname(), _boot_id(), _pid_space())
    return bool(here[1]) and here == (holder.host, holder.boot, holder.space)


def may_take_over(current: Lease, me: str) -> bool:
    """The holder is a former life of ours, or is dead for sure."""
    holder = _holder_of(current)
    if holder is None:
        return False
    if holder.cluster == msgspec.json.decode(me, type=Holder).cluster:
        return True
    return _is_visible(holder) and _began(holder.pid) != holder.began


def held_by_another(journal: Journal, cluster: str, now: float) -> Lease | None:
    """The lease of the database, if another cluster's engine has it now."""
    lease = journal.find_lease(LEASE)
    if lease is None or lease.expires_at <= now:
        return None
    holder = _holder_of(lease)
    return lease if holder is None or holder.cluster != cluster else None


def is_alive(lease: Lease) -> bool:
    """The holder's process can be seen, and lives: waiting for the lease to expire is in vain."""
    holder = _holder_of(lease)
    return holder is not None and _is_visible(holder) and holder.began != "" and _began(holder.pid) == holder.began


def acquire(journal: Journal, me: str, *, seconds: float, now: float) -> Lease:
    """Takes or renews the lease if that is right; the lease as it then is tells who has it."""
    lease = journal.acquire_lease(LEASE, me, now + seconds, now)
    if lease.holder != me and may_take_over(lease, me):
        lease = journal.acquire_lease(LEASE, me, now + seconds, now, take_from=lease.holder)
    return lease


def refusal(database: str, lease: Lease) -> str:
    """Why another engine can't have the database, and what to do."""
    return (
        f"the database {masked(database)} is in use by {describe(lease)}: connect without an address to join it, or "
        "with its address and namespace, or end it; or give another database"
    )


def describe(lease: Lease) -> str:
    holder = _holder_of(lease)
    if holder is None:
        return lease.holder
    return (
        f"an engine on {holder.host} (process {holder.pid}, Ray at {holder.address or 'an unknown address'}, "
        f"namespace {holder.namespace!r})"
    )


def namespace_of(lease: Lease) -> str:
    """The Ray namespace of the engine that has it; "" when that is not known."""
    holder = _holder_of(lease)
    return holder.namespace if holder is not None else ""


@dataclass(frozen=True, slots=True)
class LivingEngine:
    """The engine that has the lease of a database, and the address of its Ray."""

    address: str
    lease: Lease


def living_engine(journal: Journal, now: float) -> LivingEngine | None:
    """The engine that works on this database, when it is on this machine and alive."""
    lease = journal.find_lease(LEASE)
    holder = _holder_of(lease) if lease is not None else None
    if lease is None or holder is None or lease.expires_at <= now or not is_alive(lease):
        return None
    # A Directory may outlive its killed cluster by a moment.
    return LivingEngine(holder.address, lease) if answers(holder.address) else None


def find_engine(database: str) -> LivingEngine | None:
    """As `living_engine`, for a database that may not be there yet. Does not make it, and never raises for it."""
    if "://" not in database and not Path(database).exists():
        return None
    try:
        journal = open_journal(database, patience=2.0)
        try:
            return living_engine(journal, time.time())
        finally:
            journal.close()
    except (JournalRefused, JournalUnavailable) as error:
        logger.debug("no lease could be read from %s: %s", database, error)
    except Exception as error:  # tables that are not made yet: whoever makes them will say what is wrong
        logger.debug("no lease could be read: %s", error)
    return None


def _holder_of(lease: Lease) -> Holder | None:
    try:
        return msgspec.json.decode(lease.holder, type=Holder)
    except msgspec.MsgspecError:
        return None
