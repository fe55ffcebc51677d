"""FlowTest: Flows in a test, in this process and this thread, with time, faults and exceptions in the test's hands.

    with FlowTest(Registry([order])) as test:
        test.client.start_flow(order, "order-7", 14)
        test.advance(timedelta(days=2))
        test.assert_steps_run("order-7", Quote, Ran(Approve, input=42))

What runs is the real thing: the user's handlers, the state machine, the host with its group commit, the SQLite journal
(in a folder of its own that is deleted at the end). What is missing is Ray, and time.

- **One thread.** Handlers are called on the thread of the test, below the call of the client that lets them run. So
  `breakpoint()` stops in them, coverage and monkeypatching see them, and a Ctrl-C ends the test.
- **Between two calls nothing happens** (`dexray.testing.driver`), and after a call everything has happened that can
  happen without time passing.
- **Time is virtual.** `advance(...)` lets it pass; a call that waits skips to its answer, unless `skip_time=False`.
  `asyncio.sleep` in a handler is virtual too. `time.sleep` and `datetime.now()` are not: take the time from
  `FlowTest.now` where a handler needs one.
- **Nothing is swallowed.** What handlers raised is in `errors`, with its traceback, though the engine retried them; a
  test that fails says so below its own traceback. Trouble of the engine ends the test with EngineProblem.
"""

from __future__ import annotations

import asyncio
import bdb
import logging
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self, TypeVar

from dex import AsyncClient, Client, Registry
from dex.step import step_type_of
from dex.wire.service import AnswerT, Request, ServiceError
from dex.wire.specs import EXECUTE
from dexray.engine import HostSettings
from dexray.journal import Journal, open_journal
from dexray.protocol.attempts import AttemptFailed, AttemptResult, AttemptTask
from dexray.testing.clients import DrivenAsyncClient, DrivenClient
from dexray.testing.driver import NEVER, Driver
from dexray.testing.errors import EngineProblem, FaultNotMet, FlowTestError, NeverAtRest
from dexray.testing.faults import AFTER, BEFORE, FaultyJournal, WorkerDeath, WorkerDeaths
from dexray.testing.inprocess import InProcessEngine
from dexray.testing.looking import AnyStep, Looking
from dexray.testing.seen import open_steps
from dexray.testing.virtual import EPOCH, VirtualClock

T = TypeVar("T")

BUSY = 20_000  # attempts without time passing, after which Flows are taken to run in a circle


@dataclass(frozen=True, slots=True)
class HandlerError:
    """What a handler raised, in one attempt. `error` is the exception itself, with its traceback."""

    flow_id: str
    step_type: str
    step_execution_id: str
    method: str
    attempt: int
    error: BaseException

    def __str__(self) -> str:
        return (
            f"attempt {self.attempt} of {self.method} of {self.step_execution_id} of Flow {self.flow_id!r} raised "
            f"{type(self.error).__name__}: {self.error}"
        )


class FlowTest(Looking):
    """Runs the Flows of a Registry in this process, under a virtual clock. A context manager, plain or asynchronous.

    skip_time: a call that waits skips time until it is answered. Otherwise only `advance` lets time pass, and such a
        call raises WaitsForTime.
    skip_at_most: how much time one call may skip before it raises WaitsForever: Flows that run on for ever exist.
    raise_errors: the first exception of a handler is raised by the call of the client (or by `advance`) in which it
        happened, instead of being retried.
    begins: the time at which the test begins; default: a fixed one, so that every run is the same.
    slots: how many attempts may run at once.
    settings: of the engine, as in `dexray.engine.HostSettings`.
    """

    on_ray = False

    def __init__(
        self,
        registry: Registry,
        *,
        skip_time: bool = True,
        skip_at_most: timedelta = timedelta(days=366),
        raise_errors: bool = False,
        begins: datetime | None = None,
        slots: int = 100,
        **settings: Any,
    ) -> None:
        if begins is not None and begins.tzinfo is None:
            raise ValueError(f"FlowTest(begins={begins!r}): give a time zone, like datetime(2026, 1, 1, tzinfo=UTC)")
        self.errors: list[HandlerError] = []
        """What handlers raised, in the order in which they did. Clear it to forget what was expected."""
        self._registry = registry
        self._raise_errors = raise_errors
        self._begins = EPOCH if begins is None else begins.timestamp()
        self._slots = slots
        self._settings = HostSettings(longest_poll=NEVER, **settings)
        self._deployments = 0
        self._wall_offset = 0.0
        self._problems: list[tuple[str, BaseException | None]] = []
        self._attempts_at_rest = 0
        self._deaths = WorkerDeaths()
        self._commit_faults: list[str] = []
        self._outage_after = 0.0
        self._engine: InProcessEngine | None = None
        self._clock: VirtualClock | None = None
        self._folder = Path(tempfile.mkdtemp(prefix="flow-test-"))
        self._log = _ProblemLog(self._problem)
        self._driver = Driver(
            skip_time=skip_time,
            skip_at_most=skip_at_most.total_seconds(),
            waiting=self._waiting,
            check=self._check,
        )
        self._closed = False
        try:
            self._journal = FaultyJournal(open_journal(self._folder / "flows.db"), self._driver.loop.time)
            self._journal.migrate()
            self._journal.met = self._commit_failed
            logging.getLogger("dexray").addHandler(self._log)
            self._driver.loop.set_exception_handler(self._loop_failed)
            self._begin()
        except BaseException:
            self._end()
            raise

    # Life -------------------------------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None and self.errors:
            error.add_note("\n".join(["Handlers raised in this FlowTest:", *(f"  {seen}" for seen in self.errors)]))
        try:
            self.close()
        except FlowTestError:
            if error is None:  # what the test failed with says more
                raise

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.__exit__(kind, error, trace)

    def close(self) -> None:
        """Ends the engine and deletes its journal. Again: does nothing. Raises EngineProblem for trouble that no call
        has raised yet, and FaultNotMet for a fault that was asked for and has not happened.
        """
        if self._closed:
            return
        try:
            if self._engine is not None:
                self._driver.run(self._engine.crash)
        finally:
            self._end()
        left = [*map(str, self._deaths.to_come), *self._commit_faults]
        if left:
            raise FaultNotMet("faults were asked for that the test did not come to: " + "; ".join(left))

    def _end(self) -> None:
        self._closed = True
        logging.getLogger("dexray").removeHandler(self._log)
        try:
            if hasattr(self, "_journal"):
                self._journal.inner.close()
            self._driver.close()
        finally:
            shutil.rmtree(self._folder, ignore_errors=True)

    def _begin(self) -> None:
        async def begin() -> None:
            self._clock = VirtualClock(self._begins, self._wall_offset)
            self._engine = engine = InProcessEngine(
                self._registry,
                self._journal,
                self._clock,
                settings=self._settings,
                slots=self._slots,
                watcher=self,
            )
            await engine.start()

        self._driver.run(begin)

    # Clients ----------------------------------------------------------------------------------------------------------

    @property
    def client(self) -> Client:
        """A Client, for plain tests. It stays the same over a `restart`."""
        return DrivenClient(self._registry, _Service(self), self._driver)

    @property
    def async_client(self) -> AsyncClient:
        """An AsyncClient, for `async def` tests, and for asynchronous handlers."""
        return DrivenAsyncClient(self._registry, _Service(self), self._driver)

    @property
    def registry(self) -> Registry:
        """The code that is deployed."""
        return self._registry

    def deploy(self, registry: Registry) -> None:
        """Newer code: it runs from now on, in Flows that are under way too. Take `client` anew for its Flows."""
        self._registry = registry
        self._deployments += 1
        deployment_id = f"flow-test-{self._deployments}"

        async def deploy() -> None:
            if self._engine is not None:
                self._engine.deploy(registry, deployment_id)

        self._driver.run(deploy)

    # Time -------------------------------------------------------------------------------------------------------------

    def now(self) -> datetime:
        """The time as the engine has it, UTC."""
        return datetime.fromtimestamp(self._at_the_engine(lambda clock: clock.now()), UTC)

    def advance(self, duration: timedelta | float) -> None:
        """Lets time pass: whatever falls due meanwhile happens, each thing at its time. A number means seconds."""
        self._driver.advance(_seconds(duration))

    def step_wall_clock(self, by: timedelta | float) -> None:
        """Sets the wall clock forward, or back if negative. No time passes. By: seconds if a number."""
        by = _seconds(by, may_be_negative=True)
        self._wall_offset += by

        def step(clock: VirtualClock) -> None:
            clock.wall_offset = self._wall_offset

        if self._clock is not None:
            self._at_the_engine(step)

    def _at_the_engine(self, ask: Callable[[VirtualClock], T]) -> T:
        if asyncio._get_running_loop() is self._driver.loop:  # a handler asks
            assert self._clock is not None
            return ask(self._clock)

        async def there() -> T:
            assert self._clock is not None
            return ask(self._clock)

        return self._driver.run(there)

    # Faults -----------------------------------------------------------------------------------------------------------

    def kill_worker_on_attempt(
        self,
        step: AnyStep,
        nth: int = 1,
        *,
        method: Literal["execute", "wait_for"] = EXECUTE,  # type: ignore[assignment]
        when: Literal["before", "after"] = AFTER,  # type: ignore[assignment]
        flow_id: str = "",
    ) -> None:
        """The worker process dies on an attempt: the nth one of this Step's method from now on.

        when: "after" the handler has run, its effects are there and its result is lost; "before", it never ran. The
        retry policy decides what follows, as on a cluster. flow_id: count the attempts of this Flow alone. Raises
        ValueError for a Step that no Flow has.
        """
        step_type = step if isinstance(step, str) else step_type_of(step)
        if nth < 1:
            raise ValueError(f"kill_worker_on_attempt(nth={nth}): attempts are counted from 1")
        if when not in (BEFORE, AFTER):
            raise ValueError(f"kill_worker_on_attempt(when={when!r}): use 'before' or 'after'")
        known = {name for flow in self._registry.flows for name in self._registry.definition(flow).steps}
        if step_type not in known:
            raise ValueError(
                f"kill_worker_on_attempt({step_type!r}): no Flow of the Registry has such a Step; there are "
                f"{', '.join(sorted(known))}"
            )
        self._deaths.to_come.append(WorkerDeath(step_type, method, when, flow_id, nth))

    def fail_commit(
        self,
        outcome: Literal["before", "unknown"] = BEFORE,  # type: ignore[assignment]
        nth: int = 1,
        *,
        lasts: timedelta | float = 0.0,
    ) -> None:
        """The database fails the nth commit from now on. No Flow fails for it: the engine tries again.

        outcome: "before", nothing was written; "unknown", it was written, and the connection broke before the answer.
        lasts: so long the database is away from then on (seconds if a number), for reading too. Raises FlowTestError
        while another fault of this kind is still to come, ValueError for a wrong outcome or number.
        """
        if outcome not in (BEFORE, "unknown"):
            raise ValueError(f"fail_commit({outcome!r}): use 'before' or 'unknown'")
        if nth < 1:
            raise ValueError(f"fail_commit(nth={nth}): commits are counted from 1")
        if self._commit_faults:
            raise FlowTestError(f"{self._commit_faults[0]} was asked for and has not happened yet: one at a time")
        self._outage_after = _seconds(lasts)
        self._commit_faults.append(f"fail_commit({outcome!r}, nth={nth})")
        self._journal.fail("append", *[""] * (nth - 1), BEFORE if outcome == BEFORE else AFTER)

    def _commit_failed(self, operation: str) -> None:
        self._commit_faults.clear()
        if self._outage_after:
            self._journal.out_for(self._outage_after)

    def restart(self, *, down: timedelta | float = 0.0, registry: Registry | None = None) -> None:
        """The engine ends as by a power cut, and another one goes on with the same journal.

        What was not committed is lost, attempts that were under way are interrupted. down: so long nobody is there
        (seconds if a number). registry: the code of the new engine, if it is another.
        """
        seconds = _seconds(down)
        engine, self._engine = self._engine, None
        if engine is not None:
            self._driver.run(engine.crash)
        self._driver.advance(seconds)
        if registry is not None:
            self._registry = registry
        self._begin()

    # Errors -----------------------------------------------------------------------------------------------------------

    def raise_error(self, flow_id: str = "") -> None:
        """Raises what a handler raised last (in a Flow), as it was, with its traceback. Does nothing if none did."""
        for seen in reversed(self.errors):
            if flow_id in ("", seen.flow_id):
                raise seen.error

    def begins(self, task: AttemptTask) -> AttemptFailed | None:
        """Of the engine's: an attempt begins."""
        self._attempts_at_rest += 1
        if self._attempts_at_rest >= BUSY:
            self._attempts_at_rest = 0
            self._driver.loop.cut_short(
                NeverAtRest(
                    f"{BUSY:,} attempts ran without time passing, the last one of {task.key.step_execution_id} of Flow "
                    f"{task.key.flow_id!r}: do its Steps run in a circle?"
                )
            )
        return self._deaths.begins(task)

    def ended(self, task: AttemptTask, result: AttemptResult) -> AttemptResult:
        """Of the engine's: an attempt has ended."""
        return self._deaths.ended(task, result)

    def raised(self, task: AttemptTask, error: BaseException) -> None:
        """Of the engine's: a handler raised."""
        key = task.key
        self.errors.append(
            HandlerError(key.flow_id, task.step_type, key.step_execution_id, key.method, key.attempt, error)
        )
        if self._raise_errors or _ends_the_test(error):
            self._driver.loop.cut_short(error)

    def _problem(self, message: str, error: BaseException | None) -> None:
        self._problems.append((message, error))

    def _loop_failed(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        self._problem(str(context.get("message", "")), context.get("exception"))

    def _check(self) -> None:
        self._attempts_at_rest = 0
        if self._problems:
            (message, error), *others = self._problems
            self._problems.clear()
            problem = EngineProblem(message if error is None else f"{message} ({type(error).__name__}: {error})")
            for also, _ in others:
                problem.add_note(f"and then: {also}")
            raise problem from error

    def _waiting(self) -> str:
        """What the open Flows wait for."""
        host = self._engine.host if self._engine is not None else None
        flow_ids = [live.flow_id for live in host.flows.values() if not live.flow.is_closed] if host is not None else []
        lines = [line for flow_id in flow_ids[:5] for line in self._open_lines(flow_id)]
        more = [f"and {len(flow_ids) - 5} more open Flows"] if len(flow_ids) > 5 else []
        return "\n".join([*lines, *more])

    def _open_lines(self, flow_id: str) -> list[str]:
        try:
            steps = open_steps(self._journal.inner, self._registry, flow_id)
        except FlowTestError:
            return []
        return [f"Flow {flow_id!r}: {step}" for step in steps] or [f"Flow {flow_id!r} has no open Step"]

    # Looking ----------------------------------------------------------------------------------------------------------

    def _read(self, read: Callable[[Journal], T]) -> T:
        async def hurry() -> None:
            if self._engine is not None:
                self._engine.host.hurry()

        if asyncio._get_running_loop() is not self._driver.loop:
            self._driver.run(hurry)
        return read(self._journal.inner)


class _Service:
    """The engine of the moment."""

    def __init__(self, test: FlowTest) -> None:
        self._test = test

    async def call(self, request: Request[AnswerT]) -> AnswerT:
        engine = self._test._engine
        if engine is None:
            raise ServiceError("UNAVAILABLE", "the engine is down")
        return await engine.call(request)

    async def close(self) -> None:
        pass


class _ProblemLog(logging.Handler):
    """Takes down what the engine logs as an error: there is nobody else to see it."""

    def __init__(self, problem: Callable[[str, BaseException | None], None]) -> None:
        super().__init__(logging.ERROR)
        self._problem = problem

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        self._problem(record.getMessage(), error)


def _ends_the_test(error: BaseException) -> bool:
    """Meant for whoever runs the test, not for the engine: Ctrl-C, `quit` in the debugger, pytest.fail and the like."""
    if isinstance(error, Exception):
        return isinstance(error, bdb.BdbQuit)
    return not isinstance(error, SystemExit | GeneratorExit | asyncio.CancelledError)


def _seconds(duration: timedelta | float, may_be_negative: bool = False) -> float:
    seconds = duration.total_seconds() if isinstance(duration, timedelta) else float(duration)
    if seconds < 0.0 and not may_be_negative:
        raise ValueError(f"time passes in one direction: a duration can't be {duration}")
    return seconds
