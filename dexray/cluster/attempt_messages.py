"""What owners and worker processes say to each other about attempts.

An owner (`RayAttempts` inside a FlowActor) hands attempts out in **lots** of one or more: as a Ray task, over
the lane of a Ray task that is there already, or by a call to an async worker. Each hand-out has a token, a
number that is never used twice in one life of the owner. The same attempt may be handed out again after it was
returned unstarted; its new token keeps a late word about the old hand-out from touching the new one. A life of
an owner has a random number too, because a restarted actor keeps its handle and would hear what was meant for
its former self.

- `Lot` goes out, `LotResult` is the answer of a Ray task.
- `Report` is one-way news on the way: heartbeats, Stream messages, and results that should not wait for the end of
  the lot. It may repeat what was said before; the owner counts each token once, and Stream messages may repeat.
- `Question` says which attempts have begun and asks which are canceled. With `wait` it is a long poll, and
  that is how cancellation reaches a running attempt. (`ray.cancel` of a task whose reply is just arriving
  aborts the process that calls it, up to Ray 2.60 at least: "Tried to complete task that was not pending". An
  owner of a thousand Flows is no place for that race.)
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Raw, Struct

from dexray.protocol.attempts import AttemptKey, AttemptResult, AttemptTask, Heartbeat
from dexray.protocol.streams import StreamWrite


class Message(Struct, frozen=True, array_like=True):
    pass


class Handed(Message, frozen=True):
    token: int
    task: AttemptTask
    needs: tuple[str, ...] = ()  # hashes of large values that it refers to and that come through the object store


class Lot(Message, frozen=True):
    life: int
    handed: tuple[Handed, ...]
    sent_at: float  # seconds since the epoch by the owner's clock
    announce: bool = False  # these attempts are not known to be short: tell at once that they have begun
    number: int = 0  # of the lot
    may_stay: bool = False  # its Ray task may become a lane
    namespace: str = ""  # of the engine, for clients that handlers make
    values: dict[str, tuple[int, int]] = {}  # large values by hash: the number of their reference, and an index there


class _HandedOut(Message, frozen=True):
    """`Handed` as the owner writes it: the task is encoded already."""

    token: int
    task: Raw
    needs: tuple[str, ...] = ()


class _LotOut(Message, frozen=True):
    life: int
    handed: tuple[_HandedOut, ...]
    sent_at: float
    announce: bool
    number: int
    may_stay: bool
    namespace: str
    values: Mapping[str, tuple[int, int]]


class Finished(Message, frozen=True):
    token: int
    result: AttemptResult
    seconds: float | None = None  # how long the handler ran, for those that ran
    declined: bool = False  # this worker can't run attempts of this deployment at all
    values: tuple[str, ...] = ()  # hashes of large values of the result that come beside this message
    lacking: tuple[str, ...] = ()  # of an attempt that was returned: values that are not in the object store any more


class LotResult(Message, frozen=True):
    """`values`: the hashes of the large values that follow it, in their order (see `shared_values`)."""

    finished: tuple[Finished, ...]
    values: tuple[str, ...] = ()


class Beat(Message, frozen=True):
    token: int
    heartbeat: Heartbeat | None


class Report(Message, frozen=True):
    life: int
    worker: str
    finished: tuple[Finished, ...] = ()
    beats: tuple[Beat, ...] = ()
    messages: tuple[StreamWrite, ...] = ()  # for Streams, in order
    values: tuple[str, ...] = ()  # as in LotResult


class Question(Message, frozen=True):
    life: int
    worker: str
    node: str  # Ray's id of the node, in hex
    begun: tuple[int, ...] = ()
    about: tuple[int, ...] = ()  # which of these are canceled?
    wait: float = 0.0  # seconds: answer when one is, or when none of them runs any more, or after this time
    detached: AttemptKey | None = None  # the attempt, for an owner that knows nothing of its life


class Answer(Message, frozen=True):
    canceled: tuple[int, ...] = ()
    is_unknown: bool = False  # the owner can't say yet: ask again in a moment


_encoder = msgspec.msgpack.Encoder()
_lots = msgspec.msgpack.Decoder(Lot)
_results = msgspec.msgpack.Decoder(LotResult)
_reports = msgspec.msgpack.Decoder(Report)
_questions = msgspec.msgpack.Decoder(Question)
_answers = msgspec.msgpack.Decoder(Answer)
_sorted_encoder = msgspec.msgpack.Encoder(order="sorted")


def encode(message: Message) -> bytes:
    return _encoder.encode(message)


def encode_task(task: AttemptTask) -> bytes:
    return _encoder.encode(task)


def encode_lot(
    life: int,
    tasks: Mapping[int, bytes],
    sent_at: float,
    announce: bool,
    number: int = 0,
    may_stay: bool = False,
    namespace: str = "",
    values: Mapping[str, tuple[int, int]] | None = None,
    needs: Mapping[int, tuple[str, ...]] | None = None,
) -> bytes:
    """A `Lot` of encoded tasks by token; `needs` by token as well."""
    needs = needs or {}
    handed = tuple(_HandedOut(token, Raw(task), needs.get(token, ())) for token, task in tasks.items())
    return _encoder.encode(_LotOut(life, handed, sent_at, announce, number, may_stay, namespace, values or {}))


def resource_signature(resources: Mapping[str, Any]) -> bytes:
    """Equal for equal resources, whatever their order."""
    return _sorted_encoder.encode(resources) if resources else b""


def decode_lot(data: bytes) -> Lot:
    return _lots.decode(data)


def decode_result(data: bytes) -> LotResult:
    return _results.decode(data)


def decode_report(data: bytes) -> Report:
    return _reports.decode(data)


def decode_question(data: bytes) -> Question:
    return _questions.decode(data)


def decode_answer(data: bytes) -> Answer:
    return _answers.decode(data)
