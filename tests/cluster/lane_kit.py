"""RayAttempts on a Ray that is not there: what it submits waits here for a test to play the worker process.

The socket is real, and so are both ends of the lane where a test wants them.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

from dexray.cluster.attempt_messages import Finished, Lot, LotResult, decode_lot, encode
from dexray.cluster.code_store import CodeStore
from dexray.cluster.dispatch import DispatchSettings
from dexray.cluster.lane_wire import Bye, FromOwner, Run
from dexray.cluster.ray_attempts import AttemptSettings, RayAttempts
from dexray.cluster.worker_lane import Connection
from dexray.protocol.attempts import (
    AttemptKey,
    AttemptResult,
    AttemptTask,
    DecisionSpec,
    ExecuteSucceeded,
    Heartbeat,
)
from dexray.protocol.streams import StreamWrite

NODE = "node-1"
SOON = 5.0


class Reference:
    """Of a Ray task that a test ends."""

    def __init__(self) -> None:
        self._done: Callable[[object], None] | None = None

    def _on_completed(self, done: Callable[[object], None]) -> None:
        self._done = done

    def resolve(self, value: object) -> None:
        assert self._done is not None
        self._done(value)


class Submitted:
    """A Ray task that was sent."""

    def __init__(self, lot: Lot) -> None:
        self.lot = lot
        self.reference = Reference()

    def returns(self, result: LotResult) -> None:
        self.reference.resolve(encode(result))


class AttemptsWithoutRay(RayAttempts):
    submitted: list[Submitted]

    def _remote(self, handout: Any) -> Any:
        return self

    def remote(self, parcel: Any, data: bytes) -> Reference:
        task = Submitted(decode_lot(data))
        self.submitted.append(task)
        return task.reference


class Owner:
    """Attempts of one owner, and all that its engine was told."""

    def __init__(self, cpus: int = 1, linger: float = 5.0, **settings: Any) -> None:
        self.results: dict[AttemptKey, list[AttemptResult]] = {}
        self.news = asyncio.Event()
        self.attempts = AttemptsWithoutRay(
            sink=self,
            owner=None,
            code=KnownCode(),
            loop=asyncio.get_running_loop(),
            settings=AttemptSettings(
                dispatch=DispatchSettings(**{"lane_hold": 60.0, **settings}), linger=linger, cancel_grace=0.2
            ),
        )
        self.attempts.submitted = []
        self.attempts._dispatch.set_resources({"CPU": float(cpus)})
        self._count = 0

    async def __aenter__(self) -> Owner:
        await self.attempts._lanes.start("127.0.0.1")
        return self

    async def __aexit__(self, *error: object) -> None:
        self.attempts._lanes.close()

    @property
    def submitted(self) -> list[Submitted]:
        return self.attempts.submitted

    @property
    def tasks(self) -> int:
        """Ray tasks that have not ended, by the owner's books."""
        return sum(bucket.tasks for bucket in self.attempts._dispatch._buckets.values())

    def learn(self, seconds: float = 0.001) -> None:
        """The Step type is known to be short."""
        for _ in range(3):
            self.attempts._dispatch.ran(("Flow", "Step"), seconds)

    def run(self, deployment_id: str = "code", **fields: Any) -> AttemptKey:
        self._count += 1
        task = AttemptTask(
            key=AttemptKey(f"flow-{self._count}", "run", "Step-1", "execute", 1),
            flow_type="Flow",
            step_type="Step",
            deployment_id=deployment_id,
            from_step_execution_id="",
            input=b"",
            timeout=60.0,
            heartbeat_timeout=60.0,
            first_attempt_at=0.0,
            **fields,
        )
        assert self.attempts.reserve("Flow", "Step", False)
        self.attempts.run(task)
        return task.key

    async def until(self, is_so: Callable[[], object]) -> None:
        async with asyncio.timeout(SOON):
            while not is_so():
                self.news.clear()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self.news.wait(), 0.002)

    async def task(self, number: int = 0) -> Submitted:
        """The Ray task of this number that was sent."""
        await self.until(lambda: len(self.submitted) > number)
        return self.submitted[number]

    async def result(self, key: AttemptKey) -> AttemptResult:
        await self.until(lambda: key in self.results)
        (result,) = self.results[key]
        return result

    def worker(self) -> Worker:
        return Worker(self)

    # AttemptSink

    def attempt_running(self, key: AttemptKey) -> None: ...

    def attempt_heartbeat(self, key: AttemptKey, heartbeat: Heartbeat | None) -> None: ...

    def stream_written(self, message: StreamWrite) -> None: ...

    def attempt_finished(self, key: AttemptKey, result: AttemptResult) -> None:
        self.results.setdefault(key, []).append(result)
        self.news.set()

    def slots_changed(self) -> None: ...


class KnownCode(CodeStore):
    def __init__(self) -> None: ...

    def parcel(self, deployment_id: str, life: int) -> list[Any]:
        return []


class Worker:
    """A worker process as a test plays it, frame by frame."""

    def __init__(self, owner: Owner) -> None:
        door = owner.attempts._lanes.door
        assert door is not None
        self.connection = Connection(door, owner.attempts._life, NODE)

    def send(self, data: bytes) -> None:
        self.connection.send(data)

    async def next(self) -> FromOwner:
        frame = await asyncio.to_thread(self.connection.receive, SOON)
        assert frame is not None, "the owner sent nothing"
        return frame

    async def next_lot(self) -> Lot:
        frame = await self.next()
        assert isinstance(frame, Run), frame
        return frame.lot

    async def bye(self) -> None:
        frame = await self.next()
        assert isinstance(frame, Bye), frame


def done(lot: Lot) -> LotResult:
    """All attempts of a lot succeeded, in a millisecond each."""
    result = ExecuteSucceeded(decision=DecisionSpec(kind="dead_end"))
    return LotResult(tuple(Finished(handed.token, result, 0.001) for handed in lot.handed))


@contextlib.contextmanager
def in_thread(work: Callable[[], None]) -> Iterator[None]:
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    yield
    thread.join(SOON)
    assert not thread.is_alive()
