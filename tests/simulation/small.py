"""Small worlds, exhaustively: every order in which things can happen to two Flows, their clients and their owner.

At the level of the machine: Flows with up to three Steps each, clients that publish, stop and repeat what was not
answered, attempts that succeed, fail or come late, commits of both Flows at once, and crashes that take with them what
was not committed. All interleavings are tried. What makes that possible:

- **States are hashed.** A `Side`, which is all that can be said of one Flow, is its state in memory, what is committed
  of it, and what clients have sent. Two ways that lead to the same are one. What no handler of these worlds looks at
  (how many events there were, what a snapshot counted) is masked.
- **A Flow's own moves are found once**, however many states of the other Flow it meets: the pair is a walk over two
  tables of numbers.
- **Flows that have nothing to do with each other** (no SubFlow) share commits and crashes, and nothing else; every
  check looks at one of them, or at what both have committed. So what one of a pair can meet is what it can meet alone
  under commits and crashes at any moment, and the pair of two full worlds needs no walk of its own. `test_small_worlds`
  holds that against a walk over pairs.

After every move: the invariants of the machine hold, the newest record brings a second Flow from the state before to
the state behind it, each of its events follows from the books, and the books of the simulator, kept from the bytes of
the records alone, agree with the Flow on Steps, queues, and what each Step has consumed; each published message is in
one place: queued, or with an open Step, or gone with one that ended. Results of attempts that are not out change
nothing. At every end, where nothing is left to happen: a Flow that is open waits for something that never comes, and
not for something that is there.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from sys import intern
from typing import Any

import msgpack

from dex.wire.specs import FlowSpec
from dexray.machine import commands, invariants, subflows
from dexray.machine.decide import decide
from dexray.machine.events import decode_record, encode_record
from dexray.machine.evolve import evolve
from dexray.machine.state import BACKOFF, RUNNING, WAITING, Flow, StepState, decode_checkpoint, encode_checkpoint
from dexray.machine.turn import key_of
from dexray.protocol.attempts import (
    AttemptFailed,
    AttemptKey,
    AttemptResult,
    DecisionSpec,
    ExecuteSucceeded,
    WaitForSucceeded,
    WaitSpec,
)
from dexray.protocol.subflows import SubFlowResult
from tests.simulation.books import APPLY, Event, Run, winning

START = 1_000.0
LATE = 5_000.0  # when all Timers and retries are due

Results = dict[tuple[str, str], tuple[AttemptResult, ...]]


@dataclass(frozen=True)
class Story:
    """One Flow of a world: its code, what its handlers may return (by Step type and method), the messages and the stop
    that clients send, in any order. A child begins when the first Flow of its world has committed that it wants one."""

    spec: FlowSpec
    results: Results
    messages: tuple[tuple[str, bytes], ...] = ()
    stop: bool = False
    is_child: bool = False


@dataclass(frozen=True, slots=True)
class Side:
    """Where a Flow is. `flow`: the state in memory, as a masked checkpoint; `kept`: the same of what is committed,
    empty when nothing is. `sent`: the messages of clients that it has taken, as bits. `eaten`: ids of messages that
    went with Steps that have ended. `dirty`: there is something to commit. The books are no part of what it is: they
    follow."""

    flow: bytes
    kept: bytes = b""
    dirty: bool = False
    sent: int = 0
    kept_sent: int = 0
    eaten: frozenset[str] = frozenset()
    kept_eaten: frozenset[str] = frozenset()
    stopped: bool = False
    time: float = START
    books: Run = field(default_factory=lambda: Run("r"))
    kept_books: Run = field(default_factory=lambda: Run("r"))

    def digest(self) -> bytes:
        eaten, kept = sorted(self.eaten), sorted(self.kept_eaten)
        rest = repr((self.dirty, self.sent, self.kept_sent, eaten, kept, self.stopped, self.time, len(self.flow)))
        return blake2b(self.flow + self.kept + rest.encode(), digest_size=16).digest()


@dataclass
class Count:
    states: int = 0
    moves: int = 0
    ends: int = 0
    interleavings: int = 0  # ways from the beginning to an end
    outcomes: Counter[str] = field(default_factory=Counter)

    def __str__(self) -> str:
        return (
            f"{self.states} states, {self.moves} moves, {self.ends} ends, {self.interleavings:.3g} interleavings, "
            f"{dict(self.outcomes)}"
        )


class Exhausted(AssertionError):
    """A world is larger than it was meant to be."""


def explore(stories: tuple[Story, ...], crashes: int, limit: int = 3_000_000) -> Count:
    """All that can happen; raises AssertionError with the path to the first state that is wrong."""
    return World(stories, crashes, limit).explore()


Place = tuple[int, ...]  # a Side of each Flow by its number, and how many crashes are left


class World:
    def __init__(self, stories: tuple[Story, ...], crashes: int, limit: int) -> None:
        self._stories = stories
        self._limit = limit
        family = stories[-1].is_child
        self._sides = [_Sides(story, number, keeps=family) for number, story in enumerate(stories)]
        self._first: Place = (*(0 for _ in stories), crashes)
        self._came: dict[Place, tuple[Place, str]] = {}

    def explore(self) -> Count:
        count = Count()
        following: dict[Place, list[Place]] = {}
        # Those with crashes left come first: what a crash leads to need not be known when there is none left.
        waiting: list[list[Place]] = [[] for _ in range(self._first[-1] + 1)]
        waiting[-1].append(self._first)
        seen = {self._first}
        while waiting:
            if not waiting[-1]:
                waiting.pop()
                continue
            place = waiting[-1].pop()
            if len(seen) > self._limit:
                raise Exhausted(f"more than {self._limit} states")
            leads = following[place] = []
            try:
                for name, then in self._moves(place):
                    leads.append(then)
                    if then not in seen:
                        seen.add(then)
                        waiting[then[-1]].append(then)
                        self._came[then] = (place, name)
                if not leads or (len(leads) == 1 and place[-1]):  # nothing is left to happen but a crash
                    self._at_end(place, count)
                for sides, number in zip(self._sides, place[:-1], strict=True):
                    sides.done(number, place[-1])
            except Exception as error:
                raise AssertionError(
                    f"{type(error).__name__}: {error}\nafter: {', '.join(self._path(place))}"
                ) from error
        count.states = len(seen)
        count.moves = sum(map(len, following.values()))
        count.interleavings = _ways(following, self._first)
        return count

    def met(self, number: int) -> set[bytes]:
        """Digests of all that one of the Flows has been."""
        return self._sides[number].met()

    def _path(self, place: Place) -> list[str]:
        names: list[str] = []
        while place in self._came:
            place, name = self._came[place]
            names.append(name)
        return names[::-1]

    def _moves(self, place: Place) -> Iterator[tuple[str, Place]]:
        *numbers, crashes = place
        for flow, number in enumerate(numbers):
            for name, then in self._sides[flow].moves(number):
                yield name, (*place[:flow], then, *place[flow + 1 :])
        if len(numbers) == 2 and self._stories[1].is_child:
            yield from self._of_family(place)
        committed = tuple(sides.committed(number) for sides, number in zip(self._sides, numbers, strict=True))
        if committed != place[:-1]:
            yield "commit", (*committed, crashes)
        if crashes:
            lost = (sides.crashed(number) for sides, number in zip(self._sides, numbers, strict=True))
            yield "crash", (*lost, crashes - 1)

    def _of_family(self, place: Place) -> Iterator[tuple[str, Place]]:
        """What an owner does for a SubFlow: starts it when the wait is committed, and tells its end when that is."""
        parent, child = self._sides
        wants, has = parent.all[place[0]], child.all[place[1]]
        if not wants.kept:
            return
        if not has.flow:
            kept = decode_checkpoint(wants.kept)
            if any(subflows.wanted(step) for step in kept.state.steps.values()):
                yield "the child begins", (place[0], child.begun(), place[2])
            return
        flow = decode_checkpoint(has.kept) if has.kept else None
        if flow is None or not flow.is_closed:
            return
        for step in decode_checkpoint(wants.flow).state.steps.values():
            for one in subflows.wanted(step):
                if one.index is not None:
                    result = SubFlowResult(flow.state.status, flow.state.run_id, tuple(flow.state.completions))
                    command = commands.EndSubFlow(step=step.id, number=one.number, index=one.index, result=result)
                    yield "the parent is told", (parent.after(place[0], command), *place[1:])

    def _at_end(self, place: Place, count: Count) -> None:
        count.ends += 1
        for sides, number in zip(self._sides, place[:-1], strict=True):
            status = sides.ends_as(number)
            if status:
                count.outcomes[status] += 1


def _ways(following: dict[Place, list[Place]], first: Place) -> int:
    """How many ways lead from the beginning to an end; every move is a step ahead, so they are finite."""
    ways: dict[Place, int] = {}
    stack = [first]
    while stack:
        place = stack[-1]
        missing = [then for then in following[place] if then not in ways]
        if missing:
            assert len(stack) <= len(following), "a world goes in circles"
            stack.extend(missing)
            continue
        stack.pop()
        ways[place] = sum(ways[then] for then in following[place]) or 1
    return ways[first]


class _Sides:
    """All that one Flow has been, by number, and where its own moves lead from there. `keeps`: a Side stays at hand
    when all its moves are known; else only what tells it from others does, so that a large world fits in memory."""

    def __init__(self, story: Story, number: int, *, keeps: bool) -> None:
        self.all: dict[int, Side] = {}
        self.everything = (1 << len(story.messages)) - 1
        self._story = story
        self._keeps = keeps
        self._names = (f"f{number}", f"r{number}")
        self._numbers: dict[bytes, int] = {}
        self._moves: dict[int, list[tuple[str, int]]] = {}
        self._committed: dict[int, int] = {}
        self._crashed: dict[int, int] = {}
        self._ends: dict[int, str] = {}
        self._number(Side(b"") if story.is_child else self._begin())

    def _number(self, side: Side) -> int:
        digest = side.digest()
        number = self._numbers.get(digest)
        if number is None:
            number = self._numbers[digest] = len(self._numbers)
            self.all[number] = side
        return number

    def met(self) -> set[bytes]:
        return set(self._numbers)

    def ends_as(self, number: int) -> str:
        """The status of a Flow with which nothing can happen any more, "" of one that never began."""
        status = self._ends.get(number)
        if status is None:
            side = self.all[number]
            flow = decode_checkpoint(side.flow) if side.flow else None
            assert not side.dirty, "something was never committed"
            if flow is not None and not flow.is_closed:
                assert side.sent == self.everything, "a client was never answered"
                assert all(step.phase == WAITING for step in flow.state.steps.values()), "a Step is stuck"
            status = self._ends[number] = flow.state.status if flow is not None else ""
        return status

    def done(self, number: int, crashes: int) -> None:
        """All that can follow while so many crashes are left, or fewer, is known."""
        if not self._keeps and number in self.all and (not crashes or number in self._crashed):
            if not self._moves[number] and not self.all[number].dirty:
                self.ends_as(number)
            del self.all[number]

    def begun(self) -> int:
        return self._number(self._begin())

    def after(self, number: int, command: commands.Command) -> int:
        return self._number(self._do(self.all[number], command))

    def moves(self, number: int) -> list[tuple[str, int]]:
        found = self._moves.get(number)
        if found is None:
            own = self._own(self.all[number])
            found = [(intern(f"{self._names[0]} {name}"), self._number(then)) for name, then in own]
            self._moves[number] = found
        return found

    def committed(self, number: int) -> int:
        found = self._committed.get(number)
        if found is None:
            side = self.all[number]
            if side.dirty:
                side = replace(
                    side,
                    kept=side.flow,
                    dirty=False,
                    kept_sent=side.sent,
                    kept_eaten=side.eaten,
                    kept_books=side.books,
                )
            found = self._committed[number] = self._number(side)
        return found

    def crashed(self, number: int) -> int:
        found = self._crashed.get(number)
        if found is None:
            found = self._crashed[number] = self._number(self._crash(self.all[number]))
        return found

    # Moves ------------------------------------------------------------------------------------------------------------

    def _begin(self, time: float = START) -> Side:
        flow_id, run_id = self._names
        command = commands.Start(
            flow_id=flow_id, run_id=run_id, flow_type=self._story.spec.flow_type, request_id="r", input=b"\xc0"
        )
        return self._do(Side(b"", time=time), command)

    def _do(self, side: Side, command: commands.Command, **changes: Any) -> Side:
        """The machine decides; what comes of it is checked before anybody sees it."""
        flow = decode_checkpoint(side.flow) if side.flow else Flow()
        time = changes.get("time", side.time)
        turn = decide(flow, command, self._story.spec, time)
        if not turn.events:
            return replace(side, **changes) if changes else side
        record = encode_record(turn.events)
        then, books, eaten = masked(flow), copied(side.books), set(side.eaten)
        shadow = decode_checkpoint(side.flow) if side.flow else Flow()
        for event in decode_record(record):
            evolve(shadow, event, time)
        assert masked(shadow) == then, "the record adds up to another Flow"
        events: list[Event] = msgpack.unpackb(record, strict_map_key=False)
        for place, event in enumerate(events):
            judge(books, event, events[:place], time)
            if event[0] in ("StepCompleted/1", "StepFailed/1"):
                eaten.update(message[0] for _, message in books.steps[event[1]].consumed)
            APPLY[event[0]](books, event, time)
        check(flow, books, eaten)
        return replace(side, flow=then, dirty=True, eaten=frozenset(eaten), books=books, **changes)

    def _own(self, side: Side) -> Iterator[tuple[str, Side]]:
        """What can happen to this Flow alone."""
        flow = decode_checkpoint(side.flow) if side.flow else Flow()
        if flow.is_closed or not side.flow:
            return
        story = self._story
        for number, (channel, value) in enumerate(story.messages):
            if not side.sent >> number & 1:
                publish = commands.Publish(channel=channel, messages=((f"m{number}", value),))
                yield f"publish {number}", self._do(side, publish, sent=side.sent | 1 << number)
        if story.stop and not side.stopped:
            yield "stop", self._do(side, commands.Stop(stop_type="CANCEL"), stopped=True)
        for step in list(flow.state.steps.values()):
            self._come_late(flow, step, side.time)
            if step.id in flow.index.ready or (step.phase == BACKOFF and step.retry_at <= side.time):
                yield f"hand out {step.id}", self._do(side, commands.HandOut(step=step.id, deployment="d"))
            elif step.phase == RUNNING and not side.dirty:  # SYNC: it runs when its start is committed
                for which, result in enumerate(story.results[step.step_type, step.method]):
                    command = commands.FinishAttempt(key=key_of(flow.state, step), result=result)
                    yield f"{step.id} {step.method} returns {which}", self._do(side, command)
        if flow.index.due and side.time < LATE:
            yield "time passes", self._do(side, commands.Due(), time=LATE)
        elif flow.index.due and any(step.phase == BACKOFF for step in flow.state.steps.values()):
            later = max(step.retry_at for step in flow.state.steps.values())
            if later > side.time:
                yield "time passes", self._do(side, commands.Due(), time=later)

    def _come_late(self, flow: Flow, step: StepState, now: float) -> None:
        """Results of attempts that are not out (any more) change nothing."""
        stale = [step.attempt - 1] if step.phase == RUNNING else [step.attempt - 1, step.attempt]
        for attempt in filter(None, stale):
            key = AttemptKey(flow.state.flow_id, flow.state.run_id, step.id, step.method, attempt)
            for result in self._story.results.get((step.step_type, step.method), ()):
                turn = decide(flow, commands.FinishAttempt(key=key, result=result), self._story.spec, now)
                assert not turn.events, f"a late result of {step.id} attempt {attempt} is taken: {turn.events}"

    def _crash(self, side: Side) -> Side:
        """What was not committed has not happened. Clients that were not answered send again."""
        if not side.kept:
            if not side.flow or self._story.is_child:
                return Side(b"", time=side.time)  # the parent's owner starts it again
            return self._begin(side.time)
        flow = decode_checkpoint(side.kept)
        back = replace(
            side,
            flow=side.kept,
            dirty=False,
            sent=side.kept_sent,
            eaten=side.kept_eaten,
            stopped=side.stopped and flow.is_closed,
            books=side.kept_books,
        )
        if flow.is_closed:
            return back
        back = self._do(back, commands.Interrupt())
        running = [step.id for step in decode_checkpoint(back.flow).state.steps.values() if step.phase == RUNNING]
        assert not running, f"{running} are out, and their owner is no more"
        return back


# Checks ---------------------------------------------------------------------------------------------------------------


def judge(run: Run, event: Event, before: list[Event], now: float) -> None:
    """An event follows from the books as they are, and from what led to it in its record."""
    assert not run.status, f"after the end: {event}"
    match event[0]:
        case "AttemptStarted/1":
            step = run.steps[event[1]]
            assert step.phase in ("ready", "backoff"), f"{step.id} is handed out while {step.phase}"
            assert step.phase == "ready" or step.retry_at <= now, f"{step.id} is retried before its time"
        case "TimerFired/1":
            assert run.steps[event[1]].due[event[2]] <= now, f"an early Timer: {event}"
        case "ConditionsMet/1":
            step = run.steps[event[1]]
            winner = winning(step, run.queues) if step.phase == "waiting" else None
            assert winner == (tuple(event[2]), dict(event[3])), f"{event}, and what has won is {winner}"
        case "StepCancelled/1":
            returned = Counter(channel for channel, _ in run.steps[event[1]].consumed)
            assert returned == event[3], f"{event}, and it has consumed {returned}"
        case "FlowClosed/1" if event[1] == "COMPLETED":
            decided = [one[2] for one in before if one[0] == "StepCompleted/1"]
            forced = decided[-1:] in (["force_complete"], ["force_complete_if_channels_empty"])
            assert forced or (run.completing and not run.steps), f"complete with {list(run.steps)} open"


def check(flow: Flow, run: Run, eaten: set[str]) -> None:
    """The Flow is sound, and the books say the same of it."""
    invariants.check_all(flow)
    assert run.status == (flow.state.status if flow.is_closed else ""), "the books end otherwise"
    assert len(run.order) == len(run.ids), f"published twice: {run.order}"
    if flow.is_closed:
        return
    assert list(run.steps) == list(flow.state.steps)
    queues = {name: [message.id for message in queue] for name, queue in flow.state.channels.items()}
    assert {name: [one[0] for one in queue] for name, queue in run.queues.items() if queue} == queues
    places = [*eaten, *(one for queue in queues.values() for one in queue)]
    for step in flow.state.steps.values():
        booked = run.steps[step.id]
        taken = [message.id for _, message in step.consumed]
        assert [message[0] for _, message in booked.consumed] == taken
        places += taken
        if step.phase == WAITING:
            assert winning(booked, run.queues) is None, f"{step.id} waits though what it waits for is there"
    assert sorted(places) == sorted(run.ids), f"messages are at {sorted(places)}, published were {sorted(run.ids)}"
    assert run.steps or not run.completing, "all have stopped, and it goes on"


def masked(flow: Flow) -> bytes:
    """The state as bytes, but for what nobody in a small world looks at."""
    state = flow.state
    kept = (state.version, state.data_version)
    sizes = [(step.snapshot, step.snapshot.sizes) for step in state.steps.values() if step.snapshot is not None]
    state.version = state.data_version = 0
    for snapshot, _ in sizes:
        snapshot.sizes = {}
    try:
        return encode_checkpoint(flow)
    finally:
        state.version, state.data_version = kept
        for snapshot, found in sizes:
            snapshot.sizes = found


def copied(run: Run) -> Run:
    """Books that can be written on while others go on from the old ones."""
    new = copy.copy(run)
    for name, value in vars(run).items():
        if isinstance(value, dict | list | set):
            setattr(new, name, value.copy())
    new.queues = {name: queue.copy() for name, queue in run.queues.items()}
    new.steps = {}
    for step_id, step in run.steps.items():
        own = new.steps[step_id] = copy.copy(step)
        for name, value in vars(step).items():
            if isinstance(value, dict | list | set):
                setattr(own, name, value.copy())
    return new


__all__ = [
    "AttemptFailed",
    "DecisionSpec",
    "ExecuteSucceeded",
    "Exhausted",
    "Story",
    "WaitForSucceeded",
    "WaitSpec",
    "World",
    "explore",
]
