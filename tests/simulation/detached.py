"""Detached attempts of the simulated cluster: they survive the life that handed them out.

An `Actor` is the process of one attempt. It belongs to the cluster: it runs whatever becomes of owners, and keeps its
result until an owner says that the outcome is durable, or that nobody wants it. Whoever handed it out or has adopted it
listens, the dead and the paused as well; a later life finds it by the key of its attempt. An Actor may crash, too, and
one that nobody hears any more asks the owner of that name whether it is wanted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dexray.protocol.attempts import (
    WORKER_CRASHED,
    AttemptFailed,
    AttemptKey,
    AttemptResult,
    AttemptReturned,
    AttemptTask,
    interrupted,
)

if TYPE_CHECKING:
    from tests.simulation.cluster import Life
    from tests.simulation.schedule import Schedule

ASK_EVERY = 50.0
UNATTENDED = 3600.0
RETURNED = 60.0  # seconds until one that could not run ends by itself


class Actor:
    def __init__(self, token: int, task: AttemptTask, life: Life, handle: int) -> None:
        self.token = token
        self.task = task
        self.listeners = [(life, handle)]  # the last one is who may cancel it
        self.result: AttemptResult | None = None
        self.is_settled = False
        self.unheard_since = 0.0


class Actors:
    """All that there are, by the key of their attempt. `handle`: what a life calls its hand-out or its adoption."""

    def __init__(self, schedule: Schedule) -> None:
        self._schedule = schedule
        self._there: dict[AttemptKey, Actor] = {}

    def run(self, life: Life, task: AttemptTask, token: int, handle: int) -> None:
        """Makes the Actor of an attempt, with its fate."""
        schedule = self._schedule
        weather, dice, fate = schedule.weather, schedule.dice, schedule.world.fate
        there = self._there.get(task.key)
        if there is not None and isinstance(there.result, AttemptReturned):
            # It did not run and is about to end; until then its name is taken, and Ray refuses another one.
            refused = AttemptReturned(reason="its name is taken")
            life.process.call_later(schedule.latency(), life.port.finish, handle, refused)
            return
        schedule.auditor.require(there is None, "two at once", task.key)
        actor = self._there[task.key] = Actor(token, task, life, handle)
        schedule.faults["detached"] += 1
        delay = dice.pick(schedule.plan.delays) if dice.chance(0.5) else dice.pick((3.0, 20.0, 60.0))
        chance = dice.random()
        if chance < weather.returned:
            fate.call_later(delay, self._over, actor, AttemptReturned(reason="it did not run"))
        elif chance < weather.returned + 2 * weather.crashed:
            crash = AttemptFailed(error_type="WorkerCrashedError", detail=f"#{token}", kind=WORKER_CRASHED)
            fate.call_later(delay, self._crash, actor, crash)
        else:
            fate.call_later(delay, self._done, actor)
        fate.call_later(ASK_EVERY, self._ask, actor)

    def adopt(self, life: Life, task: AttemptTask, handle: int) -> AttemptResult | None:
        """A later owner attaches itself; what came of the attempt, if that is known. One that is gone was
        interrupted."""
        schedule, actor = self._schedule, self._there.get(task.key)
        if actor is None:
            schedule.faults["detached: gone"] += 1
            schedule.log.lost.add(task.key)
            return interrupted("it was detached, but it is gone")
        schedule.faults["detached: adopted"] += 1
        actor.listeners.append((life, handle))
        schedule.log.adopted(life.name, actor.token)
        return actor.result

    def settled(self, key: AttemptKey) -> None:
        actor = self._there.get(key)
        if actor is not None:
            if not isinstance(actor.result, AttemptReturned):  # it may be handed out again under the same key
                self._schedule.auditor.settled_attempt(key)
            actor.is_settled = True
            if actor.result is not None:
                self._end(actor)

    def cancel(self, life: Life, key: AttemptKey) -> None:
        """Asked by a life that has been replaced as its owner, it does not hear."""
        schedule, actor = self._schedule, self._there.get(key)
        if actor is None or actor.listeners[-1][0] is not life:
            return
        if not schedule.dice.chance(schedule.weather.deaf):
            failure = AttemptFailed(error_type="Cancelled", detail="asked")
            schedule.world.fate.call_later(0.003, self._over, actor, failure)

    # Its life ---------------------------------------------------------------------------------------------------------

    def _is_there(self, actor: Actor) -> bool:
        return self._there.get(actor.task.key) is actor

    def _done(self, actor: Actor) -> None:
        if self._is_there(actor) and actor.result is None:
            result = self._schedule.handlers.result(actor.task, actor.token)
            self._schedule.log.came_to(actor.token, result)
            self._over(actor, result)

    def _crash(self, actor: Actor, crash: AttemptFailed) -> None:
        if self._is_there(actor) and actor.result is None:
            self._over(actor, crash)
            self._end(actor)

    def _over(self, actor: Actor, result: AttemptResult) -> None:
        if not self._is_there(actor) or actor.result is not None:
            return
        actor.result = result
        if isinstance(result, AttemptReturned):
            self._schedule.world.fate.call_later(RETURNED, self._end, actor)
        self._schedule.world.say("", f"detached #{actor.token} is over: {type(result).__name__}")
        for life, handle in actor.listeners:
            life.process.call_later(self._schedule.latency(), life.port.finish, handle, result)
        if actor.is_settled:
            self._end(actor)

    def _end(self, actor: Actor) -> None:
        if self._is_there(actor):
            del self._there[actor.task.key]

    def _ask(self, actor: Actor) -> None:
        """Whether it is wanted: of the life that bears its owner's name now."""
        world = self._schedule.world
        if not self._is_there(actor) or actor.unheard_since > UNATTENDED:
            self._end(actor)
            return
        life = self._schedule.lives.get(actor.listeners[-1][0].owner)
        if life is not None and not life.process.is_dead:
            life.process.create_task(self._answer(life, actor))
        actor.unheard_since += ASK_EVERY
        world.fate.call_later(ASK_EVERY, self._ask, actor)

    async def _answer(self, life: Life, actor: Actor) -> None:
        key = actor.task.key
        if key in life.port.tokens:
            actor.unheard_since = 0.0
            return
        try:
            wanted = await life.host.is_wanted(key)
        except Exception:  # the Flow is another owner's, or can't be loaded now: that is no answer
            return
        if not wanted:
            self._schedule.faults["detached: not wanted"] += 1
            self._schedule.auditor.settled_attempt(key)
            self._end(actor)


__all__ = ["Actor", "Actors"]
