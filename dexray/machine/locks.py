"""Attribute locks: all of a method's locks are taken together when its attempt is handed out, or none.

A Step that finds one taken is set aside (`Indexes.blocked`) and tries again when any lock is released. Locks are held while an attempt is
out or has returned unrun; they are released when it succeeds, fails, or is cancelled. Waiting for a lock counts toward no timeout.
"""

from __future__ import annotations

from collections.abc import Iterable

from dexray.machine.state import Flow


def is_free(flow: Flow, names: Iterable[str]) -> bool:
    return not any(name in flow.index.locks for name in names)
