"""What the engine stands between, with faults on command: the journal, its thread, and the attempts.

`FaultyJournal` is that of `dexray.testing`, whose wire is cut by chance too. `Lane` is the journal's thread in virtual
time. `ScriptedPort` hands no code out: a test says what comes of each attempt, and when.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from dexray.journal.interface import Append
from dexray.protocol.attempts import AttemptKey, AttemptResult, AttemptTask, interrupted
from dexray.protocol.ports import AttemptPort, AttemptSink
from dexray.testing import faults
from dexray.testing.faults import AFTER, BEFORE

T = TypeVar("T")


@dataclass(slots=True)
class Plan:
    """Faults by chance: of a call, the probability to be cut off before its work, and after it."""

    seed: int
    before: float = 0.0
    after: float = 0.0


class FaultyJournal(faults.FaultyJournal):
    """With faults by chance, on the loop's time."""

    def __init__(self, inner: Any, plan: Plan | None = None) -> None:
        super().__init__(inner, lambda: asyncio.get_running_loop().time())
        self.batches: list[list[Append]] = []  # what was appended, whatever came of it
        self.poison: Callable[[Append], bool] | None = None  # records that the database can't take
        self._plan = plan
        self._dice = random.Random(plan.seed if plan is not None else 0)

    def calm(self) -> None:
        super().calm()
        self._plan = None

    def append(self, batch: Sequence[Append]) -> Any:
        self.batches.append(list(batch))
        if self.poison is not None and any(self.poison(record) for record in batch):
            raise ValueError("the database can't take this value")
        return super().append(batch)

    def _fault(self, operation: str) -> str:
        fault = super()._fault(operation)
        if not fault and self._plan is not None:
            chance = self._dice.random()
            if chance < self._plan.before:
                return BEFORE
            if chance < self._plan.before + self._plan.after:
                return AFTER
        return fault


class Lane:
    """The journal's thread in virtual time: calls go one at a time and in order, `before` seconds pass until the work
    is done and `after` until its caller hears of it. From `hold` to `free`, nothing begins."""

    def __init__(self) -> None:
        self.before = 0.0
        self.after = 0.0
        self._turn = asyncio.Lock()
        self._free = asyncio.Event()
        self._free.set()

    def hold(self) -> None:
        self._free.clear()

    def free(self) -> None:
        self._free.set()

    async def __call__(self, call: Callable[[], T], /) -> T:
        async with self._turn:
            await self._free.wait()
            if self.before:
                await asyncio.sleep(self.before)
            answer = call()
            if self.after:
                await asyncio.sleep(self.after)
            return answer

    def close(self) -> None:
        pass


Script = Callable[[AttemptTask], "AttemptResult | None"]


class ScriptedPort(AttemptPort):
    """An `AttemptPort`. `script` says what comes of an attempt, after `seconds`; None leaves it out, for `finish`."""

    sink: AttemptSink

    def __init__(self, script: Script, slots: int = 1_000) -> None:
        self.script = script
        self.slots = slots
        self.seconds = 0.0
        self.taken = 0
        self.most = 0
        self.out: dict[AttemptKey, AttemptTask] = {}
        self.ran: list[AttemptTask] = []
        self.canceled: list[AttemptKey] = []
        self.surviving: set[AttemptKey] | None = None  # detached attempts of former owners; None: this port has none
        self.adopted: list[AttemptKey] = []
        self.settled_keys: list[AttemptKey] = []
        self.closed = False

    def reserve(self, flow_type: str, step_type: str, is_async: bool) -> bool:
        if self.taken >= self.slots:
            return False
        self.taken += 1
        self.most = max(self.most, self.taken)
        return True

    def release(self, flow_type: str, step_type: str, is_async: bool) -> None:
        assert self.taken > 0, "a slot was given back that nobody had"
        self.taken -= 1
        self.sink.slots_changed()

    def run(self, task: AttemptTask) -> None:
        assert len(self.out) < self.taken, "an attempt runs that has no slot"
        self.out[task.key] = task
        self.ran.append(task)
        result = self.script(task)
        if result is not None:
            asyncio.get_running_loop().call_later(self.seconds, self.finish, task.key, result)

    def finish(self, key: AttemptKey, result: AttemptResult) -> None:
        """The result of an attempt; of one that is not out any more: a late or repeated result."""
        if self.closed:
            return
        if self.out.pop(key, None) is not None:
            self.taken -= 1
        self.sink.attempt_finished(key, result)
        self.sink.slots_changed()

    def adopt(self, task: AttemptTask) -> bool:
        if self.surviving is None:
            return False
        self.taken += 1
        self.out[task.key] = task
        self.adopted.append(task.key)
        if task.key not in self.surviving:
            gone = interrupted("its process is gone")
            asyncio.get_running_loop().call_soon(self.finish, task.key, gone)
        return True

    def settled(self, key: AttemptKey) -> None:
        self.settled_keys.append(key)

    def waiting_for(self, key: AttemptKey) -> str:
        return ""

    def cancel(self, key: AttemptKey) -> None:
        self.canceled.append(key)

    # For tests

    def runs_of(self, step_type: str) -> list[AttemptTask]:
        return [task for task in self.ran if task.step_type == step_type]

    def only(self, step_type: str) -> AttemptKey:
        """The one attempt of this Step type that is out."""
        (key,) = [key for key, task in self.out.items() if task.step_type == step_type]
        return key


async def give_up(awaitable: Awaitable[Any]) -> BaseException | None:
    """The exception that something ends with, None when it succeeds."""
    try:
        await awaitable
    except Exception as error:
        return error
    return None
