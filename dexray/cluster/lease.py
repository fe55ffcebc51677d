"""One engine for one database: the lease.

The Directory holds the lease and renews it. Another engine that is pointed at the same database is refused while the lease is alive, and takes over
when it has expired, or at once when the holder can be seen to be dead (same machine, and its process is gone). Correctness does not rest on the lease: the
journal's epochs fence every append. The lease is for people: two notebooks on one file get an error that says so, instead of stealing each other's Flows.
"""

from __future__ import annotations

import os
import socket
from pathlib import Path

import msgspec
from msgspec import Struct

from dexray.journal.interface import Journal, Lease

LEASE = "engine"


class Holder(Struct, frozen=True, kw_only=True):
    """A process, so described that its death can be told from the same machine. `cluster` is the same for an engine's later Directories."""

    cluster: str
    host: str
    boot: str
    pid: int
    began: str


def this_process(cluster: str) -> str:
    holder = Holder(
        cluster=cluster, host=socket.gethostname(), boot=_boot_id(), pid=os.getpid(), began=_began(os.getpid())
    )
    return msgspec.json.encode(holder).decode()


def _boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def _began(pid: int) -> str:
    """When a process began, in the kernel's own count: a pid that was used again has another one. "" when there is no such process."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return ""
    fields = stat.rpartition(")")[2].split()
    return "" if fields[0] in ("Z", "X") else fields[19]


def may_take_over(current: Lease, me: str) -> bool:
    """The holder is a former life of ours, or is dead for sure."""
    try:
        holder = msgspec.json.decode(current.holder, type=Holder)
    except msgspec.MsgspecError:
        return False
    mine = msgspec.json.decode(me, type=Holder)
    if holder.cluster == mine.cluster:
        return True
    if (holder.host, holder.boot) != (mine.host, mine.boot) or not mine.boot:
        return False
    return _began(holder.pid) != holder.began


def acquire(journal: Journal, me: str, *, seconds: float, now: float) -> Lease:
    """Takes or renews the lease if that is right; the lease as it then is tells who has it."""
    lease = journal.acquire_lease(LEASE, me, now + seconds, now)
    if lease.holder != me and may_take_over(lease, me):
        lease = journal.acquire_lease(LEASE, me, now + seconds, now, take_from=lease.holder)
    return lease


def describe(lease: Lease) -> str:
    try:
        holder = msgspec.json.decode(lease.holder, type=Holder)
    except msgspec.MsgspecError:
        return lease.holder
    return f"an engine on {holder.host} (process {holder.pid})"
