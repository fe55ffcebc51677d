"""What a service's answers become for the users of a client. Results of runs are in `dex.results`."""

from __future__ import annotations

from datetime import UTC, datetime

from dex.results import FlowInfo, FlowStatus, SearchFlowEntry, SearchFlowsPage
from dex.values import Value, WireKind
from dex.wire.service import FlowDescription, FlowsPage


def flow_info(description: FlowDescription) -> FlowInfo:
    return FlowInfo(
        flow_id=description.flow_id,
        run_id=description.run_id,
        flow_type=description.flow_type,
        status=FlowStatus[description.status],
        started_at=_utc(description.started_at),
    )


def flows_page(page: FlowsPage) -> SearchFlowsPage:
    return SearchFlowsPage(
        flows=tuple(
            SearchFlowEntry(
                flow_id=entry.flow_id,
                run_id=entry.run_id,
                flow_type=entry.flow_type,
                status=FlowStatus[entry.status],
                started_at=_utc(entry.started_at),
                closed_at=None if entry.closed_at is None else _utc(entry.closed_at),
                indexed_attributes={
                    key: Value(WireKind[found.kind], found.data) for key, found in entry.indexed.items()
                },
            )
            for entry in page.flows
        ),
        next_page_token=page.next_page_token,
    )


def _utc(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)
