"""`dexray config` and `dexray version`: what needs no engine."""

from __future__ import annotations

import platform
from importlib import metadata

from dexray import __version__
from dexray.cli.options import Address, Database, Debug, Json, Namespace, Place
from dexray.cli.readable import compact
from dexray.cli.terminal import command
from dexray.settings import resolve, shown


def config(
    database: Database = None,
    address: Address = None,
    namespace: Namespace = None,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Show every setting, its value and where that comes from.

    An option of the command wins over a DEXRAY_* variable, that over [tool.dexray] in pyproject.toml, and that over
    the default.
    """
    with command(json=json, debug=debug) as terminal:
        _, sourced = resolve(Place(database, address, namespace).arguments())
        table = terminal.table("setting", "value", "source", "meaning")
        data = []
        for setting in sourced:
            value = shown(setting.value)
            table.add_row(
                setting.name,
                compact(value, 400) if isinstance(value, dict | list) else str(value),
                setting.source,
                setting.doc,
            )
            data.append({"name": setting.name, "value": value, "source": setting.source, "meaning": setting.doc})
        terminal.result({"settings": data}, table)


def version(json: Json = False, debug: Debug = False) -> None:
    """Show the versions of dexray, Python and Ray."""
    with command(json=json, debug=debug) as terminal:
        try:
            ray = metadata.version("ray")
        except metadata.PackageNotFoundError:
            ray = "not installed"
        data = {"dexray": __version__, "python": platform.python_version(), "ray": ray}
        terminal.result(data, f"dexray {__version__} (Python {data['python']}, Ray {ray})")
