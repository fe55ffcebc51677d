"""The command over an engine in this process: real Flows, no Ray."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import pytest
from typer.testing import CliRunner

from dex import Client, Flow, Registry
from dex._portal import Portal
from dex.wire.service import AnswerT, Request
from dexray.cli import engine
from dexray.cli.app import app
from dexray.cli.options import Place
from dexray.engine.clock import LoopClock
from dexray.journal import open_journal
from dexray.testing import InProcessEngine
from tests.cli import flows

T = TypeVar("T")

ALL_FLOWS: list[Flow[Any]] = [flows.PriceFlow(), flows.RefusingFlow(), flows.approval_flow, flows.FragileFlow()]


@dataclass
class Outcome:
    """What a command left: its exit code and the two streams."""

    code: int
    out: str
    err: str

    @property
    def data(self) -> Any:
        return json.loads(self.out)

    @property
    def error(self) -> Any:
        return json.loads(self.err)["error"]


class Engine:
    """An engine on a thread of its own; `service` may be used from any event loop."""

    def __init__(self, folder: Path) -> None:
        self._portal = Portal("Engine")
        self._journal = open_journal(folder / "flows.db")
        self._journal.migrate()
        self.registry = Registry(ALL_FLOWS, allow_async_handlers=True)
        self._engine = InProcessEngine(self.registry, self._journal, LoopClock())
        self._portal.call(self._engine.start)
        self.requests: list[Request[Any]] = []

    async def call(self, request: Request[AnswerT]) -> AnswerT:
        self.requests.append(request)
        return await asyncio.to_thread(self._portal.call, self._engine.call, request)

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return asyncio.run(coroutine)

    def deploy(self, registry: Registry) -> None:
        async def take() -> None:
            self._engine.registry = registry
            self._engine.host.deploy(registry.describe("at hand"))

        self._portal.call(take)

    async def close(self) -> None:
        pass

    def end(self) -> None:
        self._portal.call(self._engine.close)
        self._portal.close()
        self._journal.close()


@dataclass
class Shell:
    """Runs commands. `places` are the places that they wanted an engine of; `service` is who answers them."""

    service: Any
    places: list[Place] = field(default_factory=list)
    left: int = 0

    def __call__(self, *arguments: str, stdin: str | None = None) -> Outcome:
        result = CliRunner().invoke(app, list(arguments), input=stdin)
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return Outcome(result.exit_code, result.stdout, result.stderr)

    @contextmanager
    def open_service(self, place: Place) -> Iterator[Any]:
        self.places.append(place)
        try:
            yield self.service
        finally:
            self.left += 1

    @contextmanager
    def connect(self, registry: Registry, place: Place, **settings: Any) -> Iterator[Client]:
        self.places.append(place)
        self.service.deploy(registry)
        with Client(registry, self.service) as client:
            try:
                yield client
            finally:
                self.left += 1


@pytest.fixture
def an_engine(tmp_path: Path) -> Iterator[Engine]:
    started = Engine(tmp_path)
    yield started
    started.end()


@pytest.fixture
def dexray(an_engine: Engine, monkeypatch: pytest.MonkeyPatch) -> Shell:
    """The command, speaking to `an_engine`."""
    return shell(an_engine, monkeypatch)


def shell(service: Any, monkeypatch: pytest.MonkeyPatch) -> Shell:
    made = Shell(service)
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.setattr(engine, "open_service", made.open_service)
    monkeypatch.setattr(engine, "connect", made.connect)
    return made


@pytest.fixture
def client(an_engine: Engine) -> Iterator[Client]:
    with Client(an_engine.registry, an_engine) as made:
        yield made
