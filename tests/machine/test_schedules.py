"""Random Flows under random schedules: every command in every order, crashes, checkpoints, a clock that jumps.

After each command the `Bench` compares the Flow with its shadow, which replays the records alone, and checks
every invariant. This machine adds what it knows by its own, naive bookkeeping from the events: where each
message is, how often each attempt ran, that no waiting Step is left behind. At the end all faults stop, time
runs, every Step does its work, and the Flow has to end.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from dex.wire.specs import FlowSpec, LoadSpec, MethodSpec, RetrySpec, StepSpec, TimeoutHandlerSpec
from dexray.machine import commands, events
from dexray.machine.state import BACKOFF, RUNNING, TIMEOUT, WAITING
from dexray.protocol.attempts import (
    AttemptFailed,
    AttemptKey,
    AttemptReturned,
    ConditionSpec,
    DecisionSpec,
    ExecuteSucceeded,
    Heartbeat,
    WaitForSucceeded,
    WaitSpec,
    Writes,
)
from tests.machine.build import (
    SKIP,
    Bench,
    any_of,
    dead_end,
    examples,
    flow,
    go_to,
    graceful_complete,
    method,
    movement,
    picture,
    replay,
    step,
)
from tests.machine.test_planner_model import naive_select

TYPES = ("A", "B", "C", "D")
CHANNELS = ("a", "b")
LOCKS = ("x", "y")
MOST_STEPS = 25

retries = st.builds(
    RetrySpec,
    initial=st.sampled_from([0.0, 1.0, 5.0]),
    coefficient=st.sampled_from([1.0, 2.0]),
    maximum=st.just(10.0),
    attempts=st.sampled_from([0, 0, 1, 2, 3]),
    total=st.sampled_from([20.0, 14400.0]),
)
methods = st.builds(
    method,
    retry=retries,
    durability=st.sampled_from(["", "SYNC", "ASYNC"]),
    locks=st.lists(st.sampled_from(LOCKS), unique=True),
    load=st.sampled_from([LoadSpec(), LoadSpec(channels=("a",)), LoadSpec(attribute_maps=("map",))]),
)


@st.composite
def step_specs(draw: st.DrawFn, name: str) -> StepSpec:
    return step(
        name,
        draw(methods),
        wait_for=draw(st.one_of(st.just(False), methods)),
        proceed=draw(st.booleans()),
        route=draw(st.one_of(st.none(), st.sampled_from(TYPES))),
    )


@st.composite
def flow_specs(draw: st.DrawFn) -> FlowSpec:
    return flow(*(draw(step_specs(name)) for name in TYPES))


@st.composite
def condition_specs(draw: st.DrawFn) -> ConditionSpec:
    if draw(st.integers(0, 2)) == 0:
        return ConditionSpec("timer", duration=draw(st.sampled_from([0.0, 3.0, 30.0])))
    low = draw(st.integers(0, 2))
    high = draw(st.one_of(st.none(), st.integers(low, 3)))
    return ConditionSpec("channel", channel=draw(st.sampled_from(CHANNELS)), at_least=low, at_most=high)


@st.composite
def wait_specs(draw: st.DrawFn) -> WaitSpec:
    listed = tuple(draw(st.lists(condition_specs(), max_size=3)))
    if not listed:
        return WaitSpec("skip_immediately")
    kind = draw(st.sampled_from(["all_of", "any_of", "any_combination_of"]))
    groups: tuple[tuple[int, ...], ...] = ()
    if kind == "any_combination_of":
        group = st.lists(st.sampled_from(range(len(listed))), min_size=1, unique=True).map(tuple)
        groups = tuple(draw(st.lists(group, min_size=1, max_size=2)))
    return WaitSpec(kind, listed, groups)


some_types = st.lists(st.sampled_from(TYPES), unique=True, max_size=2).map(tuple)
decisions = st.one_of(
    st.builds(
        lambda targets, canceling, siblings: DecisionSpec(
            kind="next",
            movements=tuple(movement(target) for target in targets),
            canceling=canceling,
            canceling_siblings=siblings,
        ),
        st.lists(st.sampled_from(TYPES), min_size=1, max_size=3),
        some_types,
        some_types,
    ),
    st.builds(lambda *targets: go_to(*targets), st.sampled_from(TYPES), st.sampled_from(TYPES)),
    st.builds(lambda canceling: dead_end(canceling=canceling), some_types),
    st.builds(lambda canceling: graceful_complete(b"out", canceling=canceling), some_types),
    st.builds(
        lambda channels, target: DecisionSpec(
            kind="force_complete_if_channels_empty", channels=channels, fallback=movement(target), output=b"out"
        ),
        st.sampled_from([("a",), ("a", "b")]),
        st.sampled_from(TYPES),
    ),
)
closing_decisions = st.sampled_from([DecisionSpec(kind="force_complete"), DecisionSpec(kind="force_fail")])
beats = st.one_of(st.none(), st.binary(max_size=2))


class Schedules(RuleBasedStateMachine):
    bench: Bench

    @initialize(
        spec=flow_specs(),
        data=st.data(),
        timeout=st.sampled_from([0.0, 0.0, 0.0, 40.0, 200.0]),
        policy=st.sampled_from(["FAIL", "CANCEL", "HANDLER", "HANDLER"]),
        handler=methods,
    )
    def begin(self, spec: FlowSpec, data: st.DataObject, timeout: float, policy: str, handler: MethodSpec) -> None:
        """A Flow whose first Step has started some others, with messages in its Channels."""
        self.bench = Bench(spec=spec)
        self.handler = handler
        self.seen = 0
        self.keys: list[AttemptKey] = []
        self.order: dict[str, int] = {}  # message id -> when it was published
        self.channel: dict[str, str] = {}
        self.place: dict[str, str] = {}  # message id -> queue, the Step that has it, or gone
        self.starts: dict[tuple[str, str, int], str] = {}
        self.commits: Counter[tuple[str, str]] = Counter()
        options: dict[str, Any] = {}
        if timeout:
            options = {"timeout": timeout, "timeout_policy": policy}
            if policy == "HANDLER":
                options["timeout_handler"] = TimeoutHandlerSpec(method=handler)
        self.bench.start(**options)
        self.look()
        self.try_hand_out("A-1")
        if self.bench.step("A-1").method == "wait_for":
            self.bench.wait("A-1", SKIP)
            self.try_hand_out("A-1")
        targets = data.draw(st.lists(st.sampled_from(TYPES), min_size=2, max_size=6))
        messages = data.draw(st.lists(st.sampled_from(CHANNELS), max_size=5))
        self.bench.succeed("A-1", go_to(*targets), publish=[(channel, b"first") for channel in messages])
        self.look()

    # Independent bookkeeping ---------------------------------------------------------------------------------------

    def look(self) -> None:
        for event in self.bench.events[self.seen :]:
            self.note(event)
        self.seen = len(self.bench.events)
        if self.bench.closed:
            return
        state = self.bench.flow.state
        for channel in CHANNELS:
            queued = [message.id for message in state.channels.get(channel, ())]
            expected = [
                known for known in self.order if self.place[known] == "queue" and self.channel[known] == channel
            ]
            assert queued == expected
        for step_id, known in state.steps.items():
            assert {message.id for _, message in known.consumed} == {
                message_id for message_id, place in self.place.items() if place == step_id
            }
            if known.phase == WAITING:
                assert known.wait is not None
                sizes = {channel: len(state.channels.get(channel, ())) for channel in CHANNELS}
                assert naive_select(known.wait, known.fired, sizes) is None, f"{step_id} could go on"

    def note(self, event: events.AnyEvent) -> None:
        match event:
            case events.MessagePublished():
                assert event.message_id not in self.order
                self.order[event.message_id] = len(self.order)
                self.channel[event.message_id] = event.channel
                self.place[event.message_id] = "queue"
            case events.MessageDeleted():
                assert self.place[event.message_id] == "queue"
                self.place[event.message_id] = "gone"
            case events.ConditionsMet():
                self.commits[event.step, "conditions"] += 1
                for _, message_ids in event.consumed:
                    for message_id in message_ids:
                        assert self.place[message_id] == "queue"
                        self.place[message_id] = event.step
            case events.StepCancelled():
                self.commits[event.step, "end"] += 1
                self.move(event.step, "queue")
            case events.StepCompleted() | events.StepFailed():
                self.commits[event.step, "end"] += 1
                self.move(event.step, "gone")
            case events.WaitStarted() | events.WaitForAbandoned():
                self.commits[event.step, "wait_for"] += 1
            case events.FlowTimedOut() | events.FlowClosed():
                self.commits["", type(event).__name__] += 1
            case events.AttemptStarted():
                self.count_attempt(event)
            case events.AttemptFailed():
                key = (event.step, event.method, event.failure.attempt)
                assert self.starts.get(key) == "out"
                self.starts[key] = "failed"
            case events.AttemptReturned():
                key = (event.step, event.method, event.attempt)
                assert self.starts.get(key) == "out"
                self.starts[key] = "returned"
            case _:
                pass
        assert all(count == 1 for count in self.commits.values()), self.commits

    def move(self, step_id: str, to: str) -> None:
        for message_id, place in self.place.items():
            if place == step_id:
                self.place[message_id] = to

    def count_attempt(self, event: events.AttemptStarted) -> None:
        """A number is handed out once, or again after it certainly did not run; numbers have no gaps and a limit."""
        key = (event.step, event.method, event.attempt)
        assert self.starts.get(key, "returned") == "returned"
        is_new = key not in self.starts
        self.starts[key] = "out"
        if event.attempt > 1:
            assert self.starts[event.step, event.method, event.attempt - 1] == "failed"
        if event.method == TIMEOUT:
            limit = self.handler.retry.attempts
        else:
            assert self.bench.spec is not None
            spec = self.bench.spec.steps[event.step.rsplit("-", 1)[0]]
            policy = spec.wait_for if event.method == "wait_for" else spec.execute
            limit = policy.retry.attempts if policy is not None else 0
        assert not limit or event.attempt <= limit or not is_new

    # Rules ---------------------------------------------------------------------------------------------------------

    def steps_in(self, *phases: str) -> list[str]:
        return [step_id for step_id, known in self.bench.flow.state.steps.items() if known.phase in phases]

    def running(self) -> list[str]:
        return self.steps_in(RUNNING)

    @rule(channel=st.sampled_from(CHANNELS), count=st.integers(0, 4))
    def publish(self, channel: str, count: int) -> None:
        self.bench.publish(channel, *(b"v" for _ in range(count)))
        self.look()

    @rule(name=st.sampled_from(["x", "y", "map/1"]), value=st.one_of(st.none(), st.binary(max_size=1)))
    def set_attribute(self, name: str, value: bytes | None) -> None:
        self.bench.set(name, value)
        self.look()

    @rule(pick=st.integers(0, 20))
    @precondition(lambda self: not self.bench.closed)
    def hand_out(self, pick: int) -> None:
        known = self.bench.open
        if known:
            self.try_hand_out(known[pick % len(known)])

    @rule(data=st.data(), count=st.integers(1, 4))
    @precondition(lambda self: not self.bench.closed)
    def work(self, data: st.DataObject, count: int) -> None:
        """What happens most of the time: ready Steps are handed out, and some attempts succeed."""
        for step_id in tuple(self.bench.flow.index.ready):
            if step_id in self.bench.flow.state.steps:
                self.try_hand_out(step_id)
        for _ in range(count):
            running = self.running()
            if running:
                step_id = data.draw(st.sampled_from(running))
                self.bench.do(self.success(data, self.bench.key(step_id)))
                self.look()

    work_on = work

    def one_that_runs(self, pick: int) -> str:
        """A Step whose attempt is out; one is handed out when there is none. "" when there is none to hand out."""
        for step_id in () if self.running() else tuple(self.bench.flow.index.ready):
            if step_id in self.bench.flow.state.steps and self.try_hand_out(step_id):
                break
        running = self.running()
        return running[pick % len(running)] if running else ""

    def try_hand_out(self, step_id: str) -> bool:
        if not self.bench.try_hand_out(step_id):
            self.look()
            return False
        task = self.bench.task(step_id)
        self.keys.append(task.key)
        assert set(task.channel_sizes) <= set(CHANNELS)
        self.look()
        return True

    @rule(data=st.data(), pick=st.integers(0, 20))
    @precondition(lambda self: bool(self.running()))
    def succeed(self, data: st.DataObject, pick: int) -> None:
        running = self.running()
        step_id = running[pick % len(running)]
        self.bench.do(self.success(data, self.bench.key(step_id)))
        self.look()

    def success(self, data: st.DataObject, key: AttemptKey) -> commands.FinishAttempt:
        writes = Writes(
            attributes=data.draw(st.dictionaries(st.sampled_from(["x", "map/2"]), st.one_of(st.none(), st.just(b"w")))),
            deletions=tuple(
                (self.channel[message_id], message_id)
                for message_id in data.draw(
                    st.lists(st.sampled_from(sorted(self.order)), max_size=2) if self.order else st.just([])
                )
            ),
            publications=tuple(
                (channel, self.bench.message_id(), b"p")
                for channel in data.draw(st.lists(st.sampled_from(CHANNELS), max_size=2))
            ),
        )
        if key.method == "wait_for":
            return commands.FinishAttempt(key=key, result=WaitForSucceeded(wait=data.draw(wait_specs()), writes=writes))
        if sum(self.bench.flow.state.counters.values()) > MOST_STEPS:
            decision = dead_end()
        elif data.draw(st.integers(0, 30)) == 0:
            decision = data.draw(closing_decisions)
        else:
            decision = data.draw(decisions)
        return commands.FinishAttempt(key=key, result=ExecuteSucceeded(decision=decision, writes=writes))

    @rule(
        pick=st.integers(0, 20),
        retryable=st.sampled_from([True, True, True, False]),
        retry_after=st.sampled_from([None, None, 0.0, 7.0]),
        beat=st.one_of(st.none(), st.builds(lambda value: Heartbeat(value is not None, value), beats)),
    )
    def fail(self, pick: int, retryable: bool, retry_after: float | None, beat: Heartbeat | None) -> None:
        step_id = self.one_that_runs(pick)
        if step_id:
            self.bench.fail(step_id, retryable=retryable, retry_after=retry_after, heartbeat=beat)
        self.look()

    @rule(
        pick=st.integers(0, 20),
        after=st.sampled_from([-5.0, 0.0, 2.0]),
        reason=st.sampled_from(["", "declined"]),
        value=beats,
        comes_back=st.booleans(),
    )
    def beat_or_come_back(self, pick: int, after: float, reason: str, value: bytes | None, comes_back: bool) -> None:
        step_id = self.one_that_runs(pick)
        if step_id:
            self.bench.heartbeat(step_id, value)
            if comes_back:
                self.bench.give_back(step_id, reason=reason, after=after)
        self.look()

    @rule(data=st.data(), pick=st.integers(0, 200), kind=st.integers(0, 3))
    def say_it_late(self, data: st.DataObject, pick: int, kind: int) -> None:
        """A result, or a heartbeat, of any attempt there ever was: only the one that is out may be heard."""
        if not self.keys:
            return
        key = self.keys[pick % len(self.keys)]
        known = self.bench.flow.state.steps.get(key.step_execution_id)
        if known is not None and known.phase == RUNNING and self.bench.key(known.id) == key:
            return
        command: commands.Command
        if kind == 0:
            command = self.success(data, key)
        elif kind == 1:
            command = commands.FinishAttempt(key=key, result=AttemptFailed(error_type="E", detail=""))
        elif kind == 2:
            command = commands.FinishAttempt(key=key, result=AttemptReturned(reason="late"))
        else:
            command = commands.StoreHeartbeat(key=key, heartbeat=Heartbeat(True, b"late"))
        before = picture(self.bench.flow)
        assert self.bench.do(command).events == []
        assert picture(self.bench.flow) == before

    @rule(
        seconds=st.sampled_from([0.0, 0.5, 1.0, 3.0, 5.0, 10.0, -1.0, -5.0]), seen=st.sampled_from([True, True, False])
    )
    def let_time_pass(self, seconds: float, seen: bool) -> None:
        if seen:
            self.bench.advance(seconds)
            self.look()
        else:
            self.bench.now += seconds

    @rule(
        spec=flow_specs(),
        what=st.sampled_from(["crash", "crash", "checkpoint", "checkpoint", "deploy", "jump", "stop"]),
    )
    def fate(self, spec: FlowSpec, what: str) -> None:
        match what:
            case "crash":
                self.one_that_runs(0)
                before = set(self.running())
                self.bench.crash()
                assert not before & set(self.running())
            case "checkpoint":
                self.bench.checkpoint()
            case "deploy":
                # The same Steps with other options: locks, policies, selections, a wait_for that came or went.
                self.bench.spec = spec
            case "jump":
                self.bench.advance(-40.0)
            case "stop" if len(self.bench.events) > 60:
                self.bench.stop("CANCEL")
        self.look()

    # The end ---------------------------------------------------------------------------------------------------------

    def teardown(self) -> None:
        if not hasattr(self, "bench"):
            return
        assert picture(replay(self.bench.records)) == picture(self.bench.flow)
        self.drive()
        assert picture(replay(self.bench.records)) == picture(self.bench.flow)

    def drive(self) -> None:
        """The faults have stopped: every Step does its work, every wait gets what it waits for, time runs."""
        bench = self.bench
        if bench.closed:
            return
        for _ in range(400):
            if bench.closed or not bench.open:
                break
            acted = False
            for step_id in tuple(bench.flow.index.ready):
                acted |= step_id in bench.open and self.try_hand_out(step_id)
            for step_id in self.running():
                if bench.closed or step_id not in bench.open:
                    continue
                if bench.step(step_id).method == "wait_for":
                    bench.wait(step_id, any_of(ConditionSpec("timer", duration=1.0)))
                else:
                    bench.succeed(step_id, graceful_complete(b"done"))
                acted = True
                self.look()
            if bench.closed or acted:
                continue
            due = bench.flow.next_due()
            if due is not None and (self.steps_in(BACKOFF) or not self.steps_in(WAITING)):
                bench.advance(max(0.0, due - bench.now))
            else:
                for channel in CHANNELS:
                    bench.publish(channel, *(b"last" for _ in range(8)))
                bench.advance(60.0)
            self.look()
        assert bench.closed or not bench.open, f"stuck: {[(step_id, bench.phase(step_id)) for step_id in bench.open]}"
        if not bench.closed:
            assert not bench.flow.state.completing


@pytest.mark.timeout(7200)  # for the deep profile
def test_any_flow_under_any_schedule_keeps_its_rules_and_comes_to_its_end() -> None:
    run_state_machine_as_test(Schedules, settings=examples(250, stateful_step_count=35))
