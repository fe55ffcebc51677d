"""`dexray demo`: the Critical Section example, on an engine of its own unless a database is named."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from dex import FlowStatus
from dexray.cli import engine
from dexray.cli.options import Address, Database, Debug, Json, Namespace, Place
from dexray.cli.problems import CommandError
from dexray.cli.target import load_module
from dexray.cli.terminal import command
from dexray.cli.watch import wait, watch

_SHIPPED = "dexray.cli.demo_flow"  # in the wheel, the example under another name
_EXAMPLE = Path(__file__).parents[2] / "examples" / "patterns" / "critical_section.py"


def demo(
    database: Database = None,
    address: Address = None,
    namespace: Namespace = None,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Run an example Flow: six reviewers take turns at one contract, and some go wrong on purpose.

    Without --database everything happens in a temporary folder and leaves nothing behind.
    """
    with command(json=json, debug=debug) as terminal, _place(database, address, namespace) as place:
        module = _example()
        terminal.remark("Starting an engine on Ray; the first time this takes some seconds …")
        with engine.connect(module.registry, place) as client:
            flow_id = f"contract-{time.time_ns() // 1_000_000}"
            run_id = client.start_flow(module.contract_edit_flow, flow_id, module.DEMO_EDITS)
            result = (
                wait(client, flow_id, timeout=None) if terminal.json else watch(client, flow_id, terminal, timeout=None)
            )
        if result.status is not FlowStatus.COMPLETED:
            raise CommandError(f"Flow {flow_id!r} is {result.status.name}: {result.error_message}")
        records = sorted(
            result.single_output(list[module.ContractEditRecord]),  # type: ignore[name-defined]
            key=lambda record: (record.started_at_millis, record.finished_at_millis),
        )
        table = terminal.table("reviewer", "outcome", "began", "took")
        for record in records:
            began, took = record.started_at_millis, record.finished_at_millis - record.started_at_millis
            table.add_row(
                record.reviewer, record.outcome, f"{(began - records[0].started_at_millis) / 1000:.2f} s", f"{took} ms"
            )
        data: dict[str, Any] = {
            "flow_id": flow_id,
            "run_id": run_id,
            "status": result.status.name,
            "records": [
                {
                    "reviewer": record.reviewer,
                    "outcome": record.outcome,
                    "started_at_millis": record.started_at_millis,
                    "finished_at_millis": record.finished_at_millis,
                }
                for record in records
            ],
        }
        terminal.result(data, table)
        terminal.remark(
            "No two edits overlap, and every reviewer has one record. The code: examples/patterns/critical_section.py"
        )


@contextmanager
def _place(database: str | None, address: str | None, namespace: str | None) -> Iterator[Place]:
    if database is not None:
        yield Place(database, address, namespace)
        return
    with tempfile.TemporaryDirectory(prefix="dexray-demo-", ignore_cleanup_errors=True) as folder:
        # A namespace of its own: an engine that is in use already has a database.
        yield Place(str(Path(folder) / "demo.db"), address or "local", namespace or Path(folder).name)


def _example() -> ModuleType:
    if importlib.util.find_spec(_SHIPPED) is not None:
        return importlib.import_module(_SHIPPED)
    if not _EXAMPLE.is_file():
        raise CommandError(f"the example is missing: neither {_SHIPPED} nor {_EXAMPLE} is there; install dexray anew")
    name = "dexray_demo_flow"
    return sys.modules.get(name) or load_module(_EXAMPLE, name)
