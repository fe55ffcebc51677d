"""`dexray run`: start a Flow from code at hand and wait for its result."""

from __future__ import annotations

import json as jsonlib
import uuid
from typing import Annotated, Any

import typer

from dex import FlowResult, FlowStatus, ValueMappingError
from dex.names import check_flow_id
from dex.values import to_readable
from dexray.cli import engine
from dexray.cli.options import Address, Database, Debug, Json, Namespace, Place
from dexray.cli.problems import FAILED, CommandError, Interrupted, UsageProblem
from dexray.cli.target import load_flow, read_input
from dexray.cli.terminal import Terminal, command
from dexray.cli.watch import wait, watch


def run_flow(
    target: Annotated[
        str, typer.Argument(metavar="MODULE:FLOW", help="A Flow class or instance; a .py file works too.")
    ],
    flow_id: Annotated[
        str | None, typer.Option("--id", metavar="FLOW_ID", help="The Flow's id. [default: a new one]")
    ] = None,
    input_text: Annotated[
        str | None, typer.Option("--input", metavar="JSON", help="The input: JSON, @file, or - for stdin.")
    ] = None,
    watching: Annotated[bool, typer.Option("--watch", help="Show the Steps while they run (not with --json).")] = False,
    timeout: Annotated[
        float | None, typer.Option(min=0.0, metavar="SECONDS", help="Stop waiting then; the Flow is kept.")
    ] = None,
    database: Database = None,
    address: Address = None,
    namespace: Namespace = None,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Start a Flow, wait for it and print its result.

    Exits with 0 when it completed, 1 when it failed or was cancelled, 3 when it still runs after --timeout.
    """
    with command(json=json, debug=debug) as terminal:
        registry, flow = load_flow(target)
        value = read_input(registry, flow, input_text)
        name = checked_id(f"{flow.get_flow_type()}-{uuid.uuid4().hex[:8]}" if flow_id is None else flow_id)
        with engine.connect(registry, Place(database, address, namespace)) as client:
            try:
                run_id = client.start_flow(flow, name, value)
            except ValueMappingError as error:
                raise UsageProblem(str(error)) from error
            terminal.remark(f"Flow {name!r} started, run {run_id}")
            try:
                if watching and not terminal.json:
                    result = watch(client, name, terminal, timeout=timeout)
                else:
                    result = wait(client, name, timeout=timeout)
            except KeyboardInterrupt:
                raise Interrupted(f"interrupted. Flow {name!r} is kept: see `dexray flow show {name}`") from None
        show_result(terminal, name, run_id, result)
        if result.status is not FlowStatus.COMPLETED:
            raise typer.Exit(FAILED)


def checked_id(flow_id: str) -> str:
    try:
        return check_flow_id(flow_id)
    except ValueError as error:
        raise UsageProblem(str(error)) from error


def show_result(terminal: Terminal, flow_id: str, run_id: str, result: FlowResult) -> None:
    outputs = {
        completion.step_execution_id: to_readable(completion.payload)
        for completion in result.completions
        if completion.payload is not None
    }
    data: dict[str, Any] = {
        "flow_id": flow_id,
        "run_id": run_id,
        "status": result.status.name,
        "error_type": None if result.error_type is None else result.error_type.name,
        "error_message": result.error_message,
        "completions": [
            {
                "step_type": completion.step_type,
                "step_execution_id": completion.step_execution_id,
                "has_output": completion.has_output,
                "output": outputs.get(completion.step_execution_id),
            }
            for completion in result.completions
        ],
    }
    if result.status is FlowStatus.COMPLETED or terminal.json:
        shown = [jsonlib.dumps(output, indent=2, ensure_ascii=False) for output in outputs.values()]
        terminal.result(data, *shown)
        terminal.remark(f"Flow {flow_id!r} is {result.status.name}")
        return
    why = f": {data['error_type']}: {result.error_message}" if result.error_type is not None else ""
    if result.error_type is None and result.error_message:
        why = f": {result.error_message}"
    terminal.error(CommandError(f"Flow {flow_id!r} is {result.status.name}{why}"))
