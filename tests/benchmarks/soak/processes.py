"""The processes of a soak, found by what the kernel knows of them: nobody is asked who could be frozen."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import selectors
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil

from tests.benchmarks.soak.flows import EFFECTS
from tests.benchmarks.soak.nodes import MARK

_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None)

READY = 120.0  # seconds for a cluster to come up on a busy machine
ROLES = {
    "flow_actor": ("ray::FlowActor",),
    "directory": ("ray::Directory",),
    "async_worker": ("ray::AsyncWorker",),
    "detached": ("ray::DetachedAttempt",),
    "task_worker": ("ray::run_lot", "ray::dexray", "ray::IDLE"),
}
"""How Ray names the processes of each role."""


def own_environ(folder: Path) -> dict[str, str]:
    """For every process of the soak: nothing of the settings of whoever runs it, Ray's files under our folder."""
    strange = ("DEXRAY_", "RAY_")
    environ = {name: value for name, value in os.environ.items() if not name.startswith(strange)}
    paths = [str(Path(__file__).parents[3] / "sdk"), str(Path(__file__).parents[3])]
    return {
        **environ,
        "PYTHONPATH": os.pathsep.join([*paths, environ.get("PYTHONPATH", "")]),
        "RAY_TMPDIR": str(folder),  # Ray makes its folder "ray" there
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_worker_niceness": "0",  # as nice as we are, no nicer: on a busy machine a worker would hardly begin
        EFFECTS: str(folder / "effects"),
    }


class Nodes:
    """The cluster: its process, and by it all others."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._buffer = b""
        self._lost: list[tuple[subprocess.Popen[bytes], float]] = []  # clusters without a head, and since when
        self._start()

    def _start(self) -> None:
        with (self._folder / "nodes.log").open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.benchmarks.soak.nodes", str(self._folder / "ray")],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=own_environ(self._folder),
                start_new_session=True,
            )
        self._buffer = b""
        self.address = str(self._line(READY)["address"])
        self.head = min(self.raylets(), key=lambda raylet: raylet.create_time()).pid
        (self._folder / "address").write_text(self.address)

    def _line(self, timeout: float) -> dict[str, Any]:
        assert self._process.stdout is not None
        deadline = time.monotonic() + timeout
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            while True:
                line, found, rest = self._buffer.partition(b"\n")
                if found:
                    self._buffer = rest
                    if line.startswith(MARK.encode()):
                        said: dict[str, Any] = json.loads(line.removeprefix(MARK.encode()))
                        return said
                    continue
                if not selector.select(max(0.0, deadline - time.monotonic())):
                    raise TimeoutError(f"the cluster says nothing; see {self._folder}/nodes.log")
                data = os.read(self._process.stdout.fileno(), 65536)
                if not data:
                    raise RuntimeError(f"the cluster's process has ended; see {self._folder}/nodes.log")
                self._buffer += data

    def add(self) -> None:
        """Begins to add a worker node; it comes when it comes."""
        assert self._process.stdin is not None
        self._process.stdin.write(b"add\n")
        self._process.stdin.flush()

    def family(self) -> list[psutil.Process]:
        try:
            found: list[psutil.Process] = psutil.Process(self._process.pid).children(recursive=True)
        except psutil.Error:
            return []
        return found

    def raylets(self) -> list[psutil.Process]:
        return [process for process in self.family() if name_of(process).startswith("raylet")]

    def workers(self, role: str) -> list[psutil.Process]:
        """The worker processes of a role, on all nodes."""
        return [process for process in self.family() if name_of(process).startswith(ROLES[role])]

    def lose_head(self) -> None:
        """SIGKILL to every process of the head's node, its book of the cluster too. The other nodes are left to find
        out by themselves; the next cluster begins at once, on the same database."""
        head = psutil.Process(self.head)
        gcs = [process for process in self.family() if process.name().startswith("gcs_server")]
        for process in [*gcs, head, *head.children(recursive=True)]:
            send(process, signal.SIGKILL)
        self._lost.append((self._process, time.monotonic()))
        self._start()

    def left_of_lost_ones(self, after: float) -> list[str]:
        """What lives of clusters that have been without a head for longer than so many seconds."""
        left = []
        for process, since in self._lost:
            if time.monotonic() - since > after:
                for child in psutil.Process(process.pid).children(recursive=True):
                    if child.status() != psutil.STATUS_ZOMBIE and name_of(child).startswith(("raylet", "ray::")):
                        left.append(f"{child.pid} {name_of(child)}")
        return left

    def lose(self) -> None:
        """SIGKILL to every process of the cluster, at once; then the next one, in new processes."""
        self._kill()
        shutil.rmtree(self._folder / "ray", ignore_errors=True)
        (self._folder / "ray").mkdir()
        self._start()

    def close(self) -> None:
        self._kill()

    def _kill(self) -> None:
        """Those too whose parent has gone: all of the soak have its folder in their environment, and the producers are
        not of the cluster's process group."""
        for process in [self._process, *(lost for lost, _ in self._lost)]:
            process.kill()
            process.wait(30)
        self._lost.clear()
        others = [process for process in psutil.process_iter() if self._is_ours(process)]
        for process in others:
            with contextlib.suppress(psutil.Error):
                process.kill()
        psutil.wait_procs(others, timeout=30)

    def _is_ours(self, process: psutil.Process) -> bool:
        try:
            return process.environ().get(EFFECTS) == str(self._folder / "effects") and "producer" not in " ".join(
                process.cmdline()
            )
        except psutil.Error:
            return False


class Producers:
    """The client processes; one that ends before its time is started again."""

    def __init__(self, folder: Path, names: list[str], seed: int) -> None:
        self._folder = folder
        self._seed = seed
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self.done: set[str] = set()
        self.unexpected: list[str] = []
        """What became of those that ended by themselves, and not well."""
        for name in names:
            self._begin(name)

    def _begin(self, name: str) -> None:
        with (self._folder / f"producer-{name}.log").open("ab") as log:
            self._running[name] = subprocess.Popen(
                [sys.executable, "-m", "tests.benchmarks.soak.producer", str(self._folder), name, str(self._seed)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=own_environ(self._folder),
                preexec_fn=_end_with_parent,
            )

    def look_after(self) -> None:
        for name, process in list(self._running.items()):
            code = process.poll()
            if code is None:
                continue
            del self._running[name]
            if code == 0:
                self.done.add(name)
                continue
            if code > 0:
                self.unexpected.append(f"{name} ended with {code}")
            self._begin(name)

    @property
    def all_done(self) -> bool:
        return not self._running

    def processes(self) -> Iterator[psutil.Process]:
        for process in self._running.values():
            with contextlib.suppress(psutil.Error):
                yield psutil.Process(process.pid)

    def kill_all(self) -> None:
        """The next look starts them anew."""
        for process in self._running.values():
            process.kill()
            process.wait()

    def close(self) -> None:
        self.kill_all()
        self._running.clear()


def _end_with_parent() -> None:
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def name_of(process: psutil.Process) -> str:
    """The name by which Ray calls a process; a raylet's is its program's."""
    try:
        line = process.cmdline()
    except psutil.Error:
        return ""
    if not line:
        return ""
    first = line[0]
    return "raylet" if first.endswith("/raylet") else first


def send(process: psutil.Process, what: signal.Signals) -> None:
    with contextlib.suppress(psutil.Error):
        process.send_signal(what)
