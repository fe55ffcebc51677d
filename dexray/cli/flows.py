"""`dexray flow …`: what can be asked of, and done to, Flows whose code is not at hand."""

from __future__ import annotations

import uuid
from enum import StrEnum
from typing import Annotated, Any

import typer

from dex import ValueMappingError, quoted
from dex.explain import explained
from dex.names import check_instance, physical_name
from dex.values import CodecRegistry, detach
from dex.wire.service import (
    CountFlows,
    DeleteFlow,
    DescribeFlow,
    FlowEntry,
    GetHistory,
    HistoryEvent,
    ListFlows,
    Publish,
    SearchFlows,
    StopFlow,
)
from dexray.cli import engine
from dexray.cli.options import Address, Database, Debug, FlowId, Json, Namespace, Place
from dexray.cli.picture import flow_picture
from dexray.cli.problems import UsageProblem
from dexray.cli.readable import data_of, duration, moment
from dexray.cli.start import checked_id
from dexray.cli.terminal import command

app = typer.Typer(
    help="List Flows, look at one, send it a message, stop it, delete it.", no_args_is_help=True, rich_markup_mode=None
)


Query = Annotated[str, typer.Option("--query", "-q", metavar="QUERY", help="What runs must be: see docs/search.md.")]
EveryRun = Annotated[bool, typer.Option("--every-run", help="Earlier runs of a Flow ID too.")]


class Status(StrEnum):
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELED = "canceled"
    TERMINATED = "terminated"


class StopType(StrEnum):
    CANCEL = "cancel"
    TERMINATE = "terminate"
    FAIL = "fail"


@app.command("list")
def list_flows(
    status: Annotated[Status | None, typer.Option(help="Only runs of this status.", case_sensitive=False)] = None,
    flow_type: Annotated[str, typer.Option("--type", metavar="FLOW_TYPE", help="Only runs of this Flow type.")] = "",
    query: Query = "",
    every_run: EveryRun = False,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="Runs on a page.")] = 50,
    page: Annotated[str, typer.Option(metavar="TOKEN", help="The page that the one before named.")] = "",
    everything: Annotated[bool, typer.Option("--all", help="All pages at once.")] = False,
    database: Database = None,
    address: Address = None,
    namespace: Namespace = None,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """List the latest run of each Flow, newest first; with --query those that it finds.

    dexray flow list --query "FlowType = 'Order' AND city IN ('Rome', 'Oslo') AND NOT ExecutionStatus = 'Failed'"
    """
    with command(json=json, debug=debug) as terminal:
        flows: list[FlowEntry] = []
        with engine.session(Place(database, address, namespace)) as session:
            while True:
                if every_run:
                    answer = session.ask(
                        SearchFlows(query=_joined(query, status, flow_type), page_size=limit, page_token=page)
                    )
                else:
                    answer = session.ask(
                        ListFlows(
                            query=query,
                            status="" if status is None else status.name,
                            flow_type=flow_type,
                            page_size=limit,
                            page_token=page,
                        )
                    )
                flows.extend(answer.flows)
                page = answer.next_page_token
                if not everything or not page:
                    break
        table = terminal.table("Flow", "type", "status", "started", "took", "run")
        for flow in flows:
            took = duration(flow.closed_at - flow.started_at) if flow.closed_at else ""
            table.add_row(flow.flow_id, flow.flow_type, flow.status, moment(flow.started_at), took, flow.run_id)
        shown = table if flows else "no Flows"
        terminal.result({"flows": data_of(flows), "next_page_token": page}, shown)
        if page:
            terminal.remark(f"There are more: --page {page}")


def _joined(query: str, status: Status | None, flow_type: str) -> str:
    parts = [
        f"({query})" if query.strip() else "",
        f"ExecutionStatus = '{status.name}'" if status is not None else "",
        f"FlowType = {quoted(flow_type)}" if flow_type else "",
    ]
    return " AND ".join(part for part in parts if part)


@app.command("count")
def count_flows(
    query: Query = "",
    every_run: EveryRun = False,
    database: Database = None,
    address: Address = None,
    namespace: Namespace = None,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Count Flows by their latest run; with --query those that it finds."""
    with command(json=json, debug=debug) as terminal:
        with engine.session(Place(database, address, namespace)) as session:
            count = session.ask(CountFlows(query=query, latest_only=not every_run)).count
        terminal.result({"query": query, "count": count}, str(count))


@app.command("show")
def show_flow(
    flow_id: FlowId,
    events: Annotated[int, typer.Option(min=0, help="How many of the last events to show.")] = 10,
    database: Database = None,
    address: Address = None,
    namespace: Namespace = None,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Show where a Flow is: its open Steps and what they wait for, Channels, Attributes, last events."""
    with command(json=json, debug=debug) as terminal:
        checked_id(flow_id)
        with engine.session(Place(database, address, namespace)) as session:
            description = session.ask(DescribeFlow(flow_id=flow_id))
            last = _last_events(session, description.flow_id, description.run_id, events)
        why = list(explained(description))
        data: dict[str, Any] = {**data_of(description), "explain": why, "events": data_of(last)}
        terminal.result(data, *flow_picture(terminal, description, last))


def _last_events(session: engine.Session, flow_id: str, run_id: str, count: int) -> list[HistoryEvent]:
    last: list[HistoryEvent] = []
    after = 0
    while count:
        page = session.ask(GetHistory(flow_id=flow_id, run_id=run_id, after=after))
        last = [*last, *page.events][-count:]
        if not page.more or not page.events:
            break
        after = page.events[-1].number
    return last


@app.command("publish")
def publish(
    flow_id: FlowId,
    channel: Annotated[str, typer.Argument(metavar="CHANNEL", help="The name of a Channel of the Flow.")],
    values: Annotated[list[str], typer.Argument(metavar="JSON...", help="One message each. Text needs its quotes.")],
    instance: Annotated[
        str | None, typer.Option(metavar="KEY", help="Which instance, when CHANNEL is a ChannelMap.")
    ] = None,
    request_id: Annotated[
        str | None, typer.Option(metavar="ID", help="Repeating the command with the same id publishes once.")
    ] = None,
    database: Database = None,
    address: Address = None,
    namespace: Namespace = None,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Put messages into a Channel of a Flow.

    A message is written as its JSON says: 1 is an int and 1.0 a float, an object fits a dataclass with these fields.
    """
    with command(json=json, debug=debug) as terminal:
        checked_id(flow_id)
        if instance is not None:
            try:
                check_instance("ChannelMap", channel, instance)
            except ValueError as error:
                raise UsageProblem(str(error)) from error
        name = physical_name(channel, instance)
        blobs: dict[str, bytes] = {}
        request = Publish(
            flow_id=flow_id,
            channel=name,
            values=tuple(_payload(text, blobs) for text in values),
            request_id=request_id or str(uuid.uuid4()),
            fresh=request_id is None,
            blobs=blobs,
        )
        with engine.session(Place(database, address, namespace)) as session:
            ids = session.ask(request).message_ids
        data = {"flow_id": flow_id, "channel": name, "message_ids": list(ids)}
        terminal.result(data, "\n".join(ids))


def _payload(text: str, blobs: dict[str, bytes]) -> bytes:
    codecs = CodecRegistry()
    try:
        value = codecs.decode_json(text, Any, f"message {text!r}")
        return detach(codecs.encode_dynamic(value, where=f"message {text!r}"), blobs)
    except ValueMappingError as error:
        raise UsageProblem(error.detail) from error


@app.command("stop")
def stop(
    flow_id: FlowId,
    stop_type: Annotated[StopType, typer.Option("--type", help="How it ends.", case_sensitive=False)] = StopType.CANCEL,
    reason: Annotated[str, typer.Option(metavar="TEXT", help="Why; becomes its error message.")] = "",
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    database: Database = None,
    address: Address = None,
    namespace: Namespace = None,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Stop a Flow for good: cancel it, terminate it or let it fail. Asks first, in a terminal."""
    with command(json=json, debug=debug) as terminal:
        checked_id(flow_id)
        if not yes and terminal.can_ask:
            typer.confirm(f"{stop_type.value.capitalize()} Flow {flow_id!r}?", abort=True, err=True)
        with engine.session(Place(database, address, namespace)) as session:
            session.ask(
                StopFlow(
                    flow_id=flow_id,
                    stop_type=stop_type.name,
                    reason=reason,
                    request_id=str(uuid.uuid4()),
                    fresh=True,
                )
            )
        data = {"flow_id": flow_id, "stop_type": stop_type.name, "reason": reason}
        terminal.result(data, f"Flow {flow_id!r}: {stop_type.value} is on record")


@app.command("delete")
def delete(
    flow_id: FlowId,
    run: Annotated[str | None, typer.Option(metavar="RUN_ID", help="Only this run; else all of the Flow.")] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    database: Database = None,
    address: Address = None,
    namespace: Namespace = None,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Remove a closed Flow with all that is kept of it. Asks first, in a terminal."""
    with command(json=json, debug=debug) as terminal:
        checked_id(flow_id)
        what = f"Flow {flow_id!r}" if run is None else f"run {run} of Flow {flow_id!r}"
        if not yes and terminal.can_ask:
            typer.confirm(f"Delete {what} and all that is kept of it?", abort=True, err=True)
        with engine.session(Place(database, address, namespace)) as session:
            session.ask(DeleteFlow(flow_id=flow_id, run_id=run or "", fresh=True))
        terminal.result({"flow_id": flow_id, "run_id": run}, f"{what} is deleted")
