"""Random schedules over the real host and the real journal: crashes, cut wires, late and repeated results, and at the
end what was promised is there, once.

A schedule is a list of things that happen, drawn from a seed, in virtual time. Clients behave as the real one: they
repeat a call that was UNAVAILABLE under its request id, and note what they were answered. After the schedule all faults
stop, the host is driven until every Flow has settled, and the journal is read by hand and compared with the notes:

- every acknowledged start, publish and stop has its effect, exactly once; those never answered, at most once;
- a message that was published is consumed at most once, and is in the run's history exactly once;
- the records of a run are numbered without a hole, their epochs never go back;
- a Step execution completes at most once, and only in an attempt that was started; a Flow closes at most once, and
  nothing of it comes after;
- every slot is free.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import pytest

from dex.wire import service as s
from dex.wire.service import ServiceError
from tests.engine.faulty import Plan
from tests.engine.rig import NIL, Machine, Rig, done, failed, settle, virtual, wait, with_channels
from tests.machine.build import any_of, flow, go_to, graceful_complete, method, one, step, timer

SOON = method(durability="ASYNC")
SPEC = with_channels(
    flow(step("Ask", wait_for=True), step("Work"), step("Quick", SOON), step("Last", SOON)), "news", "private"
)
SEEDS = range(40 if os.environ.get("HYPOTHESIS_PROFILE") == "deep" else 10)


@dataclass
class Notes:
    """What clients asked for, and what they were told."""

    started: dict[str, str] = field(default_factory=dict)  # Flow ID -> run id
    asked_to_start: set[str] = field(default_factory=set)
    published: dict[str, tuple[str, ...]] = field(default_factory=dict)  # request id -> message ids
    asked_to_publish: dict[str, tuple[str, bytes]] = field(default_factory=dict)  # request id -> Flow ID, value
    stopped: set[str] = field(default_factory=set)
    closed: dict[str, str] = field(default_factory=dict)  # Flow ID -> the status that a client was told


class World:
    def __init__(self, rig: Rig, seed: int) -> None:
        self.rig = rig
        self.dice = random.Random(seed)
        self.notes = Notes()
        self.clients: set[asyncio.Task[None]] = set()
        self.ending = False
        self.host: Machine
        self.numbers = iter(range(10**6))
        rig.script = self.script

    # Attempts

    def script(self, task: Any) -> None:
        delay = self.dice.choice([0.0, 0.001, 0.01, 0.3])
        result = self.result(task)
        port = next(machine.port for machine in self.rig.machines if machine.port.out.get(task.key) is task)
        loop = asyncio.get_running_loop()
        loop.call_later(delay, port.finish, task.key, result)
        if not self.ending and self.dice.random() < 0.2:  # a repeated result, maybe another one, maybe of a former life
            loop.call_later(delay + self.dice.choice([0.0, 0.005, 5.0]), self.late, task.key, self.result(task))

    def late(self, key: Any, result: Any) -> None:
        if self.host.running and key not in self.host.port.out:
            self.host.host.attempt_finished(key, result)

    def result(self, task: Any) -> Any:
        if self.dice.random() < (0.0 if self.ending else 0.15):
            return failed(retry_after=self.dice.choice([0.0, 0.05, 2.0]))
        if task.key.method == "wait_for":
            return wait(any_of(timer(self.dice.choice([0.05, 5.0, 400.0])), one("news")))
        if task.step_type == "Ask":
            return done(go_to(*self.dice.choice([("Work",), ("Quick",), ("Quick", "Work")])))
        if task.step_type == "Quick":
            number = f"own-{next(self.numbers)}"
            return done(go_to("Last"), publications=(("private", number, NIL),))
        if self.dice.random() < (0.0 if self.ending else 0.3):
            return done(go_to("Ask"))
        return done(graceful_complete(b"\x01"))

    # Clients

    async def call(self, request: s.Request[Any]) -> Any:
        """Until it is answered, as the Client does; None for an answer that says no."""
        while True:
            if self.host.running:
                try:
                    return await self.host.call(request)
                except ServiceError as error:
                    if error.failure.code != "UNAVAILABLE":
                        return None
                changes = {name: getattr(request, name) for name in request.__struct_fields__}
                if "fresh" in changes:
                    request = type(request)(**changes | {"fresh": False})
            await asyncio.sleep(0.05)

    def spawn(self, coroutine: Any) -> None:
        task = asyncio.get_running_loop().create_task(coroutine)
        self.clients.add(task)
        task.add_done_callback(self.clients.discard)

    async def start(self, flow_id: str) -> None:
        self.notes.asked_to_start.add(flow_id)
        request = s.StartFlow(
            flow_id=flow_id, flow_type="Demo", input=NIL, request_id=f"r-{flow_id}", call_id="c", fresh=True
        )
        answer = await self.call(request)
        assert answer is not None, f"the start of {flow_id} was refused"
        assert self.notes.started.setdefault(flow_id, answer.run_id) == answer.run_id

    async def start_again(self, flow_id: str) -> None:
        request = s.StartFlow(flow_id=flow_id, flow_type="Demo", input=NIL, request_id=f"r-{flow_id}", call_id="c")
        answer = await self.call(request)
        assert answer is not None
        assert self.notes.started.setdefault(flow_id, answer.run_id) == answer.run_id

    async def publish(self, flow_id: str) -> None:
        name = f"p-{next(self.numbers)}"
        value = b"\xc4\x08" + name.rjust(8).encode()
        self.notes.asked_to_publish[name] = (flow_id, value)
        request = s.Publish(flow_id=flow_id, channel="news", values=(value,), request_id=name, fresh=True)
        answer = await self.call(request)
        if answer is not None:
            self.notes.published[name] = answer.message_ids
            again = await self.call(s.Publish(flow_id=flow_id, channel="news", values=(value,), request_id=name))
            assert again == answer

    async def stop(self, flow_id: str) -> None:
        answer = await self.call(
            s.StopFlow(flow_id=flow_id, stop_type="TERMINATE", request_id=f"s-{next(self.numbers)}", fresh=True)
        )
        if answer is not None:
            self.notes.stopped.add(flow_id)

    async def watch(self, flow_id: str) -> None:
        answer = await self.call(s.WaitForFlow(flow_id=flow_id, timeout=2.0))
        if answer is not None and answer.status != "RUNNING":
            assert self.notes.closed.setdefault(flow_id, answer.status) == answer.status

    # Fate

    async def begin(self) -> None:
        dice = self.dice
        rates = dice.choice([(0.0, 0.0), (0.05, 0.05), (0.2, 0.2)])
        self.host = await self.rig.host(
            SPEC,
            slots=dice.choice([2, 5, 100]),
            plan=None if self.ending else Plan(dice.randrange(10**6), *rates),
            idle_flows=dice.choice([1, 3, 100]),
            checkpoint_records=dice.choice([1, 4, 100]),
            outage_patience=dice.choice([0.3, 3.0]),
            active_flows=dice.choice([0, 0, 1, 2]),
        )
        self.host.lane.before = dice.choice([0.0, 0.001, 0.02])
        self.host.lane.after = dice.choice([0.0, 0.0, 0.01])

    async def crash(self) -> None:
        zombie = self.dice.random() < 0.3
        former = self.host
        former.running = False
        if zombie:  # it does not know that it is dead, and goes on for a while beside its successor
            await self.begin()
            await asyncio.sleep(self.dice.choice([0.0, 0.1]))
        await former.crash()
        if not zombie:
            await asyncio.sleep(self.dice.choice([0.0, 0.0, 10.0]))
            await self.begin()

    async def something(self) -> None:
        dice = self.dice
        flow_ids = sorted(self.notes.asked_to_start)
        what = dice.random()
        if not flow_ids or what < 0.2:
            self.spawn(self.start(f"f{len(flow_ids)}"))
            await asyncio.sleep(0)
        elif what < 0.6:
            self.spawn(self.publish(dice.choice(flow_ids)))
        elif what < 0.65:
            self.spawn(self.stop(dice.choice(flow_ids)))
        elif what < 0.7:
            self.spawn(self.start_again(dice.choice(flow_ids)))
        elif what < 0.8:
            self.spawn(self.watch(dice.choice(flow_ids)))
        elif what < 0.9:
            await asyncio.sleep(dice.choice([0.002, 0.05, 1.0, 30.0]))
        elif what < 0.95:
            self.host.journal.out_for(dice.choice([0.01, 1.0, 20.0]))
        else:
            await self.crash()

    async def run_to_the_end(self) -> None:
        self.ending = True
        self.host.journal.calm()
        if self.dice.random() < 0.5:
            await self.crash()
        for _ in range(400):
            await asyncio.sleep(5)
            for flow_id in sorted(self.notes.started):
                if self.rig.runs(flow_id)[-1][1] == "RUNNING":
                    await self.publish(flow_id)
            if not self.clients and not self.rig.rows("SELECT 1 FROM runs WHERE status = 'RUNNING'"):
                break
        assert not self.clients, "a client was never answered"
        open_flows = [row[0] for row in self.rig.rows("SELECT flow_id FROM runs WHERE status = 'RUNNING'")]
        assert not open_flows, [await self.host.describe(flow_id) for flow_id in open_flows]
        await settle()

    # The judgement, from the database alone

    def judge(self) -> None:
        notes, rig = self.notes, self.rig
        messages: Counter[bytes] = Counter()
        ids: dict[bytes, str] = {}
        for flow_id in notes.asked_to_start:
            runs = rig.runs(flow_id)
            assert len(runs) == 1, f"{flow_id}: {runs}"
            run = runs[0][0]
            assert notes.started.get(flow_id, run) == run
            self.judge_run(flow_id, run, runs[0][1])
            for event in rig.events(run, "MessagePublished"):
                if event[1] == "news":
                    messages[event[3]] += 1
                    ids[event[3]] = event[2]
        for name, (_, value) in notes.asked_to_publish.items():
            assert messages[value] <= 1, f"{name} was published {messages[value]} times"
            if name in notes.published:
                assert messages[value] == 1, f"{name} was acknowledged and is not there"
                assert notes.published[name] == (ids[value],)

    def judge_run(self, flow_id: str, run: str, status: str) -> None:
        records = self.rig.records(run)
        assert [seq for seq, _, _ in records] == list(range(1, len(records) + 1))
        epochs = [epoch for _, epoch, _ in records]
        assert epochs == sorted(epochs)
        events = [event for _, _, of_record in records for event in of_record]
        assert [event[0] for event in events].count("FlowStarted/1") == 1
        started: dict[str, int] = {}
        completed: Counter[str] = Counter()
        consumed: Counter[str] = Counter()
        published: set[str] = set()
        for position, event in enumerate(events):
            match event[0]:
                case "AttemptStarted/1":
                    started[event[1]] = event[3]
                    assert completed[event[1]] == 0
                case "AttemptFailed/1":
                    assert started.pop(event[1]) == event[3][3]
                case "WaitStarted/1":
                    del started[event[1]]
                case "StepCompleted/1":
                    completed[event[1]] += 1
                    del started[event[1]]
                case "MessagePublished/1":
                    assert event[2] not in published
                    published.add(event[2])
                case "ConditionsMet/1":
                    for _, message_ids in event[3]:
                        consumed.update(message_ids)
                case "FlowClosed/1":
                    assert position == len(events) - 1, "something happened after the end"
                    assert event[1] == status
        assert not completed or max(completed.values()) == 1
        assert not consumed or max(consumed.values()) == 1
        assert set(consumed) <= published
        if flow_id in self.notes.stopped:
            assert status == "TERMINATED"
        if flow_id in self.notes.closed:
            assert self.notes.closed[flow_id] == status


@pytest.mark.statement("D8", "D9", "D14", "B75", "B88", "B152", "B157")
@pytest.mark.parametrize("seed", SEEDS)
@virtual
async def test_whatever_happens_what_was_promised_is_there_once(rig: Rig, seed: int) -> None:
    world = World(rig, seed)
    await world.begin()
    for _ in range(120):
        await world.something()
        await asyncio.sleep(world.dice.choice([0.0, 0.0, 0.003, 0.1]))
    await world.run_to_the_end()
    world.judge()
