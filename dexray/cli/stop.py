"""`dexray stop`: ends an engine in order."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated

import typer

from dexray.cli.options import Address, Database, Debug, Json, Namespace, Place
from dexray.cli.terminal import command


def stop(
    drain: Annotated[
        float | None,
        typer.Option("--drain", metavar="SECONDS", min=0.0, help="For attempts that run. [default: drain_seconds]"),
    ] = None,
    database: Database = None,
    address: Address = None,
    namespace: Namespace = None,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """End the engine of a database in order. Its Flows go on with the next one."""
    with command(json=json, debug=debug) as terminal:
        import dexray

        patience = None if drain is None else timedelta(seconds=drain)
        stopped = dexray.stop(**Place(database, address, namespace).arguments(), drain=patience)
        data = {
            "stopped": bool(stopped.engine),
            "engine": stopped.engine,
            "database": stopped.database,
            "namespace": stopped.namespace,
            "interrupted": stopped.interrupted,
        }
        if not stopped.engine:
            text = f"no engine works on {stopped.database}"
        elif stopped.interrupted:
            text = f"stopped {stopped.engine}: {stopped.interrupted} attempts were interrupted and will be tried again"
        else:
            text = f"stopped {stopped.engine}: no attempt was interrupted"
        terminal.result(data, text)
