"""Clients of the simulated cluster: they behave as the real one, and nobody tells them what became of a lost call."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from dex.wire import service as s
from dex.wire.service import ServiceFailure
from tests.simulation.cluster import OK
from tests.simulation.generate import CHANNELS, NIL, text
from tests.simulation.kernel import Process

if TYPE_CHECKING:
    from tests.simulation.schedule import Schedule

Outcome = s.Answer | ServiceFailure


class Clients:
    """All clients, in one Process. A call is repeated under its id until it is answered."""

    def __init__(self, schedule: Schedule) -> None:
        self._schedule = schedule
        self.process = Process(schedule.world, "clients")
        self._known: dict[str, str] = {}
        self._under_way: dict[int, Any] = {}
        self._count = 0
        self._helped: dict[str, int] = {}
        self.flow_ids: list[str] = []

    @property
    def idle(self) -> bool:
        return not self._under_way

    def waiting(self) -> list[Any]:
        return list(self._under_way.values())

    def name(self, what: str) -> str:
        self._count += 1
        return f"{what}{self._count}"

    def spawn(self, what: Coroutine[Any, Any, None]) -> None:
        self._count += 1
        number = self._count
        self._under_way[number] = what.cr_frame.f_locals.copy()  # type: ignore[attr-defined]
        task = self.process.create_task(what)
        task.add_done_callback(lambda done: self._done(number, done))

    def _done(self, number: int, task: Any) -> None:
        del self._under_way[number]
        error = None if task.cancelled() else task.exception()
        self._schedule.auditor.require(error is None, "client error", repr(error))

    async def call(self, request: Any, patience: float = 15.0) -> Any:
        """The answer, or the failure that is not to be repeated."""
        schedule = self._schedule
        schedule.witness.ask(request)
        pause = 0.05
        while True:
            kind, answer = await schedule.network.ask(self.process, self._known, request, patience)
            schedule.world.say("client", f"{request.operation} {request.flow_id}: {kind} {answer}")
            if kind == OK or answer.code != "UNAVAILABLE" or answer.is_final:
                return answer
            if getattr(request, "fresh", False):
                request = replace(request, fresh=False)
            await self.sleep(pause)
            pause = min(pause * 2, 2.0)

    async def sleep(self, seconds: float) -> None:
        future = self.process.create_future()
        self.process.call_later(seconds, lambda: None if future.done() else future.set_result(None))
        await future

    async def call_once(self, request: Any, patience: float = 15.0) -> None:
        await self.call(request, patience)

    async def produce(self, flow_id: str, channel: str, batches: list[int], patience: float) -> None:
        """Messages one call after the other: they have an order."""
        values = self._schedule.witness.produced[flow_id, self.name("producer")] = []
        for count in batches:
            names = tuple(text(self.name("v")) for _ in range(count))
            request = s.Publish(flow_id=flow_id, channel=channel, values=names, request_id=self.name("p"), fresh=True)
            values.extend(names)
            if isinstance(await self.call(request, patience), ServiceFailure):
                del values[-count:]  # refused; a late copy of the call may yet be taken, at any place

    def help(self, flow_id: str) -> None:
        """The end: an open Flow gets messages for whatever it waits for; one that has no Step, or will not end, is
        stopped."""
        schedule = self._schedule
        run = schedule.auditor.of_flow[flow_id][-1]
        wanted = schedule.waited_for(flow_id)
        times = self._helped[flow_id] = self._helped.get(flow_id, 0) + 1
        if not run.steps:
            if times > 2:
                request = s.StopFlow(flow_id=flow_id, stop_type="CANCEL", request_id=self.name("s"), fresh=True)
                self.spawn(self.call_once(request))
            return
        for channel in CHANNELS:
            if channel in wanted:
                values = tuple(text(self.name("v")) for _ in range(3))
                self.spawn(
                    self.call_once(
                        s.Publish(
                            flow_id=flow_id, channel=channel, values=values, request_id=self.name("p"), fresh=True
                        )
                    )
                )


__all__ = ["NIL", "Clients"]
