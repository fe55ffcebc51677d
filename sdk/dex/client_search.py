"""Calls that look for runs: searching, counting, listing; and a text as a query takes it.

The query language is told in `docs/search.md`. What a call has acknowledged, the next search sees.
"""

from __future__ import annotations

from dex.client_calls import ServiceCaller
from dex.client_results import flows_page
from dex.results import FlowStatus, SearchFlowsPage
from dex.wire.service import CountFlows, ListFlows, SearchFlows

DEFAULT_PAGE = 100


class SearchCalls:
    """The part of AsyncClient that looks for runs."""

    _caller: ServiceCaller

    async def search_flows(
        self,
        query: str,
        page_size: int,
        next_page_token: str = "",
        *,
        include_continued_as_new: bool = False,
    ) -> SearchFlowsPage:
        """Runs that a query finds, newest first, closed ones and those that a later run of their Flow ID has replaced
        among them.

            page = await client.search_flows("city = 'Rome' AND NOT ExecutionStatus = 'Failed'", 50)

        query: "" finds every run. page_size: at most 1,000; 0 is 100. next_page_token: of the page before; "" is the
        first page, and at the end of the last one. Runs that start meanwhile shift no page.
        include_continued_as_new: without effect, since no run continues as a new one.
        Raises ValueError for a negative page_size, DexServiceError INVALID_ARGUMENT for a query that can't be
        understood: it tells the place.
        """
        if page_size < 0:
            raise ValueError(f"search_flows: page_size must not be negative, got {page_size}")
        _check_query("search_flows", query)
        request = SearchFlows(query=query, page_size=page_size or DEFAULT_PAGE, page_token=next_page_token)
        return flows_page(await self._caller.call(request))

    async def count_flows(self, query: str = "", *, latest_only: bool = False) -> int:
        """How many runs a query finds, as `search_flows` would.

        latest_only: counts of each Flow the latest run alone, as `list_flows` would.
        Raises DexServiceError INVALID_ARGUMENT for a query that can't be understood.
        """
        _check_query("count_flows", query)
        return (await self._caller.call(CountFlows(query=query, latest_only=latest_only))).count

    async def list_flows(
        self,
        *,
        query: str = "",
        status: FlowStatus | None = None,
        flow_type: str = "",
        page_size: int = 100,
        page_token: str = "",
    ) -> SearchFlowsPage:
        """The latest run of each Flow, newest first. Pass `next_page_token` as page_token for the next page; it is ""
        at the end.

        query, status, flow_type: only runs that fit all of them. Raises ValueError for a page_size that is not
        positive, DexServiceError INVALID_ARGUMENT for a query that can't be understood.
        """
        if status is not None and not isinstance(status, FlowStatus):
            raise TypeError(f"list_flows(status=…) takes a FlowStatus, got {status!r}")
        if page_size < 1:
            raise ValueError(f"list_flows(page_size=…) must be positive, got {page_size}")
        _check_query("list_flows", query)
        request = ListFlows(
            query=query,
            status="" if status is None else status.name,
            flow_type=flow_type,
            page_size=page_size,
            page_token=page_token,
        )
        return flows_page(await self._caller.call(request))


def quoted(text: str) -> str:
    """A text as a query takes it, in quotes, whatever is in it: for values that come from elsewhere.

    >>> f"city = {quoted(\"L'Aquila\")}"
    "city = 'L''Aquila'"
    """
    if not isinstance(text, str):
        raise TypeError(f"quoted takes a str, got {type(text).__name__}: {text!r}")
    return "'" + text.replace("'", "''") + "'"


def _check_query(operation: str, query: str) -> None:
    if not isinstance(query, str):
        raise TypeError(f"{operation}: a query is a str, got {type(query).__name__}: {query!r}")
    try:
        query.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"{operation}: the query has half of a surrogate pair at position {error.start + 1}") from None
