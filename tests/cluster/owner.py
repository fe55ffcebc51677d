"""A stand-in for a FlowActor: an actor with RayAttempts in it, and a sink that remembers what it was told."""

from __future__ import annotations

import asyncio
import os
import pickle
import time
from collections import deque
from typing import Any

import ray

from dexray.cluster.code_store import CodeStore
from dexray.cluster.ray_attempts import AttemptSettings, RayAttempts
from dexray.protocol.attempts import AttemptKey, AttemptResult, AttemptTask, Heartbeat
from dexray.protocol.streams import StreamWrite


@ray.remote(max_retries=0)
def _gone() -> None:
    os._exit(1)


class Owner:
    """Hands out what it is given as slots allow, one queue a Step type, like the engine."""

    def __init__(self, codes: dict[str, bytes], settings: AttemptSettings | None = None) -> None:
        self.codes = codes
        self.settings = settings
        self.attempts: RayAttempts | None = None
        self.queues: dict[tuple[str, str, bool], deque[AttemptTask]] = {}
        self.results: dict[AttemptKey, tuple[AttemptResult, float]] = {}
        self.handed_out_at: dict[AttemptKey, float] = {}
        self.running: dict[AttemptKey, float] = {}
        self.heartbeats: list[tuple[AttemptKey, Heartbeat | None]] = []
        self.messages: list[StreamWrite] = []
        self.twice: list[AttemptKey] = []
        self.awaited: set[AttemptKey] = set()
        self.to_cancel: set[AttemptKey] = set()
        self.unwanted: set[AttemptKey] = set()
        self.news = asyncio.Event()

    async def begin(self) -> None:
        self.attempts = RayAttempts(
            sink=self,
            owner=ray.get_runtime_context().current_actor,
            code=CodeStore(self.load),
            loop=asyncio.get_running_loop(),
            namespace=ray.get_runtime_context().namespace,
            settings=self.settings,
        )
        await self.attempts.start()

    async def end(self) -> None:
        assert self.attempts is not None
        await self.attempts.close()

    async def load(self, deployment_id: str) -> bytes:
        return self.codes[deployment_id]

    async def add_code(self, deployment_id: str, code: bytes) -> None:
        self.codes[deployment_id] = code

    # Forwarded by a FlowActor

    async def report(self, data: bytes, shared: Any = (), content: Any = ()) -> None:
        assert self.attempts is not None
        self.attempts.on_report(data, shared, content)

    async def canceled(self, data: bytes) -> bytes:
        assert self.attempts is not None
        return await self.attempts.canceled_keys(data)

    # AttemptSink

    def attempt_running(self, key: AttemptKey) -> None:
        self.running[key] = time.time()
        if key in self.to_cancel and self.attempts is not None:
            self.attempts.cancel(key)
        self.news.set()

    def attempt_heartbeat(self, key: AttemptKey, heartbeat: Heartbeat | None) -> None:
        self.heartbeats.append((key, heartbeat))
        self.news.set()

    def stream_written(self, message: StreamWrite) -> None:
        self.messages.append(message)
        self.news.set()

    def attempt_finished(self, key: AttemptKey, result: AttemptResult) -> None:
        if key in self.results:
            self.twice.append(key)
        self.results[key] = (result, time.time())
        self.awaited.discard(key)
        self.news.set()

    async def is_wanted(self, key: AttemptKey) -> bool:
        return key not in self.unwanted

    def slots_changed(self) -> None:
        self.pump()

    def pump(self) -> None:
        assert self.attempts is not None
        for kind, queue in self.queues.items():
            while queue and self.attempts.reserve(*kind):
                task = queue.popleft()
                self.handed_out_at[task.key] = time.time()
                self.attempts.run(task)

    # For tests

    async def share(self, digest: str, body: bytes) -> None:
        """Keeps a large value as if an attempt had given it."""
        assert self.attempts is not None
        self.attempts._values.keep(ray.put([None, pickle.PickleBuffer(body)]), {digest: memoryview(body)})

    async def lose(self, digest: str) -> None:
        """From now on the reference leads to an error, as it does when the object is gone."""
        assert self.attempts is not None
        self.attempts._values.keep(_gone.remote(), {digest: memoryview(b"")})

    async def at_hand(self, digest: str) -> bool:
        assert self.attempts is not None
        return bool(self.attempts._values.find([digest]))

    async def adopt(self, task: AttemptTask) -> None:
        assert self.attempts is not None
        self.attempts.adopt(task)

    async def settled(self, key: AttemptKey) -> None:
        assert self.attempts is not None
        self.attempts.settled(key)

    async def disown(self, keys: list[AttemptKey]) -> None:
        self.unwanted.update(keys)

    async def submit(self, tasks: list[AttemptTask]) -> None:
        for task in tasks:
            self.queues.setdefault((task.flow_type, task.step_type, task.is_async), deque()).append(task)
        self.pump()

    async def run_all(self, tasks: list[AttemptTask]) -> float:
        """Seconds from the submission to the last result."""
        began = time.perf_counter()
        self.awaited = {task.key for task in tasks}
        await self.submit(tasks)
        while self.awaited:
            self.news.clear()
            await self.news.wait()
        return time.perf_counter() - began

    async def cancel(self, keys: list[AttemptKey]) -> float:
        assert self.attempts is not None
        for key in keys:
            self.attempts.cancel(key)
        return time.time()

    async def cancel_when_running(self, keys: list[AttemptKey]) -> None:
        self.to_cancel.update(keys)
        await self.cancel([key for key in keys if key in self.running])

    async def wait_running(self, keys: list[AttemptKey], timeout: float = 20.0) -> None:
        await self._until(lambda: all(key in self.running for key in keys), timeout, "running")

    async def wait_results(self, keys: list[AttemptKey], timeout: float = 30.0) -> list[AttemptResult]:
        await self._until(lambda: all(key in self.results for key in keys), timeout, "finished")
        return [self.results[key][0] for key in keys]

    async def wait_no_slots(self, timeout: float = 30.0) -> None:
        attempts = self.attempts
        assert attempts is not None
        await self._until(lambda: attempts.handed_out == 0, timeout, "free of slots")

    async def wait_lanes(self, count: int, timeout: float = 10.0) -> None:
        attempts = self.attempts
        assert attempts is not None
        await self._until(lambda: len(attempts._lanes._lanes) == count, timeout, "known by their Ray tasks")

    async def results_of(self, keys: list[AttemptKey]) -> list[AttemptResult]:
        return [self.results[key][0] for key in keys if key in self.results]

    async def times(self, keys: list[AttemptKey]) -> list[tuple[float, float]]:
        return [(self.handed_out_at[key], self.results[key][1]) for key in keys]

    async def state(self) -> dict[str, Any]:
        assert self.attempts is not None
        return {
            "slots": self.attempts.handed_out,
            "running": list(self.running),
            "heartbeats": self.heartbeats,
            "twice": self.twice,
            "lots": self.attempts._numbers - len(self.handed_out_at),
            "cpu": time.process_time(),
        }

    async def _until(self, is_so: Any, timeout: float, what: str) -> None:
        async with asyncio.timeout(timeout):
            while not is_so():
                self.news.clear()
                try:
                    await asyncio.wait_for(self.news.wait(), 0.05)
                except TimeoutError:
                    continue
