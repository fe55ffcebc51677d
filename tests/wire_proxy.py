"""A wire to the tests' PostgreSQL server that can be cut at a chosen moment.

    with Wire(server) as wire:
        journal = open_journal(wire.url("flows"))
        wire.cut_when(b"COMMIT\0", Cut.AFTER)

It listens on TCP and speaks to the server over its Unix socket. It understands nothing but pieces: what one side sent
and the other has not seen yet. Cutting closes the client's side; the server's side is closed too, or, where a
transaction is to live on without a client, left open until the end.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from dataclasses import dataclass
from enum import Enum
from types import TracebackType
from typing import Self

from tests.postgres import PostgresServer


class Cut(Enum):
    BEFORE = "the server never gets the piece"
    AFTER = "the server has answered the piece, and the client never gets the answer"
    WITHOUT_END = "the client is cut off, and the server is left with the piece and an open connection"


@dataclass
class _Plan:
    """The next piece with `words` in it, or the piece that is so many away."""

    how: Cut
    words: bytes = b""
    pieces: int = 0


class Wire:
    def __init__(self, server: PostgresServer, delay: float = 0.0) -> None:
        """delay: seconds that a piece is under way, in either direction."""
        self._server = server
        self._delay = delay
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._plan: _Plan | None = None
        self._lock = threading.Lock()
        self._open: list[socket.socket] = []
        self.pieces = 0
        self.connects = 0
        self.cuts = 0
        self._down = False
        threading.Thread(target=self._accept, name="wire", daemon=True).start()

    def url(self, database: str, **options: str) -> str:
        more = "".join(f"&{name}={value}" for name, value in options.items())
        return (
            f"postgresql+psycopg://postgres@127.0.0.1:{self.port}/{database}?sslmode=disable&gssencmode=disable{more}"
        )

    def cut_when(self, words: bytes, how: Cut) -> None:
        """Cuts once, at the next piece from a client with these words in it."""
        self._plan = _Plan(how, words)

    def cut_at(self, piece: int, how: Cut) -> None:
        """Cuts once, at the so many-th piece from a client, counted from now and from 1."""
        self._plan = _Plan(how, pieces=piece)

    def cut_all(self) -> None:
        """Every connection ends now."""
        with self._lock:
            ends, self._open = self._open, []
        for end in ends:
            _close(end)

    def down(self, down: bool = True) -> None:
        """While it is down, connections end as soon as they begin."""
        self._down = down
        if down:
            self.cut_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _close(self._listener)
        self.cut_all()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            self.connects += 1
            server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                if self._down:
                    raise ConnectionRefusedError
                server.connect(self._server.socket)
            except OSError:
                _close(client)
                _close(server)
                continue
            with self._lock:
                self._open += [client, server]
            for end in (client, server):
                if end.family == socket.AF_INET:
                    end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            answered = _Answers(client, server, self._delay)
            threading.Thread(target=answered.relay, name="wire-back", daemon=True).start()
            threading.Thread(target=self._relay, args=(client, server, answered), name="wire-out", daemon=True).start()

    def _relay(self, client: socket.socket, server: socket.socket, answers: _Answers) -> None:
        with contextlib.suppress(OSError):
            while piece := client.recv(1 << 16):
                time.sleep(self._delay)
                how = self._due(piece)
                if how is not None:
                    answers.mute()
                    if how is not Cut.BEFORE:
                        server.sendall(piece)
                    if how is Cut.AFTER:
                        self._until_answered(client, server, answers)
                    self.cuts += 1
                    _close(client)
                    if how is not Cut.WITHOUT_END:
                        _close(server)
                    return
                server.sendall(piece)
        _close(server)
        _close(client)

    def _until_answered(self, client: socket.socket, server: socket.socket, answers: _Answers) -> None:
        """A server need not answer a piece before it has got the next one as well."""
        client.settimeout(0.02)
        while not answers.heard.is_set():
            with contextlib.suppress(TimeoutError):
                more = client.recv(1 << 16)
                if not more:
                    return
                server.sendall(more)

    def _due(self, piece: bytes) -> Cut | None:
        self.pieces += 1
        plan = self._plan
        if plan is None:
            return None
        if plan.words:
            if plan.words not in piece:
                return None
        else:
            plan.pieces -= 1
            if plan.pieces:
                return None
        self._plan = None
        return plan.how


class _Answers:
    """The way back. Muted, it swallows what the server says and only notes that it said something."""

    def __init__(self, client: socket.socket, server: socket.socket, delay: float) -> None:
        self._delay = delay
        self._client = client
        self._server = server
        self._muted = False
        self.heard = threading.Event()

    def mute(self) -> None:
        self._muted = True

    def relay(self) -> None:
        with contextlib.suppress(OSError):
            while piece := self._server.recv(1 << 16):
                time.sleep(self._delay)
                if self._muted:
                    self.heard.set()
                else:
                    self._client.sendall(piece)
        self.heard.set()
        _close(self._client)


def _close(end: socket.socket) -> None:
    with contextlib.suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)
    end.close()
