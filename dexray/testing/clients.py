"""Client and AsyncClient whose calls run the engine: no thread of their own, no time that passes unasked."""

from __future__ import annotations

import functools
import inspect
from collections.abc import AsyncIterator, Callable, Coroutine
from datetime import timedelta
from typing import Any, Final, ParamSpec, TypeVar

from dex import AsyncClient, Client, ClientOptions, HistoryEvent, Registry
from dex._portal import Portal
from dex.wire.service import FlowService
from dexray.testing.driver import NEVER, Driver

P = ParamSpec("P")
T = TypeVar("T")

OPTIONS: Final = ClientOptions(longest_poll=timedelta(seconds=NEVER))


class _DrivenPortal(Portal):
    """Runs coroutines in the engine's loop, on the caller's own thread."""

    def __init__(self, driver: Driver) -> None:
        super().__init__("Client")
        self._driver = driver

    def call(self, function: Callable[P, Coroutine[Any, Any, T]], /, *args: P.args, **kwargs: P.kwargs) -> T:
        if self.closed:
            raise RuntimeError("the Client is closed: make a new one")
        return self._driver.run(lambda: function(*args, **kwargs))


class DrivenClient(Client):
    """The Client of a FlowTest."""

    def __init__(self, registry: Registry, service: FlowService, driver: Driver) -> None:
        super().__init__(registry, service, OPTIONS)
        self._portal = _DrivenPortal(driver)


class DrivenAsyncClient(AsyncClient):
    """The AsyncClient of a FlowTest: for `async def` tests, and for handlers."""

    def __init__(self, registry: Registry, service: FlowService, driver: Driver) -> None:
        super().__init__(registry, service, OPTIONS)
        self._driver = driver

    async def history(
        self, flow_id: str, *, run_id: str = "", after: int = 0, page_size: int = 1000, follow: bool = False
    ) -> AsyncIterator[HistoryEvent]:
        cursor = self._history(flow_id, run_id, after, page_size, follow)
        while events := await self._driver.await_(cursor.next_page):
            for event in events:
                yield event


def _driven(method: Callable[..., Coroutine[Any, Any, Any]]) -> Callable[..., Coroutine[Any, Any, Any]]:
    @functools.wraps(method)
    async def call(self: DrivenAsyncClient, *args: Any, **kwargs: Any) -> Any:
        return await self._driver.await_(lambda: method(self, *args, **kwargs))

    return call


for _name, _method in inspect.getmembers(AsyncClient, inspect.iscoroutinefunction):
    if not _name.startswith("_"):
        setattr(DrivenAsyncClient, _name, _driven(_method))
