"""The two sides of an attempt: who hands it out, and who hears of it. And the way from one owner to the others.

The engine owns Flows and knows nothing of Ray. It hands attempts to an `AttemptPort` and is told of them through
`AttemptSink`. Both sides live in one event loop; none of their methods blocks. What it asks of Flows that may be
another owner's goes to a `Router`.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

from dex.wire.service import AnswerT, Request
from dexray.protocol.attempts import AttemptKey, AttemptResult, AttemptTask, Heartbeat
from dexray.protocol.streams import StreamWrite


class AttemptSink(Protocol):
    """The engine, as the attempts see it. Late and repeated calls are harmless."""

    def attempt_running(self, key: AttemptKey) -> None:
        """The handler has begun: its timeouts count from now. Told only of attempts that run longer than a moment."""

    def attempt_heartbeat(self, key: AttemptKey, heartbeat: Heartbeat | None) -> None:
        """A sign of life; None is an implicit one, which keeps the checkpoint."""

    def attempt_finished(self, key: AttemptKey, result: AttemptResult) -> None:
        """The one final result."""

    def stream_written(self, message: StreamWrite) -> None:
        """A message for a Stream, from an attempt that may be over by now. Best effort."""

    async def is_wanted(self, key: AttemptKey) -> bool:
        """Whether this is the running attempt of its Step still: asked of detached ones that another owner had handed
        out. Loads the Flow; raises when that is not possible, or when it is another owner's."""
        ...

    def slots_changed(self) -> None:
        """There may be room for attempts that `reserve` refused."""


class AttemptPort(Protocol):
    def reserve(self, flow_type: str, step_type: str, is_async: bool) -> bool:
        """Takes one slot for an attempt if one is free: the engine records the start, then calls `run`."""

    def release(self, flow_type: str, step_type: str, is_async: bool) -> None:
        """Gives a reserved slot back without a run."""

    def at_hand(self, task: AttemptTask, hashes: Collection[str]) -> frozenset[str]:
        """Which large values, of those that the task refers to, the port brings to it by itself if it is run now."""
        return frozenset()

    def run(self, task: AttemptTask) -> None:
        """Runs a reserved attempt whose start is recorded. The slot is free again when it has finished. What it refers
        to and does not carry was `at_hand` just before."""

    def adopt(self, task: AttemptTask) -> bool:
        """Takes over a detached attempt that a former owner of its Flow had handed out. It ends as one that was run
        here, perhaps at once because it is gone. False: nothing survives an owner here."""
        return False

    def settled(self, key: AttemptKey) -> None:
        """The outcome of a detached attempt is durable, or not wanted any more: what holds it may go."""
        return

    def waiting_for(self, key: AttemptKey) -> str:
        """What keeps an attempt from beginning that was given to `run`, in words; "" when it runs or is unknown."""
        ...

    def cancel(self, key: AttemptKey) -> None:
        """Asks a running attempt to stop, cooperatively. One that never began may be dropped."""


class Router(Protocol):
    async def call(self, request: Request[AnswerT]) -> AnswerT:
        """Puts a request to the owner of its Flow, whoever that is. Answers in bounded time, beyond what the request
        itself asks to wait. Raises ServiceError; UNAVAILABLE means that the outcome is unknown: repeat with the same
        id."""
        ...
