"""dexray: durable Flows on a Ray cluster.

`connect` deploys Flows and returns a Client. What Flows are made of is in the package `dex`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dexray.settings import Settings, SettingsError

if TYPE_CHECKING:
    from dexray.cluster.connect import connect, connect_async, default_service, keep_ray, open_service
    from dexray.cluster.stopping import Stopped, stop

__version__ = "0.1.0"
__all__ = [
    "Settings",
    "SettingsError",
    "Stopped",
    "connect",
    "connect_async",
    "default_service",
    "keep_ray",
    "open_service",
    "stop",
]


def __getattr__(name: str) -> Any:
    # Ray takes a second to import: only those who connect pay for it.
    if name in ("connect", "connect_async", "default_service", "keep_ray", "open_service"):
        from dexray.cluster import connect as module

        return getattr(module, name)
    if name in ("Stopped", "stop"):
        from dexray.cluster import stopping

        return getattr(stopping, name)
    raise AttributeError(f"module 'dexray' has no attribute {name!r}")
