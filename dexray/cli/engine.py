"""The seam between the command and an engine: everything that a command wants from one goes through here.

Ray comes in with the first of these calls, not before. Leaving an engine can take a few seconds and is what makes
sure that no process stays behind, so a second Ctrl-C does not cut it short.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, TypeVar

from dex import Client, Registry
from dex.client_calls import ClientOptions, ServiceCaller
from dex.wire.service import Answer, FlowService, Request
from dexray.cli.options import Place

AnswerT = TypeVar("AnswerT", bound=Answer)


class Session:
    """Questions to an engine, one at a time.

    A question that it can't take at the moment is repeated, as a Client would.
    """

    def __init__(self, service: FlowService, runner: asyncio.Runner) -> None:
        self._caller = ServiceCaller(service, lambda: service, ClientOptions())
        self._runner = runner

    def ask(self, request: Request[AnswerT]) -> AnswerT:
        """The answer. Raises DexServiceError."""
        return self._runner.run(self._caller.call(request))


@contextmanager
def session(place: Place) -> Iterator[Session]:
    """The engine at a place, for commands that have no code of a Flow at hand."""
    with open_service(place) as service, asyncio.Runner() as runner:
        yield Session(service, runner)


@contextmanager
def open_service(place: Place) -> Iterator[FlowService]:
    import dexray

    with _entering():
        # One that was started to be asked ends with the answer: attempts that it began would be interrupted.
        engine = dexray.open_service(**place.arguments(), hold=True, worker_output=False)
    try:
        yield engine.service
    finally:
        with _undisturbed():
            engine.close()


@contextmanager
def connect(registry: Registry, place: Place, **settings: Any) -> Iterator[Client]:
    """A Client of the engine at a place, with the Flows of a Registry deployed there."""
    import dexray

    with _entering():
        client = dexray.connect(registry, **place.arguments(), worker_output=False, **settings)
    try:
        yield client
    finally:
        with _undisturbed():
            client.close()


@contextmanager
def _entering() -> Iterator[None]:
    """Ray takes SIGTERM for itself and tells on stderr how it is guarded. Both are for the command to decide."""
    logging.getLogger("ray._private.authentication").setLevel(logging.ERROR)
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    former = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, former)


@contextmanager
def _undisturbed() -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def ignore(number: int, frame: FrameType | None) -> None:
        pass

    former = signal.signal(signal.SIGINT, ignore)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, former)
