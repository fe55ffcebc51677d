"""The simulated cluster: lives of owners, their wire to the database, their workers, the network, the Directory.

A `Life` is one process of an owner: a FlowHost, with ports that fate sits in. Another life of the same name may follow
it, or begin beside it while it is paused; then a Flow has two owners for a moment, which is what fencing is for.
"""

from __future__ import annotations

import asyncio
import traceback
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Any, TypeVar

from dex.wire.service import AnswerT, Request, ServiceError, ServiceFailure, WaitForFlow
from dex.wire.specs import RPC, DeploymentSpec
from dexray.engine import FlowHost, HostSettings, NotMine
from dexray.journal.interface import JournalUnavailable
from dexray.protocol.attempts import (
    WORKER_CRASHED,
    AttemptFailed,
    AttemptKey,
    AttemptResult,
    AttemptReturned,
    AttemptTask,
    Heartbeat,
)
from dexray.protocol.ports import AttemptPort
from dexray.protocol.streams import StreamWrite
from tests.simulation.generate import Dice, text
from tests.simulation.kernel import Process, SimClock
from tests.simulation.memory import MemoryJournal

if TYPE_CHECKING:
    from tests.simulation.schedule import Schedule

T = TypeVar("T")

OK, FAILED, ELSEWHERE = "ok", "failed", "elsewhere"
Reply = tuple[str, Any]


@dataclass(slots=True)
class Weather:
    """How bad it is at the moment. Probabilities of single events; `out_until` are outages of the database by owner."""

    cut_before: float = 0.0
    cut_after: float = 0.0
    slow_reads: float = 0.0
    lost: float = 0.0
    late: float = 0.0
    crashed: float = 0.0
    hung: float = 0.0
    returned: float = 0.0
    repeated: float = 0.0
    deaf: float = 0.0  # handlers that don't hear a cancellation


class Wire:
    """One life's connection to the database, and the thread that uses it: calls go one at a time and in order.

    A call takes a moment to get there and a moment to come back. It may be cut off on either way; what is under way
    when its life ends may still be done.
    """

    def __init__(self, life: Life) -> None:
        self._life = life
        self._schedule = life.schedule
        self._queue: deque[tuple[Callable[[], Any], asyncio.Future[Any]]] = deque()
        self._busy = False
        self.out_until = 0.0

    def __call__(self, call: Callable[[], T], /) -> asyncio.Future[T]:
        future = self._life.process.create_future()
        self._queue.append((call, future))
        if not self._busy:
            self._next()
        return future

    def close(self) -> None:
        pass

    def _next(self) -> None:
        self._busy = bool(self._queue)
        if self._busy:
            schedule = self._schedule
            schedule.world.fate.call_later(schedule.latency(), self._arrive, *self._queue.popleft())

    def _arrive(self, call: Callable[[], Any], future: asyncio.Future[Any]) -> None:
        schedule, life = self._schedule, self._life
        if life.process.is_dead and schedule.dice.chance(0.5):
            return
        weather, chance = schedule.weather, schedule.dice.random()
        now = schedule.world.now
        answer: Any = None
        error: Exception | None = None
        back = schedule.latency()
        if now < self.out_until or now < schedule.out_until or chance < weather.cut_before:
            schedule.faults["cut before"] += 1
            error = JournalUnavailable("the wire was cut before")
        else:
            try:
                answer = call()
            except Exception as raised:
                error = raised
            if weather.cut_before <= chance < weather.cut_before + weather.cut_after:
                schedule.faults["cut after"] += 1
                error = JournalUnavailable("the wire was cut after")
            elif weather.slow_reads and schedule.dice.chance(weather.slow_reads):
                schedule.faults["stale read"] += 1
                back += schedule.dice.pick((0.05, 1.0, 6.0))
        life.process.call_later(back, self._told, future, answer, error)

    def _told(self, future: asyncio.Future[Any], answer: Any, error: Exception | None) -> None:
        if not future.done():
            if error is None:
                future.set_result(answer)
            else:
                future.set_exception(error)
        self._next()


class Port(AttemptPort):
    """The workers of one life, as an AttemptPort. Each attempt has its token, and its fate."""

    def __init__(self, life: Life, slots: int) -> None:
        self._life = life
        self._schedule = life.schedule
        self._slots = slots
        self.taken = 0
        self.refused = False
        self.out: dict[int, AttemptTask] = {}
        self.tokens: dict[AttemptKey, int] = {}
        self._adoptions = count(1)

    def reserve(self, flow_type: str, step_type: str, is_async: bool) -> bool:
        if self.taken >= self._slots:
            self.refused = True
            return False
        self.taken += 1
        return True

    def release(self, flow_type: str, step_type: str, is_async: bool) -> None:
        self.taken -= 1
        if self.refused:
            self.refused = False
            self._life.host.slots_changed()

    def adopt(self, task: AttemptTask) -> bool:
        handle = -next(self._adoptions)
        self.taken += 1
        self.out[handle] = task
        self.tokens[task.key] = handle
        self._life.process.call_later(self._schedule.latency(), self._attach, task, handle)
        return True

    def _attach(self, task: AttemptTask, handle: int) -> None:
        result = self._schedule.detached.adopt(self._life, task, handle)
        if result is not None:
            self._life.process.call_later(self._schedule.latency(), self.finish, handle, result)
        elif handle in self.out:
            self._life.host.attempt_running(task.key)

    def settled(self, key: AttemptKey) -> None:
        self._schedule.detached.settled(key)

    def waiting_for(self, key: AttemptKey) -> str:
        return ""

    def run(self, task: AttemptTask) -> None:
        schedule, process = self._schedule, self._life.process
        token = schedule.log.handed_out(self._life.name, task)
        self.out[token] = task
        self.tokens[task.key] = token
        weather, dice = schedule.weather, schedule.dice
        if schedule.world.lines is not None:
            key = task.key
            schedule.world.say(
                self._life.name, f"hands out #{token} {key.flow_id} {key.step_execution_id} {key.method} {key.attempt}"
            )
        if task.detached:
            process.call_later(0.0005, self._running, token)
            schedule.detached.run(self._life, task, token, token)
            return
        delay = dice.pick(schedule.plan.delays) if not dice.chance(0.04) else dice.pick((3.0, 40.0, 100.0))
        fate = dice.random()
        if fate < weather.returned:
            schedule.faults["attempt returned"] += 1
            process.call_later(delay, self.finish, token, AttemptReturned(reason="it did not run"))
            return
        if fate < weather.returned + weather.crashed:
            schedule.faults["worker crashed"] += 1
            crash = AttemptFailed(error_type="WorkerCrashedError", detail=f"#{token}", kind=WORKER_CRASHED)
            process.call_later(delay, self.finish, token, crash)
            if dice.chance(0.5):  # it was not dead after all
                process.call_later(delay + dice.pick((0.002, 0.1, 1.1, 5.0)), self._late, token)
            return
        if delay > 0.2 or dice.chance(0.1):
            process.call_later(0.0005, self._running, token)
        if fate < weather.returned + weather.crashed + weather.hung:
            schedule.faults["attempt hung"] += 1
            process.call_later(0.0005, self._running, token)
            process.call_later(dice.pick((100.0, 10_000.0)), self._late, token)  # the zombie returns
            return
        if delay > 2.0:
            process.call_later(delay / 3, self._beat, token, dice.chance(0.7))
            process.call_later(delay / 2, self._beat, token, dice.chance(0.7))
        process.call_later(delay, self._done, token)

    def _running(self, token: int) -> None:
        if token in self.out:
            self._life.host.attempt_running(self.out[token].key)

    def _beat(self, token: int, has_value: bool) -> None:
        task = self.out.get(token)
        if task is not None:
            self._life.host.attempt_heartbeat(task.key, Heartbeat(has_value, text(f"beat {token}")))
            if task.key.method != RPC:
                stream = StreamWrite(task.key.flow_id, "s", f"#{task.key.step_execution_id}", 300, text(f"at {token}"))
                self._life.host.stream_written(stream)

    def _done(self, token: int) -> None:
        task = self.out.get(token)
        if task is None:
            return
        schedule = self._schedule
        result = schedule.handlers.result(task, token)
        schedule.log.came_to(token, result)
        self.finish(token, result)
        if schedule.weather.repeated and schedule.dice.chance(schedule.weather.repeated):
            schedule.faults["result repeated"] += 1
            again = result if schedule.dice.chance(0.5) else schedule.handlers.result(task, token)
            self._life.process.call_later(schedule.dice.pick((0.0, 0.01, 2.0)), self._repeat, task.key, again)

    def _late(self, token: int) -> None:
        """A worker that nobody waits for any more has come to its end."""
        schedule = self._schedule
        task = schedule.log.attempts[token].task
        result = schedule.handlers.result(task, token)
        schedule.log.came_to(token, result)
        schedule.faults["late result"] += 1
        if token in self.out:
            self.finish(token, result)
        else:
            self._life.host.attempt_finished(task.key, result)

    def _repeat(self, key: AttemptKey, result: AttemptResult) -> None:
        self._life.host.attempt_finished(key, result)

    def finish(self, token: int, result: AttemptResult) -> None:
        task = self.out.pop(token, None)
        if task is None:
            return
        if self.tokens.get(task.key) == token:
            del self.tokens[task.key]
        if self._schedule.world.lines is not None:
            self._schedule.world.say(self._life.name, f"hears of #{token}: {type(result).__name__}")
        self.release(task.flow_type, task.step_type, task.is_async)
        self._life.host.attempt_finished(task.key, result)

    def cancel(self, key: AttemptKey) -> None:
        token = self.tokens.get(key)
        if token is None:
            return
        schedule = self._schedule
        schedule.faults["attempt cancelled"] += 1
        if self.out[token].detached:
            schedule.detached.cancel(self._life, key)
            return
        if schedule.dice.chance(schedule.weather.deaf):
            return  # it goes on to its end, and takes its slot until then
        self._life.process.call_later(0.003, self.finish, token, AttemptFailed(error_type="Cancelled", detail="asked"))


class Life:
    """One process of an owner."""

    def __init__(self, schedule: Schedule, owner: str, number: int, offset: float) -> None:
        self.schedule = schedule
        self.owner = owner
        self.name = f"{owner}.{number}"
        self.process = Process(schedule.world, self.name)
        self.clock = SimClock(self.process, offset)
        self.wire = Wire(self)
        self.port = Port(self, schedule.plan.slots)
        self.journal = MemoryJournal(schedule.database, self.name)
        self._known: dict[str, str] = {}
        self.host: FlowHost
        self.process.call_soon(self._begin)

    def _begin(self) -> None:
        self.host = FlowHost(
            owner=self.owner,
            journal=self.journal,
            attempts=self.port,
            clock=self.clock,
            blocking=self.wire,
            new_id=self._new_id,
            settings=self.schedule.plan.settings,
            router=self,
            outlived=lambda: self.schedule.world.fate.call_soon(self.schedule.directory.stepped_down, self),
        )
        self.schedule.hosts.append(self.host)
        self.host.deploy(self.schedule.deployment)
        self.host.start()

    def _new_id(self) -> str:
        return f"{self.schedule.world.number():07d}-{self.owner}"

    # What comes in

    def receive(self, request: Request[Any], reply: Callable[[Reply], None], since: int) -> None:
        self.process.create_task(self._serve(request, reply, since))

    async def _serve(self, request: Request[Any], reply: Callable[[Reply], None], since: int) -> None:
        """`since`: the version of the books when the request reached the process, which may have been paused then."""
        schedule = self.schedule
        outcome: Reply
        try:
            answer = await self.host.call(request)  # type: ignore[arg-type]
            schedule.witness.told(request, answer, since)  # type: ignore[arg-type]
            outcome = (OK, answer)
        except ServiceError as error:
            schedule.witness.refused(request, error.failure)  # type: ignore[arg-type]
            outcome = (FAILED, error.failure)
        except NotMine as elsewhere:
            outcome = (ELSEWHERE, elsewhere.owner)
        except Exception as error:
            schedule.auditor.require(False, "engine error", request, repr(error), traceback.format_exc())
            outcome = (FAILED, ServiceFailure(code="INTERNAL", detail=str(error)))
        reply(outcome)

    def deploy(self, deployment: DeploymentSpec) -> None:
        self.host.deploy(deployment)

    def adopt(self) -> None:
        self.process.create_task(self.host.residents.recover())

    # The way to other owners: Router

    async def call(self, request: Request[AnswerT]) -> AnswerT:
        patience = 30.0 + (request.timeout if isinstance(request, WaitForFlow) else 0.0)
        kind, answer = await self.schedule.network.ask(self.process, self._known, request, patience)
        if kind == OK:
            return answer  # type: ignore[no-any-return]
        raise ServiceError.of(answer)


UNAVAILABLE = ServiceFailure(code="UNAVAILABLE", detail="no answer: the outcome is unknown")


class Network:
    """Messages between Processes: lost, late, out of order, and the finding of owners."""

    def __init__(self, schedule: Schedule) -> None:
        self._schedule = schedule

    async def ask(self, asker: Process, known: dict[str, str], request: Request[Any], patience: float) -> Reply:
        """OK or FAILED. What is not answered in time is UNAVAILABLE."""
        schedule = self._schedule
        owner = known.get(request.flow_id) or schedule.dice.pick(schedule.owners)
        until = asker.world.now + patience
        for _ in range(5):
            kind, answer = await self._put(asker, owner, request, until - asker.world.now)
            if kind != ELSEWHERE:
                if kind == OK:
                    known[request.flow_id] = owner
                elif answer.code == "UNAVAILABLE":
                    known.pop(request.flow_id, None)
                return kind, answer
            owner = answer
        return FAILED, UNAVAILABLE

    def _put(self, asker: Process, owner: str, request: Request[Any], patience: float) -> asyncio.Future[Reply]:
        schedule, future = self._schedule, asker.create_future()
        weather, dice = schedule.weather, schedule.dice
        timer = asker.call_later(max(0.0, patience), _resolve, future, (FAILED, UNAVAILABLE))

        def reply(outcome: Reply) -> None:
            if weather.lost and dice.chance(weather.lost):
                schedule.faults["reply lost"] += 1
                return
            asker.call_later(schedule.latency(), _answer, future, timer, outcome)

        if weather.lost and dice.chance(weather.lost):
            schedule.faults["request lost"] += 1
            return future
        delay = schedule.latency()
        if weather.late and dice.chance(weather.late):
            schedule.faults["request late"] += 1
            delay = dice.pick((0.5, 3.0, 20.0))
        schedule.world.fate.call_later(delay, self._deliver, owner, request, reply)
        return future

    def _deliver(self, owner: str, request: Request[Any], reply: Callable[[Reply], None]) -> None:
        """To the life that bears the name now. A dead one says nothing; a paused one hears it when it goes on."""
        life = self._schedule.lives.get(owner)
        if life is not None:
            life.process.call_soon(life.receive, request, reply, self._schedule.auditor.version)


def _resolve(future: asyncio.Future[Reply], outcome: Reply) -> None:
    if not future.done():
        future.set_result(outcome)


def _answer(future: asyncio.Future[Reply], timer: Any, outcome: Reply) -> None:
    timer.cancel()
    _resolve(future, outcome)


class Directory:
    """Begins lives of owners, and what becomes of the Flows of those that have ended."""

    def __init__(self, schedule: Schedule) -> None:
        self._schedule = schedule
        self._numbers: Counter[str] = Counter()
        self.offsets: dict[str, float] = {}
        self.all: list[Life] = []

    def begin(self, owner: str) -> Life:
        self._numbers[owner] += 1
        life = Life(self._schedule, owner, self._numbers[owner], self.offsets.get(owner, 0.0))
        self._schedule.lives[owner] = life
        self.all.append(life)
        self._schedule.world.say(life.name, "begins")
        return life

    def kill(self, owner: str, after: float, adopter: str = "") -> None:
        """SIGKILL. `after` seconds it is back, or its Flows belong to `adopter` (and it is back all the same)."""
        life = self._schedule.lives.get(owner)
        if life is None or life.process.is_dead:
            return
        self._schedule.faults["kill"] += 1
        self._schedule.world.say(life.name, "is killed")
        life.process.kill()
        self._schedule.world.fate.call_later(after, self._replace, life, adopter)

    def _replace(self, life: Life, adopter: str) -> None:
        schedule = self._schedule
        if adopter and adopter != life.owner:
            schedule.faults["reassign"] += 1
            MemoryJournal(schedule.database, "directory").reassign(life.owner, adopter, 1000)
            adopting = schedule.lives.get(adopter)
            if adopting is not None:
                adopting.process.call_soon(adopting.adopt)
        if schedule.lives.get(life.owner) is life:
            self.begin(life.owner)

    def pause(self, owner: str, seconds: float, successor: float, adopter: str, goes_on: float) -> None:
        """SIGSTOP for so many seconds. `successor`: after how many a new life is begun beside it, when it is still
        paused then; `goes_on`: how long the old one lives on after that."""
        life = self._schedule.lives.get(owner)
        if life is None or life.process.is_held:
            return
        fate = self._schedule.world.fate
        self._schedule.faults["pause"] += 1
        self._schedule.world.say(life.name, f"is paused for {seconds:g} s")
        life.process.pause()
        if successor < seconds:
            self._schedule.faults["two owners"] += 1
            fate.call_later(successor, self._replace, life, adopter)
            fate.call_later(seconds + goes_on, self._end, life)
        fate.call_later(seconds, life.process.resume)

    def _end(self, life: Life) -> None:
        if not life.process.is_dead:
            self._schedule.world.say(life.name, "ends at last")
            life.process.kill()
            if self._schedule.lives.get(life.owner) is life:
                self.begin(life.owner)

    def stop(self, owner: str, drain: float) -> None:
        """An orderly end, then a new life."""
        life = self._schedule.lives.get(owner)
        if life is None or life.process.is_held:
            return
        self._schedule.faults["orderly stop"] += 1
        self._schedule.world.say(life.name, "is to end in order")
        life.process.create_task(self._stop(life, drain))

    async def _stop(self, life: Life, drain: float) -> None:
        await life.host.stop(drain)
        self._schedule.world.fate.call_soon(self._stopped, life)

    def stepped_down(self, life: Life) -> None:
        """A process that was told that its life is over ends itself; if it is the one that bears the name, a next one
        follows."""
        self._schedule.faults["stepped down"] += 1
        self._schedule.world.say(life.name, "has stepped down")
        if not life.process.is_dead:
            self._stopped(life)

    def deploy(self) -> None:
        """The same code under another name, on all that live."""
        schedule = self._schedule
        schedule.faults["deployed anew"] += 1
        self._numbers["deployment"] += 1
        name = f"d{self._numbers['deployment'] + 1}"
        schedule.deployment = DeploymentSpec(deployment_id=name, flows=schedule.plan.types)
        for life in schedule.lives.values():
            life.process.call_soon(life.deploy, schedule.deployment)

    def mend(self) -> None:
        """All faults stop: who is paused goes on or is replaced, zombies end, all are there."""
        for life in self.all:
            life.wire.out_until = 0.0
            life.process.fuse = 0
            if self._schedule.lives.get(life.owner) is not life:
                life.process.kill()
            elif life.process.is_dead:
                self.begin(life.owner)
            else:
                life.process.resume()

    def _stopped(self, life: Life) -> None:
        life.process.kill()
        if self._schedule.lives.get(life.owner) is life:
            self.begin(life.owner)


def dice_for(seed: int) -> Dice:
    return Dice(seed)


__all__ = ["FAILED", "OK", "Directory", "HostSettings", "Life", "Network", "Weather"]
