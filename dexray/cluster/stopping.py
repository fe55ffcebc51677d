"""Ending the engine of a database in order, from anywhere: what `dexray stop` does.

Nothing is started for it. The lease in the database tells which engine works there, and where its Ray is; an engine on
another machine is looked for in the Ray that the settings name.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

import ray
from ray.exceptions import RayError

from dex import DexServiceError, StatusCode
from dexray.cluster import lease as leases
from dexray.cluster.connect import ENDING_TIMEOUT
from dexray.cluster.protocol import DIRECTORY
from dexray.cluster.ray_session import session, use_token
from dexray.settings import Settings, masked, resolve


@dataclass(frozen=True, slots=True)
class Stopped:
    """What `stop` found. `engine` describes the engine that has ended; "" when none was running. `interrupted` is the
    number of attempts that did not end within the drain time: the next engine tries them again.
    """

    database: str
    namespace: str
    engine: str = ""
    interrupted: int = 0


def stop(
    *,
    database: str | os.PathLike[str] | None = None,
    address: str | None = None,
    namespace: str | None = None,
    drain: timedelta | None = None,
    **settings: Any,
) -> Stopped:
    """Ends the engine that works on a database, in order: nothing more is handed out, attempts that run may finish,
    what was decided is written. Its Flows go on with the next `connect` to the database.

    Args:
        database, address, namespace, settings: as for `connect`.
        drain: how long attempts that run may take to finish. Default: the setting `drain_seconds`.

    Raises:
        SettingsError: a setting is unknown or can't be used.
        DexServiceError: UNAVAILABLE: the engine is there and did not answer. It may have ended; ask again.
    """
    resolved, _ = resolve({"database": database, "address": address, "namespace": namespace, **settings})
    nothing = Stopped(masked(resolved.database_url), resolved.namespace)
    seconds = resolved.drain_seconds if drain is None else drain.total_seconds()
    found = leases.find_engine(resolved.database_url)
    if found is not None:
        resolved, name = at(resolved, found), leases.describe(found.lease)
        use_token()
    elif (where := resolved.address or os.environ.get("RAY_ADDRESS", "")) not in ("", "local"):
        name = f"an engine at {where}, namespace {resolved.namespace!r}"
    else:
        return nothing
    stay = session.enter(resolved, meanwhile=lambda: None)
    try:
        try:
            directory = ray.get_actor(DIRECTORY, namespace=resolved.namespace)
        except ValueError:
            return nothing
        return Stopped(nothing.database, resolved.namespace, name, _shut_down(directory, seconds))
    finally:
        stay.leave()


def at(settings: Settings, engine: leases.LivingEngine) -> Settings:
    """The settings of whoever joins an engine."""
    return replace(settings, address=engine.address, namespace=leases.namespace_of(engine.lease) or settings.namespace)


def _shut_down(directory: Any, drain: float) -> int:
    try:
        interrupted: Any = ray.get(directory.shutdown.remote(drain), timeout=drain + ENDING_TIMEOUT)
        ray.kill(directory)
    except RayError as error:
        raise DexServiceError(
            StatusCode.UNAVAILABLE, f"the engine does not answer: {error}", operation="stop"
        ) from error
    return int(interrupted or 0)
