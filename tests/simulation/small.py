"""Small worlds, exhaustively: every order in which two owners' worth of things can happen to two Flows.

At the level of the machine: two Flows with up to three Steps each, clients that publish, stop and cancel, attempts that
succeed, fail or come late, commits of both Flows at once, and crashes that take with them what was not committed. All
interleavings are tried, depth first. Two states that are the same in every respect are one; what one Flow does commutes
with what the other does, except for commits and crashes, so a Flow's moves are only tried in one order where no commit
lies between them.

In every state: the invariants of the machine hold, and the books of the simulator, kept from the bytes of the records
alone, agree with the Flow on Steps, queues, and what each Step has consumed. At every end, where nothing is left to
happen: each published message is queued, consumed, or gone with its closed Flow, once; and a Flow that is open waits
for something that never comes, and not for something that is there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import msgpack

from dex.wire.specs import FlowSpec
from dexray.machine import commands, invariants
from dexray.machine.decide import decide
from dexray.machine.events import decode_record, encode_record
from dexray.machine.evolve import evolve
from dexray.machine.state import BACKOFF, RUNNING, WAITING, Flow, as_plain, decode_checkpoint, encode_checkpoint
from dexray.machine.turn import key_of
from dexray.protocol.attempts import (
    AttemptFailed,
    AttemptResult,
    DecisionSpec,
    ExecuteSucceeded,
    WaitForSucceeded,
    WaitSpec,
)
from tests.simulation.books import APPLY, Run, winning

START = 1_000.0
LATE = 5_000.0  # when all Timers and retries are due

Results = dict[tuple[str, str], tuple[AttemptResult, ...]]


@dataclass(frozen=True)
class Story:
    """One Flow of a world: its code, what its handlers may return (by Step type and method), the messages and the stop
    that clients send."""

    spec: FlowSpec
    results: Results
    messages: tuple[tuple[str, bytes], ...] = ()
    stop: bool = False


@dataclass(frozen=True)
class Side:
    """Where a Flow is. `flow`: the state in memory, as a checkpoint; `kept`: what is committed; `loose`: the rest."""

    flow: bytes
    kept: tuple[tuple[float, bytes], ...]
    loose: tuple[tuple[float, bytes], ...] = ()
    sent: int = 0
    stopped: bool = False
    time: float = START

    def key(self) -> tuple[Any, ...]:
        return (self.flow, self.loose, self.sent, self.stopped, self.time, len(self.kept))


@dataclass(frozen=True)
class Moment:
    sides: tuple[Side, ...]
    crashes: int
    last: int = -1  # the Flow that moved last, since the last commit or crash

    def key(self) -> tuple[Any, ...]:
        return (tuple(side.key() for side in self.sides), self.crashes, self.last)


@dataclass
class Count:
    states: int = 0
    moves: int = 0
    ends: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)


class Exhausted(AssertionError):
    """A world is larger than it was meant to be."""


def explore(stories: tuple[Story, ...], crashes: int, limit: int = 400_000) -> Count:
    """All that can happen; raises AssertionError with the path to the first state that is wrong."""
    count = Count()
    first = Moment(tuple(_begin(story, number) for number, story in enumerate(stories)), crashes)
    seen = {first.key()}
    stack: list[tuple[Moment, tuple[str, ...]]] = [(first, ())]
    while stack:
        moment, path = stack.pop()
        count.states += 1
        if count.states > limit:
            raise Exhausted(f"more than {limit} states")
        try:
            for story, side in zip(stories, moment.sides, strict=True):
                _check(story, side)
            following = list(_moves(stories, moment))
            if not following and not any(_moves(stories, Moment(moment.sides, moment.crashes))):
                count.ends += 1
                _check_end(stories, moment, count)
        except Exception as error:
            raise AssertionError(f"{error}\nafter: " + ", ".join(path)) from error
        for name, then in following:
            count.moves += 1
            key = then.key()
            if key not in seen:
                seen.add(key)
                stack.append((then, (*path, name)))
    return count


# Moves ----------------------------------------------------------------------------------------------------------------


def _begin(story: Story, number: int) -> Side:
    command = commands.Start(
        flow_id=f"f{number}", run_id=f"r{number}", flow_type=story.spec.flow_type, request_id="r", input=b"\xc0"
    )
    return _do(story, Side(b"", ()), command, flow=Flow())


def _do(story: Story, side: Side, command: commands.Command, *, flow: Flow | None = None, **changes: Any) -> Side:
    flow = flow if flow is not None else decode_checkpoint(side.flow)
    time = changes.pop("time", side.time)
    turn = decide(flow, command, story.spec, time)
    loose = (*side.loose, (time, encode_record(turn.events))) if turn.events else side.loose
    values = {"sent": side.sent, "stopped": side.stopped} | changes
    return Side(encode_checkpoint(flow), side.kept, loose, time=time, **values)


def _moves(stories: tuple[Story, ...], moment: Moment) -> Iterator[tuple[str, Moment]]:
    for number, (story, side) in enumerate(zip(stories, moment.sides, strict=True)):
        if number < moment.last:
            continue  # it commutes with what the other one did: that order is tried elsewhere
        for name, then in _side_moves(story, side):
            sides = (*moment.sides[:number], then, *moment.sides[number + 1 :])
            yield f"f{number} {name}", Moment(sides, moment.crashes, number)
    if any(side.loose for side in moment.sides):
        kept = tuple(
            Side(side.flow, (*side.kept, *side.loose), (), side.sent, side.stopped, side.time) for side in moment.sides
        )
        yield "commit", Moment(kept, moment.crashes)
    if moment.crashes:
        lost = tuple(
            _crash(story, side, number) for number, (story, side) in enumerate(zip(stories, moment.sides, strict=True))
        )
        yield "crash", Moment(lost, moment.crashes - 1)


def _side_moves(story: Story, side: Side) -> Iterator[tuple[str, Side]]:
    flow = decode_checkpoint(side.flow)
    if flow.is_closed:
        return
    if side.sent < len(story.messages):
        channel, value = story.messages[side.sent]
        publish = commands.Publish(channel=channel, messages=((f"m{side.sent}", value),))
        yield f"publish {side.sent}", _do(story, side, publish, sent=side.sent + 1)
    if story.stop and not side.stopped:
        yield "stop", _do(story, side, commands.Stop(stop_type="CANCEL"), stopped=True)
    for step in list(flow.state.steps.values()):
        if step.id in flow.index.ready or (step.phase == BACKOFF and step.retry_at <= side.time):
            yield f"hand out {step.id}", _do(story, side, commands.HandOut(step=step.id, deployment="d"))
        elif step.phase == RUNNING and not side.loose:  # SYNC: it runs when its start is committed
            for which, result in enumerate(story.results[step.step_type, step.method]):
                command = commands.FinishAttempt(key=key_of(flow.state, step), result=result)
                yield f"{step.id} {step.method} returns {which}", _do(story, side, command)
    if flow.index.due and side.time < LATE:
        yield "time passes", _do(story, side, commands.Due(), time=LATE)
    elif flow.index.due and any(step.phase == BACKOFF for step in flow.state.steps.values()):
        later = max(step.retry_at for step in flow.state.steps.values())
        if later > side.time:
            yield "time passes", _do(story, side, commands.Due(), time=later)


def _crash(story: Story, side: Side, number: int) -> Side:
    """What was not committed has not happened. Clients that were not answered send again."""
    flow = replay(side.kept)
    published = sum(event[0] == "MessagePublished/1" and not event[4] for event in _events(side.kept))
    if not side.kept:
        begun = _begin(story, number)
        return Side(begun.flow, (), begun.loose, time=side.time)
    closed = flow.is_closed
    back = Side(encode_checkpoint(flow), side.kept, (), published, side.stopped and closed, side.time)
    return back if closed else _do(story, back, commands.Interrupt())


def replay(records: tuple[tuple[float, bytes], ...]) -> Flow:
    flow = Flow()
    for at, body in records:
        for event in decode_record(body):
            evolve(flow, event, at)
    return flow


def _events(records: tuple[tuple[float, bytes], ...]) -> list[list[Any]]:
    return [event for _, body in records for event in msgpack.unpackb(body, strict_map_key=False)]


# Checks ---------------------------------------------------------------------------------------------------------------


def _books(side: Side) -> Run:
    run = Run("r")
    for at, body in (*side.kept, *side.loose):
        for event in msgpack.unpackb(body, strict_map_key=False):
            assert not run.status, f"after the end: {event}"
            APPLY[event[0]](run, event, at)
    return run


def _check(story: Story, side: Side) -> None:
    flow = decode_checkpoint(side.flow)
    invariants.check_all(flow)
    assert as_plain(replay((*side.kept, *side.loose))) == as_plain(flow), "the records add up to another Flow"
    run = _books(side)
    assert run.status == (flow.state.status if flow.is_closed else ""), "the books end otherwise"
    if flow.is_closed:
        return
    assert list(run.steps) == list(flow.state.steps)
    queues = {name: [message.id for message in queue] for name, queue in flow.state.channels.items()}
    assert {name: [one[0] for one in queue] for name, queue in run.queues.items() if queue} == queues
    for step in flow.state.steps.values():
        booked = run.steps[step.id]
        assert [message[0] for _, message in booked.consumed] == [message.id for _, message in step.consumed]
        if step.phase == WAITING:
            assert winning(booked, run.queues) is None, f"{step.id} waits though what it waits for is there"
    assert run.steps or not run.completing, "all have stopped, and it goes on"


def _check_end(stories: tuple[Story, ...], moment: Moment, count: Count) -> None:
    for story, side in zip(stories, moment.sides, strict=True):
        flow, events = decode_checkpoint(side.flow), _events(side.kept)
        assert not side.loose, "something was never committed"
        count.outcomes[flow.state.status] += 1
        consumed = Counter(
            one for event in events if event[0] == "ConditionsMet/1" for _, ids in event[3] for one in ids
        )
        published = Counter(event[2] for event in events if event[0] == "MessagePublished/1")
        assert max(published.values(), default=0) <= 1, f"published twice: {published}"
        returned = sum(sum(event[3].values()) for event in events if event[0] == "StepCancelled/1")
        assert consumed.total() - returned <= published.total(), "consumed more than was published"
        if flow.is_closed:
            continue
        assert side.sent == len(story.messages), "a client was never answered"
        queued = Counter(message.id for queue in flow.state.channels.values() for message in queue)
        assert queued.total() + consumed.total() - returned == published.total(), "a message is lost"
        assert all(step.phase == WAITING for step in flow.state.steps.values()), "a Step is stuck"


__all__ = ["AttemptFailed", "DecisionSpec", "ExecuteSucceeded", "Story", "WaitForSucceeded", "WaitSpec", "explore"]
