"""Searching, counting and listing runs. Any host may answer: all read the one journal, which is up to date.

The types of index keys are those that the deployed Flows give them. A key that no deployed Flow has is looked up in the
journal: its Flows may be of code that is not deployed (any more), and are found all the same.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from dex.names import SEARCH_FIELDS
from dex.wire import service as s
from dex.wire.service import ServiceError
from dexray.journal.interface import FoundRun, IndexEntry
from dexray.search import And, BadQuery, Condition, RunTest, comparisons_of, parse, resolve
from dexray.search.conditions import IN

if TYPE_CHECKING:
    from dexray.engine.host import FlowHost

LARGEST_PAGE = 1000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


async def search_flows(host: FlowHost, request: s.SearchFlows) -> s.FlowsPage:
    condition = await _condition(host, request.query)
    return await _page(host, condition, request.page_size, request.page_token, latest_only=False)


async def list_flows(host: FlowHost, request: s.ListFlows) -> s.FlowsPage:
    parts = [await _condition(host, request.query)] if request.query else []
    if request.status:
        parts.append(RunTest("status", IN, (request.status,)))
    if request.flow_type:
        parts.append(RunTest("flow_type", IN, (request.flow_type,)))
    return await _page(host, And(tuple(parts)), request.page_size, request.page_token, latest_only=True)


async def count_flows(host: FlowHost, request: s.CountFlows) -> s.FlowCount:
    condition = await _condition(host, request.query)
    count = await host.questions.ask(lambda journal: journal.count_runs(condition, latest_only=request.latest_only))
    return s.FlowCount(count=count)


async def _page(host: FlowHost, condition: Condition, size: int, token: str, *, latest_only: bool) -> s.FlowsPage:
    if not 1 <= size <= LARGEST_PAGE:
        raise ServiceError("INVALID_ARGUMENT", f"page_size {size}: from 1 to {LARGEST_PAGE}")
    try:
        found, next_token = await host.questions.ask(
            lambda journal: journal.search_runs(condition, latest_only=latest_only, page_size=size, page_token=token)
        )
    except ValueError as error:
        raise ServiceError("INVALID_ARGUMENT", str(error)) from error
    return s.FlowsPage(flows=tuple(map(_entry, found)), next_page_token=next_token)


async def _condition(host: FlowHost, query: str) -> Condition:
    try:
        tree = parse(query)
        types = _deployed_types(host)
        asked = {comparison.name for comparison in comparisons_of(tree)}
        elsewhere = asked - types.keys() - SEARCH_FIELDS
        if elsewhere:
            types.update(await host.questions.ask(lambda journal: journal.index_types(sorted(elsewhere))))
        return resolve(tree, query, types)
    except BadQuery as error:
        raise ServiceError("INVALID_ARGUMENT", str(error)) from error


def _deployed_types(host: FlowHost) -> dict[str, tuple[str, ...]]:
    types: dict[str, tuple[str, ...]] = {}
    for spec in host.specs.values():
        for index in spec.indexes.values():
            known = types.get(index.key, ())
            if index.type not in known:
                types[index.key] = (*known, index.type)
    return types


# What was found -------------------------------------------------------------------------------------------------------


def _entry(found: FoundRun) -> s.FlowEntry:
    row = found.row
    return s.FlowEntry(
        flow_id=row.flow_id,
        run_id=row.run_id,
        flow_type=row.flow_type,
        status=row.status,
        started_at=row.started_at,
        closed_at=row.closed_at,
        indexed=_indexed(found.entries),
    )


def _indexed(entries: Iterable[IndexEntry]) -> dict[str, s.IndexedValue]:
    """By index key; the values of several sources of one key (the instances of a map) as a list."""
    by_key: dict[str, list[s.IndexedValue]] = {}
    for entry in entries:
        by_key.setdefault(entry.key, []).append(_value(entry))
    return {
        key: values[0] if len(values) == 1 else s.IndexedValue(kind="JSON", data=[value.data for value in values])
        for key, values in by_key.items()
    }


def _value(entry: IndexEntry) -> s.IndexedValue:
    if entry.shown is not None:
        return _shown(json.loads(entry.shown))
    if entry.word is not None:
        return s.IndexedValue(kind="STRING", data=entry.word)
    if entry.real is not None:
        return s.IndexedValue(kind="DOUBLE", data=entry.real)
    assert entry.whole is not None
    if entry.type == "BOOL":
        return s.IndexedValue(kind="BOOL", data=bool(entry.whole))
    if entry.type == "DATETIME":
        moment = _EPOCH + timedelta(microseconds=entry.whole)
        return s.IndexedValue(kind="STRING", data=moment.isoformat())
    return s.IndexedValue(kind="INT64", data=entry.whole)


def _shown(data: Any) -> s.IndexedValue:
    match data:
        case bool():
            kind = "BOOL"
        case int():
            kind = "INT64"
        case float():
            kind = "DOUBLE"
        case str():
            kind = "STRING"
        case _:
            kind = "JSON"
    return s.IndexedValue(kind=kind, data=data)
