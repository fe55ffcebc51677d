"""Calls that the interface has and no service of this version serves yet.

They have their full signatures, so that code written for them type-checks, and check their arguments as they will, so
that a mistake is not hidden behind the refusal. What is right is refused with DexServiceError UNIMPLEMENTED, naming the
feature.
"""

from __future__ import annotations

from dex.client_calls import unimplemented
from dex.results import SearchFlowsPage


class UnservedCalls:
    """The part of AsyncClient that is refused."""

    async def search_flows(
        self,
        query: str,
        page_size: int,
        next_page_token: str = "",
        *,
        include_continued_as_new: bool = False,
    ) -> SearchFlowsPage:
        """Runs that a query finds. `list_flows` filters by status and type."""
        if page_size < 0:
            raise ValueError(f"search_flows: page_size must not be negative, got {page_size}")
        raise unimplemented("search_flows", "", "searching with a query")
