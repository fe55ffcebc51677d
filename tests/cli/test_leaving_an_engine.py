"""Leaving an engine is what leaves no process behind: it is neither forgotten nor cut short."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest

import dexray
from dex import Registry
from dexray.cli import engine
from dexray.cli.options import Place


class Connection:
    """An engine, or a Client of one, whose user loses patience while it closes."""

    service = "the service"

    def __init__(self, **arguments: Any) -> None:
        self.arguments = arguments
        self.closed = False
        signal.signal(signal.SIGTERM, lambda number, frame: None)  # as Ray does

    def close(self) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        self.closed = True


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[Connection]:
    made: list[Connection] = []

    def open_connection(*registry: Registry, **arguments: Any) -> Connection:
        made.append(Connection(**arguments))
        return made[-1]

    for name in ("connect", "open_service"):
        monkeypatch.setitem(vars(dexray), name, open_connection)
    return made


def enter(what: str) -> Any:
    place = Place("flows.db", "local", "ns")
    return engine.open_service(place) if what == "open_service" else engine.connect(Registry([]), place)


@pytest.mark.parametrize("what", ["connect", "open_service"])
def test_ctrl_c_does_not_cut_the_closing_short_and_works_again_after_it(opened: list[Connection], what: str) -> None:
    before = signal.getsignal(signal.SIGINT)
    with enter(what):
        closed_inside = opened[0].closed
    assert (closed_inside, opened[0].closed) == (False, True)
    assert signal.getsignal(signal.SIGINT) is before
    held = {"hold": True} if what == "open_service" else {}  # started to be asked, it starts no attempts
    quiet = {"worker_output": False}  # stdout has the result, and nothing that workers print
    assert opened[0].arguments == {"database": "flows.db", "address": "local", "namespace": "ns", **quiet, **held}


@pytest.mark.parametrize("what", ["connect", "open_service"])
def test_an_engine_is_left_when_the_command_is_interrupted(opened: list[Connection], what: str) -> None:
    with pytest.raises(KeyboardInterrupt), enter(what):
        signal.raise_signal(signal.SIGINT)
    assert opened[0].closed


@pytest.mark.parametrize("what", ["connect", "open_service"])
def test_sigterm_stays_with_the_command(opened: list[Connection], what: str) -> None:
    before = signal.getsignal(signal.SIGTERM)
    with enter(what):
        assert signal.getsignal(signal.SIGTERM) is before
