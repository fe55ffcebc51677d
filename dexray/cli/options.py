"""The options that many commands share, and the place that they name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import typer

Json = Annotated[bool, typer.Option("--json", help="Write the result as JSON to stdout, errors as JSON to stderr.")]
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]
Database = Annotated[
    str | None, typer.Option("--database", metavar="URL", help="Database URL or path. [default: SQLite in ~/.dexray]")
]
Address = Annotated[
    str | None,
    typer.Option("--address", metavar="ADDRESS", help="Ray cluster. [default: the running one, else an embedded one]"),
]
Namespace = Annotated[
    str | None, typer.Option("--namespace", metavar="NAME", help="Ray namespace of the engine. [default: dexray]")
]
FlowId = Annotated[str, typer.Argument(metavar="FLOW_ID", help="The id of the Flow.")]


@dataclass(frozen=True, slots=True)
class Place:
    """Which engine a command speaks to, as far as its options say; the settings fill in the rest."""

    database: str | None = None
    address: str | None = None
    namespace: str | None = None

    def arguments(self) -> dict[str, Any]:
        return {"database": self.database, "address": self.address, "namespace": self.namespace}
