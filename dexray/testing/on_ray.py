"""FlowTest over a real local cluster: the same face, with processes and time as they are.

What differs from `FlowTest`: handlers run in worker processes, so what they raise is in `describe` and in the history
rather than in `errors`, and breakpoints don't stop there; `advance` waits for real, and not for long; faults and clock
steps are not to be had. Assertions wait until they hold, for up to `patience`.

Each RayFlowTest has an engine of its own, on a journal of its own that is deleted at the end. The Ray that it works on
is this process's: found or started with the first one. `keep_ray` keeps it from one test to the next.
"""

from __future__ import annotations

import shutil
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from dex import AsyncClient, Client, Registry
from dex.wire.service import AnswerT, Request
from dexray.journal import Journal, JournalUnavailable, open_journal
from dexray.testing.errors import FlowTestError
from dexray.testing.looking import Looking

if TYPE_CHECKING:
    from dexray.cluster.connect import Engine

T = TypeVar("T")

_LOOK_EVERY = 0.05  # seconds
_ONLY_IN_PROCESS = frozenset(
    {"errors", "raise_error", "kill_worker_on_attempt", "fail_commit", "restart", "step_wall_clock"}
)


class RayFlowTest(Looking):
    """Runs the Flows of a Registry on a local Ray cluster. A context manager, plain or asynchronous.

    patience: how long assertions wait until they hold. advance_at_most: how long `advance` may wait for real.
    settings: of `dexray.connect`; the address is "local" unless one is given.
    """

    on_ray = True

    def __init__(
        self,
        registry: Registry,
        *,
        patience: timedelta = timedelta(seconds=30),
        advance_at_most: timedelta = timedelta(seconds=10),
        **settings: Any,
    ) -> None:
        import dexray

        self._registry = registry
        self._patience = patience.total_seconds()
        self._advance_at_most = advance_at_most
        self._async_client: AsyncClient | None = None
        self._joined: Engine | None = None
        self._folder = Path(tempfile.mkdtemp(prefix="ray-flow-test-"))
        settings = {
            "address": "local",
            "namespace": f"flow-test-{uuid.uuid4().hex[:12]}",
            "code_check": False,
            **settings,
            "database": self._folder / "flows.db",
        }
        self._connect: Callable[[Registry], Client] = lambda code: dexray.connect(code, **settings)
        self._join: Callable[[], Engine] = lambda: dexray.open_service(**settings)
        try:
            self._client = self._connect(registry)
            self._journal = open_journal(self._folder / "flows.db")
        except BaseException:
            shutil.rmtree(self._folder, ignore_errors=True)
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Ends the engine and deletes its journal. Again: does nothing."""
        self._leave()
        self._client.close()
        self._journal.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _leave(self) -> None:
        joined, self._joined, self._async_client = self._joined, None, None
        if joined is not None:
            joined.close()

    @property
    def client(self) -> Client:
        """A Client, for plain tests."""
        return self._client

    @property
    def async_client(self) -> AsyncClient:
        """An AsyncClient, for `async def` tests: of the event loop that uses it first."""
        if self._async_client is None:
            self._joined = self._join()
            self._async_client = AsyncClient(self._registry, _Joined(self._joined))
        return self._async_client

    @property
    def registry(self) -> Registry:
        """The code that is deployed."""
        return self._registry

    def deploy(self, registry: Registry) -> None:
        """Newer code: it runs from now on, in Flows that are under way too. Take `client` anew for its Flows."""
        newer = self._connect(registry)
        self._leave()
        self._client.close()
        self._registry, self._client = registry, newer

    def now(self) -> datetime:
        """The time, UTC."""
        return datetime.now(UTC)

    def advance(self, duration: timedelta | float) -> None:
        """Waits for real. duration: seconds if a number. Raises FlowTestError for more than `advance_at_most`."""
        if not isinstance(duration, timedelta):
            duration = timedelta(seconds=duration)
        if duration > self._advance_at_most:
            raise FlowTestError(
                f"on Ray time is real, and {duration} of it are more than advance_at_most={self._advance_at_most}: "
                "mark the test with @pytest.mark.virtual_time, or shorten what it waits for"
            )
        time.sleep(duration.total_seconds())

    def __getattr__(self, name: str) -> Any:
        if name in _ONLY_IN_PROCESS:
            raise AttributeError(
                f"{name} is of the in-process engine: mark the test with @pytest.mark.virtual_time, and it is left out "
                "on Ray"
            )
        raise AttributeError(f"RayFlowTest has no attribute {name!r}")

    def _read(self, read: Callable[[Journal], T]) -> T:
        until = time.monotonic() + self._patience
        while True:
            try:
                return read(self._journal)
            except (JournalUnavailable, FlowTestError):
                if time.monotonic() > until:
                    raise
            time.sleep(_LOOK_EVERY)

    def _until(self, holds: Callable[[], str]) -> None:
        __tracebackhide__ = True
        until = time.monotonic() + self._patience
        while wrong := holds():
            if time.monotonic() > until:
                raise AssertionError(wrong)
            time.sleep(_LOOK_EVERY)


class _Joined:
    """An engine as a client's service; a client that is closed leaves it alone."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def call(self, request: Request[AnswerT]) -> AnswerT:
        return await self._engine.call(request)

    async def close(self) -> None: ...


@contextmanager
def keep_ray(address: str = "local") -> Iterator[None]:
    """Keeps this process's Ray, found or started as for a RayFlowTest, until the end of the block."""
    import dexray

    stay = dexray.keep_ray(address=address)
    try:
        yield
    finally:
        stay.leave()
