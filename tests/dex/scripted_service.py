"""A FlowService that answers from a script and remembers what it was asked, and a clock that only moves when told."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

from dex.wire.service import Answer, Request, ServiceError, decode_request, encode

AnswerT = TypeVar("AnswerT", bound=Answer)
Line = Answer | ServiceError | Callable[[Any], Any]

HANG = object()


class ScriptedService:
    """Each request takes the next line of the script: answers are given, errors raised, functions called with it."""

    def __init__(self, *script: Line | object) -> None:
        self.script = list(script)
        self.requests: list[Any] = []
        self.closed = 0

    async def call(self, request: Request[AnswerT]) -> AnswerT:
        assert decode_request(encode(request)) == request, "every request must survive the wire"
        self.requests.append(request)
        assert self.script, f"the script has no answer to {request}"
        line = self.script.pop(0)
        if line is HANG:
            await asyncio.Event().wait()
        if isinstance(line, ServiceError):
            raise line
        if callable(line):
            line = line(request)
        assert isinstance(line, request.answer_type), f"{line} is no answer to {request}"
        return line  # type: ignore[return-value]

    async def close(self) -> None:
        self.closed += 1

    @property
    def request(self) -> Any:
        """The only request that came."""
        assert len(self.requests) == 1, self.requests
        return self.requests[0]


def unavailable(detail: str = "its owner is moving") -> ServiceError:
    return ServiceError("UNAVAILABLE", detail)


def poll_over() -> ServiceError:
    return ServiceError("DEADLINE_EXCEEDED", "the Flow is still running", "LONG_POLL_TIMEOUT")


class VirtualTime:
    """`sleep` moves `now`; nothing else does, but for `pass_by`, which makes a line of a script that takes time."""

    def __init__(self) -> None:
        self.now = 5_000.0
        self.pauses: list[float] = []

    def read(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.now += seconds

    def pass_by(self, seconds: float, line: Answer | ServiceError) -> Callable[[Any], Any]:
        def after(request: Any) -> Any:
            self.now += seconds
            if isinstance(line, ServiceError):
                raise line
            return line

        return after
