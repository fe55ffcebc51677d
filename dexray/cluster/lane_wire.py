"""What goes over the socket between an owner and a worker process, and how it is cut into frames.

A frame is its length (four bytes, big-endian) and a msgpack array that begins with its tag. Nothing is ever
unpickled. The first frame of a connection is a `Hello` with the secret of one life of an owner, which workers
get with the code through Ray's object store; until it has come only a small frame is taken. The secret keeps
strangers out who can reach the port. It does not hide what is sent: that goes unencrypted, as Ray's own
messages do by default.
"""

from __future__ import annotations

import hmac
from collections.abc import Iterator
from dataclasses import dataclass

import msgspec
from msgspec import Raw, Struct

from dexray.cluster.attempt_messages import Finished, Lot

LIMIT = 8 * 1024 * 1024
"""Bytes of a frame. What is bigger goes by Ray."""

HELLO_LIMIT = 1024
_HEAD = 4


@dataclass(frozen=True, slots=True)
class Door:
    """Where workers of an owner's life may call. `linger` is how many seconds a Ray task waits for its next lot."""

    host: str
    port: int
    secret: bytes
    linger: float


class Hello(Struct, frozen=True, array_like=True, tag="hello"):
    life: int
    secret: bytes
    node: str  # Ray's id of the node, in hex

    def is_from(self, life: int, secret: bytes) -> bool:
        return self.life == life and hmac.compare_digest(self.secret, secret)


class Begun(Struct, frozen=True, array_like=True, tag="begun"):
    """A Ray task has left Ray's queue: its attempts begin. `lane` is the number of its first lot."""

    lane: int


class Result(Struct, frozen=True, array_like=True, tag="result"):
    """A lot is done, and the Ray task waits for another."""

    lane: int
    number: int
    finished: tuple[Finished, ...]


class Leave(Struct, frozen=True, array_like=True, tag="leave"):
    """Nothing came: may the Ray task end? The answer is `Bye`, unless a lot is on its way."""

    lane: int


class Run(Struct, frozen=True, array_like=True, tag="run"):
    lane: int
    lot: Lot


class _RunOut(Struct, frozen=True, array_like=True, tag="run"):
    """`Run` as the owner writes it: the lot is encoded already."""

    lane: int
    lot: Raw


class Bye(Struct, frozen=True, array_like=True, tag="bye"):
    """The Ray task is to end. Its results have arrived."""

    lane: int


FromWorker = Hello | Begun | Result | Leave
FromOwner = Run | Bye

_encoder = msgspec.msgpack.Encoder()
_from_worker = msgspec.msgpack.Decoder(FromWorker)
_from_owner = msgspec.msgpack.Decoder(FromOwner)


class BrokenFrame(Exception):
    """The other side does not speak this language: the connection is of no use."""


def frame(message: FromWorker | FromOwner | _RunOut) -> bytes:
    body = _encoder.encode(message)
    return len(body).to_bytes(_HEAD, "big") + body


def run_frame(lane: int, lot: bytes) -> bytes:
    """A `Run` of an encoded lot."""
    return frame(_RunOut(lane, Raw(lot)))


def decode_from_worker(body: bytes) -> FromWorker:
    try:
        return _from_worker.decode(body)
    except msgspec.MsgspecError as error:
        raise BrokenFrame(str(error)) from error


def decode_from_owner(body: bytes) -> FromOwner:
    try:
        return _from_owner.decode(body)
    except msgspec.MsgspecError as error:
        raise BrokenFrame(str(error)) from error


class Frames:
    """Bytes as they arrive, cut into the bodies of frames. `limit` may be raised when the other side is known."""

    def __init__(self, limit: int = LIMIT) -> None:
        self.limit = limit
        self._buffer = bytearray()

    def feed(self, data: bytes) -> None:
        self._buffer += data

    def __iter__(self) -> Iterator[bytes]:
        """The complete frames there are. Raises BrokenFrame for one that is too long."""
        while (body := self.next()) is not None:
            yield body

    def next(self) -> bytes | None:
        buffer = self._buffer
        if len(buffer) < _HEAD:
            return None
        end = _HEAD + int.from_bytes(buffer[:_HEAD], "big")
        if end - _HEAD > self.limit:
            raise BrokenFrame(f"a frame of {end - _HEAD} bytes, where {self.limit} are allowed")
        if len(buffer) < end:
            return None
        body = bytes(buffer[_HEAD:end])
        del buffer[:end]
        return body
