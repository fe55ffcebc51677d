"""A host with its surroundings in virtual time, and a look at its journal that shares nothing with the engine.

    @pytest.mark.statement("D14")
    @virtual
    async def test_an_outage_pauses(rig: Rig) -> None:
        one = await rig.host(flow(step("First")))
        await one.start("f")

After every test the rig checks what holds always: every slot is taken by an attempt that is out, or free; no task is
left.
"""

from __future__ import annotations

import asyncio
import inspect
import itertools
import sqlite3
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import msgpack
from msgspec.structs import replace

from dex.wire import service as s
from dex.wire.service import AnswerT, Request, ServiceError
from dex.wire.specs import DeploymentSpec, FlowSpec
from dexray.engine import FlowHost, HostSettings
from dexray.journal import open_journal
from dexray.protocol.attempts import (
    AttemptFailed,
    AttemptKey,
    AttemptResult,
    AttemptTask,
    DecisionSpec,
    ExecuteSucceeded,
    WaitForSucceeded,
    WaitSpec,
    Writes,
)
from dexray.settings import AttributeStore
from dexray.stores import StoreTable
from dexray.testing import VirtualClock, run_virtual
from tests.engine.faulty import FaultyJournal, Lane, Plan, ScriptedPort

NIL = b"\xc0"


def with_channels(spec: FlowSpec, *channels: str) -> FlowSpec:
    return replace(spec, channels=channels)


def done(decision: DecisionSpec, **writes: Any) -> ExecuteSucceeded:
    blobs = writes.pop("blobs", {})
    return ExecuteSucceeded(decision=decision, writes=Writes(**writes), blobs=blobs)


def wait(spec: WaitSpec) -> WaitForSucceeded:
    return WaitForSucceeded(wait=spec)


def failed(detail: str = "broken", **more: Any) -> AttemptFailed:
    return AttemptFailed(error_type="ValueError", detail=detail, **more)


def by_step(**results: Any) -> Any:
    """A script: what comes of an attempt by Step type, or by Step type and method (`Ask_wait_for`)."""

    def script(task: AttemptTask) -> AttemptResult | None:
        found = results.get(f"{task.step_type}_{task.key.method}", results.get(task.step_type))
        return found(task) if callable(found) else found

    return script


class Machine:
    """One host, as a process of its own would have it."""

    def __init__(
        self,
        rig: Rig,
        owner: str,
        settings: HostSettings,
        slots: int,
        plan: Plan | None,
        open_store: Callable[[AttributeStore], StoreTable],
    ) -> None:
        self.rig = rig
        self.journal = FaultyJournal(open_journal(rig.path), plan)
        self.lane = Lane()
        self.store_lane = Lane()
        self.port = ScriptedPort(lambda task: rig.script(task), slots)
        self.host = FlowHost(
            owner=owner,
            journal=self.journal,
            attempts=self.port,
            clock=rig.clock,
            blocking=self.lane,
            new_id=lambda: f"id-{next(rig.numbers):06d}",
            settings=settings,
            store_thread=lambda store: self.store_lane,
            open_store=open_store,
        )
        self.port.sink = self.host
        self.running = False

    def begin(self, *specs: FlowSpec) -> None:
        if specs:
            self.deploy(*specs)
        self.host.start()
        self.running = True

    def deploy(self, *specs: FlowSpec, name: str = "d1") -> None:
        self.host.deploy(DeploymentSpec(deployment_id=name, flows={spec.flow_type: spec for spec in specs}))

    async def call(self, request: Request[AnswerT]) -> AnswerT:
        answer: Any = await self.host.call(request)  # type: ignore[arg-type]
        return answer  # type: ignore[no-any-return]

    # Requests, in short

    async def start(self, flow_id: str, flow_type: str = "Demo", **more: Any) -> str:
        more.setdefault("request_id", f"start-{next(self.rig.numbers)}")
        more.setdefault("input", NIL)
        return (await self.call(s.StartFlow(flow_id=flow_id, flow_type=flow_type, **more))).run_id

    async def publish(self, flow_id: str, channel: str, *values: bytes, **more: Any) -> tuple[str, ...]:
        more.setdefault("request_id", f"publish-{next(self.rig.numbers)}")
        request = s.Publish(flow_id=flow_id, channel=channel, values=values, **more)
        return (await self.call(request)).message_ids

    async def stop(self, flow_id: str, stop_type: str = "CANCEL", **more: Any) -> None:
        more.setdefault("request_id", f"stop-{next(self.rig.numbers)}")
        await self.call(s.StopFlow(flow_id=flow_id, stop_type=stop_type, **more))

    async def result(self, flow_id: str, timeout: float = 60.0) -> s.FlowOutcome:
        return await self.call(s.WaitForFlow(flow_id=flow_id, timeout=timeout))

    async def describe(self, flow_id: str) -> s.FlowDescription:
        return await self.call(s.DescribeFlow(flow_id=flow_id))

    async def history(self, flow_id: str, **more: Any) -> s.HistoryPage:
        return await self.call(s.GetHistory(flow_id=flow_id, **more))

    async def phases(self, flow_id: str) -> dict[str, str]:
        return {step.step_execution_id: step.phase for step in (await self.describe(flow_id)).steps}

    # Fate

    async def crash(self) -> None:
        """Ends at once; attempts that were out are never heard of again."""
        self.running = False
        self.port.closed = True
        self.store_lane.free()
        await self.host.abandon()

    def is_overtaken(self) -> None:
        """What it sends was on its way when the next life of its owner began: it is judged by epochs alone."""
        self.journal.inner._appender.life = None

    async def end(self) -> None:
        """Ends in order."""
        self.running = False
        await self.host.stop()
        self.port.closed = True

    def check_slots(self) -> None:
        assert self.port.taken == len(self.port.out), "a slot is taken by nobody, or an attempt has none"


class Rig:
    """The journal's file, the clock, and the hosts of one test."""

    def __init__(self, folder: Path) -> None:
        self.path = str(folder / "flows.db")
        self.clock = VirtualClock()
        self.numbers = itertools.count(1)
        self.script: Any = lambda task: None
        self.machines: list[Machine] = []
        first = open_journal(self.path)
        first.migrate()
        first.close()

    async def host(
        self,
        *specs: FlowSpec,
        owner: str = "one",
        slots: int = 1_000,
        plan: Plan | None = None,
        open_store: Callable[[AttributeStore], StoreTable] = StoreTable,
        **settings: Any,
    ) -> Machine:
        """A host that has begun; its Flows are resumed in the background."""
        machine = Machine(self, owner, HostSettings(**settings), slots, plan, open_store)
        self.machines.append(machine)
        machine.begin(*specs)
        return machine

    async def close(self) -> None:
        for machine in self.machines:
            if machine.running:
                if machine.host.outage is None and not machine.journal.down:
                    await settle()
                    machine.check_slots()
                await machine.crash()
            machine.journal.inner.close()
        left = asyncio.all_tasks() - {asyncio.current_task()}
        assert not left, f"tasks are left: {left}"

    # The journal, read by hand

    def rows(self, question: str, *values: Any) -> list[tuple[Any, ...]]:
        connection = sqlite3.connect(self.path)
        try:
            return connection.execute(question, values).fetchall()
        finally:
            connection.close()

    def records(self, run_id: str) -> list[tuple[int, int, list[list[Any]]]]:
        """(number, epoch, events) of a run; an event is a list that begins with its kind."""
        rows = self.rows("SELECT seq, epoch, body FROM events WHERE run_id = ? ORDER BY seq", run_id)
        return [(seq, epoch, msgpack.unpackb(body, strict_map_key=False)) for seq, epoch, body in rows]

    def events(self, run_id: str, *kinds: str) -> list[list[Any]]:
        """The events of a run, or those of some kinds."""
        found = [event for _, _, events in self.records(run_id) for event in events]
        return [event for event in found if not kinds or event[0].split("/")[0] in kinds]

    def runs(self, flow_id: str) -> list[tuple[str, str, bool]]:
        """(run id, status, is current) of a Flow, oldest first."""
        rows = self.rows(
            "SELECT run_id, status, is_current FROM runs WHERE flow_id = ? ORDER BY started_at, run_id", flow_id
        )
        return [(run_id, status, bool(current)) for run_id, status, current in rows]


async def settle(turns: int = 30) -> None:
    """Lets everything happen that needs no time."""
    for _ in range(turns):
        await asyncio.sleep(0)


def code_of(error: BaseException | None) -> str:
    """The status code of a ServiceError."""
    assert isinstance(error, ServiceError), repr(error)
    return error.failure.code


def virtual(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Makes a test of `async def test(rig, ...)`, in virtual time; further parameters are as usual."""

    def run(tmp_path: Path, **others: Any) -> None:
        async def main() -> None:
            rig = Rig(tmp_path)
            try:
                await test(rig, **others)
            except BaseException:
                for machine in rig.machines:
                    await machine.crash()
                raise
            await rig.close()

        run_virtual(main())

    run.__name__ = test.__name__
    run.__doc__ = test.__doc__
    run.__module__ = test.__module__
    run.pytestmark = list(getattr(test, "pytestmark", []))  # type: ignore[attr-defined]
    parameter = inspect.Parameter("tmp_path", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    others = list(inspect.signature(test).parameters.values())[1:]
    run.__signature__ = inspect.Signature([parameter, *others])  # type: ignore[attr-defined]
    return run


__all__ = [
    "NIL",
    "AttemptKey",
    "Machine",
    "Rig",
    "by_step",
    "code_of",
    "done",
    "failed",
    "settle",
    "virtual",
    "wait",
    "with_channels",
]
