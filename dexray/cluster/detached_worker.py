"""A detached attempt as it looks from inside its process: see `detached` for the whole story.

Ray runs the methods of an actor with concurrency groups in threads, so the handler does not run in the main thread
here. Its owner may change while it runs; `LotRun.attach` points the way to the new one.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable
from typing import Any

import ray
from msgspec.structs import replace

from dexray.cluster.attempt_messages import Answer, Finished, LotResult, Question, decode_lot, encode
from dexray.cluster.code_store import why_not_loadable
from dexray.cluster.lot_run import Asked, LotRun
from dexray.cluster.worker_task import RayLink, worker_process
from dexray.protocol.attempts import AttemptKey, AttemptReturned

logger = logging.getLogger("dexray.cluster.worker")

UNATTENDED = 3600.0  # seconds without an owner after which a detached attempt stops, or its result is thrown away
ASK_EVERY = 5.0
RETURNED_SECONDS = 60.0  # for the owner of an attempt that could not begin to end the actor


def name_of(key: AttemptKey) -> str:
    """The name of the actor of an attempt, within the engine's namespace."""
    return f"attempt:{key.run_id}:{key.step_execution_id}:{key.method}:{key.attempt}"


class DetachedAttempt:
    """The Ray actor. `run` is called once, by the first owner; `attach` and `result` by those who come after it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._run: LotRun | None = None
        self._attached: tuple[int, int, DetachedLink] | None = None
        self._key: AttemptKey | None = None
        self._result: LotResult | None = None
        self._over = threading.Event()

    def run(self, parcel: list[Any], data: bytes) -> bytes:
        lot = decode_lot(data)
        task = lot.handed[0].task
        self._key = task.key
        try:
            registry, owner = worker_process.code.get(parcel, task.deployment_id, lot.life)
        except Exception as error:
            returned = AttemptReturned(reason=why_not_loadable(error, task.deployment_id))
            return self._end(LotResult((Finished(lot.handed[0].token, returned, declined=True),)))
        worker, node = worker_process.place()
        run = LotRun(lot, DetachedLink(owner, task.key), worker, node)
        with self._lock:
            self._run = run
            if self._attached is not None:
                run.attach(*self._attached)
        return self._end(worker_process.run_lot(run, lot, registry, worker))

    @ray.method(concurrency_group="owner")
    def attach(self, life: int, token: int, owner: Any) -> bool:
        """There is a new owner: the attempt is its hand-out `token` in its life `life` from now on."""
        while self._key is None:
            time.sleep(0.01)  # Ray makes the actor before it delivers the first call
        with self._lock:
            self._attached = (life, token, DetachedLink(owner, self._key))
            if self._run is not None:
                self._run.attach(*self._attached)
        return True

    @ray.method(concurrency_group="result")
    def result(self) -> bytes:
        """Waits for the end of the attempt, and answers under the token of the latest owner."""
        self._over.wait()
        assert self._result is not None
        return encode(self._result if self._attached is None else under(self._result, self._attached[1]))

    def _end(self, result: LotResult) -> bytes:
        self._result = result
        self._over.set()
        threading.Thread(target=self._linger, name="dexray-linger", daemon=True).start()
        return encode(result)

    def _linger(self) -> None:
        """An owner kills this process when the result is durable. When it forgets to, nobody wants the result."""
        if self._run is None:  # it could not begin; the answer that says so has to get out first
            time.sleep(RETURNED_SECONDS)
        unheard_since = time.monotonic()
        while self._run is not None and self._key is not None and time.monotonic() - unheard_since < UNATTENDED:
            time.sleep(ASK_EVERY)
            answers: list[Answer | None] = []
            life, link, token = self._run.owner()
            question = Question(life, *worker_process.place(), about=(token,), detached=self._key)
            link.ask(question, answers.append).wait(ASK_EVERY)
            answer = answers[0] if answers else None
            if answer is not None and token in answer.canceled:
                break
            if answer is not None and not answer.is_unknown:
                unheard_since = time.monotonic()
        logger.info("nobody wants the result of %s", self._key)
        os._exit(0)


def under(result: LotResult, token: int) -> LotResult:
    return LotResult(tuple(replace(finished, token=token) for finished in result.finished))


class DetachedLink(RayLink):
    """Says in each question which attempt it is, for an owner that did not hand it out. When there was no owner to ask
    for too long, the attempt is canceled."""

    def __init__(self, owner: Any, key: AttemptKey) -> None:
        super().__init__(owner)
        self._key = key
        self._unheard_since: float | None = None

    def ask(self, question: Question, answered: Callable[[Answer | None], None]) -> Asked:
        def heard(answer: Answer | None) -> None:
            if answer is not None and not answer.is_unknown:
                self._unheard_since = None
            elif self._unheard_since is None:
                self._unheard_since = time.monotonic()
            elif time.monotonic() - self._unheard_since > UNATTENDED:
                logger.warning("attempt %s stops: it has had no owner for %g s", self._key, UNATTENDED)
                answer = Answer(question.about)
            answered(answer)

        return super().ask(replace(question, detached=self._key), heard)
