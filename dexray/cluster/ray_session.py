"""This process and Ray: one connection, found or started once, shared by all its engines, ended with the last of them.

Which Ray? The first of these that there is:

1. the one that this process is connected to already, whoever did that;
2. `address`: a cluster's "host:port", or "local" for an embedded one;
3. `RAY_ADDRESS`, which means to us what it means to Ray;
4. the one whose engine works on our database. The lease in the database names it, so two notebooks on one file share
   an engine, and two projects on one machine do not meet;
5. the cluster that `ray start` started on this machine;
6. a new one, embedded: it ends with its last client here, with this process, or with Ctrl-C.

How it starts and ends. Ray's processes are tied to the *thread* that started them (the kernel's PR_SET_PDEATHSIG), so
it must be one that lasts: a daemon of our own, which dies only with the process. Starting and ending there has more
advantages. Ctrl-C can't cut either short: the caller waits for the end, then the interrupt goes on. And the program
keeps its handler of SIGTERM, because Python lets only the main thread set one. SIGKILL and SIGTERM need no help from
us: the kernel ends Ray's processes with ours. The embedded Ray of another process may end under us. Ray itself would
end this process a minute later, and a notebook with it, so we look, and leave in time.
"""

from __future__ import annotations

import atexit
import logging
import os
import queue
import signal
import socket
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import ray
from ray.exceptions import RayError

from dex import DexServiceError, StatusCode
from dexray.cluster.tokens import why_unreachable
from dexray.settings import Settings

if TYPE_CHECKING:
    from dexray.cluster.lease import LivingEngine

logger = logging.getLogger("dexray")

T = TypeVar("T")

LOOK_EVERY = 2.0  # seconds between looks at a Ray that belongs to another process
GONE_AFTER = 30.0  # seconds without an answer after which it is left: at 60, Ray would end this process
INTERRUPTED_WAIT = 15.0  # seconds that Ctrl-C waits for Ray to have started or ended; a second one waits no more


class Stay:
    """One engine's share of this process's Ray. `embedded` tells that Ray ends with the last stay."""

    def __init__(self, namespace: str, embedded: bool, leave: Callable[[Stay], None]) -> None:
        self.namespace = namespace
        self.embedded = embedded
        self.before_end: Callable[[bool], None] = lambda in_a_hurry: None
        """Ends the engine in order: called when the last stay in a namespace of an embedded Ray ends. In a hurry when
        the program ends without having closed it."""
        self._leave = leave

    def leave(self) -> None:
        """Ends this stay; again: does nothing."""
        self._leave(self)


class RaySession:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lasting = LastingThread()
        self._stays: weakref.WeakSet[Stay] = weakref.WeakSet()
        self._ours: tuple[str, str] | None = None  # the connection that we made, and shall end
        self._embedded = False
        self._pid = os.getpid()
        atexit.register(self._at_exit)

    def enter(self, settings: Settings, meanwhile: Callable[[], object]) -> Stay:
        """Finds or starts Ray; `meanwhile` runs beside that. Raises DexServiceError when there is no Ray to be had."""
        with self._lock:
            if self._pid != os.getpid() and not self._lasting.is_started and not ray.is_initialized():
                self._pid = os.getpid()  # forked before anything began
            if self._pid != os.getpid():
                raise DexServiceError(
                    StatusCode.FAILED_PRECONDITION,
                    "this process was forked from one that uses Ray, which Ray does not bear: "
                    'start it with the "spawn" method, or connect only after the fork',
                    operation="connect",
                )
            _check_address(settings.address)
            self._lasting.settle()
            if ray.is_initialized():
                self._embedded = self._embedded and self._is_ours()
                _check_same_cluster(settings.address)
                meanwhile()
            else:
                self._stays.clear()  # whoever was here, Ray ended under them
                self._begin(settings, meanwhile)
            stay = Stay(settings.namespace, self._embedded, self._leave)
            self._stays.add(stay)
            return stay

    def _begin(self, settings: Settings, meanwhile: Callable[[], object]) -> None:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        address = _find_ray(settings)
        self._embedded = address == "local"
        common: dict[str, Any] = {
            "namespace": settings.namespace,
            "log_to_driver": self._embedded and settings.worker_output,
            "logging_level": logging.WARNING,
        }
        if self._embedded:
            cpus = settings.num_cpus or os.cpu_count() or 1
            common |= {"num_cpus": cpus, "include_dashboard": False}
        started = self._lasting.submit(lambda: _init_quietly(address, common))
        try:
            meanwhile()
            self._lasting.wait(started)
            _leave_sigterm_alone()
            self._ours = _connection()
            if not self._embedded and not settings.address:
                threading.Thread(target=self._watch, args=(self._ours,), name="dexray-watch", daemon=True).start()
        except (ConnectionError, RayError, RuntimeError, ValueError, OSError) as error:
            where = "an embedded Ray can't be started" if self._embedded else f"Ray at {address} can't be reached"
            code, detail = why_unreachable(where, error)
            raise DexServiceError(code, detail, operation="connect") from error
        except BaseException:
            # It may still be starting, on a slow machine: its end comes after that, whoever waits for it.
            self._lasting.submit(ray.shutdown)
            self._lasting.settle(INTERRUPTED_WAIT)
            raise

    def _leave(self, stay: Stay) -> None:
        with self._lock:
            if stay not in self._stays or self._pid != os.getpid():
                return
            self._stays.discard(stay)
            if not ray.is_initialized():
                return
            try:
                if stay.embedded and all(other.namespace != stay.namespace for other in self._stays):
                    stay.before_end(False)
            finally:
                if not self._stays:
                    self._end()

    def _watch(self, connection: tuple[str, str]) -> None:
        """Leaves a Ray that has ended under us."""
        heard = time.monotonic()
        while self._ours == connection:
            time.sleep(LOOK_EVERY)
            if answers(connection[0]):
                heard = time.monotonic()
            elif time.monotonic() - heard > GONE_AFTER:
                with self._lock:
                    if self._is_ours() and self._ours == connection:
                        logger.warning("Ray at %s has ended, and this process leaves it: connect again", connection[0])
                        self._stays.clear()
                        self._end()
                return

    def _is_ours(self) -> bool:
        """Not so when the program has called ray.shutdown() and ray.init() behind our back."""
        return self._ours is not None and ray.is_initialized() and self._ours == _connection()

    def _end(self) -> None:
        if self._is_ours():
            self._ours = None
            self._lasting.wait(self._lasting.submit(ray.shutdown))

    def _at_exit(self) -> None:
        """For programs that end without `close()`."""
        if self._pid != os.getpid() or not self._is_ours():
            return
        if not self._lock.acquire(timeout=INTERRUPTED_WAIT):
            return  # another thread is stuck in Ray: what is left ends with this process
        by_namespace = {stay.namespace: stay for stay in self._stays if stay.embedded}
        self._stays.clear()
        try:
            for stay in by_namespace.values():
                stay.before_end(True)
        finally:
            self._end()


class Submitted(Generic[T]):
    """A call on its way. Its end is a bare lock: an interrupt may come between any two instructions, and leaves the
    Condition of a Future locked, or unlocks it twice.
    """

    def __init__(self, call: Callable[[], T]) -> None:
        self._call = call
        self._running = threading.Lock()
        self._running.acquire()
        self._result: list[T] = []
        self._error: BaseException | None = None

    def run(self) -> None:
        try:
            self._result.append(self._call())
        except BaseException as error:
            self._error = error
        self._running.release()

    def wait(self, seconds: float | None = None) -> bool:
        """Whether it has ended, after at most so long."""
        ended = self._running.acquire(timeout=-1 if seconds is None else seconds)
        if ended:
            self._running.release()
        return ended

    def outcome(self) -> T:
        if self._error is not None:
            raise self._error
        return self._result[0]


class LastingThread:
    """A daemon thread, started when it is needed, that runs calls one after the other and lasts as the process does."""

    def __init__(self) -> None:
        self._calls: queue.SimpleQueue[Submitted[Any]] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    @property
    def is_started(self) -> bool:
        return self._thread is not None

    def submit(self, call: Callable[[], T]) -> Submitted[T]:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="dexray-ray", daemon=True)
            self._thread.start()
        submitted = Submitted(call)
        self._calls.put(submitted)
        return submitted

    def wait(self, submitted: Submitted[T]) -> T:
        """What the call returned or raised. An interrupt goes on only when the call has ended, or after a while."""
        try:
            submitted.wait()
        except KeyboardInterrupt:
            submitted.wait(INTERRUPTED_WAIT)
            raise
        return submitted.outcome()

    def settle(self, seconds: float | None = None) -> None:
        """Waits until what was submitted has ended, for at most so long."""
        if self._thread is not None:
            self.submit(lambda: None).wait(seconds)

    def _run(self) -> None:
        while True:
            self._calls.get().run()


def answers(address: str) -> bool:
    """Whether somebody listens there."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=1.0).close()
    except (OSError, ValueError):
        return False
    return True


def _connection() -> tuple[str, str]:
    context = ray.get_runtime_context()
    return str(context.gcs_address), str(context.get_job_id())


# Which Ray ------------------------------------------------------------------------------------------------------------


def _find_ray(settings: Settings) -> str:
    """An address for ray.init, or "local". Raises DexServiceError when an engine would be refused its database."""
    if settings.address and settings.address != "local":
        return settings.address
    if not settings.address and os.environ.get("RAY_ADDRESS"):
        return "local" if os.environ["RAY_ADDRESS"] == "local" else "auto"
    engine = _engine_of(settings.database_url)
    if settings.address == "local" and engine is not None:
        from dexray.cluster.lease import refusal

        detail = refusal(settings.database_url, engine.lease)
        raise DexServiceError(StatusCode.FAILED_PRECONDITION, detail, operation="connect")
    address = engine.address if engine is not None else _started_on_this_machine()
    if settings.address == "local" or not address:
        return "local"
    use_token()
    return address


def _engine_of(database: str) -> LivingEngine | None:
    if "://" not in database and not os.path.exists(database):
        return None  # and SQLAlchemy, which takes a while, is loaded while Ray starts
    from dexray.cluster.lease import find_engine

    return find_engine(database)


def _check_address(address: str) -> None:
    for value in (address, "" if address else os.environ.get("RAY_ADDRESS", "")):
        if "://" in value:
            raise DexServiceError(
                StatusCode.INVALID_ARGUMENT,
                f"address {value!r}: Ray Client is not supported. Run on a machine of the cluster, with its "
                '"host:port" or without an address',
                operation="connect",
            )


def _check_same_cluster(address: str) -> None:
    """This process can be in one Ray only."""
    if not address or address in ("local", "auto"):
        return
    here = str(ray.get_runtime_context().gcs_address)
    if _resolved(address) != _resolved(here):
        raise DexServiceError(
            StatusCode.FAILED_PRECONDITION,
            f"this process is connected to Ray at {here} and can't connect to {address} as well: "
            "close its clients (or call ray.shutdown()) first, or use another process",
            operation="connect",
        )


def _resolved(address: str) -> tuple[str, str]:
    host, _, port = address.rpartition(":")
    try:
        host = socket.gethostbyname(host)
        own = host.startswith("127.") or host == socket.gethostbyname(socket.gethostname())
    except OSError:
        own = False
    return ("this machine" if own else host), port


def _started_on_this_machine() -> str:
    """The address of the cluster that `ray start` noted, when it lives; embedded ones are not noted."""
    try:
        address = ray._private.utils.read_ray_address()
        if not address:
            return ""
        found: Any = ray._private.services.find_gcs_addresses
        return str(address) if address in found() else ""
    except Exception as error:
        logger.debug("looking for a running Ray: %s", error)
        return ""


def use_token() -> None:
    """A cluster of this user on this machine, found and not named: his token is for it (as with ray.init("auto"))."""
    try:
        from ray._private.authentication import authentication_token_setup as setup
    except ImportError:
        return  # a Ray without tokens
    with _quiet():
        setup.maybe_enable_token_auth_if_token_available(warn_if_disabled=False)


# Starting quietly -----------------------------------------------------------------------------------------------------


def _init_quietly(address: str, arguments: dict[str, Any]) -> None:
    with _quiet():
        ray.init(address, **arguments)


def _leave_sigterm_alone() -> None:
    """Ray's native side catches it to print a stack, which is no business of a library. What the program wants to
    happen, if only that it ends, is put back.
    """
    if threading.current_thread() is threading.main_thread():
        wanted = signal.getsignal(signal.SIGTERM)
        if wanted is not None:
            signal.signal(signal.SIGTERM, wanted)


_NO_NEWS = ("Token authentication is enabled", "SIGTERM handler is not set")


def _is_news(record: logging.LogRecord) -> bool:
    return not str(record.msg).startswith(_NO_NEWS)


@contextmanager
def _quiet() -> Iterator[None]:
    """Without two warnings that tell a user of ours nothing to act on. Every other one is shown."""
    talkers = [
        logging.getLogger(f"ray._private.{name}") for name in ("authentication.authentication_token_setup", "worker")
    ]
    for talker in talkers:
        talker.addFilter(_is_news)
    try:
        yield
    finally:
        for talker in talkers:
            talker.removeFilter(_is_news)


session = RaySession()
"""The one piece of state of this module, because Ray has one connection a process."""
