"""Attribute locks: all of a method's locks are taken together when its attempt is handed out, or none.

A Step that finds one taken is set aside (`Indexes.blocked`) and tries again when any lock is released. Locks are held
while an attempt is out or has returned unrun; they are released when it succeeds, fails, or is cancelled. Waiting for
a lock counts toward no timeout.

An RPC takes all of its locks too, or none, but it never waits: a lock that is held refuses the call. What it holds is
not part of the state, because an RPC that is under way ends with its owner.
"""

from __future__ import annotations

from collections.abc import Iterable

from dexray.machine.state import Flow


def is_free(flow: Flow, names: Iterable[str]) -> bool:
    return taken(flow, names) is None


def taken(flow: Flow, names: Iterable[str]) -> str | None:
    """The first of these locks that somebody holds, or None."""
    index = flow.index
    return next((name for name in names if name in index.locks or name in index.rpc_locks), None)


def holder_of(flow: Flow, name: str) -> str:
    """The Step execution or the RPC that holds a lock; "" when nobody does."""
    return flow.index.locks.get(name) or flow.index.rpc_locks.get(name, "")


def take_for_rpc(flow: Flow, names: Iterable[str], holder: str) -> None:
    """The locks of an RPC, which are all free."""
    for name in names:
        assert name not in flow.index.locks
        assert name not in flow.index.rpc_locks
        flow.index.rpc_locks[name] = holder


def release_of_rpc(flow: Flow, names: Iterable[str], holder: str) -> None:
    """Gives back what `holder` has of these locks. Steps that they blocked may try again."""
    rpc_locks = flow.index.rpc_locks
    for name in names:
        if rpc_locks.get(name) == holder:
            del rpc_locks[name]
    flow.unblock()
