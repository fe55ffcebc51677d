"""The workers' own log: which attempts were handed out by whom, what they were given, and what they came to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from dexray.protocol.attempts import AttemptKey, AttemptResult, AttemptTask


@dataclass(slots=True)
class Attempt:
    token: int
    who: str  # the life of an owner that handed it out
    task: AttemptTask
    results: list[AttemptResult] = field(default_factory=list)


class Log:
    """`newest`: of several attempts that one life handed out or adopted under one key, the last. `adopters`: the lives
    that have adopted detached ones, with their keys; `lost`: detached ones that were gone when a later owner came."""

    def __init__(self, watch: Callable[[Attempt], None]) -> None:
        self.attempts: dict[int, Attempt] = {}
        self.newest: dict[tuple[str, AttemptKey], Attempt] = {}
        self.adopters: set[tuple[str, AttemptKey]] = set()
        self.lost: set[AttemptKey] = set()
        self._watch = watch

    def handed_out(self, who: str, task: AttemptTask) -> int:
        token = len(self.attempts) + 1
        attempt = self.attempts[token] = self.newest[who, task.key] = Attempt(token, who, task)
        self._watch(attempt)
        return token

    def adopted(self, who: str, token: int) -> None:
        attempt = self.attempts[token]
        self.newest[who, attempt.task.key] = attempt
        self.adopters.add((who, attempt.task.key))

    def came_to(self, token: int, result: AttemptResult) -> None:
        self.attempts[token].results.append(result)
